"""Owners of tests (CODEOWNERS, source files, rules), and since when a test fails."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
import records
from conftest import Answer, Server
from records import ERROR, FAILED, PASSED, SKIPPED
from uploads import body, part, send, upload

from models.errors import Invalid
from models.tracker import queries
from models.tracker.failures.first_failures import first_failures
from models.tracker.files.repository_paths import PathIndex
from models.tracker.forges import codeowners, owners
from models.tracker.forges.forge_links import compare_url
from models.tracker.tables import reports

pytest_plugins = ["shared_server"]

API = "/api/v1"


# CODEOWNERS


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("*", ["a/b.py"], []),
        ("*.js", ["a/b.js", "c.js"], ["a/b.jsx"]),
        ("/build/logs/", ["build/logs/x/y"], ["a/build/logs/x", "build/logs"]),
        ("docs/*", ["docs/a.md"], ["docs/a/b.md", "x/docs/a.md"]),
        ("apps/", ["x/apps/y/z"], ["apps"]),
        ("/apps/github", ["apps/github", "apps/github/x"], ["x/apps/github"]),
        ("docs", ["x/docs/y", "docs"], ["xdocs"]),
        ("**/logs", ["build/logs/x", "logs"], ["xlogs"]),
        ("a/**/b", ["a/b", "a/x/y/b"], ["a/x/bc", "x/a/b"]),
        ("a/**", ["a/x/y"], ["a", "b/a/x"]),
        ("/*.md", ["README.md"], ["a/README.md"]),
        ("te?t.py", ["x/test.py"], ["x/te/t.py"]),
        ("foo*bar*.py", ["foobar1.py"], ["foo1.py"]),
        ("**/a/**/b/*.py", ["q/a/z/b/b/f.py", "a/b/f.py"], ["b/a/f.py"]),
        ("config/[env]/x", ["config/[env]/x"], ["config/e/x"]),
        (r"a\ b", ["a b/c"], ["a"]),
        (r"\#x", ["#x"], ["x"]),
        (r"f\*o", ["f*o"], ["foo"]),
        (r"f\?o*", ["f?o", "f?o1"], ["fxo"]),
        (r"a\\b*", ["a\\b1"], ["ab"]),
        ("/**", ["a", "a/b"], []),
        ("/", ["a"], []),
    ],
)
def test_a_pattern_matches_files(pattern: str, matching: list[str], other: list[str]) -> None:
    rules = codeowners.parse(f"{pattern} @o")
    assert [file for file in matching + other if rules.of(file)] == matching


def test_the_last_line_wins_in_each_section() -> None:
    rules = codeowners.parse(
        "* @all\n/free\n[Backend][2] @back\nsrc/\nsrc/special @special me@example.com # comment\n!src/vendored/\n"
        "^[Docs] @docs\n*.md\n[backend]\nlib/ @lib\n*.secret nobody-valid\n"
    )
    expected = {
        "a": ("@all",),
        "free": (),
        "src/a": ("@all", "@back"),
        "src/special/x": ("@all", "@special", "me@example.com"),
        "src/vendored/x": ("@all",),
        "src/a.md": ("@all", "@back", "@docs"),
        "lib/a": ("@all", "@lib"),
        "x.secret": ("@all",),
    }
    assert {file: rules.of(file) for file in expected} == expected


def test_a_path_in_a_file_with_sections_is_matched_in_any_folder_unless_it_begins_with_a_slash() -> None:
    text = "docs/api/ @api\n/lib/*.py @lib\nx/*.md @md\n"
    files = ["docs/api/a", "web/docs/api/a", "lib/a.py", "web/lib/a.py", "web/x/a.md", "web/x/y/a.md"]
    assert [file for file in files if codeowners.parse(text).of(file)] == ["docs/api/a", "lib/a.py"]
    gitlab = codeowners.parse(f"{text}[Other]\nnothing @o\n")
    assert [file for file in files if gitlab.of(file)] == ["docs/api/a", "web/docs/api/a", "lib/a.py", "web/x/a.md"]


def test_pathological_patterns_are_matched_quickly() -> None:
    begin = time.process_time()
    for pattern in ("*a" * 500, "**/a/" * 500 + "b", "a*" * 400 + "b", "/".join(["*a*"] * 100), "?" * 500):
        rules = codeowners.parse(f"{pattern} @o")
        for file in ("a" * 1000, "a/" * 300, "aa/" * 300 + "c"):
            rules.of(file)
    assert time.process_time() - begin < 2


# The files of tests


@pytest.mark.parametrize(
    ("class_name", "file"),
    [
        ("com.example.ShopTest", "app/src/test/java/com/example/ShopTest.java"),
        ("com.example.ShopTest$Inner", "app/src/test/java/com/example/ShopTest.java"),
        ("tests.test_shop.TestCart", "tests/test_shop.py"),
        ("tests.test_shop", "tests/test_shop.py"),
        ("web/cart.test.ts", "web/cart.test.ts"),
        ("src/web/cart.test.ts", "web/cart.test.ts"),
        ("CartSpec", "web/CartSpec.js"),
        ("Twice", None),
        ("com.other.ShopTest", None),
        ("words of a title", None),
        ("", None),
    ],
)
def test_class_is_mapped_to_its_only_matching_file(class_name: str, file: str | None) -> None:
    index = PathIndex(
        ["app/src/test/java/com/example/ShopTest.java", "tests/test_shop.py", "web/cart.test.ts", "web/CartSpec.js",
         "a/Twice.java", "b/Twice.java"]
    )  # fmt: skip
    assert index.of_class(class_name) == file


def test_the_file_of_a_report_is_found_in_the_repository() -> None:
    index = PathIndex(["src/a.py", "x/b.py", "y/b.py"])
    assert index.file_of("/build/src/a.py", "A") == "src/a.py"
    assert index.file_of("b.py", "A") == "b.py"
    assert index.file_of(None, "src.a") == "src/a.py"


# Owners of a project


def put(server: Server, project: int, content: Any, **headers: str) -> Answer:
    path = f"{API}/projects/{project}/owners"
    if isinstance(content, str):
        return server.ask("PUT", path, content.encode(), headers={"Content-Type": "text/plain", **headers})
    return server.ask(
        "PUT", path, json.dumps(content).encode(), headers={"Content-Type": "application/json", **headers}
    )


RED = (
    "<testsuite name='s'><testcase classname='a.A' name='x' file='src/a.py'><failure/></testcase>"
    "<testcase classname='web.B' name='y'><failure/></testcase><testcase classname='c.C' name='z'><failure/></testcase>"
    "<testcase classname='a.A' name='moody' file='./src/a.py'><flakyFailure/></testcase></testsuite>"
)


def test_owners_are_listed_with_their_failing_and_flaky_tests(
    server: Server, project: str, admin_header: dict[str, str]
) -> None:
    run = upload(server, ("project", project), ("branch", "main"), ("junit", RED))
    answer = put(server, run["projectId"], "src/ @a @b\n", **admin_header)
    assert answer.status == 200
    rules = [{"pattern": "WEB.*", "owner": "@web"}]
    answer = put(server, run["projectId"], {"codeowners": "src/ @a @b\n", "rules": rules}, **admin_header)
    assert (answer.status, answer.json["rules"], answer.json["codeowners"]) == (200, rules, "src/ @a @b\n")
    assert answer.json["items"] == [
        {"owner": "@a", "failing": 1, "flaky": 1},
        {"owner": "@b", "failing": 1, "flaky": 1},
        {"owner": "@web", "failing": 1, "flaky": 0},
        {"owner": None, "failing": 1, "flaky": 0},
    ]
    assert server.get(f"{API}/projects/{run['projectId']}/owners").json == answer.json
    kept = put(server, run["projectId"], "* @all", **admin_header).json
    assert (kept["rules"], kept["items"][0]) == (rules, {"owner": "@all", "failing": 1, "flaky": 1})
    assert put(server, run["projectId"], "* @all").status == 401
    assert put(server, run["projectId"], "#" * (256 * 1024 + 1), **admin_header).status == 413
    assert put(server, 999_999, "* @all", **admin_header).status == 404
    assert put(server, run["projectId"], "", **admin_header).status == 400


def test_flaky_tests_are_counted_with_one_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def queries_for(tests: int) -> int:
        name = f"of {tests}"
        with records.open_store(tmp_path / "tracker.db"):
            project = records.create_project(name)
            for status in (PASSED, FAILED):
                records.create_run(project, {f"A {number}": status for number in range(tests)}, commit_sha="c")
            with monkeypatch.context() as patched:
                count, execute = itertools.count(), reports.obj.execute_sql
                patched.setattr(reports.obj, "execute_sql", lambda *values: (next(count), execute(*values))[1])
                (row,) = owners.counts(project, owners.of_project(project.id), "main")
            assert row.flaky == tests
        return next(count)

    assert queries_for(30) == queries_for(2)


@pytest.mark.parametrize("rules", [{}, [{}], [{"pattern": "", "owner": "@a"}], [{"pattern": "a", "owner": 1}]])
def test_rules_that_are_not_valid_are_refused(rules: Any) -> None:
    with pytest.raises(Invalid, match="rules"):
        owners.read_rules(rules)


@pytest.mark.parametrize(
    ("facts", "is_trusted", "warning"),
    [
        ({"branch": "main"}, True, None),
        ({"branch": "main"}, False, "WRITE"),
        ({"branch": "side"}, True, "base branch main"),
        ({"branch": "main", "prNumber": "3"}, True, "base branch main"),
    ],
    ids=["trusted", "anonymous", "another branch", "a pull request"],
)
def test_codeowners_are_taken_from_trusted_uploads_of_the_base_branch(
    server: Server,
    project: str,
    admin_header: dict[str, str],
    facts: dict[str, str],
    is_trusted: bool,
    warning: str | None,
) -> None:
    paths = "repo/src/a.py\nrepo/web/B.js\n"
    files = [
        part("junit", RED, "r.xml"),
        part("codeowners", "repo/ @repo", "C"),
        part("paths", paths, "p"),
    ]
    texts = [part(name, text) for name, text in {"project": project, **facts}.items()]
    answer = send(server, body([*texts, *files]), **(admin_header if is_trusted else {}))
    assert answer.status == 201
    assert (not answer.json["warnings"]) if warning is None else (warning in answer.json["warnings"][0])
    rows = server.get(f"{API}/runs/{answer.json['runId']}/tests?owner=@repo").json["items"]
    assert [row["name"] for row in rows] == (["x", "y", "moody"] if warning is None else [])


# First failures


def test_failure_series_begins_at_its_first_failing_run(server: Server, project: str) -> None:
    with records.store_of(server):
        owner = records.create_project(project, repo_url="git@github.com:o/r.git")
        statuses = (FAILED, PASSED, SKIPPED, FAILED, ERROR)
        runs = [
            records.create_run(owner, {"A a": status, "A b": PASSED}, commit_sha=f"c{n}")
            for n, status in enumerate(statuses)
        ]
        records.create_run(owner, {"A a": PASSED}, branch="side", created_at=runs[3].created_at + 1)
        records.create_run(owner, {"A a": PASSED}, flag="other", created_at=runs[3].created_at + 2)
        found = first_failures(runs[-1], [queries.test_id(owner.id, "A", "a")])
    (series,) = found.values()
    assert (series.first_failing.id, series.last_passed.id if series.last_passed else None) == (runs[3].id, runs[1].id)


def test_the_history_of_a_test_reports_since_when_it_fails(server: Server, project: str) -> None:
    with records.store_of(server):
        owner = records.create_project(project, repo_url="https://gitlab.example/g/s/r.git")
        good, bad = (records.create_run(owner, {"A a": status}, commit_sha=status.value) for status in (PASSED, FAILED))
    path = f"{API}/projects/{owner.id}/tests?className=A&name=a"
    history = server.get(path).json
    assert (history["firstFailing"]["runId"], history["firstFailing"]["commit"]) == (bad.id, "FAILED")
    assert (history["lastPassed"]["runId"], history["owner"]) == (good.id, None)
    assert history["compareUrl"] == "https://gitlab.example/g/s/r/-/compare/PASSED...FAILED"
    page = server.get(f"/projects/{owner.id}/test?className=A&name=a", Accept="text/html").text
    assert "Failing since" in page
    assert history["compareUrl"] in page
    with records.store_of(server):
        records.create_run(owner, {"A a": PASSED})
    history = server.get(path).json
    assert (history["firstFailing"], history["lastPassed"], history["compareUrl"]) == (None, None, None)


@pytest.mark.parametrize(
    ("repository", "url"),
    [
        ("https://github.com/o/r.git", "https://github.com/o/r/compare/a...b"),
        ("git@github.com:o/r.git", "https://github.com/o/r/compare/a...b"),
        ("ssh://git@git.example:2222/o/r", "https://git.example/o/r/compare/a...b"),
        ("https://gitlab.com/g/s/r", "https://gitlab.com/g/s/r/-/compare/a...b"),
        ("git@bitbucket.org:o/r.git", "https://bitbucket.org/o/r/branches/compare/b%0Da"),
        ("http://forge.example:3000/o/r/", "http://forge.example:3000/o/r/compare/a...b"),
        ("javascript:alert(1)//x", None),
        ("file:///srv/r", None),
        ("/srv/r", None),
        (None, None),
    ],
)
def test_compare_url_links_two_commits_at_the_forge(repository: str | None, url: str | None) -> None:
    assert compare_url(repository, "a", "b") == url
