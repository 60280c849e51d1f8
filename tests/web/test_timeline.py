"""The timeline of the host: processes, releases and runs beside each other, and the way there from a red run."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
import records
import uploads
from browser_pages import Browser, faults_in_all_views, get_page, url_of
from cluster import Cluster
from conftest import Serve, Server, wait_for
from http_checks import running_server
from release_secrets import made_release, store_release
from small_charts import FULL

from models.json_format import rfc3339
from models.supervision.events import Filter
from models.tracker.tables import Project, Run

PROCESSES = {
    "shop-web": {"command": ["sleep", "600"], "auto-start": True},
    "broken": {"command": ["sh", "-c", "exit 3"], "auto-start": True, "restart": "never"},
}
NAMES = "(rows) => rows.map((row) => row.querySelector('th').innerText)"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Iterator[Server]:
    """A server with two processes, a release, a red run, and one of a private project."""
    space, now = cluster.namespace("timeline"), rfc3339(time.time_ns() // 1000)  # others share the cluster: the newest
    for name, status in (("till", "failed"), ("tillage", "pending-upgrade")):
        store_release(cluster, made_release(name, space, 1, status, now, manifest="# none\n"))
    svc = {**FULL, "kube": {"kubeconfig": str(cluster.kubeconfig)}}
    with running_server(tmp_path_factory.mktemp("timeline"), PROCESSES, svc=svc) as one:
        wait_for(lambda: one.get("/api/v1/processes/info/broken").json["status"] == "failed")
        uploads.upload(one, ("project", "hidden"), ("junit", uploads.junit(1, 1)))
        uploads.upload(one, ("project", "shop"), ("junit", uploads.junit(3, 1)))
        with records.store_of(one):
            Project.update(visibility="PRIVATE").where(Project.name == "hidden").execute()
        path = "/history/timeline?range=30d"
        wait_for(lambda: "till in timeline" in get_page(one, path).words, about=lambda: get_page(one, path).words)
        yield one


def test_processes_releases_and_runs_stand_beside_each_other(server: Server) -> None:
    words = get_page(server, "/history/timeline?range=30d").words
    for name in ("broken", "shop-web", "till in timeline", "shop, run 2"):
        assert name in words, name
    assert "hidden" not in words
    tags = get_page(server, "/history/timeline?range=30d").tags
    assert sum(facts.get("class") == "chart spans" for _, facts in tags) == 3


def test_a_release_has_the_colour_of_its_state(server: Server) -> None:
    text = server.get("/history/timeline?range=30d&release=till").text  # others share the cluster
    lane = text.partition('aria-label="Releases over time')[2].partition("</svg>")[0]
    assert sorted(re.findall(r'rect class="(\w+)"', lane)) == ["bad", "lane", "warn"]


@pytest.mark.parametrize(
    ("query", "shown", "left_out"),
    [
        ("project=SHOP", "shop, run 2", "broken"), ("process=brok", "broken", "shop, run 2"),
        ("release=til", "till in timeline", "broken"), ("project=shop&process=brok", "shop, run 2", "shop-web"),
        ("project=nothing", "Nothing changed in this time", "broken"),
        ("until=2020-01-01T00:00:00Z", "Nothing changed in this time", "broken"),
    ],
)  # fmt: skip
def test_the_timeline_is_filtered(server: Server, query: str, shown: str, left_out: str) -> None:
    words = get_page(server, f"/history/timeline?range=30d&{query}").words
    assert shown in words
    assert left_out not in words


def test_a_cluster_that_does_not_answer_is_named(serve: Serve, cluster: Cluster) -> None:
    server = serve(svc={"kube": {"kubeconfig": str(cluster.dead_config())}})
    wait_for(lambda: "Without the releases of the cluster: the cluster" in get_page(server, "/history/timeline").words)
    assert "Without the releases" not in get_page(server, "/history/timeline?project=shop").words


def test_what_is_not_understood_is_ignored_with_a_note(server: Server) -> None:
    words = get_page(server, "/history/timeline?range=2y&until=soon").words
    assert "Ignored: range 2y, until soon." in words


def test_a_red_run_leads_to_what_changed_before(server: Server, chromium: Browser) -> None:
    with records.store_of(server):
        at = Run.get(Run.id == 2).created_at
    with chromium.page(url_of(server)) as one:
        one.goto("/runs/2")
        one.get_by_role("link", name="What changed before").press("Enter")
        one.wait_for_url("**/history/timeline?range=10m&until=*")
        names = one.locator(".happened tbody tr").evaluate_all(NAMES)
        assert names[0] == "shop, run 2"
        assert {"broken", "shop-web"} < set(names)
        assert one.locator("#timeline").get_attribute("data-live") is None
        assert faults_in_all_views(one) == {}
    own = "project=shop&process=o"  # without the releases of the cluster, which others share
    words = get_page(server, f"/history/timeline?range=10m&until={rfc3339(at - 700_000_000)}&{own}").words
    assert not [name for name in ("broken", "shop-web", "shop, run 2") if name in words], "none had started then"
    words = get_page(server, f"/history/timeline?range=1h&{own}").words
    assert all(name in words for name in ("broken", "shop-web", "shop, run 2"))


def test_one_cursor_goes_through_all_lanes(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server)) as one:
        one.goto("/history/timeline?range=1h")
        assert one.locator(".cursor:visible").count() == 0
        one.locator(".happened tbody a").first.focus()
        places = one.locator(".happenings .cursor").evaluate_all(
            "(lines) => lines.map((line) => line.getAttribute('d'))"
        )
        assert len(set(places)) == 1
        assert places[0].startswith("M")
        assert one.locator(".happenings .cursor[hidden]").count() == 0
        one.locator(".happenings svg").nth(2).hover(position={"x": 5, "y": 5})
        one.locator(".happened tr.at").wait_for()


def test_events_are_selected_by_time() -> None:
    condition, values = Filter(since=5, until=9, process="a").where()
    assert (condition, values) == ("WHERE process = ? AND event_time >= ? AND event_time <= ?", ["a", 5, 9])
    assert Filter(until=9).is_combined
