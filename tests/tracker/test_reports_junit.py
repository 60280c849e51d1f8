"""Dialects of JUnit: counts, identity of tests, and fields."""

from __future__ import annotations

import pytest
from report_readers import only_case, read_test_report, read_totals, suite, totals_of

from models.tracker.reports import totals
from models.tracker.reports.base import BadReport, CaseStatus, Limits, ReportTooLarge
from models.tracker.reports.text_cleaning import duration_ms

OK = '<testcase classname="c" name="ok"/>'
BAD = '<testcase classname="c" name="bad"><failure message="no"/></testcase>'


def case(name: str = "a", inside: str = "", attributes: str = "") -> str:
    return f'<testcase classname="c" name="{name}" {attributes}>{inside}</testcase>'


COUNTED = {
    "a suite as root": (suite(OK, BAD), (2, 1, 0, 0, 0)),
    "suites as root": (f"<testsuites>{suite(OK)}{suite(BAD)}</testsuites>", (2, 1, 0, 0, 0)),
    "a bare case as root": (case(inside="<error/>"), (1, 0, 1, 0, 0)),
    "no case at all": ("<testsuites/>", (0, 0, 0, 0, 0)),
    "suites in suites in suites": (f"<testsuites>{suite(suite(suite(OK), OK), BAD)}</testsuites>", (3, 1, 0, 0, 0)),
    "cases beside suites in the root": (f"<testsuites>{OK}{suite(BAD)}</testsuites>", (2, 1, 0, 0, 0)),
    "a case in a case": (suite(case("outer", case("inner", "<failure/>"))), (2, 1, 0, 0, 0)),
    "wrong counts": (suite(OK, BAD, attributes='tests="9" failures="8" errors="7" skipped="6"'), (2, 1, 0, 0, 0)),
    "an error outweighs a failure": (suite(case(inside="<failure/><error/>")), (1, 0, 1, 0, 0)),
    "a failure outweighs a skip": (suite(case(inside="<skipped/><failure/>")), (1, 1, 0, 0, 0)),
    "many failures of a case": (suite(case(inside="<failure/>" * 5)), (1, 1, 0, 0, 0)),
    "skipped": (suite(case(inside="<skipped/>")), (1, 0, 0, 1, 0)),
    "a disabled element": (suite(case(inside="<disabled/>")), (1, 0, 0, 1, 0)),
    "an ignored element": (suite(case(inside="<ignored/>")), (1, 0, 0, 1, 0)),
    "googletest did not run it": (suite(case(attributes='status="notrun" result="suppressed"')), (1, 0, 0, 1, 0)),
    "googletest skipped it": (suite(case(attributes='status="run" result="skipped"')), (1, 0, 0, 1, 0)),
    "googletest completed it": (suite(case(attributes='status="run" result="completed"')), (1, 0, 0, 0, 0)),
    "failed by attribute": (
        suite(*(case(name, attributes=f'status="{name}"') for name in ("failed", "FAIL", "failure", "Error"))),
        (4, 3, 1, 0, 0),
    ),
    "error by attribute, but failed": (suite(case(inside="<failure/>", attributes='status="error"')), (1, 1, 0, 0, 0)),
    "failed by attribute, but skipped": (suite(case(inside="<skipped/>", attributes='result="fail"')), (1, 0, 0, 1, 0)),
    "failed by attribute, but lucky": (
        suite(case(inside="<flakyFailure/>", attributes='status="failed"')), (1, 0, 0, 0, 1)
    ),
    "disabled by attribute": (suite(case(attributes='disabled="true"')), (1, 0, 0, 1, 0)),
    "not disabled by attribute": (suite(case(attributes='disabled="false"')), (1, 0, 0, 0, 0)),
    "notrun, but it failed": (suite(case(inside="<failure/>", attributes='status="notrun"')), (1, 1, 0, 0, 0)),
    "surefire reruns in vain": (
        suite(case(inside="<failure/><rerunFailure/><rerunError/>"), attributes='tests="3" failures="2"'),
        (1, 1, 0, 0, 0),
    ),
    "only its reruns are told": (suite(case(inside="<rerunFailure/><rerunError/>")), (1, 1, 0, 0, 0)),
    "reruns before the failure": (suite(case(inside="<rerunFailure/><error/>")), (1, 0, 1, 0, 0)),
    "surefire is lucky": (suite(case(inside="<flakyFailure/><flakyError/>")), (1, 0, 0, 0, 1)),
    "flaky and failed": (suite(case(inside="<flakyFailure/><failure/>")), (1, 1, 0, 0, 0)),
    "a namespace": (
        '<j:testsuite xmlns:j="urn:x" name="s"><j:testcase name="a"><j:failure/></j:testcase></j:testsuite>',
        (1, 1, 0, 0, 0),
    ),
    "a default namespace": ('<testsuite xmlns="urn:x"><testcase><error/></testcase></testsuite>', (1, 0, 1, 0, 0)),
    "a prefix of no namespace": ('<j:testsuite><j:testcase name="a"/></j:testsuite>', (1, 0, 0, 0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("what", COUNTED)
def test_totals_of_junit_cases(what: str) -> None:
    document, wanted = COUNTED[what]
    assert read_totals(document) == wanted


ATTRIBUTES = {
    "a suite without cases": (suite(attributes='tests="6" failures="1" errors="1" skipped="2"'), (6, 1, 1, 2, 0)),
    "disabled ones are skipped": (suite(attributes='tests="6" disabled="2" skipped="1"'), (6, 0, 0, 3, 0)),
    "no count of tests": (suite(attributes='failures="2"'), (2, 2, 0, 0, 0)),
    "fewer tests than failures": (suite(attributes='tests="1" failures="2"'), (2, 2, 0, 0, 0)),
    "thousands": (suite(attributes='tests="1,234"'), (1234, 0, 0, 0, 0)),
    "nonsense": (suite(attributes='tests="-5" failures="NaN" errors="" skipped="1e9"'), (0, 0, 0, 0, 0)),
    "one beside another with cases": (suite(suite(OK), suite(attributes='tests="4"')), (5, 0, 0, 0, 0)),
    "one with cases below": (suite(suite(OK), attributes='tests="9" failures="9"'), (2, 1, 0, 0, 0)),
    "the inner one, not both": (suite(suite(attributes='tests="2"'), attributes='tests="2"'), (2, 0, 0, 0, 0)),
    "the outer one, if only it tells": (suite(suite(), attributes='tests="2" errors="1"'), (2, 0, 1, 0, 0)),
    "the root, if only it tells": ('<testsuites tests="3" failures="1"/>', (3, 1, 0, 0, 0)),
    "its own error": (suite("<error/>"), (1, 0, 1, 0, 0)),
    "its own failure": (suite("<failure/>"), (1, 1, 0, 0, 0)),
    "its own error, and no tests": (suite("<error/>", attributes='tests="0" errors="0"'), (1, 0, 1, 0, 0)),
    "its own error, counted already": (suite("<error/>", attributes='tests="1" errors="1"'), (1, 0, 1, 0, 0)),
    "its own error beside tests that passed": (suite("<error/>", attributes='tests="4"'), (5, 0, 1, 0, 0)),
    "two errors of its own": (suite("<error/><error/>"), (1, 0, 1, 0, 0)),
    "its own error beside cases": (suite(BAD, "<error/>"), (2, 1, 1, 0, 0)),
    "its own failure beside a case that passed": (suite(OK, "<failure/>"), (2, 1, 0, 0, 0)),
    "declared failures that are listed": (suite(BAD, attributes='tests="3" failures="2"'), (1, 1, 0, 0, 0)),
    "declared failures that were retried": (
        suite("<testcase name='a'><flakyFailure/></testcase>", attributes='failures="1"'), (1, 0, 0, 0, 1)),
    "an absurd count": (suite(attributes='tests="99999999999999999999"'), (10**9, 0, 0, 0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("what", ATTRIBUTES)
def test_a_suite_without_cases_counts_by_its_attributes_or_else_its_error(what: str) -> None:
    document, wanted = ATTRIBUTES[what]
    assert read_totals(document) == wanted


def test_the_error_of_a_suite_is_reported() -> None:
    report, cases = read_test_report(
        suite('<error type="NoClassDefFound" message="x/Y">at a\nat b</error>', attributes='tests="1"')
    )
    error = only_case(cases)
    assert (error.class_name, error.name, error.status, error.suite) == ("s", "(suite)", CaseStatus.ERROR, 0)
    assert (error.failure_type, error.failure_message, error.stack) == ("NoClassDefFound", "x/Y", "at a\nat b")
    assert report.suites[0].totals.errors == report.totals.errors == 1


def test_a_suite_that_declares_failures_and_lists_none_is_a_failure() -> None:
    report, cases = read_test_report(suite(OK, attributes='failures="1" errors="1"'))
    (failure,) = [case for case in cases if case.status is CaseStatus.FAILED]
    assert (failure.class_name, failure.name, failure.suite) == ("s", "(suite)", 0)
    assert failure.failure_message == "declares 2 failures, lists none"
    assert (report.suites[0].totals.tests, report.suites[0].totals.failed) == (2, 1)


PASSED, FAILED, SKIPPED, ERROR = "", "<failure/>", "<skipped/>", "<error/>"
RERUN = "<failure/><rerunFailure/>"
REPEATED: dict[str, tuple[list[str], tuple[int, ...], set[int], set[int]]] = {
    "failed, then passed": ([FAILED, PASSED], (1, 1, 0, 0, 0), {1}, set()),
    "passed, then failed": ([PASSED, FAILED], (1, 1, 0, 0, 0), {0}, set()),
    "failed, error, passed": ([FAILED, ERROR, PASSED], (1, 0, 1, 0, 0), {0, 2}, set()),
    "error, failed, passed": ([ERROR, FAILED, PASSED], (1, 0, 1, 0, 0), {1, 2}, set()),
    "passed, failed, passed": ([PASSED, FAILED, PASSED], (1, 1, 0, 0, 0), {0, 2}, set()),
    "passed, failed, failed": ([PASSED, FAILED, FAILED], (1, 1, 0, 0, 0), {0, 1}, set()),
    "all passed": ([PASSED, PASSED], (2, 0, 0, 0, 0), set(), set()),
    "none passed": ([FAILED, ERROR], (2, 1, 1, 0, 0), set(), set()),
    "skipped, then passed": ([SKIPPED, PASSED], (2, 0, 0, 1, 0), set(), set()),
    "passed, then skipped": ([PASSED, SKIPPED], (2, 0, 0, 1, 0), set(), set()),
    "skipped, then failed": ([SKIPPED, FAILED], (2, 1, 0, 1, 0), set(), set()),
    "passed, skipped, failed": ([PASSED, SKIPPED, FAILED], (2, 1, 0, 1, 0), {0}, set()),
    "all skipped": ([SKIPPED, SKIPPED], (2, 0, 0, 2, 0), set(), set()),
    "reruns are marked, the last passed": ([RERUN, PASSED], (1, 0, 0, 0, 1), {0}, {1}),
    "reruns are marked, the last failed": (["<flakyFailure/>", FAILED], (1, 1, 0, 0, 0), {0}, set()),
    "the last is marked as flaky": ([FAILED, "<flakyFailure/>"], (1, 0, 0, 0, 1), {0}, set()),
}  # fmt: skip


@pytest.mark.parametrize("what", REPEATED)
def test_repeated_test_counts_once_with_its_worst_outcome_unless_reruns_are_marked(what: str) -> None:
    outcomes, wanted, superseded, flaky = REPEATED[what]
    report, cases = read_test_report(suite(*(case("same", outcome) for outcome in outcomes)))
    assert totals_of(report) == wanted
    assert report.suites[0].totals == report.totals
    assert report.superseded == superseded
    assert report.flaky == flaky
    assert len(cases) == len(outcomes)


def test_last_outcome_of_a_repeated_test_counts_on_request() -> None:
    last = Limits(reruns="last")
    for outcomes, wanted in (
        ((FAILED, PASSED), (1, 0, 0, 0, 1)),
        ((PASSED, FAILED), (1, 1, 0, 0, 0)),
        ((PASSED, FAILED, SKIPPED), (2, 1, 0, 1, 0)),
        ((FAILED, ERROR), (2, 1, 1, 0, 0)),
    ):
        assert totals_of(read_test_report(suite(*(case("same", outcome) for outcome in outcomes)), last)[0]) == wanted


def test_a_rerun_of_one_test_does_not_affect_another() -> None:
    others = case("other", FAILED) + case("other") + case("same", RERUN) + case("same")
    assert read_totals(suite(others)) == (2, 1, 0, 0, 1)


@pytest.mark.parametrize(
    "cases",
    [
        ['<testcase name=""/>', '<testcase name=""><failure/></testcase>'],
        ["<testcase/>", "<testcase><failure/></testcase>"],
        ['<testcase name=" "/>', '<testcase name=" "><failure/></testcase>'],
        ['<testcase classname="a" name="x"/>', '<testcase classname="b" name="x"><failure/></testcase>'],
        ['<testcase classname="a" name="x"/>', '<testcase classname="a" name="X"><failure/></testcase>'],
        ['<testcase name="x" file="a.js"><failure/></testcase>', '<testcase name="x" file="b.js"/>'],  # node
    ],
)
def test_unnamed_and_different_tests_count_separately(cases: list[str]) -> None:
    assert read_totals(suite(*cases)) == (2, 1, 0, 0, 0)


def test_the_same_name_in_two_suites_is_two_tests() -> None:
    one, other = suite(case("same")), suite(case("same", FAILED))
    assert read_totals(f"<testsuites>{one}{other}</testsuites>") == (2, 1, 0, 0, 0)
    assert read_totals(suite(case("same"), suite(case("same", FAILED)))) == (2, 1, 0, 0, 0)


def test_repeated_names_are_found_among_many_cases() -> None:
    """More than are compared in one batch."""
    many = [case(f"t{number}", FAILED) for number in range(70_000)]
    report, _ = read_test_report(suite(*many, *(case(f"t{number}") for number in range(0, 70_000, 7000))))
    assert totals_of(report) == (70_000, 70_000, 0, 0, 0)
    assert report.superseded == set(range(70_000, 70_010))


def test_the_fields_of_a_failed_case_are_kept() -> None:
    inside = """<failure message="expected 1" type="AssertionError"> at x
at y </failure><failure message="second"/><system-out>said </system-out><system-out><![CDATA[<more>]]></system-out>
<system-err>warned</system-err>"""
    found = only_case(read_test_report(suite(case("a", inside, 'time="1.5"')))[1])
    assert (found.class_name, found.name, found.status, found.duration_ms) == ("c", "a", CaseStatus.FAILED, 1500)
    assert (found.failure_type, found.failure_message, found.stack) == (
        "AssertionError",
        "expected 1",
        "at x\nat y \n\nsecond",
    )
    assert (found.out, found.err) == ("said <more>", "warned")


def test_error_takes_precedence_over_a_failure_of_the_same_case() -> None:
    found = only_case(
        read_test_report(suite(case("a", "<failure message='f'>f</failure><error message='e'>e</error>")))[1]
    )
    assert (found.failure_message, found.stack) == ("e", "e")
    found = only_case(
        read_test_report(suite(case("a", "<error message='e'>e</error><failure message='f'>f</failure>")))[1]
    )
    assert (found.failure_message, found.stack) == ("e", "e")


def test_the_retries_of_surefire_are_counted_and_not_mixed_into_the_outcome() -> None:
    retried = """<flakyFailure message="first" type="T"><stackTrace>at one</stackTrace><system-out>o1</system-out>
    </flakyFailure><flakyError message="second"><stackTrace>at two</stackTrace></flakyError>"""
    found = only_case(read_test_report(suite(case("a", retried)))[1])
    assert (found.status, found.flaky, found.reruns) == (CaseStatus.PASSED, True, 2)
    assert (found.failure_message, found.stack, found.out) == ("first", "at one", None)
    failed = """<failure message="last">at three</failure>
    <rerunFailure message="again"><stackTrace>at four</stackTrace><system-err>e</system-err></rerunFailure>"""
    found = only_case(read_test_report(suite(case("a", failed)))[1])
    assert (found.status, found.flaky, found.reruns) == (CaseStatus.FAILED, False, 1)
    assert (found.failure_message, found.stack, found.err) == ("last", "at three", None)


def test_output_of_a_suite_is_not_that_of_its_cases() -> None:
    assert only_case(read_test_report(suite(OK, "<system-out>all of it</system-out>"))[1]).out is None


@pytest.mark.parametrize(
    ("attributes", "class_name", "name"),
    [
        ('classname="a.b.C" name="d"', "a.b.C", "d"),
        ('classname="" name="a b"', "", "a b"),
        ('classname=" a b" name=" c "', "a b", "c"),
        ('name="com.example.Foo.testBar"', "com.example.Foo", "testBar"),
        ('name="version 1.5 works"', "", "version 1.5 works"),
        ('name="bazel/failing_test"', "", "bazel/failing_test"),
        ('name="test 1.2"', "", "test 1.2"),
        ('classname="c"', "c", ""),
    ],
)
def test_the_names_of_a_case(attributes: str, class_name: str, name: str) -> None:
    found = only_case(read_test_report(suite(f"<testcase {attributes}/>"))[1])
    assert (found.class_name, found.name) == (class_name, name)


def test_long_texts_are_truncated_and_long_names_stay_distinct() -> None:
    long = "x" * 5000
    names = [f"{long}1", f"{long}2"]
    result = "".join(case(name, f'<failure message="{long}" type="{long}"/>') for name in names)
    report, cases = read_test_report(f'<testsuite name="{long}">{result}</testsuite>')
    assert [len(found.name) for found in cases] == [512, 512]
    assert cases[0].name != cases[1].name
    assert cases[0].name.startswith("x" * 500)
    assert (len(cases[0].failure_message or ""), len(cases[0].failure_type or "")) == (2000, 512)
    assert len(report.suites[0].name) == 512


def test_output_is_truncated_with_a_note() -> None:
    limits = Limits(output=1000)
    found = only_case(
        read_test_report(
            suite(case("a", f"<system-out>{'ä' * 5000}</system-out><failure>{'y' * 999}</failure>")), limits
        )[1]
    )
    assert found.out is not None
    assert len(found.out.encode()) <= 1000
    kept, _, mark = found.out.partition("\n… cut: ")
    assert set(kept) == {"ä"}
    assert mark == f"{5000 - len(kept)} characters"
    assert found.stack == "y" * 999


TIMES = {
    "0": 0, "0.0014": 1, "12": 12_000, "1.5": 1500, " 2 ": 2000, ".001": 1, "5.": 5000, "1e-3": 1, "1.5E+1": 15_000,
    "1,234.5": 1_234_500, "14,029.255": 14_029_255, "1,234": 1_234_000, "1,234,567.8": 1_234_567_800,
    "0,03": 30, "0,160": 160, "12,5": 12_500, "1.234,5": 1_234_500, "2\u202f120,5": 2_120_500,
    "80.803us": 0, "1803us": 2, "12ms": 12, "1.5s": 1500, "3 s": 3000, "2000000ns": 2, "250µs": 0,
    "00:01:02.5": 62_500, "1.00:00:01": 86_401_000,
    "": None, "-1": None, "-0.5": None, "NaN": None, "Infinity": None, "inf": None, "1e400": None, "abc": None,
    "1.2.3": None, "0x10": None, "99999999999999": None, "\u0661": None, "1;5": None, "1h2m": None,
}  # fmt: skip


@pytest.mark.parametrize("text", TIMES)
def test_duration_of_a_case(text: str) -> None:
    assert duration_ms(text) == TIMES[text]
    assert only_case(read_test_report(suite(f'<testcase name="a" time="{text}"/>'))[1]).duration_ms == TIMES[text]


def test_duration_of_a_report_is_that_of_its_cases_or_else_of_its_suites() -> None:
    timed = suite(case("a", attributes='time="1"'), case("b", attributes='time="x"'), attributes='time="99"')
    untimed = suite(case("a"), attributes='time="2,000.5"')
    report, _ = read_test_report(f'<testsuites time="5">{timed}{untimed}</testsuites>')
    assert [one.totals.duration_ms for one in report.suites] == [1000, 2_000_500]
    assert report.totals.duration_ms == 2_001_500
    assert read_test_report(f'<testsuites time="5">{suite(case("a"))}</testsuites>')[0].totals.duration_ms == 5000


def test_only_suites_with_cases_or_counts_are_listed() -> None:
    document = f"""<testsuites name="all"><testsuite name="outer"><testsuite name="inner">{OK}</testsuite>
    <testsuite name="empty"/><testsuite name="counts" tests="2"/></testsuite>{BAD}</testsuites>"""
    report, cases = read_test_report(document)
    assert [(one.name, one.totals.tests) for one in report.suites] == [("inner", 1), ("counts", 2)]
    assert [found.suite for found in cases] == [0, None]


def test_more_tests_than_a_report_may_have_are_refused() -> None:
    with pytest.raises(ReportTooLarge, match="more than 2 tests"):
        read_test_report(suite(OK, OK, OK), Limits(tests=2))
    assert totals_of(read_test_report(suite(OK, OK), Limits(tests=2))[0])[0] == 2


def test_more_suites_than_a_report_may_have_are_refused() -> None:
    with pytest.raises(ReportTooLarge, match="more than 5 suites"):
        read_test_report("<testsuites>" + suite() * 5 + "</testsuites>", Limits(tests=5))


def test_suites_over_the_limit_of_the_list_still_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(totals, "MAX_LISTED_SUITES", 2)
    report, cases = read_test_report("<testsuites>" + suite(OK) * 3 + suite(attributes='tests="2"') + "</testsuites>")
    assert (len(report.suites), report.totals.tests) == (2, 5)
    assert [found.suite for found in cases] == [0, 1, None]


def test_nesting_depth_is_bounded() -> None:
    def nested(depth: int) -> str:
        return "<testsuite>" * depth + "</testsuite>" * depth

    read_test_report(nested(200))
    with pytest.raises(BadReport, match="200 deep"):
        read_test_report(nested(201))
    with pytest.raises(BadReport, match="200 deep"):
        read_test_report(nested(50_000))


def test_failures_of_one_case_share_one_output_limit() -> None:
    """googletest writes a failure for each failed check."""
    limits = Limits(output=1000)
    many = '<failure message="m" type="t">' + "x" * 600 + "</failure>"
    case_of_many = case("a", f"<system-out>{'o' * 900}</system-out>{many * 5000}<error>{'e' * 900}</error>")
    found = only_case(read_test_report(suite(case_of_many), limits)[1])
    assert (found.status, found.stack, found.out) == (CaseStatus.ERROR, "e" * 900, "o" * 900)
    found = only_case(read_test_report(suite(case("a", many * 5000)), limits)[1])
    assert (found.status, found.failure_type, (found.stack or "")[:605]) == (
        CaseStatus.FAILED,
        "t",
        "x" * 600 + "\n\nxxx",
    )
    assert len(found.stack or "") <= 1000
    assert "\n… cut: 59" in (found.stack or "")


def test_the_text_of_a_failed_case_has_each_of_its_failures() -> None:
    inside = (
        '<failure message="m1">one</failure><failure message="two"/><failure/><failure message="m3">three</failure>'
    )
    found = only_case(read_test_report(suite(case("a", inside)))[1])
    assert (found.failure_message, found.stack) == ("m1", "one\n\ntwo\n\nthree")
    assert only_case(read_test_report(suite(case("a", "<skipped>x</skipped><skipped>y</skipped>")))[1]).stack == "x"


def test_text_of_ignored_elements_is_omitted() -> None:
    inside = "<properties>p<property>q</property></properties>t<failure>f<b>g</b>h<properties>i</properties></failure>u"
    assert only_case(read_test_report(suite(case("a", inside + "<x><failure>no</failure></x>")))[1]).stack == "fghi"
    rerun = "<flakyFailure>a<system-out>b</system-out>c<stackTrace>d</stackTrace>e</flakyFailure>"
    assert only_case(read_test_report(suite(case("a", rerun)))[1]).stack == "aced"
