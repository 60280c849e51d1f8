"""The control socket: its file, and the permissions of its users."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import TIMEOUT_SECONDS, Serve, Server, run_verb, wait_for
from requirements import ROOT_USER
from users import bearer, create_token

SLEEP = {"command": "sleep 1000"}
NOBODY = 65534
CLOSED: dict[str, Any] = {"security": {"open-mode": False}}

as_root = pytest.mark.needs(ROOT_USER)


class Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT_SECONDS)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(str(self.path))


def send_request(path: Path, method: str, target: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    connection = Connection(path)
    try:
        connection.request(method, target, headers=headers or {})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def control(server: Server) -> Path:
    return server.data / "control.sock"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter, with a short name."""
    path = Path(tempfile.mkdtemp(prefix="pilothouse-test-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def without_account(work: Callable[[], int]) -> int:
    """Runs `work` as another user; returns its result."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os._exit(work())
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_the_socket_has_mode_0600_and_is_replaced_after_a_crash(serve: Serve) -> None:
    server = serve({"web": SLEEP})
    assert control(server).stat().st_mode & 0o777 == 0o600
    server.kill()
    assert control(server).is_socket()
    server.start()
    assert send_request(control(server), "GET", "/api/v1/processes")[0] == 200
    server.stop()
    assert not control(server).exists()


def test_a_caller_of_the_socket_is_an_operator_also_in_closed_mode(serve: Serve) -> None:
    server = serve({"web": {**SLEEP, "stdout-logfile": "web.log"}}, tracker=CLOSED)
    path = control(server)
    assert send_request(path, "POST", "/api/v1/processes/start/web")[0] == 200
    assert send_request(path, "GET", "/api/v1/processes/details")[0] == 200
    assert send_request(path, "GET", "/api/v1/processes/logs/web")[0] == 200
    assert server.get("/api/v1/processes").status == 401
    assert send_request(path, "GET", "/api/v1/me")[0] == 401, "it has no account"
    assert send_request(path, "POST", "/api/v1/repos")[0] in (401, 403), "charts need their key"
    line = re.search(r"POST /api/v1/processes/start/web 200 [\d.]+ ms by uid (\d+), pid (\d+)", server.log.read_text())
    assert line is not None
    assert (int(line[1]), int(line[2])) == (os.geteuid(), os.getpid())


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via"])
def test_a_forwarding_header_removes_the_permission(serve: Serve, header: str) -> None:
    server = serve({"web": SLEEP}, tracker=CLOSED)
    assert send_request(control(server), "GET", "/api/v1/processes", {header: "192.0.2.1"})[0] == 401


def test_a_token_wins_over_the_socket(serve: Serve) -> None:
    server = serve({"web": SLEEP}, supervisor={"security": {"local-control": "operator"}})
    path, target = control(server), "/api/v1/processes/start/web"
    assert send_request(path, "POST", target, bearer("plt_unknown"))[0] == 401
    assert send_request(path, "POST", target, bearer(create_token(server.data, "bob")))[0] == 403
    assert send_request(path, "POST", target, bearer(create_token(server.data, "ci", "INGEST", "ADMIN")))[0] == 403
    assert send_request(path, "POST", target, bearer(create_token(server.data, "ann", "FULL", "ADMIN")))[0] == 200


def test_with_local_control_operator_changes_over_tcp_need_an_admin(serve: Serve) -> None:
    server = serve({"web": SLEEP}, supervisor={"security": {"local-control": "operator"}})
    target = "/api/v1/processes/start/web"
    refused = server.post(target)
    assert refused.status == 401
    assert "local-control" in refused.json["message"]
    assert server.get("/api/v1/processes").status == 200
    assert server.post(target, Authorization=f"Bearer {create_token(server.data, 'bob')}").status == 403
    assert send_request(control(server), "POST", target)[0] == 200
    assert (
        server.post(target, Authorization=f"Bearer {create_token(server.data, 'ann', 'FULL', 'ADMIN')}").status == 200
    )


@as_root
@pytest.mark.parametrize(("mode", "group", "outcome"), [("0600", None, 1), ("0660", "nogroup", 0)])
def test_another_user_is_refused_unless_the_group_lets_it(
    serve: Serve, folder: Path, mode: str, group: str | None, outcome: int
) -> None:
    path = folder / "control.sock"
    server = serve({"web": SLEEP}, server={"unix-socket": {"path": str(path), "mode": mode, "group": group}})
    assert path.stat().st_mode & 0o777 == int(mode, 8)

    def connect() -> int:
        try:
            return 0 if send_request(path, "POST", "/api/v1/processes/start/web")[0] == 200 else 2
        except PermissionError:
            return 1

    assert without_account(connect) == outcome
    assert (f"by uid {NOBODY}, pid " in server.log.read_text()) == (outcome == 0)


@as_root
def test_another_user_cannot_read_the_data_directory(serve: Serve, folder: Path) -> None:
    data = folder / "data"
    server = serve({"web": SLEEP}, wait=False)
    server.data = data
    server.start()

    def connect() -> int:
        try:
            send_request(data / "control.sock", "GET", "/healthz")
        except PermissionError:
            return 1
        return 0

    assert without_account(connect) == 1
    server.stop()


@pytest.mark.parametrize(
    ("socket_settings", "address", "fault"),
    [
        ({"mode": "0660"}, None, "server.unix-socket.mode: 0660 needs a path outside server.data-dir"),
        ({"mode": "0666"}, None, "server.unix-socket.mode: '0666' is not one of 0600, 0660"),
        ({"path": "/tmp/" + "x" * 103}, None, "server.unix-socket.path: has more than 107 bytes"),
        ({"path": "none"}, "none", "server.unix-socket.path: none leaves no way to the server"),
        ({}, "none,127.0.0.1", "server.address: none cannot be combined with an address"),
    ],
)
def test_an_invalid_socket_path_is_a_configuration_error(
    tmp_path: Path, socket_settings: dict[str, str], address: str | None, fault: str
) -> None:
    settings = {"unix-socket": socket_settings, **({"address": address} if address else {})}
    (tmp_path / "pilothouse.yaml").write_text(json.dumps({"server": settings}))
    done = run_verb("check", folder=tmp_path)
    assert done.returncode == 2
    assert fault in done.stderr


def test_the_socket_can_be_disabled(serve: Serve) -> None:
    server = serve({"web": SLEEP}, server={"unix-socket": {"path": "none"}})
    assert not control(server).exists()
    assert json.loads((server.data / "endpoint.json").read_text())["socket"] is None


def test_a_default_path_that_is_too_long_is_a_warning(serve: Serve, folder: Path) -> None:
    server = serve({"web": SLEEP}, wait=False)
    server.data = folder / ("x" * 90) / "data"
    server.start()
    assert "WARNING server: there is no control socket: " in server.log.read_text()
    server.stop()


def test_other_files_and_sockets_in_use_are_not_replaced(serve: Serve, folder: Path) -> None:
    path = folder / "control.sock"
    path.write_text("precious")
    server = serve(server={"unix-socket": {"path": str(path)}}, wait=False).launch()
    assert server.process is not None
    assert wait_for(server.process.poll, about="the server to give up") == 1
    assert f"server.unix-socket: {path} exists and is not a socket" in server.log.read_text()
    assert path.read_text() == "precious"
    path.unlink()
    serve(server={"unix-socket": {"path": str(path)}})
    second = serve(server={"unix-socket": {"path": str(path)}}, wait=False).launch()
    assert second.process is not None
    assert wait_for(second.process.poll, about="the second server to give up") == 1
    assert "another program listens on it" in second.log.read_text()
    assert send_request(path, "GET", "/healthz")[0] == 200


def test_a_server_without_tcp_is_reachable_by_the_socket(serve: Serve) -> None:
    server = serve({"web": SLEEP}, server={"address": "none"}, wait=False).launch()
    wait_for(lambda: "control socket: " in server.log.read_text() and (server.data / "endpoint.json").exists())
    assert send_request(control(server), "POST", "/api/v1/processes/start/web")[0] == 200
    assert json.loads((server.data / "endpoint.json").read_text())["urls"] == []
    assert "listening on" not in server.log.read_text()


@as_root
@pytest.mark.parametrize(
    ("sections", "is_warned"),
    [
        ({}, True),
        ({"tracker": CLOSED}, False),
        ({"supervisor": {"security": {"local-control": "operator"}}}, False),
        ({"server": {"address": "0.0.0.0"}}, False),
    ],
)
def test_a_server_of_root_warns_of_access_for_every_local_user(
    serve: Serve, sections: dict[str, Any], is_warned: bool
) -> None:
    warning = "any local user can control processes as root (supervisor.security.local-control)"
    assert (warning in serve({"web": SLEEP}, **sections).log.read_text()) == is_warned


def test_the_control_socket_refuses_other_hosts_also_beyond_loopback(serve: Serve) -> None:
    server = serve({"web": SLEEP}, server={"address": "0.0.0.0"})
    statuses = [
        send_request(control(server), "GET", "/healthz", {"Host": host})[0] for host in ("localhost", "evil.test")
    ]
    assert statuses == [200, 421]
