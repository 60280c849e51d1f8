"""One handler for all operations of the chart service: reads what one asks for, does it, sends what it answers."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tornado.iostream import StreamClosedError
from tornado.web import stream_request_body

from handlers.base import Base
from handlers.charts.operations import TEXT, Operation, Warned
from handlers.http.multipart import Parts
from handlers.http.permissions import CHANGE_CHARTS, READ_CHARTS, Permission, check_charts_open
from handlers.routing import Route, accepts
from models.charts.parameters import json_object, read
from models.charts.responses import Download
from models.config.settings import Config
from models.errors import Failed, Invalid, Problem, TooLarge, Unsupported
from supervisor.charts.service import Work

_MIB = 1024 * 1024
_UPLOAD = 101 * _MIB
_CHUNK = 256 * 1024
_LEFT = 499


@stream_request_body
class ChartHandler(Base):
    """Answers the operations of one path.

    What is wrong with the head is kept until the body comes or is over: an answer that comes earlier than that is not
    seen by a client that is still sending (`BodyLimit` drops the rest).
    """

    permission = READ_CHARTS
    takes_forms = True
    operations: ClassVar[Mapping[str, tuple[Operation, Mapping[str, str]]]]
    """By method; with those variables of the path that this path has fixed."""
    names: ClassVar[Sequence[str]]
    work: Work | None = None
    task: asyncio.Task[Any] | None = None
    """While the operation is at work."""
    is_asked = False
    """Whether the operation was begun."""
    parts: Parts | None = None

    @classmethod
    def permission_of(cls, method: str) -> Permission:
        return CHANGE_CHARTS if cls._is_mutating(method) else READ_CHARTS

    @classmethod
    def check_open(cls, method: str, config: Config) -> None:
        if cls._is_mutating(method):
            check_charts_open(config)

    @classmethod
    def _is_mutating(cls, method: str) -> bool:
        found = cls.operations.get(method)
        return found is not None and found[0].mutating

    # The body, as it comes

    def prepare(self) -> None:
        self.fault: Problem | None = None
        self.content = bytearray()
        method = "GET" if self.request.method == "HEAD" else self.request.method
        if method not in self.operations:
            return
        self.operation, self.fixed = self.operations[method]
        try:
            self.work = self.services.charts.work(self.request)
            self.operation.check_there(self.work)
            self._expect_body()
        except Problem as problem:
            self.fault = problem
        except OSError as error:
            self.fault = Failed(f"the request could not be kept: {error.strerror}")

    def _expect_body(self) -> None:
        kind = self.request.headers.get("Content-Type", "")
        if self.operation.is_multipart:
            assert self.work is not None
            files = {one.wire for one in self.operation.inputs if one.source == "file"}
            self.parts = Parts(kind, files.__contains__, self.work.folder)
        elif self.operation.takes_body and kind.lower().startswith("multipart/"):
            raise Unsupported("the body must be JSON")

    @property
    def held_bytes(self) -> int:
        return len(self.content) + (self.parts.kept_bytes if self.parts is not None else 0)

    def data_received(self, chunk: bytes) -> None:
        """Takes the next bytes of the body. Raises `Problem`, upon which the rest of it is dropped."""
        if self.fault is not None:
            raise self.fault
        if self.parts is None and len(self.content) + len(chunk) > _MIB:
            raise TooLarge(f"the body is larger than {_MIB} bytes")
        try:
            self._take(chunk)
        except OSError as error:
            raise Failed(f"the request could not be kept: {error.strerror}") from None

    def _take(self, chunk: bytes) -> None:
        if self.parts is not None:
            self.parts.feed(chunk)
        else:
            self.content += chunk

    def on_connection_close(self) -> None:
        """The client has left: what it asked for ends, unless it is a change that has begun."""
        super().on_connection_close()
        if self.task is not None and self.work is not None and not self.work.begun:
            self.task.cancel()
        elif not self.is_asked and self.work is not None:
            if self.parts is not None:
                self.parts.close()
            self.work.drop()

    # The operation

    async def _answer(self, *arguments: str) -> None:
        if self.work is None:
            raise self.fault or Failed("the request was not understood")
        async with self.work:
            if self.fault is not None:
                raise self.fault
            ask = self._ask(dict(zip(self.names, arguments, strict=True)) | dict(self.fixed))
            self.task = asyncio.create_task(self.operation.call(self.work, ask), name=self.operation.path)
            self.is_asked = True
            try:
                value = await self.task
            except asyncio.CancelledError:
                self.set_status(_LEFT, "Client Closed Request")
                return
            finally:
                self.task = None  # what it came to may be large, and a handler waits for the garbage collector
            await self._send(value)

    def _ask(self, path: dict[str, str]) -> Any:
        if self.parts is None:
            body = json_object(bytes(self.content)) if self.operation.takes_body else {}
            return read(self.operation.asks, path, self.query(), body)
        self.parts.end()
        request = self.parts.last("request")
        body = json_object(request.content, "request") if request is not None else {}
        wanted = {one.wire for one in self.operation.inputs if one.source == "form"}
        form, files = {}, {}
        for part in self.parts.all:
            if part.file is not None:
                files[part.name] = part.file
            elif part.name in wanted:
                form[part.name] = _text(part.name, part.content)
        return read(self.operation.asks, path, self.query(), body, form, files)

    async def _send(self, value: Any) -> None:
        self.set_status(self.operation.status)
        if isinstance(value, Warned):
            for line in value.warnings:
                self.add_header("Warning", f'199 - "{_quotable(line)}"')
            value = value.value
        answers = self.operation.answers
        if answers is None:
            self.clear_header("Content-Type")
        elif isinstance(value, Download):
            await self._send_file(value)
        elif answers == TEXT:
            self.set_header("Vary", "Accept")
            self.send(_bytes(value), "application/yaml" if accepts(self.request, "application/yaml") else TEXT)
        elif isinstance(answers, str):
            self.send(_bytes(value), answers)
        elif isinstance(value, bytes):
            self.send(value, "application/json")
        else:
            self.reply(value)

    async def _send_file(self, download: Download) -> None:
        name = re.sub(r"[^A-Za-z0-9._+-]", "_", download.name)
        self.set_header("Content-Type", str(self.operation.answers))
        self.set_header("Content-Disposition", f'attachment; filename="{name}"')
        file = await asyncio.to_thread(download.file.open, "rb")
        with file:
            self.set_header("Content-Length", str(download.file.stat().st_size))
            with contextlib.suppress(StreamClosedError):  # the client has left
                while chunk := await asyncio.to_thread(file.read, _CHUNK):
                    self.write(chunk)
                    await self.flush()


def routes(operations: Sequence[Operation]) -> list[Route]:
    """A route for each path; one without variables comes before one that would match it as well.

    `/releases/upload` takes POST for uploads; other methods there mean a release of that name.
    """
    paths = sorted({one.path for one in operations}, key=lambda path: ("{" in path, path))
    return [(_pattern(path), _handler(path, operations)) for path in paths]


def _handler(path: str, operations: Sequence[Operation]) -> type[ChartHandler]:
    found: dict[str, tuple[Operation, Mapping[str, str]]] = {}
    for one in sorted(operations, key=lambda one: one.path != path):
        match = re.fullmatch(_pattern(one.path), path) if one.path != path and "{" not in path else None
        if one.path == path or match:
            fixed = dict(zip(_names(one.path), match.groups(), strict=True)) if match else {}
            found.setdefault(one.method, (one, fixed))
    uploads = any(one.is_multipart for one, _ in found.values())
    body: dict[str, Any] = {method.lower(): ChartHandler._answer for method in found}
    body |= {"operations": found, "names": _names(path), "max_body": _UPLOAD if uploads else _MIB}
    return stream_request_body(type(f"Chart{path.title().translate(_NO_SIGNS)}", (ChartHandler,), body))


_NO_SIGNS = str.maketrans("", "", "/{}-")


def _names(path: str) -> list[str]:
    return re.findall(r"\{(\w+)\}", path)


def _pattern(path: str) -> str:
    return re.sub(r"\{\w+\}", "([^/]+)", path)


def _text(name: str, content: bytes) -> str:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise Invalid(f"{name}: is not UTF-8") from None
    if "\0" in text:
        raise Invalid(f"{name}: must not contain a NUL")
    return text


def _bytes(value: str | bytes) -> bytes:
    return value.encode("utf-8", "replace") if isinstance(value, str) else value


def _quotable(line: str) -> str:
    """What a quoted string of a header may hold."""
    return re.sub(r"[^ !#-\[\]-~]", "_", line)
