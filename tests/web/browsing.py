"""A real Chromium, driven by Playwright, that notes what a page may not do: errors, refusals, requests to elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from needs import missing_part

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def need_browser() -> Any:
    """Playwright's module; without it or a browser the test is skipped, but never where CI says that all is there."""
    if PROGRAM is None:
        missing_part("chromium")
    from playwright import sync_api

    return sync_api


class Browser:
    """One browser; `page` opens a page in a context of its own, and holds it to good behaviour when it is closed."""

    def __init__(self, chromium: Any) -> None:
        self._chromium = chromium

    @contextmanager
    def page(self, base: str, allow: tuple[str, ...] = (), **options: Any) -> Iterator[Any]:
        """A page whose relative addresses are below `base`; `allow` are words of console errors that are expected."""
        context = self._chromium.new_context(base_url=base, **options)
        page = context.new_page()
        page.set_default_timeout(60_000)  # the machine may have more to do
        faults: list[str] = []
        page.on("console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith((base, "data:")) else faults.append(asked.url))
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
    """What axe finds serious or critical on the page, with the places."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response
    return [
        f"{one['id']}: {[node['target'] for node in one['nodes']]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]
