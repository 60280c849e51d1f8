"""The change of a release: one form at a time, the versions, the fault of values at its line, the planned change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from browser_pages import Browser, axe_findings, faults_in_all_views, get_page, url_of
from chart_servers import index_entry, index_file, web_server
from cluster import Cluster
from conftest import Server
from http_checks import running_server
from release_secrets import made_release, store_release
from small_charts import MAP, chart_archive, helm_path

KEY = "open sesame"
CHANGES = ("upgrade", "rollback", "test", "uninstall")
RED_LINES = """() => [...(CSS.highlights.get("yaml-fault") ?? [])].map((range) =>
    `${range.startContainer.parentNode.className}: ${range}`)"""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Iterator[tuple[Server, str]]:
    """A server with a repository of two versions of a chart, and the path of a release of two revisions of it."""
    space = cluster.namespace()
    with web_server() as shop:
        shop.serve(
            *(
                ("tint", version, chart_archive("tint", version, values="colour: green\n", templates__map=MAP))
                for version in ("1.0.0", "2.0.0")
            )
        )
        older = index_entry("tint", "1.0.0", created="2026-01-31T23:30:00.123456789-01:00", appVersion="7")
        shop.pages["/index.yaml"] = index_file(older, index_entry("tint", "2.0.0", created="0001-01-01T00:00:00Z"))
        svc = {
            "security": {"mode": "FULL", "api-key": KEY, "allowed-hosts": [shop.host_port]},
            "kube": {"kubeconfig": str(cluster.kubeconfig)},
            "helm": {"binary": helm_path("helm")},
        }
        manifest = MAP.replace("{{ .Release.Name }}", "shop").replace("{{ .Values.colour | quote }}", "red")
        for number, status in ((1, "superseded"), (2, "deployed")):
            made = made_release("shop", space, number, status, manifest=manifest)
            made["chart"]["metadata"] |= {"name": "tint", "version": "1.0.0"}
            store_release(cluster, made)
        with running_server(tmp_path_factory.mktemp("change"), svc=svc) as one:
            fields = {"key": KEY, "verb": "add", "name": "paint", "url": shop.url}
            answer = one.post(
                "/repositories", urlencode(fields).encode(), Content_Type="application/x-www-form-urlencoded"
            )
            assert answer.status == 303
            yield one, f"/releases/{space}/shop"


def verbs(server: Server, path: str) -> list[str | None]:
    tags = get_page(server, path).tags
    return [facts.get("value") for tag, facts in tags if tag == "input" and facts.get("name") == "verb"]


def test_one_change_is_shown_at_a_time_with_one_key(release: tuple[Server, str]) -> None:
    server, path = release
    assert verbs(server, f"{path}?show=change") == ["upgrade"]
    assert verbs(server, f"{path}?show=change&revision=1") == ["rollback"], "a link of before"
    for do in CHANGES:
        assert verbs(server, f"{path}?show=change&do={do}") == [do]
        tags = get_page(server, f"{path}?show=change&do={do}").tags
        assert sum(facts.get("name") == "key" for _, facts in tags) == 1
    assert "do must be one of" in get_page(server, f"{path}?show=change&do=odd", 400).words


def test_the_versions_of_the_chart_are_offered(release: tuple[Server, str]) -> None:
    server, path = release
    tags = get_page(server, f"{path}?show=change&do=upgrade").tags
    offered = [str(facts["value"]) for tag, facts in tags if tag == "option"]
    assert [value for value in offered if value.endswith(".0.0")] == ["2.0.0", "1.0.0"]
    page = server.get(f"{path}?show=change&do=upgrade").text
    assert '<option value="2.0.0"></option><option value="1.0.0">app 7, 2026-02-01</option>' in page


def test_the_versions_of_a_chart_have_their_dates(release: tuple[Server, str]) -> None:
    page = release[0].get("/repositories/paint/tint").text
    rows = re.findall(r"<tr><th scope=\"row\">.*?</tr>", page)
    assert [("2026-02-01T00:30:00.123456Z" in row, "<td>\N{EN DASH}</td>" in row) for row in rows] == [
        (False, True),
        (True, False),
    ]


@pytest.mark.parametrize("has_script", [True, False])
def test_the_last_step_shows_the_difference_and_names_the_version(
    release: tuple[Server, str], chromium: Browser, has_script: bool
) -> None:
    server, path = release
    with chromium.page(url_of(server), java_script_enabled=has_script) as one:
        one.goto(f"{path}?show=change&do=upgrade")
        one.get_by_role("button", name="Upgrade shop", exact=True).wait_for()
        one.get_by_label("API key").fill(KEY)
        one.get_by_label("Version").fill(">=1")
        one.get_by_role("button", name="Preview").press("Enter")
        one.locator(".preview .diff .add", has_text="green").wait_for()
        assert one.get_by_label("Version").input_value() == "2.0.0", "not the range, which a newer one may fit later"
        button = one.get_by_role("button", name="Upgrade shop to 2.0.0")
        button.wait_for()
        assert one.locator(".preview ~ .actions").count() == 1, "the button follows the difference"
        if has_script:
            assert one.locator(":focus").get_attribute("id") == "outcome"
            assert faults_in_all_views(one) == {}
            one.get_by_label("Version").fill("1.0.0")
            one.get_by_role("button", name="Upgrade shop", exact=True).wait_for()


def test_the_fault_of_values_is_red_at_its_line(release: tuple[Server, str], chromium: Browser) -> None:
    server, path = release
    with chromium.page(url_of(server), allow=("400",)) as one:
        one.goto(f"{path}?show=change&do=upgrade")
        values = one.get_by_role("textbox", name="Values")
        values.fill("colour: blue\nsize: [1\nnext: 2\n")
        status = one.locator(".editor + .bad")
        status.wait_for()
        assert "line 3" in status.inner_text()
        assert one.evaluate(RED_LINES) == ["editor-numbers: 3", "editor-layer: next: 2"]
        for theme in ("light", "dark"):
            one.emulate_media(color_scheme=theme)
            assert axe_findings(one) == []
        one.get_by_label("API key").fill(KEY)
        one.get_by_role("button", name="Preview").press("Enter")
        one.locator("textarea[aria-invalid=true]:focus").wait_for()
        values.fill("colour: blue\n")
        one.get_by_text("valid YAML", exact=True).wait_for()
        assert one.evaluate(RED_LINES) == []
        assert one.locator("#values-why").count() == 0


def test_a_fault_of_values_is_at_the_field_without_script(release: tuple[Server, str], chromium: Browser) -> None:
    server, path = release
    with chromium.page(url_of(server), java_script_enabled=False, allow=("400",)) as one:
        one.goto(f"{path}?show=change&do=upgrade")
        one.get_by_role("textbox", name="Values").fill("a: [")
        one.get_by_label("API key").fill(KEY)
        one.get_by_role("button", name="Preview").press("Enter")
        field = one.locator("textarea[aria-invalid=true]")
        field.wait_for()
        assert field.get_attribute("aria-describedby") == "values-why"
        assert "not YAML" in one.locator("#values-why").inner_text()
        assert one.get_by_role("textbox", name="Values").input_value() == "a: ["


def test_the_editor_is_as_high_as_its_lines_between_6_lines_and_40rem(
    release: tuple[Server, str], chromium: Browser
) -> None:
    server, path = release
    with chromium.page(url_of(server)) as one:
        one.goto(f"{path}?show=change&do=upgrade")
        heights = []
        for lines in (1, 12, 200):
            one.get_by_role("textbox", name="Values").fill("\n".join(f"a{n}: 1" for n in range(lines)))
            heights.append(one.locator(".editor").bounding_box()["height"])
        assert 6 * 20 <= heights[0] < 8 * 20
        assert 12 * 20 <= heights[1] < 15 * 20
        assert 620 <= heights[2] <= 660
