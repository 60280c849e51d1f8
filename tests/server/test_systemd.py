"""Notifications to systemd on a real datagram socket, and socket activation."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT, TIMEOUT_SECONDS, Serve, python_command, wait_for

from supervisor.processes.service import inherited
from supervisor.systemd import VARIABLES, Systemd, given_sockets

ACTIVATED = (
    "import os, socket, sys\n"
    "one = socket.create_server(('127.0.0.1', 0))\n"
    "os.dup2(one.fileno(), 3); os.set_inheritable(3, True)\n"
    "os.environ |= {'LISTEN_PID': str(os.getpid()), 'LISTEN_FDS': '1'}\n"
    "os.execv(sys.argv[1], sys.argv[1:])"
)
SAYS_ITS_ENVIRONMENT = {"command": ["sh", "-c", "env > environment; exec sleep 1000"], "auto-start": True}


class Ear:
    """systemd's end of the socket."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(f"\0{name[1:]}" if name.startswith("@") else name)
        self.socket.settimeout(TIMEOUT_SECONDS)

    def hear(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().split("\n"))

    def waiting(self) -> int:
        """How many messages have come and are not heard yet; they are dropped."""
        self.socket.setblocking(False)
        found = 0
        with contextlib.suppress(BlockingIOError):
            while self.hear():
                found += 1
        self.socket.settimeout(TIMEOUT_SECONDS)
        return found

    def hear_of(self, name: str) -> dict[str, str]:
        """The next message that has this variable in it."""
        while name not in (result := self.hear()):
            pass
        return result


@pytest.fixture(params=["path", "abstract"])
def ear(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ear]:
    one = Ear(f"{tmp_path}/notify" if request.param == "path" else f"@pilothouse-{os.getpid()}-{id(request)}")
    yield one
    one.socket.close()


def test_systemd_receives_the_lifecycle_of_the_server(serve: Serve, tmp_path: Path) -> None:
    ear = Ear(f"{tmp_path}/notify")
    server = serve(
        {"web": {**SAYS_ITS_ENVIRONMENT, "directory": str(tmp_path)}, "idle": {"command": "sleep 1000"}},
        environ={"NOTIFY_SOCKET": ear.name, "WATCHDOG_USEC": "400000"},
        server={"shutdown-timeout": "100s"},
    )
    assert ear.hear() == {"READY": "1"}
    assert server.get("/readyz").status == 200
    server.until("web", "running")
    assert any("1 of 2 processes are live" in ear.hear_of("WATCHDOG")["STATUS"] for _ in range(5))

    os.kill(server.pid, signal.SIGHUP)
    result = ear.hear_of("RELOADING")
    assert result["RELOADING"] == "1"
    assert 0 <= time.monotonic_ns() // 1000 - int(result["MONOTONIC_USEC"]) < TIMEOUT_SECONDS * 1e6
    assert ear.hear_of("READY") == {"READY": "1"}

    os.kill(server.pid, signal.SIGTERM)
    result = ear.hear_of("STOPPING")
    assert result["STOPPING"] == "1"
    assert int(result["EXTEND_TIMEOUT_USEC"]) > 100e6, "longer than shutdown-timeout"
    server.stop()

    environment = (tmp_path / "environment").read_text()
    assert "PATH=" in environment
    assert not VARIABLES & {line.partition("=")[0] for line in environment.splitlines()}
    ear.socket.close()


def test_a_faulty_file_ends_the_reload_too(serve: Serve, tmp_path: Path) -> None:
    ear = Ear(f"{tmp_path}/notify")
    server = serve(environ={"NOTIFY_SOCKET": ear.name})
    ear.hear_of("READY")
    server.file.write_text("supervisor: 1")
    os.kill(server.pid, signal.SIGHUP)
    ear.hear_of("RELOADING")
    assert ear.hear_of("READY")
    ear.socket.close()


def test_a_stalled_loop_is_silent(ear: Ear) -> None:
    async def stall() -> None:
        systemd = Systemd({"NOTIFY_SOCKET": ear.name, "WATCHDOG_USEC": "20000"}, os.getpid())
        systemd.watch(lambda: "well")
        for _ in range(3):
            result = await asyncio.to_thread(ear.hear)
            assert result == {"WATCHDOG": "1", "STATUS": "well"}
        assert ear.waiting() < 10, "what was on its way"
        time.sleep(0.2)  # noqa: ASYNC251 (the stall)
        assert ear.waiting() == 0
        assert await asyncio.to_thread(ear.hear), "and speaks again when it turns"
        systemd.close()

    asyncio.run(stall())


def test_after_stopping_it_is_never_ready_again(ear: Ear) -> None:
    systemd = Systemd({"NOTIFY_SOCKET": ear.name}, os.getpid())
    systemd.stopping(1.5)
    systemd.ready()
    systemd.reloading()
    systemd.close()
    assert ear.hear() == {"STOPPING": "1", "EXTEND_TIMEOUT_USEC": "1500000"}
    assert "RELOADING" in ear.hear()


def test_a_failed_notification_is_logged_once_and_has_no_other_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    systemd = Systemd({"NOTIFY_SOCKET": str(tmp_path / "nobody")}, os.getpid())
    systemd.ready()
    systemd.ready()
    systemd.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("mine", [True, False])
def test_a_watchdog_of_another_process_is_ignored(mine: bool) -> None:
    pid = str(os.getpid() if mine else 1)
    systemd = Systemd({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": pid}, os.getpid())
    assert systemd._every == (0.5 if mine else 2.0)


def test_a_server_listens_on_the_socket_that_it_is_given(serve: Serve) -> None:
    server = serve({"web": SAYS_ITS_ENVIRONMENT}, command=[*python_command(ACTIVATED)], server={"address": "0.0.0.0"})
    assert "listening on http://127.0.0.1:" in server.log.read_text()
    assert server.get("/healthz").status == 200
    assert server.post("/api/v1/supervisor/reload").json["needRestart"] == []
    environment = wait_for(lambda: (path := server.folder / "environment").exists() and path.read_text())
    assert not re.search(r"^LISTEN_", environment, re.MULTILINE)


def test_what_is_given_to_another_is_left_alone() -> None:
    assert given_sockets({"LISTEN_PID": "1", "LISTEN_FDS": "1"}, os.getpid()) == []
    assert given_sockets({}, os.getpid()) == []


def test_a_socket_that_does_not_listen_is_refused(tmp_path: Path) -> None:
    import subprocess

    code = ACTIVATED.replace("socket.create_server(('127.0.0.1', 0))", "socket.socket()")
    done = subprocess.run(
        [*python_command(code), sys.executable, str(ROOT / "run.py")], cwd=tmp_path, capture_output=True, timeout=60
    )
    assert done.returncode == 1
    assert b"is not a listening TCP socket" in done.stderr


def test_children_do_not_speak_in_the_servers_name() -> None:
    own = dict.fromkeys(VARIABLES, "x")
    assert inherited({**own, "PATH": "/bin"}) == {"PATH": "/bin"}
