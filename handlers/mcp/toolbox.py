"""Who sees which tools, and the calling of them: charts are done here, the other services are asked as REST is.

So a tool meets the same gates, and fails with the same words.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from attrs import frozen

from handlers.charts.operations import Operation
from handlers.http.credentials import Caller
from handlers.http.permissions import admit, check_changes_open
from handlers.mcp import results
from handlers.mcp.derived_tools import Forwarded, Tool
from handlers.mcp.results import Result
from models.charts.parameters import check_text, read_arguments
from models.config.settings import Config
from models.errors import Denied, Failed, Invalid, NotFound, Problem, TooLarge
from supervisor.charts.service import Charts, Work

log = logging.getLogger("tools")

_MOST = 1024 * 1024
_FAILED = "something went wrong; the log knows more"


class Ask(Protocol):
    """Asks one of our handlers, as the caller; returns status, media type and body. Raises `Unavailable`."""

    def __call__(self, method: str, path: str, body: bytes) -> Awaitable[tuple[int, str, bytes]]: ...


@frozen
class Asker:
    """Who calls, and by which way the other services are asked for it."""

    caller: Caller | None
    """`None`: nobody here knows; who is asked will say."""
    ask: Ask
    when_left: Callable[[Callable[[], object]], object] = lambda _: None
    """Tells of the moment in which the client gives the answer up."""


class Toolbox:
    def __init__(self, config: Callable[[], Config], tools: Sequence[Tool], charts: Callable[[], Charts]) -> None:
        self._config = config
        self._tools = {tool.name: tool for tool in tools}
        self._charts = charts
        self._running: set[asyncio.Task[Result]] = set()

    def listed(self, caller: Caller | None) -> list[Tool]:
        """The tools that are there, less those that this caller may not call."""
        return [tool for tool in self._tools.values() if self._why_not(tool) is None and self._may(tool, caller)]

    def find(self, name: str) -> Tool:
        """Raises `NotFound`: a tool that changes something is there only where changes are open."""
        tool = self._tools.get(name)
        why = self._why_not(tool) if tool is not None else None
        if tool is None or why is not None:
            raise NotFound(f"there is no tool {name[:100]}" + (f": {why}" if why is not None else ""))
        return tool

    def schema(self, name: str) -> Mapping[str, Any] | None:
        """Of a tool's arguments."""
        tool = self._tools.get(name)
        return tool.schema if tool is not None else None

    def _why_not(self, tool: Tool) -> str | None:
        try:
            if tool.is_mutating:
                check_changes_open(self._config())
        except Denied as problem:
            return problem.message
        return None

    def _may(self, tool: Tool, caller: Caller | None) -> bool:
        """Charts are for whoever was let in to the tools."""
        try:
            if isinstance(tool.does, Forwarded) and caller is not None:
                admit(caller, tool.does.permission, self._config())
        except Problem:
            return False
        return True

    async def settled(self) -> None:
        """Returns when the changes that have begun are over."""
        if self._running:
            await asyncio.wait(self._running)

    async def call(self, tool: Tool, arguments: Mapping[str, Any], asker: Asker) -> Result:
        """Calls a tool. A change that has begun is let finish, though the client has left."""
        if isinstance(tool.does, Forwarded):
            return await _told(tool, _forward(tool.does, arguments, asker.ask))
        work = self._charts().work()
        task = asyncio.create_task(_told(tool, _operate(tool.does, work, arguments)), name=tool.name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

        def leave() -> None:
            if not work.begun:
                task.cancel()

        asker.when_left(leave)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            leave()
            raise
        return results.failed("the client has left") if task.cancelled() else task.result()


async def _told(tool: Tool, work: Awaitable[Result]) -> Result:
    """What it gives, or why it failed, in the words of REST."""
    try:
        return await work
    except Problem as problem:
        return results.failed(problem.message)
    except Exception:
        log.exception("the tool %s failed", tool.name)
        return results.failed(_FAILED)


async def _operate(operation: Operation, work: Work, arguments: Mapping[str, Any]) -> Result:
    async with work:
        operation.check_there(work)
        try:
            given = await asyncio.to_thread(_with_files, operation, work, arguments)
        except OSError as error:
            raise Failed(f"the request could not be kept: {error.strerror}") from None
        ask = read_arguments(operation.asks, given)
        return await results.of_value(operation, await operation.call(work, ask))


def _with_files(operation: Operation, work: Work, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments, with files in place of what was sent as base64. Raises `Invalid`, `TooLarge`, `OSError`."""
    given = dict(arguments)
    sent = {one: given.pop(one.wire) for one in operation.inputs if one.source == "file" and one.wire in given}
    _check(given)
    for one, value in sent.items():
        if value is not None:
            file = work.subfolder("given") / one.name
            file.write_bytes(_decoded(one.wire, value))
            given[one.wire] = file
    return given


def _check(arguments: Mapping[str, Any]) -> None:
    """What a body of REST may not be, arguments may not be. Raises `Invalid`, `TooLarge`."""
    try:
        size = len(json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode("utf-8", "replace"))
    except RecursionError:
        raise Invalid("the body is nested too deeply") from None
    except ValueError:
        raise Invalid("the body has a number that is none, or that cannot be held") from None
    if size > _MOST:
        raise TooLarge(f"the body is larger than {_MOST} bytes")


def _decoded(name: str, value: Any) -> bytes:
    try:
        if isinstance(value, str):
            return base64.b64decode("".join(value.split()), validate=True)
    except (binascii.Error, ValueError):
        pass
    raise Invalid(f"{name}: must be a file as base64")


async def _forward(does: Forwarded, arguments: Mapping[str, Any], ask: Ask) -> Result:
    await asyncio.to_thread(_check, arguments)
    check_text(arguments)
    given = {name: value for name, value in arguments.items() if value is not None}
    missing = [name for name in does.variables if not _plain(given.get(name, "")).strip()]
    if missing:
        raise Invalid("; ".join(f"{name} is required" for name in missing))
    path = does.path
    for name in does.variables:
        path = path.replace(f"{{{name}}}", quote(_plain(given[name]), safe=""))
    query = {name: _plain(given[name]) for name in does.query if name in given}
    body = {name: given[name] for name in does.body if name in given}
    uri = f"{path}?{urlencode(query)}" if query else path
    return results.of_answer(*await ask(does.method, uri, json.dumps(body).encode() if does.body else b""))


def _plain(value: Any) -> str:
    """A value as a path or a query has it."""
    return value if isinstance(value, str) else json.dumps(value)
