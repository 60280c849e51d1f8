"""Reading releases: each endpoint compared with the equivalent helm command in the same run, on a real API server.

    python benchmarks/charts.py [--quick] [--runs 20] [--releases 200] [--revisions 10] [--helm FILE] [--out FILE]
                                [--claims FILE]

The API server is the one that the tests use (KUBEBUILDER_ASSETS). Pilothouse is called over HTTP on one
persistent connection; helm runs as in a shell: one process for each call. The order changes from round to round.
"""

import argparse
import http.client
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "charts")]  # it is run as a program

from cluster import Cluster, programs  # noqa: E402
from conftest import Server  # noqa: E402
from release_secrets import made_release, release_secret  # noqa: E402

from benchmarks import claims  # noqa: E402
from benchmarks.claims import Claim  # noqa: E402
from benchmarks.report import PILOTHOUSE  # noqa: E402

API = "/api/v1/releases"
SMALL, LARGE = "one", "many"
PAYLOAD = 16_000
CALLERS = 50
FIRST = 7
"""The number of server starts after which the first list is measured."""
GOALS = {"list": 5.0, "one": 10.0}
"""How many times faster than helm: a large list, and the calls for one release."""

Measured = dict[str, list[float]]


class Side:
    """helm and Pilothouse on the same cluster."""

    def __init__(self, server: Server, helm: str, cluster: Cluster, home: Path) -> None:
        self.server = server
        self.helm = helm
        self.environ = {"KUBECONFIG": str(cluster.kubeconfig), "HOME": str(home)}
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)

    def request(self, path: str) -> None:
        self.connection.request("GET", API + path)
        answer = self.connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status} {body[:300]!r}")

    def run_helm(self, *arguments: str) -> None:
        done = subprocess.run([self.helm, *arguments], env=self.environ, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"helm {' '.join(arguments)}: {done.stderr}")


def measured_calls(major: int, releases: int) -> list[tuple[str, str, str, list[str]]]:
    """The measured calls: goal, name, Pilothouse's path, helm's arguments."""
    every = ["--all"] if major == 3 else []
    calls = [
        (
            "list",
            f"list of {releases} releases",
            f"?namespace={LARGE}",
            ["list", "-n", LARGE, "-m", "0", *every, "-o", "json"],
        ),
        ("one", "list of one release", f"?namespace={SMALL}", ["list", "-n", SMALL, "-m", "0", *every, "-o", "json"]),
    ]
    for space, where in ((SMALL, "the only release"), (LARGE, f"one of {releases} releases")):
        there = ["-n", space, "-o", "json", "r0"]
        calls += [
            ("one", f"status of {where}", f"/r0?namespace={space}", ["status", *there]),
            ("one", f"history of {where}", f"/r0/history?namespace={space}", ["history", *there]),
            (
                "one",
                f"all values of {where}",
                f"/r0/values?all=true&namespace={space}",
                ["get", "values", "--all", *there],
            ),
            ("one", f"manifest of {where}", f"/r0/manifest?namespace={space}", ["get", "manifest", "-n", space, "r0"]),
            ("one", f"hooks of {where}", f"/r0/hooks?namespace={space}", ["get", "hooks", "-n", space, "r0"]),
        ]
    return calls


def fill(cluster: Cluster, namespace: str, releases: int, revisions: int) -> None:
    """Creates releases of about 30 KB each, in the format in which helm stores them."""
    cluster.namespace(namespace)
    noise = random.Random(1).randbytes(PAYLOAD).hex()
    things = []
    for index in range(releases):
        for number in range(1, revisions + 1):
            status = "deployed" if number == revisions else "superseded"
            release = made_release(
                f"r{index}", namespace, number, status, config={"a": 1}, manifest="kind: ConfigMap\n"
            )
            release["chart"] |= {"values": {"b": {"c": 2}}, "templates": [{"name": "t", "data": noise}]}
            things.append(release_secret(release))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda thing: cluster.create(namespace, thing), things))


def timed(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1000


def measure(side: Side, calls: list[tuple[str, str, str, list[str]]], runs: int) -> dict[str, Measured]:
    """Returns the milliseconds of each call for both programs."""
    found: dict[str, Measured] = defaultdict(lambda: {PILOTHOUSE: [], "helm": []})
    for number in range(runs):
        for _, name, path, arguments in calls:
            both: list[tuple[str, Callable[[], None]]] = [
                (PILOTHOUSE, lambda path=path: side.request(path)),  # type: ignore[misc]
                ("helm", lambda arguments=arguments: side.run_helm(*arguments)),  # type: ignore[misc]
            ]
            for who, work in both if number % 2 else reversed(both):
                found[name][who].append(timed(work))
    return found


def first_lists(cluster: Cluster, place: Path, side: Side, arguments: list[str], runs: int) -> Measured:
    """Milliseconds of the first list after a server's start, and of a list by helm."""
    found: Measured = {PILOTHOUSE: [], "helm": []}
    for number in range(runs):
        folder = place / f"first{number}"
        folder.mkdir()
        server = Server(folder, {"svc": {"kube": {"kubeconfig": str(cluster.kubeconfig)}}}, {}, []).start()
        fresh = Side(server, side.helm, cluster, place)
        try:
            server.get("/readyz")  # the start is complete
            found[PILOTHOUSE].append(timed(lambda: fresh.request(f"?namespace={LARGE}")))  # noqa: B023 (called here)
            found["helm"].append(timed(lambda: fresh.run_helm(*arguments)))  # noqa: B023 (called here)
        finally:
            fresh.connection.close()
            server.close()
    return found


def concurrent_calls(server: Server, path: str) -> float:
    """Returns the milliseconds until fifty concurrent callers have their responses."""
    with ThreadPoolExecutor(CALLERS) as pool:
        begin = time.perf_counter()
        answers = list(pool.map(server.get, [API + path] * CALLERS))
        took = (time.perf_counter() - begin) * 1000
    if any(answer.status != 200 for answer in answers):
        raise SystemExit("a concurrent request failed")
    return took


@contextmanager
def with_cluster(fill_it: Callable[[Cluster], None], **svc: Any) -> Iterator[tuple[Server, Cluster, Path]]:
    """A server with these settings of `svc`, its cluster, and their folder; `fill_it` comes before the server."""
    with tempfile.TemporaryDirectory(prefix="ph-bench-") as name:
        place = Path(name)
        (place / "cluster").mkdir()
        cluster = Cluster(place / "cluster", programs())
        server: Server | None = None
        try:
            cluster.start()
            fill_it(cluster)
            server = Server(place, {"svc": {**svc, "kube": {"kubeconfig": str(cluster.kubeconfig)}}}, {}, []).start()
            yield server, cluster, place
        finally:
            if server is not None:
                server.close()
            cluster.close()


@contextmanager
def prepared_side(helm: str, releases: int, revisions: int) -> Iterator[tuple[Side, Cluster]]:
    def fill_it(cluster: Cluster) -> None:
        fill(cluster, SMALL, 1, 1)
        fill(cluster, LARGE, releases, revisions)

    with with_cluster(fill_it) as (server, cluster, place):
        yield Side(server, helm, cluster, place), cluster


def claimed(version: str, found: dict[str, Measured], goals: dict[str, float]) -> list[Claim]:
    reference = f"helm {version}"
    return [
        Claim("charts", name, "ms", times[PILOTHOUSE], reference, times["helm"], 1 / goals[name])
        for name, times in found.items()
    ]


def report(version: str, found: dict[str, Measured], goals: dict[str, float]) -> list[str]:
    lines = [
        f"# Reading releases, compared with helm {version}",
        "",
        "| operation | Pilothouse, ms | helm, ms | times faster | target |",
    ]
    lines.append("|---|---|---|---|---|")
    for name, times in found.items():
        own, helm = (statistics.median(times[who]) for who in (PILOTHOUSE, "helm"))
        verdict = "met" if helm / own >= goals[name] else "missed"
        cells = " | ".join(spread(times[who]) for who in (PILOTHOUSE, "helm"))
        lines.append(f"| {name} | {cells} | {helm / own:.1f} | {goals[name]:g}: {verdict} |")
    return lines


def spread(times: list[float]) -> str:
    """Returns the median, and the range without a tenth at each end."""
    ordered = sorted(times)
    cut = len(ordered) // 10
    return f"{statistics.median(ordered):.1f} ({ordered[cut]:.1f} to {ordered[-1 - cut]:.1f})"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Reading releases, compared with helm.")
    parser.add_argument("--quick", action="store_true", help="a few rounds, to see that it works")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--releases", type=int, default=200)
    parser.add_argument("--revisions", type=int, default=10)
    own = ROOT / ".tools" / "helm"
    parser.add_argument("--helm", default=str(own) if own.exists() else shutil.which("helm"))
    claims.add_outputs(parser)
    options = parser.parse_args()
    if not options.helm:
        raise SystemExit("there is no helm to compare with (--helm)")
    if options.quick:
        options.runs, options.releases, options.revisions = 3, 20, 3
    return options


def compared(options: argparse.Namespace) -> tuple[list[str], list[Claim]]:
    """Returns the Markdown of all measurements, and the claims."""
    output = subprocess.run(
        [options.helm, "version", "--template={{.Version}}"], capture_output=True, text=True, check=True
    )
    version = output.stdout.strip().removeprefix("v")
    calls = measured_calls(int(version.partition(".")[0]), options.releases)
    with prepared_side(options.helm, options.releases, options.revisions) as (side, cluster):
        found = measure(side, calls, options.runs)
        concurrent = (
            concurrent_calls(side.server, f"?namespace={LARGE}"),
            concurrent_calls(side.server, f"/r0?namespace={LARGE}"),
        )
        memory = psutil.Process(side.server.pid).memory_info().rss / 1024**2
        first = f"first list of {options.releases} releases after a server start"
        with tempfile.TemporaryDirectory(prefix="ph-first-") as name:
            found[first] = first_lists(cluster, Path(name), side, calls[0][3], min(options.runs, FIRST))
    goals = {name: GOALS[goal] for goal, name, _, _ in calls} | {first: GOALS["list"]}
    lines = [
        *report(version, found, goals),
        "",
        f"{options.releases} releases of {options.revisions} revisions, {PAYLOAD * 2 // 1000} KB each; medians of "
        f"{options.runs} rounds (the first list: {min(options.runs, FIRST)}), ranges of the middle four fifths. "
        f"{CALLERS} concurrent callers: all have the list after {concurrent[0]:.0f} ms, one release after "
        f"{concurrent[1]:.0f} ms. Memory of the server afterwards: {memory:.0f} MiB.",
        "",
    ]
    return lines, claimed(version, found, goals)


def main() -> None:
    options = arguments()
    try:
        programs()
    except pytest.skip.Exception as why:  # the other benchmarks need no API server
        lines = [f"Reading releases was not measured: {why}", ""]
        found: list[Claim] = []
    else:
        lines, found = compared(options)
    claims.publish(options, "\n".join(lines), found)


if __name__ == "__main__":
    main()
