"""Processes: status, health and logs; start, stop and restart of one process and of all."""

from __future__ import annotations

import asyncio
import operator
import re
import time
from pathlib import Path
from typing import ClassVar
from weakref import WeakKeyDictionary

from attrs import evolve
from tornado.iostream import StreamClosedError

from handlers.base import Base
from handlers.http import serializers
from handlers.http.permissions import CONTROL_PROCESSES, READ, READ_LOGS
from handlers.http.serializers import ProcessStatusInfo, ResponseMessage
from handlers.openapi.describe import EVENT_STREAM, Endpoint, choice
from handlers.routing import Route, StreamPath
from handlers.supervision.selection import SELECT, selected_names
from handlers.supervision.streams import LOG_PARAMETERS, LogStream, StatusStream, log_file, requested_log
from models.errors import Failed
from models.supervision.process import ProcessSpec
from models.supervision.record import Record
from supervisor.processes import group_calls
from supervisor.processes.fleet import Fleet
from supervisor.processes.logs.files import LogFile, tail
from supervisor.processes.process.process import Process

_DOWNLOAD_PARAMETERS = tuple(
    evolve(choice(name, about, ["true", "false"], "false"), is_rest_only=True)
    for name, about in (
        ("download", "The whole file, as a download; `lines` is ignored"),
        ("backups", "With download=true: the rotated files before it"),
    )
)
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


class Processes(Base):
    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint(
            "List processes",
            list[ProcessStatusInfo],
            query=[SELECT],
            fails=[404],
            tool="process_list",
        )
    }

    async def get(self) -> None:
        if "select" in self.request.query_arguments:
            names = selected_names(self)
            await self.supervision.event_writer.stored_soon()
            self.reply([serializers.process_status(self.supervision.fleet.get(name)) for name in names])
            return
        listing: Listing = self.settings["listing"]
        await listing.ready()
        content = listing.encoded()
        await self.supervision.event_writer.stored_soon()
        self.send(content, "application/json")


class Info(Base):
    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint("Get one process", ProcessStatusInfo, path=["name"], fails=[404], tool="process_info")
    }

    async def get(self, name: str) -> None:
        status = serializers.process_status(self.supervision.fleet.get(name))
        await self.supervision.event_writer.stored_soon(name)
        self.reply(status)


class HealthCheckInfo(Base):
    """Returns the last health check of one process."""

    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint(
            "Get the last health check of one process",
            serializers.ProcessHealth,
            path=["name"],
            fails=[404],
            name="process_health",
        )
    }

    def get(self, name: str) -> None:
        process = self.supervision.fleet.get(name)
        self.reply(serializers.process_health(process, self.supervision.context.prober.report(name)))


class Operation(Base):
    permission = CONTROL_PROCESSES


def _one(verb: str, fails: list[int]) -> dict[str, Endpoint]:
    about, tool = f"{verb} one process", f"process_{verb.lower()}"
    return {"POST": Endpoint(about, ResponseMessage, path=["name"], fails=fails, tool=tool)}


def _all(verb: str, fails: list[int]) -> dict[str, Endpoint]:
    name = f"process_{verb.lower()}_all"
    return {"POST": Endpoint(f"{verb} all processes", ResponseMessage, fails=fails, name=name)}


class Start(Operation):
    endpoints: ClassVar = _one("Start", [400, 500])

    async def post(self, name: str) -> None:
        self.reply(ResponseMessage(await self.supervision.fleet.start(name)))


class Stop(Operation):
    endpoints: ClassVar = _one("Stop", [404, 500])

    async def post(self, name: str) -> None:
        self.reply(ResponseMessage(await self.supervision.fleet.stop(name)))


class Restart(Operation):
    endpoints: ClassVar = _one("Restart", [400, 404, 500])

    async def post(self, name: str) -> None:
        self.reply(ResponseMessage(await self.supervision.fleet.restart(name)))


class StartAll(Operation):
    endpoints: ClassVar = _all("Start", [409, 500])

    async def post(self) -> None:
        self.reply(ResponseMessage(await group_calls.start_all(self.supervision.fleet, self.supervision.scheduler)))


class StopAll(Operation):
    endpoints: ClassVar = _all("Stop", [404, 500])

    async def post(self) -> None:
        self.reply(ResponseMessage(await group_calls.stop_all(self.supervision.fleet, self.supervision.scheduler)))


class RestartAll(Operation):
    endpoints: ClassVar = _all("Restart", [500])

    async def post(self) -> None:
        self.reply(ResponseMessage(await group_calls.restart_all(self.supervision.fleet, self.supervision.scheduler)))


class Logs(Base):
    """The end of a log file as text, or the whole file. An `Accept` of an event stream is for `LogStream`."""

    permission = READ_LOGS
    endpoints: ClassVar = {
        "GET": Endpoint(
            "Get the end of a process's log",
            "text/plain",
            path=["name"],
            query=(*LOG_PARAMETERS, *_DOWNLOAD_PARAMETERS),
            fails=[400, 404, 500],
            tool="process_logs",
            also={EVENT_STREAM: str},
        )
    }

    async def get(self, name: str) -> None:
        path, lines = requested_log(self, name)
        is_download, with_backups = self.flag("download"), self.flag("backups")
        if is_download:
            await self._download(log_file(self.supervision, name, self.query().get("stream") or "stdout"), with_backups)
            return
        try:
            text = await asyncio.to_thread(lambda: tail(Path(path), lines)[0].decode("utf-8", "replace").encode())
        except OSError as error:
            raise Failed(f"{path} cannot be read: {error.strerror}") from None
        self.set_header("Vary", "Accept")
        self.send(text, "text/plain; charset=utf-8")

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


routes: list[Route] = [
    (r"/processes", Processes),
    (r"/processes/info/([^/]+)", Info),
    (r"/processes/health/([^/]+)", HealthCheckInfo),
    (r"/processes/start/([^/]+)", Start),
    (r"/processes/stop/([^/]+)", Stop),
    (r"/processes/restart/([^/]+)", Restart),
    (r"/processes/group/start", StartAll),
    (r"/processes/group/stop", StopAll),
    (r"/processes/group/restart", RestartAll),
    (r"/processes/stream", StatusStream),
    (r"/processes/logs/([^/]+)", LogStream, StreamPath),
    (r"/processes/logs/([^/]+)", Logs),
]
