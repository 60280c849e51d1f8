"""Responses to uploads of formats that are known, unknown, empty, or sent as the wrong part."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from conftest import Server
from http_checks import check_problem, running_server
from runner_samples import ALLURE
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
    warnings = [text for text in answer.json["warnings"] if not text.startswith("attachments that the reports name")]
    assert (answer.status, warnings) == (201, [])
    if format in COVERED:
        assert answer.json["lineCoveragePct"] is not None
    refused = send(server, body([part("project", format), PASSED, part(wrong, document, "a.out")]))
    message = check_problem(refused, 400, INGEST, False)["detail"]
    assert f"{wrong} a.out" in message
    assert f"{format} is a" in message
    assert f"send it as the part {right} (expected one of" in message


PERFORMANCE = {
    "k6 summary": '{"metrics": {"http_reqs": {"count": 1}}, "root_group": {}}',
    "JMH JSON": '[{"benchmark": "a.b", "mode": "avgt", "primaryMetric": {"score": 1, "scoreUnit": "ms/op"}}]',
    "pytest-benchmark JSON": '{"machine_info": {}, "benchmarks": []}',
    "JMeter JTL": "timeStamp,elapsed,label,success\n1700000000000,5,home,true\n",
    "JMeter JTL (XML)": '<testResults version="1.2"><httpSample t="5" lb="home"/></testResults>',
    "go test -bench": "goos: linux\npkg: shop\nBenchmarkAdd-8   \t1000\t12.5 ns/op\nPASS\nok  \tshop\t1.2s\n",
}


@pytest.mark.parametrize("format", PERFORMANCE)
@pytest.mark.parametrize("wrong", ["junit", "jacoco"])
def test_a_performance_report_under_another_part_is_refused_with_its_own(
    server: Server, format: str, wrong: str
) -> None:
    sent = body([part("project", "misplaced"), PASSED, part(wrong, PERFORMANCE[format], "a.out")])
    message = check_problem(send(server, sent), 400, INGEST, False)["detail"]
    assert f"{wrong} a.out: " in message
    assert f"{format} is a performance report, not a" in message
    assert "send it as the part perf (" in message


@pytest.mark.parametrize(
    ("format", "content"),
    [
        ("k6 summary", '{"metrics": {}, "root_group": {}}'),
        ("JMH JSON", "[]"),
        ("pytest-benchmark JSON", PERFORMANCE["pytest-benchmark JSON"]),
        ("JMeter JTL", "timeStamp,elapsed,label,success\n"),
        ("JMeter JTL (XML)", "<testResults/>"),
        ("go test -bench", "goos: linux\ngoarch: amd64\nPASS\n"),
    ],
)
def test_an_empty_performance_report_is_stored_with_a_warning(server: Server, format: str, content: str) -> None:
    answer = send(server, body([part("project", "empty perf"), part("perf", content, "a.out")]))
    assert (answer.status, answer.json["warnings"]) == (201, [f"perf a.out: a {format} report without a label"])


def test_the_results_of_allure_in_several_parts_are_one_report(server: Server) -> None:
    """The attempts of a test are merged, and the files may come in any order."""
    last = ALLURE | {"status": "passed", "stop": ALLURE["stop"] + 1, "attachments": [], "steps": []}
    first = ALLURE | {"attachments": [], "steps": []}
    for documents in ((last, first), (first, last)):
        files = [part("junit", json.dumps(document), f"{n}-result.json") for n, document in enumerate(documents)]
        answer = send(server, body([part("project", "allure"), part("runKey", "one"), PASSED, *files]))
        assert (answer.status, answer.json["tests"], answer.json["failures"]) == (201, 2, 0)
        assert (answer.json["uploads"], answer.json["warnings"]) == (1, [])
        rows = "SELECT name, format, tests, flaky FROM report WHERE run_id = ? AND format LIKE 'Allure%'"
        found = query_store(server, rows, answer.json["runId"])
        assert found == [("0-result.json and 1 more", "Allure results", 1, 1)]
    broken = [part("junit", text, "x-result.json") for text in (json.dumps(first), json.dumps(first)[:-5])]
    message = check_problem(send(server, body([part("project", "allure"), *broken])), 400, INGEST, False)["detail"]
    assert "file 2, x-result.json: this is not well-formed JSON" in message


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
