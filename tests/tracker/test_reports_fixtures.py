"""Every file of the shared fixtures, compared with its manifest and the rules of the tracker."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

import pytest
from report_readers import FIXTURES, read_coverage_report, read_test_report, totals_of

from models.tracker.reports.base import BadReport

pytestmark = pytest.mark.needs(FIXTURES)

EXPECTED: dict[str, Any] = (
    json.loads((FIXTURES / "expected.json").read_text()) if (FIXTURES / "expected.json").exists() else {}
)

RULE_TOTALS = {
    "gen-node20-raw-ESC.xml": (7, 3, 0, 2),
    "gen-pytest-rerunfailures.xml": (18, 4, 3, 2),
    "nested-testsuites-wrong-declared.xml": (3, 0, 1, 0),
    "no-cases-but-tests.xml": (6, 1, 0, 2),
    "suite-level-error-6700.xml": (1, 0, 1, 0),
    "testng-1472-656k.xml": (2654, 2, 0, 0),
}
"""Totals that differ from the number of elements: rules for repeated tests, and for suites without tests."""

BAD = {"pytest-corrupt.xml": (11, "cut short")}

COVERED = {
    "jacoco/groups-28-sessions-1.2M.xml": (5312, 262, 1645, 100),
    "jacoco/kotlin-file-subpackage.xml": (497, 35, 149, 9),
    "jacoco/no-sourcefilename.xml": (294, 29, 109, 7),
    "cobertura/coverlet-csharp.xml": (289, 113, 87, 83),
    "cobertura/gen-coverage7.xml": (35, 5, 22, 4),
    "cobertura/istanbul-ts.xml": (63, 93, 25, 16),
    "cobertura/missing-condition-coverage.xml": (44, 9, 3, 1),
    "lcov/gen-coverage7.lcov": (35, 5, 22, 4),
    "lcov/large-hit-counts.lcov": (1, 1, 1, 1),
    "lcov/report.lcov": (3, 3, 1, 1),
    "opencover/opencover.xml": (122, 16, 35, 13),
    "opencover/with-bom.xml": (9, 6, 3, 3),
    "clover/clover-java.xml": (2, 16, 1, 1),
    "coveragepy/coverage.json": (35, 5, 22, 4),
}

HOSTILE = {
    "cdata-control-and-split.xml": (1, 0, 0, 0),
    "gzip.xml": (1, 0, 0, 0),
    "latin1-declared.xml": (1, 0, 0, 0),
    "leading-whitespace-before-decl.xml": (1, 0, 0, 0),
    "namespaced.xml": (1, 1, 0, 0),
    "undefined-entity-with-external-dtd.xml": (1, 1, 0, 0),
    "utf8-declared-utf16.xml": (1, 0, 0, 0),
    "xxe-external-dtd-http.xml": (1, 0, 0, 0),
}

REFUSED = {
    "100k-attributes.xml": (None, "first element"),
    "empty-file.xml": (None, "empty"),
    "jacoco-as-junit.xml": (None, "<other>"),
    "quadratic-blowup.xml": (1, "entity"),
    "trailing-garbage.xml": (3, "after the end"),
    "truncated.xml": (2, "cut short"),
    "two-documents.xml": (2, "after the end"),
    "undefined-entity-no-dtd.xml": (1, "undefined entity"),
}


def files(folder: str) -> list[str]:
    """The names of a folder's files; without the folder one made-up name, whose test is skipped with the reason."""
    return sorted(file.name for file in (FIXTURES / folder).glob("*")) or ["missing"]


@pytest.mark.parametrize("name", files("junit"))
def test_totals_of_a_junit_fixture_match_its_manifest(name: str) -> None:
    data = (FIXTURES / "junit" / name).read_bytes()
    if name in BAD:
        line, why = BAD[name]
        with pytest.raises(BadReport, match=why) as bad:
            read_test_report(data)
        assert bad.value.line == line
        return
    result = EXPECTED[f"junit/{name}"]
    wanted = RULE_TOTALS.get(name) or (result["tests"], result["failures"], result["errors"], result["skipped"])
    report, cases = read_test_report(data)
    assert totals_of(report)[:4] == wanted
    assert report.totals.flaky == {"surefire-flakyFailure.xml": 1}.get(name, 0)
    assert all(case.suite is None or case.suite < len(report.suites) for case in cases)
    assert all(case.duration_ms is None or case.duration_ms >= 0 for case in cases)


def test_pytest_reruns_count_as_one_test_each() -> None:
    report, cases = read_test_report((FIXTURES / "junit/gen-pytest-rerunfailures.xml").read_bytes())
    assert (len(cases), len(report.superseded)) == (26, 8)
    kept = [case.name for place, case in enumerate(cases) if place not in report.superseded]
    assert len(kept) == report.totals.tests
    assert kept.count("test_flaky") == 2  # both passed: other repeated names count separately
    assert kept.count("test_fail_and_teardown_error") == 1


@pytest.mark.parametrize("name", sorted(COVERED))
def test_totals_of_a_coverage_fixture_match_its_manifest(name: str) -> None:
    report, found = read_coverage_report((FIXTURES / name).read_bytes())
    assert (report.line_covered, report.line_missed, report.branch_covered, report.branch_missed) == COVERED[name]
    assert found


def test_every_coverage_fixture_has_expected_totals() -> None:
    folders = ("jacoco", "cobertura", "lcov", "opencover", "clover", "coveragepy")
    there = {f"{folder}/{name}" for folder in folders for name in files(folder)}
    assert there - set(COVERED) == {"jacoco/empty-report.xml"}


def test_report_with_an_unknown_root_element_is_refused() -> None:
    with pytest.raises(BadReport, match="<other>"):
        read_coverage_report((FIXTURES / "jacoco/empty-report.xml").read_bytes())


@pytest.mark.parametrize("name", files("hostile"))
def test_a_hostile_file_is_read_or_refused(name: str) -> None:
    data = (FIXTURES / "hostile" / name).read_bytes()
    if name in HOSTILE:
        assert totals_of(read_test_report(data)[0])[:4] == HOSTILE[name]
        return
    line, why = REFUSED[name]
    with pytest.raises(BadReport, match=why) as bad:
        read_test_report(data)
    assert bad.value.line == line


def test_latin1_names_are_decoded_exactly() -> None:
    assert [case.name for case in read_test_report((FIXTURES / "hostile/latin1-declared.xml").read_bytes())[1]] == [
        "café"
    ]


def test_a_doctype_is_not_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        data = (FIXTURES / "hostile/xxe-external-dtd-http.xml").read_bytes().replace(b"18999", str(port).encode())
        requested = threading.Event()

        def listen() -> None:
            try:
                server.accept()[0].close()
                requested.set()
            except TimeoutError:
                pass

        thread = threading.Thread(target=listen)
        thread.start()
        assert read_test_report(data)[0].totals.tests == 1
        thread.join()
        assert not requested.is_set()
