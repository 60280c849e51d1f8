"""One trial: a supervisor with N children in its own directory, measured from its launch until all have ended."""

import contextlib
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks import procfs
from benchmarks.candidates import Candidate, Setup
from benchmarks.children import EndWatch, StartReport, StartReports
from benchmarks.httpload import Probe, summary

Record = Callable[[str, float], None]
PATIENCE = 90.0
FEW = 50  # fewer children are stopped and started too soon to ask anything meanwhile


@dataclass(frozen=True)
class SampleLimits:
    """Limits of each part, in samples and seconds; the part ends at the first of both."""

    crashes: int = 60
    crash_seconds: float = 3.0
    one_client: float = 0.5
    many_clients: float = 1.0
    rounds: int = 6
    round_seconds: float = 2.0
    idle: float = 10.0


QUICK = SampleLimits(crashes=20, crash_seconds=2.5, one_client=0.4, many_clients=0.6, rounds=2, idle=4.0)


class Trial:
    """A launched supervisor and its children."""

    def __init__(self, kind: type[Candidate], directory: Path, program: Path, children: int) -> None:
        self.reports = StartReports(directory / "start-reports")
        self.candidate = kind(Setup(directory, children, (str(program), str(directory / "start-reports"))))
        self.children = children
        self.alive: dict[int, float] = {}

    def launch(self) -> float:
        """Seconds from launch until the last of the children marked to start by themselves executes."""
        begin = time.monotonic()
        self.candidate.launch()
        last = self._expect(self.children)
        self.candidate.connect()
        return last - begin

    def _expect(self, count: int) -> float:
        reports = self.reports.collect(count, PATIENCE, self.candidate.check)
        self.alive.update({report.pid: report.at for report in reports})
        return max(report.at for report in reports)

    def verify(self) -> None:
        """Checks that every child runs once, and that the supervisor reports the same."""
        extra: list[StartReport] = self.reports.pending()
        if extra or len(self.alive) != self.children:
            raise RuntimeError(f"{len(self.alive) + len(extra)} children started for {self.children}")
        self.candidate.verify(set(self.alive))

    @property
    def own_pids(self) -> list[int]:
        return procfs.family(self.candidate.root(), self.alive)

    def crash(self) -> float:
        """Seconds from kill -9 of the child that has run longest until its replacement executes."""
        victim = min(self.alive, key=self.alive.__getitem__)
        time.sleep(max(0.002, self.alive.pop(victim) + self.candidate.rest - time.monotonic()))
        begin = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        return self._expect(1) - begin

    def stop_all(self) -> float:
        """Seconds until the last child has ended; returns after the supervisor's response."""
        end_watch, self.alive = EndWatch(self.alive), {}
        with ThreadPoolExecutor(1) as pool:
            begin = time.monotonic()
            answer = pool.submit(self.candidate.stop_all)
            end = end_watch.wait(PATIENCE)
            answer.result(PATIENCE)
        return end - begin

    def start_all(self) -> float:
        begin = time.monotonic()
        self.candidate.start_all()
        return self._expect(self.children) - begin

    def rest(self, least: float = 0.0) -> None:
        """Waits until all children have run long enough for an immediate stop and restart."""
        youngest = max(self.alive.values(), default=0.0)
        time.sleep(max(least, youngest + self.candidate.rest - time.monotonic()))

    def close(self) -> None:
        try:
            self.candidate.close()
        finally:
            self.reports.close()


@contextlib.contextmanager
def launched_trial(kind: type[Candidate], program: Path, children: int) -> Iterator[Trial]:
    """A trial in a temporary directory; all its processes are ended afterwards."""
    with tempfile.TemporaryDirectory(prefix="ph-bench-", ignore_cleanup_errors=True) as name:
        trial = Trial(kind, Path(name), program, children)
        try:
            yield trial
        except Exception as problem:
            problem.add_note(_tail(Path(name) / "supervisor.logging"))
            raise
        finally:
            trial.close()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-8:]) if log.exists() else ""


def measure(trial: Trial, limits: SampleLimits, record: Record) -> None:
    """Measures everything except the idle state; each figure is recorded as soon as it is known."""
    record("launch", trial.launch())
    trial.rest(0.3)
    trial.verify()
    pss, rss = procfs.memory(trial.own_pids)
    record("pss", pss)
    record("rss", rss)
    _crashes(trial, limits, record)
    _status(trial, limits, record)
    trial.rest(0.3)
    trial.verify()
    record("stop", trial.stop_all())
    record("start", trial.start_all())
    _busy(trial, limits, record)
    trial.verify()
    record("threads", procfs.threads(trial.own_pids))
    record("rss_after", procfs.memory(trial.own_pids)[1])


def _crashes(trial: Trial, limits: SampleLimits, record: Record) -> None:
    latencies: list[float] = []
    end = time.monotonic() + limits.crash_seconds
    while len(latencies) < limits.crashes and (len(latencies) < 3 or time.monotonic() < end):
        latencies.append(trial.crash() * 1000)
    record("crash", statistics.median(latencies))
    record("crash_worst", max(latencies))


def _status(trial: Trial, limits: SampleLimits, record: Record) -> None:
    one = trial.candidate.status_load(1, limits.one_client)
    if one:
        record("status_one", one.median)
    many = trial.candidate.status_load(8, limits.many_clients)
    if many:
        record("status_many", many.rate)


def _busy(trial: Trial, limits: SampleLimits, record: Record) -> None:
    """The status of one child, requested 250 times a second while all are stopped and started several times."""
    target = trial.candidate.target_one()
    if not target or trial.children < FEW:
        return
    begin, rounds = time.monotonic(), 0
    latencies: list[float] = []
    while not rounds or (rounds < limits.rounds and time.monotonic() - begin < limits.round_seconds):
        trial.rest(0.3)
        with Probe(target) as probe:
            trial.stop_all()
            trial.start_all()
            latencies += probe.latencies()
        rounds += 1
    answers = summary(latencies, time.monotonic() - begin, 0)
    record("busy_median", answers.median)
    record("busy_p99", answers.p99)
    record("busy_worst", answers.worst)


def idle(trials: Sequence[Trial], seconds: float) -> list[tuple[float, float]]:
    """Processor % and wakeups a second of each, all in the same window: idle supervisors do not disturb each other."""
    families = [trial.own_pids for trial in trials]
    before = [(procfs.processor_seconds(pids), procfs.wakeups(pids)) for pids in families]
    begin = time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - begin
    after = [(procfs.processor_seconds(pids), procfs.wakeups(pids)) for pids in families]
    return [
        (100 * (later[0] - first[0]) / passed, (later[1] - first[1]) / passed)
        for first, later in zip(before, after, strict=True)
    ]
