"""The rows of lists: their height, and what is cut in them."""

from __future__ import annotations

import pytest
from browser_pages import Browser, url_of
from conftest import Serve, wait_for

from handlers.charts.release_list import urgency

LONG = "Serves the shop's pages to customers, and keeps their carts until they pay or leave for the night"
PROCESSES = {
    "web": {"command": ["sleep", "600"], "auto-start": True, "description": LONG},
    "broken": {"command": ["sh", "-c", "exit 3"], "auto-start": True, "restart": "never", "description": LONG},
    "idle": {"command": ["sleep", "600"]},
}
HEIGHTS = "[...document.querySelectorAll('.fleet tbody tr')].map((row) => row.getBoundingClientRect().height)"


@pytest.mark.parametrize(("density", "most"), [("", 41), ("compact", 29)])
def test_a_process_is_one_line(serve: Serve, chromium: Browser, density: str, most: int) -> None:
    server = serve(PROCESSES)
    wait_for(lambda: server.get("/api/v1/processes/info/broken").json["status"] == "failed")
    with chromium.page(url_of(server), viewport={"width": 1440, "height": 900}) as one:
        one.goto("/processes")
        one.evaluate("(density) => document.documentElement.dataset.density = density", density)
        heights = one.evaluate(HEIGHTS)
        assert len(heights) == 3
        assert max(heights) <= most, heights
        assert one.get_by_title(LONG).first.is_visible()


def test_the_chips_of_states_begin_with_the_worst_and_keep_the_search(serve: Serve, chromium: Browser) -> None:
    server = serve(PROCESSES)
    wait_for(lambda: server.get("/api/v1/processes/info/broken").json["status"] == "failed")
    with chromium.page(url_of(server)) as one:
        one.goto("/processes?q=shop")
        chips = one.locator(".counts a")
        assert chips.first.inner_text().startswith("failed")
        chips.first.click()
        one.wait_for_url("**/processes?*status=failed*")
        assert "q=shop" in one.url


def test_releases_that_need_a_look_come_first() -> None:
    states = ["superseded", "pending-upgrade", "deployed", "failed", "uninstalling", "uninstalled"]
    ordered = ["failed", "pending-upgrade", "uninstalling", "deployed", "superseded", "uninstalled"]
    assert sorted(states, key=urgency) == ordered
