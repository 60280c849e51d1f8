"""Another program locks the stores: reads succeed, writes are 503 after a wait, and no change is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chart_servers import WebServer, web_server
from conftest import Server, wait_for
from fault_injection import (
    SLEEPER,
    UPDATE,
    ParallelRequests,
    PreparedRequest,
    add_repository_request,
    charts_settings,
    check_failure,
    check_no_traceback,
    check_reads,
    create_records,
    locked_stores,
    send_prepared,
    upload_request,
)  # fmt: skip
from http_checks import running_server
from users import cookie, create_session, create_token

START: PreparedRequest = ("POST", "/api/v1/processes/start/other", None, {})


@pytest.fixture(scope="module")
def repository() -> Iterator[WebServer]:
    with web_server() as one:
        yield one


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, repository: WebServer) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("locked")
    with running_server(
        folder, {"web": SLEEPER, "other": SLEEPER}, svc=charts_settings(repository, folder / "temp")
    ) as one:
        create_records(one, repository)
        yield one
        check_no_traceback(one)


def flaky_status_request(server: Server) -> PreparedRequest:
    """A request that sets the flaky status of a test."""
    token = create_token(server.data, "ann", role="ADMIN")
    body = b'{"className": "A", "name": "c0", "status": "QUARANTINED"}'
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    return "POST", "/api/v1/projects/1/flaky/status", body, headers


def test_writes_to_locked_stores_are_503_and_reads_succeed(server: Server, repository: WebServer) -> None:
    session = create_session(server.data, "bob")
    writes = [
        START,
        upload_request("locked"),
        flaky_status_request(server),
        add_repository_request("other", repository),
        UPDATE,
    ]
    with locked_stores(server):
        waiting = ParallelRequests(server, writes).start()
        wait_for(lambda: server.status("other") == "running")
        check_reads(server)
        assert server.ask("GET", "/api/v1/me", headers=cookie(server, session)).status == 200
        for request, answer in zip(writes, waiting.answers(), strict=True):
            assert check_failure(answer, 503), request
            assert answer.headers["Retry-After"]
    for request in writes:
        assert send_prepared(server, request).status in (200, 201, 202, 204), request
    wait_for(lambda: server.get("/readyz").status == 200)
    assert server.new_statuses("other") == ["starting", "running"]


def test_writes_succeed_after_a_short_lock(server: Server, repository: WebServer) -> None:
    writes = [upload_request("soon"), flaky_status_request(server), add_repository_request("soon", repository), UPDATE]
    with locked_stores(server) as unlock:
        waiting = ParallelRequests(server, writes).start()
        wait_for(lambda: list((server.data / "incoming").iterdir()), about="an upload that waits")
        unlock()
        assert {answer.status for answer in waiting.answers()} <= {200, 201, 202}


def test_server_starts_with_locked_stores_and_writes_after_the_unlock(tmp_path: Path, repository: WebServer) -> None:
    with running_server(
        tmp_path, {"web": SLEEPER, "other": SLEEPER}, svc=charts_settings(repository, tmp_path / "temp")
    ) as server:
        create_records(server, repository)
        pid = server.info("web")["pid"]
        server.kill()
        with locked_stores(server):
            server.start()
            assert server.info("web")["pid"] == pid
            check_reads(server)
        assert send_prepared(server, upload_request("after")).status == 201
        assert send_prepared(server, add_repository_request("after", repository)).status == 201
        assert server.do("stop", "web").status == 200
        check_no_traceback(server)
