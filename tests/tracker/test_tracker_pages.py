"""The pages of projects and runs, and their forms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import http_checks
import pytest
import records
from conftest import Answer, Server
from records import ERROR, FAILED, NOW, PASSED
from tracker_rows import Coverage, Failure, Mark, Output, Suite
from uploads import jacoco, junit, upload

from handlers.tracker.pages.compare_page import took_apart
from handlers.tracker.pages.tracker_pages import ProjectPage
from handlers.tracker.responses import RunInfo
from handlers.web.layout import NOTHING, FragmentCache
from models.accounts import permissions
from models.accounts.accounts import User
from models.config.settings import Config
from models.inputs import inputs
from models.tracker.settings import FOR_OWNERS, FOR_WRITERS, FORGE, ProjectSettings
from models.tracker.tables import Project, Run, Test

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&lt;"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with http_checks.running_server(tmp_path_factory.mktemp("pages")) as one, records.store_of(one):
        yield one


@pytest.fixture
def project(server: Server, request: pytest.FixtureRequest) -> Project:
    return records.create_project(request.node.name)


@pytest.fixture(scope="module")
def admin(server: Server) -> User:
    return records.create_user("boss", "ADMIN")


def test_the_row_of_a_run_is_rendered_once(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cached by what it shows, as the store has it: each reading makes other objects."""
    records.create_run(project, {"c.A a": PASSED})
    rendered = []

    def render(_: object, template: str, run: RunInfo, **values: Any) -> bytes:
        rendered.append(run.passed)
        return b"row"

    page: Any = ProjectPage.__new__(ProjectPage)
    page.application = SimpleNamespace(settings={"fragments": FragmentCache()})
    page.services, page.caller = SimpleNamespace(config=Config()), SimpleNamespace(user=None)
    monkeypatch.setattr(ProjectPage, "prefix", "")
    monkeypatch.setattr(ProjectPage, "render_string", render)
    for _ in range(3):
        assert page._values(str(project.id), None, None, 10, 30)["rows"] == b"row"
    assert rendered == [1]


class Document(HTMLParser):
    """A page as a browser reads it: its tags with their attributes, and its words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, attribute: str) -> list[str]:
        return [value or "" for _, attributes in self.tags for name, value in attributes.items() if name == attribute]


def page(server: Server, path: str, headers: dict[str, str] | None = None) -> Document:
    answer = server.ask("GET", path, headers=headers or {})
    assert answer.status == 200, answer
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    found = Document(answer.text)
    assert not [name for _, attributes in found.tags for name in attributes if name.startswith("on") or name == "style"]
    assert all(attributes.get("src") for tag, attributes in found.tags if tag == "script")
    assert "style" not in {tag for tag, _ in found.tags}
    assert [tag for tag, _ in found.tags].count("h1") == 1
    return found


# Reading


@pytest.mark.parametrize("prefix", ["", "/tracker", "/supervision", "/charts"])
def test_pages_are_served_under_every_prefix_and_their_links_keep_the_prefix(
    server: Server, project: Project, prefix: str
) -> None:
    run = records.create_run(project, {"c.A a": FAILED})
    for path in ("/projects", f"/projects/{project.id}", f"/runs/{run.id}", f"/compare?base={run.id}&head={run.id}"):
        found = page(server, prefix + path)
        own = [link for link in found.all("href") if re.search(r"/(projects|runs|compare)\b", link)]
        assert own
        assert all(re.match(rf"{prefix}/(projects|runs|compare)\b", link) for link in own), own


def test_a_project_shows_its_runs_and_flaky_tests(server: Server, project: Project) -> None:
    first = records.create_run(
        project, {"c.A wobbly": FAILED, "c.A b": PASSED}, commit_sha="0123456789", coverage=(3, 1)
    )
    second = records.create_run(project, {"c.A wobbly": PASSED}, commit_sha="0123456789", branch="feature")
    found = page(server, f"/projects/{project.id}")
    assert {f"/runs/{first.id}", f"/runs/{second.id}"} <= set(found.all("href"))
    for words in (project.name, "0123456", "75.0 %", "50.0 %", "feature", "c.A wobbly"):
        assert words in found.text
    only = page(server, f"/projects/{project.id}?branch=feature")
    assert [key for key in only.all("data-key") if key.startswith("run")] == [f"run {second.id}"]


def test_run_page_shows_failures_with_stack_and_output_first(server: Server, project: Project) -> None:
    base = records.create_run(project, {"c.A fixed": FAILED, "c.A still": FAILED}, coverage=(9, 1))
    run = records.create_run(
        project, {"c.A fixed": PASSED, "c.A still": FAILED, "c.A fresh": ERROR}, coverage=(1, 1), branch="x"
    )
    counts = {"line_covered": 1, "line_missed": 1, "branch_covered": 0, "branch_missed": 0}
    Coverage.create(report=records.report_of_run(run), run_id=run.id, path="src/a.py", **counts)
    text = page(server, f"/runs/{run.id}").text
    order = ["c.A still", "still is broken", "at line 1", "still said this", "Newly failing: 1",
             "Fixed: 1", "Still failing: 1", "coverage-drop", "new-failures", "Slowest tests", "src/a.py"]  # fmt: skip
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert f"/compare?base={base.id}&head={run.id}" in page(server, f"/runs/{run.id}").all("href")


def test_empty_run_has_a_page(server: Server, project: Project) -> None:
    run = records.create_run(project, branch=None)
    assert "No baseline: main has no complete run of this flag" in page(server, f"/runs/{run.id}").text


def test_page_of_a_test_shows_its_runs(server: Server, project: Project) -> None:
    runs = [records.create_run(project, {"c.A a": status}) for status in (PASSED, FAILED)]
    found = page(server, f"/projects/{project.id}/test?className=c.A&name=a")
    assert {f"/runs/{run.id}" for run in runs} <= set(found.all("href"))
    assert "a is broken" in found.text


def test_two_runs_are_compared(server: Server, project: Project) -> None:
    base = records.create_run(project, {"c.A a": PASSED, "c.A b": FAILED}, coverage=(1, 1))
    head = records.create_run(project, {"c.A a": FAILED, "c.A b": PASSED}, coverage=(3, 1))
    text = page(server, f"/compare?base={base.id}&head={head.id}").text
    assert "Newly failing: 1 c.A a" in text
    assert "Fixed: 1 c.A b" in text
    assert "+25.0" in text


def test_the_list_has_sparklines_of_the_judged_branch(server: Server, project: Project) -> None:
    for cases, branch in (("a", "main"), ("ab", "main"), ("ab", "other"), ("abcd", "main")):
        tests = "".join(f"<testcase classname='c' name='{name}'/>" for name in cases[1:])
        report = f"<testsuite name='s'><testcase classname='c' name='bad'><failure/></testcase>{tests}</testsuite>"
        upload(server, ("project", project.name), ("branch", branch), ("junit", report))
    rows = server.get(f"/projects?q={project.name}").text.partition("<tbody>")[2].partition("</tbody>")[0]
    assert re.findall(r'<polyline points="([^"]*)"', rows) == ["0,19 45,7 90,1"]


def test_project_page_shows_its_plots_and_the_slowest_growing_tests(server: Server, project: Project) -> None:
    for seconds in ("0.1", "0.2", "0.9", "1.1"):
        cases = (
            f"<testcase classname='c.A' name='slow' time='{seconds}'/><testcase classname='c.A' name='even' time='5'/>"
        )
        upload(server, ("project", project.name), ("junit", f"<testsuite name='s'>{cases}</testsuite>"))
    found = page(server, f"/projects/{project.id}?range=60")
    assert "c.A slow 150 ms 1.0 s 850 ms" in found.text.partition("Slowest growing tests")[2]
    assert "c.A even" not in found.text.partition("Slowest growing tests")[2].partition("Recent runs")[0]
    assert {"trend", "duration-trend"} <= {str(name).removesuffix("-title") for name in found.all("id")}
    assert "<option selected>60</option>" in server.get(f"/projects/{project.id}?range=60").text
    assert "Ignored" not in found.text
    assert "<option selected>30</option>" in server.get(f"/projects/{project.id}?range=7").text
    assert "Ignored: range 7." in page(server, f"/projects/{project.id}?range=7").text


def test_comparison_shows_added_and_removed_tests_files_and_suites(server: Server, project: Project) -> None:
    def posted(tests: str, covered: dict[str, dict[int, bool]], suite: str = "") -> Any:
        report = f"<testsuites><testsuite name='main' time='1'>{tests}</testsuite>{suite}</testsuites>"
        return upload(server, ("project", project.name), ("junit", report), ("jacoco", jacoco(covered)))

    def case(name: str) -> str:
        return f"<testcase classname='c.A' name='{name}' time='0.5'/>"

    same = {"same.py": {1: True}}
    base = posted(case("kept") + case("gone"), {**same, "worse.py": {1: True, 2: True}, "old.py": {1: True}})
    slow = f"<testsuite name='slow' time='3'>{case('new')}</testsuite>"
    head = posted(case("kept"), {**same, "worse.py": {1: True, 2: False}, "new.py": {1: False}}, slow)
    text = page(server, f"/compare?base={base['runId']}&head={head['runId']}").text
    assert "Added: 1 c.A new" in text
    assert "Removed: 1 c.A gone" in text
    files = text.partition("Coverage by file")[2].partition("Duration by suite")[0]
    assert f"old.py 100.0 % {NOTHING} removed" in files
    assert "3 changed of 4" in files
    assert "same.py" not in files
    assert "worse.py 100.0 % 50.0 %" in files
    assert f"new.py {NOTHING} 0.0 % new" in files
    assert f"slow {NOTHING} 500 ms new" in text.partition("Duration by suite")[2]


def test_a_comparison_shows_what_got_worse_what_got_better_and_then_all_figures(
    server: Server, project: Project
) -> None:
    def posted(fails: str, passes: str, seconds: dict[str, float], covered: dict[str, dict[int, bool]]) -> int:
        cases = [f"<testcase name='{name}'><failure/></testcase>" for name in fails]
        cases += [f"<testcase name='{name}' time='{seconds.get(name, 1)}'/>" for name in passes]
        report = f"<testsuite name='s'>{''.join(cases)}</testsuite>"
        run = upload(server, ("project", project.name), ("junit", report), ("jacoco", jacoco(covered)))
        return int(run["runId"])

    base = posted("ab", "cd", {"d": 3}, {"up.py": {1: False}, "down.py": {1: True, 2: True, 3: True}})
    head = posted("c", "abd", {"d": 1}, {"up.py": {1: True}, "down.py": {1: True, 2: False, 3: False}})
    text = page(server, f"/compare?base={base}&head={head}").text
    worse, _, rest = text.partition("What got worse")[2].partition("What got better")
    better, _, figures = rest.partition("All figures")
    for part, words in (
        (worse, ["Newly failing: 1 c", "Line coverage: 75.0 % → 50.0 %", "down.py: 100.0 % → 33.3 %"]),
        (better, ["Fixed: 2 a b", "Pass rate: 50.0 % → 75.0 %", "up.py: 0.0 % → 100.0 %", "faster d : 3.0 s → 1.0 s"]),
        (figures, ["Still failing: 0", "Coverage by file", "Duration by suite"]),
    ):
        assert [text for text in words if text not in part] == [], part
    same = page(server, f"/compare?base={head}&head={head}").text
    assert "What got worse Nothing. What got better Nothing." in same


def test_a_comparison_begins_with_five_tiles(server: Server, project: Project) -> None:
    def posted(seconds: float, *fails: str) -> int:
        cases = "".join(
            f"<testcase name='{name}'>{'<failure/>' if name in fails else ''}</testcase>" for name in "abcd"
        )
        report = f"<testsuite name='s' time='{seconds}'>{cases}</testsuite>"
        return int(upload(server, ("project", project.name), ("junit", report))["runId"])

    base, head = posted(657, "a"), posted(660, "b", "c")
    tiles = page(server, f"/compare?base={base}&head={head}").text.partition("What got worse")[0]
    assert "Newly failing 2 Fixed 1 Pass rate 75.0 % → 50.0 % -25.0 points" in tiles
    assert f"Line coverage {NOTHING} Duration 10m 57s → 11m 0s +3.0 s" in tiles


@pytest.mark.parametrize(
    ("base", "head", "texts"),
    [(0, 0, ("0 ms", "0 ms")), (900, 1000, ("900 ms", "1.0 s")), (657_000, 659_000, ("10m 57s", "10m 59s")),
     (657_100, 657_300, ("657.1 s", "657.3 s")), (9_010, 9_020, ("9,010 ms", "9,020 ms"))],
)  # fmt: skip
def test_durations_stand_in_a_unit_in_which_they_differ(base: int, head: int, texts: tuple[str, str]) -> None:
    assert took_apart(base, head) == texts


def test_compare_page_without_two_runs_offers_the_readable_runs(server: Server, project: Project) -> None:
    own = [records.create_run(project, {"a": PASSED}, branch="fresh").id for _ in range(2)]
    hidden = records.create_run(records.create_project("hidden from all", visibility="PRIVATE"), {"a": PASSED})
    found = page(server, "/compare")
    assert {"base", "head"} <= set(found.all("name"))
    assert f"run {own[1]} of {project.name}, fresh" in found.text
    assert f"run {hidden.id} " not in found.text
    only = server.get(f"/compare?base={own[0]}").text
    assert only.count(f'<option value="{own[0]}" selected>') == 1
    assert f"of {project.name}," not in only
    assert server.get("/compare?base=x&head=1").status == 400
    assert server.get(f"/compare?head={hidden.id}").status in (302, 404)


def test_runs_of_two_projects_are_not_compared_and_the_page_reports_it(server: Server, project: Project) -> None:
    own = records.create_run(project, {"a": PASSED}).id
    other = records.create_run(records.create_project("another one"), {"a": PASSED}).id
    answer = server.get(f"/compare?base={own}&head={other}", Accept="text/html")
    assert answer.status == 400
    assert f"only run {own} is one of {project.name}" in answer.text
    assert f'<option value="{own}" selected>' in answer.text


@pytest.mark.parametrize(
    "path", ["/projects/x", "/projects/-1", "/runs/1x", "/projects/1/nothing", f"/runs/{'9' * 19}"]
)
def test_unknown_page_is_404(server: Server, path: str) -> None:
    assert server.get(path, Accept="text/html").status == 404


# Safety


def test_no_text_of_a_report_becomes_markup(server: Server, admin: User) -> None:
    project = records.create_project(EVIL, repo_url=f"https://example.com/{EVIL}")
    run = records.create_run(
        project, {f"{EVIL.replace(' ', '')} {EVIL.replace(' ', '')}": FAILED}, branch=EVIL, flag=EVIL, commit_sha=EVIL,
        build_name=EVIL, build_url=f"https://example.com/{EVIL}", ci_provider=EVIL, base_branch=EVIL,
    )  # fmt: skip
    records.create_run(project, {f"{EVIL.replace(' ', '')} {EVIL.replace(' ', '')}": PASSED}, commit_sha=EVIL)
    Failure.update(type=EVIL, message=EVIL, stack=EVIL).execute()
    Output.update(out=EVIL, err=EVIL).execute()
    Suite.update(name=EVIL).where(Suite.run_id == run.id).execute()
    Mark.create(
        project=project, test=Test.get(Test.project == project), status="QUARANTINED", note=EVIL,
        created_at=NOW,
    )  # fmt: skip
    session = records.cookie(admin, server)
    name = urlencode({"className": EVIL.replace(" ", ""), "name": EVIL.replace(" ", "")})
    for path in ("/projects", f"/projects/{project.id}", f"/runs/{run.id}", f"/projects/{project.id}/settings",
                 f"/compare?base={run.id}&head={run.id}", f"/projects/{project.id}/test?{name}"):  # fmt: skip
        found = page(server, path, session)
        assert "alert(1)" in found.text
        assert all((facts.get("src") or "").startswith("/badge/") for tag, facts in found.tags if tag == "img")


@pytest.mark.parametrize(
    "url",
    ["javascript:alert(1)", " javascript:alert(1)", "JaVaScRiPt:alert(1)", "data:text/html,x", "//evil.example/x"],
)
def test_only_http_addresses_become_links(server: Server, url: str) -> None:
    project = records.create_project(f"link {url}", repo_url=url)
    run = records.create_run(project, build_url=url)
    for path in (f"/projects/{project.id}", f"/runs/{run.id}"):
        found = page(server, path)
        assert url.strip() in found.text
        assert not [link for link in found.all("href") if "alert" in link or "evil" in link or link.startswith("data:")]


def test_a_build_is_linked(server: Server, project: Project) -> None:
    run = records.create_run(project, build_url="https://ci.example/1?a=1&b=2", build_name="number one")
    found = page(server, f"/runs/{run.id}")
    assert "https://ci.example/1?a=1&b=2" in found.all("href")
    assert "number one" in found.text


def test_forms_are_shown_only_with_permission(server: Server, project: Project) -> None:
    run = records.create_run(project, {"c.A a": FAILED})
    writer, reader = records.create_user("form-writer"), records.create_user("form-reader")
    records.add_member(project, writer, "WRITE")
    records.add_member(project, reader, "READ")

    def actions(headers: dict[str, str], path: str) -> set[str]:
        shown = set(page(server, path, headers).all("action"))
        return shown - {"/logout", f"/projects/{project.id}/test"}  # the latter filters the history of a test

    test = f"/projects/{project.id}/test?className=c.A&name=a"
    for headers in ({}, records.cookie(reader, server)):
        assert f"/runs/{run.id}/delete" not in actions(headers, f"/runs/{run.id}")
        assert not actions(headers, test)
    session = records.cookie(writer, server)
    assert f"/runs/{run.id}/delete" in actions(session, f"/runs/{run.id}")
    assert f"/projects/{project.id}/flaky/status" in actions(session, test)
    assert actions(session, f"/projects/{project.id}/settings") == {f"/projects/{project.id}/settings"}


# Changing


def change(server: Server, user: User, path: str, action: str, **fields: str) -> Answer:
    """Opens a page in a browser of `user` and sends one of its forms, with these fields."""
    session = records.cookie(user, server)
    opened = server.ask("GET", path, headers=session)
    assert opened.status == 200, opened
    document = Document(opened.text)
    assert action in document.all("action"), document.all("action")
    xsrf = re.findall(r'name="_xsrf" value="([^"]*)"', opened.text)[0]
    cookie = opened.headers["Set-Cookie"].partition(";")[0]
    return server.ask(
        "POST",
        action,
        urlencode({**fields, "_xsrf": unescape(xsrf)}).encode(),
        {
            "Cookie": f"{session['Cookie']}; {cookie}",
            "Content-Type": "application/x-www-form-urlencoded",
            "Origin": f"http://127.0.0.1:{server.port}",
            "Sec-Fetch-Site": "same-origin",
        },
    )


def change_settings(server: Server, user: User, project: Project, **fields: str) -> Answer:
    path = f"/projects/{project.id}/settings"
    return change(server, user, path, path, **fields)


def test_settings_override_the_global_ones_and_blank_restores_those(
    server: Server, project: Project, admin: User
) -> None:
    records.create_run(project, branch="develop", coverage=(9, 1))
    run = records.create_run(project, {"c.A a": FAILED}, coverage=(1, 1), branch="x")
    answer = change_settings(
        server, admin, project, base_branch=" develop ", min_line_coverage="55.5", max_coverage_drop_pct="0",
        fail_on_new_failures="false", repo_url="https://example.com/r",
    )  # fmt: skip
    assert (answer.status, answer.headers["Location"]) == (303, f"/projects/{project.id}/settings")
    found = server.get(f"/api/v1/projects/{project.id}").json
    assert found["repoUrl"] == "https://example.com/r"
    assert found["qualityGate"] == {
        "baseBranch": "develop", "minLineCoverage": 55.5, "maxCoverageDropPct": 0, "failOnNewFailures": False,
        "minPatchCoverage": None, "minPatchLines": 0, "failOnNoTests": False, "failOnMissingCoverage": False,
        "aggregateFlags": True, "carryForwardFlags": [], "carryForwardMaxAge": 30 * 86_400,
        "requiredFlags": [], "maxTestDropPct": None, "failOnAnyFailure": False,
        "perfMaxLatencyIncreasePct": None, "perfMaxThroughputDropPct": None, "perfMaxErrorPct": None,
    }  # fmt: skip
    verdict = server.get(f"/api/v1/runs/{run.id}/quality-gate").json
    assert [(rule["name"], rule["passed"]) for rule in verdict["rules"]] == [
        ("min-coverage", False), ("coverage-drop", False)
    ]  # fmt: skip
    silence = {"required_flags": "unit, ui", "max_test_drop_pct": "5", "fail_on_any_failure": "true"}
    assert change_settings(server, admin, project, min_line_coverage="", **silence).status == 303
    found = server.get(f"/api/v1/projects/{project.id}").json["qualityGate"]
    assert (found["minLineCoverage"], found["baseBranch"]) == (None, "develop")
    assert [found[name] for name in ("requiredFlags", "maxTestDropPct", "failOnAnyFailure")] == [
        ["unit", "ui"],
        5,
        True,
    ]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("min_line_coverage", "x"),
        ("min_line_coverage", "101"),
        ("min_line_coverage", "-1"),
        ("min_line_coverage", "nan"),
        ("max_coverage_drop_pct", "1e3"),
        ("fail_on_new_failures", "maybe"),
        ("fail_on_any_failure", "1"),
        ("max_test_drop_pct", "101"),
        ("required_flags", "a, b\nc"),
        ("repo_url", "javascript:alert(1)"),
        ("repo_url", "https://"),
        ("base_branch", "a\nb"),
        ("base_branch", "b" * 256),
    ],
)
def test_invalid_setting_is_400_and_names_the_field(server: Server, admin: User, field: str, text: str) -> None:
    project = records.ensure_project("strict")
    answer = change_settings(
        server, admin, project, **{field: text, "base_branch" if field != "base_branch" else "x": "kept"}
    )
    assert answer.status == 400
    assert field in Document(answer.text).text
    assert server.get(f"/api/v1/projects/{project.id}").json["qualityGate"]["baseBranch"] == "main"


def test_an_owner_sets_the_other_rules_and_quarantine_by_a_form(server: Server, project: Project) -> None:
    owner, writer = records.create_user("ruler"), records.create_user("scribe")
    records.add_member(project, owner, "OWNER")
    records.add_member(project, writer, "WRITE")
    settings, rules = (f"/projects/{project.id}/{last}" for last in ("settings", "rules"))
    typed = {"quarantine_after_flaky": "3", "quarantine_within": "36h", "quarantine_expires": "1d",
             "quarantine_max_pct": "2.5", "min_patch_lines": "7", "carry_forward_flags": "unit, ui"}  # fmt: skip
    assert change(server, owner, settings, rules, **typed, aggregate_flags="false").status == 303
    gate = server.get(f"/api/v1/projects/{project.id}").json["qualityGate"]
    assert [gate[name] for name in ("minPatchLines", "carryForwardFlags", "aggregateFlags")] == [
        7,
        ["unit", "ui"],
        False,
    ]
    stored = Project.get_by_id(project.id)
    assert (stored.quarantine_after_flaky, stored.quarantine_within, stored.quarantine_expires) == (3, 129_600, 86_400)
    fields = [facts for tag, facts in page(server, settings, records.cookie(owner, server)).tags if tag == "input"]
    assert {str(facts["name"]): facts.get("value") for facts in fields if facts.get("name") in typed} == typed
    assert change(server, owner, settings, rules, quarantine_within="").status == 303
    assert Project.get_by_id(project.id).quarantine_within is None
    for name, text in {
        "quarantine_expires": "soon",
        "quarantine_within": "59s",
        "quarantine_after_flaky": "1.5",
    }.items():
        refused = change(server, owner, settings, rules, min_patch_lines="8", **{name: text})
        assert refused.status == 400
        assert name in Document(refused.text).text
    assert Project.get_by_id(project.id).min_patch_lines == 7
    assert rules not in page(server, settings, records.cookie(writer, server)).all("action")


def test_each_setting_is_in_one_form() -> None:
    names = [*FOR_WRITERS, *FOR_OWNERS, *FORGE]
    assert sorted(names) == sorted(declared.name for declared in inputs(ProjectSettings))


def test_change_of_visibility_applies_at_once(server: Server, project: Project) -> None:
    owner = records.create_user("shy")
    records.add_member(project, owner, "OWNER")
    settings = f"/projects/{project.id}/settings"
    path = f"/projects/{project.id}/visibility"
    assert change(server, owner, settings, path, visibility="PRIVATE").status == 303
    assert server.get(f"/api/v1/projects/{project.id}").status == 404
    assert change(server, owner, settings, path, visibility="SECRET").status == 400
    assert change(server, owner, settings, path, visibility="PUBLIC").status == 303
    assert server.get(f"/api/v1/projects/{project.id}").status == 200


def members(project: Project) -> dict[str, Any]:
    return {user.username: role for user, role in permissions.members_of(project.id)}


def test_members_are_added_changed_and_removed(server: Server, project: Project) -> None:
    owner, other = records.create_user("lead"), records.create_user("junior")
    records.add_member(project, owner, "OWNER")
    settings = f"/projects/{project.id}/settings"
    add = f"/projects/{project.id}/members"
    for role in ("READ", "WRITE", "OWNER", "READ"):
        assert change(server, owner, settings, add, username="junior", role=role).status == 303
        assert members(project) == {"lead": "OWNER", "junior": role}
    assert change(server, owner, settings, add, username="nobody", role="READ").status == 400
    assert change(server, owner, settings, add, username="junior", role="KING").status == 400
    assert change(server, owner, settings, f"{add}/{other.id}/remove").status == 303
    assert members(project) == {"lead": "OWNER"}


def test_member_is_removed_only_from_the_project_of_the_path(server: Server, project: Project) -> None:
    owner, other_owner = records.create_user("mine"), records.create_user("his")
    other = records.create_project("not mine")
    records.add_member(project, owner, "OWNER")
    records.add_member(other, other_owner, "OWNER")
    answer = server.ask("POST", f"/projects/{project.id}/members/{other_owner.id}/remove", b"", records.bearer(owner))
    assert answer.status == 404
    assert members(other) == {"his": "OWNER"}


def test_only_an_admin_can_remove_the_last_owner(server: Server, project: Project, admin: User) -> None:
    owner = records.create_user("last")
    records.add_member(project, owner, "OWNER")
    settings, add = f"/projects/{project.id}/settings", f"/projects/{project.id}/members"
    assert change(server, owner, settings, f"{add}/{owner.id}/remove").status == 409
    assert change(server, owner, settings, add, username="last", role="READ").status == 409
    assert members(project) == {"last": "OWNER"}
    assert change(server, admin, settings, f"{add}/{owner.id}/remove").status == 303
    assert members(project) == {}


def test_owner_who_leaves_a_project_is_redirected_to_its_page(server: Server, project: Project) -> None:
    one, other = records.create_user("leaver"), records.create_user("stayer")
    for user in (one, other):
        records.add_member(project, user, "OWNER")
    answer = change(
        server, one, f"/projects/{project.id}/settings", f"/projects/{project.id}/members/{one.id}/remove"
    )  # fmt: skip
    assert (answer.status, answer.headers["Location"]) == (303, f"/projects/{project.id}")


def test_a_test_is_quarantined_by_its_form(server: Server, project: Project, admin: User) -> None:
    run = records.create_run(project, {"c.A a": FAILED})
    path = f"/projects/{project.id}/test?className=c.A&name=a"
    action = f"/projects/{project.id}/flaky/status"
    fields = {"className": "c.A", "name": "a", "status": "QUARANTINED", "note": "it is late"}
    answer = change(server, admin, path, action, **fields)
    assert (answer.status, answer.headers["Location"]) == (303, f"/projects/{project.id}#flaky")
    assert server.get(f"/api/v1/runs/{run.id}/quality-gate").json["passed"]
    assert "it is late" in page(server, f"/projects/{project.id}").text


@pytest.mark.parametrize("prefix", ["", "/tracker"])
def test_a_run_is_deleted_by_its_form(server: Server, admin: User, prefix: str) -> None:
    project = records.ensure_project("deleting")
    run = records.create_run(project)
    answer = change(server, admin, f"{prefix}/runs/{run.id}", f"{prefix}/runs/{run.id}/delete")
    assert (answer.status, answer.headers["Location"]) == (303, f"{prefix}/projects/{project.id}")
    assert not Run.select().where(Run.id == run.id).count()


def test_form_with_a_bearer_token_needs_no_xsrf_field(server: Server, project: Project, admin: User) -> None:
    answer = server.ask(
        "POST", f"/projects/{project.id}/settings", b"base_branch=trunk",
        {**records.bearer(admin), "Content-Type": "application/x-www-form-urlencoded"},
    )  # fmt: skip
    assert answer.status == 303
    assert server.get(f"/api/v1/projects/{project.id}").json["qualityGate"]["baseBranch"] == "trunk"


def test_the_coverage_of_a_run_is_a_page_of_its_own(server: Server) -> None:
    report = jacoco({"a.py": {1: True, 2: False}, "b.py": {1: True}})
    answer = upload(server, ("project", "covered"), ("junit", junit(1)), ("jacoco", report))
    page = server.get(f"/runs/{answer['runId']}/coverage")
    assert page.status == 200
    assert page.text.count("<rect") >= 4
    for text in ("66.6 %", "a.py", "50.0 %"):
        assert text in page.text
    assert server.get(f"/api/v1/runs/{answer['runId']}/coverage").status == 400
    assert server.get("/runs/99999/coverage").status == 302  # to the login
