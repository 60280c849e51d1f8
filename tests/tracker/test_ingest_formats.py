"""Responses to uploads of formats that are known, unknown, empty, or sent as the wrong part."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conftest import Server
from http_checks import check_problem, running_server
from test_reports_other_formats import COVERED, EMPTY, SAMPLES, UNKNOWN_COVERAGE, UNKNOWN_TESTS
from uploads import INGEST, body, jacoco, junit, part, query_store, send

from models.tracker.reports.detect import COVERAGE

PASSED = part("junit", junit(passed=1), "ok.xml")
GO = '{"Action":"run","Test":"T"}\n{"Action":"pass","Test":"T"}\n{"Action":"pass"}\n'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("formats")) as server:
        yield server


@pytest.mark.parametrize("format", [*SAMPLES, *COVERED])
def test_a_report_is_stored_as_the_right_part_and_refused_as_the_wrong_one(server: Server, format: str) -> None:
    document = (SAMPLES.get(format) or COVERED[format])[0]
    right, wrong = ("junit", "jacoco") if format in SAMPLES else ("jacoco", "junit")
    sent = body([part("project", format), PASSED, part(right, document, "a.out")])
    answer = send(server, sent)
    assert (answer.status, answer.json["warnings"]) == (201, [])
    if format in COVERED:
        assert answer.json["lineCoveragePct"] is not None
    refused = send(server, body([part("project", format), PASSED, part(wrong, document, "a.out")]))
    message = check_problem(refused, 400, INGEST, False)["detail"]
    assert f"{wrong} a.out" in message
    assert f"{format} is a" in message
    assert "expected one of" in message


@pytest.mark.parametrize("format", EMPTY)
def test_a_known_format_without_content_is_stored_with_a_warning(server: Server, format: str) -> None:
    kind, what = ("jacoco", "line") if format in [known.name for known in COVERAGE] else ("junit", "test")
    answer = send(
        server,
        body([part("project", "empty"), PASSED, part(kind, EMPTY[format], "a.out")]),
    )
    assert answer.status == 201
    assert answer.json["warnings"] == [f"{kind} a.out: a {format} report without a {what}"]


@pytest.mark.parametrize("what", [*UNKNOWN_TESTS, *UNKNOWN_COVERAGE])
def test_unknown_content_is_refused_with_the_part_the_file_and_the_known_formats(server: Server, what: str) -> None:
    documents = {"junit": UNKNOWN_TESTS.get(what), "jacoco": UNKNOWN_COVERAGE.get(what)}
    for kind, document in documents.items():
        if document:
            refused = send(
                server,
                body([part("project", "unknown"), PASSED, part(kind, document, "a.out")]),
            )
            message = check_problem(refused, 400, INGEST, False)["detail"]
            assert f"{kind} a.out: " in message
            assert "expected one of" in message


def test_events_of_go_without_a_package_belong_to_the_module_or_the_file(server: Server) -> None:
    names = "SELECT class_name FROM test JOIN result ON test_id = test.id WHERE result.run_id = ?"
    for module, package in (("api", "api"), (None, "unit-tests")):
        parts = [part("project", "go"), part("junit", GO, "out/unit-tests.json")]
        answer = send(server, body(parts + ([part("module", module)] if module else [])))
        assert query_store(server, names, answer.json["runId"]) == [(package,)]


def test_a_report_with_content_has_no_warnings(server: Server) -> None:
    sent = body(
        [
            part("project", "full"),
            PASSED,
            part("jacoco", jacoco({"A.java": {1: True}}), "c.xml"),
        ]
    )
    assert send(server, sent).json["warnings"] == []
