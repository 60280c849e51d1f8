"""Performance reports in JSON: the summary of k6, JMH, and pytest-benchmark."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import evolve

from models.tracker.reports.base import BadReport, Limits
from models.tracker.reports.json_stream import CLOSED, ITEM, OPENED, count, json_values, number, text
from models.tracker.reports.perf_points import MAX_LABELS, Histogram, PerfPoint
from models.tracker.reports.text_cleaning import MAX_COUNT

_MAX_VALUES = 100_000
_MAX_METRICS = 20_000
_UNITS_MS = {"ns": 1e-6, "us": 1e-3, "μs": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1000.0, "min": 60_000.0, "hr": 3_600_000.0,
             "day": 86_400_000.0}  # fmt: skip
_SHARE = re.compile(r"p(\d+(?:\.\d+)?)")
_SKIPPED_K6 = ("blocked", "connecting", "tls_handshaking", "sending", "waiting", "receiving", "looking_up")


def _ms(value: Any, factor: float) -> float | None:
    amount = number(value)
    return None if amount is None or amount < 0 else amount * factor


class K6:
    """The JSON of `--summary-export`, and of `handleSummary`, whose figures are one level deeper.

    With `--new-machine-readable-summary` both are a list of metrics, whose rates follow from the duration of the test.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._metrics: dict[str, dict[str, Any]] = {}
        self._seconds: float | None = None

    def read(self, pieces: Iterable[bytes]) -> None:
        figures: dict[str, Any] = {}
        has_metrics = False
        for place, value in json_values(pieces, self._limits):
            has_metrics |= (place == ("metrics",) and value is OPENED) or place[:2] == ("results", "metrics")
            if place == ("config", "duration"):
                self._seconds = number(value)
            elif place[:3] == ("results", "metrics", ITEM):
                figures = self._read_listed(place[3:], value, figures)
            if place[:1] != ("metrics",) or len(place) < 3 or value in (OPENED, CLOSED):
                continue
            if len(self._metrics) > _MAX_METRICS:
                raise BadReport(f"it has more than {_MAX_METRICS} metrics")
            named = self._metrics.setdefault(place[1], {})
            if place[2] == "values" and len(place) == 4:
                named[place[3]] = value
            elif len(place) == 3:
                named[place[2]] = value
        if not has_metrics:
            raise BadReport("it has no metrics")

    def _read_listed(self, place: tuple[str, ...], value: Any, figures: dict[str, Any]) -> dict[str, Any]:
        """Reads a value of a listed metric. Returns the figures of that metric."""
        if not place and value is OPENED:
            return {}
        if not place and value is CLOSED:
            if self._seconds and (total := number(figures.get("count"))) is not None:
                figures.setdefault("rate", total / self._seconds)
            if name := text(figures.get("name")):
                self._metrics[name] = figures
        elif place and len(self._metrics) <= _MAX_METRICS:
            figures[_SHARE.sub(r"p(\1)", place[-1])] = value
        return figures

    def points(self) -> Iterable[PerfPoint]:
        for name, figures in self._metrics.items():
            plain, _, tags = name.partition("{")
            is_time = _ms(figures.get("avg"), 1) is not None and figures.get("contains", "time") in ("time", "default")
            if is_time and plain not in [f"http_req_{part}" for part in _SKIPPED_K6]:
                yield self._point(name, plain, f"{{{tags}" if tags else "", figures)

    def _point(self, name: str, plain: str, tags: str, figures: Mapping[str, Any]) -> PerfPoint:
        counter = {"http_req_duration": "http_reqs", "iteration_duration": "iterations"}.get(plain, "")
        counts = self._metrics.get(counter + tags, {}) if counter else {}
        failures = self._metrics.get(f"http_req_failed{tags}", {}) if plain == "http_req_duration" else {}
        share = number(failures.get("rate", failures.get("value")))
        samples = number(figures.get("count", counts.get("count")))
        get = figures.get
        return PerfPoint(
            label=name,
            samples=max(0, int(samples or 0)),
            mean=_ms(get("avg"), 1),
            min=_ms(get("min"), 1),
            max=_ms(get("max"), 1),
            p50=_ms(get("med", get("p(50)")), 1),
            p90=_ms(get("p(90)"), 1),
            p95=_ms(get("p(95)"), 1),
            p99=_ms(get("p(99)"), 1),
            throughput=_ms(counts.get("rate"), 1),
            error_pct=None if share is None else 100 * share,
        )


class Jmh:
    """An array of benchmarks. Modes of time give durations, the mode of throughput gives a rate.

    A benchmark in several modes (`-bm all`) has a label for each of them.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._points: list[tuple[str, PerfPoint]] = []
        """With their modes."""

    def read(self, pieces: Iterable[bytes]) -> None:
        facts: dict[tuple[str, ...], Any] = {}
        values, pair = 0, list[Any]()
        for place, value in json_values(pieces, self._limits):
            if place == (ITEM,):
                if value is OPENED:
                    facts, values, pair = {}, 0, []
                elif value is CLOSED and len(self._points) < 10 * MAX_LABELS:
                    self._add(facts, values)
            elif place[:3] == (ITEM, "primaryMetric", "rawData"):
                values += value is not OPENED and value is not CLOSED
            elif place[:3] == (ITEM, "primaryMetric", "rawDataHistogram"):  # pairs of a value and how often it was
                pair.append(value)
                if len(pair) == 2:
                    values += count(pair[1], MAX_COUNT) or 0
                    pair = []
            elif place[:2] in ((ITEM, "primaryMetric"), (ITEM, "params")) or len(place) == 2:
                facts[place[1:]] = value

    def _add(self, facts: Mapping[tuple[str, ...], Any], values: int) -> None:
        name, unit = text(facts.get(("benchmark",))), text(facts.get(("primaryMetric", "scoreUnit"))) or ""
        score = number(facts.get(("primaryMetric", "score")))
        if name is None or score is None:
            return
        parameters = ", ".join(f"{key[1]}={value}" for key, value in sorted(facts.items(), key=lambda item: item[0])
                               if len(key) == 2 and key[0] == "params" and isinstance(value, str))  # fmt: skip
        mode = text(facts.get(("mode",))) or ""
        label = f"{name} ({parameters})" if parameters else name
        top, _, bottom = unit.partition("/")
        if top in _UNITS_MS:
            self._points.append((mode, self._times(label, score, values, facts, _UNITS_MS[top])))
        elif bottom in _UNITS_MS:
            self._points.append((mode, PerfPoint(label, values, throughput=score * 1000 / _UNITS_MS[bottom])))
        else:
            raise BadReport(f"the unit {unit[:40]!r} of {name[:100]} ({mode[:20]}) is not known")

    def _times(
        self, label: str, score: float, values: int, facts: Mapping[tuple[str, ...], Any], factor: float
    ) -> PerfPoint:
        share = {key[2]: _ms(value, factor) for key, value in facts.items()
                 if key[:2] == ("primaryMetric", "scorePercentiles") and len(key) == 3}  # fmt: skip
        mean = score * factor
        get = share.get
        return PerfPoint(
            label, values, mean, get("0.0"), get("100.0"), get("50.0"), get("90.0"), get("95.0"), get("99.0"),
            1000 / mean if mean > 0 else None,
        )  # fmt: skip

    def points(self) -> Iterable[PerfPoint]:
        modes: dict[str, set[str]] = defaultdict(set)
        for mode, point in self._points:
            modes[point.label].add(mode)
        for mode, point in self._points:
            yield point if len(modes[point.label]) == 1 else evolve(point, label=f"{point.label} [{mode}]")


class PytestBenchmark:
    """`benchmarks[].stats`, in seconds; percentiles beyond the median only where `data` has the single rounds."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._points: list[PerfPoint] = []
        self._is_known = False

    def read(self, pieces: Iterable[bytes]) -> None:
        facts: dict[str, Any] = {}
        rounds = Histogram()
        for place, value in json_values(pieces, self._limits):
            if place[:2] != ("benchmarks", ITEM):
                self._is_known |= place == ("machine_info",)
            elif len(place) == 2:
                if value is OPENED:
                    self._is_known, facts, rounds = True, {}, Histogram()
                elif value is CLOSED and len(self._points) < 10 * MAX_LABELS:
                    self._add(facts, rounds)
            elif place[2] == "stats" and place[3:] == ("data", ITEM):
                seconds = number(value)
                if seconds is not None and seconds >= 0 and rounds.count < _MAX_VALUES:
                    rounds.add(1000 * seconds)
            elif len(place) == 3 or (len(place) == 4 and place[2] == "stats"):
                facts[place[-1]] = value
        if not self._is_known:
            raise BadReport("it has no benchmarks")

    def _add(self, facts: Mapping[str, Any], rounds: Histogram) -> None:
        get = facts.get
        label = text(get("fullname")) or text(get("name"))
        mean = _ms(get("mean"), 1000)
        if label is None or mean is None:
            return
        samples = int((number(get("rounds")) or 0) * (number(get("iterations")) or 1))
        known = rounds.point(label) if rounds.count else PerfPoint(label, 0)
        median = _ms(get("median"), 1000)
        # The median is exact. A percentile of the rounds, up to 1 % too small, must not be below it.
        p90, p95, p99 = (share and max(share, median or 0.0) for share in (known.p90, known.p95, known.p99))
        self._points.append(
            evolve(
                known,
                samples=samples,
                mean=mean,
                min=_ms(get("min"), 1000),
                max=_ms(get("max"), 1000),
                p50=median,
                p90=p90,
                p95=p95,
                p99=p99,
                throughput=_ms(get("ops"), 1),
            )
        )

    def points(self) -> Iterable[PerfPoint]:
        return self._points
