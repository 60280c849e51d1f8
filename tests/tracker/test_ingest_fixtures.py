"""Reports written by real tools, posted as a CI job posts them, and the totals in the responses."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest
from conftest import ROOT, Server
from http_checks import check_problem, running_server
from uploads import INGEST, junit, post, upload

FIXTURES = ROOT.parent / "shared" / "fixtures"

pytestmark = pytest.mark.needs(FIXTURES)

TESTS = {
    "android-connected-42438": (11, 0, 3), "bad-duration": (2, 0, 0), "cfn-lint": (141, 1, 19),
    "eclipse-783k": (3366, 0, 0), "gen-node20-raw-ESC": None, "gen-pytest-rerunfailures": (18, 7, 2),
    "gen-pytest-xunit1-logging": (18, 9, 2), "nested-cypress-assertions": (5, 0, 0),
    "nested-root-testsuite": (5, 0, 0), "no-attributes": (4, 2, 1), "no-cases-but-tests": (6, 1, 2),
    "no-classname-20090516": (8, 3, 0), "plainerror": (1, 1, 0), "pytest-gloo-standalone": (97, 0, 17),
    "suite-level-error-6700": (1, 1, 0), "surefire-flakyFailure": (1, 0, 0), "testng-1472-656k": (2654, 2, 0),
    "time-thousands-separator": (8, 0, 0), "with-xml-entities": (4, 2, 2), "xunit-bom-declared-only": (2, 0, 0),
}  # fmt: skip
"""Tests, failures (failed and errors) and skipped, by MANIFEST.md. None: accepted with any totals."""

LINES = {
    "jacoco/groups-28-sessions-1.2M.xml": (5312, 262), "jacoco/kotlin-file-subpackage.xml": (497, 35),
    "jacoco/no-sourcefilename.xml": (294, 29), "cobertura/coverlet-csharp.xml": (289, 113),
    "cobertura/gen-coverage7.xml": (35, 5), "cobertura/istanbul-ts.xml": (63, 93),
    "cobertura/missing-condition-coverage.xml": (44, 9), "lcov/gen-coverage7.lcov": (35, 5),
    "lcov/large-hit-counts.lcov": (1, 1), "lcov/report.lcov": (3, 3), "opencover/opencover.xml": (122, 16),
    "opencover/with-bom.xml": (9, 6), "clover/clover-java.xml": (2, 16), "coveragepy/coverage.json": (35, 5),
}  # fmt: skip
"""Covered and missed."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("fixtures")) as server:
        yield server
        assert "Traceback" not in server.log.read_text()


def fixture(name: str) -> bytes:
    return (FIXTURES / name).read_bytes()


@pytest.mark.parametrize("name", TESTS)
def test_totals_of_test_reports(server: Server, name: str) -> None:
    outcome = upload(server, ("project", "tests"), ("junit", fixture(f"junit/{name}.xml")))
    assert (outcome["tests"], outcome["failures"], outcome["skipped"]) == (
        TESTS[name] or (outcome["tests"], outcome["failures"], outcome["skipped"])
    )
    assert outcome["tests"] == outcome["passed"] + outcome["failed"] + outcome["errors"] + outcome["skipped"]


@pytest.mark.parametrize("name", LINES)
def test_totals_of_coverage_reports(server: Server, name: str) -> None:
    outcome = upload(server, ("project", "lines"), ("junit", junit(passed=1)), ("jacoco", gzip.compress(fixture(name))))
    covered, missed = LINES[name]
    assert outcome["lineCoveragePct"] == covered * 100 / (covered + missed)


def test_totals_of_one_upload_are_the_sums_of_its_reports(server: Server) -> None:
    result = {name: totals for name, totals in TESTS.items() if totals}
    outcome = upload(server, ("project", "all"), *(("junit", fixture(f"junit/{name}.xml")) for name in result))
    sums = [sum(totals[place] for totals in result.values()) for place in range(3)]
    assert [outcome["tests"], outcome["failures"], outcome["skipped"]] == sums


@pytest.mark.parametrize("name", ["junit/pytest-corrupt.xml", "jacoco/empty-report.xml", "hostile/truncated.xml"])
@pytest.mark.parametrize("kind", ["junit", "jacoco"])
def test_unreadable_report_is_400(server: Server, name: str, kind: str) -> None:
    answer = post(server, ("project", "bad"), ("junit", junit(passed=1)), (kind, fixture(name)))
    assert check_problem(answer, 400, INGEST, has_timestamp=False)["detail"].startswith(f"{kind} {kind}2.xml: ")


def test_hostile_files_are_accepted_or_refused_with_400(server: Server) -> None:
    for file in sorted((FIXTURES / "hostile").iterdir()):
        for kind in ("junit", "jacoco"):
            answer = post(server, ("project", "hostile"), ("junit", junit(passed=1)), (kind, file.read_bytes()))
            if answer.status != 201:
                check_problem(answer, 400, INGEST, has_timestamp=False)
    assert server.get("/healthz").status == 200
