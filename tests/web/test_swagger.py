"""Swagger UI in a real browser: it comes from this server alone, and shows what may be asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import Browser, address
from conftest import Server
from people import log_in
from talk import running_server

CLOSED = {"security": {"open-mode": False, "admin-password": "correct horse battery"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("swagger"), {"web": {"command": "sleep 1000"}}) as one:
        yield one


@pytest.mark.parametrize(
    ("prefix", "shown", "other"),
    [
        ("", "/api/v1/processes/info/{name}", None),
        ("/charts", "/api/v1/repos/{name}/charts", "/api/v1/gate"),
        ("/tracker", "/api/v1/gate", "/api/v1/repos"),
        ("/supervision", "/api/v1/events/count", "/api/v1/gate"),
    ],
)
def test_it_shows_the_operations(chromium: Browser, server: Server, prefix: str, shown: str, other: str | None) -> None:
    with chromium.page(address(server)) as page:
        page.goto(f"{prefix}/swagger-ui.html")
        page.locator(f'.opblock-summary-path[data-path="{shown}"]').first.wait_for()
        if other is not None:
            assert page.locator(f'.opblock-summary-path[data-path="{other}"]').count() == 0
        page.locator(f'.opblock-summary-path[data-path="{shown}"]').first.click()
        page.locator(".opblock-body .responses-table").first.wait_for()
        assert page.locator("text=Failed to load").count() == 0


def test_an_operation_can_be_tried(chromium: Browser, server: Server) -> None:
    with chromium.page(address(server)) as page:
        page.goto("/supervision/swagger-ui.html")
        page.locator('.opblock-summary-path[data-path="/api/v1/processes"]').click()
        page.get_by_role("button", name="Try it out").click()
        page.get_by_role("button", name="Execute").click()
        page.locator(".live-responses-table .response-col_status", has_text="200").wait_for()
        assert page.locator(".request-url").inner_text().endswith("/supervision/api/v1/processes")


def test_it_is_dark_where_the_other_pages_are(chromium: Browser, server: Server) -> None:
    turned = "getComputedStyle(document.documentElement).filter !== 'none'"
    for scheme in ("light", "dark"):
        with chromium.page(address(server), color_scheme=scheme) as page:
            page.goto("/swagger-ui.html")
            assert page.evaluate(turned) is (scheme == "dark")
            page.goto("/")
            page.get_by_role("button", name="Switch theme").click()
            page.goto("/swagger-ui.html")
            assert page.evaluate(turned) is (scheme == "light")


def test_its_headers_let_nothing_in_from_elsewhere(server: Server) -> None:
    policy = server.get("/swagger-ui.html").headers["Content-Security-Policy"]
    assert "script-src" not in policy
    assert policy.startswith("default-src 'self';")
    assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize("path", ["../__init__.py", "%2e%2e/__init__.py", "nothing.js", "index.html", ""])
def test_only_its_own_files_are_given(server: Server, path: str) -> None:
    assert server.get(f"/swagger-ui/{path}").status in (403, 404)


def test_in_closed_mode_it_asks_for_an_account(chromium: Browser, tmp_path: Path) -> None:
    with running_server(tmp_path, tracker=CLOSED) as server:
        refused = server.get("/swagger-ui.html")
        assert (refused.status, refused.headers["Location"]) == (302, "/login?next=%2Fswagger-ui.html")
        assert server.get("/v3/api-docs").status == 401
        cookie = {
            "name": f"pilothouse_{server.port}",
            "value": log_in(server),
            "url": address(server),
        }
        with chromium.page(address(server)) as page:
            page.context.add_cookies([cookie])
            page.goto("/swagger-ui.html")
            page.locator('.opblock-summary-path[data-path="/api/v1/processes"]').wait_for()
