"""Details of lists: separators in numbers, bars of durations, linked clusters, zones of times, whole names."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import uploads
from browser_pages import Browser, axe_findings, get_page, url_of
from conftest import Server
from http_checks import running_server

STACK = "Traceback (most recent call last):\n  File 'a.py', line 3, in test\n    raise ValueError"
LOAD = "timeStamp,elapsed,label,success\n" + "1700000000000,12345,GET /cart,true\n" * 1111
LONG_NUMBER = re.compile(r"(?<![\w.,:/\N{EN DASH}-])\d{4,}(?![\w:\N{EN DASH}-])")
"""A count without separators: not a part of a time, a path or a range of lines."""
LONG = "shop.checkout.integration.payments.CreditCardWithAVeryLongNameThatIsCutAnywhere"


def report(count: int) -> str:
    """JUnit of so many tests, of which the last takes 4 s, the one before 2 s and fails."""
    cases = [f"<testcase classname='c.A' name='case_{number}' time='0.001'/>" for number in range(count - 2)]
    failure = f'<failure type="ValueError" message="it broke">{STACK}</failure>'
    cases += [
        f"<testcase classname='{LONG}' name='slow' time='2'>{failure}</testcase>",
        "<testcase classname='c.A' name='slowest' time='4'/>",
    ]
    return f"<testsuite name='s'>{''.join(cases)}</testsuite>"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("details"), {"idle": {"command": ["sleep", "600"]}}) as one:
        lines = {number: number <= 1400 for number in range(1, 2801)}
        about = (("project", "shop"), ("branch", "main"))
        measured = (("jacoco", uploads.jacoco({"a.py": lines})), ("perf", LOAD))
        uploads.upload(one, *about, ("commit", "a" * 40), ("junit", report(1234)), *measured)
        yield one


def test_numbers_of_coverage_and_load_have_separators(server: Server) -> None:
    expected = {
        "/runs/1": ("1,111", "12,345.00"),
        "/runs/1/coverage": ("1,400",),
        "/runs/1/coverage?path=com/x/a.py": ("1,400 lines covered, 1,400 missed",),
        "/projects/1/perf": ("1,111", "12,345.00"),
    }
    for path, texts in expected.items():
        words = get_page(server, path).words
        assert all(text in words for text in texts), (path, texts)
        assert LONG_NUMBER.findall(words) == [], path


def test_numbers_have_separators(server: Server) -> None:
    for path in ("/runs/1", "/projects", "/projects/1"):
        words = get_page(server, path).words
        assert "1,234" in words, path
        assert "1234" not in LONG_NUMBER.findall(words), path  # as in the address of a server at port 21234
    assert "1 result\n" in get_page(server, "/search?q=slowest").words


def test_durations_of_tests_are_bars_to_scale(server: Server) -> None:
    tags = get_page(server, "/runs/1/tests?sort=duration").tags
    widths = [facts["width"] for tag, facts in tags if tag == "rect" and facts.get("class") == "took"]
    assert widths[:3] == ["100.0", "50.0", "0.0"]


def test_a_cluster_ends_before_its_traceback_and_leads_to_its_failures(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server)) as one:
        one.goto("/projects/1/clusters")
        link = one.locator("tbody th a")
        assert "Traceback" not in link.inner_text()
        assert "it broke" in link.inner_text()
        link.press("Enter")
        one.wait_for_url("**/runs/1?group=none&cause=*")
        one.get_by_text("Only those of one cause").wait_for()
        assert one.locator("details.failure").count() == 1


def test_times_name_their_zone_names_are_whole_and_heads_are_aligned(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server), timezone_id="Europe/Berlin", locale="en-GB") as one:
        one.set_viewport_size({"width": 1440, "height": 900})
        one.goto("/projects")
        title = one.locator("tbody time").first.get_attribute("title")
        assert title.endswith(("CET", "CEST", "GMT+1", "GMT+2")), title
        middles = one.locator("thead th").evaluate_all(
            """(heads) => heads.map((head) => {
                const range = document.createRange();
                range.selectNodeContents(head);
                const { top, bottom } = range.getClientRects()[0];
                return Math.round((top + bottom) / 2);
            })"""
        )
        assert max(middles) - min(middles) <= 2, middles
        one.goto("/search?q=slow")
        name = one.locator("tbody th a", has_text="CreditCard")
        assert name.bounding_box()["height"] < 30
        assert LONG in (name.get_attribute("title") or "")
        assert axe_findings(one) == []
