"""What is known of one process: its record, its status and the legal transitions.

`ProcessState._become` is the only place where a status changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from models.errors import Problem
from models.supervision.process import ENDED, TRANSITIONS, TROUBLE, ProcessSpec, Status
from models.supervision.record import Record
from models.supervision.runs import Cause
from supervisor.processes.context import SupervisionContext
from supervisor.processes.hooks import Hooks
from supervisor.processes.instance import Phase, ProcessInstance, StartAttempt
from supervisor.processes.log_files import LogFile
from supervisor.processes.restart_policy import RestartPolicy
from supervisor.scheduling import BackgroundTasks

log = logging.getLogger("supervision")

_NEW_INSTANCE: dict[str, Any] = {
    "pid": None, "start_ticks": None, "boot_id": None, "start": None, "end": None, "exit_code": None, "uptime": 0,
    "failed_log": None,
}  # fmt: skip


UNKNOWN_CAUSE = Cause()
"""Of an instance that an earlier run of the server started and could not store."""


class IllegalTransition(Exception):
    """A bug: a transition that is not in the table."""


class ProcessState:
    """What is known of a process, its transitions and its background tasks."""

    def __init__(self, spec: ProcessSpec, context: SupervisionContext, record: Record | None = None) -> None:
        self.spec = spec
        self.record = record or Record(spec.name)
        self.instance: ProcessInstance | None = None
        self.retired = False
        """Whether it is no longer configured, and only to be stopped."""
        self.attempt: StartAttempt | None = None
        """The attempt that began last."""
        self.hooks = Hooks(spec.name, context)
        self.policy = RestartPolicy()
        self.next_restart: int | None = None
        """When the restart that is due happens, in microseconds since 1970."""
        self._context = context
        self._attempts: list[StartAttempt] = []
        self._announced = 0
        self._called_off_before = 0
        self._restart_called_off_by = 0
        self._tasks = BackgroundTasks(self._report_failure)
        self._watchers: set[asyncio.Future[None]] = set()

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def status(self) -> Status:
        return self.record.status

    @property
    def live(self) -> bool:
        """Whether it has an operating-system process now."""
        return self.instance is not None

    @property
    def waits_for_restart(self) -> bool:
        return self.policy.is_due

    @property
    def restarts(self) -> int:
        return self.policy.restarts

    @property
    def is_pending(self) -> bool:
        """Whether a start was requested and has not ended, or a restart is due."""
        return bool(self._attempts) or self._announced > 0 or self.waits_for_restart

    @property
    def waiting_for(self) -> str | None:
        """What it waits for: `dependency`, `start-delay`, `start-pre`, `ready`, `restart`, `queue` or nothing."""
        if self.status is Status.STARTING and self.live:
            return Phase.READY.value
        if self.status is Status.STARTING and self.attempt is not None and self.attempt.phase is Phase.START_PRE:
            return Phase.START_PRE.value
        for phase in (Phase.DEPENDENCY, Phase.START_DELAY):
            if any(attempt.phase is phase for attempt in self._attempts):
                return str(phase.value)
        if self.waits_for_restart:
            return "restart"
        return Phase.QUEUE.value if self.is_pending and not self.live else None

    @property
    def has_run(self) -> bool:
        """Whether it has an instance, or had one, in the present period."""
        return self.record.period == self._context.period and self.status is not Status.NOT_STARTED

    @property
    def has_completed(self) -> bool:
        """Whether its last run was in the present period and finished."""
        return self.has_run and self.status is Status.FINISHED

    def uptime(self) -> int:
        """Microseconds that the present instance has run, or that the last one ran."""
        return self.record.uptime if self.instance is None else self.instance.uptime()

    def log_files(self, spec: ProcessSpec | None = None) -> list[LogFile]:
        """The log files of the process, or those of an instance with this spec."""
        spec = spec or self.spec
        if not (spec.stdout_logfile or spec.stderr_logfile):
            return []  # called for all processes, every few seconds
        paths = {path: None for path in (spec.stdout_logfile, spec.stderr_file) if path}
        return [LogFile(path, *spec.log_bounds(path), spec.name) for path in paths]

    async def until(self, reached: Callable[[ProcessState], bool]) -> None:
        """Returns when `reached(self)` is true; it is called again after each transition and each start or stop."""
        while not reached(self):
            change = asyncio.get_running_loop().create_future()
            self._watchers.add(change)
            try:
                await change
            finally:
                self._watchers.discard(change)

    def is_called_off(self, request: int) -> bool:
        """Whether a stop was requested after this request."""
        return request < self._called_off_before

    @contextlib.contextmanager
    def announced(self) -> Iterator[None]:
        """A group operation is going to start this process."""
        self._announced += 1
        try:
            yield
        finally:
            self._announced -= 1
            self._wake_watchers()

    def _want(self, wanted: bool) -> None:
        if self.record.wanted != wanted:
            self.record = self.record._replace(wanted=wanted)
            self._context.event_writer.note(self.record)

    def hold(self, is_held: bool) -> None:
        """Whether an operator stopped it: no schedule starts it as a dependency then."""
        if self.record.held != is_held:
            self.record = self.record._replace(held=is_held)
            self._context.event_writer.note(self.record)

    def _begin_generation(self, generation: int, cause: Cause = UNKNOWN_CAUSE) -> None:
        """A new instance: `starting`, in the present period, with nothing known of it yet."""
        period = self._context.period
        self._become(Status.STARTING, wanted=True, generation=generation, period=period, held=False, **_NEW_INSTANCE)
        if self.spec.has_runs:
            self._context.runs.begin(self.record, cause)

    def _become(self, status: Status, **facts: Any) -> None:
        """The one place where a status changes: along a legal transition, with exactly one event."""
        old = self.status
        if status not in TRANSITIONS[old]:
            raise IllegalTransition(f"{self.name}: {old.value} to {status.value}")
        self.record = self.record._replace(status=status, **facts)
        self._context.event_writer.record(self.record, old, self._context.clock.now(), self.uptime())
        self._context.runs.follow(self.record, old, self.spec)
        level = logging.WARNING if status in TROUBLE else logging.INFO
        log.log(level, "%s: %s -> %s%s", self.name, old.value, status.value, self._pid_and_exit_code())
        self._wake_watchers()

    def _wake_watchers(self) -> None:
        for change in self._watchers:
            if not change.done():
                change.set_result(None)

    def _pid_and_exit_code(self) -> str:
        if self.status in ENDED and self.record.exit_code is not None:
            return f" (pid {self.record.pid}, exit code {self.record.exit_code})"
        return f" (pid {self.record.pid})" if self.record.pid else ""

    def _post(self, notice: str, message: str) -> None:
        """Posts a notice with the status and the exit code."""
        facts = {"status": self.status.value, "exitCode": self.record.exit_code}
        self._context.notices.post(notice, self.name, message, **facts)

    def _background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._tasks.start(work)

    def _report_failure(self, _: str, error: BaseException) -> None:
        log.error("%s: %s", self.name, error, exc_info=None if isinstance(error, Problem) else error)

    def cancel_tasks(self) -> None:
        """Ends all background work; the child, if any, goes on."""
        self.policy.cancel()
        self._tasks.cancel()
