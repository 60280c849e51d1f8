"""Test reports other than JUnit, recognised by their content: TRX, xUnit v2, NUnit 3, CTRF and `go test -json`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from report_readers import only_case, read_test_report, read_totals, totals_of

from models.tracker.reports import gotest, json_stream
from models.tracker.reports.base import BadReport, CaseStatus, Limits, ReportTooLarge

PASSED, FAILED, ERROR, SKIPPED = CaseStatus.PASSED, CaseStatus.FAILED, CaseStatus.ERROR, CaseStatus.SKIPPED


# --- TRX ---


def trx(*results: str, definitions: str = "", summary: str = "") -> str:
    return f"""\ufeff<?xml version="1.0" encoding="utf-8"?>
<TestRun id="1" xmlns="http://microsoft.com/schemas/VisualStudio/TeamTest/2010">
<Results>{"".join(results)}</Results><TestDefinitions>{definitions}</TestDefinitions>{summary}</TestRun>"""


def result(outcome: str | None, name: str = "T", id: str = "1", inside: str = "") -> str:
    extra = "" if outcome is None else f'outcome="{outcome}"'
    return (
        f'<UnitTestResult testId="{id}" testName="{name}" duration="00:00:01.5000000" {extra}>{inside}</UnitTestResult>'
    )


OUTCOMES = {
    "Passed": PASSED, "Failed": FAILED, "Error": ERROR, "Timeout": ERROR, "Aborted": ERROR, "NotExecuted": SKIPPED,
    "Inconclusive": SKIPPED, "NotRunnable": SKIPPED, "Warning": PASSED, "Completed": PASSED, "InProgress": ERROR,
    "PassedButRunAborted": PASSED, "Disconnected": ERROR, "Pending": SKIPPED, None: ERROR, "Whatever": ERROR,
}  # fmt: skip


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_the_outcomes_of_trx(outcome: str | None) -> None:
    report, cases = read_test_report(trx(result(outcome)))
    assert only_case(cases).status is OUTCOMES[outcome]
    assert (report.format, report.totals.duration_ms) == ("TRX", 1500)


def test_trx_class_name_is_read_from_the_definition_after_the_results() -> None:
    definitions = """<UnitTest name="T" id="1"><TestMethod codeBase="x.dll" className="A.B, x" name="T"/></UnitTest>
        <UnitTest name="A.C.U" id="2"><TestMethod className="A.C" name="U"/></UnitTest>"""
    results = [result("Passed"), result("Passed", "A.C.U", "2"), result("Passed", "V", "3")]
    _, cases = read_test_report(trx(*results, definitions=definitions))
    assert [(case.class_name, case.name) for case in cases] == [("A.B", "T"), ("A.C", "U"), ("", "V")]


def test_tests_with_one_name_and_two_ids_are_two_tests() -> None:
    def rows(*ids: str) -> str:
        pairs = zip(ids, ("Fail", "Pass"), strict=True)
        return xunit(*(f'<test id="{id}" name="C.rows(x: ···)" type="C" result="{result}"/>' for id, result in pairs))

    for ids, wanted in ((("1", "2"), (2, 1, 0, 0, 0)), (("1", "1"), (1, 1, 0, 0, 0))):
        assert read_totals(trx(result("Failed", id=ids[0]), result("Passed", id=ids[1]))) == wanted
        assert read_totals(rows(*ids)) == wanted


def test_the_fields_of_a_trx_failure() -> None:
    inside = """<Output><StdOut>said</StdOut><StdErr>warned</StdErr>
        <ErrorInfo><Message>expected 1</Message><StackTrace>at x</StackTrace></ErrorInfo></Output>"""
    case = only_case(read_test_report(trx(result("Failed", inside=inside)))[1])
    assert (case.failure_message, case.stack, case.out, case.err) == ("expected 1", "at x", "said", "warned")


def test_inner_results_of_trx_count_and_their_parent_does_not() -> None:
    rows = result("Passed", "T (1)") + result("Failed", "T (2)")
    assert read_totals(trx(result("Failed", inside=f"<InnerResults>{rows}</InnerResults>"))) == (2, 1, 0, 0, 0)


def test_crashed_trx_run_is_an_error() -> None:
    info = '<RunInfos><RunInfo outcome="Error"><Text>the host crashed</Text></RunInfo></RunInfos>'
    summary = f'<ResultSummary outcome="Failed"><Counters total="0"/>{info}</ResultSummary>'
    report, cases = read_test_report(trx(summary=summary))
    assert totals_of(report) == (1, 0, 1, 0, 0)
    assert only_case(cases).stack == "the host crashed"
    assert read_totals(trx(result("Failed"), summary=summary)) == (1, 1, 0, 0, 0)
    report, cases = read_test_report(trx(result("Passed"), result("Passed", "U"), summary=summary))
    assert totals_of(report) == (3, 0, 1, 0, 0), "the tests that ran before it passed"
    assert (cases[-1].name, cases[-1].stack) == ("(run)", "the host crashed")
    assert read_totals(trx(result("Passed"), summary='<ResultSummary outcome="Aborted"/>')) == (2, 0, 1, 0, 0)
    assert read_totals(trx(result("Passed"), summary='<ResultSummary outcome="Completed"/>')) == (1, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("outcome", "counters", "wanted"),
    [
        ("Failed", 'total="5" failed="2" error="1"', (5, 2, 1, 0, 0)),
        (
            "Failed",
            'total="9" executed="6" failed="1" timeout="1" aborted="2" notExecuted="2" inconclusive="1"',
            (9, 1, 3, 3, 0),
        ),
        ("Completed", 'total="5" executed="3" passed="3" failed="0" notExecuted="0"', (5, 0, 0, 2, 0)),  # VSTest
        ("Completed", 'total="2" executed="7"', (2, 0, 0, 0, 0)),
        ("Failed", 'total="3" executed="3" passed="3" failed="0"', (4, 0, 1, 0, 0)),
        ("Aborted", 'total="0"', (1, 0, 1, 0, 0)),
    ],
)
def test_trx_without_results_counts_by_its_counters_and_outcome(
    outcome: str, counters: str, wanted: tuple[int, ...]
) -> None:
    summary = f'<ResultSummary outcome="{outcome}"><Counters {counters}/></ResultSummary>'
    assert read_totals(trx(summary=summary)) == wanted


# --- xUnit v2 ---


def xunit(*tests: str, errors: str = "", attributes: str = "") -> str:
    collection = f'<collection name="C" total="{len(tests)}">{"".join(tests)}</collection>'
    return (
        f'<assemblies><assembly name="a.dll" {attributes}><errors>{errors}</errors>{collection}</assembly></assemblies>'
    )


def test_xunit_counts_its_tests() -> None:
    report, cases = read_test_report(
        xunit(
            '<test name="N.C.ok" type="N.C" method="ok" time="0.25" result="Pass"/>',
            '<test name="N.C.no(x: 1)" type="N.C" method="no" time="0.5" result="Fail"><failure exception-type="E">'
            "<message><![CDATA[expected]]></message><stack-trace>at x</stack-trace></failure><output>o</output></test>",
            '<test name="N.C.later" type="N.C" result="Skip"><reason><![CDATA[not yet]]></reason></test>',
            '<test name="N.C.never" type="N.C" result="NotRun"/>',
        )
    )
    assert (report.format, totals_of(report), report.totals.duration_ms) == ("xUnit v2", (4, 1, 0, 2, 0), 750)
    assert [(suite.name, suite.totals.tests) for suite in report.suites] == [("C", 4)]
    assert [(case.class_name, case.name, case.status) for case in cases] == [
        ("N.C", "ok", PASSED),
        ("N.C", "no(x: 1)", FAILED),
        ("N.C", "later", SKIPPED),
        ("N.C", "never", SKIPPED),
    ]
    bad = cases[1]
    assert (bad.failure_type, bad.failure_message, bad.stack, bad.out) == ("E", "expected", "at x", "o")
    assert cases[2].failure_message == "not yet"


def test_the_errors_of_an_assembly_are_failed_tests() -> None:
    error = '<error type="test-class-cleanup" name="C"><failure><message>boom</message></failure></error>'
    report, cases = read_test_report(xunit('<test name="a" result="Pass"/>', errors=error))
    assert totals_of(report) == (2, 0, 1, 0, 0)
    assert (cases[0].class_name, cases[0].name, cases[0].failure_message) == ("test-class-cleanup", "C", "boom")


def test_xunit_without_tests_counts_by_its_attributes() -> None:
    assert read_totals('<assemblies><assembly name="a" total="3" failed="1" skipped="1" errors="1"/></assemblies>') == (
        4, 1, 1, 1, 0,
    )  # fmt: skip


# --- NUnit 3 ---

NUNIT = """<?xml version="1.0"?>
<test-run id="0" testcasecount="6" result="Failed" total="6" duration="9">
 <command-line><![CDATA[x]]></command-line>
 <test-suite type="Assembly" name="a.dll" fullname="/x/a.dll" result="Failed">
  <failure><message>One or more child tests had errors</message></failure>
  <test-suite type="TestFixture" name="F" fullname="N.F" result="Failed">
   <test-case name="Ok" fullname="N.F.Ok" classname="N.F" result="Passed" duration="0.25"><output>o</output></test-case>
   <test-case name="Bad(1)" fullname="N.F.Bad(1)" result="Failed" duration="0.5">
     <failure><message><![CDATA[expected]]></message><stack-trace>at x</stack-trace></failure></test-case>
   <test-case name="Boom" fullname="N.F.Boom" classname="N.F" result="Failed" label="Error"/>
   <test-case name="Later" fullname="N.F.Later" classname="N.F" result="Skipped" label="Ignored">
     <reason><message>not yet</message></reason></test-case>
   <test-case name="Dunno" fullname="N.F.Dunno" classname="N.F" result="Inconclusive"/>
   <test-case name="Hm" fullname="N.F.Hm" classname="N.F" result="Warning"><reason><message>hm</message></reason>
     <assertions><assertion result="Warning"><message>hm</message></assertion></assertions></test-case>
  </test-suite>
 </test-suite>
</test-run>"""


def test_nunit_counts_its_cases() -> None:
    report, cases = read_test_report(NUNIT)
    assert (report.format, totals_of(report), report.totals.duration_ms) == ("NUnit 3", (6, 1, 1, 2, 0), 750)
    assert [(suite.name, suite.totals.tests) for suite in report.suites] == [("N.F", 6)]
    assert [case.class_name for case in cases] == ["N.F"] * 6
    assert (cases[1].name, cases[1].failure_message, cases[1].stack) == ("Bad(1)", "expected", "at x")
    assert (cases[0].out, cases[3].failure_message) == ("o", "not yet")


def test_an_assembly_that_could_not_be_loaded_is_an_error() -> None:
    failure = "<failure><message>could not load</message><stack-trace>at y</stack-trace></failure>"
    suite = f'<test-suite type="Assembly" name="a.dll" total="0" result="Failed">{failure}</test-suite>'
    report, cases = read_test_report(f'<test-run total="0" result="Failed">{suite}</test-run>')
    assert totals_of(report) == (1, 0, 1, 0, 0)
    assert (only_case(cases).class_name, only_case(cases).stack) == ("a.dll", "could not load")


# --- CTRF ---


def ctrf(*tests: dict[str, Any], summary: dict[str, Any] | None = None, **more: Any) -> str:
    results = {"tool": {"name": "x"}, "summary": summary or {}, "tests": list(tests)}
    return json.dumps({"results": results} | more)


CTRF: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "passed": ({"status": "passed"}, (1, 0, 0, 0, 0)),
    "failed": ({"status": "failed"}, (1, 1, 0, 0, 0)),
    "skipped": ({"status": "skipped"}, (1, 0, 0, 1, 0)),
    "pending": ({"status": "pending"}, (1, 0, 0, 1, 0)),
    "other": ({"status": "other"}, (1, 0, 0, 1, 0)),
    "no status": ({}, (1, 0, 1, 0, 0)),
    "flaky": ({"status": "passed", "flaky": True, "retries": 2}, (1, 0, 0, 0, 1)),
    "flaky and failed": ({"status": "failed", "flaky": True}, (1, 1, 0, 0, 0)),
    "attempts": ({"status": "passed", "retryAttempts": [{"status": "failed", "name": "y"}]}, (1, 0, 0, 0, 0)),
    "steps": ({"status": "passed", "steps": [{"name": "s", "status": "failed"}]}, (1, 0, 0, 0, 0)),
}


@pytest.mark.parametrize("what", CTRF)
def test_ctrf_counts_its_tests(what: str) -> None:
    test, wanted = CTRF[what]
    report, cases = read_test_report(ctrf({"name": "a", "duration": 5, **test}))
    assert (report.format, totals_of(report), report.totals.duration_ms) == ("CTRF", wanted, 5)
    assert (only_case(cases).name, only_case(cases).reruns) == ("a", test.get("retries", 0))


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("size", [1 << 30, 1])
def test_the_fields_of_a_ctrf_test(indent: int | None, size: int) -> None:
    test = {
        "name": "é\x00😀", "status": "failed", "duration": 1.6, "suite": ["outer", "inner"], "message": "m",
        "trace": "at x", "stdout": ["one", "two\n"], "stderr": "warned", "extra": {"name": "no", "list": [1, [2]]},
    }  # fmt: skip
    document = json.dumps(json.loads(ctrf(test)), indent=indent, ensure_ascii=False)
    case = only_case(read_test_report(document, at_once=size)[1])
    assert (case.class_name, case.name, case.duration_ms) == ("outer > inner", "é\ufffd😀", 2)
    assert (case.failure_message, case.stack, case.out, case.err) == ("m", "at x", "one\ntwo", "warned")


def test_ctrf_without_tests_counts_by_its_summary() -> None:
    summary = {"tests": 6, "passed": 2, "failed": 1, "skipped": 1, "pending": 1, "other": 1}
    assert read_totals(ctrf(summary=summary)) == (6, 1, 0, 3, 0)
    assert read_totals(ctrf({"name": "a", "status": "passed"}, summary=summary)) == (2, 1, 0, 0, 0)


def test_invalid_numbers_of_ctrf_are_ignored() -> None:
    many = [-1, 1e300, 10**30, True, "5", None, [], {}]
    report, cases = read_test_report(
        ctrf(*({"name": str(n), "status": "passed", "duration": n, "retries": n} for n in many))
    )
    assert [case.duration_ms for case in cases] == [None] * len(many)
    assert report.totals.duration_ms == 0
    assert read_totals(ctrf(summary={"tests": -5, "failed": 10**12})) == (10**9, 10**9, 0, 0, 0)


def test_repeated_tests_of_ctrf_are_one_with_the_worst_outcome_unless_it_has_retries() -> None:
    failed, passed = {"name": "a", "status": "failed"}, {"name": "a", "status": "passed"}
    report, _ = read_test_report(ctrf(failed, passed))
    assert totals_of(report) == (1, 1, 0, 0, 0)
    assert (report.superseded, report.flaky) == (frozenset({1}), frozenset())
    report, _ = read_test_report(ctrf(failed, passed | {"retries": 1}))
    assert totals_of(report) == (1, 0, 0, 0, 1)
    assert (report.superseded, report.flaky) == (frozenset({0}), frozenset({1}))


@pytest.mark.parametrize("where", ["filePath", "browser"])
def test_ctrf_tests_of_one_name_in_two_files_or_browsers_are_two_tests(where: str) -> None:
    one, other = ({"name": "a", "status": status, where: status} for status in ("failed", "passed"))
    assert read_totals(ctrf(one, other)) == (2, 1, 0, 0, 0)
    assert read_totals(ctrf(one, {**one, "status": "passed"})) == (1, 1, 0, 0, 0)


BAD_JSON = {
    "half a file": ('{"results": {"tests": [{"name":\n "a"', 2, "JSON"),
    "words after the end": ('{"results": {"tests": [{}]}}\nDone', 2, "JSON"),
    "no number": ('{"results": {\n"x": NaN}}', 2, "JSON"),
    "nesting": ('{"results": {"x": ' + "[" * 100_000, 1, "200 deep"),
    "no tests": ('{"results": {"x": 1}}', None, "neither"),
    "a list": ("[1]", None, "not a supported format"),
}


@pytest.mark.parametrize("what", BAD_JSON)
def test_invalid_json_is_refused_with_its_line(what: str) -> None:
    document, line, why = BAD_JSON[what]
    with pytest.raises(BadReport, match=why) as bad:
        read_test_report(document)
    assert bad.value.line == line


def test_json_in_other_encodings_is_read() -> None:
    document = ctrf({"name": "é", "status": "passed"})
    for data in (b"\xef\xbb\xbf" + document.encode(), document.encode("utf-16"), document.encode("utf-16-le")):
        assert only_case(read_test_report(data)[1]).name == "é"


# --- go test -json ---


def go(*events: dict[str, Any] | str) -> str:
    return "".join((event if isinstance(event, str) else json.dumps(event)) + "\n" for event in events)


def ran(action: str, test: str | None = None, package: str = "p", **more: Any) -> dict[str, Any]:
    return (
        {"Time": "2026-01-01T00:00:00Z", "Action": action, "Package": package} | ({"Test": test} if test else {}) | more
    )


def go_output(output: str, test: str | None = None, package: str = "p") -> dict[str, Any]:
    return ran("output", test, package, Output=output)


def test_go_counts_tests_and_subtests() -> None:
    report, cases = read_test_report(
        go(
            "go: downloading example.com/x v1.0.0",
            ran("start"),
            ran("run", "TestA"),
            go_output("=== RUN   TestA\n", "TestA"),
            go_output("hello\n", "TestA"),
            ran("run", "TestA/sub"),
            go_output("    a_test.go:5: expected 1\n", "TestA/sub"),
            go_output("    --- FAIL: TestA/sub (0.00s)\n", "TestA/sub"),
            ran("fail", "TestA/sub", Elapsed=0.25),
            ran("fail", "TestA", Elapsed=0.5),
            ran("run", "TestB"),
            ran("pause", "TestB"),
            ran("cont", "TestB"),
            ran("pass", "TestB", Elapsed=0),
            ran("run", "TestC"),
            go_output("    c_test.go:9: not here\n", "TestC"),
            ran("skip", "TestC"),
            go_output("FAIL\n"),
            ran("fail", Elapsed=1.5),
        )
    )
    assert (report.format, totals_of(report)) == ("go test -json", (4, 2, 0, 1, 0))
    assert [(case.class_name, case.name, case.status) for case in cases] == [
        ("p", "TestA/sub", FAILED),
        ("p", "TestA", FAILED),
        ("p", "TestB", PASSED),
        ("p", "TestC", SKIPPED),
    ]
    assert (cases[0].failure_message, cases[0].duration_ms) == ("a_test.go:5: expected 1", 250)
    assert cases[1].stack == "hello"
    assert [suite.name for suite in report.suites] == ["p"]


GO = {
    "packages at the same time": (
        go(ran("run", "T", "p"), ran("run", "T", "q"), ran("pass", "T", "p"), ran("fail", "T", "q"),
           ran("pass", None, "p"), ran("fail", None, "q")),
        (2, 1, 0, 0, 0),
    ),
    "a package without tests": (go(ran("start"), go_output("? p [no test files]\n"), ran("skip")), (0, 0, 0, 0, 0)),
    "a package that failed without a failed test": (
        go(ran("run", "T"), ran("pass", "T"), go_output("exit status 2\n"), ran("fail")), (2, 0, 1, 0, 0),
    ),
    "a test that never ended": (go(ran("run", "T"), go_output("panic: x\n", "T"), ran("fail")), (1, 0, 1, 0, 0)),
    "a log that was cut off": (go(ran("run", "T"), ran("run", "U"), ran("pass", "T")), (2, 0, 1, 0, 0)),
    "a log that was cut off between two tests": (
        go(ran("start"), ran("run", "T"), ran("pass", "T"), ran("start", None, "q"), ran("pass", None, "q")),
        (2, 0, 1, 0, 0),
    ),
    "cut off in a failed package": (go(ran("start"), ran("run", "T"), ran("fail", "T")), (1, 1, 0, 0, 0)),
    "one that began and did not build": (go(ran("start"), "FAIL\tp [build failed]"), (1, 0, 1, 0, 0)),
    "twice, both passed": (go(*[ran("run", "T"), ran("pass", "T")] * 2, ran("pass")), (2, 0, 0, 0, 0)),
    "twice, first failed": (
        go(ran("run", "T"), ran("fail", "T"), ran("run", "T"), ran("pass", "T"), ran("pass")), (1, 1, 0, 0, 0),
    ),
    "a package that did not build": (
        go({"ImportPath": "p", "Action": "build-output", "Output": "x.go:1: no\n"},
           {"ImportPath": "p", "Action": "build-fail"}, ran("start"), go_output("FAIL\tp [build failed]\n"),
           ran("fail", Elapsed=0, FailedBuild="p")),
        (1, 0, 1, 0, 0),
    ),
    "one that did not build, in older words": (go(ran("pass", "T", "q"), "FAIL\tp [build failed]"), (2, 0, 1, 0, 0)),
    "the same in both words": (go("FAIL\tp [build failed]", ran("fail")), (1, 0, 1, 0, 0)),
    "what failed runs again, as gotestsum does it": (
        go(ran("run", "T"), ran("fail", "T"), ran("pass", "U"), ran("fail"), ran("run", "T"), ran("pass", "T"),
           ran("pass")),
        (2, 0, 0, 0, 1),
    ),
    "what fails again and again": (
        go(ran("run", "T"), ran("fail", "T"), ran("fail"), *[ran("run", "T"), ran("fail", "T"), ran("fail")] * 2),
        (1, 1, 0, 0, 0),
    ),
    "subtests of what failed run again, whatever they were": (
        go(ran("run", "T"), ran("pass", "T/a"), ran("fail", "T/b"), ran("fail", "T"), ran("pass", "U"), ran("fail"),
           ran("run", "T"), ran("pass", "T/a"), ran("pass", "T/b"), ran("pass", "T"), ran("pass")),
        (4, 0, 0, 0, 2),
    ),
    "a package that runs again with more than what failed": (
        go(ran("run", "T"), ran("fail", "T"), ran("pass", "U"), ran("fail"),
           ran("run", "T"), ran("pass", "T"), ran("pass", "U"), ran("pass")),
        (3, 1, 0, 0, 0),
    ),
    "output of a test that has passed, in a package that failed": (
        go(ran("run", "T"), ran("pass", "T"), ran("run", "U"), go_output("late\n", "T"), ran("fail", "U"), ran("fail")),
        (2, 1, 0, 0, 0),
    ),
    "output of a failed test without its begin": (
        go(go_output("x_test.go:5: no\n", "T"), ran("fail", "T"), ran("fail")), (1, 1, 0, 0, 0),
    ),
    "text that begins with a brace": (
        go(ran("run", "T"), '{"level":"info","msg":', "{not json}", '{"a": 1}', "{[]", ran("fail", "T"), ran("fail")),
        (1, 1, 0, 0, 0),
    ),
    "a log that is cut short within a line": (go(ran("run", "T"), '{"Action":"pass","Test":'), (1, 0, 1, 0, 0)),
    "events without a package": (
        go({"Action": "run", "Test": "T"}, {"Action": "output", "Test": "T", "Output": "x\n"},
           {"Action": "fail", "Test": "T", "Elapsed": 0.5}, {"Action": "fail"}),
        (1, 1, 0, 0, 0),
    ),
    "benchmarks beside a failed one": (
        go(ran("run", "BenchmarkA"), go_output("BenchmarkA\n", "BenchmarkA"),
           go_output("BenchmarkA-2 \t", "BenchmarkA"), go_output("  10\t 153.3 ns/op\n", "BenchmarkA"),
           ran("run", "BenchmarkB"), ran("fail", "BenchmarkB"),
           ran("run", "BenchmarkC"), go_output("BenchmarkC\n", "BenchmarkC"), ran("fail")),
        (2, 1, 1, 0, 0),
    ),
    "ends behind an output without a newline": (
        go(ran("run", "T"), go_output("text--- PASS: T (0.00s)\n", "T"), ran("run", "S"),
           go_output("text--- SKIP: S (0.00s)\n", "S"), ran("run", "F"), go_output("text--- FAIL: F (0.00s)\n", "F"),
           ran("run", "O"), go_output("text--- PASS: T (0.00s)\n", "O"), ran("fail")),
        (4, 1, 1, 1, 0),
    ),
    "a test without an end in a package that passed": (go(ran("run", "T"), ran("pass")), (1, 0, 1, 0, 0)),
    "benchmarks": (go(ran("run", "BenchmarkX"), ran("bench", "BenchmarkX"), ran("pass")), (0, 0, 0, 0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("size", [1 << 30, 5])
@pytest.mark.parametrize("what", GO)
def test_totals_of_go_test(what: str, size: int) -> None:
    document, wanted = GO[what]
    assert totals_of(read_test_report(document, at_once=size)[0]) == wanted


def test_build_output_of_go_is_the_text_of_the_failure() -> None:
    assert only_case(read_test_report(GO["a package that did not build"][0])[1]).stack == "x.go:1: no"
    fails = [ran("fail", None, package, FailedBuild="dep") for package in ("p", "q")]
    _, cases = read_test_report(go({"ImportPath": "dep", "Action": "build-output", "Output": "y.go:1: no\n"}, *fails))
    assert [(case.class_name, case.stack) for case in cases] == [("p", "y.go:1: no"), ("q", "y.go:1: no")]


def test_the_last_outcome_of_a_go_test_counts_where_that_is_requested() -> None:
    for what in ("twice, first failed", "what failed runs again, as gotestsum does it"):
        assert totals_of(read_test_report(GO[what][0], Limits(reruns="last"))[0])[1:] == (0, 0, 0, 1)


def test_a_test_of_go_that_ran_again_has_the_number_of_its_reruns() -> None:
    document = GO["what fails again and again"][0]
    report, cases = read_test_report(document)
    assert [case.reruns for case in cases] == [0, 1, 2]
    assert report.superseded == frozenset((0, 1))


def test_late_output_belongs_to_the_package() -> None:
    events = [ran("run", "T"), ran("pass", "T"), go_output("late\n", "T"), ran("fail")]
    assert [(case.name, case.stack) for case in read_test_report(go(*events))[1]] == [
        ("T", None),
        ("(package)", "late"),
    ]


def test_go_events_without_a_package_have_the_suite_of_the_caller() -> None:
    document = go({"Action": "run", "Test": "T"}, {"Action": "pass", "Test": "T"}, {"Action": "pass"})
    report, cases = read_test_report(document, Limits(suite="unit-tests"))
    assert (only_case(cases).class_name, report.suites[0].name) == ("unit-tests", "unit-tests")


def test_a_log_without_any_event_of_go_is_refused() -> None:
    for line in ('{"Action": "pass", ', '{"Action":' * 5000, '{"Action": "pass"} {"x": 1}'):
        with pytest.raises(BadReport, match=r"go test -json, but no line of it is an event \(expected one of JUnit"):
            read_test_report(go("make: nothing", line))


def test_length_of_a_go_line_is_bounded() -> None:
    with pytest.raises(BadReport, match="longer than"):
        read_test_report(go(ran("run", "T")) + '{"Action": "output", "Output": "' + "x" * 9_000_000)


def test_invalid_numbers_of_go_are_ignored() -> None:
    document = go(ran("run", "T")) + '{"Action": "pass", "Package": "p", "Test": "T", "Elapsed": NaN}\n'
    assert only_case(read_test_report(document)[1]).duration_ms is None


def test_length_of_a_json_text_is_bounded() -> None:
    with pytest.raises(BadReport, match="longer than"):
        read_test_report(
            ctrf({"name": "a", "status": "passed", "stdout": ["x" * (json_stream.MAX_TEXT_BYTES + 1_000_000)]})
        )
    case = only_case(
        read_test_report(ctrf({"name": "a", "status": "passed", "stdout": ["x" * (json_stream.MAX_TEXT_BYTES // 2)]}))[
            1
        ]
    )
    assert len(case.out or "") <= Limits().output


def test_number_of_concurrent_go_tests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gotest, "MAX_RUNNING", 2)
    assert read_totals(go(*(ran(action, f"T{at}") for at in range(5) for action in ("run", "pass"))))[0] == 5
    with pytest.raises(ReportTooLarge, match="at the same time"):
        read_test_report(go(*(ran("run", f"T{at}") for at in range(5))))
    with pytest.raises(ReportTooLarge, match="more than 2 packages"):
        read_test_report(go(*(ran("pass", None, f"p{at}") for at in range(5))))


def test_buffered_output_of_go_tests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gotest, "MAX_HELD_BYTES", 100)
    document = go(
        go_output("a" * 80, "T"),
        go_output("b" * 80, "U"),
        ran("fail", "T"),
        go_output("c" * 80, "V"),
        ran("fail", "V"),
    )
    _, cases = read_test_report(document + go(ran("fail", "U")))
    assert [case.stack for case in cases] == ["a" * 80, "c" * 80, "\n… cut: 80 characters"]


def test_number_of_tests_is_bounded_in_every_format() -> None:
    limits = Limits(tests=1)
    one = ran("pass", "T")
    for document in (
        trx(result("Passed"), result("Passed", "U")),
        xunit('<test name="a" result="Pass"/>' * 2),
        NUNIT,
        ctrf({"name": "a", "status": "passed"}, {"name": "b", "status": "passed"}),
        go(one, one),
    ):
        with pytest.raises(ReportTooLarge):
            read_test_report(document, limits)
