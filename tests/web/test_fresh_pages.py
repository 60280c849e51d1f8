"""Live pages are current, send few requests, and keep open elements."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import records
import uploads
import users
import yaml
from browser_pages import Browser, url_of
from conftest import Server, python_command, wait_for
from http_checks import running_server

from models.tracker.tables import Project

COLOURED = (
    "print('\\x1b[31mred\\x1b[0m <b>', flush=True); print('gone wrong', file=__import__('sys').stderr, flush=True)"
)
GREEN = "<testsuite name='s'><testcase classname='c.A' name='fine' time='0.2'/></testsuite>"
RED = "<testsuite name='s'><testcase classname='c.A' name='fine'><failure message='it broke'/></testcase></testsuite>"
HIDDEN = "Object.defineProperty(document, 'hidden', { get: () => window.unseen === true })"


BUSY = "import time\nwhile True: sum(range(100_000)); time.sleep(0.02)"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("fresh")
    logs = {"stdout-logfile": str(folder / "out.log"), "stderr-logfile": str(folder / "err.log")}
    processes = {
        "web": {"command": "sleep 1000", "description": "as it was"},
        "busy": {"command": python_command(BUSY), "auto-start": True},
        "said": {"command": python_command(COLOURED), "auto-start": True, **logs},
    }
    with running_server(folder, processes) as one:
        for name in ("shop", "shop", "bank"):
            uploads.upload(one, ("project", name), ("branch", "main"), ("junit", GREEN))
        yield one


def page_requests(page: Any, path: str) -> list[str]:
    """Collects the requests for a page from now on."""
    seen: list[str] = []
    page.on("request", lambda requested: seen.append(requested.url) if requested.url.endswith(path) else None)
    return seen


def live(page: Any, path: str) -> None:
    page.goto(path)
    page.locator("#live[data-is=on]").wait_for()


# Cached pages change with their data


def test_a_process_row_shows_each_change_immediately(server: Server) -> None:
    assert "Start<span" in server.get("/processes").text.partition("web</a>")[2].partition("</tr>")[0]
    server.do("start", "web")
    pid = server.info("web")["pid"]
    assert f'<td class="number">{pid}</td>' in server.get("/processes").text
    server.do("stop", "web")
    assert f'<td class="number">{pid}</td>' not in server.get("/processes").text
    config = yaml.safe_load(server.file.read_text())
    config["supervisor"]["processes"]["web"]["description"] = "as it is"
    server.configure(config)
    assert server.post("/api/v1/supervisor/reload").status == 200
    assert "as it is" in server.get("/processes").text
    assert 'action="/tracker/processes' in server.get("/tracker/processes").text
    assert "/tracker" not in server.get("/processes").text


def test_the_project_table_shows_each_change_immediately(server: Server) -> None:
    def row(path: str = "/projects") -> str:
        return server.get(path).text.partition(">bank</a>")[2].partition("</tr>")[0]

    assert "healthy" in row() == row()
    run = uploads.upload(server, ("project", "bank"), ("branch", "main"), ("junit", RED))
    assert f"run {run['runId']}" in row()
    assert "failing" in row()
    assert "failing" in row("/")
    assert f'"/runs/{run["runId"]}">bank, run' in server.get("/").text  # among what changed last
    uploads.upload(server, ("project", "bank"), ("branch", "main"), ("junit", GREEN))
    assert "healthy" in row()
    with records.store_of(server):  # by another process
        Project.update(visibility="PRIVATE").where(Project.name == "bank").execute()
    assert row() == row("/") == ""
    owner = users.cookie(server, users.create_session(server.data, "root", "ADMIN"))
    assert "private" in server.get("/projects", **owner).text
    with records.store_of(server):
        Project.update(visibility="PUBLIC").where(Project.name == "bank").execute()
    assert "healthy" in row()


def test_each_user_sees_their_own_projects(server: Server) -> None:
    token = users.create_token(server.data, "owner")
    uploads.upload(server, ("project", "hidden"), ("junit", GREEN), **users.bearer(token))
    with records.store_of(server):
        Project.update(visibility="PRIVATE").where(Project.name == "hidden").execute()
    for path in ("/", "/projects"):
        for _ in range(2):
            for who, sees in (("owner", True), ("other", False), ("boss", True), (None, False)):
                session = who and users.create_session(server.data, who, "ADMIN" if who == "boss" else "USER")
                cookie = users.cookie(server, session) if session else {}
                assert (">hidden" in server.get(path, **cookie).text) is sees, (who, path)


def test_an_unchanged_page_is_304(server: Server) -> None:
    cookie = users.cookie(server, users.create_session(server.data, "owner"))
    first = server.get("/projects", **cookie)
    assert first.headers["Etag"].startswith('W/"')
    again = server.get("/projects", If_None_Match=first.headers["Etag"], **cookie)
    assert (again.status, again.body) == (304, b"")  # although its forms have another token each time
    assert "no-store" in again.headers["Cache-Control"]
    assert server.get("/projects", If_None_Match=first.headers["Etag"]).status == 200  # another caller gets the page
    uploads.upload(server, ("project", "shop"), ("branch", "main"), ("junit", GREEN))
    assert server.get("/projects", If_None_Match=first.headers["Etag"], **cookie).status == 200
    assert "Etag" not in server.get("/projects/999999").headers


def test_the_usage_of_a_process_is_shown_on_the_first_request(server: Server) -> None:
    def cpu() -> float:
        words = server.get("/processes").text.partition("busy</a>")[2].partition("</tr>")[0]
        return float(words.partition(" %")[0].rpartition(">")[2])

    cpu()  # a number even after the first sample
    assert wait_for(lambda: cpu() > 1)


# In a browser


def test_many_changes_cause_few_requests(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server)) as one:
        live(one, "/projects")
        requested, began = page_requests(one, "/projects"), time.monotonic()
        runs = [uploads.upload(server, ("project", "shop"), ("branch", "main"), ("junit", GREEN)) for _ in range(25)]
        one.locator(f"a[href='/runs/{runs[-1]['runId']}']").wait_for()
        assert 1 <= len(requested) <= 2 + (time.monotonic() - began)


def test_changes_of_other_projects_are_delayed(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server)) as one:
        live(one, "/projects/1")
        one.evaluate("delete document.documentElement.dataset.refreshIn")
        uploads.upload(server, ("project", "bank"), ("branch", "main"), ("junit", GREEN))
        wait_for(lambda: one.evaluate("document.documentElement.dataset.refreshIn"))
        assert int(one.evaluate("document.documentElement.dataset.refreshIn")) > 5000
        one.evaluate("delete document.documentElement.dataset.refreshIn")
        run = uploads.upload(server, ("project", "shop"), ("branch", "main"), ("junit", GREEN))
        wait_for(lambda: one.evaluate("document.documentElement.dataset.refreshIn"))
        assert int(one.evaluate("document.documentElement.dataset.refreshIn")) < 4000
        one.locator(f"[data-key='run {run['runId']}']").first.wait_for()


def test_a_hidden_tab_is_not_updated_until_it_is_visible(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server)) as one:
        one.add_init_script(HIDDEN)
        live(one, "/projects")
        requested = page_requests(one, "/projects")
        one.evaluate("window.unseen = true")
        run = uploads.upload(server, ("project", "shop"), ("branch", "main"), ("junit", GREEN))
        wait_for(lambda: one.evaluate("document.documentElement.dataset.missed") == "true")
        assert requested == []
        one.evaluate("window.unseen = false; document.dispatchEvent(new Event('visibilitychange'))")
        one.locator(f"a[href='/runs/{run['runId']}']").wait_for()


def test_open_elements_selection_and_scroll_position_are_kept(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server), viewport={"width": 650, "height": 700}) as one:
        live(one, "/projects/1")
        one.locator("#list details summary").first.click()
        link = one.locator("#list table.runs a").first
        link.focus()
        key = link.get_attribute("data-key")
        one.locator("#list .wide:has(.runs)").evaluate("part => { part.scrollLeft = 40; part.stayed = true; }")
        run = uploads.upload(server, ("project", "shop"), ("branch", "main"), ("junit", GREEN))
        one.locator(f"[data-key='run {run['runId']}']").first.wait_for()
        assert one.evaluate("document.activeElement.dataset.key") == key
        assert one.locator("#list details").first.evaluate("part => part.open")
        assert one.locator("#list .wide:has(.runs)").evaluate("part => part.stayed && part.scrollLeft") == 40


def test_the_keyboard_focus_stays_in_its_row(server: Server, chromium: Browser) -> None:
    server.do("stop", "web")
    with chromium.page(url_of(server)) as one:
        one.goto("/processes")
        one.get_by_role("button", name="Start web").press("Enter")
        one.get_by_role("button", name="Stop web").wait_for()
        wait_for(lambda: one.evaluate("document.activeElement.matches('button')"))
        assert one.evaluate("document.activeElement.closest('tr').dataset.key") == "web"


def test_a_focused_link_keeps_its_target(server: Server, chromium: Browser) -> None:
    server.do("stop", "web")
    with chromium.page(url_of(server)) as one:
        live(one, "/history")
        link = one.locator("#history tbody a").last
        link.focus()
        was = link.evaluate("link => [link.dataset.key, link.href]")
        rows = one.locator("#history tbody tr").count()
        server.do("start", "web")
        one.locator(f"#history tbody tr:nth-child({rows + 1})").wait_for()
        assert one.evaluate("[document.activeElement.dataset.key, document.activeElement.href]") == was


def test_the_focus_stays_in_the_row_when_its_button_is_removed(server: Server, chromium: Browser) -> None:
    server.do("start", "web")
    with chromium.page(url_of(server)) as one:
        live(one, "/processes")
        one.get_by_role("button", name="Stop web").focus()
        server.do("stop", "web")
        one.get_by_role("button", name="Start web", exact=True).wait_for()
        assert one.evaluate("document.activeElement.textContent") == "web"  # its link, which does nothing by mistake


def test_a_page_reports_a_temporary_refusal(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server), allow=("503", "Failed to load")) as one:
        live(one, "/processes")
        one.route("**/processes", lambda route: route.fulfill(status=503))
        server.do("stop" if server.status("web") == "running" else "start", "web")
        one.get_by_text("connection lost").wait_for()
        one.unroute("**/processes")
        one.locator("#live[data-is=on]").wait_for()


def test_the_logs_of_a_process_are_text_without_colours(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server)) as one:
        one.goto("/processes/said")
        one.locator(".log", has_text="red <b>").wait_for()
        one.get_by_role("link", name="Standard error").click()
        one.locator(".log", has_text="gone wrong").wait_for()


def test_a_process_is_started_on_a_phone_without_horizontal_scrolling(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server), viewport={"width": 375, "height": 700}) as one:
        one.goto("/processes")
        one.get_by_role("button", name="Actions of web").click()
        place = one.get_by_role("button", name="Start web").bounding_box()
        assert place["x"] + place["width"] <= 375
        assert (
            one.locator("table.fleet tr", has_text="busy").evaluate(
                "row => getComputedStyle(row.cells[3], '::before').content"
            )
            == '"up "'
        )


def test_a_stream_that_was_refused_is_requested_again(tmp_path: Path, chromium: Browser) -> None:
    with running_server(tmp_path, server={"max-streams": 1}) as small:
        base, taken = url_of(small), small.stream("/tracker/api/v1/events")
        with chromium.page(base, allow=("503", "Failed to load")) as one:
            one.goto("/projects")
            one.get_by_text("connection lost").wait_for()
            taken.close()
            one.locator("#live[data-is=on]").wait_for()
