"""Performance reports: their formats, the figures of a run, and the rules against earlier runs."""

from __future__ import annotations

import gzip
import io
import json
import math
import random
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import http_checks
import pytest
import records
from attrs import evolve
from conftest import IS_PROOF, Server
from uploads import FORM, INGEST, body, junit, part

from models.config.settings import QualityGate
from models.tracker.gate import quality_gate
from models.tracker.reports.base import BadReport, Limits, ReportTooLarge
from models.tracker.reports.detect import read_perf
from models.tracker.reports.perf_points import MAX_LABELS, OTHERS, Histogram, PerfPoint, PerfReport
from models.tracker.tables import Project

API = "/api/v1"

JTL = (
    "timeStamp,elapsed,label,responseCode,responseMessage,threadName,dataType,success,failureMessage,bytes\n"
    "1700000000000,100,GET /cart,200,OK,Users 1-1,text,true,,512\n"
    '1700000001000,200,GET /cart,200,"OK, fine",Users 1-2,text,true,,512\n'
    '1700000002000,300,GET /cart,500,"Internal\nError",Users 1-1,text,false,"Test failed: ""x""",0\n'
    "1700000003000,50,POST /order,201,Created,Users 1-1,text,true,,10\n"
    "1700000003500,4"
)
K6_EXPORT = {
    "metrics": {
        "http_req_duration": {"avg": 120.5, "max": 500, "med": 100, "min": 80, "p(90)": 200, "p(95)": 240},
        "http_req_duration{name:cart}": {"avg": 10, "max": 50, "med": 9, "min": 8, "p(90)": 20, "p(95)": 24},
        "http_req_blocked": {"avg": 1, "max": 5, "med": 1, "min": 0, "p(90)": 2, "p(95)": 3},
        "http_req_failed": {"value": 0.02, "passes": 20, "fails": 980},
        "http_reqs": {"count": 1000, "rate": 33.3},
        "iteration_duration": {"avg": 1120, "max": 1500, "med": 1100, "min": 1080, "p(90)": 1200, "p(95)": 1240},
        "iterations": {"count": 500, "rate": 16.6},
        "vus": {"value": 10, "min": 10, "max": 10},
    },
    "root_group": {"name": "", "path": "", "checks": {}},
}
K6_SUMMARY = {
    "root_group": {"name": ""},
    "options": {"summaryTrendStats": ["avg", "p(99)"]},
    "state": {"testRunDurationMs": 30000},
    "metrics": {
        "http_req_duration": {
            "type": "trend", "contains": "time",
            "values": {"avg": 12.5, "min": 1, "med": 10, "max": 50, "p(90)": 20, "p(95)": 24, "p(99)": 40, "count": 7},
        },
        "data_received": {"type": "counter", "contains": "data", "values": {"count": 1, "rate": 1}},
        "payload": {"type": "trend", "contains": "data", "values": {"avg": 1}},
        "http_reqs": {"type": "counter", "contains": "default", "values": {"count": 7, "rate": 3.5}},
        "http_req_failed": {"type": "rate", "contains": "default", "values": {"rate": 0.5, "passes": 1, "fails": 1}},
    },
}  # fmt: skip
JMH = [
    {
        "jmhVersion": "1.37", "benchmark": "com.example.Cart.add", "mode": "avgt", "threads": 1, "forks": 1,
        "params": {"size": "10", "kind": "a"},
        "primaryMetric": {
            "score": 2.5, "scoreError": 0.1, "scoreConfidence": [2.4, 2.6],
            "scorePercentiles": {"0.0": 2.0, "50.0": 2.5, "90.0": 2.8, "95.0": 2.9, "99.0": 3.0, "99.9": 3.0,
                                 "100.0": 3.1},
            "scoreUnit": "us/op", "rawData": [[2.4, 2.5, 2.6], [2.5, 2.5]],
        },
        "secondaryMetrics": {"gc.alloc.rate": {"score": 1.0, "scoreUnit": "MB/sec", "rawData": [[1.0]]}},
    },
    {
        "benchmark": "com.example.Cart.total", "mode": "thrpt",
        "primaryMetric": {"score": 1.5, "scoreUnit": "ops/ms", "rawData": [[1.5]], "scorePercentiles": {"50.0": 1.5}},
    },
]  # fmt: skip
PYTEST = {
    "machine_info": {"python_version": "3.11.7"}, "commit_info": {},
    "benchmarks": [{
        "group": None, "name": "test_sum", "fullname": "test_b.py::test_sum", "params": None, "param": None,
        "extra_info": {}, "options": {"disable_gc": False, "timer": "perf_counter", "min_rounds": 20},
        "stats": {
            "min": 1e-05, "max": 0.045, "mean": 0.00025, "stddev": 0.003, "rounds": 751, "median": 1.1e-05,
            "iqr": 6e-07, "q1": 1e-05, "q3": 1.2e-05, "iqr_outliers": 28, "stddev_outliers": 6, "outliers": "6;28",
            "ld15iqr": 1e-05, "hd15iqr": 1.2e-05, "ops": 3958.5, "total": 0.19, "iterations": 2,
        },
    }],
    "datetime": "2026-11-22T18:54:00", "version": "5.2.3",
}  # fmt: skip
GO = """goos: linux
goarch: amd64
pkg: example.com/shop
cpu: some processor
BenchmarkCart-8          1000000              1000 ns/op
BenchmarkCart-8          2000000              3000 ns/op
BenchmarkOrder/small-8    500000              2.5e+03 ns/op              112 B/op          1 allocs/op
BenchmarkCopy             100                 12 MB/s
PASS
ok      example.com/shop        4.1s
"""


def read(content: str | bytes | object) -> PerfReport:
    data = content if isinstance(content, bytes) else content.encode() if isinstance(content, str) else None
    return read_perf(io.BytesIO(json.dumps(content).encode() if data is None else data), Limits())


def figures(point: PerfPoint) -> dict[str, object]:
    values = {name: getattr(point, name) for name in ("samples", "mean", "min", "max", "p50", "p95", "p99",
                                                      "throughput", "error_pct")}  # fmt: skip
    return {
        name: round(value, 6) if isinstance(value, float) else value
        for name, value in values.items()
        if value is not None
    }


def test_jmeter_report() -> None:
    for content in (JTL, JTL.replace("\n", "\r\n"), gzip.compress(JTL.encode()), "\ufeff" + JTL):
        report = read(content)
        assert report.format == "JMeter JTL"
        cart, order = report.points
        assert (cart.label, cart.samples, cart.mean, cart.min, cart.max) == ("GET /cart", 3, 200.0, 100.0, 300.0)
        assert cart.p50 == pytest.approx(200, rel=0.01)
        assert cart.p95 == pytest.approx(300, rel=0.01)
        assert cart.throughput == pytest.approx(3 / 2.3)
        assert cart.error_pct == pytest.approx(100 / 3)
        assert (order.label, order.samples, order.error_pct) == ("POST /order", 1, 0.0)
    tabs = read("label\telapsed\tsuccess\nx\t5\tfalse\n").points
    assert figures(tabs[0]) == {
        "samples": 1, "mean": 5.0, "min": 5.0, "max": 5.0, "p50": 5.0, "p95": 5.0, "p99": 5.0, "error_pct": 100.0
    }  # fmt: skip
    (bare,) = read("1700000000000,100,home,200,OK,Users 1-1,text,true,,512\n").points
    assert (bare.label, bare.samples) == ("home", 1)


HEAD = "timeStamp,elapsed,label,success\n"


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        (HEAD + "\u00b2,100,home,true\n", {"home": 1}),  # a digit to isdigit(), but not to int()
        (HEAD + "1,100,home,true\n2,100,hom", {"home": 1}),  # cut within the label
        (HEAD + '1,100,home,true\n2,100,"ho\nm', {"home": 1}),
        (HEAD + "1,100,home,true\n2,100,home,true", {"home": 2}),
        (HEAD + '1,100,home,true,\n2,7,"' + "x" * 60_000 + '",true\n', {"home": 1}),
        (HEAD + "1,5, home,true\n1,5,home ,true\n", {"home": 2}),
        ("1700000000000;100;a, b;200;OK, fine;t;text;true\n", {"a, b": 1}),
    ],
)
def test_unusual_jmeter_rows_are_read_or_skipped(content: str, labels: dict[str, int]) -> None:
    united = dict.fromkeys(labels, 0)
    for point in read(content).points:
        if point.label in labels:
            united[point.label] += point.samples
        else:
            assert "xxx" in point.label
    assert united == labels


def test_report_without_outcomes_has_no_error_rate() -> None:
    (point,) = read("label,elapsed\nhome,5\n").points
    assert point.error_pct is None


def test_a_histogram_is_exact_to_one_per_cent() -> None:
    rng = random.Random(1)
    values = [rng.lognormvariate(3, 2) for _ in range(20_000)] + [0.0] * 10
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    ordered = sorted(values)
    for share in (0.5, 0.9, 0.95, 0.99):
        exact = ordered[max(0, -(-int(share * 10_000) * len(ordered) // 10_000) - 1)]
        assert histogram.percentile(share) == pytest.approx(exact, rel=0.0101)


def test_k6_report() -> None:
    points = {point.label: point for point in read(K6_EXPORT).points}
    assert list(points) == ["http_req_duration", "http_req_duration{name:cart}", "iteration_duration"]
    assert figures(points["http_req_duration"]) == {
        "samples": 1000, "mean": 120.5, "min": 80.0, "max": 500.0, "p50": 100.0, "p95": 240.0, "throughput": 33.3,
        "error_pct": 2.0,
    }  # fmt: skip
    assert points["iteration_duration"].samples == 500
    (point,) = read(K6_SUMMARY).points
    assert figures(point) == {
        "samples": 7, "mean": 12.5, "min": 1.0, "max": 50.0, "p50": 10.0, "p95": 24.0, "p99": 40.0, "throughput": 3.5,
        "error_pct": 50.0,
    }  # fmt: skip


def test_jmh_report() -> None:
    add, total = read(JMH).points
    assert add.label == "com.example.Cart.add (kind=a, size=10)"
    assert figures(add) == {
        "samples": 5, "mean": 0.0025, "min": 0.002, "max": 0.0031, "p50": 0.0025, "p95": 0.0029, "p99": 0.003,
        "throughput": 400_000.0,
    }  # fmt: skip
    assert figures(total) == {"samples": 1, "throughput": 1500.0}


def test_a_jmh_benchmark_in_several_modes_has_a_label_of_each() -> None:
    def one(mode: str, **metric: object) -> dict[str, object]:
        return {"benchmark": "c.B.x", "mode": mode, "primaryMetric": {"scoreUnit": "us/op", **metric}}

    report = read([
        one("thrpt", score=5, scoreUnit="ops/us", rawData=[[5, 5]]),
        one("avgt", score=2, rawData=[[2]]),
        one("sample", score=3, rawDataHistogram=[[[[1.5, 40], [4.5, 2]], [[2.0, 1]]]]),
    ])  # fmt: skip
    assert [(point.label, point.samples) for point in report.points] == [
        ("c.B.x [thrpt]", 2), ("c.B.x [avgt]", 1), ("c.B.x [sample]", 43)
    ]  # fmt: skip
    assert report.dropped_labels == 0


def test_invalid_numbers_of_k6_are_ignored() -> None:
    metrics = {"a": {"avg": "x"}, "http_req_duration": {"avg": 1}, "http_reqs": {"count": -5}}
    (point,) = read({"metrics": metrics}).points
    assert figures(point) == {"samples": 0, "mean": 1.0}


def test_pytest_benchmark_report() -> None:
    (point,) = read(PYTEST).points
    assert (point.label, read(PYTEST).format) == ("test_b.py::test_sum", "pytest-benchmark JSON")
    assert figures(point) == {
        "samples": 1502, "mean": 0.25, "min": 0.01, "max": 45.0, "p50": 0.011, "throughput": 3958.5
    }  # fmt: skip
    with_data = json.loads(json.dumps(PYTEST))
    with_data["benchmarks"][0]["stats"]["data"] = [number / 1000 for number in range(1, 101)]
    (point,) = read(with_data).points
    assert point.p95 == pytest.approx(95, rel=0.01)
    with_data["benchmarks"][0]["stats"] |= {"median": 12.238e-6, "data": [12.198e-6] + [12.238e-6] * 99}
    (point,) = read(with_data).points
    assert point.p50 == 0.012238
    assert point.p90 == 0.012238


def test_go_benchmark_report() -> None:
    cart, order = read(GO).points
    assert cart.label == "example.com/shop.BenchmarkCart"
    assert (cart.samples, cart.mean, cart.min, cart.max) == (3_000_000, 0.002, 0.001, 0.003)
    assert figures(order) == {"samples": 500_000, "mean": 0.0025, "throughput": 400_000.0}


def test_go_benchmarks_with_output_with_several_processors_and_with_odd_values() -> None:
    report = read(
        "BenchmarkPrint-8   \tout\nmore\n     100\t  58.5 ns/op\n200 1 ns/op\nBenchmarkLine-8\n 5 2 ns/op\n"
        "BenchmarkA  100 1 ns/op\nBenchmarkA-2  100 2 ns/op\nBenchmarkA-2  100 3 ns/op\n"
        "BenchmarkNegative-8 1 -5 ns/op\nBenchmarkNaN 1 NaN ns/op\nBenchmarkDots 1 1.5.5 ns/op\n"
    )
    assert {point.label: point.samples for point in report.points} == {
        "BenchmarkPrint": 100, "BenchmarkLine": 5, "BenchmarkA": 100, "BenchmarkA-2": 200
    }  # fmt: skip


def test_malformed_go_benchmark_lines_take_linear_time() -> None:
    """The regular expressions hold the interpreter's lock: the time of four times the lines is not sixteen-fold."""

    def seconds(lines: int) -> float:
        content = b"BenchmarkA 1 x\n" * lines
        best = math.inf
        for _ in range(3):
            begin = time.thread_time()
            with pytest.raises(BadReport):
                read_perf(io.BytesIO(content), Limits())
            best = min(best, time.thread_time() - begin)
        return best

    assert seconds(16_000) < 9 * seconds(4_000)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "the file is empty"),
        ("hello", r"not a supported performance report .* JMeter JTL, go test -bench"),
        ("<testsuite/>", "JUnit is a test report, not a performance report"),
        ('{"metrics": 1, "k6_version": "1"}', "it has no metrics"),
        ('{"benchmarks": 1}', "it has no benchmarks"),
        ('[{"benchmark": "x", "primaryMetric": {"score": 1, "scoreUnit": "bananas"}}]', "the unit 'bananas'"),
        ('{"metrics": {"a": ', "not well-formed JSON"),
        ('timeStamp,elapsed,label\n1,2,"' + f"{'x' * 1000}\n" * 9000, "not valid CSV"),
    ],
)
def test_unreadable_performance_report_is_refused(content: str, reason: str) -> None:
    with pytest.raises(BadReport, match=reason):
        read(content)


def test_labels_and_size_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "".join(f"1,5,label {number},true\n" for number in range(MAX_LABELS + 100))
    report = read("timeStamp,elapsed,label,success\n" + rows)
    assert len(report.points) == MAX_LABELS + 1
    assert (report.points[-1].label, report.points[-1].samples) == (OTHERS, 100)
    assert report.dropped_labels
    monkeypatch.setattr("models.tracker.reports.perf.MAX_INFLATED_BYTES", 1000)
    with pytest.raises(ReportTooLarge):
        read("timeStamp,elapsed,label,success\n" + rows)


def test_large_report_is_read_in_constant_memory() -> None:
    """A gigabyte if PILOTHOUSE_PROOF is set."""
    size = 1000 if IS_PROOF else 6
    row = b"1700000000000,123,GET /cart,200,OK,Users 1-1,text,true,,512," + b"x" * 140 + b"\n"
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as file:
        file.write(b"timeStamp,elapsed,label,responseCode,responseMessage,threadName,dataType,success,x,bytes,y\n")
        for _ in range(size):
            file.write(row * (1_000_000 // len(row)))
    packed.seek(0)
    tracemalloc.start()
    try:
        report = read_perf(packed, Limits())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert report.points[0].samples == size * (1_000_000 // len(row))
    assert peak < 4_000_000


# The server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    gate = {"perf-max-latency-increase-pct": 10, "perf-max-throughput-drop-pct": 20, "perf-max-error-pct": 1,
            "fail-on-no-tests": True}  # fmt: skip
    with http_checks.running_server(tmp_path_factory.mktemp("perf"), tracker={"quality-gate": gate}) as server:
        yield server


def jtl(ms: int, label: str = "GET /cart", errors: int = 0, count: int = 100, seconds: int = 10) -> str:
    rows = [
        f"{1_700_000_000_000 + number * 1000 * seconds // count},{ms},{label},{'false' if number < errors else 'true'}"
        for number in range(count)
    ]
    return "\n".join(["timeStamp,elapsed,label,success", *rows]) + "\n"


def upload(server: Server, project: str, *reports: str, **texts: str) -> dict[str, Any]:
    parts = [part(name, value) for name, value in {"project": project, "branch": "main", **texts}.items()]
    parts += [part("perf", report, f"{number}.jtl") for number, report in enumerate(reports)]
    answer = server.post(INGEST, body(parts), Content_Type=FORM)
    assert answer.status == 201, answer
    reply: dict[str, Any] = answer.json
    return reply


def rules(server: Server, run: int) -> dict[str, tuple[bool, str]]:
    found = server.get(f"{API}/runs/{run}/quality-gate").json["rules"]
    return {rule["name"]: (rule["passed"], rule["detail"]) for rule in found}


def test_a_run_of_performance_reports_has_no_tests_and_is_shown(server: Server) -> None:
    run = upload(server, "shown", jtl(100), jtl(300, "<b>POST</b>"))
    assert (run["tests"], run["flag"], run["status"], run["gateStatus"]) == (0, "perf", "PASSED", "PASSED")
    found = server.get(f"{API}/runs/{run['runId']}/perf").json
    assert (found["flag"], found["baselineRunIds"], [item["label"] for item in found["items"]]) == (
        "perf", [], ["<b>POST</b>", "GET /cart"]
    )  # fmt: skip
    assert found["items"][1]["p95"] == pytest.approx(100, rel=0.01)
    page = server.get(f"/runs/{run['runId']}").text
    assert "&lt;b&gt;POST&lt;/b&gt;" in page
    history = server.get(f"/projects/{run['projectId']}/perf").text
    assert "GET /cart" in history
    assert "<b>POST" not in history
    assert rules(server, run["runId"])["no-tests"] == (True, "a performance report")
    assert upload(server, "shown", jtl(100, "x"), perfFlag="load")["flag"] == "load"
    assert upload(server, "shown", jtl(100, "y"), flag="soak")["flag"] == "soak"


def test_the_median_of_the_last_five_baselines_decides(server: Server) -> None:
    for ms in (1000, 90, 100, 100, 110, 500):  # the oldest is beyond five
        upload(server, "median", jtl(ms))
    good = upload(server, "median", jtl(105), branch="x")
    assert good["gateStatus"] == "PASSED"
    bad = upload(server, "median", jtl(120, errors=2), branch="x")
    found = rules(server, bad["runId"])
    assert list(found)[-3:] == ["perf-latency", "perf-throughput", "perf-errors"]
    passed, detail = found["perf-latency"]
    assert not passed
    assert detail.startswith("GET /cart: 120 ms vs 100 ms (+20")
    assert detail.endswith("(max 10%)")
    assert found["perf-errors"] == (False, "GET /cart: 2.00% errors (max 1%)")
    assert found["perf-throughput"][0]
    slow = upload(server, "median", jtl(100, seconds=20), branch="x")
    assert not rules(server, slow["runId"])["perf-throughput"][0]
    body = {"perfMaxLatencyIncreasePct": 50, "perfMaxErrorPct": 5}
    with records.store_of(server):
        admin = records.bearer(records.create_user("perf-admin", "ADMIN"))
    path = f"{API}/projects/{bad['projectId']}/settings"
    assert server.ask("PATCH", path, json.dumps(body).encode(), headers=admin).status == 200
    assert {name for name, (passed, _) in rules(server, bad["runId"]).items() if not passed} == set()


def test_without_a_baseline_the_rules_pass(server: Server) -> None:
    run = upload(server, "first", jtl(100))
    found = rules(server, run["runId"])
    assert (found["perf-latency"], found["perf-throughput"]) == ((True, "no baseline"), (True, "no baseline"))
    other = upload(server, "first", jtl(100, "another label"))
    assert rules(server, other["runId"])["perf-latency"] == (True, "no label of the baselines")


def test_shards_of_one_label_are_one_point_and_a_retry_adds_nothing(server: Server) -> None:
    runs = [upload(server, "shards", jtl(100), jtl(300), runKey="k") for _ in range(2)]
    run = runs[-1]
    (item,) = server.get(f"{API}/runs/{run['runId']}/perf").json["items"]
    assert (item["samples"], item["mean"], item["min"], item["max"]) == (200, 200.0, 100.0, 300.0)
    assert item["p95"] == pytest.approx(300, rel=0.01)


def test_later_attempt_supersedes_performance_points(server: Server) -> None:
    first = upload(server, "attempts", jtl(100), runKey="k", jobKey="load", attempt="1")
    run = upload(server, "attempts", jtl(200), runKey="k", jobKey="load", attempt="2")
    assert run["runId"] == first["runId"]
    (item,) = server.get(f"{API}/runs/{run['runId']}/perf").json["items"]
    assert (item["samples"], item["mean"]) == (100, 200.0)


def test_performance_history_of_a_flag_is_paginated(server: Server) -> None:
    ids = [upload(server, "history", jtl(100 + number), jtl(5, "other"))["runId"] for number in range(5)]
    project = upload(server, "history", jtl(7), flag="other")["projectId"]
    path = f"{API}/projects/{project}/perf?limit=2&label={quote('GET /cart')}"
    first = server.get(path).json
    assert (first["flag"], first["flags"]) == ("perf", ["other", "perf"])
    assert [entry["runId"] for entry in first["items"]] == [ids[4], ids[3]]
    assert [item["label"] for entry in first["items"] for item in entry["items"]] == ["GET /cart"] * 2
    second = server.get(f"{path}&cursor={first['nextCursor']}").json
    assert [entry["runId"] for entry in second["items"]] == [ids[2], ids[1]]
    assert server.get(f"{path}&cursor=x").status == 400
    assert server.get(f"{API}/projects/999999/perf").status == 404


def test_a_report_of_tests_in_the_part_perf_is_refused(server: Server) -> None:
    parts = [part("project", "wrong"), part("perf", junit(1), "a.xml")]
    answer = server.post(INGEST, body(parts), Content_Type=FORM)
    assert answer.status == 400
    reason = "perf a.xml: its root element is <testsuite>: JUnit is a test report, not a performance report"
    assert reason in answer.text
    parts = [part("project", "wrong"), part("jacoco", "x", "a.xml")]
    assert server.post(INGEST, body(parts), Content_Type=FORM).status == 400


def test_performance_is_judged_only_if_a_rule_is_set() -> None:
    limits = quality_gate.thresholds(Project(), QualityGate())
    assert not quality_gate.judges_perf(limits)
    assert quality_gate.judges_perf(evolve(limits, perf_max_error_pct=0.0))
