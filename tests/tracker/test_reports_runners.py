"""TestNG, Allure, Jest, Vitest, RSpec and Playwright; SimpleCov, Istanbul, Visual Studio: what each result means."""

from __future__ import annotations

import io
import json
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from report_readers import case_fields, only_case, read_coverage_report, read_test_report, totals_of
from runner_samples import (
    ALLURE,
    ALLURE_CONTAINER,
    DOTNET_COVERAGE,
    ISTANBUL,
    JEST,
    PLAYWRIGHT,
    RESULTSET,
    RSPEC,
    SIMPLECOV_JSON,
    TESTNG,
    VISUAL_STUDIO,
    jest_test,
    playwright_test,
)

from models.tracker.reports import file_coverage
from models.tracker.reports.base import BadReport, CaseStatus, Limits, ReportTooLarge
from models.tracker.reports.detect import is_allure, is_empty, read_allure

PASSED, FAILED, ERROR, SKIPPED = CaseStatus.PASSED, CaseStatus.FAILED, CaseStatus.ERROR, CaseStatus.SKIPPED


def test_a_method_of_testng_counts_once_for_each_row_and_not_for_its_retries() -> None:
    assert case_fields(TESTNG) == [
        ("shop.CartTest", "adds", PASSED, 8, None),
        ("shop.CartTest", "row", PASSED, 9, None),
        ("shop.CartTest", "row", FAILED, 12, "expected [1] but found [2]"),
        ("shop.CartTest", "flaky", PASSED, 1, None),
        ("shop.CartTest", "later", SKIPPED, 0, None),
        ("shop.BrokenTest", "before", ERROR, 1, "setup"),
        ("shop.BrokenTest", "one", SKIPPED, 0, None),
    ]
    report, cases = read_test_report(TESTNG)
    assert [suite.name for suite in report.suites] == ["Suite > Unit"]
    assert (cases[2].failure_type, cases[0].out) == ("java.lang.AssertionError", "a line")
    assert cases[2].stack == "java.lang.AssertionError: expected\nat shop.CartTest.row(CartTest.java:8)"
    assert (cases[3].flaky, cases[3].reruns) == (True, 1)
    only_counts = '<testng-results total="5" passed="3" failed="2" skipped="0"/>'
    assert totals_of(read_test_report(only_counts)[0]) == (5, 2, 0, 0, 0)
    for length, wanted in (("12", 12), ("²", None), ("", None)):
        method = f'<test-method name="a" status="PASS" duration-ms="{length}"/>'
        document = f"<testng-results><suite><test><class name='A'>{method}</class></test></suite></testng-results>"
        assert only_case(read_test_report(document)[1]).duration_ms == wanted


def test_the_fields_of_an_allure_result() -> None:
    case = only_case(read_test_report(json.dumps(ALLURE))[1])
    assert (case.class_name, case.name, case.duration_ms) == ("t.test_a", "test_no", 12)
    assert (case.failure_message, case.stack) == ("AssertionError: assert 1 == 2", "def test_no():\n>   assert 1 == 2")
    assert case.attachments == ["1-attachment.txt", "2-attachment.png"]
    for status, wanted in (("passed", PASSED), ("skipped", SKIPPED), ("broken", ERROR), ("unknown", ERROR)):
        assert only_case(read_test_report(json.dumps(ALLURE | {"status": status}))[1]).status is wanted


def zipped(*documents: Any, name: str = "allure-results/{}-result.json") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, document in enumerate(documents):
            text = document if isinstance(document, str) else json.dumps(document)
            archive.writestr(name.format(number), text)
    return file.getvalue()


def attempts(*statuses: str) -> list[dict[str, Any]]:
    """Attempts of one test, the latest first."""
    count = len(statuses)
    return [ALLURE | {"status": status, "stop": count - n, "uuid": str(n)} for n, status in enumerate(statuses)]


@pytest.mark.parametrize(
    ("statuses", "wanted"),
    [
        (("passed", "failed"), (1, 0, 0, 0, 1)),
        (("failed", "passed"), (1, 1, 0, 0, 0)),
        (("broken", "broken", "broken"), (1, 0, 1, 0, 0)),
        (("passed", "passed"), (1, 0, 0, 0, 0)),
        (("skipped", "failed"), (1, 0, 0, 1, 0)),
    ],
)
def test_the_last_attempt_of_an_allure_test_counts_whatever_the_order_of_the_files(
    statuses: tuple[str, ...], wanted: tuple[int, ...], tmp_path: Path
) -> None:
    documents = attempts(*statuses)
    other = ALLURE | {"historyId": "another row", "status": "passed"}
    report, cases = read_test_report(zipped(*documents, other))
    assert totals_of(report) == (wanted[0] + 1, *wanted[1:])
    assert len(cases) - len(report.superseded) == 2
    files = {}
    for number, document in enumerate([*documents, other]):
        files[f"{number}.json"] = tmp_path / f"{number}.json"
        files[f"{number}.json"].write_text(json.dumps(document))
    assert totals_of(read_allure(files, Limits(), lambda _: None)) == totals_of(report)


def test_a_failed_fixture_of_allure_is_an_error_unless_its_test_failed() -> None:
    report, cases = read_test_report(zipped(ALLURE_CONTAINER, ALLURE | {"status": "passed"}))
    assert totals_of(report) == (2, 0, 1, 0, 0)
    assert [(case.name, case.failure_message) for case in cases if case.status is ERROR] == [
        ("(fixture) database", "no server")
    ]
    assert totals_of(read_test_report(zipped(ALLURE_CONTAINER, ALLURE))[0]) == (1, 1, 0, 0, 0)


def test_a_failed_fixture_of_allure_counts_beside_a_test_that_passed_again() -> None:
    again = attempts("passed", "failed")
    around_both = ALLURE_CONTAINER | {"children": [one["uuid"] for one in again]}
    assert totals_of(read_test_report(zipped(around_both, *again))[0]) == (2, 0, 1, 0, 1)
    around_first = ALLURE_CONTAINER | {"children": [again[1]["uuid"]]}
    assert totals_of(read_test_report(zipped(around_first, *again))[0]) == (1, 0, 0, 0, 1), "run again with its test"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (zipped("<testsuite/>", name="junit-{}.xml"), r"a zip without Allure results .*it has junit-0\.xml"),
        (zipped(ALLURE)[:-30], "the zip cannot be read"),
        (zipped("{"), r"0-result\.json: this is not well-formed JSON"),
        (zipped("[" * 100_000), r"0-result\.json: this is not well-formed JSON"),
        (zipped("[]"), r"0-result\.json: an Allure result is a JSON object"),
    ],
)
def test_a_zip_that_cannot_be_read_is_refused_with_the_entry(data: bytes, why: str) -> None:
    with pytest.raises(BadReport, match=why):
        read_test_report(data)
    assert is_empty(read_test_report(zipped())[0])


def test_the_entries_of_a_zip_count_as_inflated_bytes() -> None:
    spent: list[int] = []
    data = zipped(ALLURE | {"description": " " * 1_000_000})
    read_test_report(data, Limits(spend=spent.append))
    assert sum(spent) > 1_000_000
    with pytest.raises(ReportTooLarge, match="an Allure result is larger than"):
        read_test_report(zipped(" " * (16 * 1024 * 1024 + 1)))


def test_other_json_is_no_allure_result() -> None:
    least = {"uuid": "1", "name": "test", "status": "passed", "start": 1, "stop": 2}
    assert read_test_report(json.dumps(least))[0].format == "Allure results"
    ctrf = {"results": {"tests": [{"name": "a", "status": "passed", "start": 1, "extra": {"uuid": "1"}}]}}
    assert read_test_report(json.dumps(ctrf))[0].format == "CTRF"
    with pytest.raises(BadReport, match="its beginning is that of Allure results, but it has no uuid"):
        read_test_report('{"stats": {"start": 1}, "suites": 5, "tests": [{"uuid": "1"}]}')
    with pytest.raises(BadReport, match=r'a JSON object with "tests", "metrics": not a supported format'):
        read_test_report('{"tests": {"metrics": {}}}')
    for document, wanted in ((json.dumps(ALLURE), True), (json.dumps(JEST), False), (" <testsuite/>", False)):
        assert is_allure(io.BytesIO(document.encode())) is wanted


def test_the_fields_of_jest() -> None:
    assert case_fields(json.dumps(JEST)) == [
        ("a.test.js > math", "adds", PASSED, 2, None),
        ("a.test.js > math", "flaky", PASSED, 2, None),
        ("a.test.js > math", "fails", FAILED, 2, "Error: expected 3"),
        ("a.test.js > math", "later", SKIPPED, 2, None),
        ("a.test.js > math", "some day", SKIPPED, 2, None),
        ("b.test.js", "(suite)", ERROR, None, "● Test suite failed to run"),
    ]
    report, cases = read_test_report(json.dumps(JEST))
    assert [suite.name for suite in report.suites] == ["/src/a.test.js", "/src/b.test.js"]
    assert [case.file for case in cases][::5] == ["/src/a.test.js", "/src/b.test.js"]
    assert cases[2].stack == "Error: expected 3\n    at a.test.js:3:41"


def jest(*tests: dict[str, Any], status: str = "passed", success: bool = True) -> str:
    file = {"assertionResults": [*tests], "message": "", "name": "/src/a.test.js", "status": status}
    return json.dumps({"numTotalTests": len(tests), "success": success, "testResults": [file]})


def test_a_run_of_jest_that_did_not_succeed_is_never_green() -> None:
    """Vitest reports an error outside of tests only so; a passed test with messages was retried."""
    assert totals_of(read_test_report(jest(jest_test("a")))[0]) == (1, 0, 0, 0, 0)
    assert totals_of(read_test_report(jest(jest_test("a"), success=False))[0]) == (2, 0, 1, 0, 0)
    assert totals_of(read_test_report(jest(jest_test("a"), status="failed"))[0]) == (2, 0, 1, 0, 0)
    assert totals_of(read_test_report(jest(jest_test("a", "passed", "Error: first")))[0]) == (1, 0, 0, 0, 1)
    assert totals_of(read_test_report(jest(jest_test("a", "strange")))[0]) == (1, 0, 1, 0, 0)
    only_counts = '{"numTotalTests": 5, "numFailedTests": 2, "numPendingTests": 1, "testResults": []}'
    assert totals_of(read_test_report(only_counts)[0]) == (5, 2, 0, 1, 0)


def test_many_tests_of_jest_do_not_wait_for_the_name_of_their_file() -> None:
    report, cases = read_test_report(jest(*(jest_test(f"t{n}") for n in range(10_100))))
    assert (report.totals.tests, cases[0].file, cases[-1].file) == (10_100, None, "/src/a.test.js")


def test_the_fields_of_rspec() -> None:
    assert case_fields(json.dumps(RSPEC)) == [
        ("spec.a_spec", "Shop costs", PASSED, 5, None),
        ("spec.a_spec", "Shop costs", FAILED, 120, "expected: 5\n     got: 1"),
        ("spec.a_spec", "Shop later", SKIPPED, 0, "not yet"),
        ("", "(outside of examples)", ERROR, None,
         "An error occurred while loading ./spec/b_spec.rb. Failure/Error: raise 'load'"),
    ]  # fmt: skip
    failed = read_test_report(json.dumps(RSPEC))[1][1]
    assert (failed.file, failed.failure_type) == ("spec/a_spec.rb", "RSpec::Expectations::ExpectationNotMetError")
    assert (failed.stack or "").endswith("got: 1\n\n./spec/a_spec.rb:6:in `block'\n/usr/bin/rspec:4:in `<main>'")


def test_a_test_of_playwright_is_a_spec_in_a_project() -> None:
    assert case_fields(json.dumps(PLAYWRIGHT)) == [
        ("a.spec.ts > cart", "adds", PASSED, 20, None),
        ("a.spec.ts > cart", "adds", FAILED, 40, "Error: expect"),
        ("a.spec.ts > cart", "later", SKIPPED, 20, None),
        ("a.spec.ts > cart > inner", "flaky", PASSED, 40, None),
        ("a.spec.ts > pay", "by card", SKIPPED, None, None),
        ("", "(run)", ERROR, None, "Error: Cannot find module './missing'"),
    ]
    report, cases = read_test_report(json.dumps(PLAYWRIGHT))
    assert [suite.name for suite in report.suites] == ["a.spec.ts [chromium]", "a.spec.ts [firefox]"]
    assert (cases[3].flaky, cases[1].reruns, cases[1].out) == (True, 1, "hello\nhello")
    assert cases[1].attachments == ["out/trace-0.zip", "out/trace-1.zip"]
    spec = {"title": "x", "tests": [playwright_test("", "expected", "failed")]}  # `test.fail`
    document = {"config": {"rootDir": "/"}, "suites": [{"title": "b", "file": "b", "specs": [spec]}]}
    report, cases = read_test_report(json.dumps(document))
    assert (only_case(cases).status, report.suites[0].name) == (PASSED, "b")
    late = playwright_test("", "unexpected", "timedOut")
    late["results"][0].pop("error")
    spec["tests"] = [late, playwright_test("", "unexpected")]
    messages = [case.failure_message for case in read_test_report(json.dumps(document))[1]]
    assert messages == ["timedOut", None], "a test without results has none of the one before"


def test_the_lines_of_simplecov_are_united_over_its_commands() -> None:
    report, found = read_coverage_report(RESULTSET)
    assert found["/src/lib/shop.rb"].lines == {1: True, 2: True, 3: True, 4: True, 6: True}
    assert found["/src/lib/old.rb"].lines == {2: True, 3: False}
    assert (report.branch_covered, report.branch_missed) == (2, 0)
    report, found = read_coverage_report(SIMPLECOV_JSON)
    assert (report.format, found["/src/lib/shop.rb"].lines) == ("SimpleCov", {1: True, 2: False})
    assert (report.branch_covered, report.branch_missed) == (1, 1)
    arrays = '{"RSpec": {"coverage": {"/a.rb": [1, null, 0]}}, "Minitest": {"coverage": {"/a.rb": [0, null, 1]}}}'
    assert read_coverage_report(arrays)[1]["/a.rb"].lines == {1: True, 3: True}, "before SimpleCov 0.18"
    old = '{"timestamp": 1, "files": [{"filename": "/a.rb", "covered_percent": 50, "coverage": [1, null, 0]}]}'
    assert read_coverage_report(old)[1]["/a.rb"].lines == {1: True, 3: False}


def test_the_lines_of_istanbul_are_those_where_statements_begin() -> None:
    report, found = read_coverage_report(ISTANBUL)
    assert list(found) == ["/src/lib.js"]
    assert found["/src/lib.js"].lines == {1: True, 2: True, 3: False}
    assert (report.branch_covered, report.branch_missed) == (2, 1)
    older = '{"/a.js": {"path": "/a.js", "s": {"1": 0, "2": 0}, "b": {}, "f": {}, "fnMap": {}, "statementMap": '
    older += '{"1": {"start": {"line": 3}, "skip": true}, "2": {"start": {"line": 4}}}, "branchMap": {}}}'
    assert read_coverage_report(older)[1]["/a.js"].lines == {3: True, 4: False}
    with pytest.raises(BadReport, match="something else than files"):
        read_coverage_report('{"/a.js": {"path": "a", "statementMap": {}}, "total": 5}')


def test_the_lines_of_visual_studio_are_those_of_its_ranges() -> None:
    wanted = {10: True, 11: True, 12: True, 13: False, 14: False}
    for document in (VISUAL_STUDIO, DOTNET_COVERAGE):
        assert read_coverage_report(document)[1]["C:/src/Cart.cs"].lines == wanted
    assert read_coverage_report(DOTNET_COVERAGE)[1]["C:/src/Pay.cs"].lines == {3: False}


def test_ranges_of_many_lines_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    large = '<range source_id="0" start_line="1" end_line="1000000" covered="no"/>' * 40
    document = f"<results><modules><module>{large}</module></modules></results>"
    begin = time.process_time()
    with pytest.raises(ReportTooLarge, match=f"more than {file_coverage.MAX_UNITS} lines"):
        read_coverage_report(document)
    assert time.process_time() - begin < 10
