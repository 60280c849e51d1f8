"""Closed mode: every route of the server is requested anonymously and with each kind of account."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from conftest import Serve, Server, wait_for
from http_checks import running_server
from in_process import TIMEOUT_SECONDS, application, fetch
from tornado.httpclient import AsyncHTTPClient, HTTPResponse
from tornado.ioloop import IOLoop
from tornado.routing import PathMatches, Rule
from users import PASSWORD, FormClient, bearer, cookie, create_session, create_token

from handlers import app
from handlers.app import Application
from handlers.base import HtmlPage, methods
from handlers.http import permissions
from handlers.http.sse import Streams
from models.accounts import accounts
from models.accounts.accounts import Role, Scope
from models.config.settings import Config
from supervisor.services import Services

KEY = "the-key-of-the-charts"
RULES = app.rules(cast("Services", SimpleNamespace(config=Config())), Streams(Config().server))
SAMPLES = {
    "([^/]{1,2000})": "abc1234",
    "(?:mcp|sse)/.*": "mcp/x",
    "([^/]+)": "1",
    "(-?[0-9]{1,18})": "1",
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
READ_PERMISSIONS = {
    permissions.READ,
    permissions.FOLLOW_REPORTS,
    permissions.READ_LOGS,
    permissions.READ_SERVER_LOG,
    permissions.SIGNED_IN,
    permissions.ADMINISTER,
    permissions.PUBLIC,
}
ADMIN_PERMISSIONS = {permissions.ADMINISTER, permissions.READ_SERVER_LOG}
READ_ROUTES = [route for route in ROUTES if route[0] == "GET" and route[2].permission_of("GET") in READ_PERMISSIONS]
STREAMS = {"RunStream", "StatusStream", "LogStream", "LiveStream", "ServerLogStream"}
PUBLIC_HANDLERS = {
    "HandlerHealthz",
    "HandlerReadyz",
    "LoginPage",
    "Logout",
    "HandlerBadgeProjectidMetricSvg",
    "Favicon",
    "Uploader",
    "SignOnBegin",
    "SignOnEnd",
}


def name(route: tuple[str, str, Any]) -> str:
    return f"{route[0]} {route[1]} {route[2].__name__}"


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    security = {"open-mode": False, "admin-password": PASSWORD}
    folder = tmp_path_factory.mktemp("closed")
    with running_server(
        folder, tracker={"security": security}, svc={"security": {"mode": "FULL", "api-key": KEY}}
    ) as server:
        yield server


@pytest.fixture(scope="module")
def tokens(closed: Server) -> dict[str, dict[str, str]]:
    return {
        "user": bearer(create_token(closed.data, "ulla")),
        "admin": bearer(create_token(closed.data, "root", role="ADMIN")),
        "ingest": bearer(create_token(closed.data, "root", "INGEST", "ADMIN")),
    }


class TestEveryRoute:
    """Thousands of requests to one application in this process."""

    @pytest.fixture
    def app(self, io_loop: IOLoop, tmp_path: Path) -> Iterator[app.Application]:
        security = {"open-mode": False, "admin-password": PASSWORD}
        sections = {"tracker": {"security": security}, "svc": {"security": {"mode": "FULL", "api-key": KEY}}}
        with application(io_loop, tmp_path, **sections) as made:
            yield made

    @staticmethod
    def tokens() -> dict[str, dict[str, str]]:
        def token(name: str, scope: Scope, role: Role) -> dict[str, str]:
            user = accounts.user_named(name) or accounts.create_user(name, "!", role, 0)
            return bearer(accounts.create_token(user.id, "ci", scope, None, 0))

        return {
            "user": token("ulla", "FULL", "USER"),
            "admin": token("root", "FULL", "ADMIN"),
            "ingest": token("root", "INGEST", "ADMIN"),
        }

    @staticmethod
    async def ask(
        client: AsyncHTTPClient, base_url: str, route: tuple[str, str, Any], headers: dict[str, str]
    ) -> HTTPResponse:
        method, path, target = route
        accept = {"Accept": "text/event-stream"} if target.__name__ == "RunStream" else {}
        return await fetch(client, base_url + path, method, {**headers, **accept})

    @pytest.mark.gen_test(timeout=10 * TIMEOUT_SECONDS)
    async def test_anonymous_requests_are_refused(self, http_client: AsyncHTTPClient, base_url: str) -> None:
        for route in ROUTES:
            path, target = route[1], route[2]
            response = await self.ask(http_client, base_url, route, {})
            location = response.headers.get("Location", "")
            if target.__name__ in PUBLIC_HANDLERS:
                failed_login = b'name="password"' in response.body
                assert response.code != 401 or failed_login, f"{name(route)}: only a failed login is 401"
                assert "next=" not in location, name(route)
            elif issubclass(target, HtmlPage):
                prefix = next((one.prefix for one in app.SERVICES if path.startswith(one.prefix + "/")), "")
                assert response.code == 302, name(route)
                assert location.startswith(f"{prefix}/login?next="), name(route)
            else:
                assert response.code == 401, name(route)
                assert response.headers["WWW-Authenticate"] == "Bearer", name(route)

    @pytest.mark.gen_test(timeout=10 * TIMEOUT_SECONDS)
    async def test_ingest_token_is_refused_except_for_reports(
        self, app: Application, http_client: AsyncHTTPClient, base_url: str
    ) -> None:
        headers = (await app.services.tracker.run(self.tokens))["ingest"]
        for route in ROUTES:
            if route[2].permission_of(route[0]) not in (permissions.POST_REPORTS, permissions.FOLLOW_REPORTS):
                assert (await self.ask(http_client, base_url, route, headers)).code == 403, name(route)

    @pytest.mark.parametrize("account", ["user", "admin"])
    @pytest.mark.gen_test(timeout=10 * TIMEOUT_SECONDS)
    async def test_account_reads_every_route_that_it_has_permission_for(
        self, app: Application, http_client: AsyncHTTPClient, base_url: str, account: str
    ) -> None:
        headers = (await app.services.tracker.run(self.tokens))[account]
        for route in READ_ROUTES:
            if route[2].__name__ in STREAMS:
                continue  # they do not end
            response = await self.ask(http_client, base_url, route, headers)
            # the outbox is an OWNER's too, who names a project
            needs_admin = route[2].permission_of("GET") in ADMIN_PERMISSIONS or route[1].endswith("/outbox")
            is_forbidden = account == "user" and needs_admin
            assert response.code not in (401, 302, 500), name(route)
            assert (response.code == 403) == is_forbidden, name(route)


@pytest.mark.parametrize("path", ["/api/v1/ingest", "/tracker/api/v1/ingest"])
def test_reports_can_be_posted_with_any_account(closed: Server, tokens: dict[str, dict[str, str]], path: str) -> None:
    assert closed.post(path).status == 401
    session = cookie(closed, create_session(closed.data, "ulla"))
    for headers in (tokens["user"], tokens["ingest"], session):
        assert closed.ask("POST", path, b"", headers).status in (400, 415), "the body is empty"


@pytest.mark.parametrize("prefix", ["", "/charts"])
@pytest.mark.parametrize(("key", "passes"), [(KEY, True), ("wrong", False), ("", False), (KEY + "x", False)])
def test_chart_api_key_is_accepted_by_chart_endpoints_only(closed: Server, prefix: str, key: str, passes: bool) -> None:
    headers = {"X-API-Key": key}
    path = f"{prefix}/api/v1/charts/lint"
    assert (closed.ask("POST", path, b"{", headers).status == 401) is not passes
    for other in ("/api/v1/processes", "/tracker/api/v1/projects", "/metrics", "/charts/metrics", "/api/v1/me"):
        assert closed.ask("GET", other, headers=headers).status == 401
    assert closed.ask("GET", "/charts/", headers=headers).status == 302


def test_blank_api_key_is_refused(serve: Serve) -> None:
    server = serve(tracker={"security": {"open-mode": False}}, svc={"security": {"mode": "FULL", "api-key": "   "}})
    for key in ("", "   "):
        assert server.ask("POST", "/api/v1/charts/lint", b"{}", {"X-API-Key": key}).status == 401


@pytest.mark.parametrize("path", ["/static/app.css", "/healthz", "/charts/readyz", "/login", "/charts/login"])
def test_public_paths_need_no_account(closed: Server, path: str) -> None:
    wait_for(lambda: closed.get(path).status == 200)  # a busy machine holds up the loop: not ready for a moment


@pytest.mark.parametrize(("path", "status"), [("/api/v1/nope", 404), ("/nope", 404), ("/tracker/api/v1/nope", 404)])
def test_unknown_path_is_404_without_an_account(closed: Server, path: str, status: int) -> None:
    assert closed.get(path).status == status


def test_a_browser_logs_in_and_sees_the_pages(closed: Server) -> None:
    browser = FormClient(closed)
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
def test_require_ingest_token_refuses_uploads_without_a_token(
    required: Server, headers: dict[str, str], status: int
) -> None:
    credential = {}
    if "cookie" in headers:
        credential = cookie(required, create_session(required.data, "root", "ADMIN"))
    if "token" in headers:
        credential = bearer(create_token(required.data, "ulla", "INGEST" if headers["token"] == "INGEST" else "FULL"))
    for path in ("/api/v1/ingest", "/tracker/api/v1/ingest"):
        assert required.ask("POST", path, b"x", {"Content-Type": "text/plain", **credential}).status == status
    assert required.get("/api/v1/processes").status == 200, "the server is open"


@pytest.fixture(scope="module")
def required(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(
        tmp_path_factory.mktemp("required"), tracker={"security": {"require-ingest-token": True}}
    ) as server:
        yield server
