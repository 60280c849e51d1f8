"""A large chart repository: Pilothouse compared with the equivalent helm command, in the same runs.

    python benchmarks/repository.py [--versions 50000] [--runs 3] [--helm FILE] [--out FILE]

The index has a thousand charts (or as many as there are versions) with equally many versions each, about a kilobyte for
each entry, served on loopback by `http.server`. helm runs as one process for each operation, and its memory is the
maximum of these processes; that of Pilothouse is the growth of the server. An update fetches and reads the whole index.
"""

import argparse
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # it is run as a program

from benchmarks import claims, report, streams
from benchmarks.candidates import ROOT, free_port, until
from benchmarks.claims import Claim
from benchmarks.ingest import Watch
from benchmarks.report import PILOTHOUSE, Figures, Metric

HELM = "helm"
CHARTS = 1000
ROUNDS = 2
HEAD = "apiVersion: v1\ngenerated: '2026-01-01T00:00:00"
METRICS = (
    Metric("update", "fetch and read the index, s", 2),
    Metric("update_memory", "memory to fetch and read the index, MiB", 1),
    Metric("list", "list all charts, ms", 1),
    Metric("versions", "list the versions of a chart, ms", 1),
    Metric("show", "show a chart's metadata, ms", 1),
    Metric("pull", "fetch a chart's archive, ms", 1),
)


class Pilothouse(streams.Pilothouse):
    def __init__(self, host: str, place: Path) -> None:
        """`host` is the repository's, which it may reach although that is on loopback."""
        super().__init__(place)
        self.settings = {"svc": {"security": {"mode": "FULL", "api-key": "bench", "allowed-hosts": [host]}}}

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        headers = {"X-API-Key": "bench"}
        connection.request(method, "/api/v1" + path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:300]!r}")
        return content


class Helm:
    def __init__(self, program: str, place: Path) -> None:
        self.program = program
        self.environ = {"HOME": str(place), "PATH": os.environ["PATH"]}
        self.most = 0.0

    def run(self, *arguments: str) -> None:
        """Runs helm, and records its maximum memory in `most`."""
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen([self.program, *arguments], env=self.environ, stdout=output, stderr=output)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0)
            if process.returncode:
                raise RuntimeError(f"helm {' '.join(arguments)}: {output.read(500)!r}")
        self.most = used.ru_maxrss / 1024


def write_repository(folder: Path, versions: int, helm: str) -> None:
    """Writes an index with that many versions, and one archive that it refers to."""
    charts = min(CHARTS, versions)
    subprocess.run([helm, "create", "demo"], cwd=folder, check=True, capture_output=True)
    subprocess.run([helm, "package", "demo"], cwd=folder, check=True, capture_output=True)
    words = (
        "A chart for the benchmark, with a description of the length that is usual in large public repositories. " * 6
    )
    with (folder / "index.yaml").open("w") as index:
        index.write(HEAD + "Z'\nentries:\n")
        index.write("  demo:\n  - apiVersion: v2\n    name: demo\n    version: 0.1.0\n    urls: [demo-0.1.0.tgz]\n")
        for chart in range(charts):
            index.write(f"  chart-{chart:04}:\n")
            for version in range(versions // charts, 0, -1):
                index.write(
                    f"  - apiVersion: v2\n    name: chart-{chart:04}\n    version: 1.{version}.0\n"
                    f"    appVersion: '{version}'\n    description: {words}\n    home: https://charts.example/{chart}\n"
                    f"    created: '2026-01-01T00:00:00Z'\n    digest: {chart * 100000 + version:064x}\n"
                    "    keywords: [one, two, three]\n    maintainers:\n    - {email: some@charts.example, name: S}\n"
                    f"    urls:\n    - https://charts.example/chart-{chart:04}-1.{version}.0.tgz\n"
                )


@contextmanager
def served(folder: Path) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(folder)]
    web = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: _is_there(port), 20, "the web server")
        yield f"127.0.0.1:{port}"
    finally:
        web.kill()
        web.wait()


def _is_there(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("HEAD", "/index.yaml")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def timed(work: Callable[[], object]) -> float:
    """Milliseconds."""
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1000


def change(index: Path, number: int) -> None:
    """Sets a new modification time, so that conditional requests see a change."""
    with index.open("r+b") as file:
        file.seek(len(HEAD) - 2)
        file.write(b"%02d" % number)
    later = time.time() + number
    os.utime(index, (later, later))


def measure(pilothouse: Pilothouse, helm: Helm, place: Path, put: Callable[[str, str, float], None]) -> None:
    """Measures one update of the index with each program, then the reads."""
    before = pilothouse.memory()
    with Watch(pilothouse.memory) as watch:
        put("update", PILOTHOUSE, timed(partial(pilothouse.request, "POST", "/repos/big/update")) / 1000)
    put("update_memory", PILOTHOUSE, (watch.most - before) / 1024)
    put("update", HELM, timed(partial(helm.run, "repo", "update")) / 1000)
    put("update_memory", HELM, helm.most)
    both: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "list": (
            partial(pilothouse.request, "GET", "/repos/big/charts"),
            partial(helm.run, "search", "repo", "big/", "-ojson"),
        ),
        "versions": (
            partial(pilothouse.request, "GET", "/repos/big/charts/chart-0000/versions"),
            partial(helm.run, "search", "repo", "big/chart-0000", "--versions", "-ojson"),
        ),
        "show": (
            partial(pilothouse.request, "GET", "/charts/show/chart?chartRef=big/demo"),
            partial(helm.run, "show", "chart", "big/demo"),
        ),
        "pull": (
            partial(pilothouse.request, "POST", "/repos/pull", {"chart": "big/demo"}),
            partial(helm.run, "pull", "big/demo", "--destination", str(place)),
        ),
    }
    for metric, (request, command) in both.items():
        put(metric, PILOTHOUSE, min(timed(request) for _ in range(ROUNDS)))
        put(metric, HELM, min(timed(command) for _ in range(ROUNDS)))


def _put(figures: Figures, run: int, versions: int, metric: str, candidate: str, value: float) -> None:
    figures.put(run, metric, versions, candidate, value)


def claimed(figures: Figures, versions: int) -> list[Claim]:
    def of(metric: str, text: str, unit: str, target: float) -> list[Claim]:
        title = f"{text}, index of {versions} versions"
        return claims.measured(figures, metric, versions, "repository", title, unit, HELM, target)

    return [
        *of("update", "fetch and read the index", "s", 3.0),
        *of("update_memory", "memory to fetch and read the index", "MiB", 0.5),
        *of("list", "list all charts", "ms", 0.1),
        *of("versions", "list the versions of a chart", "ms", 0.1),
        *of("show", "show a chart's metadata", "ms", 0.5),
        *of("pull", "fetch a chart's archive", "ms", 0.5),
        *claims.measured(
            figures, "list", versions, "repository", f"list all charts, index of {versions} versions", "ms", target=10.0
        ),
    ]


def document(figures: Figures, versions: int, runs: int, size: float) -> str:
    rows = [
        [metric.title, *(figures.cell(metric, versions, candidate) for candidate in (PILOTHOUSE, HELM))]
        for metric in METRICS
    ]
    return (
        f"# A large repository\n\n{report.machine()}. {versions} versions, {size:.0f} MB; {runs} run(s), "
        f"reads: the minimum of {ROUNDS} in each; cells: "
        "median of the runs (min..max) **x ratio to Pilothouse in the same run**.\n\n"
        + report.table(["", PILOTHOUSE, HELM], rows)
        + "\n"
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", type=int, default=50_000)
    parser.add_argument("--runs", type=int, default=3)
    own = ROOT / ".tools" / "helm"
    parser.add_argument("--helm", default=str(own) if own.exists() else shutil.which("helm"))
    claims.add_outputs(parser)
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if not options.helm:
        raise SystemExit("there is no helm to compare with (--helm)")
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="ph-bench-") as name:
        place = Path(name)
        for part in ("repository", "home"):
            (place / part).mkdir()
        write_repository(place / "repository", options.versions, options.helm)
        size = (place / "repository" / "index.yaml").stat().st_size / 1e6
        with served(place / "repository") as host, streams.running(partial(Pilothouse, host)) as pilothouse:
            helm = Helm(options.helm, place / "home")
            pilothouse.request("POST", "/repos", {"name": "big", "url": f"http://{host}"})
            helm.run("repo", "add", "big", f"http://{host}")
            for run in range(options.runs):
                change(place / "repository" / "index.yaml", run + 10)
                measure(pilothouse, helm, place, partial(_put, figures, run, options.versions))
                print(f"run {run + 1}", file=sys.stderr, flush=True)
    text = document(figures, options.versions, options.runs, size)
    claims.publish(options, text, claimed(figures, options.versions))
    return 0


if __name__ == "__main__":
    sys.exit(main())
