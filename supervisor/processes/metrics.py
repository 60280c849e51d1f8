"""Samples CPU and memory of every process and of the host at an interval, and keeps their history in memory.

The host is read on the loop (a quarter of a millisecond, no disk), processes in a worker, and only those that are live:
a server without any wakes no thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

import psutil

from models.config.settings import Metrics
from models.supervision.metrics import Series
from supervisor import host
from supervisor.clock import Clock
from supervisor.processes.process import Process
from supervisor.processes.usage import Meter

log = logging.getLogger("metrics")

_MINUTE_SECONDS = 60
_MICROS_PER_SECOND = 1_000_000
_OFF_SECONDS = 60.0
"""How often the settings are looked at while sampling is off."""


class MetricsHistory:
    """The history of each process by name, and of the host. Nothing is kept with an interval of 0."""

    def __init__(self, fleet: Iterable[Process], meter: Meter, clock: Clock, settings: Callable[[], Metrics]) -> None:
        """`settings` returns the present settings: a reload may change them."""
        self._settings = settings
        self._fleet = fleet
        self._meter = meter
        self._clock = clock
        self.host = self._new()
        self._processes: dict[str, Series] = {}
        self._generations: dict[str, int] = {}
        self._host_times: tuple[float, float] | None = None

    def _new(self) -> Series:
        return Series(self._keep_minutes)

    @property
    def _keep_minutes(self) -> int:
        return max(1, int(self._settings().keep) // _MINUTE_SECONDS)

    def of(self, name: str) -> Series:
        """The history of a process; an empty one before its first sample."""
        return self._processes.get(name) or self._new()

    async def watch(self, round_seconds: float, round_end: Callable[[], Awaitable[None]]) -> None:
        """Samples until it is cancelled.

        `round_end` returns every `round_seconds`, when the server wakes anyway; an interval of a multiple uses it.
        """
        while True:
            settings = self._settings()
            if settings.interval and settings.keep:
                try:
                    await self.sample()
                except Exception as error:
                    log.warning("a sample failed: %s", error)
            interval = settings.interval or _OFF_SECONDS
            if interval % round_seconds:
                await asyncio.sleep(interval)
            else:
                for _ in range(int(interval / round_seconds)):
                    await round_end()

    async def sample(self) -> None:
        """Takes one sample of everything that is live."""
        processes = list(self._fleet)
        usage = await self._meter.read(processes)
        worked, passed, memory = _read_host()
        now = self._clock.now() / _MICROS_PER_SECOND
        for series in (self.host, *self._processes.values()):
            series.keep_minutes = self._keep_minutes
        if self._host_times is not None and passed > self._host_times[1]:
            cpu = 100 * (worked - self._host_times[0]) / (passed - self._host_times[1])
            self.host.add(now, min(100.0, max(0.0, cpu)), memory)
        self._host_times = (worked, passed)
        names = set[str]()
        for process in processes:
            names.add(process.name)
            used = usage.get(process.name)
            if used is None:
                continue
            series = self._processes.setdefault(process.name, self._new())
            if self._generations.get(process.name) != process.record.generation:
                self._generations[process.name] = process.record.generation
                series.starts.append((process.record.start or self._clock.now()) // _MICROS_PER_SECOND)
            series.add(now, used.cpu, used.memory)
        for name in self._processes.keys() - names:
            del self._processes[name]
            self._generations.pop(name, None)


def _read_host() -> tuple[float, float, float]:
    """The time that all processors have worked and the time that has passed on them, and the memory in use."""
    machine, times = host.read(), psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    passed = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return passed - idle, passed, machine.memory - machine.available
