"""Closed mode covers the whole house: every route of it is tried by everybody."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from conftest import Serve, Server, wait_for
from people import PASSWORD, Browser, bearer, cookie, session_of, token_of
from talk import asked, house
from tornado.routing import PathMatches, Rule

from handlers import app
from handlers.base import Page, methods
from handlers.http import permissions
from handlers.http.sse import Streams
from models.config.settings import Config
from supervisor.services import Services

KEY = "the-key-of-the-charts"
RULES = app.rules(cast("Services", SimpleNamespace(config=Config())), Streams(Config().server))
SAMPLES = {
    "(?:mcp|sse)/.*": "mcp/x",
    "([^/]+)": "1",
    "([0-9]{1,18})": "1",
    "(.*)": "x",
    "(.+)": "x",
    "/?": "/",
    r"\.": ".",
}


def path_of(rule: Rule) -> str:
    """A path that a rule matches."""
    pattern = cast("PathMatches", rule.matcher).regex
    path = pattern.pattern.rstrip("$")
    for part, sample in SAMPLES.items():
        path = path.replace(part, sample)
    assert pattern.match(path), f"no sample for {pattern.pattern}"
    return path


ROUTES = sorted(
    {(method, path_of(rule), rule.target) for rule in RULES for method in methods(rule.target) if method != "OPTIONS"},
    key=lambda route: (route[1], route[0], route[2].__name__),
)
OPEN = {"Health", "Ready", "Login", "Logout", "BadgePicture", "SwaggerFiles"}


def name(route: tuple[str, str, Any]) -> str:
    return f"{route[0]} {route[1]} {route[2].__name__}"


@pytest.fixture(scope="module")
def shut(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    security = {"open-mode": False, "admin-password": PASSWORD}
    folder = tmp_path_factory.mktemp("closed")
    with house(folder, tracker={"security": security}, svc={"security": {"mode": "FULL", "api-key": KEY}}) as server:
        yield server


@pytest.fixture(scope="module")
def tokens(shut: Server) -> dict[str, dict[str, str]]:
    return {
        "user": bearer(token_of(shut.data, "ulla")),
        "admin": bearer(token_of(shut.data, "root", role="ADMIN")),
        "ingest": bearer(token_of(shut.data, "root", "INGEST", "ADMIN")),
    }


def ask(server: Server, method: str, path: str, target: Any, headers: dict[str, str] | None = None) -> Any:
    lines = [f"{header}: {value}" for header, value in (headers or {}).items()]
    if target.__name__ == "RunStream":
        lines.append("Accept: text/event-stream")
    if method in ("POST", "PUT", "DELETE"):
        lines.append("Content-Length: 0")
    return asked(server, method, path, lines)


@pytest.mark.parametrize("route", ROUTES, ids=name)
def test_nobody_gets_in_without_an_account(shut: Server, route: tuple[str, str, Any]) -> None:
    method, path, target = route
    answer = ask(shut, method, path, target)
    if target.__name__ in OPEN:
        assert answer.status != 401 or b'name="password"' in answer.body, "a login that failed is one that was tried"
        assert not (answer.status == 302 and "next=" in answer.headers["Location"])
    elif issubclass(target, Page):
        prefix = next((one.prefix for one in app.SERVICES if path.startswith(one.prefix + "/")), "")
        assert answer.status == 302
        assert answer.headers["Location"].startswith(f"{prefix}/login?next=")
    else:
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "route", [one for one in ROUTES if one[2].permission_of(one[0]) is not permissions.POST_REPORTS], ids=name
)
def test_a_token_of_scope_ingest_gets_nowhere(
    shut: Server, tokens: dict[str, dict[str, str]], route: tuple[str, str, Any]
) -> None:
    assert ask(shut, *route, tokens["ingest"]).status == 403


READERS = {
    permissions.READ,
    permissions.READ_LOGS,
    permissions.SIGNED_IN,
    permissions.ADMINISTER,
    permissions.PUBLIC,
}
READS = [one for one in ROUTES if one[0] == "GET" and one[2].permission_of("GET") in READERS]


@pytest.mark.parametrize("who", ["user", "admin"])
@pytest.mark.parametrize("route", READS, ids=name)
def test_an_account_opens_what_it_may(
    shut: Server, tokens: dict[str, dict[str, str]], route: tuple[str, str, Any], who: str
) -> None:
    answer = ask(shut, *route, tokens[who])
    assert answer.status not in (401, 302, 500)
    assert (answer.status == 403) == (who == "user" and route[2].permission_of("GET") is permissions.ADMINISTER)


@pytest.mark.parametrize("path", ["/api/v1/ingest", "/tracker/api/v1/ingest"])
def test_reports_are_posted_with_any_account(shut: Server, tokens: dict[str, dict[str, str]], path: str) -> None:
    assert shut.post(path).status == 401
    session = cookie(shut, session_of(shut.data, "ulla"))
    for headers in (tokens["user"], tokens["ingest"], session):
        assert shut.ask("POST", path, b"", headers).status in (400, 415), "the body is none"


@pytest.mark.parametrize("prefix", ["", "/charts"])
@pytest.mark.parametrize(("key", "passes"), [(KEY, True), ("wrong", False), ("", False), (KEY + "x", False)])
def test_the_chart_key_opens_charts_and_nothing_else(shut: Server, prefix: str, key: str, passes: bool) -> None:
    headers = {"X-API-Key": key}
    path = f"{prefix}/api/v1/charts/lint"
    assert (shut.ask("POST", path, b"{", headers).status == 401) is not passes
    for other in ("/api/v1/processes", "/tracker/api/v1/projects", "/metrics", "/charts/metrics", "/api/v1/me"):
        assert shut.ask("GET", other, headers=headers).status == 401
    assert shut.ask("GET", "/charts/", headers=headers).status == 302


def test_a_blank_key_is_none(serve: Serve) -> None:
    server = serve(tracker={"security": {"open-mode": False}}, svc={"security": {"mode": "FULL", "api-key": "   "}})
    for key in ("", "   "):
        assert server.ask("POST", "/api/v1/charts/lint", b"{}", {"X-API-Key": key}).status == 401


@pytest.mark.parametrize("path", ["/static/app.css", "/healthz", "/charts/readyz", "/login", "/charts/login"])
def test_what_stays_open(shut: Server, path: str) -> None:
    wait_for(lambda: shut.get(path).status == 200)  # a busy machine holds up the loop: not ready for a moment


@pytest.mark.parametrize(("path", "status"), [("/api/v1/nope", 404), ("/nope", 404), ("/tracker/api/v1/nope", 404)])
def test_what_there_is_not_is_404_for_everybody(shut: Server, path: str, status: int) -> None:
    assert shut.get(path).status == status


def test_a_browser_logs_in_and_sees_the_house(shut: Server) -> None:
    browser = Browser(shut)
    answer = browser.get("/")
    assert (answer.status, answer.headers["Location"]) == (302, "/login?next=%2F")
    answer = browser.send("/login", on="/login?next=%2F", username="admin", password=PASSWORD, next="/")
    assert answer.status == 303
    page = browser.get("/")
    assert page.status == 200
    assert re.search(r'action="/logout"', page.text)


@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 401), ({"cookie": "session"}, 401), ({"token": "FULL"}, 415), ({"token": "INGEST"}, 415)],
)
def test_require_ingest_token_wants_a_token(required: Server, headers: dict[str, str], status: int) -> None:
    shown = {}
    if "cookie" in headers:
        shown = cookie(required, session_of(required.data, "root", "ADMIN"))
    if "token" in headers:
        shown = bearer(token_of(required.data, "ulla", "INGEST" if headers["token"] == "INGEST" else "FULL"))
    for path in ("/api/v1/ingest", "/tracker/api/v1/ingest"):
        assert required.ask("POST", path, b"x", {"Content-Type": "text/plain", **shown}).status == status
    assert required.get("/api/v1/processes").status == 200, "the house is open"


@pytest.fixture(scope="module")
def required(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with house(tmp_path_factory.mktemp("required"), tracker={"security": {"require-ingest-token": True}}) as server:
        yield server
