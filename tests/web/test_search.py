"""The search: its results by REST, the page without script, the palette and the keys in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
import uploads
import users
from browser_pages import Browser, axe_findings, confirm, get_page, go_by_keys, url_of
from conftest import Server, wait_for
from http_checks import running_server

from models.tracker.tables import Project

PROCESSES = {
    "web": {"command": "sleep 1000", "auto-start": True, "description": "the shop's pages"},
    "web-worker": {"command": "sleep 1000"},
    "100%_db": {"command": "sleep 1000"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("search"), PROCESSES) as one:
        uploads.upload(
            one,
            ("project", "shop/web"),
            ("branch", "fix-web"),
            ("commit", "abcdef0123"),
            ("junit", uploads.junit(2, 1)),
        )
        uploads.upload(one, ("project", "secret-web"), ("branch", "secret-web"), ("junit", uploads.junit(1, 0)))
        with users.open_accounts(one.data):
            Project.update(visibility="PRIVATE").where(Project.name == "secret-web").execute()
        yield one


def found(server: Server, q: str, **headers: str) -> list[tuple[str, str]]:
    answer = server.ask("GET", f"/api/v1/search?q={quote(q)}", headers=headers)
    assert answer.status == 200, answer
    return [(item["kind"], item["title"]) for item in answer.json]


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        ("WEB", ("process", "web")),
        ("shop's", ("process", "web")),
        ("%_", ("process", "100%_db")),
        ("restart worker", ("action", "Restart web-worker")),
        ("rest", ("action", "Restart web")),
        ("shop/w", ("project", "shop/web")),
        ("abcdef", ("run", "Run 1 of shop/web")),
        ("fix-w", ("run", "Run 1 of shop/web")),
        ("1", ("run", "Run 1 of shop/web")),
        ("hist", ("page", "History")),
    ],
)
def test_items_are_found_by_a_part_of_their_name(server: Server, q: str, expected: tuple[str, str]) -> None:
    assert expected in found(server, q)


def test_a_test_is_found_by_its_name_and_links_its_page(server: Server) -> None:
    hit = next(item for item in server.get("/api/v1/search?q=c1+A").json if item["kind"] == "test")
    assert hit["title"] == "A c1"
    assert server.get(hit["href"]).status == 200


def test_the_newest_tests_come_first(server: Server) -> None:
    assert [title for kind, title in found(server, "A c") if kind == "test"] == ["A c2", "A c1", "A c0"]


def test_sql_wildcards_are_plain_text(server: Server) -> None:
    assert not [kind for kind, _ in found(server, "___") if kind in ("run", "test", "project")]


def test_nothing_of_a_private_project_is_found_without_permission(server: Server) -> None:
    assert not [title for _, title in found(server, "secret")]
    token = users.create_token(server.data, "boss2", role="ADMIN")
    assert {kind for kind, _ in found(server, "secret", Authorization=f"Bearer {token}")} == {"project", "run"}


def test_a_kind_with_more_results_leads_to_all_of_them(server: Server) -> None:
    uploads.upload(server, ("project", "books"), ("junit", uploads.junit(50, 0, prefix="many")))
    results = server.get("/api/v1/search?q=many").json
    assert [item["kind"] for item in results] == ["test"] * 19 + ["page"]
    assert (results[-1]["title"], results[-1]["detail"]) == ("All 21 or more tests", "19 of 21 or more")
    assert results[-1]["href"] == "/search?q=many&kind=test"
    assert len(server.get("/api/v1/search?q=many&limit=100").json) == 50
    assert "50 results" in get_page(server, results[-1]["href"]).words


@pytest.mark.parametrize("limit", ["0", "101", "x"])
def test_a_limit_out_of_range_is_refused(server: Server, limit: str) -> None:
    assert server.get(f"/api/v1/search?limit={limit}").status == 400


def test_the_search_is_a_page_without_script(server: Server) -> None:
    assert "web-worker" in get_page(server, "/search?q=worker").words
    assert "Nothing that you may read matches" in get_page(server, "/supervision/search?q=zzz").words


def test_one_escape_closes_the_palette_with_text_in_it(chromium: Browser, server: Server) -> None:
    with chromium.page(url_of(server)) as tab:
        tab.goto("/processes")
        tab.keyboard.press("Control+k")
        tab.keyboard.type("web")
        tab.get_by_role("option", name="web-worker").first.wait_for()
        tab.keyboard.press("Escape")
        assert not tab.locator("dialog.palette").is_visible()


def test_enter_opens_the_result_of_the_text_and_not_of_an_earlier_one(chromium: Browser, server: Server) -> None:
    held: list[Any] = []

    def is_held() -> bool:
        tab.wait_for_timeout(5)  # Playwright may report a request before it calls the route
        return bool(held) and held[-1].request.url.endswith("web-worker")

    with chromium.page(url_of(server)) as tab:
        tab.goto("/")
        tab.keyboard.press("Control+k")
        tab.get_by_role("option").first.wait_for()
        tab.route("**/api/v1/search?*", lambda route: held.append(route))
        with tab.expect_request("**/api/v1/search?q=web-worker"):
            tab.keyboard.type("web-worker")
            tab.keyboard.press("Enter")
        wait_for(is_held)
        held[-1].continue_()
        tab.wait_for_url("**/processes/web-worker")


def test_the_palette_opens_by_keys_and_restarts_a_process_after_confirmation(chromium: Browser, server: Server) -> None:
    with chromium.page(url_of(server)) as tab:
        tab.goto("/")
        tab.keyboard.press("Control+k")
        tab.get_by_role("combobox", name="Search everything").fill("worker")
        tab.get_by_role("option", name="web-worker").wait_for()
        assert axe_findings(tab) == []
        tab.keyboard.press("Enter")
        tab.wait_for_url("**/processes/web-worker")
        tab.keyboard.press("/")
        tab.get_by_role("combobox", name="Search everything").fill("start web-w")
        tab.get_by_role("option", name="Start web-worker").click()
        confirm(tab, "Start web-worker?", "Start")
        tab.locator(".toast.good").wait_for()
        wait_for(lambda: server.get("/api/v1/processes/info/web-worker").json["status"] == "running")


def test_keys_move_through_pages_and_rows_but_not_while_typing(chromium: Browser, server: Server) -> None:
    with chromium.page(url_of(server)) as tab:
        tab.goto("/")
        go_by_keys(tab, "gp", "**/processes")
        tab.keyboard.press("j")
        tab.keyboard.press("j")
        focused: Any = "document.activeElement.textContent"
        tab.wait_for_function(f"{focused} === 'web-worker'")
        tab.locator("#q").press("j")
        assert tab.locator("#q").input_value() == "j"
        tab.evaluate("document.activeElement.blur()")
        tab.keyboard.press("?")
        tab.locator("dialog#help").wait_for()
        tab.get_by_label("Single keys").uncheck()
        tab.keyboard.press("Escape")
        tab.keyboard.press("g")
        tab.keyboard.press("o")
        tab.keyboard.press("Control+k")
        tab.get_by_role("combobox", name="Search everything").wait_for()
        assert "/processes" in tab.url


@pytest.mark.parametrize(
    ("query", "shown"),
    [("", True), ("?q=SHOP", True), ("?q=none", False), ("?status=healthy", False), ("?sort=-name&size=25", True)],
)
def test_the_project_table_is_filtered_by_the_query(server: Server, query: str, shown: bool) -> None:
    found = get_page(server, f"/projects{query}")
    assert ("/projects/1" in [attributes.get("href") for _, attributes in found.tags]) is shown
    assert "Ignored" not in found.words


def test_an_unknown_filter_of_the_project_table_is_ignored_with_a_note(server: Server) -> None:
    assert "Ignored: status x, sort y, page z." in get_page(server, "/projects?status=x&sort=y&page=z").words
