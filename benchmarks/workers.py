"""Uploads, and the delay of the event loop meanwhile, beside the commit before worker processes, in the same runs.

    python benchmarks/workers.py [--before 28452ec] [--cases 100000] [--files 5000] [--runs 3] [--out FILE]

Each row is a number of equal uploads at once, sent to a server of each tree in turn, so a slow moment of the machine
meets both. `cold`: the first upload of a server. Memory is that of the server's process alone.
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

from benchmarks import claims, report
from benchmarks.at_rest import older_tree
from benchmarks.candidates import ROOT
from benchmarks.ingest import Server, Watch, jacoco, junit, post
from benchmarks.report import PILOTHOUSE, Figures, Metric
from benchmarks.streams import running

SMALL_CASES = 100
METRICS = (
    Metric("seconds", "seconds", 3),
    Metric("throughput", "uploads a second", 2),
    Metric("lag", "delay of the event loop, ms (p99)", 2),
    Metric("stall", "delay of the event loop, ms (worst)", 1),
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
        with Watch(server.memory) as watch:
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
        put("growth", (watch.most - before) / 1024)
        time.sleep(2)  # memory is returned to the system a second later
        put("kept", (server.memory() - before) / 1024)


def document(figures: Figures, names: Sequence[str], sizes: dict[str, float], runs: int) -> str:
    rows = [
        [f"{row[0]} ({sizes[row[1]]:.1f} MB)", metric.title, *(figures.cell(metric, number, name) for name in names)]
        for number, row in enumerate(ROWS)
        for metric in METRICS
    ]
    return "\n\n".join(
        [
            "# Uploads in worker processes",
            f"{report.machine()}. {runs} run(s); cells: median (min..max) **x ratio to Pilothouse in the same run**.",
            report.table(["", "", *names], rows),
        ]
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default="28452ec", help="the commit that is measured beside this tree")
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
    claims.publish(options, document(figures, list(trees), sizes, options.runs), [])
    return 0


if __name__ == "__main__":
    sys.exit(main())
