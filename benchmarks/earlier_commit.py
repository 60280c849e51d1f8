"""This tree compared with an earlier commit: the same requests to a server of each, in turn, in one run.

    python benchmarks/earlier_commit.py [--before 445887e] [--runs 5] [--out FILE] [--claims FILE]

445887e is the commit before the layout, the operators' features and the new pages. Both servers supervise 100
processes, and the figures are taken from one after the other in each run, so a slow moment of the machine meets both.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # it is run as a program

from benchmarks import claims, procfs, report  # noqa: E402
from benchmarks.at_rest import older_tree, settings  # noqa: E402
from benchmarks.candidates import free_port, until  # noqa: E402
from benchmarks.claims import Claim  # noqa: E402
from benchmarks.finished_runs import junit, upload_body  # noqa: E402
from benchmarks.httpload import Target, hammer  # noqa: E402

PROCESSES, CASES = 100, 50_000
KILLED = 10
RATES = {
    "status of 100 processes": "/api/v1/processes",
    "page of 100 processes": "/processes",
    "verdict of the quality gate": "/api/v1/gate?project=shop&branch=main",
    "run of 50,000 tests": "/api/v1/runs/1",
    "page of that run": "/runs/1",
}
"""Answers a second of 8 clients."""


@dataclass
class Server:
    pid: int
    port: int

    def call(self, path: str, body: bytes | None = None, **headers: str) -> Any:
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        with urlopen(Request(f"http://127.0.0.1:{self.port}{path}", body, named), timeout=120) as response:
            return json.loads(response.read())

    def pids(self) -> dict[str, int]:
        return {row["name"]: row["pid"] for row in self.call("/api/v1/processes") if row["status"] == "running"}


@contextmanager
def serving(tree: Path, folder: Path) -> Iterator[tuple[Server, float]]:
    """A server of that tree, and the seconds from its launch until all processes run."""
    config = settings(PROCESSES, has_features=False)
    for process in config["supervisor"]["processes"].values():
        process |= {"restart": "always", "restart-delay": 0, "restart-limit": 0}
    folder.mkdir()
    (folder / "pilothouse.yaml").write_text(json.dumps(config))
    port, begin = free_port(), time.monotonic()
    command = [sys.executable, str(tree / "run.py"), "--config", "pilothouse.yaml", "--data-dir", "data"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port)], cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    server = Server(process.pid, port)
    try:
        until(lambda: _runs(server) == PROCESSES, 60, "the processes")
        yield server, time.monotonic() - begin
    finally:
        process.terminate()
        process.wait(60)


def _runs(server: Server) -> int:
    try:
        return len(server.pids())
    except OSError:
        return -1


def upload(server: Server, content: bytes) -> float:
    """The seconds that an upload takes."""
    body, begin = upload_body("shop", content), time.monotonic()
    server.call("/api/v1/ingest", body, Content_Type="multipart/form-data; boundary=b")
    return time.monotonic() - begin


def replaced(server: Server) -> float:
    """The median milliseconds from kill -9 of a process until another one runs in its place."""
    found = []
    for name, pid in list(server.pids().items())[:KILLED]:
        begin = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        until(lambda name=name, pid=pid: server.pids().get(name, pid) != pid, 10, "another process")  # type: ignore[misc]
        found.append(1000 * (time.monotonic() - begin))
    return statistics.median(found)


def measure(tree: Path, folder: Path, content: bytes) -> dict[tuple[str, str], float]:
    """The figures of a server of that tree, by what is measured and its unit."""
    with serving(tree, folder) as (server, seconds):
        found = {("launch until 100 processes run", "s"): seconds}
        found["kill -9 until the replacement is reported", "ms"] = replaced(server)
        found["memory with 100 processes, RSS", "MiB"] = procfs.memory([server.pid])[1]
        found["upload of 50,000 tests", "s"] = upload(server, content)
        for text, path in RATES.items():
            found[text, "answers/s"] = hammer(Target.get(server.port, path), 8, 2).rate
        begin = time.monotonic()
    found["stop with 100 processes", "s"] = time.monotonic() - begin
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="This tree compared with an earlier commit.")
    parser.add_argument("--before", default="445887e", help="the commit to compare with")
    parser.add_argument("--runs", type=int, default=5)
    claims.add_outputs(parser)
    options = parser.parse_args()
    os.environ.pop("TZ", None)
    content = "".join(junit(CASES, 50)).encode()
    runs: list[dict[str, dict[tuple[str, str], float]]] = []
    with older_tree(options.before) as tree, tempfile.TemporaryDirectory(prefix="ph-bench-") as name:
        if tree is None:
            sys.exit(f"git has no commit {options.before} here")
        for number in range(options.runs):
            trees = {"now": ROOT, "before": tree}
            order = list(trees.items()) if number % 2 else list(trees.items())[::-1]
            runs.append({who: measure(at, Path(name) / f"{who}{number}", content) for who, at in order})
    found = [
        Claim(
            "earlier commit", text, unit, [run["now"][text, unit] for run in runs], options.before,
            [run["before"][text, unit] for run in runs],
        )
        for text, unit in runs[0]["now"]
    ]  # fmt: skip
    text = (
        f"# Compared with {options.before}\n\n{report.machine()}. {len(runs)} runs.\n\n{claims.claims_table(found)}\n"
    )
    claims.publish(options, text, found)


if __name__ == "__main__":
    main()
