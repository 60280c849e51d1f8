"""The launcher: children with another user, limits or niceness. No program runs as root with a child's variables."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import changed_constants
import pytest
from conftest import Serve, is_alive, launcher_of, python_command, wait_for
from requirements import ROOT_USER

from supervisor.children.child import Launch
from supervisor.children.launcher import Launcher

PRELOADED = {"LD_PRELOAD": "/no/such/library.so"}
"""The loader complains on standard error, once for each program that is executed with it."""


@pytest.mark.needs(ROOT_USER)
def test_variable_of_the_loader_is_obeyed_by_no_program_but_the_command(serve: Serve, tmp_path: Path) -> None:
    log = tmp_path / "log"
    spec = {
        "command": "/bin/true", "user": "nobody", "limits": {"core": 0}, "nice": 3, "environment": PRELOADED,
        "start-pre": "/bin/true", "stderr-logfile": str(log),
    }  # fmt: skip
    server = serve({"web": spec})
    assert server.do("start", "web").status == 200
    server.until("web", "finished")
    assert log.read_text().count("/no/such/library.so") == 2  # the hook and the command


@pytest.mark.needs(ROOT_USER)
def test_variable_of_an_env_file_of_the_user_is_obeyed_by_the_command_only(serve: Serve, open_folder: Path) -> None:
    (open_folder / ".env").write_text("LD_PRELOAD=/no/such/library.so\nPATH=/nowhere:/bin\nSECRET=hunter2\n")
    os.chown(open_folder / ".env", 65534, 65534)
    log = open_folder / "log"
    spec = {"command": "env", "user": "nobody", "env-file": str(open_folder / ".env"), "stdout-logfile": str(log)}
    server = serve({"web": {**spec, "redirect-stderr": True}})
    assert server.do("start", "web").status == 200
    server.until("web", "finished")
    lines = log.read_text().splitlines()
    assert {"LD_PRELOAD=/no/such/library.so", "PATH=/nowhere:/bin", "SECRET=hunter2"} <= set(lines)
    assert sum("cannot be preloaded" in line for line in lines) == 1


def test_launcher_knows_no_variable_of_the_server(serve: Serve) -> None:
    server = serve({"web": {"command": "true", "nice": 5}}, environ={"SECRET": "hunter2", **PRELOADED})
    names = {
        entry.split(b"=")[0] for entry in Path(f"/proc/{launcher_of(server.pid)}/environ").read_bytes().split(b"\0")
    }
    assert names - {b""} == {b"PATH", b"LANG"}


SLOW = {"supervisor__children__child___EXEC_MILLISECONDS": 0}


@pytest.mark.parametrize("more", [{}, {"start-seconds": "10s"}], ids=["at once", "after start-seconds"])
def test_command_that_is_executed_late_starts_or_fails_with_the_reason(
    serve: Serve, tmp_path: Path, more: dict[str, Any]
) -> None:
    """As where its file is on a file system that does not answer: the loop does not wait for it."""
    os.mkfifo(tmp_path / "unread")
    missing = {"command": "/no/such/program", "nice": 5, **more}
    present = {"command": "sleep 1000", "nice": 5}
    piped = {**present, "stdout-logfile": str(tmp_path / "unread"), **more}
    processes = {"missing": missing, "present": present, "piped": piped}
    server = serve(processes, command=changed_constants.server_command(**SLOW))
    assert server.do("start", "missing").status == 500
    assert "No such file or directory" in server.info("missing")["failedErrorLog"]
    assert (server.status("missing"), server.info("missing")["exitCode"]) == ("failed_to_start", None)
    assert server.do("start", "piped").status == 500
    assert f"No such device or address ({tmp_path / 'unread'})" in server.info("piped")["failedErrorLog"]
    assert server.do("start", "present").status == 200
    assert server.status("present") == "running"


def test_process_starts_after_the_launcher_was_killed(serve: Serve) -> None:
    server = serve({name: {"command": "sleep 1000", "nice": 5} for name in ("one", "two")})
    assert server.do("start", "one").status == 200
    launcher = launcher_of(server.pid)
    os.kill(launcher, signal.SIGKILL)
    wait_for(lambda: not is_alive(launcher))
    assert server.do("start", "two").status == 200
    assert (server.status("one"), server.status("two")) == ("running", "running")
    launcher = launcher_of(server.pid)
    assert server.stop() == 0
    wait_for(lambda: not is_alive(launcher))


def test_launcher_ends_with_a_killed_server_and_ignores_sigterm(serve: Serve) -> None:
    server = serve({"one": {"command": "sleep 1000", "nice": 5}})
    launcher = launcher_of(server.pid)
    os.kill(launcher, signal.SIGTERM)
    assert server.do("start", "one").status == 200
    server.kill()
    wait_for(lambda: not is_alive(launcher))


def test_a_launcher_that_has_just_begun_ignores_sigterm() -> None:
    """It inherits the signals that it blocks: nothing is left to its own first steps."""
    launcher = Launcher(contextlib.nullcontext)
    try:
        launcher.start()
        assert launcher.pid is not None
        os.kill(launcher.pid, signal.SIGTERM)
        status = Path(f"/proc/{launcher.pid}/status").read_text()
        blocked = int(next(line for line in status.splitlines() if line.startswith("SigBlk")).split()[1], 16)
        assert blocked & (1 << (signal.SIGTERM - 1))
        assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        launcher.close()


def test_signal_sent_right_after_the_start_is_delivered(serve: Serve) -> None:
    code = "import signal; signal.pause()"
    server = serve({"one": {"command": python_command(code), "nice": 5}})
    for _ in range(20):
        assert server.do("start", "one").status == 200
        assert server.do("stop", "one").status == 200
        assert server.info("one")["exitCode"] == 128 + signal.SIGTERM


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_loop_opens_no_file_of_a_process(stream: str) -> None:
    """The launcher's clone opens it: a file system that does not answer holds nobody else."""
    plain = Launch(["true"], {})
    assert not plain.needs_launcher
    assert Launch(["true"], {}, **{stream: "/var/log/web.log"}).needs_launcher  # type: ignore[arg-type]
    assert not Launch(["true"], {}, **{stream: os.devnull}).needs_launcher  # type: ignore[arg-type]
    assert not Launch(["true"], {}, **{stream: 3}).needs_launcher  # type: ignore[arg-type]
