"""Keyboard use, forced colours, reduced motion, and pages that have lost their server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import uploads
from browser_pages import Browser, axe_findings, go_by_keys, tab_to, url_of, without_the_server
from conftest import Server, wait_for
from http_checks import running_server

REPORT = """<testsuite name='s'><testcase classname='c.A' name='fine' time='0.5'/>
    <testcase classname='c.A' name='broken'><failure message='it broke'/></testcase></testsuite>"""
GREEN = "<testsuite name='s'><testcase classname='c.A' name='fine' time='0.2'/></testsuite>"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    processes = {
        **{f"worker-{number:02}": {"command": "sleep 1000"} for number in range(30)},
        "broken": {"command": ["/nonexistent/program"], "auto-start": True},
        "web": {"command": "sleep 1000", "auto-start": True},
    }
    with running_server(tmp_path_factory.mktemp("access"), processes) as one:
        for report in (GREEN, REPORT):
            uploads.upload(one, ("project", "shop"), ("branch", "main"), ("junit", report))
        one.until("broken", "failed_to_start")
        one.until("web", "running")
        yield one


def computed_style(page: Any, what: str) -> Any:
    """A computed style of the first state that failed."""
    return page.locator(".state.bad").first.evaluate(f"node => {what}")


def test_states_keep_shape_and_text_in_forced_colours(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server), forced_colors="active") as page:
        page.goto("/processes?status=failed_to_start")
        assert computed_style(page, "node.innerText") == "failed to start"
        shape = "getComputedStyle(node, '::before')"
        assert computed_style(page, f"{shape}.clipPath").startswith("polygon")
        assert computed_style(page, f"{shape}.backgroundColor") != computed_style(
            page, "getComputedStyle(node).backgroundColor"
        )
        page.get_by_role("link", name="broken", exact=True).focus()
        page.keyboard.press("Tab")
        assert page.locator(":focus").evaluate("node => getComputedStyle(node).outline").endswith("solid 2px")
        page.keyboard.press("Control+k")
        page.locator(".palette [role=option]").first.wait_for()
        chosen, other = (page.locator(f".palette [aria-selected={is_chosen}]").first for is_chosen in ("true", "false"))
        assert chosen.evaluate("node => getComputedStyle(node).outlineStyle") == "solid"
        assert other.evaluate("node => getComputedStyle(node).outlineStyle") == "none"


def test_nothing_is_animated_with_reduced_motion(server: Server, chromium: Browser) -> None:
    moving = """() => [...document.body.querySelectorAll("*")].filter((node) => {
        const style = getComputedStyle(node);
        return style.animationName !== "none" || /[1-9]/.test(style.transitionDuration);
    }).length"""
    with chromium.page(url_of(server), reduced_motion="reduce") as page:
        for path in ("/", "/processes", "/processes/web", "/projects/1", "/runs/2"):
            page.goto(path)
            page.evaluate("document.querySelector('main').insertAdjacentHTML('beforeend', '<p class=skeleton></p>')")
            assert page.evaluate(moving) == 0, path
        page.emulate_media(reduced_motion="no-preference")
        assert page.evaluate(moving) > 0


@pytest.mark.parametrize("width", [768, 1440])
def test_the_focus_is_never_below_the_header(server: Server, chromium: Browser, width: int) -> None:
    covered = """() => document.activeElement.getBoundingClientRect().top
        < document.querySelector(".top").getBoundingClientRect().bottom"""
    with chromium.page(url_of(server), viewport={"width": width, "height": 500}) as page:
        page.goto("/processes")
        page.get_by_role("link", name="worker-29").focus()
        for _ in range(60):
            page.keyboard.press("Shift+Tab")
            if page.evaluate("document.activeElement.closest('.top') !== null"):
                break
            assert not page.evaluate(covered), page.evaluate("document.activeElement.outerHTML")


def test_pages_report_a_lost_server_and_disable_actions(server: Server, chromium: Browser) -> None:
    paths = ["/", "/processes", "/processes/web", "/history", "/projects/1", "/runs/2", "/compare?base=1&head=2"]
    assert without_the_server(server, chromium, paths) == {}


def test_keyboard_and_palette_start_filter_open_and_compare(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server)) as page:
        keys = page.keyboard
        page.goto("/")
        go_by_keys(page, "gp", "**/processes")
        tab_to(page, "Name or description contains")
        keys.type("worker-07")
        page.locator("tr[data-key=worker-00]").wait_for(state="detached")
        tab_to(page, "Filter")
        keys.press("j")
        keys.press(".")
        assert page.locator(":focus").text_content() == "Start worker-07"
        keys.press("Enter")
        page.locator(".toast.good", has_text="worker-07 started").wait_for()
        wait_for(lambda: server.status("worker-07") == "running")

        keys.press("Control+k")
        keys.type("shop")
        page.get_by_role("option", name="shop").first.wait_for()
        keys.press("Enter")
        page.get_by_role("heading", name="shop", level=1).wait_for()
        page.wait_for_load_state()  # its script, which listens to keys, has run
        keys.press("Control+k")
        keys.type("2")
        page.get_by_role("option", name="run 2").wait_for()
        while page.get_by_role("option", name="run 2", selected=True).count() == 0:
            keys.press("ArrowDown")
        keys.press("Enter")
        page.wait_for_url("**/runs/2")
        tab_to(page, "Compare with previous")
        keys.press("Enter")
        page.wait_for_url("**/compare?base=1&head=2")
        page.get_by_role("heading", name="Run 2 against run 1").wait_for()


def test_a_list_with_a_next_page_has_no_two_landmarks_of_one_name(server: Server, chromium: Browser) -> None:
    run = uploads.upload(server, ("project", "many"), ("junit", uploads.junit(300)))["runId"]
    with chromium.page(url_of(server)) as page:
        page.goto(f"/runs/{run}/tests")
        page.get_by_role("navigation", name="More of this list").wait_for()
        assert axe_findings(page) == []
