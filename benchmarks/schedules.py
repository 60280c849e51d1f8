"""Schedules: a thousand jobs due in one second, and the cost of schedules at rest.

    python benchmarks/schedules.py [--jobs 1000] [--seconds 20] [--runs 3] [--out FILE]

Each run starts three servers, one after another: one whose jobs are all due at the next minute, in which a task
measures the delay of the event loop; one with the same jobs and schedules that are not due, and one without schedules,
both at rest. A delay before the instant too means that the machine is busy.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # it is run as a program

from benchmarks import claims, procfs, report  # noqa: E402
from benchmarks.candidates import free_port, until  # noqa: E402
from benchmarks.claims import Claim  # noqa: E402
from benchmarks.loop_lag import Lag, lag  # noqa: E402

LEAD_SECONDS = 15
"""The jobs are due at a full minute that is at least this far away."""


class Server:
    def __init__(self, process: "subprocess.Popen[bytes]", port: int) -> None:
        self.pid = process.pid
        self.port = port

    def get(self, path: str) -> Any:
        with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as response:
            return json.load(response)

    def responds(self) -> bool:
        try:
            return bool(self.get("/healthz"))
        except OSError:
            return False


@contextmanager
def serving(jobs: int, schedule: object, *program: str | Path) -> Iterator[Server]:
    """A server with that many jobs, which all have the same schedule or none."""
    job = {"command": "true", "type": "oneshot", "stdout-logfile": "/dev/null", "redirect-stderr": True}
    if schedule is not None:
        job["schedule"] = schedule
    with tempfile.TemporaryDirectory(prefix="ph-bench-") as name:
        folder, port = Path(name), free_port()
        config = {"supervisor": {"processes": {f"job-{number:04}": job for number in range(jobs)}}}
        (folder / "pilothouse.yaml").write_text(json.dumps(config))
        arguments = ["--config", "pilothouse.yaml", "--data-dir", "data", "--port", str(port)]
        command = [sys.executable, *map(str, program or [ROOT / "run.py"]), *arguments]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            server = Server(process, port)
            until(server.responds, 60, "the server")
            yield server
        finally:
            process.terminate()
            process.wait(60)


@dataclass(frozen=True)
class Burst:
    """All jobs due at once: the delay of the loop before and during, and the seconds until the last job has ended."""

    before: Lag
    lag: Lag
    last: float


def burst(jobs: int) -> Burst:
    due = (int(time.time() + LEAD_SECONDS) // 60 + 1) * 60
    minute = time.gmtime(due).tm_min
    schedule = {"cron": f"{minute} * * * *", "timezone": "UTC"}
    with tempfile.TemporaryDirectory(prefix="ph-bench-") as name:
        file = Path(name) / "lag"
        with serving(jobs, schedule, ROOT / "benchmarks" / "loop_lag.py", file) as server:
            time.sleep(max(0.0, due - time.time() - 5))
            lag(server.pid, file)  # the start does not count
            time.sleep(max(0.0, due - time.time() - 0.1))
            before = lag(server.pid, file)
            until(lambda: _ended(server, due) == jobs, 120, "the end of all jobs")
            result = lag(server.pid, file)
            ends = [job["lastRun"]["endTime"] for job in server.get("/api/v1/processes/details")]
            begin = time.strftime("%Y-%m-%dT%H:%M:", time.gmtime(due))
            return Burst(before, result, max(float(end.removeprefix(begin).rstrip("Z")) for end in ends))


def _ended(server: Server, due: int) -> int:
    time.sleep(max(0.5, due + 1 - time.time()))  # each request delays the loop
    with urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=60) as response:
        for line in response.read().decode().splitlines():
            if line.startswith('pilothouse_processes{status="finished"}'):
                return int(float(line.split()[-1]))
    return 0


@dataclass(frozen=True)
class Rest:
    wakeups: float
    processor: float
    memory: float


def rest(jobs: int, schedule: object, seconds: float) -> Rest:
    """Measures an idle server."""
    with serving(jobs, schedule) as server:
        time.sleep(5)
        before = procfs.wakeups([server.pid]), procfs.processor_seconds([server.pid])
        time.sleep(seconds)
        wakeups, processor = procfs.wakeups([server.pid]), procfs.processor_seconds([server.pid])
        memory = procfs.memory([server.pid])[1]
    return Rest((wakeups - before[0]) / seconds, 100 * (processor - before[1]) / seconds, memory)


def spread(values: Sequence[float], digits: int = 2) -> str:
    low, high = min(values), max(values)
    middle = f"{statistics.median(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({low:.{digits}f}..{high:.{digits}f})"


def document(jobs: int, bursts: Sequence[Burst], resting: dict[str, list[Rest]]) -> str:
    rows = [
        ["longest stall of the loop, ms", spread([one.lag.worst for one in bursts], 1)],
        ["longest stall in the five seconds before, ms", spread([one.before.worst for one in bursts], 1)],
        ["stall of the loop, p99, ms", spread([one.lag.p99 for one in bursts], 1)],
        ["instant → the last job has ended, s", spread([one.last for one in bursts])],
    ]
    names = list(resting)
    lines = [
        ["wakeups/s", *(spread([one.wakeups for one in resting[name]]) for name in names)],
        ["processor, %", *(spread([one.processor for one in resting[name]], 3) for name in names)],
        ["memory RSS, MiB", *(spread([one.memory for one in resting[name]], 1) for name in names)],
    ]
    return f"""# Schedules

{jobs} jobs; {report.machine()}. `python benchmarks/schedules.py`.

{report.table(["due in one second", "median (range)"], rows)}

{report.table(["at rest", *names], lines)}
"""


def claimed(jobs: int, bursts: Sequence[Burst], resting: dict[str, list[Rest]]) -> list[Claim]:
    without, scheduled = resting.values()
    more = [own.memory - other.memory for own, other in zip(scheduled, without, strict=True)]
    wakeups = [[one.wakeups for one in rests] for rests in (scheduled, without)]
    stalls = [one.lag.worst for one in bursts]
    return [
        Claim("schedules", f"longest delay of the event loop, {jobs} jobs due in one second", "ms", stalls, target=50),
        Claim("schedules", f"additional memory of {jobs} schedules", "MiB", more, target=2),
        Claim(
            "schedules", f"wakeups/s at rest, {jobs} schedules", "", wakeups[0], "without schedules", wakeups[1], 1.2
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of schedules, due and at rest.")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20, help="at rest")
    parser.add_argument("--runs", type=int, default=3)
    claims.add_outputs(parser)
    options = parser.parse_args()
    os.environ.pop("TZ", None)
    schedules = {"without schedules": None, "with schedules": {"cron": "30 2 * * *", "timezone": "UTC"}}
    bursts, resting = list[Burst](), {name: list[Rest]() for name in schedules}
    for _ in range(options.runs):
        bursts.append(burst(options.jobs))
        for name, schedule in schedules.items():
            resting[name].append(rest(options.jobs, schedule, options.seconds))
    text = document(options.jobs, bursts, resting)
    claims.publish(options, text, claimed(options.jobs, bursts, resting))


if __name__ == "__main__":
    main()
