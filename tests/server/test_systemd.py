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
from http_checks import ready

from supervisor.processes.service import inherited
from supervisor.systemd import VARIABLES, Systemd, given_sockets

ACTIVATED = (
    "import os, socket, sys\n"
    "one = socket.create_server(('127.0.0.1', 0))\n"
    "os.dup2(one.fileno(), 3); os.set_inheritable(3, True)\n"
    "os.environ |= {'LISTEN_PID': str(os.getpid()), 'LISTEN_FDS': '1'}\n"
    "os.execv(sys.argv[1], sys.argv[1:])"
)
WRITES_ENVIRONMENT = {"command": ["sh", "-c", "env > environment; exec sleep 1000"], "auto-start": True}


class NotifySocket:
    """The socket on which systemd receives notifications."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(f"\0{name[1:]}" if name.startswith("@") else name)
        self.socket.settimeout(TIMEOUT_SECONDS)

    def receive(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().split("\n"))

    def discard_unread(self) -> int:
        """Discards the unread messages and returns their number."""
        self.socket.setblocking(False)
        found = 0
        with contextlib.suppress(BlockingIOError):
            while self.receive():
                found += 1
        self.socket.settimeout(TIMEOUT_SECONDS)
        return found

    def receive_with(self, name: str) -> dict[str, str]:
        """The next message with this variable."""
        while name not in (result := self.receive()):
            pass
        return result


@pytest.fixture(params=["path", "abstract"])
def notify_socket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NotifySocket]:
    one = NotifySocket(f"{tmp_path}/notify" if request.param == "path" else f"@pilothouse-{os.getpid()}-{id(request)}")
    yield one
    one.socket.close()


def test_systemd_receives_the_lifecycle_of_the_server(serve: Serve, tmp_path: Path) -> None:
    notify_socket = NotifySocket(f"{tmp_path}/notify")
    server = serve(
        {"web": {**WRITES_ENVIRONMENT, "directory": str(tmp_path)}, "idle": {"command": "sleep 1000"}},
        environ={"NOTIFY_SOCKET": notify_socket.name, "WATCHDOG_USEC": "400000"},
        server={"shutdown-timeout": "100s"},
    )
    assert notify_socket.receive() == {"READY": "1"}
    ready(server)
    server.until("web", "running")
    wait_for(lambda: "1 of 2 processes are live" in notify_socket.receive_with("WATCHDOG")["STATUS"])
    wait_for(lambda: "PATH=" in (tmp_path / "environment").read_text(), about="the environment of the process")

    os.kill(server.pid, signal.SIGHUP)
    result = notify_socket.receive_with("RELOADING")
    assert result["RELOADING"] == "1"
    assert 0 <= time.monotonic_ns() // 1000 - int(result["MONOTONIC_USEC"]) < TIMEOUT_SECONDS * 1e6
    assert notify_socket.receive_with("READY") == {"READY": "1"}

    os.kill(server.pid, signal.SIGTERM)
    result = notify_socket.receive_with("STOPPING")
    assert result["STOPPING"] == "1"
    assert int(result["EXTEND_TIMEOUT_USEC"]) > 100e6, "longer than shutdown-timeout"
    server.stop()

    environment = (tmp_path / "environment").read_text()
    assert "PATH=" in environment
    assert not VARIABLES & {line.partition("=")[0] for line in environment.splitlines()}
    notify_socket.socket.close()


def test_reload_of_an_invalid_file_ends_with_ready(serve: Serve, tmp_path: Path) -> None:
    notify_socket = NotifySocket(f"{tmp_path}/notify")
    server = serve(environ={"NOTIFY_SOCKET": notify_socket.name})
    notify_socket.receive_with("READY")
    server.file.write_text("supervisor: 1")
    os.kill(server.pid, signal.SIGHUP)
    notify_socket.receive_with("RELOADING")
    assert notify_socket.receive_with("READY")
    notify_socket.socket.close()


def test_stalled_loop_sends_no_watchdog_notification(notify_socket: NotifySocket) -> None:
    async def stall() -> None:
        systemd = Systemd({"NOTIFY_SOCKET": notify_socket.name, "WATCHDOG_USEC": "20000"}, os.getpid())
        begun = time.monotonic()
        systemd.watch(lambda: "well")
        for _ in range(3):
            result = await asyncio.to_thread(notify_socket.receive)
            assert result == {"WATCHDOG": "1", "STATUS": "well"}
        every = 0.01  # half of the time that systemd waits
        assert notify_socket.discard_unread() <= (time.monotonic() - begun) / every, "those sent before the stall"
        time.sleep(0.2)  # noqa: ASYNC251 (the stall)
        assert notify_socket.discard_unread() == 0
        assert await asyncio.to_thread(notify_socket.receive), "notifications resume after the stall"
        systemd.close()

    asyncio.run(stall())


def test_ready_is_not_sent_after_stopping(notify_socket: NotifySocket) -> None:
    systemd = Systemd({"NOTIFY_SOCKET": notify_socket.name}, os.getpid())
    systemd.stopping(1.5)
    systemd.ready()
    systemd.reloading()
    systemd.close()
    assert notify_socket.receive() == {"STOPPING": "1", "EXTEND_TIMEOUT_USEC": "1500000"}
    assert "RELOADING" in notify_socket.receive()


def test_a_failed_notification_is_logged_once_and_has_no_other_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    systemd = Systemd({"NOTIFY_SOCKET": str(tmp_path / "nobody")}, os.getpid())
    systemd.ready()
    systemd.ready()
    systemd.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("is_own", [True, False])
def test_a_watchdog_of_another_process_is_ignored(is_own: bool) -> None:
    pid = str(os.getpid() if is_own else 1)
    systemd = Systemd({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": pid}, os.getpid())
    assert systemd._every == (0.5 if is_own else 2.0)


def test_server_listens_on_an_inherited_socket(serve: Serve) -> None:
    server = serve({"web": WRITES_ENVIRONMENT}, command=[*python_command(ACTIVATED)], server={"address": "0.0.0.0"})
    assert "listening on http://127.0.0.1:" in server.log.read_text()
    assert server.get("/healthz").status == 200
    assert server.post("/api/v1/supervisor/reload").json["needRestart"] == []
    environment = wait_for(lambda: (path := server.folder / "environment").exists() and path.read_text())
    assert not re.search(r"^LISTEN_", environment, re.MULTILINE)


def test_sockets_of_another_process_are_ignored() -> None:
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


def test_children_do_not_inherit_the_variables_of_systemd() -> None:
    own = dict.fromkeys(VARIABLES, "x")
    assert inherited({**own, "PATH": "/bin"}) == {"PATH": "/bin"}


def test_children_do_not_inherit_secrets_or_misspelt_properties() -> None:
    secrets = ("PILOTHOUSE_TOKEN", "PGPASSWORD", "CREDENTIALS_DIRECTORY")
    misspelt = ("SVC_SECURITY_API_KEYS", "TRACKER_SECURITY_ADMIN_PASSWROD", "SERVER_TOKEN", "SUPERVISOR_X")
    assert inherited({**dict.fromkeys((*secrets, *misspelt), "hunter2"), "SERVICE": "x"}) == {"SERVICE": "x"}
