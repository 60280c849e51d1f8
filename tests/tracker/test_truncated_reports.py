"""Reports that end in the middle, or list fewer tests than they declare: warnings, the page and the gate."""

from __future__ import annotations

from collections.abc import Iterator
from html import unescape

import pytest
from conftest import Server
from http_checks import running_server
from report_readers import read_coverage_report, read_test_report, suite, totals_of
from uploads import body, junit, part, send

from models.tracker.reports.base import BadReport

LCOV = "TN:\nSF:a.c\nDA:1,1\nend_of_record\nSF:b.c\nDA:1,1\n"
NO_END = "truncated: its last record has no end_of_record; its coverage is not used"
GO_START = '{"Action":"start","Package":"p"}\n{"Action":"run","Package":"p","Test":"T"}\n'
GO_PASS = '{"Action":"pass","Package":"p","Test":"T"}\n'
GO_END = '{"Action":"pass","Package":"p"}\n'


@pytest.mark.parametrize("end", ["", "end_of", "BRDA:1,0"])
def test_nothing_of_a_tracefile_without_its_last_end_is_used(end: str) -> None:
    report, files = read_coverage_report(LCOV + end)
    assert (report.line_covered, files, report.warnings) == (None, {}, [NO_END])
    whole, _ = read_coverage_report(LCOV + "end_of_record")
    assert (whole.line_covered, whole.warnings) == (2, ())


def profile(*bad: str, blocks: int = 200) -> str:
    return "mode: set\n" + "".join(f"a.go:{n}.1,{n}.9 1 1\n" for n in range(1, blocks + 1)) + "".join(bad)


def test_few_bad_lines_of_a_go_profile_are_skipped_with_a_warning() -> None:
    report, _ = read_coverage_report(profile("a.go:nonsense\n"))
    assert report.line_covered == 200
    (warning,) = report.warnings
    assert warning.startswith("1 bad lines were skipped, the first is line 202: this is no line of a Go cover profile")
    assert read_coverage_report(profile("x\n", "a.go:2000000.1,2000000.2 1 1\n"))[0].line_covered == 200
    with pytest.raises(BadReport, match="line 202: this is no line of a Go cover profile"):
        read_coverage_report(profile("x\n", "x\n", "x\n"))
    with pytest.raises(BadReport, match="line 100: "):
        read_coverage_report(profile("x\n", blocks=98))


def test_nothing_of_a_go_profile_with_a_cut_last_line_is_used() -> None:
    for blocks in (1, 200):
        report, files = read_coverage_report(profile("b.go:3.1,4.", blocks=blocks))
        assert (report.line_covered, files) == (None, {})
        assert report.warnings == ["truncated: its last line is cut; its coverage is not used"]
    assert read_coverage_report(profile("b.go:3.1,4.2 1 1"))[0].line_covered == 201


@pytest.mark.parametrize(
    ("log", "warnings"),
    [
        (GO_START + GO_PASS + GO_END, []),
        (GO_START + GO_PASS, ["truncated: the log ends before p"]),
        (GO_START, ["truncated: the log ends before p"]),
        (GO_START + GO_PASS + GO_END + '{"Action":"out', ["truncated: the log ends within a line"]),
        (GO_START + GO_PASS + GO_END + '{"a": 1}\n', []),
        (GO_START + "FAIL\tp [build failed]\n", []),
        ("TAP version 13\n1..2\nok 1\nok 2\n", []),
        ("TAP version 13\n1..3\nok 1\nok 2\n", ["truncated: it ends after 2 test points"]),
        ("TAP version 13\nok 1\nok 2\n", ["truncated: it ends after 2 test points"]),
        ("1..1\nnot ok 1\n  ---\n  message: no\n", ["truncated: it ends after 1 test points"]),
        ("1..3\nok 1\nBail out! no server\n", []),
        ("1..1\nok 1\nok 2\n", []),
    ],
)
def test_a_log_that_ends_in_the_middle_is_truncated(log: str, warnings: list[str]) -> None:
    assert read_test_report(log)[0].warnings == warnings


CASE = '<testcase name="{}"/>'
TWO, THREE = 'tests="2"', 'tests="3"'


@pytest.mark.parametrize(
    ("document", "warnings"),
    [
        (suite(CASE.format("a"), attributes='tests="1"'), []),
        (suite(CASE.format("a"), attributes=THREE), ["the suite s declares 3 tests, lists 1"]),
        (suite(CASE.format("a"), CASE.format("b"), attributes='tests="1"'), []),
        (f"<testsuites tests='4'>{suite(CASE.format('a'), attributes=THREE)}</testsuites>",
         ["the suite s declares 3 tests, lists 1", "1 more suites declare more tests than they list"]),
        (f"<testsuites tests='3'>{suite(CASE.format('a'), attributes=THREE)}</testsuites>",
         ["the suite s declares 3 tests, lists 1"]),
        (f"<testsuites tests='3'>{suite(attributes=TWO)}{suite(CASE.format('a'))}</testsuites>", []),
        (suite(attributes=THREE), []),
        (f'<testsuite name="a&#10;b" {THREE}>{CASE.format("a")}</testsuite>',
         ["the suite a b declares 3 tests, lists 1"]),
    ],
)  # fmt: skip
def test_a_suite_that_declares_more_tests_than_it_lists_is_warned_of(document: str, warnings: list[str]) -> None:
    report, _ = read_test_report(document)
    assert report.warnings == warnings
    assert totals_of(report)[1:] == (0, 0, 0, 0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"min-line-coverage": 50, "fail-on-missing-coverage": True, "fail-on-any-failure": True}
    with running_server(tmp_path_factory.mktemp("cut"), tracker={"quality-gate": settings}) as server:
        yield server


def test_a_truncated_coverage_report_fails_the_gate_and_is_on_the_page(server: Server) -> None:
    tests = part("junit", junit(passed=1), "ok.xml")
    for end, status in (("end_of_record\n", "PASSED"), ("", "FAILED")):
        facts = [part("project", "cut"), part("commit", f"c{status}"), part("branch", "main")]
        answer = send(server, body([*facts, tests, part("jacoco", LCOV + end, "lcov.info")])).json
        warning = f"jacoco lcov.info: {NO_END}"
        assert (answer["gateStatus"], answer["warnings"]) == (status, [] if end else [warning])
        page = unescape(server.get(f"/runs/{answer['runId']}").text)
        assert (f"{warning}." in page) is (status == "FAILED")
    rules = server.get(f"/api/v1/gate?project=cut&commit=c{status}").json["rules"]
    (rule,) = [rule for rule in rules if not rule["passed"]]
    assert rule["name"] == "missing-coverage"


def test_missing_tests_are_a_warning_of_the_response_and_on_the_page(server: Server) -> None:
    parts = [part("project", "fewer"), part("junit", suite(CASE.format("a"), attributes=THREE), "TEST-a.xml")]
    answer = send(server, body(parts)).json
    wanted = "junit TEST-a.xml: the suite s declares 3 tests, lists 1"
    assert (answer["tests"], answer["warnings"]) == (1, [wanted])
    assert f"{wanted}." in unescape(server.get(f"/runs/{answer['runId']}").text)


DECLARED = {
    "junit": '<testsuites tests="5" failures="2"/>',
    "junit around a suite": '<testsuites tests="5" failures="2"><testsuite tests="0"/></testsuites>',
    "junit around passing suites": '<testsuites failures="2"><testsuite name="s" tests="5"/></testsuites>',
    "testng": '<testng-results total="5" passed="3" failed="2"/>',
    "jest": '{"numTotalTests":5,"numFailedTests":2,"testResults":[]}',
    "rspec": '{"examples":[],"summary":{"example_count":5,"failure_count":2,"pending_count":0}}',
    "playwright": '{"suites":[],"stats":{"expected":3,"skipped":0,"unexpected":2,"flaky":0}}',
    "ctrf": '{"results":{"summary":{"tests":5,"failed":2},"tests":[]}}',
}


@pytest.mark.parametrize("format", DECLARED)
def test_failures_that_are_only_declared_fail_the_gate(server: Server, format: str) -> None:
    facts = [part("project", format), part("commit", "c1"), part("branch", "main")]
    answer = send(server, body([*facts, part("junit", DECLARED[format], "report")])).json
    assert (answer["status"], answer["failed"], answer["gateStatus"]) == ("FAILED", answer["failures"], "FAILED")
    verdict = server.get(f"/api/v1/gate?project={format.replace(' ', '%20')}&commit=c1").json
    rules = {rule["name"]: rule for rule in verdict["rules"]}
    assert [rules[name]["passed"] for name in ("new-failures", "no-failures")] == [False, False]
    assert "(suite)" in rules["no-failures"]["detail"]
    _, cases = read_test_report(DECLARED[format])
    assert [case.failure_message for case in cases] == ["declares 2 failures, lists none"]


def test_failures_of_a_suite_beyond_the_listed_ones_are_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.tracker.reports.totals.MAX_LISTED_SUITES", 1)
    failing = suite(attributes='tests="2" failures="1"')
    report, cases = read_test_report(f"<testsuites>{failing}{failing}</testsuites>")
    assert (totals_of(report)[:2], len(report.suites)) == ((4, 2), 1)
    assert [(case.suite, case.failure_message) for case in cases] == [(None, "declares 1 failure, lists none")]
