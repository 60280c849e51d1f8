"""Messages about a failed command or probe contain no secret, and are logged once."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from conftest import Serve, wait_for
from receivers import listening

SILENT = {"http": {"url": ""}, "interval": "10ms", "timeout": "50ms", "failure-threshold": 1}


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never responds."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen(100)
        yield one.getsockname()[1]


@pytest.fixture
def unauthorized_port() -> Iterator[int]:
    """A port that responds to every request with 401."""

    def answer(connection: socket.socket) -> None:
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")

    with listening(answer) as port:
        yield port


@pytest.mark.parametrize("chain", [{}, {"limits": {"nofile": {"soft": 10, "hard": "unlimited"}}}])
def test_a_command_that_cannot_be_started_is_reported_without_its_secrets(
    serve: Serve, chain: dict[str, object]
) -> None:
    command = ["/no/such/program" if not chain else "true", "--password=hunter2", "--token", "hunter2"]
    server = serve({"web": {"command": command, **chain}})
    answer = server.do("start", "web")
    assert answer.status == 500
    assert b"hunter2" not in answer.body
    assert "--password=(hidden)" in server.info("web")["failedErrorLog"]
    wait_for(lambda: "start/web 500" in server.log.read_text())
    assert "hunter2" not in server.log.read_text()


def test_an_unhealthy_process_is_reported_without_the_credentials_of_its_probe(
    serve: Serve, unauthorized_port: int
) -> None:
    url = f"http://bob:hunter2@127.0.0.1:{unauthorized_port}/ready?key=hunter2"
    server = serve(
        {"web": {"command": "sleep 100", "health-check": {**SILENT, "timeout": "20s", "http": {"url": url}}}}
    )
    server.do("start", "web")
    server.until("web", "unhealthy")
    wait_for(lambda: "web: unhealthy: " in server.log.read_text())
    assert f"127.0.0.1:{unauthorized_port}/ready: HTTP 401" in server.log.read_text()
    assert "hunter2" not in server.log.read_text()


def test_unanswered_probes_log_one_line_for_each_change_to_unhealthy(serve: Serve, silent_port: int) -> None:
    check = {**SILENT, "http": {"url": f"http://127.0.0.1:{silent_port}/"}}
    server = serve({"web": {"command": "sleep 100", "health-check": check}})
    server.do("start", "web")
    server.until("web", "unhealthy")
    server.do("restart", "web")  # in the middle of a probe
    server.until("web", "unhealthy")
    wait_for(lambda: server.log.read_text().count("web: unhealthy: ") == 2)
    server.stop()
    assert "Traceback" not in server.log.read_text()
    assert "tornado" not in server.log.read_text()
