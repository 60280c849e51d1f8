"""Processes: what they are, and start, stop, restart, of one and of all."""

from __future__ import annotations

import asyncio
from pathlib import Path

from handlers import wire
from handlers.base import Base
from handlers.gates import log_readers, operators, readers
from handlers.live import follow_log
from handlers.routing import Route, accepts
from handlers.wire import ResponseMessage
from models.errors import Invalid, NotFound
from models.paging import whole
from models.processes import ProcessSpec
from models.supervised import Record
from supervisor.logs import tail
from supervisor.process import Process
from supervisor.services import Services

_HOLES = "\x00runtime", "\x00uptime"


class Listing:
    """All processes as JSON, at the cost of what changes from one moment to the next: how long each has run."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._kept: dict[str, tuple[ProcessSpec, Record, tuple[str, ...]]] = {}

    def encoded(self) -> bytes:
        return f"[{','.join(map(self._one, self._services.fleet))}]".encode("utf-8", "replace")

    def _one(self, process: Process) -> str:
        kept = self._kept.get(process.name)
        if kept is None or kept[0] is not process.spec or kept[1] is not process.record:
            kept = self._kept[process.name] = (process.spec, process.record, _parts(process))
        parts = kept[2]
        if len(parts) == 1:
            return parts[0]
        lived = process.uptime()
        return f"{parts[0]}{wire.length(lived)}{parts[1]}{wire.spoken(lived)}{parts[2]}"


def _parts(process: Process) -> tuple[str, ...]:
    """The JSON of a process: whole, or while it runs in three parts, between which its two durations go."""
    shape = wire.plain(wire.process_status(process))
    if not process.live:
        return (wire.text(shape),)
    first, second = (wire.text(hole)[1:-1] for hole in _HOLES)
    text = wire.text(shape | {"processRuntime": _HOLES[0], "processUptime": _HOLES[1]})
    head, _, rest = text.partition(first)
    return head, *rest.split(second)


class Processes(Base):
    gate = staticmethod(readers)

    def get(self) -> None:
        self.send(self.application.listing.encoded(), "application/json")  # type: ignore[attr-defined]


class Info(Base):
    gate = staticmethod(readers)

    def get(self, name: str) -> None:
        self.reply(wire.process_status(self.services.fleet.get(name)))


class Operation(Base):
    gate = staticmethod(operators)


class Start(Operation):
    async def post(self, name: str) -> None:
        self.reply(ResponseMessage(await self.services.fleet.start(name)))


class Stop(Operation):
    async def post(self, name: str) -> None:
        self.reply(ResponseMessage(await self.services.fleet.stop(name)))


class Restart(Operation):
    async def post(self, name: str) -> None:
        self.reply(ResponseMessage(await self.services.fleet.restart(name)))


class StartAll(Operation):
    async def post(self) -> None:
        self.reply(ResponseMessage(await self.services.fleet.start_all()))


class StopAll(Operation):
    async def post(self) -> None:
        self.reply(ResponseMessage(await self.services.fleet.stop_all()))


class RestartAll(Operation):
    async def post(self) -> None:
        self.reply(ResponseMessage(await self.services.fleet.restart_all()))


class Logs(Base):
    """The end of a log file; to a client that asks for an event stream, what is added to it too."""

    gate = staticmethod(log_readers)

    async def get(self, name: str) -> None:
        query = self.query()
        lines = whole("lines", query.get("lines") or "200", 1, 10_000)
        path = self._path(name, query.get("stream") or "stdout")
        if accepts(self.request, "text/event-stream"):
            await follow_log(self, path, lines)
        else:
            text, _ = await asyncio.to_thread(tail, Path(path), lines)
            self.send(text.decode("utf-8", "replace").encode(), "text/plain; charset=utf-8")

    def _path(self, name: str, stream: str) -> str:
        spec = self.services.fleet.get(name).spec
        if stream not in ("stdout", "stderr"):
            raise Invalid("stream must be stdout or stderr")
        path = spec.stdout_logfile if stream == "stdout" else spec.stderr_file
        if path is None:
            raise NotFound(f"{name} has no file of its own for {stream}")
        return path


routes: list[Route] = [
    (r"/processes", Processes),
    (r"/processes/info/([^/]+)", Info),
    (r"/processes/start/([^/]+)", Start),
    (r"/processes/stop/([^/]+)", Stop),
    (r"/processes/restart/([^/]+)", Restart),
    (r"/processes/group/start", StartAll),
    (r"/processes/group/stop", StopAll),
    (r"/processes/group/restart", RestartAll),
    (r"/processes/logs/([^/]+)", Logs),
]
