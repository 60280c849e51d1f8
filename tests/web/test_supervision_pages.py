"""The pages of supervision, with and without script."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_pages import Browser, PageText, axe_findings, faults_in_all_views, get_page, url_of
from conftest import Serve, Server, python_command, wait_for
from http_checks import running_server

from handlers.supervision.pages import _settings, ranges_beyond
from handlers.supervision.process_table import process_url
from models.paging import Page, Paging
from models.supervision.events import StatusEvent
from models.supervision.process import ProcessKind, ProcessSpec, Status

COUNTING = python_command(
    "import itertools, time\nfor i in itertools.count(): print('line', i, flush=True); time.sleep(0.05)"
)
FORGED = "<script>document.title = 'forged'</script>"
FORM = "application/x-www-form-urlencoded"
PAGES = ["/", "/processes", "/processes/web", "/processes/nightly", "/history"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("pages")
    processes = {
        "web": {
            "command": [*COUNTING, "--password", "hunter2", "--api-key=hunter3"],
            "stdout-logfile": str(folder / "web.log"),
            "environment": {"DB_PASSWORD": "hunter4", "URL": "http://joe:hunter5@db/", "GREETING": "hello"},
            "description": FORGED,
        },
        "db": {"command": "sleep 1000"},
        "broken": {"command": ["/nonexistent/<b>program</b>"]},
        "odd name / ü": {"command": "sleep 1000", "stdout-logfile": str(folder / "odd.log")},
        "nightly": {"command": "true", "schedule": "@daily", "auto-start": True},
    }
    with running_server(folder, processes) as one:
        yield one


@pytest.mark.parametrize("prefix", ["", "/supervision", "/tracker", "/charts"])
@pytest.mark.parametrize("path", PAGES)
def test_pages_are_served_under_each_prefix_and_link_within_it(server: Server, prefix: str, path: str) -> None:
    found = get_page(server, prefix + path)
    links = [facts["href"] for tag, facts in found.tags if tag == "a"]
    assert all(link and link.startswith((f"{prefix}/", "#")) for link in links), links
    assert ("html", {"lang": "en"}) in found.tags


@pytest.mark.parametrize("path", PAGES)
def test_pages_have_no_inline_script_or_style(server: Server, path: str) -> None:
    for tag, facts in get_page(server, path).tags:
        assert tag != "style"
        assert tag != "script" or facts.get("src", "").startswith("/static/")  # type: ignore[union-attr]
        assert not any(name.startswith("on") or name == "style" for name in facts)


def test_names_and_outputs_are_escaped(server: Server) -> None:
    assert FORGED in get_page(server, "/processes").words
    assert FORGED not in server.get("/processes").text


def test_secrets_of_a_configuration_are_hidden(server: Server) -> None:
    for path in PAGES:
        assert "hunter" not in server.get(path).text
    assert "GREETING=hello" in get_page(server, "/processes/web").words


def test_a_process_is_started_and_stopped_by_a_form_without_script(server: Server) -> None:
    answer = server.post("/processes/db", b"verb=start", Content_Type=FORM)
    assert (answer.status, answer.headers["Location"]) == (303, "/processes")
    assert server.status("db") == "running"
    answer = server.post("/supervision/processes/db", b"verb=stop&to=one", Content_Type=FORM)
    assert (answer.status, answer.headers["Location"]) == (303, "/supervision/processes/db")
    assert server.status("db") == "stopped"


def test_a_form_of_a_browser_requires_the_xsrf_token(server: Server) -> None:
    own = url_of(server)
    answer = server.post("/processes/db", b"verb=start", Content_Type=FORM, Origin=own, Accept="text/html")
    assert answer.status == 403
    assert server.status("db") in ("not_started", "stopped")


@pytest.mark.parametrize(("form", "status"), [(b"verb=shout", 400), (b"", 400)])
def test_a_form_without_a_verb_is_refused(server: Server, form: bytes, status: int) -> None:
    answer = server.post("/processes/db", form, Content_Type=FORM)
    assert answer.status == status
    assert "start, stop, restart, pause or resume" in answer.text


def test_an_unknown_process_is_404(server: Server) -> None:
    assert server.get("/processes/nobody").status == 404


def test_a_start_that_fails_reports_why(server: Server) -> None:
    answer = server.post("/processes/broken", b"verb=start", Content_Type=FORM)
    assert answer.status == 500
    assert "No such file" in PageText(answer.text).words
    assert "/nonexistent/<b>program</b>" in get_page(server, "/").words  # the overview lists failed processes


def test_a_process_name_with_special_characters_has_a_page(server: Server) -> None:
    hrefs = [facts["href"] for tag, facts in get_page(server, "/processes").tags if tag == "a"]
    href = next(href for href in hrefs if href and "odd" in href)
    found = get_page(server, href)
    assert "odd name / ü" in found.words
    links = [facts["href"] for tag, facts in found.tags if tag == "a" and "odd" in (facts.get("href") or "")]
    topics = [facts["data-topic"] for _, facts in found.tags if facts.get("data-topic")]
    assert topics == ["log/odd%20name%20%2F%20%C3%BC/stdout"]
    for link in links:
        assert server.get(str(link).partition("#")[0]).status == 200


def test_the_history_links_a_process_name_with_special_characters(server: Server) -> None:
    server.do("start", "odd name / ü")
    server.do("stop", "odd name / ü")
    hrefs = {facts["href"] for tag, facts in get_page(server, "/history").tags if tag == "a" and facts.get("data-key")}
    assert process_url("odd name / ü") in hrefs


@pytest.mark.parametrize(
    ("query", "status"),
    [("", 200), ("?process=web", 200), ("?status=running", 200), ("?sortBy=pid&sortDirection=asc", 200),
     ("?page=99999", 200), ("?status=odd", 200), ("?page=x", 200), ("?process=web&status=running", 200),
     ("?q=w&sort=-pid&size=25", 200)],
)  # fmt: skip
def test_the_history_is_filtered_sorted_and_paged(server: Server, query: str, status: int) -> None:
    assert server.get(f"/history{query}").status == status


def test_the_history_has_the_query_of_every_table(server: Server) -> None:
    for verb in ("start", "stop"):
        server.do(verb, "db")
        server.do(verb, "web")
    found = get_page(server, "/history?q=D&status=stopped&sort=processName&size=25")
    rows = [facts["data-key"] for tag, facts in found.tags if tag == "a" and "entry" in (facts.get("data-key") or "")]
    assert rows
    assert "web" not in found.words.partition("changes of status")[2]
    heads = [facts.get("href") for tag, facts in found.tags if (facts.get("data-key") or "").startswith("sort ")]
    assert "/history?q=D&status=stopped&sort=-processName&size=25" in heads
    assert (
        "Ignored: status odd, sort nothing, page x."
        in get_page(server, "/history?status=odd&sort=nothing&page=x").words
    )
    assert "Statuses of web over time" in str(get_page(server, "/history").tags)
    assert "No change matches." in get_page(server, "/history?process=gone&status=running").words
    old = get_page(server, "/history?sortBy=pid&sortDirection=asc")
    assert ("th", {"scope": "col", "aria-sort": "ascending"}) in old.tags


def test_a_page_is_small(server: Server) -> None:
    own = len(server.get("/").body)
    parts = [
        facts.get("src") or facts.get("href") for tag, facts in get_page(server, "/").tags if tag in ("script", "link")
    ]
    assert own + sum(len(server.get(part).body) for part in parts if part) < 100_000


# In a browser


def test_the_pages_are_accessible(server: Server, chromium: Browser) -> None:
    faults = {}
    with chromium.page(url_of(server), allow=("Failed to load",)) as one:
        for path in [*PAGES, "/processes?q=nothing&status=odd", "/processes/nobody", "/history?process=gone"]:
            one.goto(path)
            if found := faults_in_all_views(one):
                faults[path] = found
    assert faults == {}


def test_a_process_is_started_and_its_log_followed(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server)) as one:
        one.goto("/processes")
        one.get_by_role("button", name="Start web").click()
        one.get_by_role("button", name="Stop web").wait_for()
        one.get_by_role("link", name="web", exact=True).click()
        one.locator("#log-count", has_text="lines").wait_for()
        one.get_by_label("Search").fill("line 1")
        one.locator("#log-count", has_text=" of ").wait_for()
        assert all(line.startswith("line 1") for line in one.locator(".log").inner_text().splitlines())
        one.get_by_label("Search").fill("")
        one.get_by_label("Pause").check()
        one.evaluate("new Promise(requestAnimationFrame)")  # lines that came before the pause are drawn with it
        log, still = server.folder / "web.log", one.locator(".log").inner_text()
        before = log.stat().st_size
        wait_for(lambda: log.stat().st_size > before + 50)
        assert one.locator(".log").inner_text() == still
        one.get_by_label("Pause").uncheck()
        wait_for(lambda: one.locator(".log").inner_text() != still)
        one.get_by_role("button", name="Stop").click()
        one.get_by_role("button", name="Start", exact=True).wait_for()
        assert server.status("web") == "stopped"


def test_a_log_without_a_line_reports_it(serve: Serve, chromium: Browser, tmp_path: Path) -> None:
    quiet = {"command": "sleep 1000", "auto-start": True, "stdout-logfile": str(tmp_path / "quiet.log")}
    server = serve({"quiet": quiet})
    server.until("quiet", "running")
    with chromium.page(url_of(server)) as one:
        one.goto("/processes/quiet")
        one.get_by_text("no lines yet").wait_for()
        assert one.locator(".log .line").all_inner_texts() == [f"started, pid {server.info('quiet')['pid']}"]
        assert axe_findings(one) == []


def test_a_failure_is_visible_on_a_scrolled_page(serve: Serve, chromium: Browser) -> None:
    server = serve({f"c{number}": {"command": "/nonexistent/program"} for number in range(60)})
    with chromium.page(url_of(server), allow=("500",)) as one:
        one.goto("/processes?size=100")
        one.get_by_role("button", name="Start c59").click()
        result = one.get_by_text("c59 failed to start")
        result.wait_for()
        assert one.evaluate("scrollY") > 500
        assert 0 <= result.bounding_box()["y"] < one.viewport_size["height"]


def test_changes_by_others_show_without_a_reload(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server)) as one:
        one.goto("/processes")
        one.locator("#live[data-is=on]").wait_for()
        server.do("start", "db")
        one.get_by_role("button", name="Stop db").wait_for()
        server.do("stop", "db")
        one.get_by_role("button", name="Start db").wait_for()


def test_a_page_reports_a_lost_server_and_catches_up(serve: Serve, chromium: Browser, tmp_path: Path) -> None:
    server = serve({"db": {"command": "sleep 1000"}}, supervisor={"on-exit": "leave"})
    with chromium.page(url_of(server), allow=("ERR_", "Failed to load")) as one:
        one.goto("/processes")
        one.locator("#live[data-is=on]").wait_for()
        server.kill()
        one.get_by_text("connection lost").wait_for()
        server.start()
        server.do("start", "db")
        one.get_by_role("button", name="Stop db").wait_for()
        one.locator("#live[data-is=on]").wait_for()


def test_a_page_reports_a_hung_server_whose_connections_stay_open(serve: Serve, chromium: Browser) -> None:
    server = serve({"db": {"command": "sleep 1000"}})
    assert server.process is not None
    with chromium.page(url_of(server)) as one:
        one.clock.install()
        one.goto("/history")  # this page is updated by the stream only
        one.locator("#live[data-is=on]").wait_for()
        server.process.send_signal(signal.SIGSTOP)
        try:
            one.clock.fast_forward(31_000)
            one.get_by_text("connection lost").wait_for()
        finally:
            server.process.send_signal(signal.SIGCONT)
        one.clock.fast_forward(6_000)
        one.locator("#live[data-is=on]").wait_for()


def test_a_page_is_live_without_a_shared_worker(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server), allow=("Failed to load", "ERR_FAILED")) as one:
        one.context.route("**/worker.js*", lambda route: route.abort())
        one.goto("/history")
        one.locator("#live[data-is=on]").wait_for()


def test_a_button_that_requires_an_account_leads_to_the_login(serve: Serve, chromium: Browser, tmp_path: Path) -> None:
    logged = {"command": "sleep 1000", "stdout-logfile": str(tmp_path / "db.log")}
    beyond = serve({"db": logged}, server={"address": ["0.0.0.0"]})
    with chromium.page(f"http://127.0.0.1:{beyond.port}") as one:
        one.goto("/processes/db")
        assert one.get_by_text("Logs require an account").is_visible()
        one.get_by_role("button", name="Start").click()
        one.get_by_role("heading", name="Log in").wait_for()
        assert beyond.status("db") == "not_started"


def test_a_hidden_tab_does_not_follow_its_log_and_shows_every_line_once_afterwards(
    server: Server, chromium: Browser
) -> None:
    if server.status("web") != "running":
        server.do("start", "web")
    hidden = "Object.defineProperty(document, 'hidden', { get: () => window.unseen === true })"
    log = server.folder / "web.log"
    with chromium.page(url_of(server)) as one:
        one.add_init_script(hidden)
        one.goto("/processes/web")
        one.locator(".log", has_text="line").wait_for()
        one.evaluate("window.unseen = true; document.dispatchEvent(new Event('visibilitychange'))")
        one.evaluate("new Promise(requestAnimationFrame)")  # lines that came before are drawn
        before, size = count_of(one), log.stat().st_size
        wait_for(lambda: log.stat().st_size > size + 200)
        assert count_of(one) == before
        one.evaluate("window.unseen = false; document.dispatchEvent(new Event('visibilitychange'))")
        wait_for(lambda: count_of(one) != before)
        lines = one.locator(".log .line:not(.note-line)").all_inner_texts()  # the start may be in view
        assert lines
        assert "\n".join(lines) in log.read_text()  # nothing missing, nothing twice


def count_of(page: Any) -> str:
    return str(page.locator("#log-count").inner_text())


def test_the_selection_in_a_log_is_kept(server: Server, chromium: Browser) -> None:
    server.do("start", "web")
    log = server.folder / "web.log"
    wait_for(lambda: log.exists() and log.stat().st_size > 100)
    server.do("stop", "web")  # else lines come until the chosen one is out of view
    with chromium.page(url_of(server)) as one:
        one.goto("/processes/web")
        one.locator(".log .line").first.wait_for()
        chosen = one.evaluate("""() => {
            const text = [...document.querySelectorAll(".log .line")].at(-1).firstChild;
            getSelection().setBaseAndExtent(text, 0, text, 5);
            return getSelection().toString();
        }""")
        before = count_of(one)
        with log.open("a") as file:
            file.write("one more\n")
        wait_for(lambda: count_of(one) != before)
        assert one.evaluate("getSelection().toString()") == chosen != ""


def test_a_log_is_followed_again_after_a_refused_stream(serve: Serve, chromium: Browser, tmp_path: Path) -> None:
    process = {"command": COUNTING, "auto-start": True, "stdout-logfile": str(tmp_path / "web.log")}
    server = serve({"web": process}, server={"max-streams": 1})
    taken = server.stream("/tracker/api/v1/events")
    with chromium.page(url_of(server), allow=("503", "Failed to load")) as one:
        one.goto("/processes/web")
        one.get_by_text("connection lost").wait_for()
        taken.close()
        one.locator("#log-count", has_text="lines").wait_for()


def test_the_plot_of_a_process_shows_the_values_of_its_table(server: Server) -> None:
    for _ in range(5):
        server.do("start", "db")
        server.do("stop", "db")
    text = server.get("/processes/db").text
    assert text.count("<rect") == text.partition("<tbody>")[2].partition("</tbody>")[0].count("<tr>") == 15


def test_the_chosen_theme_is_kept(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server), color_scheme="light") as one:
        one.goto("/")
        one.get_by_role("button", name="Switch theme").click()
        one.goto("/history")
        assert one.evaluate("document.documentElement.dataset.theme") == "dark"


def test_pages_and_actions_work_without_script(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server), java_script_enabled=False) as one:
        one.goto("/processes/web")
        assert one.locator("[data-needs-script]").count() > 0
        assert one.locator("[data-needs-script]:visible").count() == 0
        one.goto("/processes")
        one.get_by_role("button", name="Start db").click()
        one.get_by_role("button", name="Stop db").click()
        assert wait_for(lambda: server.status("db") == "stopped")


def test_each_setting_of_a_process_is_shown_once() -> None:
    names = [name for name, _ in _settings(ProcessSpec("job", ("true",), type=ProcessKind.ONESHOT))]
    assert "type" in names
    assert len(names) == len(set(names))


def test_ranges_beyond_the_first_event_of_a_process_are_disabled() -> None:
    def events(age: int, total: int = 1) -> Page[StatusEvent]:
        at = (1_000_000 - age) * 1_000_000
        entry = StatusEvent(1, at, "web", None, None, None, None, Status.STARTING, Status.NOT_STARTED, 0)
        return Page([entry], total, Paging())

    assert ranges_beyond(events(300), 1_000_000) == {"1h", "6h", "24h"}
    assert ranges_beyond(events(3700), 1_000_000) == {"24h"}
    assert ranges_beyond(events(300, total=40), 1_000_000) == set()
    assert ranges_beyond(Page([], 0, Paging()), 1_000_000) == set()


def test_the_page_of_a_job_begins_with_its_runs_and_says_how_to_keep_its_output(serve: Serve) -> None:
    """It ran once, so it was sampled once at most, which makes no plot."""
    server = serve({"nightly": {"command": "true", "schedule": "@daily"}})
    server.do("start", "nightly")
    wait_for(lambda: server.info("nightly")["status"] == "finished")
    found = get_page(server, "/processes/nightly")
    assert "CPU and memory" not in found.words
    assert found.words.index("The latest runs") < found.words.index("this keeps it and shows it here")
    assert "supervisor:\n  log: capture" in found.words
    assert all(words in found.words for words in ("Next run", "Last run", "Succeeded", "of the last"))
