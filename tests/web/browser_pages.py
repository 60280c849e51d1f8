"""A real Chromium driven by Playwright. A test fails if a page logs errors, throws, or requests another origin."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from conftest import IS_PROOF, Server
from requirements import missing_part

_AXE = {"resultTypes": ["violations"], "preload": False, "rules": {"target-size": {"enabled": True}}}
_RULES_OF_COLOUR = ("color-contrast", "link-in-text-block")
"""The rules whose result depends on the theme."""
WIDTHS = (375, 768, 1440)
_FIND_OVERFLOW = """() => {
    const name = (node) => `${node.tagName.toLowerCase()}${node.id && `#${node.id}`}.${node.classList}`
        + ` ${JSON.stringify(node.textContent.trim().slice(0, 40))}`;
    const scrolls = (node) => node && (["auto", "scroll", "hidden"].includes(getComputedStyle(node).overflowX)
        || scrolls(node.parentElement));
    const nodes = [...document.body.querySelectorAll("*")].filter((node) => node.checkVisibility());
    const wide = document.documentElement.scrollWidth <= innerWidth ? [] : nodes.filter((node) =>
        node.getBoundingClientRect().right > innerWidth + 1 && !scrolls(node.parentElement));
    const cut = nodes.filter((node) => {
        const style = getComputedStyle(node);
        const isMeant = style.textOverflow === "ellipsis" || style.webkitLineClamp !== "none"
            || style.clipPath !== "none" || node.closest("svg, .visually-hidden, .editor, .log");
        return !isMeant && node.textContent.trim() && ["hidden", "clip"].includes(style.overflowX)
            && (node.scrollWidth > node.clientWidth + 1 || node.scrollHeight > node.clientHeight + 1);
    });
    return [...wide.map((node) => `too wide: ${name(node)}`), ...cut.map((node) => `cut: ${name(node)}`)];
}"""
_FIND_COLOURED = """() => [...document.querySelectorAll("main :is(a, .state, .up, .down, td, dd)")].filter((node) => {
    const [red, green, blue] = getComputedStyle(node).color.match(/\\d+/g).map(Number);
    return Math.max(red, green, blue) - Math.min(red, green, blue) > 40;
}).map((node) => node.outerHTML)"""
"""Finds values that still have a colour on a page that has lost its server."""
PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_ARGUMENTS = ["--no-sandbox", "--disable-site-isolation-trials"]
"""A page has one process. Else Chromium starts a second one for the next site."""
_LAUNCHER = """#!/bin/sh
for argument do
    shift
    case $argument in
        --disable-features=*) argument=$argument,WebUIOmniboxPopup,WebUIOmniboxAimPopup,WebUIOmniboxFullPopup ;;
    esac
    set -- "$@" "$argument"
done
exec {program} "$@"
"""
"""Chromium obeys the last list of features only, and one is Playwright's. Without these, the address bar of each window
renders two pages of its own, which takes as long as opening the page of a test.
"""


def need_browser() -> Any:
    """Returns Playwright's module. Skips the test without Playwright or a browser, except in CI."""
    if PROGRAM is None:
        missing_part("chromium")
    from playwright import sync_api

    return sync_api


class Browser:
    """A Chromium for all tests of a worker. It starts with the first page, and again when it has died.

    Playwright leaves its event loop marked as the running one of its thread, and other tests could not call
    `asyncio.run`. Here it is marked while a page is open only.
    """

    def __init__(self) -> None:
        self._api = need_browser()
        self._opened = ExitStack()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._chromium: Any = None

    @contextmanager
    def page(self, base: str, allow: tuple[str, ...] = (), **options: Any) -> Iterator[Any]:
        """Opens a page in a context of its own, with relative URLs below `base`, and checks it for faults at its end.

        `allow` lists parts of expected console errors.
        """
        faults: list[str] = []
        with self._marked_loop(), closing(self._new_context(base_url=base, **options)) as context:
            page = context.new_page()
            page.set_default_timeout(60_000)  # the machine may have more to do
            page.on("console", lambda line: faults.append(line.text) if line.type in ("error", "warning") else None)
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on("request", lambda sent: None if sent.url.startswith((base, "data:")) else faults.append(sent.url))
            yield page
            unexpected = [fault for fault in faults if not any(word in fault for word in allow)]
            assert not unexpected, unexpected

    @contextmanager
    def _marked_loop(self) -> Iterator[None]:
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self._loop if self._loop and self._loop.is_running() else None)
        try:
            yield
        finally:
            asyncio._set_running_loop(before)

    def _new_context(self, **options: Any) -> Any:
        if self._chromium is not None:
            with suppress(self._api.Error):  # Chromium or the driver of Playwright has died
                return self._chromium.new_context(**options)
        self._stop()
        self._start()
        return self._chromium.new_context(**options)

    def _start(self) -> None:
        program = Path(self._opened.enter_context(tempfile.TemporaryDirectory()), "chromium")
        program.write_text(_LAUNCHER.format(program=shlex.quote(str(PROGRAM))))
        program.chmod(0o755)
        playwright = self._opened.enter_context(self._api.sync_playwright())
        self._loop = asyncio.get_running_loop()
        self._chromium = playwright.chromium.launch(executable_path=program, args=_ARGUMENTS)

    def _stop(self) -> None:
        if self._chromium is not None:
            with suppress(self._api.Error):
                self._chromium.close()
        self._opened.close()
        self._chromium = self._loop = None

    def close(self) -> None:
        """Ends Chromium and the driver of Playwright."""
        with self._marked_loop():
            self._stop()


def axe_findings(page: Any, **options: Any) -> list[str]:
    """All findings of axe on the page, of any impact, with their elements."""
    if not page.evaluate("'axe' in window"):
        from axe_playwright_python.sync_playwright import Axe

        page.evaluate(Axe().axe_script)
    found = page.evaluate("(options) => axe.run(options)", {**_AXE, **options})
    return [f"{rule['id']}: {[node['target'] for node in rule['nodes']]}" for rule in found["violations"]]


def faults_in_all_views(page: Any) -> dict[str, list[str]]:
    """Faults of the page by view: all widths, with text of 100 and of 200 %, and axe's findings.

    Axe takes most of the time, so it sees the narrowest page in the light theme and the widest in the dark one; with
    `make proof` each width in each theme.
    """
    found = {}
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        for theme, options in (("light", {}), ("dark", {"runOnly": list(_RULES_OF_COLOUR)})):
            if IS_PROOF or (theme, width) in (("light", WIDTHS[0]), ("dark", WIDTHS[-1])):
                page.emulate_media(color_scheme=theme, reduced_motion="reduce")
                found[f"{theme}, {width}"] = axe_findings(page, **options)
        found[f"{width}"] = overflowing_elements(page)
        page.evaluate("document.documentElement.style.fontSize = '200%'")
        found[f"text 200 %, {width}"] = overflowing_elements(page)
        page.evaluate("document.documentElement.style.fontSize = ''")
    return {view: faults for view, faults in found.items() if faults}


def without_the_server(server: Server, chromium: Browser, paths: Sequence[str]) -> dict[str, dict[str, list[str]]]:
    """Opens the pages, kills the server and starts it again; returns the faults meanwhile by path and view."""
    faults = {}
    with chromium.page(url_of(server), allow=("ERR_", "Failed to load")) as first:
        tabs = {path: first.context.new_page() for path in paths}
        for path, tab in tabs.items():
            tab.goto(path)
            tab.locator("#live[data-is=on]").wait_for()
        server.kill()
        for path, tab in tabs.items():
            tab.bring_to_front()
            tab.get_by_text(re.compile(r"^disconnected since \d\d:\d\d$")).wait_for()
            assert tab.evaluate(_FIND_COLOURED) == [], path
            enabled = tab.locator("form[method=post] button:enabled")
            assert enabled.count() == 0, path
            if found := faults_in_all_views(tab):
                faults[path] = found
        server.start()
        for path, tab in tabs.items():
            tab.bring_to_front()
            tab.get_by_text("disconnected since").wait_for(state="hidden")
            assert tab.locator("form[method=post] button:disabled").count() == 0, path
    return faults


def confirm(page: Any, question: str, button: str) -> None:
    """Answers the question of the page's own dialog."""
    dialog = page.get_by_role("dialog", name=question)
    dialog.get_by_role("button", name=button).click()


def tab_to(page: Any, name: str, within: str = "main") -> None:
    """Presses Tab until the control of this name in this place has the focus."""
    names = "(node, place) => node.closest(place) && (node.labels?.[0]?.innerText ?? node.textContent).trim()"
    for _ in range(100):
        page.keyboard.press("Tab")
        if page.locator(":focus").evaluate(names, within) == name:
            return
    raise AssertionError(f"no Tab leads to {name}")


def go_by_keys(page: Any, keys: str, url: str) -> None:
    """Types keys that open another page, until it has loaded: the page forgets the first key after 1.5 s."""
    timeout_error = need_browser().TimeoutError
    for _ in range(5):
        page.keyboard.type(keys)
        with suppress(timeout_error):
            page.wait_for_url(url, timeout=10_000)
            return
    raise AssertionError(f"{keys} does not lead to {url}")


def overflowing_elements(page: Any) -> list[str]:
    """The elements that make the page wider than its window, and those whose text is cut off."""
    return list(page.evaluate(_FIND_OVERFLOW))


def url_of(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"


class PageText(HTMLParser):
    """The tags of a page and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


def get_page(server: Server, path: str, status: int = 200) -> PageText:
    """Gets a page without a browser."""
    answer = server.get(path)
    assert answer.status == status, answer
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    return PageText(answer.text)
