"""No request of a caller without rights stalls the event loop, whatever its bytes are."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Server
from fault_injection import check_no_traceback
from hostile_requests import REQUESTS, Hostile

from benchmarks.loop_lag import command, health_checks, stalls

LONGEST_MS, MOST_MS = 100.0, 50.0
"""The longest stall of the loop and of an answer, and that of 99.9 % of the ticks of the loop and of the answers."""
FEWEST_ANSWERS = 5
"""A request that is answered at once is repeated until another client has so many answers."""
MOST_REQUESTS = 10_000
_DEADLINE_SECONDS = 120.0


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clock") / "stalls.json"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, clock: Path) -> Iterator[Server]:
    config = {"supervisor": {"processes": {f"p{n}": {"command": "true", "auto-start": False} for n in range(50)}}}
    one = Server(tmp_path_factory.mktemp("hostile"), config, {}, command(clock))
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


@pytest.mark.parametrize("name", REQUESTS)
def test_a_hostile_request_stalls_the_loop_for_no_moment(server: Server, clock: Path, name: str) -> None:
    request = REQUESTS[name]()
    stalls(server.pid, clock)
    with health_checks(server.port, server.pid) as delays:
        statuses = [send(server, request) for _ in range(2)]
        while len(delays) < FEWEST_ANSWERS and len(statuses) < MOST_REQUESTS:
            statuses.append(send(server, request))
    assert 500 not in statuses
    assert len(delays) >= FEWEST_ANSWERS, "the other client gets no answers"
    loop, delays = stalls(server.pid, clock), sorted(delays)
    print(f"{name}: {statuses}; {loop}; {len(delays)} answers of /healthz, the last {delays[-3:]} ms")
    assert loop.worst < LONGEST_MS
    assert delays[-1] < LONGEST_MS
    assert loop.p999 < MOST_MS or loop.count < 1000
    assert delays[int(len(delays) * 0.999)] < MOST_MS or len(delays) < 1000
