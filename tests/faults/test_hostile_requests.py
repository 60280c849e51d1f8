"""No request of a caller without rights stalls the event loop, whatever its bytes are."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Server
from fault_injection import check_no_traceback
from hostile_requests import REQUESTS, Hostile
from loop_clock import loop_stalls, server_command

LONGEST_MS, MOST_MS = 100.0, 50.0
"""The longest stall, and that of 99.9 % of the ticks of the loop."""
_DEADLINE_SECONDS = 120.0


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clock") / "stalls.json"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, clock: Path) -> Iterator[Server]:
    config = {"supervisor": {"processes": {f"p{n}": {"command": "true", "auto-start": False} for n in range(50)}}}
    one = Server(tmp_path_factory.mktemp("hostile"), config, {}, server_command(clock))
    try:
        one.start()
        for path in ("/", "/projects", "/api/v1/processes", "/search?q=a"):  # the first of each compiles its template
            one.get(path)
        yield one
        check_no_traceback(one)
    finally:
        one.close()


def send(server: Server, request: Hostile) -> int:
    """Sends a request; returns the status of its answer, 0 where the connection was closed without one."""
    with contextlib.closing(
        http.client.HTTPConnection("127.0.0.1", server.port, timeout=_DEADLINE_SECONDS)
    ) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it is refused while it is sent
            connection.request(request.method, request.path, request.body, dict(request.headers))
        try:
            response = connection.getresponse()
            return response.status
        except (ConnectionError, http.client.HTTPException):
            return 0


@contextlib.contextmanager
def health_checks(server: Server) -> Iterator[list[float]]:
    """Another client requests `/healthz` all the time; the list has the seconds of each answer."""
    took: list[float] = []
    ended = threading.Event()

    def check() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=_DEADLINE_SECONDS)
        while not ended.is_set():
            begun = time.monotonic()
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            took.append(time.monotonic() - begun)
            ended.wait(0.005)
        connection.close()

    thread = threading.Thread(target=check)
    thread.start()
    try:
        yield took
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("name", REQUESTS)
def test_a_hostile_request_stalls_the_loop_for_no_moment(server: Server, clock: Path, name: str) -> None:
    request = REQUESTS[name]()
    loop_stalls(server.pid, clock)
    with health_checks(server) as took:
        statuses = [send(server, request) for _ in range(2)]
    assert 500 not in statuses
    stalls = loop_stalls(server.pid, clock)
    print(f"{name}: {statuses}; stalls {stalls[-3:]} ms; /healthz at most {1000 * max(took):.0f} ms")
    assert stalls[-1] < LONGEST_MS
    assert stalls[int(len(stalls) * 0.999)] < MOST_MS or len(stalls) < 1000
