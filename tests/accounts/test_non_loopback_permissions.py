"""Beyond loopback: permissions to change processes and to read their logs, with real accounts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest
from conftest import Server
from http_checks import running_server
from users import bearer, cookie, create_session, create_token

IDLE = {"idle": {"command": "true", "stdout-logfile": "idle.log"}}
STOP = "/api/v1/processes/stop/idle"
LOGS = "/api/v1/processes/logs/idle"


@pytest.fixture(scope="module", params=["listens", "forwarded"])
def exposed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, dict[str, str]]]:
    """A server that listens on all addresses, and one on loopback behind a proxy; with the headers of its requests."""
    address, headers = ("0.0.0.0", {}) if request.param == "listens" else ("127.0.0.1", {"X-Forwarded-For": "1.2.3.4"})
    with running_server(tmp_path_factory.mktemp("exposed"), IDLE, server={"address": address}) as server:
        yield server, headers


@pytest.mark.parametrize("kind", ["token", "session"])
@pytest.mark.parametrize(("role", "status"), [("ADMIN", 200), ("USER", 403)])
@pytest.mark.parametrize(
    "path", [STOP, "/api/v1/supervisor/reload", "/api/v1/processes/restart/idle", f"/supervision{STOP}"]
)
def test_only_an_admin_may_change_processes(
    exposed: tuple[Server, dict[str, str]], kind: str, role: Literal["ADMIN", "USER"], status: int, path: str
) -> None:
    server, headers = exposed
    assert server.ask("POST", path, b"", headers).status == 401
    credential = (
        bearer(create_token(server.data, f"a-{role}", role=role))
        if kind == "token"
        else cookie(server, create_session(server.data, f"a-{role}", role))
    )
    assert server.ask("POST", path, b"", headers | credential).status == status


def test_logs_are_readable_with_any_account(exposed: tuple[Server, dict[str, str]]) -> None:
    server, headers = exposed
    assert server.ask("GET", LOGS, headers=headers).status == 401
    for credential in (
        bearer(create_token(server.data, "ulla")),
        cookie(server, create_session(server.data, "ulla")),
    ):
        assert server.ask("GET", LOGS, headers=headers | credential).status == 200


def test_ingest_token_of_an_admin_cannot_change_processes(exposed: tuple[Server, dict[str, str]]) -> None:
    server, headers = exposed
    credential = bearer(create_token(server.data, "a-ADMIN", "INGEST", "ADMIN"))
    assert server.ask("POST", STOP, b"", headers | credential).status == 403


def test_cross_site_request_with_an_admin_session_is_refused(exposed: tuple[Server, dict[str, str]]) -> None:
    server, headers = exposed
    credential = cookie(server, create_session(server.data, "a-ADMIN", "ADMIN"))
    assert server.ask("POST", STOP, b"", headers | credential | {"Sec-Fetch-Site": "cross-site"}).status == 403
