"""The command for a terminal, compared with supervisorctl in the same runs: time and memory of `status`.

    python benchmarks/terminal.py [--install] [--processes 500] [--runs 11] [--out FILE]

Both servers run the same children at the same time; each run calls both commands, one after another. `--help` shows the
cost without a server. Memory is the maximum resident size of the command, as the kernel reports it.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # it is run as a program

from benchmarks import children, claims, report
from benchmarks.candidates import ROOT, Pilothouse
from benchmarks.claims import Claim
from benchmarks.peers import Supervisord
from benchmarks.trial import Trial, launched_trial

LAUNCHER = """
import os, sys, time
begin = time.monotonic()
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, "/dev/null", 1, 0)])
_, status, usage = os.wait4(pid, 0)
print(os.waitstatus_to_exitcode(status), time.monotonic() - begin, usage.ru_maxrss)
"""
"""A small parent: the kernel counts the memory of the parent up to the `exec` as the child's."""


def ctl(trial: Trial, *words: str) -> list[str]:
    data = trial.candidate.setup.directory / "data"
    return [sys.executable, str(ROOT / "run.py"), "ctl", "--data-dir", str(data), *words]


def supervisorctl(trial: Trial, *words: str) -> list[str]:
    configuration = trial.candidate.setup.directory / "supervisord.conf"
    return [str(Supervisord.home / "bin/supervisorctl"), "-c", str(configuration), *words]


def call(command: Sequence[str]) -> tuple[float, float]:
    """Milliseconds and MiB of one call. Raises `RuntimeError` where it fails."""
    launched = subprocess.run(
        [sys.executable, "-I", "-S", "-c", LAUNCHER, *command], capture_output=True, text=True, check=True
    )
    code, seconds, kib = launched.stdout.split()
    if code != "0":
        raise RuntimeError(f"{' '.join(command)} exited with {code}: {launched.stderr[-500:]}")
    return float(seconds) * 1000, float(kib) / 1024


def measure(pilothouse: Trial, supervisord: Trial, size: int, runs: int) -> list[Claim]:
    found = []
    pairs = [
        (f"status of {size} processes", ctl(pilothouse, "status"), supervisorctl(supervisord, "status")),
        ("--help", ctl(pilothouse, "--help"), supervisorctl(supervisord, "--help")),
    ]
    for text, *commands in pairs:
        values = [[call(command) for command in commands] for _ in range(runs)]
        for index, (what, unit, target) in enumerate((("time", "ms", 1.0), ("memory", "MiB", 1.0))):
            own, other = ([run[program][index] for run in values] for program in (0, 1))
            found.append(Claim("terminal", f"{text}, {what}", unit, own, "supervisorctl", other, target))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="fetch supervisord first")
    parser.add_argument("--processes", type=int, default=500)
    parser.add_argument("--runs", type=int, default=11)
    claims.add_outputs(parser)
    options = parser.parse_args()
    if options.install and Supervisord.missing():
        Supervisord.install()
    if reason := Supervisord.missing():
        raise SystemExit(f"supervisord: {reason}; --install fetches it")
    with tempfile.TemporaryDirectory(prefix="ph-bench-") as place:
        program, _ = children.build(Path(place))
        with (
            launched_trial(Pilothouse, program, options.processes) as pilothouse,
            launched_trial(Supervisord, program, options.processes) as supervisord,
        ):
            for trial in (pilothouse, supervisord):
                trial.launch()
            found = measure(pilothouse, supervisord, options.processes, options.runs)
    head = f"# The command line\n\n{report.machine()}. {options.runs} calls of each command."
    text = f"{head}\n\n{claims.claims_table(found)}\n"
    claims.publish(options, text, found)


if __name__ == "__main__":
    main()
