"""Uploads, and the delay of the event loop and of /healthz meanwhile, beside the commit before worker processes.

    python benchmarks/workers.py [--before 28452ec] [--cases 100000] [--files 5000] [--runs 3] [--out FILE]

Each row is a number of equal uploads at once, sent to a server of each tree in turn, so a slow moment of the machine
meets both; `--before none` measures this tree alone. `cold`: the first upload of a server. Another client requests
/healthz all the time (benchmarks/loop_lag.py). Memory is that of the server's process alone.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # it is run as a program

from benchmarks import claims, loop_lag, report
from benchmarks.at_rest import older_tree
from benchmarks.candidates import ROOT
from benchmarks.claims import Claim
from benchmarks.ingest import Server, Watch, jacoco, junit, post
from benchmarks.report import PILOTHOUSE, Figures, Metric
from benchmarks.streams import running

SMALL_CASES = 100
METRICS = (
    Metric("seconds", "seconds", 3),
    Metric("throughput", "uploads a second", 2),
    Metric("lag", "delay of the event loop, ms (p99)", 2),
    Metric("stall", "delay of the event loop, ms (worst)", 1),
    Metric("health", "delay of /healthz of another client by the server, ms (p99)", 2),
    Metric("health_worst", "delay of /healthz of another client by the server, ms (worst)", 1),
    Metric("growth", "additional memory during, MiB (RSS)", 1),
    Metric("kept", "additional memory after, MiB (RSS)", 1),
)
ROWS: Sequence[tuple[str, str, int, bool]] = (
    ("100 tests, cold", "small", 1, False),
    ("100 tests, warm", "small", 1, True),
    ("JUnit", "junit", 1, True),
    ("JaCoCo", "jacoco", 1, True),
    ("two JUnit at once", "junit", 2, True),
    ("four JUnit at once", "junit", 4, True),
)
"""Name, report, uploads at once, whether another upload came before."""
CLAIMED = (("JUnit", "one large upload"), ("two JUnit at once", "two large uploads"))
"""Rows that are claimed, and what they measure."""

Put = Callable[[str, float], None]


class TreeServer(Server):
    """A server of one tree of files."""

    tree = ROOT

    def command(self) -> Sequence[str]:
        python, program, *arguments = super().command()
        return [python, str(self.tree / Path(program).relative_to(ROOT)), *arguments]


def server_of(tree: Path) -> type[TreeServer]:
    return type("Server", (TreeServer,), {"tree": tree, "settings": {**TreeServer.settings, "server": {}}})


def measure(tree: Path, kind: str, source: Path, at_once: int, is_warm: bool, put: Put) -> None:
    with running(server_of(tree)) as server:
        if is_warm:
            server.publish(0)
        urlopen(f"http://127.0.0.1:{server.port}/healthz", timeout=60).close()  # the clock in the loop has begun
        server.lag()
        before = server.memory()
        with Watch(server.memory) as watch, loop_lag.health_checks(server.port, server.pids()[0]) as health:
            uploads = [
                threading.Thread(target=post, args=(server.port, "junit" if kind == "small" else kind, source))
                for _ in range(at_once)
            ]
            begin = time.monotonic()
            for upload in uploads:
                upload.start()
            for upload in uploads:
                upload.join()
            seconds = time.monotonic() - begin
        put("seconds", seconds)
        put("throughput", at_once / seconds)
        late = server.lag()
        put("lag", late.p99)
        put("stall", late.worst)
        put("health", sorted(health)[int(len(health) * 0.99)])
        put("health_worst", max(health))
        put("growth", (watch.most - before) / 1024)
        time.sleep(7)  # memory is returned to the system some seconds later
        put("kept", (server.memory() - before) / 1024)


def document(figures: Figures, names: Sequence[str], sizes: dict[str, float], runs: int) -> str:
    rows = [
        [f"{row[0]} ({sizes[row[1]]:.1f} MB)", metric.title, *(figures.cell(metric, number, name) for name in names)]
        for number, row in enumerate(ROWS)
        for metric in METRICS
    ]
    facts = f"{report.machine()}. {runs} run(s); cells: median (min..max) **x ratio to Pilothouse in the same run**."
    load = "Seconds and delays of the loop grow with the load of the machine, delays by the server hardly."
    parts = ["# Uploads in worker processes", f"{facts} {load}", report.table(["", "", *names], rows)]
    return "\n\n".join(parts) + "\n"


def claimed(figures: Figures, before: str) -> list[Claim]:
    numbers = {row[0]: number for number, row in enumerate(ROWS)}
    found = []
    for row, what in CLAIMED:
        during = partial(claims.measured, figures, size=numbers[row], area="uploads in workers")
        found += during("health_worst", text=f"delay of /healthz during {what}, worst", unit="ms", target=100)
        if before:
            found += during("seconds", text=what, unit="s", reference=before)
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default="28452ec", help="the commit that is measured beside this tree, or none")
    parser.add_argument("--cases", type=int, default=100_000, help="of the test report, in hundreds")
    parser.add_argument("--files", type=int, default=5_000, help="of the coverage report, in fifties")
    parser.add_argument("--runs", type=int, default=3)
    claims.add_outputs(parser)
    return parser.parse_args()


def main() -> int:
    options, figures = arguments(), Figures()
    with tempfile.TemporaryDirectory(prefix="ph-bench-") as place, older_tree(options.before) as older:
        sources = {kind: Path(place) / f"{kind}.xml" for kind in ("small", "junit", "jacoco")}
        sources["small"].write_text("".join(junit(SMALL_CASES)))
        sources["junit"].write_text("".join(junit(options.cases)))
        sources["jacoco"].write_text("".join(jacoco(options.files)))
        sizes = {kind: source.stat().st_size / 1e6 for kind, source in sources.items()}
        trees = {PILOTHOUSE: ROOT, **({options.before: older} if older else {})}
        for run in range(options.runs):
            for number, (name, kind, at_once, is_warm) in enumerate(ROWS):
                for who, tree in trees.items():

                    def put(run: int, number: int, who: str, metric: str, value: float) -> None:
                        figures.put(run, metric, number, who, value)

                    measure(tree, kind, sources[kind], at_once, is_warm, partial(put, run, number, who))
                print(f"run {run + 1}: {name}", file=sys.stderr, flush=True)
    found = claimed(figures, options.before if options.before in trees else "")
    claims.publish(options, document(figures, list(trees), sizes, options.runs), found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
