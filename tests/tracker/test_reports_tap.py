"""TAP as node-tap, node, Vitest, Mocha, testem, bats, Perl and pg_regress write it."""

from __future__ import annotations

from typing import Any

import pytest
from report_readers import case_fields, only_case, read_test_report, totals_of

from models.tracker.reports.base import CaseStatus, Limits

PASSED, FAILED, SKIPPED = CaseStatus.PASSED, CaseStatus.FAILED, CaseStatus.SKIPPED

TAP_NODE = """TAP version 13
# Subtest: outer
    # Subtest: inner one
    ok 1 - inner one
      ---
      duration_ms: 0.5
      ...
    # Subtest: inner two
    not ok 2 - inner two
      ---
      duration_ms: 1.5
      error: 'boom'
      ...
    1..2
not ok 1 - outer
  ---
  duration_ms: 3
  type: 'suite'
  error: '1 subtest failed'
  ...
1..1
# tests 3
# fail 1
"""


def test_tap_test_point_that_summarizes_a_subtest_is_not_a_test() -> None:
    assert case_fields(TAP_NODE) == [
        ("outer", "inner one", PASSED, 0, None),
        ("outer", "inner two", FAILED, 2, "boom"),
    ]


TAP_BRACES = """TAP version 14
ok 1 - src/cart.test.ts {
    1..3
    ok 1 - adds
    not ok 2 - pays {
        not ok 1 - by card
          ---
          message: declined
          ...
        1..1
    }
    ok 3 - nothing {
        1..0
    }
}
not ok 2 - src/stock.test.ts
  ---
  code: 3
  ...
{
    ok 1 - counts
    1..1
}
ok 3 - opens a {
ok 4 - later # SKIP {
    1..0
}
1..4
"""


def test_tap_subtest_in_braces_stands_behind_its_test_point() -> None:
    assert case_fields(TAP_BRACES) == [
        ("src/cart.test.ts", "adds", PASSED, None, None),
        ("src/cart.test.ts > pays", "by card", FAILED, None, "declined"),
        ("src/cart.test.ts", "nothing", PASSED, None, None),
        ("src/stock.test.ts", "counts", PASSED, None, None),
        ("", "src/stock.test.ts", FAILED, None, None),
        ("", "opens a {", PASSED, None, None),
        ("", "later", SKIPPED, None, None),
    ]
    assert read_test_report(TAP_BRACES)[1][4].stack == "code: 3"


TAP = {
    "version 12 without a version": ("1..2\nok 1 a\nnot ok 2 b\n", (2, 1, 0, 0, 0)),
    "a plan at the end": ("ok 1 a\nok 2 b\n1..2\n", (2, 0, 0, 0, 0)),
    "output between": ("npm test\n1..1\nhello\nok 1 a\nbye\n", (1, 0, 0, 0, 0)),
    "all skipped": ("1..0 # SKIP no network\n", (0, 0, 0, 0, 0)),
    "fewer than planned": ("1..3\nok 1 a\n", (2, 0, 1, 0, 0)),
    "more than planned": ("1..1\nok 1 a\nok 2 b\n", (3, 0, 1, 0, 0)),
    "no plan": ("ok 1 a\n", (2, 0, 1, 0, 0)),
    "bail out": ("1..3\nok 1 a\nBail out! no database\n", (2, 0, 1, 0, 0)),
    "a passed todo": ("1..1\nok 1 a # todo\n", (1, 0, 0, 0, 0)),
    "an escaped hash": ("1..1\nnot ok 1 a \\# skip\n", (1, 1, 0, 0, 0)),
    "no numbers": ("TAP version 14\n1..2\nok - a\nnot ok - b\n", (2, 1, 0, 0, 0)),
    "a block without its end": ("1..1\nnot ok 1 a\n  ---\n  x: y\n", (1, 1, 0, 0, 0)),
    "a block without its end before a point": (
        "1..3\nnot ok 1 a\n  ---\n  x: y\nraw text\nnot ok 2 b\n  ---\n  x:\n  ok 9 is text\n  ...\nok 3 c\n",
        (3, 2, 0, 0, 0),
    ),
    "assertions of one description": (
        "1..3\nok 1 should be equal\nnot ok 2 should be equal\nok 3 should be equal\n", (3, 1, 0, 0, 0),
    ),
    "a subtest that failed by its plan": (
        "TAP version 14\n# Subtest: s\n    1..2\n    ok 1 a\nnot ok 1 - s\n1..1\n", (2, 1, 0, 0, 0),
    ),
    "a subtest in a subtest": (
        "TAP version 14\n    # Subtest: t\n        ok 1 a\n        1..1\n    ok 1 - t\n    1..1\nok 1 - s\n1..1\n",
        (1, 0, 0, 0, 0),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("ok 1 - adds # time=12.5ms", ("adds", PASSED, 12, None)),
        ("ok 1 - adds # time=1.5s {", ("adds {", PASSED, 1500, None)),
        ("ok 1 adds # in 12 ms", ("adds", PASSED, 12, None)),
        ("not ok 1 adds # in 1004 ms # timeout after 1 s", ("adds", FAILED, 1004, "timeout after 1 s")),
        (
            "ok 1 Chrome 120.0 - [12 ms] - Cart: it [5 ms] adds",
            ("Chrome 120.0 - Cart: it [5 ms] adds", PASSED, 12, None),
        ),
        ("skip 1 Chrome 120.0 - [0 ms] - adds", ("Chrome 120.0 - adds", SKIPPED, 0, None)),
        ("todo 1 Chrome 120.0 - [undefined ms] - adds", ("Chrome 120.0 - [undefined ms] - adds", SKIPPED, None, None)),
        ("ok 1         - adds                    512 ms", ("adds", PASSED, 512, None)),
        ("ok 1 - waits 5 ms", ("waits 5 ms", PASSED, None, None)),
        ("ok 1 - shows \\# time=5ms", ("shows # time=5ms", PASSED, None, None)),
    ],
)
def test_time_of_a_tap_point_is_not_part_of_its_name(line: str, fields: tuple[Any, ...]) -> None:
    assert case_fields(f"TAP version 13\n{line}\n1..1\n") == [("", *fields)]


def test_indented_lines_behind_a_tap_point_are_its_error() -> None:
    document = "1..2\nnot ok 1 adds\n  expected 2\nlog\n  Error: expected 2\n      at a.js:1\nok 2 b\n  c\n"
    first, second = read_test_report(document)[1]
    assert (first.failure_message, first.stack) == ("expected 2", "expected 2\nError: expected 2\n    at a.js:1")
    assert (second.failure_message, second.stack) == (None, None)


@pytest.mark.parametrize(
    "summary",
    ["# tests 3\n# pass 2\n# fail 1\n1..1", "1..1\n# tests 3\n# suites 0\n# duration_ms 12.5",
     "# Looks like you failed 1 test of 1."],
)  # fmt: skip
def test_counts_at_the_end_of_a_tap_report_are_not_of_its_last_test(summary: str) -> None:
    first, *_ = read_test_report(f"TAP version 13\nnot ok 1 adds\n# expected 2\n# fail slowly\n{summary}\n")[1]
    assert first.stack == "expected 2\nfail slowly"


def test_braces_in_the_error_of_a_tap_point_are_part_of_it() -> None:
    error = "  Error: not equal\n  {\n    a: 1\n  }\n      at a.js:1\n"
    first, second = read_test_report(f"1..2\nnot ok 1 adds\n{error}ok 2 b\n")[1]
    assert (first.name, first.stack) == ("adds", "Error: not equal\n{\n  a: 1\n}\n    at a.js:1")
    assert (second.class_name, second.name) == ("", "b")


@pytest.mark.parametrize("what", TAP)
def test_totals_of_tap(what: str) -> None:
    document, wanted = TAP[what]
    assert totals_of(read_test_report(document)[0]) == wanted


def test_points_of_one_description_are_reruns_if_the_upload_declares_them() -> None:
    report, _ = read_test_report("1..2\nnot ok 1 starts\nok 2 starts\n", Limits(reruns="last"))
    assert totals_of(report) == (1, 0, 0, 0, 1)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("error: |-\n    Expected: 1\n    more", "Expected: 1"),
        ("message: >\n\n    folded", "folded"),
        ("error: 'quoted: text'", "quoted: text"),
    ],
)
def test_the_message_of_a_test_point_of_tap(field: str, message: str) -> None:
    document = f"TAP version 14\nnot ok 1 - a\n  ---\n  {field}\n  code: 'E'\n  ...\n1..1\n"
    assert only_case(read_test_report(document)[1]).failure_message == message
