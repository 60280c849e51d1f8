"""Lists on a phone: navigation in one row, filters folded, the first row near the top; and their rows on a desk."""

from __future__ import annotations

import pytest
import uploads
from browser_pages import Browser, faults_in_all_views, url_of
from cluster import Cluster
from conftest import Serve, Server
from release_secrets import made_release, release_secret
from small_charts import FULL, helm_path

PHONE, DESK = {"width": 390, "height": 844}, {"width": 1440, "height": 900}
LISTS = {
    "/processes": "Search and filter", "/history": "Search and filter", "/releases": "Search and filter",
    "/projects": "Search and filter", "/runs/1/tests": "Filters", "/projects/1/commits": "Filters",
    "/projects/1/clusters": "Filters", "/projects/1/insights": "Filters",
}  # fmt: skip
TOP = "(row) => row.getBoundingClientRect().top"
HEIGHTS = "[...document.querySelectorAll('tbody tr')].map((row) => row.getBoundingClientRect().height)"
NAVIGATION = """(nav) => ({rows: new Set([...nav.children].map((link) => link.offsetTop)).size,
    scrolls: nav.scrollWidth > nav.clientWidth,
    shown: (({left, right}) => left >= 0 && right <= innerWidth)(
        nav.querySelector("[aria-current]").getBoundingClientRect())})"""


@pytest.fixture
def server(serve: Serve, cluster: Cluster) -> Server:
    space = cluster.namespace()
    for number in range(12):
        state = "failed" if number % 5 == 3 else "deployed"
        cluster.create(space, release_secret(made_release(f"app-{number}", space, 1, state, manifest="# none\n")))
    processes = {
        f"p{number}": {"command": ["sleep", "600"], "auto-start": number % 2 == 0, "description": "Serves the shop"}
        for number in range(12)
    }
    kube = {"kube": {"kubeconfig": str(cluster.kubeconfig)}, "helm": {"binary": helm_path("helm")}}
    one = serve(processes, svc=FULL | kube)
    for number in range(8):
        facts = (("project", f"shop{number}"), ("branch", "main"), ("commit", "a" * 40))
        uploads.upload(one, *facts, ("junit", uploads.junit(12, 3)))
    return one


def test_the_first_row_of_a_list_is_near_the_top_of_a_phone(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server), viewport=PHONE) as one:
        for path, label in LISTS.items():
            one.goto(path)
            row, summary = one.locator("tbody tr").first, one.locator("#filters > summary")
            row.wait_for()
            assert row.evaluate(TOP) < 320, path
            navigation = one.locator(".top nav").evaluate(NAVIGATION)
            assert navigation == {"rows": 1, "scrolls": True, "shown": True}, path
            assert summary.inner_text() == label
            assert one.locator("#filters form").is_hidden()
            summary.press("Enter")
            one.locator("#filters form").wait_for()
            assert faults_in_all_views(one) == {}, path
            one.set_viewport_size(PHONE)


def test_rows_are_one_line_on_a_desk_and_filters_are_not_folded(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server), viewport=DESK, java_script_enabled=False) as one:
        for path in LISTS:
            one.goto(path)
            assert one.locator("#filters form").is_visible(), path
            assert one.locator("#filters > summary").is_hidden(), path
    with chromium.page(url_of(server), viewport=DESK) as one:
        for path in LISTS:
            one.goto(path)
            one.locator("tbody tr").first.wait_for()
            assert max(one.evaluate(HEIGHTS)) <= 41, path
            one.evaluate("document.documentElement.dataset.density = 'compact'")
            assert max(one.evaluate(HEIGHTS)) <= 29, path


def test_an_active_filter_is_open_on_a_phone_without_script(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server), viewport=PHONE, java_script_enabled=False) as one:
        one.goto("/processes")
        one.locator("#filters > summary").press("Enter")
        one.get_by_label("Name or description contains").fill("p1")
        one.get_by_role("button", name="Filter").press("Enter")
        one.wait_for_url("**/processes?q=p1*")
        assert one.get_by_label("Name or description contains").input_value() == "p1"
        assert one.locator("tbody tr").count() == 3
