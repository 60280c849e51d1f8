"""No free descriptor on a running server: requests that need one fail with the reason, others succeed."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

import pytest
from chart_servers import WebServer, web_server
from conftest import Server, wait_for
from fault_injection import (
    API,
    PULL,
    SLEEPER,
    TEMPLATE,
    UPDATE,
    PersistentConnection,
    PreparedRequest,
    add_repository_request,
    charts_settings,
    check_failure,
    check_no_traceback,
    create_records,
    open_descriptors,
    send_prepared,
    template_request,
    upload_request,
)  # fmt: skip
from http_checks import running_server


@pytest.fixture(scope="module")
def repository() -> Iterator[WebServer]:
    with web_server() as one:
        yield one


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, repository: WebServer) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("none")
    with running_server(
        folder, {"web": SLEEPER, "other": SLEEPER}, svc=charts_settings(repository, folder / "temp")
    ) as one:
        create_records(one, repository)
        yield one


def limit_descriptors(server: Server, limit: int) -> None:
    subprocess.run(["prlimit", f"--pid={server.pid}", f"--nofile={limit}:"], check=True)


def all_requests(repository: WebServer) -> list[PreparedRequest]:
    """Requests of each service that open a file, a socket or a process."""
    start: PreparedRequest = ("POST", f"{API}/processes/start/other", None, {})
    pages: list[PreparedRequest] = [
        ("GET", path, None, {}) for path in ("/projects/1", f"{API}/runs/1", "/badge/1/pass.svg")
    ]
    return [
        start, upload_request("none"), add_repository_request("other", repository), UPDATE, PULL, TEMPLATE,
        template_request(), *pages,
        ("GET", f"{API}/events/by-status/running", None, {}), ("GET", "/metrics", None, {}),
        ("GET", f"{API}/supervisor/info", None, {}), ("GET", f"{API}/charts/show/values?chartRef=lab/tint", None, {}),
    ]  # fmt: skip


@pytest.mark.parametrize("free", [0, 1, 2, 4, 7])
def test_requests_without_descriptors_fail_with_a_reason_and_succeed_afterwards(
    server: Server, repository: WebServer, free: int
) -> None:
    with contextlib.closing(PersistentConnection(server)) as connection:
        limit_descriptors(server, max(map(int, os.listdir(f"/proc/{server.pid}/fd"))) + 1 + free)
        try:
            for request in all_requests(repository):
                answer = connection.ask(request)
                assert answer.status < 500 or check_failure(answer, 500, 502, 503), (request[1], answer)
                assert connection.ask(("GET", f"{API}/processes", None, {})).status == 200
                assert connection.ask(("GET", "/healthz", None, {})).status == 200
        finally:
            limit_descriptors(server, 20_000)
    check_no_traceback(server)
    for request in all_requests(repository):
        assert send_prepared(server, request).status in (200, 201), request
    assert server.do("stop", "other").status == 200
    assert server.ask("DELETE", f"{API}/repos/other", headers={"X-API-Key": "open sesame"}).status == 204
    wait_for(lambda: not list((server.data / "incoming").iterdir()))


def test_requests_leak_no_descriptor(server: Server, repository: WebServer) -> None:
    before = open_descriptors(server)
    for _ in range(3):
        for request in all_requests(repository)[3:]:
            send_prepared(server, request)
    wait_for(lambda: open_descriptors(server) <= before + 2, about="descriptors to be closed")
