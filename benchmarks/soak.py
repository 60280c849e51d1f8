"""Half an hour of mixed traffic on all services: errors, growth of memory and descriptors, delay of the event loop.

    python benchmarks/soak.py [--seconds 1800] [--out FILE]

With an API server for tests (KUBEBUILDER_ASSETS) releases are changed and read as well. Only loopback is used. The exit
code is 1 if there was an error or a resource grew.
"""

import argparse
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "charts")]  # it is run as a program

import tornado  # noqa: E402
from chart_servers import web_server  # noqa: E402
from cluster import Cluster, programs  # noqa: E402
from conftest import Server  # noqa: E402
from small_charts import FULL, sample_chart  # noqa: E402

from benchmarks import procfs, report  # noqa: E402
from benchmarks.httpload import Probe, Target  # noqa: E402
from benchmarks.traffic import API, KEY, PROCESSES, Releaser, Tally, clients  # noqa: E402
from models import VERSION  # noqa: E402

SAMPLE = 2.0
WARM_UP = 0.2
"""The part of the run before memory counts: until then caches and the allocator's arenas fill."""
EDGES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Milliseconds: the histogram's bounds."""
GROWTH, GROWTH_PART = 3.0, 0.04
"""MiB, and part of the value after the warm-up: smaller growth is noise."""
MAX_EXTRA_SECONDS = 120.0


@dataclass
class Sample:
    at: float
    rss: float
    pss: float
    descriptors: int
    threads: int


@dataclass
class Watch:
    """Memory, descriptors and threads of the server, every two seconds."""

    pid: int
    samples: list[Sample] = field(default_factory=list)
    waited: float = 0.0
    """Seconds in which the loop was ready to run, but no processor was free."""

    def run(self, over: threading.Event) -> None:
        begun = time.monotonic()
        while not over.wait(SAMPLE):
            pss, rss = procfs.memory([self.pid])
            descriptors = procfs.descriptors(self.pid, len(PROCESSES))
            threads = procfs.threads([self.pid])
            self.samples.append(Sample(time.monotonic() - begun, rss, pss, descriptors, threads))
            self.waited = int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[1]) / 1e9

    @property
    def warm(self) -> list[Sample]:
        return self.samples[int(len(self.samples) * WARM_UP) :]


@dataclass
class SoakResult:
    """The results of a run."""

    seconds: float
    tally: Tally
    watch: Watch
    lag: list[float]
    log: str
    has_cluster: bool

    def grown(self) -> dict[str, tuple[float, float, float]]:
        """Returns for each figure the slope per hour, and the medians of the first and last quarter."""
        warm = self.watch.warm
        quarter = max(1, len(warm) // 4)
        found = {}
        for name in ("rss", "pss", "descriptors", "threads"):
            values = [float(getattr(one, name)) for one in warm]
            fit = statistics.linear_regression([one.at for one in warm], values) if len(warm) > 1 else None
            slope = 3600 * fit.slope if fit else 0.0
            found[name] = (slope, statistics.median(values[:quarter]), statistics.median(values[-quarter:]))
        return found

    def faults(self, growth: float = GROWTH) -> list[str]:
        """Returns the reasons why the run failed, or nothing. Growth of less than `growth` MiB is noise."""
        found = [f"{len(self.tally.errors)} errors, the first: {self.tally.errors[0]}"] if self.tally.errors else []
        for name, (_, first, last) in self.grown().items():
            most = max(growth, GROWTH_PART * first) if name in ("rss", "pss") else 8
            if last - first > most:
                found.append(f"{name} grew from {first:.1f} to {last:.1f}")
        found += ["no stream tally of anything"] if not self.tally.events else []
        return found + (["the log has a trace"] if "Traceback" in self.log else [])


@contextmanager
def prepared_server(place: Path, with_cluster: bool) -> Iterator[tuple[Server, bool]]:
    with ExitStack() as stack:
        repository = stack.enter_context(web_server())
        repository.serve(("tint", "0.1.0", sample_chart()))
        svc: dict[str, Any] = {
            **FULL,
            "security": {**FULL["security"], "allowed-hosts": [repository.host_port]},
            "helm": {"binary": str(ROOT / ".tools" / "helm")} if (ROOT / ".tools" / "helm").exists() else {},
            "rest": {"temp-dir": str(place / "temp")},
        }
        if with_cluster:
            (place / "cluster").mkdir()
            cluster = Cluster(place / "cluster", programs())
            stack.callback(cluster.close)
            cluster.start()
            cluster.namespace(Releaser.namespace)
            svc["kube"] = {"kubeconfig": str(cluster.kubeconfig)}
        log = {"stdout-logfile": str(place / "p.log"), "log-max-bytes": "64KB"}
        chatty = "while :; do echo $(date) served a request; sleep 0.2; done"
        processes: dict[str, Any] = {name: {"command": "sleep 1000", "auto-start": True} for name in PROCESSES}
        processes["p0"] = {"command": ["sh", "-c", chatty], "auto-start": True, **log}
        config = {"supervisor": {"processes": processes}, "tracker": {"retain-runs": 20}, "svc": svc}
        server = Server(place, config, {}, [])
        stack.callback(server.close)
        server.start()
        body = f'{{"name": "lab", "url": "{repository.url}"}}'.encode()
        answer = server.ask("POST", f"{API}/repos", body, {**KEY, "Content-Type": "application/json"})
        if answer.status != 201:
            raise SystemExit(f"the repository cannot be added: {answer}")
        yield server, with_cluster


def soak(place: Path, seconds: float, with_cluster: bool, operations: Collection[str] = ()) -> SoakResult:
    """Sends mixed traffic for `seconds`, and on a busy machine until each of these operations has been requested."""
    tally, over = Tally(), threading.Event()
    with prepared_server(place, with_cluster) as (server, has_cluster):
        watch = Watch(server.pid)
        crowd = [threading.Thread(target=one.run, args=(over,)) for one in clients(server.port, tally, has_cluster)]
        crowd.append(threading.Thread(target=watch.run, args=(over,)))
        with Probe(Target.get(server.port, "/healthz"), 0.02) as probe:
            for thread in crowd:
                thread.start()
            try:
                time.sleep(seconds)
                end = time.monotonic() + MAX_EXTRA_SECONDS
                while not all(name in tally.took for name in operations) and time.monotonic() < end:
                    time.sleep(0.1)
            finally:
                over.set()
                for thread in crowd:
                    thread.join()
            lag = [1000 * one for one in probe.latencies()]
        return SoakResult(seconds, tally, watch, lag, server.log.read_text(), has_cluster)


def percentile(ordered: Sequence[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def endpoints(tally: Tally) -> str:
    rows = []
    for name, took in sorted(tally.took.items()):
        ordered = sorted(1000 * one for one in took)
        figures = [percentile(ordered, part) for part in (0.5, 0.99)]
        rows.append([name, str(len(ordered)), *(f"{one:.1f}" for one in (*figures, ordered[-1]))])
    return report.table(["operation", "requests", "p50, ms", "p99, ms", "worst, ms"], rows)


def histogram(lag: Sequence[float]) -> str:
    counts = Counter(next((edge for edge in EDGES if one <= edge), 0) for one in lag)
    rows, before = [], 0
    for edge in (*EDGES, 0):
        bound = f"{before} to {edge}" if edge else f"above {before}"
        rows.append([bound, str(counts[edge]), f"{100 * counts[edge] / len(lag):.3f} %"])
        before = edge
    return report.table(["/healthz, requested every 20 ms: ms", "responses", "share"], rows)


def growth(result: SoakResult) -> str:
    titles = {"rss": "RSS, MiB", "pss": "PSS, MiB", "descriptors": "descriptors", "threads": "threads"}
    rows = [
        [titles[name], f"{first:.1f}", f"{last:.1f}", f"{slope:+.2f}"]
        for name, (slope, first, last) in result.grown().items()
    ]
    return report.table(["", "after the warm-up", "at the end", "slope per hour"], rows)


def document(result: SoakResult, helm: str) -> str:
    tally, faults = result.tally, result.faults()
    lag, waited = sorted(result.lag), result.watch.waited
    verdict = "**passed**: no error, no growth" if not faults else f"**failed**: {'; '.join(faults)}"
    with_what = f"{helm}, with a Kubernetes API server" if result.has_cluster else f"{helm}, without a cluster"
    return "\n".join([
        "# Soak test", "",
        f"{report.machine()}. Pilothouse {VERSION}, Tornado {tornado.version}, SQLite {sqlite3.sqlite_version}, "
        f"{with_what}. {result.seconds:.0f} s of mixed traffic: {tally.count} requests "
        f"({tally.count / result.seconds:.0f} a second), {tally.events} events of streams. The clients share the "
        "machine and one interpreter, so their durations are longer than those of the server.", "",
        f"Errors: {len(tally.errors)}. Verdict: {verdict}.", "",
        *(f"- `{one}`" for one in tally.errors[:10]), "",
        "## Memory, descriptors, threads", "",
        f"Medians of the first and the last quarter after a warm-up of {100 * WARM_UP:.0f} %; the slope is that "
        "of a line through all samples between them.", "", growth(result), "",
        "## Delay of the event loop", "",
        f"Measured by a separate process; a late response delays the following ones, and all count. p50 "
        f"{percentile(lag, 0.5):.1f} ms, p99 {percentile(lag, 0.99):.1f} ms, worst {lag[-1]:.1f} ms. For "
        f"{waited:.0f} s ({100 * waited / result.seconds:.1f} %) the loop was ready to run, but no processor was "
        "free (helm processes, the API server, the clients and other programs share the processors).", "",
        histogram(lag), "", "## Operations", "", endpoints(tally), "",
    ])  # fmt: skip


def helm_version() -> str:
    own = ROOT / ".tools" / "helm"
    command = [str(own) if own.exists() else "helm", "version", "--template={{.Version}}"]
    return f"helm {subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()}"


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # and so ends whatever it has started
    parser = argparse.ArgumentParser(description="Half an hour of mixed traffic.")
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ph-soak-") as place:
        result = soak(Path(place), options.seconds, bool(os.environ.get("KUBEBUILDER_ASSETS")))
    text = document(result, helm_version())
    print(text)
    if options.out:
        options.out.write_text(text)
    return 1 if result.faults() else 0


if __name__ == "__main__":
    sys.exit(main())
