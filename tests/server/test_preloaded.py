"""A server that the tests fork is compared with `python run.py`."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import Serve, Server, run_verb, wait_for
from http_checks import ready
from preloaded import Forked

_STATUS = re.compile(r"^((?:Umask|Groups|Sig[BIC]..|Cap...|NoNewPrivs|Seccomp):.*)$", re.MULTILINE)


def seen_by_the_kernel(server: Server) -> dict[str, Any]:
    folder = Path(f"/proc/{server.pid}")
    descriptors = list[str]()
    for file in (folder / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has been closed meanwhile
            descriptors.append(re.sub(r"(?<=/pilothouse-)\w+|\d+", "", os.readlink(file)))
    return {
        "status": _STATUS.findall((folder / "status").read_text()),
        "limits": (folder / "limits").read_text(),
        "group": os.getpgid(server.pid),
        "niceness": os.getpriority(os.PRIO_PROCESS, server.pid),
        # Each worker that reads a store has one of its own; the schedstat of a process is opened by its first sample,
        # which comes before or a minute after its start.
        "descriptors": set(descriptors) - {"/proc//schedstat"},
        "sockets": sum(one.startswith(("socket:", "pipe:")) for one in descriptors),
    }


def log_lines(server: Server) -> list[str]:
    return [re.sub(r"server\d|\d", "", line) for line in server.log.read_text().splitlines()]


def test_a_forked_server_equals_an_executed_one(serve: Serve, tmp_path: Path) -> None:
    processes = {"web": {"command": "sleep 1000", "auto-start": True}}
    # A server that finds the folder of a killed one in /tmp logs its removal.
    svc = {"rest": {"temp-dir": str(tmp_path)}}
    executed, forked = serve(processes, wait=False, svc=svc), serve(processes, wait=False, svc=svc)
    executed.is_forked, forked.is_forked = False, True
    for server, kind in ((executed, subprocess.Popen), (forked, Forked)):
        assert isinstance(server.start().process, kind)
        server.until("web", "running")
        ready(server)
    # Both at rest: the connection of the last request may still be open.
    wait_for(lambda: seen_by_the_kernel(forked) == seen_by_the_kernel(executed), about="equal processes")
    assert os.readlink(f"/proc/{forked.pid}/cwd") == str(forked.folder)
    assert [executed.stop(), forked.stop()] == [0, 0]
    assert log_lines(forked) == log_lines(executed)
    forked.start().kill()
    assert forked.process is not None
    assert forked.process.returncode == -9


@pytest.mark.parametrize(
    ("arguments", "code"), [(["--version"], 0), (["check"], 2), (["--nonsense"], 2), (["init", "new"], 0)]
)
def test_a_forked_verb_equals_an_executed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int
) -> None:
    (tmp_path / "pilothouse.yaml").write_text("nonsense: 1\n")
    seen = []
    for is_forked in (False, True):
        monkeypatch.setattr(Server, "is_forked", is_forked)
        shutil.rmtree(tmp_path / "new", ignore_errors=True)
        done = run_verb(*arguments, folder=tmp_path)
        seen.append((done.returncode, done.stdout, done.stderr))
    assert seen[0] == seen[1]
    assert seen[0][0] == code
    assert "".join(seen[0][1:])


def test_a_forked_verb_reads_its_standard_input_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Server, "is_forked", True)
    environ = {**os.environ, "SERVER_DATA_DIR": str(tmp_path / "chosen")}
    done = run_verb("user", "add", "bob", folder=tmp_path, environ=environ, given=b"a long password\n")
    assert done.returncode == 0, done
    assert (tmp_path / "chosen" / "tracker.db").exists()
    assert run_verb("user", "token", "bob", folder=tmp_path, environ=environ).returncode == 0
