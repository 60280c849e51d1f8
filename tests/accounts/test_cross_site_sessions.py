"""Requests from other sites and ports carry the session cookie, but are treated as anonymous."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from conftest import Server
from http_checks import running_server
from users import bearer, cookie, create_session, create_token

LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
PICTURE = {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
FRAME = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
FETCH = {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty", "Origin": "http://x"}
OWN = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}
TYPED = {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("embedding")) as server:
        yield server


@pytest.fixture(scope="module")
def session(server: Server) -> dict[str, str]:
    return cookie(server, create_session(server.data, "alice"))


@pytest.mark.parametrize("headers", [PICTURE, FRAME, FETCH, {"Origin": "http://127.0.0.1:3000"}, {"Origin": "null"}])
def test_session_cookie_is_ignored_in_requests_from_other_origins(
    server: Server, session: dict[str, str], headers: Mapping[str, str]
) -> None:
    answer = server.ask("GET", "/api/v1/me", headers={**session, **headers})
    assert answer.status == 401
    assert "Set-Cookie" not in answer.headers, "the session stays valid"
    assert server.ask("GET", "/api/v1/me", headers=session).status == 200


@pytest.mark.parametrize("headers", [{}, LINK, OWN, TYPED])
def test_session_cookie_is_accepted_from_own_pages_and_navigation(
    server: Server, session: dict[str, str], headers: Mapping[str, str]
) -> None:
    assert server.ask("GET", "/profile", headers={**session, **headers}).status == 200


def test_bearer_token_is_accepted_in_cross_origin_requests(server: Server) -> None:
    headers = {**bearer(create_token(server.data, "bob")), **FETCH}
    assert server.ask("GET", "/api/v1/me", headers=headers).status == 200
