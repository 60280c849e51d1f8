"""Forwards what processes write to their log files: one inotify descriptor for all files, one thread for all sinks.

The position in each file is stored every five seconds: after a kill -9 of the server some lines may be sent again, and
none is passed over. A sink that takes nothing stops the reading of its files; only what is rotated away then is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from attrs import Factory, define

from models.supervision.process import ProcessSpec
from supervisor.processes.logs.files import LogFile, LogFiles
from supervisor.processes.logs.growth import open_inotify, read_inotify, watch_files
from supervisor.processes.logs.places import Position
from supervisor.processes.logs.sinks import Origin, Sink

log = logging.getLogger("logs")

_PAUSE_SECONDS = 0.05
_RETRY_SECONDS = 1.0
_SAVE_SECONDS = 5.0
_CLOSE_SECONDS = 2.0
_REPORT_SECONDS = 60.0


@define(eq=False)
class _Source:
    """One file: how far it was read, the unfinished last line, and the lines that the sink has not taken yet."""

    path: str
    origin: Origin
    kind: str
    file: LogFile
    place: Position | None
    """`None` until its file system has answered."""
    rest: bytes = b""
    pending: list[bytes] = Factory(list)
    idle_since: float | None = None
    is_unread: bool = False
    """Whether its file system did not answer, or no descriptor was free."""

    @property
    def is_waiting(self) -> bool:
        """Whether something is left to do without a new write."""
        return self.is_unread or bool(self.rest or self.pending)

    @property
    def offset(self) -> int:
        """Where to go on after a restart of the server; 0 where that is not known yet."""
        if self.place is None:
            return 0
        return max(0, self.place.at - len(self.rest) - sum(len(line) + 1 for line in self.pending))


class LogForwarder:
    def __init__(self, logs: LogFiles, make_sink: Callable[[str], Sink], positions: Path) -> None:
        """`positions` is the file with the stored positions."""
        self.lost: Counter[str] = Counter()
        """Lines that no sink takes, by process."""
        self.lost_bytes: Counter[str] = Counter()
        """What was rotated away before it was forwarded, by process: its lines are not known."""
        self._logs = logs
        self._make_sink = make_sink
        self._sinks: dict[str, Sink] = {}
        self._positions = positions
        self._stored = _read_positions(positions)
        self._saved: dict[str, tuple[int, int]] = {}
        self._is_save_due = True
        self._sources: dict[str, _Source] = {}
        self._due: set[str] = set()
        self._watches: dict[int, str] = {}
        self._woken: asyncio.Event = asyncio.Event()
        self._executor = ThreadPoolExecutor(1, "forward")
        self._failing: dict[str, str] = {}
        self._reported_at: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None

    async def refresh(self, specs: Mapping[str, ProcessSpec]) -> None:
        """Takes over which files to forward. A file that is new here is read from its present end on.

        One whose file system does not answer is read from where it ends when it does.
        """
        wanted: dict[str, tuple[Origin, str, LogFile]] = {}
        for spec in specs.values():
            if spec.log_forward is not None:
                for stream, path in (("stdout", spec.stdout_logfile), ("stderr", spec.stderr_file)):
                    if path is not None and not path.startswith("/dev/"):
                        file = LogFile(path, *spec.log_bounds(path), spec.name)
                        wanted.setdefault(path, (Origin(spec.name, stream), spec.log_forward.value, file))
        for path in self._sources.keys() - wanted.keys():
            del self._sources[path]
            self._stored.pop(path, None)
        for path, (origin, kind, file) in wanted.items():
            known = self._sources.get(path)
            if known is None:
                self._sources[path] = _Source(path, origin, kind, file, None)
            else:
                known.origin, known.kind = origin, kind
        if new := [self._resume(source) for source in self._sources.values() if source.place is None]:
            self._is_save_due = True  # a kill -9 would move the beginnings
            await asyncio.gather(*new)
        self.opened(wanted)

    async def _resume(self, source: _Source) -> Position | None:
        """Finds the place of a source; `None` where its file system does not answer."""
        try:
            place = await self._logs.resume(source.file, self._stored.get(source.path))
        except OSError:
            return None
        if source.place is None:  # else it was found meanwhile
            source.place, name = place, source.origin.process
            if place.total is None:
                log.warning("%s: an unknown part of %s was rotated away before it was forwarded", name, source.path)
        return source.place

    async def _read(self, source: _Source) -> tuple[Position, bytes] | None:
        """The place of a source, and what was added to its file since; `None` where that cannot be read now."""
        place = source.place or await self._resume(source)
        try:
            found = None if place is None else (place, await self._logs.read_on(source.path, place))
        except OSError:
            found = None
        source.is_unread = found is None
        return found

    def opened(self, paths: Iterable[str]) -> None:
        """These files may have been created or written to."""
        self._due |= self._sources.keys() & set(paths)
        self._woken.set()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch(), name="log forwarding")

    async def close(self) -> None:
        """Forwards what the processes wrote at last, and stores the positions."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                for source in self._sources.values():
                    while await self._forward(source):
                        await asyncio.sleep(0)
                    if source.rest and not source.pending:
                        source.pending, source.rest = [source.rest], b""
                        await self._send(source)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._save()
        self._executor.shutdown(wait=False)
        for sink in self._sinks.values():
            sink.close()

    async def _watch(self) -> None:
        inotify = None
        try:
            inotify = open_inotify()
            asyncio.get_running_loop().add_reader(inotify, self._on_events, inotify)
        except OSError as error:
            log.warning("log files are read once a second, not as they grow: %s", error.strerror)
        saved_at = asyncio.get_running_loop().time()
        try:
            while True:
                await self._wait(has_inotify=inotify is not None)
                await self._round(inotify)
                if self._is_save_due or asyncio.get_running_loop().time() >= saved_at + _SAVE_SECONDS:
                    saved_at = asyncio.get_running_loop().time()
                    await self._save()
                await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            if inotify is not None:
                asyncio.get_running_loop().remove_reader(inotify)
                os.close(inotify)

    def _on_events(self, inotify: int) -> None:
        for descriptor in read_inotify(inotify):
            if (path := self._watches.pop(descriptor, None)) in self._sources:
                self._due.add(str(path))
        self._woken.set()

    async def _wait(self, has_inotify: bool) -> None:
        """Returns when a file is due, or after a while if something is left to do without a new write."""
        is_waiting = any(source.is_waiting for source in self._sources.values())
        if not self._due:
            is_unsaved = self._offsets() != self._saved
            timeout = _RETRY_SECONDS if is_waiting or not has_inotify else _SAVE_SECONDS if is_unsaved else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._woken.wait()
            if not has_inotify:
                self._due |= self._sources.keys()
        self._woken.clear()

    async def _round(self, inotify: int | None) -> None:
        due, self._due = self._due, set()
        due |= {path for path, source in self._sources.items() if source.is_waiting}
        unwatched = set[str]()
        if inotify is not None and due:
            answers = await self._logs.threads.run_each(due, lambda path: watch_files(inotify, [path]))
            for watched, _ in answers.values():  # before they are read: nothing is missed
                self._watches.update((descriptor, path) for path, descriptor, _ in watched)
            unwatched = due - answers.keys()
        for path in due:
            source = self._sources.get(path)
            try:
                if source is not None and await self._forward(source):
                    self._due.add(path)
                if source is not None and path in unwatched:
                    source.is_unread = True  # its next line may not be noticed
            except Exception:  # the other files go on, and so does this one with its next line
                log.exception("unexpected error while forwarding %s", path)

    async def _forward(self, source: _Source) -> bool:
        """Forwards a piece of a file; returns whether more may be there."""
        if source.pending and not await self._send(source):
            return False
        now = asyncio.get_running_loop().time()
        if (found := await self._read(source)) is None:
            return False
        place, added = found
        if place.lost:
            self.lost_bytes[source.origin.process] += place.lost
            place.lost = 0
            self._report_lost(source.origin.process)
        if not added:
            source.idle_since = source.idle_since or now
            if source.rest and now - source.idle_since >= _RETRY_SECONDS:  # a last line without its end
                source.pending, source.rest = [source.rest], b""
                await self._send(source)
            return False
        source.idle_since = None
        longest = self._sink(source.kind).max_line_bytes
        source.pending, source.rest = split_lines(source.rest + added, longest)
        return await self._send(source)

    def _sink(self, kind: str) -> Sink:
        if kind not in self._sinks:
            self._sinks[kind] = self._make_sink(kind)
        return self._sinks[kind]

    async def _send(self, source: _Source) -> bool:
        """Offers the pending lines; returns whether all were taken."""
        if not source.pending:
            return True
        sink, loop = self._sink(source.kind), asyncio.get_running_loop()
        try:
            done, lost = await loop.run_in_executor(self._executor, sink.send, source.origin, source.pending)
        except (OSError, UnicodeError) as error:  # the latter for a host name that cannot be one
            reason = getattr(error, "strerror", None) or str(error)
            if self._failing.get(source.kind) != reason:
                log.warning("%s accepts no lines: %s; they wait in their files", source.kind, reason)
            self._failing[source.kind] = reason
            return False
        if self._failing.pop(source.kind, None) is not None:
            log.info("%s accepts lines again", source.kind)
        source.pending = source.pending[done:]
        if lost:
            self.lost[source.origin.process] += lost
            self._report_lost(source.origin.process)
        return not source.pending

    def _report_lost(self, name: str) -> None:
        """Once a minute for each process."""
        now = asyncio.get_running_loop().time()
        if now - self._reported_at.get(name, -_REPORT_SECONDS) >= _REPORT_SECONDS:
            self._reported_at[name] = now
            lines, size = self.lost[name], self.lost_bytes[name]
            log.warning("%s: %d lines and %d bytes were lost before they were forwarded, so far", name, lines, size)

    def _offsets(self) -> dict[str, tuple[int, int]]:
        known = ((source, source.place) for source in self._sources.values() if source.place is not None)
        return {source.path: (source.offset, place.rotations) for source, place in known}

    async def _save(self) -> None:
        self._is_save_due = False
        offsets = self._offsets()
        if offsets != self._saved:
            for path, source in list(self._sources.items()):
                if source.place is not None:
                    with contextlib.suppress(OSError):  # it does not answer: its last position stays
                        mark = await self._logs.mark(path, source.place, source.offset)
                        if path in self._sources:
                            self._stored[path] = mark
            try:
                await asyncio.to_thread(_write_positions, self._positions, dict(self._stored))
                self._saved = offsets
            except OSError as error:
                log.warning("the positions in forwarded logs cannot be stored: %s", error.strerror)


def split_lines(text: bytes, longest: int) -> tuple[list[bytes], bytes]:
    """The whole lines, without their ends and in pieces of at most `longest` bytes, and the unfinished last line."""
    *lines, rest = text.split(b"\n")
    pieces = [line[at : at + longest] for line in lines for at in range(0, max(len(line), 1), longest)]
    whole = max(len(rest) - 1, 0) // longest * longest
    return pieces + [rest[at : at + longest] for at in range(0, whole, longest)], rest[whole:]


def _read_positions(file: Path) -> dict[str, tuple[int, int]]:
    try:
        stored = json.loads(file.read_text())
        return {str(path): (int(offset), int(inode)) for path, (offset, inode) in stored.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        log.warning("%s cannot be read: forwarding continues at the end of each log: %s", file, error)
        return {}


def _write_positions(file: Path, offsets: Mapping[str, tuple[int, int]]) -> None:
    new = file.with_name(f"{file.name}.new")
    new.write_text(json.dumps(offsets))
    new.replace(file)
