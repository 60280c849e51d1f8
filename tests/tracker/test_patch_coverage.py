"""Coverage of changed lines: diffs, matching of paths, the rule, and equality with diff-cover."""

from __future__ import annotations

import codecs
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import records
from conftest import Serve, Server
from http_checks import check_problem
from requirements import require
from uploads import jacoco, junit, post, upload

from models.errors import Invalid
from models.tracker.coverage import diff as diff_module
from models.tracker.coverage import patch
from models.tracker.coverage.diff import read_diff, read_paths
from models.tracker.coverage.patch import Matcher
from models.tracker.tables import reports
from supervisor.cli.changed_lines import ranges_of

pytest_plugins = ["shared_server"]

API = "/api/v1"
JUNIT = ("junit", junit(1))
UNKNOWN = "no line data for 1 changed files"
ONE_LINE = ("jacoco", jacoco({"A.java": {1: True}}))


def ranges(files: dict[str, list[list[int]]]) -> str:
    return json.dumps({"base": "b", "head": "h", "files": files})


def measure(server: Server, project: str, *parts: tuple[str, str | bytes]) -> tuple[Any, Any]:
    """Uploads a run; returns the response and the coverage of its changed lines."""
    run = upload(server, ("project", project), JUNIT, *parts)
    answer = server.get(f"{API}/runs/{run['runId']}/patch")
    assert answer.status == 200, answer
    return run, answer.json


# Diffs

DELETED_LINES = (
    "--- a/y\n+++ /dev/null\n@@ -1,2 +0,0 @@\n--- a/z\n---\n"
    "Index: b/x.py\n--- b/x.py\t(revision 1)\n+++ b/x.py\t(revision 2)\n@@ -0,0 +1 @@\n+a\n"
)
COLOURED = (
    "\x1b[1m--- a/x.py\x1b[m\n\x1b[1m+++ b/x.py\x1b[m\n\x1b[36m@@ -1 +1 @@\x1b[m\n\x1b[31m-a\x1b[m\n"
    "\x1b[32m+\x1b[m\x1b[32mb\x1b[m\x1b[41m\r\x1b[m\n"
)
QUOTED = '--- a/x\n+++ "b/\\303\\244 \\"q\\".py"\n@@ -0,0 +1 @@\n+a\n\\ No newline at end of file\n'


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("", {}),
        ("--- a/x.py\n+++ b/x.py\n@@ -1 +1,2 @@\n-a\n+b\n+c\n@@ -9,0 +11 @@\n+d\n", {"x.py": [(1, 2), (11, 11)]}),
        ("--- a/x.py\n+++ b/x.py\n@@ -1,3 +1,4 @@\n a\n+b\n c\n+d\n", {"x.py": [(2, 2), (4, 4)]}),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n---- a\n++++ b\n", {"x": [(1, 1)]}),
        ("--- a/x.py\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a\n-b\n", {}),
        ("--- a/x.py\r\n+++ b/x.py\r\n@@ -1 +1 @@\r\n-a\r\n+b\r\n", {"x.py": [(1, 1)]}),
        (QUOTED, {'ä "q".py': [(1, 1)]}),
        (DELETED_LINES, {"b/x.py": [(1, 1)]}),
        (COLOURED, {"x.py": [(1, 1)]}),
        ("--- /dev/null\n+++ b/a b.py\t\n@@ -0,0 +1,2 @@\n+a\n+b\n", {"a b.py": [(1, 2)]}),
        (ranges({"x.py": [[3, 7], [9, 8]]}), {"x.py": [(3, 7)]}),
    ],
    ids=["empty", "no context", "context", "like a header", "deleted", "CRLF", "quoted", "deleted header",
         "coloured", "spaces", "ranges"],
)  # fmt: skip
def test_the_changed_lines_of_a_diff(text: str, files: dict[str, Any]) -> None:
    marked = codecs.BOM_UTF8 + text.encode(), codecs.BOM_UTF16_LE + text.encode("utf-16-le")
    for data in (text.encode(), *marked):
        assert read_diff(data).files == files


HUNK = "@@ -1 +1 @@\n-a\n+b\n"


@pytest.mark.parametrize(
    ("head", "path"),
    [
        ("diff --git a/b/x.py b/b/x.py\n--- a/b/x.py\n+++ b/b/x.py\n", "b/x.py"),
        ("diff --git a/x y/b.py b/x y/b.py\n--- a/x y/b.py\t\n+++ b/x y/b.py\t\n", "x y/b.py"),
        ("diff --git i/x.py w/x.py\n--- i/x.py\n+++ w/x.py\n", "x.py"),
        ("diff --git c/x.py i/x.py\n--- /dev/null\n+++ i/x.py\n", "x.py"),
        ("diff --git b/x.py b/x.py\n--- b/x.py\n+++ b/x.py\n", "b/x.py"),
        ("diff --git src/x.py src/x.py\n--- src/x.py\n+++ src/x.py\n", "src/x.py"),
        ("diff --git w/x.py w/x.py\n--- w/x.py\n+++ w/x.py\n", "w/x.py"),
        ('diff --git "a/\\303\\274.py" "b/\\303\\274.py"\n--- a/x\n+++ "b/\\303\\274.py"\n', "ü.py"),
        ("rename from x.py\nrename to y.py\n--- a/x.py\n+++ b/y.py\n", "y.py"),
        ("diff -u old/x.py new/x.py\n--- old/x.py\t2026-01-01\n+++ new/x.py\t2026-01-02\n", "new/x.py"),
        ("Index: b/x.py\n===\n--- b/x.py\t(revision 1)\n+++ b/x.py\t(working copy)\n", "b/x.py"),
        ("diff -r 12 -r 34 b/x.py\n--- a/b/x.py\tThu Jan 01\n+++ b/b/x.py\tThu Jan 01\n", "b/x.py"),
        ("\x1b[1mdiff --git a/x.py b/x.py\x1b[m\n\x1b[1m--- a/x.py\x1b[m\n\x1b[1m+++ b/x.py\x1b[m\n", "x.py"),
    ],
)
def test_the_path_of_a_changed_file_is_without_the_prefixes_of_git(head: str, path: str) -> None:
    assert read_diff((head + HUNK).encode()).files == {path: [(1, 1)]}


@pytest.mark.parametrize(
    "listing",
    [
        'src/a b.py\nä "q".py\n'.encode(),
        b'src/a b.py\r\n"\\303\\244 \\"q\\".py"\r\n',
        'src/a b.py\0ä "q".py\0'.encode(),
        codecs.BOM_UTF16_LE + 'src/a b.py\r\nä "q".py\r\n'.encode("utf-16-le"),
    ],
    ids=["plain", "quoted by git ls-files", "git ls-files -z", "PowerShell"],
)
def test_the_files_of_a_repository_as_git_lists_them(listing: bytes) -> None:
    assert read_paths(listing) == ["src/a b.py", 'ä "q".py']


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "garbage",
        "[]",
        "\x1f\x8b\x08 gzip",
        '{"files":1}',
        '{"files":{"a":[[1]]}}',
        '{"files":{"a":[["1",2]]}}',
        '{"base":1}',
        json.dumps({"base": "x" * 2001}),
        '{"head":"a\\u0000"}',
        '{"base":"\\ud800"}',
        '{"files":{"a\\ud800.py":[[1,2]]}}',
    ],
)
def test_invalid_diff_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="diff"):
        read_diff(text.encode())


def test_a_diff_that_is_too_large_is_not_judged(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diff_module, "MAX_DIFF_RANGES", 2)
    assert read_diff(ranges({"a": [[1, 1], [3, 3], [5, 5]]}).encode()).problem == "the diff is too large"
    run, found = measure(server, "too large", ("diff", b"+" * (diff_module.MAX_DIFF_BYTES + 1)))
    assert (found["reason"], run["warnings"]) == ("the diff is too large", ["the diff is too large"])


@pytest.mark.parametrize("kind", ["cc", "combined"])
def test_a_combined_diff_of_a_merge_is_named_and_not_judged(server: Server, kind: str) -> None:
    diff = f"diff --{kind} A.java\nindex 1,2..3\n--- a/A.java\n+++ b/A.java\n@@@ -1,1 -1,1 +1,2 @@@\n  a\n++b\n"
    run, found = measure(server, f"combined {kind}", ONE_LINE, ("diff", diff))
    assert (found["reason"], run["warnings"]) == (diff_module.COMBINED, [diff_module.COMBINED])


def test_patches_of_several_commits_to_one_file_are_named_and_not_judged(server: Server) -> None:
    first = "From 1 Mon Sep 17 00:00:00 2001\n\ndiff --git a/A.java b/A.java\n--- a/A.java\n+++ b/A.java\n" + HUNK
    run, found = measure(server, "several", ONE_LINE, ("diff", first + "-- \n2.39.5\n\n" + first))
    assert (found["reason"], run["warnings"]) == (diff_module.SEVERAL, [diff_module.SEVERAL])
    assert read_diff((first + first.replace("A.java", "B.java")).encode()).files == {
        "A.java": [(1, 1)],
        "B.java": [(1, 1)],
    }


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("@@ -1,2 +1,2 @@\nline 1\n[-line 2-]{+line two+}\n", 4),
        ("@@ -1,2 +1,2 @@\n line 1\n~\n line\n-2\n+two\n~\n", 5),
        ("@@ -1,9 +1,9 @@\n a\n-b\ndiff --git a/y b/y\n--- a/y\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n", 6),
    ],
    ids=["--word-diff", "--word-diff=porcelain", "cut short"],
)
def test_a_diff_by_words_or_without_all_its_lines_is_named_and_not_judged(text: str, number: int) -> None:
    diff = read_diff(f"--- a/x.py\n+++ b/x.py\n{text}".encode())
    assert diff.files == {}
    assert (diff.problem or "").startswith(f"line {number} of the diff begins with neither a space, + nor -"), diff


def test_a_hunk_without_a_changed_line_is_named_and_not_judged() -> None:
    """As git diff --word-diff shows lines that are indented."""
    text = "--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n line 1\n  [-line 2-]{+line two+}\n"
    diff = read_diff(text.encode())
    assert diff.files == {}
    assert (diff.problem or "").startswith("the hunk that ends in line 5 of the diff changes no line"), diff


def test_a_coloured_combined_diff_is_named() -> None:
    assert read_diff(b"\x1b[1mdiff --cc A.java\x1b[m\n\x1b[1mindex 1,2..3\x1b[m\n").problem == diff_module.COMBINED


@pytest.mark.parametrize("name", ["diff", "paths", "codeowners"])
def test_facts_beyond_the_limit_of_a_file_do_not_cost_the_upload(serve: Serve, name: str) -> None:
    server = serve(tracker={"limits": {"file": "6M"}})
    text = "+++ b/x\n@@ -0,0 +1,9999999 @@\n" + "+aaaaaaaaaaaaaaa\n" * 500_000
    run = upload(server, ("project", "p"), ("branch", "main"), JUNIT, (name, text))
    assert len(run["warnings"]) == 1, run
    refused = post(server, ("project", "p"), ("junit", "x" * (6 * 1024**2 + 1)))  # the server reads no more of it
    assert check_problem(refused, 413, "/api/v1/ingest", False)["detail"].startswith("junit "), refused


# Paths


@pytest.mark.parametrize(
    ("path", "module", "paths", "found"),
    [
        ("src/a.py", None, [], "src/a.py"),
        ("/home/ci/checkout/src/a.py", None, ["src/a.py"], "src/a.py"),
        ("/home/ci/checkout/src/a.py", None, [], "src/a.py"),
        ("com/x/A.java", None, ["src/main/java/com/x/A.java"], "src/main/java/com/x/A.java"),
        ("com/x/A.java", None, ["one/com/x/A.java", "src/main/java/com/x/A.java"], None),
        ("com/x/A.java", "src", ["one/com/x/A.java", "src/main/java/com/x/A.java"], "src/main/java/com/x/A.java"),
        ("src\\a.py", None, [], "src/a.py"),
        ("lib/b.py", None, ["lib/b.py"], None),
    ],
    ids=["equal", "absolute", "absolute, alone", "package", "ambiguous", "module", "backslashes", "not changed"],
)
def test_coverage_path_matches_the_file_with_the_longest_common_suffix(
    path: str, module: str | None, paths: list[str], found: str | None
) -> None:
    changed = ["src/a.py", "src/main/java/com/x/A.java"]
    assert Matcher(changed, paths).match(path, module) == found


# API responses


def test_changed_lines_are_covered_missed_or_not_coverable(server: Server) -> None:
    report = jacoco({"A.java": {1: True, 2: False, 3: False, 5: True}, "B.java": {1: True}})
    diff = ranges({"src/com/x/A.java": [[2, 9]], "src/com/x/New.java": [[1, 1]], "README.md": [[1, 5]]})
    paths = "src/com/x/A.java\nsrc/com/x/B.java\nREADME.md\n"
    run, found = measure(server, "lines", ("jacoco", report), ("diff", diff), ("paths", paths))
    assert (found["covered"], found["missed"], found["unknownFiles"], found["reason"]) == (1, 2, 1, None)
    assert (found["baseCommit"], found["headCommit"]) == ("b", "h")
    assert [(file["path"], file["missedRanges"], file["state"]) for file in found["files"]] == [
        ("README.md", [], "NOT_COVERABLE"),
        ("src/com/x/A.java", [[2, 3]], "MEASURED"),
        ("src/com/x/New.java", [], "NO_LINE_DATA"),
    ]
    pct = 100 / 3
    assert run["patchCoveragePct"] == found["pct"] == pytest.approx(pct)
    assert server.get(f"{API}/runs/{run['runId']}").json["run"]["patchCoveragePct"] == pytest.approx(pct)


GO = "mode: set\nexample.com/m/pkg/a.go:3.10,8.2 2 1\nexample.com/m/pkg/a.go:10.10,14.3 3 0\n"
POINTS = "".join(
    f'<SequencePoint vc="{vc}" sl="{sl}" sc="1" el="{el}" ec="2"/>' for vc, sl, el in ((1, 3, 7), (0, 10, 14))
)
OPENCOVER = f"""<CoverageSession><Modules><Module><Files><File uid="1" fullPath="C:\\ci\\pkg\\a.go"/></Files><Classes>
    <Class><Methods><Method><FileRef uid="1"/><SequencePoints>{POINTS}</SequencePoints></Method></Methods></Class>
    </Classes></Module></Modules></CoverageSession>"""


@pytest.mark.parametrize("report", [GO, OPENCOVER], ids=["Go", "OpenCover"])
def test_a_changed_line_within_a_block_is_covered_as_the_block_is(server: Server, report: str) -> None:
    diff = ranges({"pkg/a.go": [[6, 6], [9, 9], [12, 13]]})
    run, found = measure(server, f"units {len(report)}", ("jacoco", report), ("diff", diff), ("paths", "pkg/a.go\n"))
    assert (found["covered"], found["missed"], found["files"][0]["missedRanges"]) == (1, 2, [[12, 13]])
    shown = server.get(
        f"{API}/runs/{run['runId']}/coverage?path={'C:/ci/' if report == OPENCOVER else 'example.com/m/'}pkg/a.go"
    )
    assert (shown.json["coveredRanges"], shown.json["missedRanges"]) == ([[3, 7]], [[10, 14]])


@pytest.mark.parametrize("paths", ["src/f.py\n" * 50_001, "x" * (16 * 1024 * 1024 + 1)])
def test_too_many_paths_are_ignored_with_a_warning(server: Server, paths: str) -> None:
    report = jacoco({"A.java": {1: True, 2: False}})
    diff = ranges({"com/x/A.java": [[1, 2]]})
    run, found = measure(server, f"paths {len(paths)}", ("jacoco", report), ("diff", diff), ("paths", paths))
    assert (found["covered"], found["missed"]) == (1, 1)
    assert [text for text in run["warnings"] if text.startswith("paths was ignored: it has more than 50000 lines")]


def test_the_pages_of_a_run_and_of_a_comparison_show_the_changed_lines(server: Server) -> None:
    report = jacoco({"A.java": {2: True, 3: False, 4: False, 6: False}})
    run, _ = measure(server, "on pages", ("jacoco", report), ("diff", ranges({"com/x/A.java": [[1, 9]]})))
    page = server.get(run["runPath"], Accept="text/html").text
    assert "Coverage of changed lines" in page
    assert "25.0 %, 1 of 4" in page
    assert "3\u20134, 6" in page
    compared = server.get(f"/compare?base={run['runId']}&head={run['runId']}", Accept="text/html").text
    assert "Changed lines covered" in compared


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([ONE_LINE], "no diff was uploaded"),
        ([("diff", ranges({"a.py": [[1, 2]]}))], "no line data for 1 changed files"),
        ([("diff", ranges({"a.py": [[1, 2]]})), ONE_LINE], "no coverable line changed"),
        ([("diff", ranges({"B.java": [[1, 2]]})), ONE_LINE], "no line data for 1 changed files"),
        ([("diff", ranges({"com/x/A.java": [[2, 3]]})), ONE_LINE], "no coverable line changed"),
    ],
    ids=["no diff", "no coverage", "another language", "no line data", "not coverable"],
)  # fmt: skip
def test_without_changed_lines_the_reason_is_given(server: Server, parts: list[Any], reason: str) -> None:
    run, found = measure(server, "reasons", *parts)
    assert (found["pct"], found["reason"], run["patchCoveragePct"]) == (None, reason, None)


def test_a_lost_coverage_job_is_not_taken_for_files_that_cannot_be_covered(serve: Serve) -> None:
    server = serve(tracker={"quality-gate": {"min-patch-coverage": 80, "fail-on-missing-coverage": True}})
    upload(server, ("project", "lost"), JUNIT, ONE_LINE, ("flag", "e2e"))
    diff = ("diff", ranges({"A.java": [[1, 2]], "B.java": [[1, 2]], "README.md": [[1, 2]]}))
    run, found = measure(server, "lost", diff, ("flag", "unit"), ("commit", "c"))
    assert [file["state"] for file in found["files"]] == ["NO_LINE_DATA", "NO_LINE_DATA", "NOT_COVERABLE"]
    assert (found["reason"], found["unknownFiles"]) == ("no line data for 2 changed files", 2)
    rules = server.get(f"{API}/gate?project=lost&commit=c").json["rules"]
    assert ("min-patch-coverage", False) in [(rule["name"], rule["passed"]) for rule in rules]
    with records.store_of(server):  # the last coverage of that language is older than 30 days
        reports.execute_sql("UPDATE covered_extension SET seen_at = seen_at - ?", (31 * 86_400 * records.SECOND,))
    _, found = measure(server, "lost", diff, ("jacoco", jacoco({"C.kt": {1: True}})), ("commit", "d"))
    assert {file["state"] for file in found["files"]} == {"NOT_COVERABLE"}
    assert found["reason"] == "no coverable line changed"
    assert run["patchCoveragePct"] is None


def test_changed_files_are_paginated(server: Server) -> None:
    run, _ = measure(server, "pages", ("diff", ranges({f"f{n}.py": [[1, 1]] for n in range(5)})))
    paths, cursor = [], ""
    while cursor is not None:
        page = server.get(f"{API}/runs/{run['runId']}/patch?limit=2&cursor={cursor}").json
        paths += [file["path"] for file in page["files"]]
        cursor = page["nextCursor"]
    assert paths == [f"f{n}.py" for n in range(5)]
    path = f"{API}/runs/{run['runId']}/patch"
    check_problem(server.get(f"{path}?cursor=x"), 400, path, has_timestamp=False)


def test_shards_and_flags_of_a_commit_are_merged(server: Server) -> None:
    diff = ranges({"com/x/A.java": [[1, 4]]})
    for flag, line in (("unit", 1), ("ui", 2)):
        report = jacoco({"A.java": {number: number == line for number in range(1, 5)}})
        texts = {"flag": flag, "commit": "united", "diff": diff}
        assert measure(server, "united", ("jacoco", report), *texts.items())[0]["patchCoveragePct"] == 25.0
    assert server.get(f"{API}/gate?project=united&commit=united").json["patchCoveragePct"] == 50.0


# The rule


@pytest.mark.parametrize(
    ("settings", "parts", "passed", "detail"),
    [
        ({}, ["diff"], False, "33.3% of 3 changed lines (minimum 80.0%)"),
        ({"min-patch-coverage": 33}, ["diff"], True, "33.3% of 3 changed lines (minimum 33.0%)"),
        ({"min-patch-lines": 10}, ["diff"], True, "3 changed lines, below 10"),
        ({"min-patch-lines": 10}, ["diff", "unknown"], True, f"3 changed lines, below 10; {UNKNOWN}"),
        ({"min-patch-lines": 10, "fail-on-missing-coverage": True}, ["diff", "unknown"], False,
         f"3 changed lines, below 10; {UNKNOWN}"),
        ({}, [], True, "no diff was uploaded"),
        ({"fail-on-missing-coverage": True}, [], False, "no diff was uploaded"),
    ],
    ids=["too little", "enough", "few lines", "few of more", "few of more, strict", "no diff", "silence"],
)  # fmt: skip
def test_min_patch_coverage_rule(
    serve: Serve, settings: dict[str, Any], parts: list[str], passed: bool, detail: str
) -> None:
    server = serve(tracker={"quality-gate": {"min-patch-coverage": 80, **settings}})
    report = jacoco({"A.java": {1: True, 2: False, 3: False}})
    changed = {"com/x/A.java": [[1, 9]]} | ({"com/x/B.java": [[1, 9]]} if "unknown" in parts else {})
    sent = [("jacoco", report), ("commit", "c")] + [("diff", ranges(changed))] * ("diff" in parts)
    measure(server, "rule", *sent)
    rules = server.get(f"{API}/gate?project=rule&commit=c").json["rules"]
    (rule,) = [rule for rule in rules if rule["name"] == "min-patch-coverage"]
    assert (rule["passed"], rule["detail"]) == (passed, detail)


# Comparison with diff-cover


def git(folder: Path, *arguments: str) -> str:
    require("git")
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


def changed_repository(folder: Path) -> str:
    """A repository whose last commit changes lines of two files and adds one; returns the diff."""
    (folder / "pkg").mkdir(parents=True)
    lines = [f"line {number}" for number in range(1, 31)]
    (folder / "pkg" / "a.py").write_text("\n".join(lines) + "\n")
    (folder / "pkg" / "b.py").write_text("\n".join(lines) + "\n")
    (folder / "pkg" / "old.py").write_text("\n".join(f"old {line}" for line in lines) + "\n")
    (folder / "pkg" / "moved.py").write_text("\n".join(f"moved {line}" for line in lines) + "\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "base")
    git(folder, "branch", "base")
    changed = [*lines[:4], "new 5", "new 6", *lines[6:20], "inserted", *lines[20:]]
    (folder / "pkg" / "a.py").write_text("\n".join(changed) + "\n")
    (folder / "pkg" / "b.py").write_text("\r\n".join(lines[:10]) + "\r\n")
    (folder / "pkg" / "c.py").write_text("one\ntwo\nthree\n")
    git(folder, "mv", "pkg/old.py", "pkg/new.py")
    git(folder, "mv", "pkg/moved.py", "pkg/ü moved.py")
    (folder / "pkg" / "new.py").write_text("first\n" + "\n".join(f"old {line}" for line in lines) + "\nlast\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "head")
    return git(folder, "diff", "-U0", "--no-ext-diff", "--find-renames=50%", "base")


HITS = {
    "pkg/a.py": {5: 1, 6: 0, 7: 1, 21: 0, 22: 1}, "pkg/b.py": {1: 1, 2: 0, 10: 1}, "pkg/c.py": {1: 0, 3: 2},
    "pkg/new.py": {1: 0, 2: 0, 31: 1, 32: 1}, "pkg/ü moved.py": {1: 0, 2: 1},
}  # fmt: skip


def cobertura(folder: Path) -> str:
    classes = "".join(
        f'<class name="{path}" filename="{path}"><methods/><lines>'
        + "".join(f'<line number="{line}" hits="{hits}"/>' for line, hits in lines.items())
        + "</lines></class>"
        for path, lines in HITS.items()
    )
    packages = f'<packages><package name="pkg"><classes>{classes}</classes></package></packages>'
    return f'<coverage line-rate="0.5" version="7"><sources><source>{folder}</source></sources>{packages}</coverage>'


def lcov(folder: Path) -> str:
    return "".join(
        f"TN:\nSF:{path}\n" + "".join(f"DA:{line},{hits}\n" for line, hits in lines.items()) + "end_of_record\n"
        for path, lines in HITS.items()
    )


def jacoco_of(folder: Path) -> str:
    sources = "".join(
        f'<sourcefile name="{path.partition("/")[2]}">'
        + "".join(f'<line nr="{line}" mi="{int(not hits)}" ci="{hits}" mb="0" cb="0"/>' for line, hits in lines.items())
        + "</sourcefile>"
        for path, lines in HITS.items()
    )
    return f'<report name="r"><package name="pkg">{sources}</package></report>'


def clover(folder: Path) -> str:
    files = "".join(
        f'<file name="{path.partition("/")[2]}" path="{folder}/{path}">'
        + "".join(f'<line num="{line}" type="stmt" count="{hits}"/>' for line, hits in lines.items())
        + "</file>"
        for path, lines in HITS.items()
    )
    package = f'<package name="pkg">{files}</package>'
    return f'<coverage generated="1" clover="3.2"><project timestamp="1">{package}</project></coverage>'


@pytest.mark.parametrize(
    ("name", "report"),
    [("cobertura.xml", cobertura), ("lcov.info", lcov), ("jacoco.xml", jacoco_of), ("clover.xml", clover)],
    ids=["Cobertura", "LCOV", "JaCoCo", "Clover"],
)  # fmt: skip
def test_changed_lines_are_those_of_diff_cover(server: Server, tmp_path: Path, name: str, report: Any) -> None:
    folder = tmp_path / "work"
    diff = changed_repository(folder)
    (folder / name).write_text(report(folder))
    out = tmp_path / "diff-cover.json"
    program = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "diff_cover.diff_cover_tool",
        name,
        "--compare-branch",
        "base",
        "--src-roots",
        ".",
    ]
    subprocess.run([*program, "--format", f"json:{out}"], cwd=folder, check=True, capture_output=True)
    theirs = json.loads(out.read_text())
    paths = git(folder, "ls-files")
    _, own = measure(server, name, ("jacoco", report(folder)), ("diff", diff), ("paths", paths))
    assert own["covered"] + own["missed"] == theirs["total_num_lines"] > 0
    assert own["missed"] == theirs["total_num_violations"]
    missed = {
        file["path"]: [n for a, b in file["missedRanges"] for n in range(a, b + 1)]
        for file in own["files"] if file["state"] == "MEASURED"
    }  # fmt: skip
    assert missed == {path: stats["violation_lines"] for path, stats in theirs["src_stats"].items()}


def test_upload_with_an_invalid_diff_is_400(server: Server) -> None:
    answer = post(server, ("project", "bad"), JUNIT, ("diff", "{"))
    assert "diff" in check_problem(answer, 400, f"{API}/ingest", has_timestamp=False)["detail"]


# Renames


def test_renames_are_read_from_both_forms_of_a_diff(tmp_path: Path) -> None:
    unified = read_diff(changed_repository(tmp_path / "work").encode())
    assert unified.renames == {"pkg/old.py": "pkg/new.py", "pkg/moved.py": "pkg/ü moved.py"}
    assert unified.files["pkg/new.py"] == [(1, 1), (32, 32)], "only the lines that are new"
    assert "pkg/ü moved.py" not in unified.files
    files, renames = ranges_of(changed_repository(tmp_path / "again").encode())
    assert (renames, files["pkg/new.py"]) == (unified.renames, [[1, 1], [32, 32]])
    sent = json.dumps({"base": "b", "head": "h", "files": {}, "renames": {"a.py": "b.py"}})
    assert read_diff(sent.encode()).renames == {"a.py": "b.py"}
    with pytest.raises(Invalid):
        read_diff(b'{"files": {}, "renames": {"a.py": 1}}')
    hostile = "--- a/x\n+++ b/x\n@@ -1 +1,3 @@\n-a\n+rename from y\n+rename to z\n+b\n"
    assert read_diff(hostile.encode()).renames == {}


@pytest.mark.parametrize(
    ("path", "old", "new", "expected"),
    [
        ("a.py", "a.py", "b.py", "b.py"),
        ("/home/ci/checkout/src/a.py", "src/a.py", "lib/b.py", "/home/ci/checkout/lib/b.py"),
        ("com/x/A.java", "src/main/java/com/x/A.java", "src/main/java/com/y/B.java", "com/y/B.java"),
        ("com/x/A.java", "one/com/x/A.java", "two/com/x/A.java", None),
        ("A.java", "xA.java", "B.java", None),
        ("other.py", "a.py", "b.py", None),
    ],
)
def test_the_path_of_a_renamed_file_in_a_coverage_report(path: str, old: str, new: str, expected: str | None) -> None:
    assert patch._moved(path, old, new) == expected


def test_coverage_of_a_renamed_file_is_compared_with_that_of_its_old_path(server: Server) -> None:
    found = [jacoco({name: {1: True, 2: hit}}) for name, hit in (("Old.java", True), ("New.java", False))]
    base, _ = measure(server, "renamed", ("jacoco", found[0]), ("branch", "main"), ("commit", "one"))
    renames = json.dumps({"base": "one", "head": "two", "files": {"src/com/x/New.java": [[2, 2]]},
                          "renames": {"src/com/x/Old.java": "src/com/x/New.java"}})  # fmt: skip
    facts = (("diff", renames), ("branch", "main"), ("commit", "two"))
    head, _ = measure(server, "renamed", ("jacoco", found[1]), *facts)
    page = server.get(f"/compare?base={base['runId']}&head={head['runId']}", Accept="text/html").text
    assert "com/x/New.java" in page
    assert "com/x/Old.java" not in page
    assert "-50.0" in page or "\u221250.0" in page
