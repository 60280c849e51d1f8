"""Supervised processes as values: the spec, the status, the legal transitions, and the status after an exit."""

from __future__ import annotations

import enum
import graphlib
import hashlib
import signal
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import NewType

from attrs import Factory, evolve, field, frozen

from models.children import SIGNAL_OFFSET, Exit, Limits, signal_name
from models.supervision.schedule import Schedule

Seconds = NewType("Seconds", float)
"""A length of time. Written 500ms, 5s, 2m, 1h, 30d, ISO 8601 or a bare number of seconds."""

Size = NewType("Size", int)
"""A number of bytes. Written 64K, 25M, 1G (base 1024) or a bare number."""


class Status(enum.Enum):
    """The seed's status values, in the seed's order, which is also the order in which they sort."""

    NOT_STARTED = "not_started"
    RUNNING = "running"
    FINISHED = "finished"
    UNKNOWN = "unknown"
    FAILED = "failed"
    FAILED_TO_START = "failed_to_start"
    STOPPED = "stopped"
    STOPPING = "stopping"
    ABORTED = "aborted"
    STARTING = "starting"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"

    @property
    def rank(self) -> int:
        return _RANK[self]


STATUSES = tuple(Status)
_RANK = {status: rank for rank, status in enumerate(STATUSES)}

UP = frozenset({Status.RUNNING, Status.HEALTHY, Status.UNHEALTHY})
"""Started, and not stopping."""

ENDED = frozenset(
    {Status.FINISHED, Status.UNKNOWN, Status.FAILED, Status.FAILED_TO_START, Status.STOPPED, Status.ABORTED}
)

IDLE = ENDED | {Status.NOT_STARTED}
"""Without an operating-system process."""

TROUBLE = frozenset({Status.UNKNOWN, Status.FAILED, Status.FAILED_TO_START, Status.ABORTED, Status.UNHEALTHY})
"""Statuses that an operator should look at; logged as WARNING."""

_EXITS = frozenset({Status.FINISHED, Status.FAILED, Status.STOPPED, Status.ABORTED, Status.UNKNOWN})

TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    Status.NOT_STARTED: frozenset({Status.STARTING}),
    Status.STARTING: frozenset({Status.RUNNING, Status.FAILED_TO_START, Status.STOPPING, Status.UNKNOWN}),
    Status.RUNNING: _EXITS | {Status.HEALTHY, Status.UNHEALTHY, Status.STOPPING},
    Status.HEALTHY: _EXITS | {Status.RUNNING, Status.UNHEALTHY, Status.STOPPING},
    Status.UNHEALTHY: _EXITS | {Status.RUNNING, Status.HEALTHY, Status.STOPPING},
    Status.STOPPING: frozenset({Status.STOPPED, Status.ABORTED, Status.UNKNOWN}),
    **{status: frozenset({Status.STARTING}) for status in ENDED},
}
"""Every legal transition. `ProcessState.become` is the one place that makes one."""


class ProcessKind(enum.Enum):
    """The type of a process: a program that keeps running (and may report readiness), or a job that ends."""

    SERVICE = "service"
    NOTIFY = "notify"
    ONESHOT = "oneshot"


class Restart(enum.Enum):
    """When a process that ended by itself is restarted."""

    NEVER = "never"
    ON_FAILURE = "on-failure"
    ALWAYS = "always"


_RESTARTED = {
    Restart.NEVER: frozenset[Status](),
    Restart.ON_FAILURE: frozenset({Status.FAILED, Status.ABORTED, Status.FAILED_TO_START}),
    Restart.ALWAYS: ENDED,
}


def restarts(policy: Restart, ended: Status) -> bool:
    """Whether `policy` restarts a process that ended by itself with this status."""
    return ended in _RESTARTED[policy]


def calls_for_restart(spec: ProcessSpec, ended: Status) -> bool:
    """Whether its policy restarts a process that ended by itself, or `start-retries` repeats its start."""
    return restarts(spec.restart, ended) or (ended is Status.FAILED_TO_START and bool(spec.start_retries))


def status_after_exit(exit: Exit | None, successes: Collection[str] = ()) -> Status:
    """The status after an exit that no stop caused; `None` is an exit that could not be read.

    `successes` are the exits that count as success in addition to code 0.
    """
    if exit is None:
        return Status.UNKNOWN
    if exit.signal in (signal.SIGTERM, signal.SIGINT):
        return Status.STOPPED
    if exit == Exit() or exit.listed_as in successes:
        return Status.FINISHED
    return Status.FAILED if exit.signal is None else Status.ABORTED


class Condition(enum.Enum):
    """What a dependency must have reached before its dependent starts."""

    RUNNING = "running"
    HEALTHY = "healthy"
    COMPLETED = "completed"
    """It finished in this period: since the last start of the server that found no live child."""


class OnUnhealthy(enum.Enum):
    IGNORE = "ignore"
    RESTART = "restart"


@frozen
class Dependency:
    process: str
    condition: Condition = Condition.RUNNING


@frozen
class HttpProbe:
    url: str
    method: str = "GET"
    status: tuple[tuple[int, int], ...] = ((200, 399),)
    """Inclusive ranges of the status codes that count as healthy; written `200-399` or `200,204,300-302`."""
    headers: Mapping[str, str] = field(factory=dict, repr=False)  # may hold credentials


@frozen
class TcpProbe:
    port: int
    host: str = "127.0.0.1"


@frozen
class ExecProbe:
    command: tuple[str, ...]


@frozen
class HealthCheck:
    """Exactly one of `http`, `tcp` and `exec`, and when to probe."""

    http: HttpProbe | None = None
    tcp: TcpProbe | None = None
    exec: ExecProbe | None = None
    initial_delay: Seconds = Seconds(0)
    interval: Seconds = Seconds(10)
    timeout: Seconds = Seconds(5)
    success_threshold: int = 1
    failure_threshold: int = 3
    on_unhealthy: OnUnhealthy = OnUnhealthy.IGNORE


class DefaultInt(int):
    """A number that was not given, where the default depends on other properties."""


_CAPTURED_MAX_BYTES = Size(10 * 1024 * 1024)


class LogMode(enum.Enum):
    """Where output without a log file goes: to the output of the server, to files in the data directory, or nowhere."""

    INHERIT = "inherit"
    CAPTURE = "capture"
    NONE = "none"


class LogForward(enum.Enum):
    """The additional destination of the lines of the log files."""

    STDOUT = "stdout"
    JOURNALD = "journald"
    SYSLOG = "syslog"


class When(enum.Enum):
    """After which failures the command of `on-failure` runs."""

    FINAL = "final"
    EACH = "each"


@frozen
class OnFailure:
    """A command that runs after a failure: after the last one, or after each."""

    command: tuple[str, ...]
    when: When = When.FINAL


@frozen
class ProcessSpec:
    """One entry of `supervisor.processes`, checked; `name` is its key."""

    name: str
    command: tuple[str, ...]
    args: tuple[str, ...] = ()
    type: ProcessKind | None = None
    """`None`: see `kind`."""
    directory: str | None = None
    environment: Mapping[str, str] = field(factory=dict, repr=False)  # may hold passwords
    env_file: tuple[str, ...] = ()
    user: str | None = None
    group: str | None = None
    umask: int | None = None
    nice: int | None = None
    limits: Limits = Factory(lambda: Limits({}))
    stdin: str | None = None
    stdout_logfile: str | None = None
    stderr_logfile: str | None = None
    redirect_stderr: bool = False
    log: LogMode | None = None
    log_forward: LogForward | None = None
    log_max_bytes: Size = Size(DefaultInt(50 * 1024 * 1024))
    log_backups: int = DefaultInt(5)
    auto_start: bool = False
    order: int = 0
    depends_on: tuple[Dependency, ...] = ()
    start_timeout: Seconds = Seconds(60)
    start_seconds: Seconds = Seconds(0)
    start_delay: Seconds = Seconds(0)
    restart: Restart = Restart.NEVER
    restart_delay: Seconds = Seconds(1)
    restart_max_delay: Seconds = Seconds(60)
    restart_limit: int = 10
    restart_window: Seconds = Seconds(300)
    restart_reset: Seconds = Seconds(30)
    start_retries: int | None = None
    """How many failed starts in a row are followed by another one; `None`: as `restart` has it."""
    success_exit_codes: tuple[str, ...] = ()
    """As `Exit.listed_as`."""
    no_restart_exit_codes: tuple[str, ...] = ()
    ready_timeout: Seconds = Seconds(60)
    watchdog: Seconds | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    stop_timeout: Seconds = Seconds(10)
    start_pre: tuple[str, ...] = ()
    start_post: tuple[str, ...] = ()
    stop_pre: tuple[str, ...] = ()
    stop_post: tuple[str, ...] = ()
    hook_timeout: Seconds = Seconds(30)
    on_failure: OnFailure | None = None
    max_memory: Size | None = None
    schedule: Schedule | None = None
    max_runtime: Seconds | None = None
    labels: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    description: str = ""
    health_check: HealthCheck | None = None
    template: str | None = None
    """The entry that it is a replica of; no property."""
    captured_files: tuple[str, ...] = ()
    """Those of its log files that the server has chosen; no property."""
    env_digest: str = field(default="", repr=False)
    """Changes with the contents of the environment files; no property."""

    @property
    def argv(self) -> list[str]:
        return [*self.command, *self.args]

    @property
    def kind(self) -> ProcessKind:
        """`type`, where it is given; else a process with a schedule is a job."""
        return self.type or (ProcessKind.SERVICE if self.schedule is None else ProcessKind.ONESHOT)

    @property
    def is_job(self) -> bool:
        return self.kind is ProcessKind.ONESHOT

    @property
    def is_scheduled_job(self) -> bool:
        return self.schedule is not None and self.is_job

    @property
    def has_runs(self) -> bool:
        """Whether its runs are stored."""
        return self.schedule is not None or self.is_job

    @property
    def has_hooks(self) -> bool:
        """Whether a hook may run after the spawn."""
        return bool(self.start_post or self.stop_pre or self.stop_post)

    @property
    def seconds_until_running(self) -> Seconds:
        """How long a service must run before it counts as running."""
        return self.start_seconds if self.kind is ProcessKind.SERVICE else Seconds(0)

    @property
    def notifies(self) -> bool:
        """Whether it has a socket for notifications."""
        return self.kind is ProcessKind.NOTIFY or self.watchdog is not None

    @property
    def stderr_file(self) -> str | None:
        """The file for standard error; `None` where it is inherited or redirected to standard output."""
        return None if self.redirect_stderr else self.stderr_logfile

    def log_bounds(self, path: str) -> tuple[Size, int]:
        """The size beyond which this log file is rotated, and the number of its backups."""
        max_bytes, backups = self.log_max_bytes, self.log_backups
        if path in self.captured_files:
            max_bytes = _CAPTURED_MAX_BYTES if isinstance(max_bytes, DefaultInt) else max_bytes
            backups = 1 if isinstance(backups, DefaultInt) else backups
        return max_bytes, backups

    @cached_property
    def launch_fingerprint(self) -> str:
        """SHA-256 of the launch settings; on adoption, a different value means that the configuration has changed."""
        files = self.stdout_logfile, self.stderr_file, self.redirect_stderr
        setting = self.directory, self.user, self.group, self.umask, self.nice
        options = sorted(self.environment.items()), sorted(self.limits.items())
        launch: tuple[object, ...] = self.argv, *options, *setting, *files
        if self.env_file:
            launch = (*launch, self.env_file, self.env_digest)
        if self.log is LogMode.NONE:
            launch = (*launch, "log", "none")
        if self.stdin is not None:
            launch = (*launch, "stdin", self.stdin)
        if self.notifies:
            launch = (*launch, "notify", self.watchdog)
        return hashlib.sha256(repr(launch).encode("utf-8", "backslashreplace")).hexdigest()[:16]


_APPLIED_LIVE = frozenset(
    {
        *("description", "labels", "groups", "order", "auto_start", "log_max_bytes", "log_backups"),
        *("max_memory", "on_failure", "start_delay", "schedule", "max_runtime"),
    }
)
"""Properties whose change alone restarts nothing."""


def needs_restart(before: ProcessSpec, after: ProcessSpec) -> bool:
    """Whether a live process must be restarted for its new spec to count."""
    taken_over = {name: getattr(after, name) for name in _APPLIED_LIVE}
    return evolve(before, **taken_over) != after


def forbids_restart(spec: ProcessSpec, status: Status, exit_code: int | None) -> bool:
    """Whether `no-restart-exit-codes` lists the end that led to this status."""
    if exit_code is None or not spec.no_restart_exit_codes:
        return False
    can_be_signal = exit_code > SIGNAL_OFFSET and status is not Status.FAILED
    listed = {str(exit_code), *([signal_name(exit_code - SIGNAL_OFFSET)] if can_be_signal else [])}
    return not listed.isdisjoint(spec.no_restart_exit_codes)


def needed_by(specs: Mapping[str, ProcessSpec]) -> Mapping[str, list[str]]:
    """Name -> names of the direct dependents that need it to be up; without entries for processes that have none.

    What depends on the completion of a job does not need the job any more.
    """
    names: dict[str, list[str]] = {}
    for spec in specs.values():
        for dependency in spec.depends_on:
            if dependency.condition is Condition.COMPLETED:
                continue
            names.setdefault(dependency.process, []).append(spec.name)
    return names


def dependents(needed: Mapping[str, list[str]], name: str) -> list[str]:
    """The direct and indirect dependents of `name`; each comes before those that it depends on.

    `needed` as `needed_by` gives it. Not recursive: a chain may be long.
    """
    order: list[str] = []
    seen: set[str] = set()
    stack = [(name, False)]
    while stack:
        current, is_done = stack.pop()
        if is_done:
            order.append(current)
        elif current not in seen:
            seen.add(current)
            stack.append((current, True))
            stack += [(other, False) for other in needed.get(current, ())]
    return order[:-1]


def circle(needs: Mapping[str, Collection[str]]) -> list[str]:
    """One circle of dependencies, the first name again at the end; empty without one. `needs`: name -> needed names."""
    try:
        graphlib.TopologicalSorter(needs).prepare()
    except graphlib.CycleError as error:
        return list(reversed(error.args[1]))
    return []
