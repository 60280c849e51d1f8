"""Cost of the operator features at rest: wakeups and memory with and without them, and compared with an older commit.

    python benchmarks/at_rest.py [--processes 20] [--seconds 25] [--runs 3] [--before 445887e] [--out FILE]

Three servers supervise equal processes that do nothing: one with groups, labels, schedules, an environment file,
captured and forwarded logs and memory limits; one without; and, where git has it, the commit before these features were
built. They run at the same time and are measured over the same seconds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # it is run as a program

from benchmarks import claims, procfs, report  # noqa: E402
from benchmarks.candidates import free_port, until  # noqa: E402
from benchmarks.claims import Claim  # noqa: E402

WITH, WITHOUT, BEFORE = "with the features", "without the features", "an older commit"


def settings(processes: int, *, has_features: bool) -> dict[str, Any]:
    """Every process has a log file, since checking its size is older than these features."""
    names = [f"p{number:03}" for number in range(processes)]
    process: dict[str, Any] = {"command": "sleep 1000000", "auto-start": True}
    if not has_features:
        logs = [{"stdout-logfile": f"{name}.log", "stderr-logfile": f"{name}.err"} for name in names]
        return {"supervisor": {"processes": {name: process | log for name, log in zip(names, logs, strict=True)}}}
    process |= {"env-file": "settings.env", "labels": ["tier=web", "critical"], "groups": ["backend"]}
    process |= {"max-memory": "1G", "log": "capture", "log-forward": "stdout", "max-runtime": "10d"}
    nightly = {"command": "true", "schedule": {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}}
    named: dict[str, Any] = dict.fromkeys(names, process)
    return {"supervisor": {"groups": {"all-of-them": ["p*"]}, "processes": named | {"nightly": nightly}}}


@contextmanager
def older_tree(commit: str) -> Iterator[Path | None]:
    """The files of that commit, or `None` where git does not have it."""
    with tempfile.TemporaryDirectory(prefix="ph-bench-") as name:
        packed = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=False)
        if packed.returncode:
            yield None
        else:
            subprocess.run(["tar", "-x", "-C", name], input=packed.stdout, check=True)
            yield Path(name)


@contextmanager
def serving(tree: Path, config: dict[str, Any]) -> Iterator[int]:
    """Starts a server of that tree; yields its pid when its processes run."""
    with tempfile.TemporaryDirectory(prefix="ph-bench-") as name:
        folder, port = Path(name), free_port()
        (folder / "pilothouse.yaml").write_text(json.dumps(config))
        (folder / "settings.env").write_text("MODE=quiet\n")
        (folder / "settings.env").chmod(0o600)
        arguments = ["--config", "pilothouse.yaml", "--data-dir", "data", "--port", str(port)]
        with (folder / "log").open("wb") as log:
            command = [sys.executable, str(tree / "run.py"), *arguments]
            process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            wanted = sum(entry.get("auto-start", False) for entry in config["supervisor"]["processes"].values())
            until(lambda: _running(port) >= wanted, 60, "the processes")
            yield process.pid
        finally:
            process.terminate()
            process.wait(60)


def _running(port: int) -> int:
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
            for line in response.read().decode().splitlines():
                if line.startswith('pilothouse_processes{status="running"}'):
                    return int(float(line.split()[-1]))
    except OSError:
        pass
    return -1


@dataclass(frozen=True)
class Rest:
    wakeups: float
    processor: float
    memory: float


def measure(trees: dict[str, tuple[Path, dict[str, Any]]], settle: float, seconds: float) -> dict[str, Rest]:
    with ExitStack() as stack:
        pids = {name: stack.enter_context(serving(*tree)) for name, tree in trees.items()}
        time.sleep(settle)
        before = {name: (procfs.wakeups([pid]), procfs.processor_seconds([pid])) for name, pid in pids.items()}
        time.sleep(seconds)
        return {
            name: Rest(
                (procfs.wakeups([pid]) - before[name][0]) / seconds,
                100 * (procfs.processor_seconds([pid]) - before[name][1]) / seconds,
                procfs.memory([pid])[1],
            )
            for name, pid in pids.items()
        }


def claimed(processes: int, runs: list[dict[str, Rest]]) -> list[Claim]:
    found = []
    for other in [name for name in (WITHOUT, BEFORE) if name in runs[0]]:
        more = [run[WITH].memory - run[other].memory for run in runs]
        wakeups = [[run[name].wakeups for run in runs] for name in (WITH, other)]
        text = f"{processes} processes at rest"
        targets = (2, 1.5) if other == WITHOUT else (None, None)  # later features add memory and wakeups
        found.append(
            Claim("at rest", f"{text}: additional memory compared with {other}", "MiB", more, target=targets[0])
        )
        found.append(Claim("at rest", f"{text}: wakeups/s", "", wakeups[0], other, wakeups[1], targets[1]))
    return found


def document(processes: int, runs: list[dict[str, Rest]], found: list[Claim]) -> str:
    rows = [
        [
            name,
            *(
                " / ".join(f"{getattr(run[name], figure):.{digits}f}" for run in runs)
                for figure, digits in (("wakeups", 2), ("processor", 3), ("memory", 1))
            ),
        ]
        for name in runs[0]
    ]
    head = f"# At rest\n\n{report.machine()}. {processes} processes that do nothing; each run has its own figure."
    return (
        f"{head}\n\n{report.table(['server', 'wakeups/s', '% of a processor', 'RSS, MiB'], rows)}\n\n"
        f"{claims.claims_table(found)}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of the operator features at rest.")
    parser.add_argument("--processes", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=25)
    parser.add_argument("--settle", type=float, default=8, help="before measuring")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--before", default="445887e", help="a commit to compare with")
    claims.add_outputs(parser)
    options = parser.parse_args()
    os.environ.pop("TZ", None)
    plain, full = (settings(options.processes, has_features=value) for value in (False, True))
    with older_tree(options.before) as tree:
        trees = {WITHOUT: (ROOT, plain), WITH: (ROOT, full)} | ({BEFORE: (tree, plain)} if tree else {})
        runs = [measure(trees, options.settle, options.seconds) for _ in range(options.runs)]
    found = claimed(options.processes, runs)
    text = document(options.processes, runs, found)
    claims.publish(options, text, found)


if __name__ == "__main__":
    main()
