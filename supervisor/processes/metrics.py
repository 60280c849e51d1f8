"""Samples CPU and memory of every process, its group and the host at an interval; stores the minutes of processes.

The host is read on the loop (a quarter of a millisecond, no disk), processes in a worker, and only those that are live:
a server without any wakes no thread. The minutes are stored by another worker, so a slow disk delays no sample.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import Executor

import peewee
import psutil

from models.config.settings import MetricSettings
from models.errors import Problem, Unavailable
from models.storage.store import MAX_QUERY_SECONDS
from models.supervision import events, metrics
from models.supervision.metrics import MEMORY_MINUTES, MetricStep, Minute, Series
from models.supervision.tables import database
from models.times import SECOND
from supervisor import host
from supervisor.clock import Clock
from supervisor.processes.history import off_loop
from supervisor.processes.process.process import Process
from supervisor.processes.usage import Meter

log = logging.getLogger("metrics")

MAX_STARTS = 100
_MINUTE_SECONDS = 60
_OFF_SECONDS = 60.0
"""How often the settings are looked at while sampling is off."""
_READ_SECONDS = 60.0
"""How long after a read the interval of the settings applies. Without a reader each minute has one sample."""
_BEFORE_MINUTE_END_SECONDS = 3
"""When that is taken: a round of the server before the minute ends, so that it is about this minute."""
_MAX_MINUTES_PER_TRANSACTION = 10
_CHECKPOINT_COMMITS = 60


class MetricsHistory:
    """The history of each process by name, and of the host. Nothing is sampled with an interval of 0."""

    def __init__(
        self, fleet: Iterable[Process], meter: Meter, clock: Clock, settings: Callable[[], MetricSettings]
    ) -> None:
        """`settings` returns the present settings: a reload may change them."""
        self._settings = settings
        self._fleet = fleet
        self._meter = meter
        self._clock = clock
        self._host = Series()
        self._processes: dict[str, Series] = {}
        self._host_times: tuple[float, float] | None = None
        self._stored_until = 0
        self._tried = 0
        """The last minute that was stored, or could not be."""
        self._stored_names: set[str] = set()
        self._storing: asyncio.Task[None] | None = None
        self._commits = 0
        self._is_failing = False
        self._sampled_at: float | None = None
        self._sampled_minute = 0
        self._read_at = float("-inf")
        self._was_read = asyncio.Event()

    @property
    def host(self) -> Series:
        """The latest hour of the host."""
        self._note_read()
        return self._host

    def _note_read(self) -> None:
        self._read_at = self._clock.since_boot()
        self._was_read.set()

    def _is_read(self) -> bool:
        return self._clock.since_boot() - self._read_at < _READ_SECONDS

    @property
    def _keep_minutes(self) -> int:
        return int(self._settings().keep) // _MINUTE_SECONDS

    def _now_minute(self) -> int:
        return self._clock.now() // SECOND // _MINUTE_SECONDS

    def of(self, name: str) -> Series:
        """The latest hour of a process; empty before its first sample."""
        self._note_read()
        return self._processes.get(name) or Series()

    async def window(self, name: str, start: int, end: int, step: int) -> tuple[list[MetricStep], list[int]]:
        """The points of a process from `start` to `end`, in seconds, and when it was started, in microseconds.

        Raises `Unavailable`, `TimedOut`.
        """
        now = self._now_minute()
        first = max(start // _MINUTE_SECONDS, now - self._keep_minutes)
        last = min(end // _MINUTE_SECONDS, now)
        series = self.of(name)
        if step < _MINUTE_SECONDS or series.has(first):
            last = first - 1  # nothing is read: memory has it

        def read() -> tuple[list[Minute], list[int]]:
            since, until = start * SECOND, end * SECOND
            older = metrics.of_process(name, first, last) if first <= last else []
            return older, events.starts(name, since, until, MAX_STARTS)

        try:
            older, starts = await off_loop(read)
        except peewee.PeeweeException as error:
            raise Unavailable(f"the metrics cannot be read: {error}") from None
        return self.of(name).points(start, end, step, older), starts

    async def watch(
        self, round_seconds: float, round_end: Callable[[], Awaitable[None]], executor: Executor | None = None
    ) -> None:
        """Samples until it is cancelled, in a thread of `executor`.

        `round_end` returns every `round_seconds`, when the server wakes anyway; an interval of a multiple uses it.
        While nobody reads the metrics, each minute has one sample, at its end.
        """
        await self._restore()
        while True:
            settings = self._settings()
            is_on, interval = bool(settings.interval and settings.keep), settings.interval or _OFF_SECONDS
            try:
                if is_on and self._is_due(interval, min(interval, round_seconds) / 2):
                    await self.sample(executor)
                    self._store_soon()
                elif self._now_minute() - 1 != self._tried:
                    self._store_soon()
            except Exception as error:
                log.warning("a sample failed: %s", error)
            if interval % round_seconds:
                await self._pause(interval)
            else:
                await round_end()

    def _is_due(self, interval: float, tolerance: float) -> bool:
        """Whether a sample is due: by the interval while somebody reads, else at the end of the minute."""
        if self._sampled_at is None:
            return True
        if self._is_read() or interval >= _MINUTE_SECONDS:
            return self._clock.since_boot() - self._sampled_at >= interval - tolerance
        return self._minute_that_ends() != self._sampled_minute

    def _minute_that_ends(self) -> int:
        seconds = self._clock.now() // SECOND
        return (seconds + _BEFORE_MINUTE_END_SECONDS) // _MINUTE_SECONDS

    async def _pause(self, interval: float) -> None:
        """Waits for the interval; while nobody reads, for the end of the minute or a reader."""
        if self._is_read() or interval >= _MINUTE_SECONDS:
            await asyncio.sleep(interval)
            return
        self._was_read.clear()
        passed = self._clock.now() / SECOND + _BEFORE_MINUTE_END_SECONDS
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MINUTE_SECONDS - passed % _MINUTE_SECONDS):
                await self._was_read.wait()

    async def sample(self, executor: Executor | None = None) -> None:
        """Takes one sample of everything that is live."""
        processes = list(self._fleet)
        self._sampled_at, self._sampled_minute = self._clock.since_boot(), self._minute_that_ends()
        usage, unchanged = await self._meter.sample(processes, executor)
        worked, passed, memory = _read_host()
        now = self._clock.now() / SECOND
        if self._host_times is not None and passed > self._host_times[1]:
            cpu = 100 * (worked - self._host_times[0]) / (passed - self._host_times[1])
            self._host.add(now, min(100.0, max(0.0, cpu)), memory)
        self._host_times = (worked, passed)
        for name, (own, group) in usage.items():
            series = self._processes.setdefault(name, Series())
            series.add(now, own.cpu, own.memory, group.cpu, group.memory)
        for name in unchanged:
            if name in self._processes:
                self._processes[name].repeat(now)
        keep = min(MEMORY_MINUTES, max(1, self._keep_minutes))
        for series in (self._host, *self._processes.values()):
            series.keep_minutes = keep
            series.end_minute(int(now) // _MINUTE_SECONDS)

    async def _restore(self) -> None:
        """Reads the latest hour. The minutes before it are read when they are requested."""
        now = self._now_minute()
        since = now - min(MEMORY_MINUTES, self._keep_minutes) + 1

        def read() -> tuple[dict[str, Series], set[str]]:
            found = dict[str, Series]()
            for name, minute, values in metrics.between(since, now):
                found.setdefault(name, Series()).restore(minute, values)
            return found, metrics.names()

        self._stored_until = now - 1
        try:
            self._processes, self._stored_names = await off_loop(read)
        except (peewee.PeeweeException, Problem) as error:
            log.error("stored metrics cannot be read (%s): the plots begin now", error)

    def _store_soon(self) -> None:
        """Stores the minutes that have ended, and forgets removed processes, unless an earlier call still does so."""
        names = {process.name for process in self._fleet}
        for name in self._processes.keys() - names:
            del self._processes[name]
        last, removed = self._now_minute() - 1, self._stored_names - names
        if (last != self._tried or removed) and (self._storing is None or self._storing.done()):
            self._tried = last
            self._storing = asyncio.create_task(self._store(last, removed))

    async def _store(self, last: int, removed: Set[str]) -> None:
        """Stores the minutes up to `last`. What cannot be stored stays in memory for an hour, and is tried again."""
        self._stored_until = min(self._stored_until, last)  # the clock may have been set back
        try:
            while batch := self._next_minutes(last):
                until = max(minute for minutes in batch.values() for minute, _ in minutes)
                kept = self._clock.settled() // SECOND // _MINUTE_SECONDS - self._keep_minutes + 1
                await asyncio.to_thread(self._write, batch, kept, self._now_minute())
                self._stored_names |= batch.keys()
                self._stored_until = until
            self._stored_until = last
            if removed:
                await asyncio.to_thread(_forget, removed)
                self._stored_names -= removed
        except Exception as error:  # whatever the store raises, sampling goes on
            if not self._is_failing:
                log.error("metrics cannot be stored (%s): sampling goes on", " ".join(str(error).split()))
            self._is_failing = True
            return
        if self._is_failing:
            log.warning("metrics can be stored again")
        self._is_failing = False

    def _next_minutes(self, last: int) -> dict[str, list[Minute]]:
        """The oldest minutes up to `last` that are not stored, by process; empty without any."""
        after = self._stored_until
        waiting = {name: series.minutes(after) for name, series in self._processes.items()}
        first = min((minutes[0][0] for minutes in waiting.values() if minutes), default=last + 1)
        end = min(last, first + _MAX_MINUTES_PER_TRANSACTION - 1)
        chosen = {name: [row for row in minutes if row[0] <= end] for name, minutes in waiting.items()}
        return {name: minutes for name, minutes in chosen.items() if minutes}

    def _write(self, batch: Mapping[str, Sequence[Minute]], first: int, last: int) -> None:
        """Stores minutes. Runs in a worker."""
        database.run_with_timeout(lambda: metrics.write(batch, first, last), MAX_QUERY_SECONDS)
        self._commits += 1
        if self._commits >= _CHECKPOINT_COMMITS:
            self._commits = 0
            database.checkpoint(begin=True)

    async def close(self, seconds: float) -> None:
        """Stores what is not stored yet, with the present minute. Gives up after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                if self._storing is not None:
                    await self._storing
                await self._store(self._now_minute(), frozenset())
        except TimeoutError:
            log.error("the latest metrics are not stored: the store does not respond")


def _forget(removed: Set[str]) -> None:
    database.run_with_timeout(lambda: metrics.forget(removed), MAX_QUERY_SECONDS)
    database.checkpoint()


def _read_host() -> tuple[float, float, float]:
    """The time that all processors have worked and the time that has passed on them, and the memory in use."""
    machine, times = host.read(), psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    passed = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return passed - idle, passed, machine.memory - machine.available
