"""Another program has taken the stores for itself: reads go on, writes wait a while and are 503, nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Server, wait_for
from people import cookie, session_of, token_of
from places import Web, web
from talk import running_server
from trouble import (
    SLEEPER,
    UPDATE,
    PreparedRequest,
    SingleFlight,
    answer_to,
    charts_of,
    clear,
    fill,
    locked,
    no_trace,
    reads_answer,
    repo,
    upload,
)  # fmt: skip

START: PreparedRequest = ("POST", "/api/v1/processes/start/other", None, {})


@pytest.fixture(scope="module")
def repository() -> Iterator[Web]:
    with web() as one:
        yield one


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, repository: Web) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("locked")
    with running_server(folder, {"web": SLEEPER, "other": SLEEPER}, svc=charts_of(repository, folder / "temp")) as one:
        fill(one, repository)
        yield one
        no_trace(one)


def flaky(server: Server) -> PreparedRequest:
    """Somebody says of a test that it is flaky."""
    token = token_of(server.data, "ann", role="ADMIN")
    body = b'{"className": "A", "name": "c0", "status": "QUARANTINED"}'
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    return "POST", "/api/v1/projects/1/flaky/status", body, headers


def test_all_three_stores_at_once(server: Server, repository: Web) -> None:
    session = session_of(server.data, "bob")
    writes = [START, upload("locked"), flaky(server), repo("other", repository), UPDATE]
    with locked(server):
        waiting = SingleFlight(server, writes).start()
        wait_for(lambda: server.status("other") == "running")
        reads_answer(server)
        assert server.ask("GET", "/api/v1/me", headers=cookie(server, session)).status == 200
        for request, answer in zip(writes, waiting.answers(), strict=True):
            assert clear(answer, 503), request
            assert answer.headers["Retry-After"]
    for request in writes:
        assert answer_to(server, request).status in (200, 201, 202, 204), request
    wait_for(lambda: server.get("/readyz").status == 200)
    assert server.moves("other") == ["starting", "running"]


def test_a_lock_that_passes_soon_is_not_noticed(server: Server, repository: Web) -> None:
    writes = [upload("soon"), flaky(server), repo("soon", repository), UPDATE]
    with locked(server) as unlock:
        waiting = SingleFlight(server, writes).start()
        wait_for(lambda: list((server.data / "incoming").iterdir()), about="an upload that waits")
        unlock()
        assert {answer.status for answer in waiting.answers()} <= {200, 201, 202}


def test_it_starts_while_they_are_locked_and_works_when_they_are_not(tmp_path: Path, repository: Web) -> None:
    with running_server(
        tmp_path, {"web": SLEEPER, "other": SLEEPER}, svc=charts_of(repository, tmp_path / "temp")
    ) as server:
        fill(server, repository)
        pid = server.info("web")["pid"]
        server.kill()
        with locked(server):
            server.start()
            assert server.info("web")["pid"] == pid
            reads_answer(server)
        assert answer_to(server, upload("after")).status == 201
        assert answer_to(server, repo("after", repository)).status == 201
        assert server.do("stop", "web").status == 200
        no_trace(server)
