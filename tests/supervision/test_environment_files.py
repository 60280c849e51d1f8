"""Environment files whose read blocks: the server answers other requests, and a stop overtakes the start."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from conftest import Server, open_for_writing, wait_for

from models.config import env_files
from models.supervision.process import ProcessSpec
from models.supervision.record import Record
from supervisor.children import proc, tags
from supervisor.processes import adoption
from supervisor.processes.process.context import SupervisionContext

PROCESSES = "/api/v1/processes"


@pytest.fixture
def slow(serve: Callable[..., Server], tmp_path: Path) -> tuple[Server, Path]:
    """A server with a process whose environment file is a pipe: reading it blocks until the test writes."""
    file = tmp_path / "variables"
    file.write_text("A=1\n")
    command = ["sh", "-c", "echo $A > output; exec sleep 1000"]
    process: dict[str, Any] = {"command": command, "env-file": str(file), "directory": str(tmp_path)}
    server = serve(supervisor={"processes": {"slow": process}})
    file.unlink()
    os.mkfifo(file)
    return server, file


def test_the_server_answers_while_an_environment_file_is_read(slow: tuple[Server, Path], tmp_path: Path) -> None:
    server, file = slow
    with ThreadPoolExecutor(1) as threads:
        start = threads.submit(server.post, f"{PROCESSES}/start/slow")
        pipe = wait_for(lambda: open_for_writing(file), about="the environment file to be opened")
        assert server.get("/healthz").status == 200
        os.write(pipe, b"A=2\n")
        os.close(pipe)
        assert start.result().status == 200
    wait_for(
        lambda: (tmp_path / "output").exists() and (tmp_path / "output").read_text() == "2\n", about="the variable"
    )


def test_a_pipe_is_read_at_starts_only(serve: Callable[..., Server], tmp_path: Path) -> None:
    file = tmp_path / "variables"
    os.mkfifo(file)
    server = serve({"slow": {"command": "sleep 1000", "env-file": str(file)}})
    with ThreadPoolExecutor(1) as threads:
        start = threads.submit(server.post, f"{PROCESSES}/start/slow")
        os.close(wait_for(lambda: open_for_writing(file), about="the environment file to be opened"))
        assert start.result().status == 200
    assert server.post("/api/v1/supervisor/reload").status == 200
    pid = server.info("slow")["pid"]
    server.kill()
    server.start()
    assert server.info("slow")["pid"] == pid


def test_a_writer_waits_for_the_start_while_the_configuration_is_read(tmp_path: Path) -> None:
    file = tmp_path / "variables"
    os.mkfifo(file)
    digest = env_files.digest([str(file)])
    with subprocess.Popen(["sh", "-c", "echo; echo A=1 > variables"], cwd=tmp_path, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        wait_for(lambda: proc.stat(writer.pid)[0] == "S", about="a writer that waits for a reader")  # type: ignore[index]
        assert env_files.digest([str(file)]) == digest
        with pytest.raises(env_files.EnvFileError, match="is a pipe"):
            env_files.read([str(file)], waits=False)
        assert env_files.read([str(file)]) == {"A": "1"}
    assert writer.returncode == 0


def test_a_stop_overtakes_a_start_that_reads_its_environment_file(slow: tuple[Server, Path]) -> None:
    server, file = slow
    with ThreadPoolExecutor(2) as threads:
        start = threads.submit(server.post, f"{PROCESSES}/start/slow")
        pipe = wait_for(lambda: open_for_writing(file), about="the environment file to be opened")
        stop = threads.submit(server.post, f"{PROCESSES}/stop/slow")
        assert server.get("/healthz").status == 200
        os.write(pipe, b"A=2\n")
        os.close(pipe)
        assert start.result().status in (200, 409)  # 409 where the stop came first
        stop.result()
    assert server.get(f"{PROCESSES}/info/slow").json["status"] in ("stopped", "not_started")


def adoptable(name: str, file: Path) -> Mock:
    process = Mock()
    process.state.record = Record(name)
    process.name, process.spec = name, ProcessSpec(name, ("x",), env_file=(str(file),))
    return process


def test_the_environment_files_of_adopted_children_are_read_in_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "variables").write_text("A=1\n")
    good, bad = (adoptable(name, tmp_path / file) for name, file in (("good", "variables"), ("bad", "missing")))
    read, threads = env_files.read, list[object]()

    def recording_read(paths: tuple[str, ...], waits: bool, opener: Callable[[str], int]) -> dict[str, str]:
        threads.append(threading.current_thread())
        return read(paths, waits, opener)

    monkeypatch.setattr(env_files, "read", recording_read)
    monkeypatch.setattr(tags, "tagged_processes", lambda *_, **__: [Mock()])
    monkeypatch.setattr(adoption, "_by_identity", lambda *_: (Mock(), 1))
    fleet: Any = [good, bad]
    taken = list[object]()
    monkeypatch.setattr(adoption, "_take_over", lambda *given: taken.append(given[-1]))
    context = Mock()
    context.cgroups.left.return_value = {}
    asyncio.run(adoption.adopt(fleet, context, {}))
    assert len(threads) == 2
    assert threading.main_thread() not in threads
    assert taken == [{"A": "1"}, None]


def test_directory_and_account_of_a_process_are_looked_up_in_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ProcessSpec("web", ("x",), directory=str(tmp_path), user=str(os.geteuid()), group=str(os.getegid()))
    context, threads = SupervisionContext.__new__(SupervisionContext), list[object]()
    monkeypatch.setattr(SupervisionContext, "_launch", lambda *_: threads.append(threading.current_thread()))
    asyncio.run(context.launch(spec, 1))
    asyncio.run(context.check(spec))
    asyncio.run(context.launch(ProcessSpec("plain", ("x",)), 1))
    assert [thread is threading.main_thread() for thread in threads] == [False, False, True]
