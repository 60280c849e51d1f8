"""Processes: status, health and logs; start, stop and restart of one process and of all."""

from __future__ import annotations

import asyncio
import operator
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import ClassVar
from weakref import WeakKeyDictionary

from tornado.iostream import StreamClosedError

from handlers.base import Base
from handlers.http import serializers
from handlers.http.permissions import CONTROL_PROCESSES, READ, READ_LOGS
from handlers.http.serializers import ProcessHealth, ProcessStatusInfo, ResponseMessage
from handlers.operations import EVENT_STREAM, NoInputs, Operation, operation_routes, read_request
from handlers.routing import Route, StreamPath
from handlers.supervision.selection import NamedProcess, Selection, selected_names
from handlers.supervision.streams import LogRequest, LogStream, StatusStream, cut_of, log_file
from models.errors import Failed, NotFound
from models.inputs import FLAG, choice, query
from models.json_format import http_message
from models.supervision.process import ProcessSpec
from models.supervision.record import Record
from supervisor.processes import group_calls
from supervisor.processes.fleet import Fleet
from supervisor.processes.logs.files import LogFile, tail
from supervisor.processes.process.process import Process

_MAX_FILE_NAME = 100
_CACHE_SECONDS = 0.01
_PROCESSES_PER_SLICE = 25
_PLACEHOLDERS = "\x00runtime", "\x00uptime"


class Listing:
    """All processes as JSON. Only changed processes are encoded again.

    While no process changes, requests within ten milliseconds get the same bytes, so only uptimes may be that old.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._parts: WeakKeyDictionary[Process, tuple[ProcessSpec, Record, tuple[str, ...]]] = WeakKeyDictionary()
        self._last: tuple[float, list[Record], list[ProcessSpec], bytes] = (0.0, [], [], b"")

    async def ready(self) -> None:
        """Encodes changed processes in slices, so that other requests do not wait while hundreds are encoded."""
        records, before = [process.record for process in self._fleet], self._last[1]
        if len(records) == len(before) and sum(map(operator.is_not, records, before)) < _PROCESSES_PER_SLICE:
            return
        for number, process in enumerate(list(self._fleet), 1):
            self._json(process)
            if number % _PROCESSES_PER_SLICE == 0:
                await asyncio.sleep(0)

    def encoded(self) -> bytes:
        now, records = time.monotonic(), [process.record for process in self._fleet]
        specs = [process.spec for process in self._fleet]
        at, before, others, text = self._last
        if now - at > _CACHE_SECONDS or records != before or specs != others:
            text = f"[{','.join(map(self._json, self._fleet))}]".encode("utf-8", "replace")
            self._last = (now, records, specs, text)
        return text

    def _json(self, process: Process) -> str:
        kept = self._parts.get(process)
        if kept is None or kept[0] is not process.spec or kept[1] is not process.record:
            kept = self._parts[process] = (process.spec, process.record, _parts(process))
        parts = kept[2]
        if len(parts) == 1:
            return parts[0]
        lived = process.uptime()
        return f"{parts[0]}{serializers.length(lived)}{parts[1]}{serializers.duration_text(lived)}{parts[2]}"


def _parts(process: Process) -> tuple[str, ...]:
    """Returns the JSON of a process: whole, or for a live process the three parts around its two durations."""
    fields = serializers.plain(serializers.process_status(process))
    if not process.live:
        return (serializers.text(fields),)
    first, second = (serializers.text(placeholder)[1:-1] for placeholder in _PLACEHOLDERS)
    text = serializers.text(fields | {"processRuntime": _PLACEHOLDERS[0], "processUptime": _PLACEHOLDERS[1]})
    head, _, rest = text.partition(first)
    return head, *rest.split(second)


async def list_processes(handler: Base, request: Selection) -> Sequence[ProcessStatusInfo] | bytes:
    fleet, event_writer = handler.supervision.fleet, handler.supervision.event_writer
    if request.select is not None:
        names = selected_names(handler, request.select)
        await event_writer.stored_soon()
        return [serializers.process_status(fleet.get(name)) for name in names]
    listing: Listing = handler.settings["listing"]
    await listing.ready()
    content = listing.encoded()
    await event_writer.stored_soon()
    return content


async def process_info(handler: Base, request: NamedProcess) -> ProcessStatusInfo:
    status = serializers.process_status(handler.supervision.fleet.get(request.name))
    await handler.supervision.event_writer.stored_soon(request.name)
    return status


def process_health(handler: Base, request: NamedProcess) -> ProcessHealth:
    """The last health check of one process."""
    process = handler.supervision.fleet.get(request.name)
    return serializers.process_health(process, handler.supervision.context.prober.report(request.name))


async def start(handler: Base, request: NamedProcess) -> ResponseMessage:
    return ResponseMessage(await handler.supervision.fleet.start(request.name))


async def stop(handler: Base, request: NamedProcess) -> ResponseMessage:
    return ResponseMessage(await handler.supervision.fleet.stop(request.name))


async def restart(handler: Base, request: NamedProcess) -> ResponseMessage:
    return ResponseMessage(await handler.supervision.fleet.restart(request.name))


async def start_all(handler: Base, _: NoInputs) -> ResponseMessage:
    return ResponseMessage(await group_calls.start_all(handler.supervision.fleet, handler.supervision.scheduler))


async def stop_all(handler: Base, _: NoInputs) -> ResponseMessage:
    return ResponseMessage(await group_calls.stop_all(handler.supervision.fleet, handler.supervision.scheduler))


async def restart_all(handler: Base, _: NoInputs) -> ResponseMessage:
    return ResponseMessage(await group_calls.restart_all(handler.supervision.fleet, handler.supervision.scheduler))


@http_message
class LogDownload(LogRequest):
    stream: str = query(
        "The output stream; both: each with a mark, that written last at the end", "stdout",
        kind=choice("stdout", "stderr", "both"),
    )  # fmt: skip
    download: bool = query("The whole file, as a download; `lines` is ignored", False, kind=FLAG, is_rest_only=True)
    backups: bool = query("With download=true: the rotated files before it", False, kind=FLAG, is_rest_only=True)


class LogHandler(Base):
    """The end of a log file as text, or the whole file. An `Accept` of an event stream is for `LogStream`."""

    permission = READ_LOGS
    operations: ClassVar = {
        "GET": Operation(
            "process_logs", "GET", "/processes/logs/{name}", "Get the end of a process's log", LogDownload, None,
            "text/plain", error_statuses=(400, 404, 500), also={EVENT_STREAM: str}, permission=READ_LOGS,
        )
    }  # fmt: skip

    async def get(self, name: str) -> None:
        request = read_request(self, self.operations["GET"], [name])
        if request.stream == "both" and not request.download:
            self.set_header("Vary", "Accept")
            self.send(await self._both(request), "text/plain; charset=utf-8")
            return
        file = log_file(self.supervision, name, request.stream)
        if request.download:
            await self._download(file, request.backups)
            return
        cut = await cut_of(self.supervision, file.path, request.since)
        try:
            text = await self.supervision.logs.threads.run(
                file.path, lambda: cut(*tail(Path(file.path), request.lines)).decode("utf-8", "replace").encode()
            )
        except OSError as error:
            raise Failed(f"{file.path} cannot be read: {error.strerror}") from None
        self.set_header("Vary", "Accept")
        self.send(text, "text/plain; charset=utf-8")

    async def _both(self, request: LogDownload) -> bytes:
        """The ends of both logs, each below a mark, that written last at the end. An empty log says so.

        A stream without a file of its own is left out. Raises `NotFound` if neither has one, `Failed`.
        """
        paths = dict[str, str]()
        for stream in ("stderr", "stdout"):
            try:
                paths[log_file(self.supervision, request.name, stream).path] = stream  # both may have one file
            except NotFound:
                if stream == "stdout" and not paths:
                    raise
        ends = [(path, stream, await cut_of(self.supervision, path, request.since)) for path, stream in paths.items()]
        empty = "is empty" if request.since is None else "has nothing since then"
        parts = list[tuple[float, str]]()
        for path, stream, cut in ends:
            read = partial(_marked_end, path, stream, cut, request.lines, empty)
            try:
                parts.append(await self.supervision.logs.threads.run(path, read))
            except OSError as error:
                raise Failed(f"{path} cannot be read: {error.strerror}") from None
        return "".join(text for _, text in sorted(parts, key=itemgetter(0))).encode()

    async def _download(self, file: LogFile, with_backups: bool) -> None:
        """Sends the file as fast as the client reads; only pieces of it are in memory."""
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        name = re.sub(r"[^A-Za-z0-9._-]", "_", Path(file.path).name)[-_MAX_FILE_NAME:]
        self.set_header("Content-Disposition", f'attachment; filename="{name}"')
        self.set_header("Vary", "Accept")
        if self.request.method == "HEAD":
            await self.flush()  # `finish` would add a Content-Length of 0
            return
        try:
            async for piece in self.supervision.logs.content(file, with_backups):
                self.write(piece)
                await self.flush()
        except OSError as error:
            raise Failed(f"{file.path} cannot be read: {error.strerror}") from None
        except StreamClosedError:
            pass  # the client has left


def _marked_end(
    path: str, stream: str, cut: Callable[[bytes, int], bytes], lines: int, empty: str
) -> tuple[float, str]:
    """The end of a log, after its cut and below its mark, and when it was written. Raises `OSError`."""
    text = cut(*tail(Path(path), lines)).decode("utf-8", "replace")
    return Path(path).stat().st_mtime if text else 0.0, _marked(stream, text, empty)


def _marked(stream: str, text: str, empty: str) -> str:
    """The end of a log below its mark."""
    if not text:
        return f"==> {stream} {empty} <==\n"
    return f"==> {stream} <==\n{text}" + ("" if text.endswith("\n") else "\n")


_control = partial(Operation, response_type=ResponseMessage, permission=CONTROL_PROCESSES)
OPERATIONS = [
    Operation(
        "process_list", "GET", "/processes", "List processes", Selection, list_processes, list[ProcessStatusInfo],
        error_statuses=[404], permission=READ,
    ),
    Operation(
        "process_info", "GET", "/processes/info/{name}", "Get one process", NamedProcess, process_info,
        ProcessStatusInfo, error_statuses=[404], permission=READ,
    ),
    Operation(
        None, "GET", "/processes/health/{name}", "Get the last health check of one process", NamedProcess,
        process_health, ProcessHealth, error_statuses=[404], name="process_health", permission=READ,
    ),
    _control(
        "process_start", "POST", "/processes/start/{name}", "Start one process", NamedProcess, start,
        error_statuses=[400, 409, 500],
    ),
    _control(
        "process_stop", "POST", "/processes/stop/{name}", "Stop one process", NamedProcess, stop,
        error_statuses=[404, 500],
    ),
    _control(
        "process_restart", "POST", "/processes/restart/{name}", "Restart one process", NamedProcess, restart,
        error_statuses=[400, 404, 409, 500],
    ),
    _control(
        None, "POST", "/processes/group/start", "Start all processes", NoInputs, start_all,
        error_statuses=[409, 500], name="process_start_all",
    ),
    _control(
        None, "POST", "/processes/group/stop", "Stop all processes", NoInputs, stop_all,
        error_statuses=[404, 500], name="process_stop_all",
    ),
    _control(
        None, "POST", "/processes/group/restart", "Restart all processes", NoInputs, restart_all,
        error_statuses=[500], name="process_restart_all",
    ),
]  # fmt: skip

routes: list[Route] = [
    *operation_routes(OPERATIONS),
    (r"/processes/stream", StatusStream),
    (r"/processes/logs/([^/]+)", LogStream, StreamPath),
    (r"/processes/logs/([^/]+)", LogHandler),
]
