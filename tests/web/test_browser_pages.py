"""The browser that the tests of a worker share."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from browser_pages import Browser, need_browser
from conftest import is_alive, wait_for

BASE = "http://127.0.0.1:1"


def opened(page: Any) -> Any:
    """The page with a document of its own origin, which no server sends."""
    page.route("**", lambda route: route.fulfill(content_type="text/html", body="<title>here</title>"))
    page.goto("/")
    return page


def processes(page: Any) -> list[int]:
    """The pids of Chromium and of the driver that started it."""
    answer = page.context.browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")
    chromium = next(int(process["id"]) for process in answer["processInfo"] if process["type"] == "browser")
    return [chromium, int(psutil.Process(chromium).ppid())]


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(pid), about="the end of a killed process")


def kill_driver(browser: Browser, seen: list[int]) -> None:
    """Opens a page and kills the driver meanwhile; adds its pid and Chromium's to `seen`."""
    with browser.page(BASE) as page:
        assert opened(page).title() == "here"
        seen += processes(page)
        end(seen[-1])
        page.title()


def test_a_browser_that_died_is_replaced_and_none_is_left() -> None:
    with closing(Browser()) as browser:
        with browser.page(BASE) as page:
            started = processes(page)
        end(started[0])
        with pytest.raises(need_browser().Error):
            kill_driver(browser, started)
        with browser.page(BASE) as page:
            assert opened(page).title() == "here"
            started += processes(page)
    asyncio.run(asyncio.sleep(0))
    assert len(set(started)) == 6
    wait_for(lambda: not any(map(is_alive, started)), about="the end of all browsers")


def test_pages_share_nothing_and_leave_no_loop_running(chromium: Browser) -> None:
    seen = "[document.cookie, localStorage.length, sessionStorage.length]"
    with chromium.page(BASE) as first, chromium.page(BASE) as second:
        opened(first).evaluate("document.cookie = 'a=b', localStorage.a = sessionStorage.a = 'b'")
        assert opened(second).evaluate(seen) == ["", 0, 0]
        assert first.evaluate(seen) == ["a=b", 1, 1]
    asyncio.run(asyncio.sleep(0))
    with chromium.page(BASE) as third:
        assert opened(third).evaluate(seen) == ["", 0, 0]


@pytest.mark.parametrize("script", [
    "console.error('a-fault')",
    "console.warn('a-fault')",
    "setTimeout(() => { throw new Error('a-fault'); })",
    "await fetch('http://127.0.0.2:1/a-fault', {mode: 'no-cors'})",
])  # fmt: skip
def test_a_page_with_a_fault_fails_its_test(chromium: Browser, script: str) -> None:
    def visit() -> None:
        with chromium.page(BASE) as page:
            opened(page).evaluate(f"async () => {{ {script}; await new Promise((done) => setTimeout(done, 1)); }}")

    with pytest.raises(AssertionError, match="a-fault"):
        visit()


def test_more_features_are_disabled_than_by_playwright(chromium: Browser) -> None:
    with chromium.page(BASE) as page:
        command = Path(f"/proc/{processes(page)[0]}/cmdline").read_text().replace("\0", " ").split()
    (listed,) = (word.partition("=")[2].split(",") for word in command if word.startswith("--disable-features="))
    assert {"PaintHolding", "WebUIOmniboxPopup"} <= set(listed)
