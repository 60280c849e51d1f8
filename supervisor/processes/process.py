"""One supervised process: its spec, its status, at most one child. The only place where a status changes.

Commands for one process go one after another (`_queue`); its end is news from the kernel and waits for nobody. Each
child has a generation, and what is heard of any but the present one changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from models.config.redaction import shown_words
from models.errors import Conflict, Failed, Invalid, NotFound, Problem, Unavailable
from models.supervision.process import (
    ENDED,
    NEXT,
    TROUBLE,
    UP,
    Exit,
    OnUnhealthy,
    ProcessSpec,
    Status,
    ended_as,
    restarts,
)
from models.supervision.record import Record
from supervisor.processes.child import MARK, Child, Launch, ticks_per_second
from supervisor.processes.context import SupervisionContext
from supervisor.processes.instance import Life
from supervisor.processes.log_files import LogFile
from supervisor.processes.restart_policy import Backoff

log = logging.getLogger("supervision")


_FRESH: dict[str, Any] = {
    "pid": None, "start_ticks": None, "boot_id": None, "start": None, "end": None, "exit_code": None, "uptime": 0,
    "failed_log": None,
}  # fmt: skip
"""What is known of a life that begins."""


class IllegalMove(Exception):
    """A defect of ours: a move that is not in the table."""


class Process:
    def __init__(
        self,
        spec: ProcessSpec,
        context: SupervisionContext,
        needs: Callable[[str], Awaitable[None]],
        record: Record | None = None,
    ) -> None:
        """`needs` starts what the process of that name depends on and waits for it; it raises `Failed`."""
        self.spec = spec
        self.record = record or Record(spec.name)
        self.life: Life | None = None
        self.restarts = 0
        self.retired = False
        """Whether it is configured no more, and only to be stopped."""
        self.begun: asyncio.Task[None] | None = None
        """The start that was begun last: it is gone through with."""
        self._engine = context
        self._needs = needs
        self._queue = asyncio.Lock()
        self._outcome: asyncio.Future[None] | None = None
        self._waiting: asyncio.Task[None] | None = None
        self.next_restart: int | None = None
        """When the restart that is due happens, in microseconds since 1970."""
        self._called_off: asyncio.Future[None] | None = None
        self._needing = 0
        """How many calls wait for what it depends on."""
        self._backoff = Backoff()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watchers: set[asyncio.Future[None]] = set()

    # What it is

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def status(self) -> Status:
        return self.record.status

    @property
    def live(self) -> bool:
        """Whether it has an operating-system process now."""
        return self.life is not None

    @property
    def waits_for_restart(self) -> bool:
        return self._waiting is not None

    @property
    def waiting_for(self) -> str | None:
        """What the process waits for before it goes on, as `waitingFor` in the API; `None` where nothing is due."""
        if self._needing:
            return "dependency"
        return "restart" if self.waits_for_restart else None

    def uptime(self) -> int:
        """Microseconds that it has run, or that its last life took."""
        return self.record.uptime if self.life is None else self.life.uptime()

    def log_files(self) -> list[LogFile]:
        spec = self.spec
        if not (spec.stdout_logfile or spec.stderr_logfile):
            return []  # asked of all, every few seconds
        paths = {path: None for path in (spec.stdout_logfile, spec.stderr_file) if path}
        return [LogFile(path, spec.log_max_bytes, spec.log_backups) for path in paths]

    async def until(self, reached: Callable[[Process], bool]) -> None:
        """Returns when `reached(self)` holds; asked again at each change of the status."""
        while not reached(self):
            change = asyncio.get_running_loop().create_future()
            self._watchers.add(change)
            try:
                await change
            finally:
                self._watchers.discard(change)

    # What it is told to do

    async def start(self, by_hand: bool = True) -> str:
        """Returns what was done, in words, once the outcome is known.

        By hand it forgets what was counted against it; for a dependent it does not. Raises `Invalid` where the spec
        cannot be run on this machine, `Failed` where it was tried and did not work.
        """
        if self.live and self.status is not Status.STOPPING:
            return self._already()
        self._want(True)
        await self._needed()
        async with self._queue:
            if self.live:
                return self._already()
            launch = self._engine.launch(self.spec, self.record.generation + 1)
            if by_hand:
                self._by_hand()
            outcome = await self._begin(launch)
        await asyncio.shield(outcome)
        return f"{self.name} has been started (pid {self.record.pid})"

    async def stop(self) -> str:
        """Returns what was done, in words, once it is gone. Raises `Failed` where it cannot be killed."""
        waited = self._wait_no_more()
        self._want(False)
        if self._called_off is not None and not self._called_off.done():
            self._called_off.set_result(None)
        async with self._queue:
            waited = self._wait_no_more() or waited  # a start that came before us may have ended already
            self._want(False)
            if not self.live:
                return f"{self.name} {'will not be restarted' if waited else 'is not running'}"
            pid = self.record.pid
            await self._end(wanted=False)
        return f"{self.name} has been stopped (pid {pid})"

    async def restart(self) -> str:
        """Stops it if it is live, then starts it; as `start` and `stop`."""
        self._want(True)
        await self._needed()
        async with self._queue:
            launch = self._engine.launch(self.spec, self.record.generation + 1)
            self._by_hand()
            was = self.record.pid if self.live else None
            if self.live:
                await self._end(wanted=True)
            outcome = await self._begin(launch)
        await asyncio.shield(outcome)
        return f"{self.name} has been restarted (pid {self.record.pid}{f', was {was}' if was else ''})"

    def send(self, number: signal.Signals, to_group: bool = False) -> str:
        """Sends a signal to the main process, or to its whole group. Raises `Conflict` where it does not run."""
        if self.life is None:
            raise Conflict(f"{self.name} is not running ({self.status.value})", "PROCESS_NOT_RUNNING")
        child = self.life.child
        if to_group:
            child.send(number)
        else:
            child.send_to_main(number)
        log.info("%s: %s sent to pid %d%s", self.name, number.name, child.pid, " and its group" if to_group else "")
        return f"{number.name} has been sent to {self.name} (pid {child.pid})"

    async def renew(self) -> str:
        """Restarts it if it is live and wanted: its spec has changed."""
        await self._needed()
        async with self._queue:
            if not self.live or not self.record.wanted:
                return f"{self.name} is not running"
            launch = self._engine.launch(self.spec, self.record.generation + 1)
            await self._end(wanted=True)
            outcome = await self._begin(launch)
        await asyncio.shield(outcome)
        return f"{self.name} has been restarted (pid {self.record.pid})"

    def _by_hand(self) -> None:
        """Somebody asks for it: it is wanted, and what was counted against it is forgotten."""
        self._wait_no_more()
        self._want(True)
        self._backoff = Backoff()

    def _already(self) -> str:
        return f"{self.name} is already {self.status.value} (pid {self.record.pid})"

    # Starting

    async def _needed(self) -> None:
        """Waits for what it depends on, unless a stop is asked for meanwhile."""
        if not self.spec.depends_on:
            return
        if self._called_off is None or self._called_off.done():
            self._called_off = asyncio.get_running_loop().create_future()
        called_off = self._called_off  # of all who wait now
        needs = asyncio.ensure_future(self._needs(self.name))
        self._needing += 1
        try:
            await asyncio.wait({needs, called_off}, return_when=asyncio.FIRST_COMPLETED)
            if called_off.done():
                raise Failed(f"{self.name} was told to stop while it waited for what it depends on", "START_FAILED")
            needs.result()
        finally:
            self._needing -= 1
            needs.cancel()

    async def _begin(self, launch: Launch, by_itself: bool = False) -> asyncio.Future[None]:
        """Starts a child. The future it returns tells whether that became a running process, or raises `Failed`.

        The store has been told before that it is to run; where it comes back `by_itself`, that was at its first start.
        What has begun is gone through with, even where whoever waits for it is cancelled: never half a start.
        """
        if self._engine.closing:
            raise Unavailable("pilothouse is stopping")
        if self.retired:
            raise NotFound(f"{self.name} is configured no more", "PROCESS_NOT_FOUND")
        self._wait_no_more()
        outcome = self._outcome = asyncio.get_running_loop().create_future()
        outcome.add_done_callback(lambda done: done.cancelled() or done.exception())  # whoever asked may have left
        self._become(
            Status.STARTING,
            wanted=True,
            generation=self.record.generation + 1,
            **_FRESH,
        )
        self.begun = begun = self._background(self._go(launch, by_itself))
        try:
            await asyncio.shield(begun)
        except asyncio.CancelledError:
            await asyncio.wait({begun})
            raise
        return outcome

    async def _go(self, launch: Launch, by_itself: bool) -> None:
        try:
            if not by_itself:
                await self._engine.event_writer.soon(self.name)
            async with self._engine.turns:
                self._spawn(launch)
        except Exception as error:
            log.exception("%s: a start failed in a way that nobody foresaw", self.name)
            if self.life is not None:
                self.life.child.send(signal.SIGKILL)
            elif self.status is Status.STARTING:
                self._fail_to_start(str(error))
        if self.life is not None and self.life.child.is_chained:
            self._background(self._come_through(self.life))
        elif self.life is not None:
            self._is_executing(self.life)

    async def _come_through(self, life: Life) -> None:
        """Through the chain, for as long as that takes: a stop need not wait for it."""
        if await life.child.executed():
            self._is_executing(life)

    def _spawn(self, launch: Launch) -> None:
        try:
            child = self._engine.children.spawn(launch)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            file = error.filename if isinstance(error, OSError) else None
            about = f" ({file})" if file and file != launch.argv[0] else ""
            where = launch.directory or _here()
            command = " ".join(shown_words(launch.argv))
            self._fail_to_start(f"{command!r} in directory {where} could not be started: {reason}{about}")
            return
        life = Life(self._engine, self.spec, launch, child, self._engine.clock.since_boot())
        self._live(life, self._engine.clock.now())

    def _live(self, life: Life, start: int) -> None:
        self.life, child = life, life.child
        self.record = self.record._replace(
            pid=child.pid,
            start_ticks=child.identity.start_ticks,
            boot_id=child.identity.boot_id,
            start=start,
        )
        self._engine.event_writer.note(self.record)
        self._engine.children.watch(child, lambda exit: self._exited(life, exit))
        self._engine.cgroups.join(self.name, child)

    def _is_executing(self, life: Life) -> None:
        if life.spec.start_seconds:
            self._background(self._survive(life))
        elif life is self.life and self.status is Status.STARTING:
            self._is_running()

    async def _survive(self, life: Life) -> None:
        await life.survived()
        if life is self.life and self.status is Status.STARTING:
            self._is_running()

    def _is_running(self) -> None:
        self._become(Status.RUNNING)
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(None)
        if self.life is not None:
            self._probe(self.life)

    def _fail_to_start(self, why: str) -> None:
        self._become(Status.FAILED_TO_START, failed_log=why)
        log.error("%s: %s", self.name, why)
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_exception(Failed(f"{self.name} failed to start: {why}", "START_FAILED"))
        self._after()

    # Ending

    async def _end(self, wanted: bool) -> None:
        """Stops it, and returns when it and what it left behind are gone. Raises `Failed`."""
        life = self.life
        assert life is not None
        if self.status is not Status.STOPPING:
            self._become(Status.STOPPING, wanted=wanted)
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_exception(Failed(f"{self.name} was stopped while it was starting", "START_FAILED"))
        await life.end()

    def _exited(self, life: Life, exit: Exit | None) -> None:
        if life is not self.life:
            return
        code = None if exit is None else exit.exit_code
        facts: dict[str, Any] = {"end": self._engine.clock.now(), "exit_code": code, "uptime": life.uptime()}
        self.life = None
        life.over()
        if self.status is Status.STOPPING:
            self._become(Status.ABORTED if life.killed else Status.STOPPED, **facts)
            return
        self._look_behind(life)
        if self.status is Status.STARTING and exit is not None:
            if not life.did_start(exit):
                self.record = self.record._replace(**facts)
                self._fail_to_start(life.last_words(exit))
                return
            self._is_running()
        self._become(ended_as(exit), **facts)
        self._after()

    def _look_behind(self, life: Life) -> None:
        """It ended by itself: what it left is ended before it is started again.

        Where it is known at once that there is nothing, a restart without delay need not wait for a look.
        """
        if not self._engine.closing:
            at_once = not self.spec.restart_delay and life.left_nothing()
            self._background(life.sweep(self.record.generation) if at_once else self._tidy(life))

    async def _tidy(self, life: Life) -> None:
        async with self._queue:
            if not self.live:
                await life.clear(life.spec.stop_timeout)

    # Restarting

    def _after(self) -> None:
        if self.record.wanted and not self._engine.closing and restarts(self.spec.restart, self.status):
            self._restart_later()

    def _restart_later(self) -> None:
        delay = self._backoff.next(self.spec, self.record.uptime / 1_000_000, self._engine.clock.since_boot())
        if delay is None:
            log.error(
                "%s: %d restarts within %g s are the limit (restart-limit): it stays %s",
                self.name, self.spec.restart_limit, self.spec.restart_window, self.status.value,
            )  # fmt: skip
            self._want(False)  # nor does the next start of ours bring it back
            return
        self._waiting = self._background(self._revive(delay))
        self.next_restart = self._engine.clock.now() + int(delay * 1_000_000)

    async def _revive(self, delay: float) -> None:
        me = asyncio.current_task()
        try:
            await self._come_back(me, delay)
        finally:
            if self._waiting is me:
                self._waiting = None

    async def _come_back(self, me: asyncio.Task[Any] | None, delay: float) -> None:
        if delay:
            log.info("%s: to be restarted in %.1f s", self.name, delay)
            await asyncio.sleep(delay)
        try:
            await self._needed()
        except Problem as problem:
            async with self._queue:
                self._revive_failed(me, problem.message)
            return
        async with self._queue:
            if self._waiting is not me or self.live or self._engine.closing:
                return
            try:
                launch = self._engine.launch(self.spec, self.record.generation + 1)
            except Invalid as problem:
                self._revive_failed(me, problem.message)
                return
            self._waiting = None
            self.restarts += 1
            await self._begin(launch, by_itself=True)

    def _revive_failed(self, me: asyncio.Task[Any] | None, why: str) -> None:
        if self._waiting is me and not self.live:
            self._waiting, self._outcome = None, None
            self._become(Status.STARTING, generation=self.record.generation + 1, **_FRESH)
            self._fail_to_start(why)

    def _wait_no_more(self) -> bool:
        """Gives up a restart that is due; says whether one was."""
        waited, self._waiting = self._waiting, None
        if waited is not None:
            waited.cancel()
        return waited is not None

    # Health

    def _probe(self, life: Life) -> None:
        life.probe(lambda good: self._heard(life, good))

    def _heard(self, life: Life, good: bool) -> None:
        status = Status.HEALTHY if good else Status.UNHEALTHY
        if life is not self.life or self.status not in UP:
            return
        if self.status is not status:
            self._become(status)
        check = life.spec.health_check
        if not good and check is not None and check.on_unhealthy is OnUnhealthy.RESTART:
            self._background(self._replace(life))

    async def _replace(self, life: Life) -> None:
        """Restarts an unhealthy child, within the same limit and with the same delays as one that crashed."""
        async with self._queue:
            if life is self.life and self.status is Status.UNHEALTHY:
                await self._end(wanted=True)
                if self.record.wanted and not self._engine.closing:
                    self._restart_later()

    # Taking up where an earlier life of ours left off

    def adopt(self, child: Child, record: Record, generation: int) -> None:
        """Watches a child of an earlier life again. Its exit cannot be known."""
        self.record = record
        if generation != record.generation and not self._is_idle():
            self.lost()
        if self._is_idle():  # the store could not be told of its start
            self._become(Status.STARTING, wanted=True, generation=generation, **_FRESH)
        since = child.identity.start_ticks / ticks_per_second()
        age = self._engine.clock.since_boot() - since
        known = self.record.start if self.record.pid == child.pid else None
        life = Life(self._engine, self.spec, self._adopted_launch(generation), child, since)
        self._live(life, known or self._engine.clock.now() - int(age * 1_000_000))
        log.info("%s: found again (pid %d, %s)", self.name, child.pid, self.status.value)
        if self.status is Status.STARTING:
            self._is_executing(life)
        elif self.status is Status.STOPPING:
            self._background(self._finish_stopping())
        else:
            self._probe(life)

    def _adopted_launch(self, generation: int) -> Launch:
        """As it would be launched now, for its probes; without its user and folder where those are gone."""
        try:
            return self._engine.launch(self.spec, generation)
        except Invalid:
            return Launch(self.spec.argv, {**self._engine.environment, MARK: self._engine.mark(self.name, generation)})

    def _is_idle(self) -> bool:
        return self.status in ENDED or self.status is Status.NOT_STARTED

    async def _finish_stopping(self) -> None:
        async with self._queue:
            if self.live and self.status is Status.STOPPING:
                await self._end(self.record.wanted)

    def lost(self) -> None:
        """It died while nobody watched: one event says so."""
        now = self._engine.clock.now()
        self._become(Status.UNKNOWN, end=now, exit_code=None, uptime=max(0, now - (self.record.start or now)))
        log.warning("%s: it ended while nobody watched (pid %s)", self.name, self.record.pid)

    def resume(self) -> None:
        """Restarts it if its end, known or not, calls for that."""
        if self.status in ENDED and not self.live and not self.waits_for_restart:
            self._after()

    # Changing

    def _want(self, wanted: bool) -> None:
        if self.record.wanted != wanted:
            self.record = self.record._replace(wanted=wanted)
            self._engine.event_writer.note(self.record)

    def _become(self, status: Status, **facts: Any) -> None:
        """The one place where a status changes: along a written move, with exactly one event."""
        old = self.status
        if status not in NEXT[old]:
            raise IllegalMove(f"{self.name}: {old.value} to {status.value}")
        self.record = self.record._replace(status=status, **facts)
        self._engine.event_writer.record(self.record, old, self._engine.clock.now(), self.uptime())
        level = logging.WARNING if status in TROUBLE else logging.INFO
        log.log(level, "%s: %s -> %s%s", self.name, old.value, status.value, self._about())
        for change in self._watchers:
            if not change.done():
                change.set_result(None)

    def _about(self) -> str:
        if self.status in ENDED and self.record.exit_code is not None:
            return f" (pid {self.record.pid}, exit code {self.record.exit_code})"
        return f" (pid {self.record.pid})" if self.record.pid else ""

    def _background(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._is_done)
        return task

    def _is_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("%s: %s", self.name, error, exc_info=None if isinstance(error, Problem) else error)

    async def retire(self) -> str:
        """Stops it, and what is kept of it beside its history is forgotten: it is configured no more."""
        self.retired = True
        try:
            return await self.stop()
        finally:
            self.forget()
            if not self.live:
                self._engine.event_writer.forget(self.name)

    def forget(self) -> None:
        """Ends what goes on in the background; its child, if any, goes on."""
        self._wait_no_more()
        for task in list(self._tasks):
            task.cancel()


def _here() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 (Path.cwd is no better, and this is the one that may fail)
    except OSError:
        return "that is gone"
