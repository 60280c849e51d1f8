"""NUnit 2, xUnit v1 and v3, SonarQube, Codecov, TAP and Cucumber, as their tools write them; and unknown formats."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from report_readers import Totals, case_fields, only_case, read_coverage_report, read_test_report, totals_of
from runner_samples import MEASURED, RUNNERS, WITHOUT_CONTENT

from models.tracker.reports import json_tests
from models.tracker.reports.base import BadReport, CaseStatus, Limits
from models.tracker.reports.detect import COVERAGE, TESTS, is_empty

PASSED, FAILED, ERROR, SKIPPED = CaseStatus.PASSED, CaseStatus.FAILED, CaseStatus.ERROR, CaseStatus.SKIPPED

NUNIT2 = """<?xml version="1.0" encoding="utf-8" standalone="no"?>
<!--This file represents the results of running a test suite-->
<test-results name="/x/mock.dll" total="4" errors="1" failures="1" not-run="2" inconclusive="1" ignored="1"
    skipped="0" invalid="1" date="2010-10-18" time="13:23:35">
  <environment nunit-version="2.5.8.0" clr-version="2.0.50727.1433" os-version="Unix" platform="Unix" cwd="/x"/>
  <culture-info current-culture="en-US" current-uiculture="en-US"/>
  <test-suite type="Assembly" name="/x/mock.dll" executed="True" result="Failure" success="False" time="0.094">
    <results><test-suite type="Namespace" name="N" executed="True" result="Failure" success="False"><results>
      <test-suite type="TestFixture" name="F" executed="True" result="Failure" success="False" time="0.07">
        <failure><message><![CDATA[Child test failed]]></message><stack-trace/></failure>
        <results>
          <test-case name="N.F.Adds(1.5,&quot;a.b&quot;)" executed="True" result="Success" success="True" time="0.016"/>
          <test-case name="N.F.Fails" executed="True" result="Failure" success="False" time="0.5" asserts="1">
            <failure><message><![CDATA[Intentional]]></message><stack-trace>at N.F.Fails()</stack-trace></failure>
          </test-case>
          <test-case name="N.F.Throws" executed="True" result="Error" success="False" time="0.25" asserts="0">
            <failure><message><![CDATA[System.Exception]]></message></failure></test-case>
          <test-case name="N.F.Later" executed="False" result="Ignored">
            <reason><message><![CDATA[not yet]]></message></reason></test-case>
          <test-case name="N.F.Generic" executed="False" result="NotRunnable"/>
          <test-case name="N.F.Dunno" executed="True" result="Inconclusive" success="False" time="0"/>
        </results></test-suite></results></test-suite></results></test-suite>
</test-results>"""

NUNIT24 = """<test-results name="a.dll" total="2" failures="1" not-run="1" date="2008-01-01" time="10:00:00">
<test-suite name="F" success="False" time="1"><results>
<test-case name="N.F.A" executed="True" success="True" time="0.01"/>
<test-case name="N.F.B" executed="True" success="False" time="0.01"><failure><message>no</message></failure></test-case>
<test-case name="N.F.C" executed="False"><reason><message>later</message></reason></test-case>
<test-case name="N.F.D" executed="True" time="1.0"/>
<test-case name="N.F.E" executed="True"><failure><message>no</message></failure></test-case>
</results></test-suite></test-results>"""

XUNIT1 = """<?xml version="1.0" encoding="utf-8"?>
<assembly name="C:\\x\\tests.dll" run-date="2012-03-16" run-time="09:40:45" time="0.25" total="3" passed="1"
    failed="1" skipped="1" environment="64-bit .NET" test-framework="xUnit.net 1.9.0.1566">
  <class time="0.25" name="N.C" total="3" passed="1" failed="1" skipped="1">
    <test name="N.C.ok" type="N.C" method="ok" result="Pass" time="0.016"><output>said</output></test>
    <test name="N.C.no(x: 1)" type="N.C" method="no" result="Fail" time="0.234">
      <failure exception-type="Xunit.Sdk.EqualException"><message>Assert.Equal()</message>
      <stack-trace>at N.C</stack-trace>
      </failure></test>
    <test name="N.C.later" type="N.C" method="later" result="Skip"><reason><message>not yet</message></reason></test>
  </class>
</assembly>"""

XUNIT3 = """<?xml version="1.0" encoding="utf-8"?>
<assemblies schema-version="3" id="5e" computer="c" user="u" start-rtf="2024-01-01T00:00:00Z">
  <assembly id="1" name="/x/tests.dll" total="3" passed="1" failed="1" skipped="0" not-run="1" errors="0" time="0.1">
    <errors/>
    <collection id="2" name="Test collection for N.C" total="3" passed="1" failed="1" skipped="0" time="0.1">
      <test id="3" name="N.C.ok" type="N.C" method="ok" time="0.05" time-rtf="00:00:00.05" result="Pass"/>
      <test id="4" name="N.C.no" type="N.C" method="no" time="0.05" result="Fail">
        <failure exception-type="E"><message>expected</message><stack-trace>at x</stack-trace></failure></test>
      <test id="5" name="N.C.never" type="N.C" method="never" time="0" result="NotRun"/>
    </collection></assembly></assemblies>"""

SONAR_TESTS = """<testExecutions version="1">
  <file path="testx/ClassOneTest.xoo">
    <testCase name="test1" duration="5"/>
    <testCase name="test2" duration="500"><skipped message="short message">other</skipped></testCase>
    <testCase name="test3" duration="100"><failure message="short">stacktrace</failure></testCase>
    <testCase name="test4" duration="500"><error message="short">stacktrace</error></testCase>
  </file></testExecutions>"""

SONAR_COVERAGE = """<coverage version="1">
  <file path="xources/hello/NoConditions.xoo">
    <lineToCover lineNumber="6" covered="true"/>
    <lineToCover lineNumber="7" covered="false"/>
  </file>
  <file path="xources/hello/WithConditions.xoo">
    <lineToCover lineNumber="3" covered="true" branchesToCover="2" coveredBranches="1"/>
  </file></coverage>"""

CODECOV = """{"coverage": {
  "src/a.py": {"1": 1, "2": 0, "3": "1/2", "4": null, "5": true, "6": "0/2"},
  "src/b.py": [null, 1, 0, null, 5]
}, "messages": {"src/a.py": {"1": "text"}}}"""

TAP13 = """TAP version 13
1..5
ok 1 - works
not ok 2 - fails
  ---
  duration_ms: 12.5
  message: 'expected 1'
  severity: fail
  ...
# Failed test 'fails'
ok 3 - later # SKIP not on this system
not ok 4 - unfinished # todo write it
ok 5
"""

CUCUMBER = json.dumps(
    [
        {
            "uri": "features/shop.feature", "id": "shop", "keyword": "Feature", "name": "Shop", "line": 1,
            "elements": [
                {"type": "background", "keyword": "Background", "name": "", "line": 2,
                 "steps": [{"keyword": "Given ", "name": "a", "result": {"status": "passed", "duration": 1000000}}]},
                {"id": "shop;buys", "type": "scenario", "keyword": "Scenario", "name": "buys", "line": 4,
                 "before": [{"match": {"location": "x"}, "result": {"status": "passed", "duration": 1000000}}],
                 "steps": [
                     {"keyword": "When ", "name": "I pay", "result": {"status": "passed", "duration": 2000000},
                      "embeddings": [{"data": "aGVsbG8=", "mime_type": "text/plain"}]},
                     {"keyword": "Then ", "name": "I own it", "line": 6,
                      "result": {"status": "failed", "duration": 4000000, "error_message": "expected 1\n  at x.rb:5"}},
                     {"keyword": "And ", "name": "more", "result": {"status": "skipped"}},
                 ]},
                {"id": "shop;looks", "type": "scenario", "keyword": "Scenario", "name": "looks", "line": 9,
                 "steps": [{"keyword": "When ", "name": "I look", "result": {"status": "passed"}}]},
                {"id": "shop;new", "type": "scenario", "keyword": "Scenario", "name": "new", "line": 12,
                 "steps": [{"keyword": "When ", "name": "unknown", "result": {"status": "undefined"}}]},
                {"id": "shop;off", "type": "scenario", "keyword": "Scenario", "name": "off", "line": 15,
                 "steps": [{"keyword": "When ", "name": "x", "result": {"status": "skipped"}}]},
            ],
        }
    ]
)  # fmt: skip

SAMPLES: dict[str, tuple[str, Totals]] = {
    "NUnit 2": (NUNIT2, (6, 1, 2, 2, 0)),
    "xUnit v1": (XUNIT1, (3, 1, 0, 1, 0)),
    "xUnit v3": (XUNIT3, (3, 1, 0, 1, 0)),
    "Sonar test execution": (SONAR_TESTS, (4, 1, 1, 1, 0)),
    "TAP": (TAP13, (5, 1, 0, 2, 0)),
    "Cucumber JSON": (CUCUMBER, (4, 2, 0, 1, 0)),
    **RUNNERS,
}
COVERED: dict[str, tuple[str, tuple[int, int, int | None, int | None]]] = {
    "Sonar coverage": (SONAR_COVERAGE, (2, 1, 1, 1)),
    "Codecov JSON": (CODECOV, (5, 3, 1, 3)),
    **MEASURED,
}


@pytest.mark.parametrize("size", [1 << 30, 7])
@pytest.mark.parametrize("format", SAMPLES)
def test_a_test_report_is_counted_and_named_by_its_format(format: str, size: int) -> None:
    document, wanted = SAMPLES[format]
    report, cases = read_test_report(document, at_once=size)
    assert (report.format, totals_of(report), len(cases)) == (format, wanted, wanted[0])
    assert read_test_report(gzip.compress(document.encode()))[0] == report


@pytest.mark.parametrize("size", [1 << 30, 7])
@pytest.mark.parametrize("format", COVERED)
def test_a_coverage_report_is_counted_and_named_by_its_format(format: str, size: int) -> None:
    document, wanted = COVERED[format]
    report, _ = read_coverage_report(document, at_once=size)
    assert report.format == format
    assert (report.line_covered, report.line_missed, report.branch_covered, report.branch_missed) == wanted


@pytest.mark.parametrize("format", [*SAMPLES, *COVERED])
def test_report_under_the_wrong_part_is_refused_with_its_format(format: str) -> None:
    document = (SAMPLES.get(format) or COVERED[format])[0]
    with pytest.raises(BadReport, match=f"{format} is a .*expected one of"):
        _ = read_coverage_report(document) if format in SAMPLES else read_test_report(document)


def test_class_name_of_an_nunit_2_case_is_part_of_its_name() -> None:
    assert case_fields(NUNIT2) == [
        ("N.F", 'Adds(1.5,"a.b")', PASSED, 16, None),
        ("N.F", "Fails", FAILED, 500, "Intentional"),
        ("N.F", "Throws", ERROR, 250, "System.Exception"),
        ("N.F", "Later", SKIPPED, None, "not yet"),
        ("N.F", "Generic", ERROR, None, None),
        ("N.F", "Dunno", SKIPPED, 0, None),
    ]
    assert [(suite.name, suite.totals.tests) for suite in read_test_report(NUNIT2)[0].suites] == [("F", 6)]
    assert [status for _, _, status, _, _ in case_fields(NUNIT24)] == [PASSED, FAILED, SKIPPED, PASSED, FAILED]


FAILED_SUITE = "<failure><message>OneTimeTearDown: boom</message></failure>"
NUNIT3 = '<test-run result="Failed" total="2" failed="{failed}">{inside}</test-run>'
SUITE3 = '<test-suite name="{name}" type="TestFixture" result="Failed" total="{total}">{inside}</test-suite>'


def test_failed_nunit_suites_without_cases_are_not_tests() -> None:
    case = '<test-case name="a" classname="c" result="{}"/>'
    empty = SUITE3.format(name="E", total=0, inside=FAILED_SUITE)
    red = SUITE3.format(name="R", total=2, inside=FAILED_SUITE + case.format("Failed") + case.format("Passed"))
    report, _ = read_test_report(NUNIT3.format(failed=1, inside=empty * 3 + red + empty))
    assert totals_of(report) == (1, 1, 0, 0, 0)  # the failed case and the passed one have the same name
    assert [suite.name for suite in report.suites] == ["R"]
    green = SUITE3.format(name="G", total=1, inside=case.format("Passed") + FAILED_SUITE)
    report, cases = read_test_report(NUNIT3.format(failed=0, inside=green + empty))
    assert totals_of(report) == (2, 0, 1, 0, 0)  # a failed run does not pass
    assert (cases[1].class_name, cases[1].name, cases[1].stack) == ("G", "(suite)", "OneTimeTearDown: boom")
    only_counts = '<test-run result="Failed" total="5" failed="2"><test-suite result="Failed"/></test-run>'
    assert totals_of(read_test_report(only_counts)[0]) == (5, 2, 0, 0, 0)


def test_the_fields_of_an_xunit_v1_failure() -> None:
    ok, no, later = read_test_report(XUNIT1)[1]
    assert (ok.class_name, ok.name, ok.out, ok.duration_ms) == ("N.C", "ok", "said", 16)
    assert (no.failure_type, no.failure_message, no.stack) == ("Xunit.Sdk.EqualException", "Assert.Equal()", "at N.C")
    assert later.failure_message == "not yet"


def test_sonar_file_path_is_the_class_name() -> None:
    assert case_fields(SONAR_TESTS)[2] == ("testx/ClassOneTest.xoo", "test3", FAILED, 100, "short")
    assert read_test_report(SONAR_TESTS)[1][3].stack == "stacktrace"


def test_the_lines_of_codecov_are_objects_or_arrays() -> None:
    _, found = read_coverage_report(CODECOV)
    assert found["src/a.py"].lines == {1: True, 2: False, 3: True, 5: True, 6: False}
    assert found["src/b.py"].lines == {1: True, 2: False, 4: True}
    _, found = read_coverage_report('{"coverage": {"a": {"1": "3", "2": "0", "3": "-"}}}')
    assert found["a"].lines == {1: True, 2: False, 3: False}


def test_tap_has_diagnostics_skips_and_todos() -> None:
    assert case_fields(TAP13) == [
        ("", "works", PASSED, None, None),
        ("", "fails", FAILED, 12, "expected 1"),
        ("", "later", SKIPPED, None, "not on this system"),
        ("", "unfinished", SKIPPED, None, "write it"),
        ("", "test 5", PASSED, None, None),
    ]
    assert read_test_report(TAP13)[1][1].stack == (
        "duration_ms: 12.5\nmessage: 'expected 1'\nseverity: fail\nFailed test 'fails'"
    )
    assert read_test_report(TAP13, Limits(suite="unit"))[0].suites[0].name == "unit"


def steps(*results: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"keyword": "When ", "name": f"step {n}", **result} for n, result in enumerate(results)]


GOOD, BAD = {"result": {"status": "passed", "duration": 2_000_000}}, {"result": {"status": "failed"}}


def test_feature_name_may_follow_its_scenarios() -> None:
    scenarios = [{"id": f"f;{n}", "line": n, "name": "one", "steps": steps(GOOD), "type": "scenario"} for n in (3, 5)]
    features = [{"elements": scenarios, "keyword": "Feature", "name": name, "uri": f"{name}.feature"} for name in "fg"]
    report, cases = read_test_report(json.dumps(features))
    found = [(case.class_name, case.name, case.file, case.duration_ms) for case in cases]
    assert found == [(name, "one", f"{name}.feature", 2) for name in "ffgg"]
    assert [suite.name for suite in report.suites] == ["f", "g"]


def test_many_scenarios_do_not_wait_for_the_name_of_their_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_tests, "_MAX_WAITING", 10)
    scenarios = [{"name": f"s{n}", "steps": steps(GOOD)} for n in range(30)]
    _, cases = read_test_report(json.dumps([{"keyword": "Feature", "name": "f", "elements": scenarios}]))
    assert [(case.class_name, case.name) for case in cases] == [("f", f"s{n}") for n in range(30)]


@pytest.mark.parametrize(
    ("hooks", "status", "message"),
    [
        ({"after": [{"result": {"status": "failed", "error_message": "E: x\n at y"}}]}, FAILED, "E: x"),
        ({"before": [GOOD, BAD]}, FAILED, "failed: before a step"),
        ({"before": [GOOD], "after": [GOOD, GOOD]}, PASSED, None),
    ],
)
def test_a_failed_hook_of_a_step_fails_the_scenario(hooks: dict[str, Any], status: Any, message: str | None) -> None:
    scenario = {"name": "s", "steps": steps(GOOD, {**hooks, **GOOD})}
    case = only_case(read_test_report(json.dumps([{"keyword": "Feature", "name": "f", "elements": [scenario]}]))[1])
    assert (case.status, case.failure_message) == (status, message)


def behave(status: str, *results: dict[str, Any]) -> dict[str, Any]:
    """A scenario as behave writes it: seconds, and no result for a step that did not run."""
    rows = [{**row, "step_type": "when", "location": "a.feature:3"} for row in steps(*results)]
    return {"type": "scenario", "name": "s", "location": "a.feature:2", "steps": rows, "status": status}


STEP = {"result": {"status": "passed", "duration": 0.25}}
FAILED_STEP = {"result": {"status": "failed", "error_message": ["Assertion Failed: no", "more"], "duration": 0.5}}


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        (behave("passed", STEP, STEP), (PASSED, 500, None)),
        (behave("failed", STEP, FAILED_STEP, {}), (FAILED, 750, "Assertion Failed: no")),
        (behave("error", STEP, {"result": {"status": "error"}}, {}), (ERROR, 250, "error: When step 1")),
        (behave("failed", STEP, {"result": {"status": "undefined"}}, {}), (FAILED, 250, "undefined: When step 1")),
        (behave("skipped", {}, {}), (SKIPPED, 0, "skipped: When step 0")),
        (behave("untested", {}), (SKIPPED, 0, "untested: When step 0")),
        (behave("hook_error", STEP), (ERROR, 250, "hook_error")),
        ({"name": "s", "steps": steps(GOOD, {})}, (ERROR, 2, "not run: When step 1")),
        ({"name": "s", "steps": steps({}, {})}, (SKIPPED, 0, "no step was run")),
    ],
    ids=["passed", "failed", "error", "undefined", "skipped", "untested", "hook", "aborted", "not run"],
)  # fmt: skip
def test_a_scenario_of_behave(scenario: dict[str, Any], expected: tuple[Any, ...]) -> None:
    background = {"type": "background", "name": "", "location": "a.feature:1", "steps": steps({})}
    feature = {"keyword": "Feature", "name": "f", "location": "dir/a.feature:1", "elements": [background, scenario]}
    case = only_case(read_test_report(json.dumps([feature]))[1])
    assert (case.status, case.duration_ms, case.failure_message) == expected
    assert (case.class_name, case.file) == ("f", "dir/a.feature")


def test_a_scenario_of_cucumber_is_a_test() -> None:
    report, cases = read_test_report(CUCUMBER)
    assert [(case.name, case.status) for case in cases] == [
        ("buys", FAILED), ("looks", PASSED), ("new", FAILED), ("off", SKIPPED),
    ]  # fmt: skip
    failed = cases[0]
    assert (failed.class_name, failed.duration_ms, failed.failure_message) == ("Shop", 8, "expected 1")
    assert failed.stack == "Then I own it\nexpected 1\n  at x.rb:5"
    assert cases[2].failure_message == "undefined: When unknown"
    assert [(suite.name, suite.totals.tests) for suite in report.suites] == [("Shop", 4)]


EMPTY: dict[str, str] = {
    "JUnit": "<testsuites/>",
    "TRX": "<TestRun/>",
    "xUnit v2": "<assemblies/>",
    "NUnit 2": "<test-results/>",
    "NUnit 3": '<test-run total="0"/>',
    "Sonar test execution": '<testExecutions version="1"/>',
    "go test -json": '{"Action":"start","Package":"p"}\n{"Action":"skip","Package":"p"}',
    "TAP": "1..0 # SKIP nothing to do",
    "JaCoCo": '<report name="x"><sessioninfo id="a" start="1" dump="2"/></report>',
    "Clover": '<coverage clover="3"><project><metrics statements="0"/></project></coverage>',
    "Cobertura": '<coverage line-rate="0"><sources/><packages/></coverage>',
    "Sonar coverage": '<coverage version="1"/>',
    "OpenCover": "<CoverageSession><Modules/></CoverageSession>",
    "Go cover profile": "mode: set\n",
    "LCOV": "TN:\nSF:a.c\nend_of_record\n",
    "Codecov JSON": '{"coverage": {}, "messages": {}}',
    "coverage.py JSON": '{"files": {}, "totals": {"covered_lines": 0, "missing_lines": 0}}',
    **WITHOUT_CONTENT,
}


@pytest.mark.parametrize("format", EMPTY)
def test_known_format_without_content_is_read_as_empty(format: str) -> None:
    is_test = format in [known.name for known in TESTS]
    report = read_test_report(EMPTY[format])[0] if is_test else read_coverage_report(EMPTY[format])[0]
    assert (report.format, is_empty(report)) == (format, True)


@pytest.mark.parametrize("document", ["TN:\n", "TN:a test\nend_of_record\n"])
def test_a_tracefile_without_a_file_is_read(document: str) -> None:
    assert is_empty(read_coverage_report(document)[0])


UNKNOWN_TESTS = {
    "another <testsuite>": "<testsuite><step name='a'/></testsuite>",
    "another <assembly>": "<assembly xmlns='http://maven.apache.org/ASSEMBLY/2.0.0'><id>bin</id></assembly>",
    "another <test-run>": "<test-run><phase/></test-run>",
    "another results": '{"results": {"violations": []}}',
    "another action": '{"Action": {"type": "x"}}\n',
    "another array": '[{"keyword-count": 1, "elements": 5}]',
    "some JSON": '{"numTests": 5, "results": []}',
    "some XML": "<checkstyle version='4.3'><file name='a'/></checkstyle>",
    "some text": "Tests run: 5, Failures: 0",
}
UNKNOWN_COVERAGE = {
    "another <report>": "<report><entry name='a'/></report>",
    "another <coverage>": "<coverage generator='x'><module name='a'/></coverage>",
    "another coverage": '{"coverage": {"percent": 5}}',
    "coverage of no file": '{"coverage": {"lines": {"pct": 85}}}',
    "another files": '{"files": {"a.py": {"lines": 5}}}',
    "Istanbul's summary": '{"total": {"lines": {"total": 3, "covered": 3, "skipped": 0, "pct": 100}}}',
    "text of a summary": "TOTAL 80%",
}


@pytest.mark.parametrize("what", UNKNOWN_TESTS)
def test_an_unknown_test_report_is_refused_with_what_it_resembles(what: str) -> None:
    with pytest.raises(BadReport, match=r"(root element is <|it is not XML but |its beginning is that of ).*TAP\)$"):
        read_test_report(UNKNOWN_TESTS[what])


@pytest.mark.parametrize("what", UNKNOWN_COVERAGE)
def test_an_unknown_coverage_report_is_refused_with_what_it_resembles(what: str) -> None:
    with pytest.raises(BadReport, match=r"(root element is <|it is not XML but |its beginning is that of ).*JSON\)$"):
        read_coverage_report(UNKNOWN_COVERAGE[what])


def test_error_message_names_what_the_file_resembles() -> None:
    for document, resembled in (
        ('{"numTests": 5, "results": []}', 'a JSON object with "numTests", "results"'),
        ("[1]", "a JSON array"),
        ("Tests run: 5", "text that begins with 'Tests run: 5'"),
        (b"Rar!\x1a\x07\0", "binary data"),
        ("<testsuite><step/></testsuite>", "its beginning is that of JUnit, but .* first is <step>"),
    ):
        with pytest.raises(BadReport, match=resembled):
            read_test_report(document)


def test_every_sample_is_recognised_as_a_known_format() -> None:
    """Each sample of this file is recognised as one of the known formats."""
    for document in [document for document, _ in SAMPLES.values()]:
        assert read_test_report(document)[0].format in [format.name for format in TESTS]
    for document in [document for document, _ in COVERED.values()]:
        assert read_coverage_report(document)[0].format in [format.name for format in COVERAGE]


def test_rows_of_a_scenario_outline_are_separate_tests() -> None:
    """Rows of an outline have one name and their own lines."""
    step = {"keyword": "When ", "name": "x", "result": {"status": "failed"}}
    rows = [
        {"type": "scenario", "name": "row", "line": line, "steps": [step | {"result": {"status": status}}]}
        for line, status in ((5, "failed"), (6, "passed"))
    ]
    feature = {"keyword": "Feature", "name": "f", "uri": "a", "elements": rows}
    assert totals_of(read_test_report(json.dumps([feature]))[0]) == (2, 1, 0, 0, 0)
    empty = {"type": "scenario", "name": "empty", "line": 1, "steps": []}
    assert only_case(read_test_report(json.dumps([feature | {"elements": [empty]}]))[1]).status is SKIPPED
