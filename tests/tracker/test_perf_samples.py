"""Files that JMeter, JMH and k6 have written themselves, and the figures that these tools print for them.

JMeter 5.6.3: ten loops of a transaction of two requests; the figures are those of its report (`-g`), but for its
percentiles, which it interpolates. JMH 1.37: `-bm all -wi 0 -i 1 -r 5ms`. k6 1.8.1: ten iterations of two requests;
`k6-new.json` is with `--new-machine-readable-summary`. Every fourth request of `cart` was answered with 500.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Mapping
from pathlib import Path

import pytest

from models.tracker.reports.base import BadReport, Limits
from models.tracker.reports.detect import read_perf

SAMPLES = Path(__file__).parent / "perf_samples"
Figures = Mapping[str, float | None]

CART, CHECKOUT = 'GET "cart", with comma', "Checkout"
JMH = "sample.Words.split (size=10)"
K6, K6_CART = "http_req_duration", "http_req_duration{name:cart}"

# Labels and figures as the tools print them: times in milliseconds.
PRINTED: dict[str, tuple[str, dict[str, Figures]]] = {
    "jmeter.csv": ("JMeter JTL", {
        "GET /": {"samples": 10, "mean": 38.3, "min": 2, "max": 187, "throughput": 43.29, "error_pct": 0},
        CART: {"samples": 10, "mean": 4.2, "min": 3, "max": 9, "throughput": 204.0816, "error_pct": 50},
        CHECKOUT: {"samples": 10, "mean": 42.5, "min": 5, "max": 196, "throughput": 5.3996, "error_pct": 50},
    }),
    "jmeter.xml": ("JMeter JTL (XML)", {
        "GET /": {"samples": 10, "mean": 12.8, "min": 5, "max": 38, "error_pct": 0},
        CART: {"samples": 10, "mean": 4.9, "min": 1, "max": 7, "error_pct": 40},
        CHECKOUT: {"samples": 10, "mean": 17.7, "min": 10, "max": 41, "error_pct": 40},
    }),
    "jmh.json": ("JMH JSON", {
        f"{JMH} [thrpt]": {"samples": 1, "mean": None, "throughput": 5458.38},
        f"{JMH} [avgt]": {"samples": 1, "mean": 0.00789121, "throughput": 126723.3},
        f"{JMH} [sample]": {"samples": 208, "mean": 0.008881, "min": 0.001432, "p50": 0.001632, "p90": 0.003918,
                            "p95": 0.005544, "p99": 0.169824, "max": 1.103872},
        f"{JMH} [ss]": {"samples": 1, "mean": 0.04477},
    }),
    "k6-export.json": ("k6 summary", {
        K6: {"samples": 20, "mean": 44.1857, "min": 1.69337, "p50": 43.6899, "p90": 55.8808, "p95": 91.9565,
             "max": 106.981, "throughput": 44.888235, "error_pct": 25},
        K6_CART: {"samples": 10, "mean": 41.2074, "p95": 48.9948, "throughput": 22.444118, "error_pct": None},
        "iteration_duration": {"samples": 10, "mean": 88.9603, "p95": 124.841, "throughput": 22.444118},
    }),
    "k6-handle.json": ("k6 summary", {
        K6: {"samples": 20, "mean": 42.7534, "p90": 49.8177, "throughput": 46.273, "error_pct": 25},
        K6_CART: {"samples": 10, "mean": 44.9451, "p95": 47.8203, "throughput": 23.1365},
        "iteration_duration": {"samples": 10, "mean": 86.1864, "max": 112.043},
    }),
    "k6-new.json": ("k6 summary", {
        K6: {"samples": 20, "mean": 41.9984, "p90": 57.8393, "p95": 64.7024, "throughput": 39.808116, "error_pct": 25},
        K6_CART: {"samples": 10, "mean": 42.8197, "p90": 57.8393, "throughput": 19.904058, "error_pct": None},
        "iteration_duration": {"samples": 10, "mean": 92.5141, "throughput": 19.904058},
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", PRINTED)
def test_the_figures_of_a_file_are_those_that_its_tool_prints(name: str) -> None:
    format, printed = PRINTED[name]
    for data in (SAMPLES / name).read_bytes(), gzip.compress((SAMPLES / name).read_bytes()):
        report = read_perf(io.BytesIO(data), Limits())
        points = {point.label: point for point in report.points}
        assert report.format == format
        assert len(points) == len(report.points)
        if not name.startswith("k6"):  # it has further metrics
            assert set(points) == set(printed)
        for label, figures in printed.items():
            for figure, value in figures.items():
                read = getattr(points[label], figure)
                assert read is None if value is None else read == pytest.approx(value, rel=1e-4), (label, figure)


def test_nested_jmeter_samples_are_not_counted() -> None:
    inner = '<httpSample t="5" ts="1" s="false" lb="part"/>'
    document = (
        f'<?xml version="1.0"?>\n<!-- x --><testResults version="1.2"><httpSample t="10" ts="1000" s="true" lb="a">'
        f'{inner}<responseData class="java.lang.String">&lt;sample t="1"/&gt;</responseData></httpSample>'
        f'<sample t="30" ts="2000" lb="a"/><sample t="none" lb="a"/><sample lb="a"/></testResults>'
    )
    (point,) = read_perf(io.BytesIO(document.encode()), Limits()).points
    assert (point.label, point.samples, point.mean, point.error_pct) == ("a", 2, 20.0, 0.0)
    with pytest.raises(BadReport, match="it was cut short"):
        read_perf(io.BytesIO(document[:-20].encode()), Limits())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"type":"Metric","data":{"name":"http_reqs"}}\n{"metric":"http_reqs"}', 'a JSON object with "type", "data"'),
        (b"<testsuite><testcase name='a'/></testsuite>", "JUnit is a test report, not a performance report"),
        (b"mode: set\na.go:1.1,2.2 1 1", "Go cover profile is a coverage report, not a performance report"),
        (b"<jmeterTestPlan/>", "its root element is <jmeterTestPlan>: not a supported performance report"),
        (b"\0\1\2\3", "binary data|text that begins"),
    ],
)
def test_error_for_another_kind_of_file_names_what_it_resembles(content: bytes, reason: str) -> None:
    with pytest.raises(BadReport, match=rf"({reason}).*expected one of JMH JSON, pytest-benchmark JSON, k6 summary"):
        read_perf(io.BytesIO(content), Limits())


def test_comments_before_the_root_take_linear_time() -> None:
    """A regular expression took time exponential to their number, and held the interpreter's lock meanwhile."""
    comments = "<!---->" * 1000
    with pytest.raises(BadReport, match="not well-formed"):
        read_perf(io.BytesIO(f"{comments}x".encode()), Limits())
    (point,) = read_perf(
        io.BytesIO(f'{comments}<testResults><sample t="1" lb="a"/></testResults>'.encode()), Limits()
    ).points
    assert point.samples == 1
