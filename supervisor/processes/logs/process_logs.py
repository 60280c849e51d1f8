"""The logs of all processes: rotated as they grow, forwarded where that is configured, deleted with their process."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from models.config.settings import ServerSettings
from models.errors import Failed
from models.supervision import log_marks
from models.supervision.captured_logs import keep_for_now, remove_old
from models.supervision.log_marks import LogMark
from models.supervision.process import ProcessSpec
from models.supervision.record import Record
from models.times import SECOND
from supervisor.clock import Clock
from supervisor.processes.event_writer import EventWriter
from supervisor.processes.fleet import Fleet
from supervisor.processes.history import off_loop
from supervisor.processes.logs.access import rights
from supervisor.processes.logs.files import LogFile, LogFiles, log_sizes, size_of
from supervisor.processes.logs.growth import LogGrowth
from supervisor.processes.notices import Notices
from supervisor.processes.process.context import identity_of
from supervisor.pubsub import PubSub

if TYPE_CHECKING:
    from supervisor.processes.logs.forwarding import LogForwarder

log = logging.getLogger("logs")

_MEASURE_SECONDS, _SETTLE_SECONDS = 5.0, 1.0


class ProcessLogs:
    def __init__(
        self, fleet: Fleet, server: ServerSettings, clock: Clock, notices: Notices, event_writer: EventWriter
    ) -> None:
        """Raises `peewee.PeeweeException`."""
        self.files = LogFiles(fleet.log_files, clock, notices)
        self.files.on_rotation = self._on_rotation
        self.new_marks: PubSub[LogMark] = PubSub()
        self._event_writer = event_writer
        self._last_mark = log_marks.last_id()
        self._measuring: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._exits: dict[asyncio.Task[None], set[str]] = {}
        self.growth = LogGrowth(self.files)
        self.forwarder: LogForwarder | None = None
        self._fleet = fleet
        self._server = server
        self._clock = clock
        self._is_started = False

    def start(self) -> None:
        """Forwards from now on."""
        self._is_started = True
        if self.forwarder is not None:
            self.forwarder.start()

    async def close(self) -> None:
        if self.forwarder is not None:
            await self.forwarder.close()

    def take_over(self, specs: Mapping[str, ProcessSpec]) -> None:
        """Takes over with which rights files are accessed, and makes the forwarder where any are forwarded.

        Without any of these there is no forwarder: its modules are not imported.
        """
        for spec in specs.values():
            files = {path for path in (spec.stdout_logfile, spec.stderr_file) if path} - set(spec.captured_files)
            rights.take_over(dict.fromkeys(files, identity_of(spec) if spec.user is not None else None))
        if self.forwarder is None and any(spec.log_forward is not None for spec in specs.values()):
            from supervisor.processes.logs.forwarding import LogForwarder
            from supervisor.processes.logs.sinks import sink_of

            is_json, syslog = self._server.log_format == "json", self._server.syslog
            positions = Path(self._server.data_dir) / "log-positions.json"
            self.forwarder = LogForwarder(self.files, lambda kind: sink_of(kind, is_json, syslog), positions)
            if self._is_started:
                self.forwarder.start()

    async def refresh_forwarding(self, specs: Mapping[str, ProcessSpec]) -> None:
        """Takes over which files are forwarded, before a process that writes to them is started."""
        if self.forwarder is not None:
            await self.forwarder.refresh(specs)

    def on_opened(self, files: Iterable[LogFile]) -> None:
        """A process was spawned that has these log files."""
        opened = list(files)
        self.growth.add(opened)
        if self.forwarder is not None:
            self.forwarder.opened(file.path for file in opened)

    async def sizes(self, name: str, files: Sequence[LogFile]) -> Mapping[str, int]:
        """The sizes of log files of a process, measured in a thread, in the order of the calls; empty if that hangs."""
        if not files:
            return {}
        measured = asyncio.get_running_loop().create_task(self._measured(name, files))
        try:
            async with asyncio.timeout(_MEASURE_SECONDS):
                return await asyncio.shield(measured)
        except TimeoutError:
            log.warning("%s: its log files cannot be looked up: the file system does not answer", name)
            return {}

    async def _measured(self, name: str, files: Sequence[LogFile]) -> Mapping[str, int]:
        """As `sizes`, without a limit: what hangs keeps the lock, so that a process holds one thread at most."""
        async with self._measuring[name]:
            return await asyncio.get_running_loop().run_in_executor(self.files.threads.executor, log_sizes, files)

    def on_start(self, sizes: Mapping[str, int], record: Record) -> None:
        """A process has started when its log files had these sizes."""
        self._mark(sizes, record, self._clock.now(), is_exit=False)

    def on_exit(self, files: Sequence[LogFile], record: Record) -> None:
        """A process that has these log files has ended: they are measured in a moment."""
        task = asyncio.get_running_loop().create_task(self._mark_exit(files, record, self._clock.now()))
        self._exits[task] = {file.path for file in files}
        task.add_done_callback(self._exits.pop)

    async def _mark_exit(self, files: Sequence[LogFile], record: Record, now: int) -> None:
        self._mark(await self.sizes(record.name, files), record, now, is_exit=True)

    def _mark(self, sizes: Mapping[str, int], record: Record, now: int, is_exit: bool) -> None:
        for path, size in sizes.items():
            self._last_mark += 1
            code, rotation = record.exit_code if is_exit else None, self.files.rotations(path)
            mark = LogMark(self._last_mark, path, record.name, size, now, record.pid, code, is_exit, rotation)
            self._event_writer.note_log_mark(mark)
            self.new_marks.publish(mark)

    async def settle(self, seconds: float, path: str | None = None) -> None:
        """Waits until the exits so far are marked, in one file or in all, at most so long."""
        if exits := {task for task, paths in self._exits.items() if path is None or path in paths}:
            await asyncio.wait(exits, timeout=max(0.0, seconds))

    def _on_rotation(self) -> Callable[[Iterable[str]], None]:
        """A rotation begins. The marks made until now go with what is rotated away."""
        last = self._last_mark

        def forget(paths: Iterable[str]) -> None:
            for path in paths:
                self._event_writer.forget_log_marks(path, last)

        return forget

    async def marks(self, path: str) -> list[LogMark]:
        """The marks of a file as it is now. Raises `TimedOut`, `Failed`."""
        while True:
            rotation = self.files.rotations(path)
            await self.settle(_SETTLE_SECONDS, path)
            await self._event_writer.stored_soon()
            found = await off_loop(lambda: log_marks.of_file(path, rotation))  # noqa: B023 (awaited here)
            try:
                size = await self.files.threads.run(path, partial(size_of, path))
            except OSError as error:
                raise Failed(f"{path} cannot be read: {error.strerror}") from None
            if rotation == self.files.rotations(path):  # else these may be of two contents
                return [mark for mark in found if mark.position <= size]  # another program may have truncated it

    def keep_for_now(self, names: Iterable[str]) -> None:
        """These processes are no longer configured: the captured logs are kept for some time from now."""
        for name in names:
            keep_for_now(Path(self._server.data_dir), name)

    async def remove_old(self) -> None:
        """Deletes the captured logs of processes that were removed from the configuration some time ago."""
        kept = {path for process in self._fleet for path in process.spec.captured_files}
        now = self._clock.settled() / SECOND
        for file in await asyncio.to_thread(remove_old, Path(self._server.data_dir), kept, now):
            log.info("%s was deleted: its process is no longer configured", file)
