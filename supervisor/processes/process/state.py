"""What is known of one process: its spec, its record, and the transitions of its status.

`ProcessState.become` is the only place where a status changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from models.supervision.process import ENDED, IDLE, TRANSITIONS, TROUBLE, ProcessSpec, Status
from models.supervision.record import Record
from models.supervision.runs import Cause
from models.times import SECOND
from supervisor.children.proc import ProcessIdentity
from supervisor.processes.logs.files import LogFile
from supervisor.processes.process.context import SupervisionContext

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
    """The record of a process. Each change is stored; each change of the status is an event and wakes who waits."""

    def __init__(self, spec: ProcessSpec, context: SupervisionContext, record: Record | None = None) -> None:
        self.spec = spec
        self.record = record or Record(spec.name)
        self._context = context
        self._since: float | None = None
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def status(self) -> Status:
        return self.record.status

    @property
    def has_run(self) -> bool:
        """Whether it has an instance, or had one, in the present period."""
        return self.record.period == self._context.period and self.status is not Status.NOT_STARTED

    @property
    def has_completed(self) -> bool:
        """Whether its last run was in the present period and finished."""
        return self.has_run and self.status is Status.FINISHED

    @property
    def is_live(self) -> bool:
        """Whether it has an operating-system process now."""
        return self._since is not None

    def uptime(self) -> int:
        """Microseconds that the present instance has run, or that the last one ran."""
        if self._since is None:
            return self.record.uptime
        return int((self._context.clock.since_boot() - self._since) * SECOND)

    def log_files(self, spec: ProcessSpec | None = None) -> list[LogFile]:
        """The log files of the process, or those of an instance with this spec."""
        spec = spec or self.spec
        if not (spec.stdout_logfile or spec.stderr_logfile):
            return []  # called for all processes, every few seconds
        paths = {path: None for path in (spec.stdout_logfile, spec.stderr_file) if path}
        return [LogFile(path, *spec.log_bounds(path), spec.name) for path in paths]

    # Changes

    def become(self, status: Status, **facts: Any) -> None:
        """The one place where a status changes: along a legal transition, with exactly one event."""
        old = self.status
        if status not in TRANSITIONS[old]:
            raise IllegalTransition(f"{self.name}: {old.value} to {status.value}")
        self.record = self.record._replace(status=status, **facts)
        self._context.event_writer.record(self.record, old, self._context.clock.now(), self.uptime())
        self._context.runs.follow(self.record, old, self.spec)
        level = logging.WARNING if status in TROUBLE else logging.INFO
        log.log(level, "%s: %s -> %s%s", self.name, old.value, status.value, self._pid_and_exit_code())
        self.wake_waiters()

    def note(self, **facts: Any) -> None:
        """Stores facts that are no change of the status."""
        if any(getattr(self.record, name) != value for name, value in facts.items()):
            self.record = self.record._replace(**facts)
            self._context.event_writer.note(self.record)

    def hold(self, is_held: bool) -> None:
        """Whether an operator stopped it: no schedule starts it as a dependency then."""
        self.note(held=is_held)

    def begin_generation(self, generation: int, cause: Cause = UNKNOWN_CAUSE) -> None:
        """A new instance: `starting`, in the present period, with nothing known of it yet."""
        period = self._context.period
        self.become(Status.STARTING, wanted=True, generation=generation, period=period, held=False, **_NEW_INSTANCE)
        if self.spec.has_runs:
            self._context.runs.begin(self.record, cause)

    def on_spawned(self, identity: ProcessIdentity, since: float, start: int) -> None:
        """It has an operating-system process since `since` (in seconds since boot), which is `start` (since 1970)."""
        self._since = since
        self.note(pid=identity.pid, start_ticks=identity.start_ticks, boot_id=identity.boot_id, start=start)

    def log_adoption(self) -> None:
        log.info("%s: adopted (pid %d, %s)", self.name, self.record.pid, self.status.value)

    def on_exited(self, spec: ProcessSpec, exit_code: int | None) -> dict[str, Any]:
        """Its operating-system process, with this spec, has ended; returns the facts for the next `become`."""
        facts: dict[str, Any] = {"end": self._context.clock.now(), "exit_code": exit_code, "uptime": self.uptime()}
        self._since = None
        self._context.on_exit(self.log_files(spec), self.record._replace(**facts))
        return facts

    def fail_to_start(self, reason: str, facts: Mapping[str, Any]) -> None:
        """Its start has failed: the event, the log line and the notice."""
        self.become(Status.FAILED_TO_START, failed_log=reason, **facts)
        log.error("%s: %s", self.name, reason)
        first_line = reason.partition("\n")[0]
        self.post("process.start_failed", f"{self.name} failed to start: {first_line}")

    def mark_unknown(self) -> None:
        """It ended while no server was watching it."""
        now = self._context.clock.now()
        self.become(Status.UNKNOWN, end=now, exit_code=None, uptime=max(0, now - (self.record.start or now)))
        if self.record.pid is not None:
            self._context.on_exit(self.log_files(), self.record)
        log.warning("%s: ended while no server was running (pid %s)", self.name, self.record.pid)

    def mark_unstored(self, generation: int) -> None:
        """An earlier run of the server started this generation and was killed before it could store the start."""
        if self.status not in IDLE:
            self.mark_unknown()
        self.begin_generation(generation)
        self.mark_unknown()

    def add_to_failed_log(self, record: Record, text: str) -> None:
        """Adds to `failedErrorLog`, unless another instance has begun meanwhile."""
        if self.record.generation == record.generation:
            self.note(failed_log="\n".join(filter(None, (self.record.failed_log, text))))

    # Who waits for a change, and who is notified

    async def change(self) -> None:
        """Returns after the next transition, or after a start or stop has begun or ended."""
        change = asyncio.get_running_loop().create_future()
        self._waiters.add(change)
        try:
            await change
        finally:
            self._waiters.discard(change)

    def wake_waiters(self) -> None:
        for change in self._waiters:
            if not change.done():
                change.set_result(None)

    def post(self, notice: str, message: str) -> None:
        """Posts a notice with the status and the exit code."""
        facts = {"status": self.status.value, "exitCode": self.record.exit_code}
        self._context.notices.post(notice, self.name, message, **facts)

    def post_failure(self) -> None:
        """Posts the notice of a failure after which it is not restarted. Failed starts have a notice of their own."""
        if self.status in (Status.FAILED, Status.ABORTED):
            code = "" if self.record.exit_code is None else f" (exit code {self.record.exit_code})"
            self.post("process.failed", f"{self.name} has {self.status.value}{code}")

    def _pid_and_exit_code(self) -> str:
        if self.status in ENDED and self.record.exit_code is not None:
            return f" (pid {self.record.pid}, exit code {self.record.exit_code})"
        return f" (pid {self.record.pid})" if self.record.pid else ""
