"""A real Chromium driven by Playwright. A test fails if a page logs errors, throws, or requests another origin."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import Any

from conftest import Server
from needs import missing_part

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def need_browser() -> Any:
    """Returns Playwright's module. Skips the test without Playwright or a browser, except in CI."""
    if PROGRAM is None:
        missing_part("chromium")
    from playwright import sync_api

    return sync_api


class Browser:
    """One browser. `page` opens a page in a context of its own and checks it for faults when it closes."""

    def __init__(self, chromium: Any) -> None:
        self._chromium = chromium

    @contextmanager
    def page(self, base: str, allow: tuple[str, ...] = (), **options: Any) -> Iterator[Any]:
        """Opens a page with relative URLs below `base`. `allow` lists parts of expected console errors."""
        context = self._chromium.new_context(base_url=base, **options)
        page = context.new_page()
        page.set_default_timeout(60_000)  # the machine may have more to do
        faults: list[str] = []
        page.on("console", lambda line: faults.append(line.text) if line.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda sent: None if sent.url.startswith((base, "data:")) else faults.append(sent.url))
        try:
            yield page
            assert [fault for fault in faults if not any(word in fault for word in allow)] == []
        finally:
            context.close()


@contextmanager
def browser() -> Iterator[Browser]:
    api = need_browser()
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox"])
        try:
            yield Browser(chromium)
        finally:
            chromium.close()


def serious(page: Any) -> list[str]:
    """The serious and critical findings of axe on the page, with their elements."""
    return findings(page, ("serious", "critical"))


def findings(page: Any, impacts: tuple[str, ...] = ("minor", "moderate", "serious", "critical")) -> list[str]:
    """The findings of axe on the page, with their elements."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response
    return [
        f"{one['id']}: {[node['target'] for node in one['nodes']]}"
        for one in found["violations"]
        if one["impact"] in impacts
    ]


def findings_everywhere(page: Any) -> dict[str, list[str]]:
    """The findings of axe on the page in both themes and three widths, by theme and width; without those, empty."""
    found = {}
    for theme, width in (("light", 375), ("dark", 768), ("light", 1440), ("dark", 1440)):
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size({"width": width, "height": 800})
        if faults := findings(page):
            found[f"{theme}, {width}"] = faults
    return found


def address(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"


class Text(HTMLParser):
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


def page(server: Server, path: str, status: int = 200) -> Text:
    """Gets a page without a browser."""
    answer = server.get(path)
    assert answer.status == status, answer
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    return Text(answer.text)
