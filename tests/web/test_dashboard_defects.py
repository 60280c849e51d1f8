"""Defects that were found in a browser with many processes and large runs."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from html import unescape

import pytest
from browser_pages import Browser, PageText, get_page, url_of
from conftest import Serve, Server, python_command, wait_for
from http_checks import running_server
from uploads import upload

PROCESSES = 120
CRASHES = python_command("import sys; print('started'); print('panic: no such table', file=sys.stderr); sys.exit(3)")
SUITE_FAILED = (
    "<testsuites><testsuite name='setup' tests='0' failures='1'/>"
    "<testsuite name='cases'>"
    + "".join(
        f"<testcase classname='shop.Test' name='case_{number:03}'><failure message='no {number % 7}'/></testcase>"
        for number in range(60)
    )
    + "<testcase classname='shop.Test' name='good'/></testsuite></testsuites>"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("defects")
    unheard = socket.socket()  # bound until the end, but it does not listen
    unheard.bind(("127.0.0.1", 0))
    logs = {"stdout-logfile": str(folder / "crash.out"), "stderr-logfile": str(folder / "crash.err")}
    check = {
        "tcp": {"host": "127.0.0.1", "port": unheard.getsockname()[1]},
        "interval": "200ms",
        "failure-threshold": 1,
    }
    processes = {
        "crash": {"command": CRASHES, **logs},
        "sick": {"command": "sleep 1000", "health-check": {**check, "initial-delay": "0s"}},
        "long": {"command": ["/nonexistent/" + "x" * 300]},
        **{f"worker-{number:03}": {"command": "sleep 1000"} for number in range(PROCESSES)},
    }
    with unheard, running_server(folder, processes) as one:
        upload(one, ("project", "shop"), ("branch", "main"), ("junit", SUITE_FAILED))
        one.do("start", "crash")
        one.until("crash", "failed")
        one.do("start", "sick")
        one.until("sick", "unhealthy")
        one.do("start", "long")
        yield one


def names(html: str) -> list[str]:
    return re.findall(r'<tr data-key="([^"]+)"', html)


# Processes


def test_the_process_table_has_fifty_rows_on_a_page_and_few_nodes(server: Server, chromium: Browser) -> None:
    answer = server.get("/processes")
    assert len(names(answer.text)) == 50
    assert len(answer.body) < 80_000
    with chromium.page(url_of(server)) as tab:
        tab.goto("/processes")
        assert tab.evaluate("document.querySelectorAll('*').length") < 2500


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("q=worker-01", [f"worker-01{digit}" for digit in range(10)]),
        ("status=failed", ["crash"]),
        ("status=unhealthy&q=si", ["sick"]),
        ("q=nothing-has-this", []),
        ("sort=-name&q=worker&size=25", [f"worker-{PROCESSES - 1 - number:03}" for number in range(25)]),
        ("q=worker&size=25&page=4", [f"worker-{number:03}" for number in range(100, PROCESSES)]),
        ("q=worker&size=25&page=99", [f"worker-{number:03}" for number in range(100, PROCESSES)]),
    ],
)
def test_the_process_table_is_searched_filtered_sorted_and_paged(
    server: Server, query: str, expected: list[str]
) -> None:
    assert names(server.get(f"/processes?{query}").text) == expected


@pytest.mark.parametrize("query", ["sort=colour", "status=angry", "size=7", "page=x"])
def test_an_unknown_value_of_a_filter_is_ignored_with_a_note(server: Server, query: str) -> None:
    found = get_page(server, f"/processes?{query}")
    assert f"Ignored: {query.replace('=', ' ')}" in found.words


@pytest.mark.parametrize("path", ["/", "/processes"])
def test_each_count_links_to_the_filtered_list(server: Server, path: str) -> None:
    links = [facts.get("href") for tag, facts in get_page(server, path).tags if tag == "a"]
    assert "/processes?status=failed" in links


def test_the_last_health_check_is_shown_and_served(server: Server) -> None:
    health = server.get("/api/v1/processes/health/sick").json
    assert health["check"].startswith("tcp 127.0.0.1:")
    assert health["message"] == "Connection refused"
    assert health["failures"] >= 1
    assert health["since"] <= health["checkedAt"]
    for path in ("/processes?q=sick", "/processes/sick"):
        assert "Connection refused" in get_page(server, path).words
    unchecked = server.get("/api/v1/processes/health/worker-000").json
    assert {unchecked[name] for name in ("check", "message", "since", "checkedAt")} == {None}
    assert server.get("/api/v1/processes/health/nobody").status == 404


def test_the_failures_of_a_health_check_are_counted(server: Server) -> None:
    def failures() -> int:
        return int(server.get("/api/v1/processes/health/sick").json["failures"])

    before = failures()
    wait_for(lambda: failures() > before)


def test_the_log_of_a_failed_process_opens_on_stderr(server: Server) -> None:
    def opened(path: str) -> list[str | None]:
        return [facts.get("href") for tag, facts in get_page(server, path).tags if facts.get("aria-current") == "page"]

    assert "/processes/crash?log=stderr#log" in opened("/processes/crash")
    assert "/processes/crash?log=stdout#log" in opened("/processes/crash?log=stdout")


@pytest.mark.parametrize("width", [375, 768, 1440])
def test_the_actions_of_a_row_are_reachable_at_every_width(server: Server, chromium: Browser, width: int) -> None:
    with chromium.page(url_of(server), viewport={"width": width, "height": 900}) as tab:
        tab.goto("/processes?q=worker-000")
        menu = tab.get_by_role("button", name="Actions of worker-000")
        if width < 1024:
            box = menu.bounding_box()
            assert box["x"] + box["width"] <= width
            assert tab.get_by_role("button", name="Start worker-000").count() == 0  # hidden until the menu opens
            menu.click()
        start = tab.get_by_role("button", name="Start worker-000")
        box = start.bounding_box()
        assert 0 <= box["x"] <= width - box["width"]


def test_a_long_reason_is_cut_to_two_lines_and_can_be_opened(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server)) as tab:
        tab.goto("/processes?q=long")
        reason = tab.locator("tr[data-key=long] details.reason")
        assert reason.bounding_box()["height"] < 60
        reason.locator("summary").click()
        assert "x" * 300 in reason.locator("pre").inner_text()


def test_the_title_and_the_icon_show_the_state(server: Server) -> None:
    text = server.get("/processes/crash").text
    assert "<title>\N{MULTIPLICATION X} crash failed \N{EN DASH} Processes \N{EN DASH} Pilothouse</title>" in text
    assert "icon-failing.svg" in text


def test_the_icons_are_served(serve: Serve) -> None:
    fresh = serve()
    icon, head = fresh.get("/favicon.ico"), fresh.ask("HEAD", "/favicon.ico")
    assert icon.body.startswith(b"\0\0\1\0")
    assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", str(len(icon.body)))
    html = fresh.get("/").text
    assert "icon-failing" not in html
    for link in re.findall(r'rel="(?:icon|apple-touch-icon)"[^>]*href="([^"]+)"', html):
        assert fresh.get(link).status == 200


# Runs


def test_every_failure_of_a_run_can_be_reached(server: Server) -> None:
    pages = [server.get(f"/runs/1?group=none&page={number}").text for number in range(3)]
    shown = [name for text in pages for name in re.findall(r"<b>shop\.Test (case_\d+)</b>", text)]
    assert sorted(shown) == [f"case_{number:03}" for number in range(60)]


def test_a_suite_that_failed_without_a_case_is_an_entry_and_all_counts_agree(server: Server) -> None:
    found = PageText(server.get("/runs/1").text).words
    assert re.search(r"Failures\s+61\b", found)
    assert "suite failed" in found
    assert "reports 1 failure, and no test case of it failed" in found
    assert not re.search(r"Failed\s+\d", found.partition("Pass rate")[0])


@pytest.mark.parametrize(
    ("query", "count"),
    [("q=case_01", 10), ("q=no 3", 9), ("q=setup", 1), ("q=100%", 0), ("page=99", 11), ("cause=-1", 1)],
)
def test_the_failures_are_filtered(server: Server, query: str, count: int) -> None:
    text = server.get(f"/runs/1?group=none&{query.replace(' ', '%20').replace('100%', '100%25')}").text
    assert text.count('<details class="failure"') == count
    assert '<details class="group' not in text


@pytest.mark.parametrize(("query", "title"), [("", "no "), ("group=cause&q=case", "no "), ("group=suite", "cases")])
def test_the_largest_group_of_failures_is_first_with_its_first_tests(server: Server, query: str, title: str) -> None:
    text = server.get(f"/runs/1?{query}").text
    group = text.partition('<details class="group')[2].partition('<details class="group')[0]
    assert title in PageText(group).words.partition("60 failures")[0]
    assert re.findall(r"<b>shop\.Test (case_\d+)</b>", group) == [f"case_{number:03}" for number in range(3)]
    every = re.search(r'href="\?([^"#]+)[^>]*>All 60 failures<', group)
    assert every
    assert "60 match" in server.get(f"/runs/1?{unescape(every[1])}").text
    assert ("suite failed" in text) == ("q=" not in query)


def test_unknown_query_values_are_ignored_with_a_note(server: Server) -> None:
    found = PageText(server.get("/runs/1?group=odd&new=perhaps&page=-1&cause=x&size=7").text).words
    assert "Ignored: page -1, group odd, new perhaps, cause x." in found
    assert "60 failures" in found


@pytest.mark.parametrize(
    ("fails", "query", "marks"),
    [
        ({"a": "one"}, "", [("1 failure", False)]),
        ({"a": "one", "b": "two"}, "", [("1 failure", False), ("1 failure", True)]),
        ({"a": "one", "b": "one"}, "", [("2 failures, 1 new", False)]),
        ({"a": "one", "b": "one"}, "new=true", [("1 failure", True)]),
        ({"a": "other"}, "", [("1 failure", True)]),
        ({"a": "other", "b": "two"}, "group=suite", [("2 failures, 1 new", False)]),
        ({"b": "two"}, "group=suite", [("1 failure", True)]),
    ],
)
def test_a_failure_group_missing_in_the_baseline_is_new(
    server: Server, fails: dict[str, str], query: str, marks: list[tuple[str, bool]]
) -> None:
    def run(project: str, **failing: str) -> int:
        cases = "".join(
            f"<testcase name='{name}'><failure message='{text}'/></testcase>" for name, text in failing.items()
        )
        report = f"<testsuite name='s'>{cases}<testcase name='fine'/></testsuite>"
        return int(upload(server, ("project", project), ("branch", "main"), ("junit", report))["runId"])

    project = f"marks {fails} {query}"
    run(project, a="one")
    text = server.get(f"/runs/{run(project, **fails)}?{query}").text
    heads = re.findall(r'<details class="group[^>]*>\s*<summary>(.*?)</summary>', text, re.DOTALL)
    assert [(re.findall(r'count">([^<]*)<', head)[0], ">new<" in head) for head in heads] == marks


def test_only_the_new_failures_are_shown_on_request(server: Server) -> None:
    one = "<testsuite name='s'>{}<testcase classname='c.A' name='fine'/></testsuite>"
    failing = "<testcase classname='c.A' name='{}'><failure message='broken'/></testcase>"
    facts = (("project", "bank"), ("branch", "main"))
    upload(server, *facts, ("junit", one.format(failing.format("old"))))
    run = upload(server, *facts, ("junit", one.format(failing.format("old") + failing.format("fresh"))))
    assert re.findall(r"<b>c\.A (\w+)</b>", server.get(f"/runs/{run['runId']}?new=true").text) == ["fresh"]
    assert sorted(re.findall(r"<b>c\.A (\w+)</b>", server.get(f"/runs/{run['runId']}").text)) == ["fresh", "old"]


def test_a_duration_that_was_not_reported_is_a_dash(server: Server) -> None:
    words = PageText(server.get("/runs/1").text).words
    assert "0 ms" not in words


# Print and names


def test_print_uses_the_light_tokens_in_the_dark_theme(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server), color_scheme="dark") as tab:
        tab.goto("/processes/crash")
        tab.evaluate("document.documentElement.dataset.theme = 'dark'")
        tab.emulate_media(media="print")
        assert tab.evaluate("getComputedStyle(document.body).color") == "rgb(27, 34, 40)"
        assert tab.evaluate("getComputedStyle(document.querySelector('.top')).display") == "none"


def test_print_cuts_no_line_of_a_log_and_no_column_and_keeps_the_keys_of_plots(
    server: Server, chromium: Browser
) -> None:
    with chromium.page(url_of(server)) as tab:
        tab.goto("/processes/crash")
        tab.locator(".log .line", has_text="panic").wait_for()
        tab.emulate_media(media="print")
        cut = tab.evaluate("""() => {
            const box = document.querySelector(".log").getBoundingClientRect();
            return [...document.querySelectorAll(".log .line")].map((line) => line.getBoundingClientRect())
                .filter(({top, bottom}) => top < box.top || bottom > box.bottom).length;
        }""")
        assert cut == 0
        tab.goto("/projects/1")
        assert tab.evaluate("getComputedStyle(document.querySelector('.wide')).overflowX") == "visible"
        runs = [upload(server, ("project", "printed"), ("branch", "main"), ("junit", SUITE_FAILED)) for _ in range(2)]
        tab.goto(f"/projects/{runs[1]['projectId']}")
        assert tab.evaluate("getComputedStyle(document.querySelector('.key'), '::before').printColorAdjust") == "exact"


def test_text_after_a_suite_with_a_name_from_right_to_left_keeps_its_place(server: Server, chromium: Browser) -> None:
    report = "<testsuite name='בדיקות'><testcase classname='c' name='n' time='0.007'><failure/></testcase></testsuite>"
    run = upload(server, ("project", "hebrew"), ("branch", "main"), ("junit", report))
    with chromium.page(url_of(server)) as tab:
        tab.goto(f"/runs/{run['runId']}")
        suite, duration = tab.locator("details.failure p.faint").evaluate("""(line) => {
            const find = (text) => {
                const nodes = document.createTreeWalker(line, NodeFilter.SHOW_TEXT), range = new Range();
                while (!nodes.nextNode().data.includes(text));
                const start = nodes.currentNode.data.indexOf(text);
                range.setStart(nodes.currentNode, start);
                range.setEnd(nodes.currentNode, start + text.length);
                return range.getBoundingClientRect();
            };
            return [find("בדיקות").right, find("7").left];
        }""")
    assert duration >= suite


def test_the_name_of_a_link_begins_with_its_text(server: Server, chromium: Browser) -> None:
    other = upload(server, ("project", "named"), ("branch", "main"), ("junit", SUITE_FAILED))["projectId"]
    with chromium.page(url_of(server)) as tab:
        for path in ("/", "/processes", "/processes/crash", "/projects/1", f"/projects/{other}", "/runs/1"):
            tab.goto(path)
            wrong = tab.evaluate("""() => [...document.querySelectorAll("a[aria-label], button[aria-label]")]
                .filter((link) => link.innerText.trim() && !link.getAttribute("aria-label").startsWith(
                    link.innerText.trim())).map((link) => link.outerHTML)""")
            assert [html for html in wrong if 'id="theme"' not in html] == []
