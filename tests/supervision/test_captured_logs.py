"""Captured logs: their paths, responses, rotation and deletion, and a SIGKILL of the server during capture."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Serve, Server, wait_for

from models.supervision.captured_logs import remove_old, with_log
from models.supervision.process import LogMode, ProcessSpec, Size

DATA = Path("/data")
MIB = 1024 * 1024


def captured(name: str = "web", **properties: Any) -> ProcessSpec:
    return with_log(ProcessSpec(name, ("x",), **properties), LogMode.CAPTURE, DATA)


@pytest.mark.parametrize(
    ("properties", "default", "files"),
    [
        ({}, LogMode.INHERIT, (None, None)),
        ({}, LogMode.NONE, (None, None)),
        ({}, LogMode.CAPTURE, ("/data/logs/web.out", "/data/logs/web.err")),
        ({"log": LogMode.CAPTURE}, LogMode.NONE, ("/data/logs/web.out", "/data/logs/web.err")),
        ({"log": LogMode.INHERIT}, LogMode.CAPTURE, (None, None)),
        ({"redirect_stderr": True}, LogMode.CAPTURE, ("/data/logs/web.out", None)),
        ({"stdout_logfile": "own"}, LogMode.CAPTURE, ("own", "/data/logs/web.err")),
    ],
)
def test_log_mode_determines_the_log_files(
    properties: dict[str, Any], default: LogMode, files: tuple[str | None, str | None]
) -> None:
    spec = with_log(ProcessSpec("web", ("x",), **properties), default, DATA)
    assert (spec.stdout_logfile, spec.stderr_file) == files


def test_captured_files_have_their_own_size_limits() -> None:
    spec = captured(stdout_logfile="own")
    assert spec.log_bounds("own") == (50 * MIB, 5)
    assert spec.log_bounds("/data/logs/web.err") == (10 * MIB, 1)
    spec = captured(log_max_bytes=Size(7), log_backups=2)
    assert spec.log_bounds("/data/logs/web.out") == (7, 2)


def test_each_process_name_maps_to_its_own_file_in_the_log_folder() -> None:
    names = ["a/b", "a%2Fb", "..", ".", "../../etc/passwd", "a b", "é", "x" * 255, "é" * 255, "é" * 254 + "f", "A\\b"]
    files = [Path(captured(name).stdout_logfile or "") for name in names]
    assert {file.parent for file in files} == {DATA / "logs"}
    assert len(set(files)) == len(names)
    assert max(len(os.fsencode(file.name)) for file in files) < 230


def test_old_files_of_removed_processes_are_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    old, young = ["gone.out", "gone.err.1", "kept.out", "kept.out.1", "notes.txt"], ["late.out"]
    for name in (*old, *young):
        (folder / name).touch()
    now = time.time()
    for name in old:
        os.utime(folder / name, (0, now - 7 * 86400 - 1))
    removed = remove_old(tmp_path, {str(folder / "kept.out")}, now)
    assert sorted(file.name for file in removed) == ["gone.err.1", "gone.out"]
    assert {file.name for file in folder.iterdir()} == {"kept.out", "kept.out.1", "notes.txt", "late.out"}
    assert remove_old(tmp_path / "missing", set(), now) == []


TALKER = "echo out-$$; echo err-$$ >&2; n=0; while :; do n=$((n+1)); echo line $n; sleep 0.02; done"
PROCESSES: dict[str, dict[str, Any]] = {
    "talker": {"command": ["sh", "-c", TALKER], "log-max-bytes": "2K"},
    "a/b": {"command": ["sh", "-c", "printf '\\033[31mred\\033[0m \\377\\n'; exec sleep 1000"]},
    "silenced": {"command": ["sh", "-c", "echo unheard; exec sleep 1000"], "log": "none"},
    "heard": {"command": ["sh", "-c", "echo from heard; exec sleep 1000"], "log": "inherit"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    supervisor = {"processes": PROCESSES, "log": "capture"}
    server = Server(tmp_path_factory.mktemp("captured"), {"supervisor": supervisor}, {}, [])
    yield server.start()
    server.close()


def test_output_is_captured_and_shown_raw(server: Server) -> None:
    for name in ("a/b", "silenced", "heard"):
        assert server.do("start", name).status == 200
    info = server.info("a/b")
    file = Path(info["stdoutLogfile"])
    assert file == server.data / "logs" / "a%2Fb.out"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    wait_for(file.read_bytes)
    assert file.read_bytes() == b"\x1b[31mred\x1b[0m \xff\n"
    assert server.get("/api/v1/processes/logs/a%2Fb").body == "\x1b[31mred\x1b[0m \ufffd\n".encode()
    assert server.get("/api/v1/processes/logs/silenced").status == 404
    wait_for(lambda: "from heard" in server.log.read_text())
    assert "unheard" not in server.log.read_text()


@pytest.mark.parametrize("by_reload", [True, False])
def test_logs_of_a_removed_process_are_kept_for_some_time_after_its_removal(serve: Serve, by_reload: bool) -> None:
    """Also if it wrote nothing for long, and its backups too."""
    server = serve({"quiet": {"command": ["sh", "-c", "echo once; exec sleep 1000"], "log": "capture"}})
    server.do("start", "quiet")
    log, backup = (server.data / "logs" / name for name in ("quiet.out", "quiet.out.1"))
    wait_for(log.read_bytes)
    backup.touch()
    for file in (log, backup):
        os.utime(file, (0, time.time() - 8 * 86400))
    if not by_reload:
        server.close()
    server.configure({"supervisor": {"processes": {}}})
    if by_reload:
        assert server.post("/api/v1/supervisor/reload").status == 200
    else:
        server.start()
    assert remove_old(server.data, set(), time.time()) == []
    assert {file.name for file in log.parent.glob("quiet.out*")} == {"quiet.out", "quiet.out.1"}


def test_captured_output_is_followed_across_rotations_and_kill_9(server: Server) -> None:
    server.do("start", "talker")
    path = "/api/v1/processes/logs/talker"
    wait_for(lambda: server.get(f"{path}?stream=stderr").text.startswith("err-"))
    stream = server.stream(f"{path}?lines=1")
    assert "line" in (stream.next()["data"] + stream.next()["data"])
    server.kill()
    stream.close()
    out = server.data / "logs" / "talker.out"
    size = out.stat().st_size
    wait_for(lambda: out.stat().st_size > size)
    server.start()
    wait_for(lambda: out.with_name("talker.out.1").exists())
    assert not out.with_name("talker.out.2").exists()
    last = int(wait_for(lambda: server.get(f"{path}?lines=1").text.split())[-1])
    stream = server.stream(f"{path}?lines=1")
    wait_for(lambda: int(stream.next()["data"].split()[-1]) > last)
    stream.close()
