"""The request handler of all chart operations: reads the request, runs the operation, sends the result."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tornado.iostream import StreamClosedError
from tornado.web import stream_request_body

from handlers.base import Base
from handlers.charts import charts, packaging, registries, release_details, releases, repository_search
from handlers.charts.operations import JSON, TEXT, ChartOperation, ClientLeft, Warned, helm_caller, run
from handlers.http.multipart import Parts
from handlers.http.permissions import (
    CHANGE_CHARTS,
    READ_CHARTS,
    READ_CLUSTER,
    Permission,
    admit,
    check_charts_open,
    check_cluster_reads,
)
from handlers.operations import names_of, pattern_of
from handlers.routing import Route, accepts
from models.charts.helm_args import EncodedValues, read_body
from models.charts.responses import Download
from models.config.settings import Config
from models.errors import Failed, Invalid, Problem, TooLarge, Unsupported
from models.inputs import REQUEST_PART, check_names, check_parts, read
from models.json_format import SMALL_BODY_BYTES, json_object
from supervisor.charts.service import Work

OPERATIONS: list[ChartOperation] = [
    *releases.CHANGES,
    *releases.READS,
    *release_details.DETAILS,
    *charts.RENDERING,
    *charts.PACKAGES,
    *charts.REPOSITORIES,
    *repository_search.SEARCH,
    *charts.HUB,
    *charts.DEPENDENCIES,
    *packaging.PACKAGING,
    *registries.REGISTRIES,
]


MAX_JSON_BYTES = 1024**2
_MAX_UPLOAD_BYTES = 101 * MAX_JSON_BYTES
_SEND_BYTES = 256 * 1024
_MAX_INLINE_BYTES = 32 * 1024
_CLIENT_CLOSED_REQUEST = 499


@stream_request_body
class ChartHandler(Base):
    """Handles the operations of one path.

    A fault in the head is kept until the body has been received: a client that is still sending would not see an
    earlier response (`BodyLimit` drops the rest).
    """

    permission = READ_CHARTS
    takes_forms = True
    operations: ClassVar[Mapping[str, ChartOperation]]
    """By method."""
    fixed: ClassVar[Mapping[str, Mapping[str, str]]]
    """By method, the variables that this path fixes."""
    names: ClassVar[Sequence[str]]
    work: Work | None = None
    parts: Parts | None = None
    max_json = MAX_JSON_BYTES
    is_complete = False
    """Whether the whole request has been received."""

    @classmethod
    def permission_of(cls, method: str) -> Permission:
        if cls._is_mutating(method):
            return CHANGE_CHARTS
        return READ_CLUSTER if cls._is_cluster_read(method) else READ_CHARTS

    @classmethod
    def check_open(cls, method: str, config: Config) -> None:
        if cls._is_mutating(method):
            check_charts_open(config)
        if cls._is_cluster_read(method):
            check_cluster_reads(config)

    @classmethod
    def body_limit(cls, config: Config, method: str) -> int:
        found = cls.operations.get(method)
        if found is not None and found.is_multipart and not found.takes_json:
            return _MAX_UPLOAD_BYTES
        return MAX_JSON_BYTES if found is not None and (found.has_values or found.is_multipart) else SMALL_BODY_BYTES

    @classmethod
    def _is_mutating(cls, method: str) -> bool:
        found = cls.operations.get(method)
        return found is not None and found.mutating

    @classmethod
    def _is_cluster_read(cls, method: str) -> bool:
        found = cls.operations.get("GET" if method == "HEAD" else method)
        return found is not None and found.is_cluster_read

    def _check_change(self) -> None:
        """Checks the permission to change charts. Raises `Denied`, `Unauthenticated`."""
        check_charts_open(self.config)
        admit(self.caller, CHANGE_CHARTS, self.config)

    # The body

    def prepare(self) -> None:
        self.fault: Problem | None = None
        self.content = bytearray()
        method = "GET" if self.request.method == "HEAD" else self.request.method
        if method not in self.operations:
            return
        self.operation, self.fixed_here = self.operations[method], self.fixed[method]
        if accepts(self.request, JSON):
            self.operation = self.operation.as_json()
        elif accepts(self.request, "text/plain"):
            self.operation = self.operation.as_text()
        try:
            self.work = self.charts.work(self.request)
            self.work.caller = helm_caller(self.caller)
            self.work.has_key = self.caller.has_chart_key
            self.work.check_change = self._check_change
            self.operation.check_cluster(self.work)
            self._expect_body()
        except Problem as problem:
            self.fault = problem
        except OSError as error:
            self.fault = Failed(f"the request could not be stored: {error.strerror}")

    def _expect_body(self) -> None:
        content_type = self.request.headers.get("Content-Type", "")
        is_multipart = content_type.lower().startswith("multipart/")
        if self.operation.is_multipart and (is_multipart or not self.operation.takes_json):
            assert self.work is not None
            files = {declared.json_name for declared in self.operation.inputs if declared.source == "file"}
            self.parts = Parts(content_type, files.__contains__, self.work.folder)
        elif self.operation.takes_body and is_multipart:
            raise Unsupported("the body must be JSON")
        elif self.operation.is_multipart:
            self.max_json = SMALL_BODY_BYTES

    @property
    def held_bytes(self) -> int:
        return len(self.content) + (self.parts.kept_bytes if self.parts is not None else 0)

    def data_received(self, chunk: bytes) -> None:
        """Receives the next bytes of the body. Raises `Problem`, on which the rest is dropped."""
        if self.fault is not None:
            raise self.fault
        try:
            self._take(chunk)
        except OSError as error:
            raise Failed(f"the request could not be stored: {error.strerror}") from None

    def _take(self, chunk: bytes) -> None:
        if self.parts is not None:
            self.parts.feed(chunk)
        else:
            self.content += chunk
            if len(self.content) > self.max_json:
                raise TooLarge(f"the body is larger than {self.max_json} bytes")

    @property
    def is_answering(self) -> bool:
        return self.is_complete

    def drop_body(self) -> None:
        if self.is_complete:
            return
        self.content = bytearray()
        if self.parts is not None:
            self.parts.discard()

    def on_connection_close(self) -> None:
        """The client has left: the operation is cancelled unless it is a change that has begun."""
        super().on_connection_close()
        if self.work is not None:
            self.work.leave()
            if not self.is_complete:
                self.work.drop()

    # The operation

    async def _run(self, *arguments: str) -> None:
        if self.work is None:
            raise self.fault or Failed("the request was not understood")
        self.is_complete = True
        try:
            await run(self.operation, self.work, lambda: self._read(arguments), self._send)
        except ClientLeft:
            self.set_status(_CLIENT_CLOSED_REQUEST, "Client Closed Request")

    async def _read(self, arguments: Sequence[str]) -> Any:
        if self.fault is not None:
            raise self.fault
        return await self._request(dict(zip(self.names, arguments, strict=True)) | dict(self.fixed_here))

    async def _request(self, path: dict[str, str]) -> Any:
        if self.parts is None:
            body = await self._json(bytes(self.content), "the body") if self.operation.takes_body else {}
            self._check_names(body)
            return read(self.operation.request_type, path, self._query(), body)
        self.parts.end()
        request = self.parts.last(REQUEST_PART)
        body = await self._json(request.content, REQUEST_PART) if request is not None else {}
        form_names = {declared.json_name for declared in self.operation.inputs if declared.source == "form"}
        form, files = {}, {}
        for part in self.parts.all:
            if part.file is not None:
                files[part.name] = part.file
            elif part.name in form_names:
                form[part.name] = _text(part.name, part.content)
        self._check_names(body, [part.name for part in self.parts.all])
        return read(self.operation.request_type, path, self._query(), body, form, files)

    def _check_names(self, body: Mapping[str, Any], parts: Sequence[str] = ()) -> None:
        """Raises `Invalid` for an unknown or doubled parameter or part, and for an unknown field of the body."""
        if self.config.svc.rest.unknown_fields == "REFUSE":
            check_parts(self.operation.request_type, [name for name in parts if name])
            check_names(self.operation.request_type, self.request.query_arguments, body)
            lists = {declared.json_name for declared in self.operation.inputs if declared.type is tuple}
            for name, values in self.request.query_arguments.items():
                if len(values) > 1 and name not in lists:
                    raise Invalid(f"{name} is given more than once")

    def _query(self) -> dict[str, str]:
        """The query's parameters, the last value of each; those of a list are joined by commas."""
        lists = {declared.json_name for declared in self.operation.inputs if declared.type is tuple}
        return self.query() | {
            name: ",".join(self.query_values(name)) for name in lists & self.request.query_arguments.keys()
        }

    async def _json(self, content: bytes, what: str) -> dict[str, Any]:
        """A large object is parsed in a worker, and its values are encoded there."""
        if len(content) <= _MAX_INLINE_BYTES:
            return json_object(content, what)
        body, values = await self.charts.workers.run(read_body, content, what)
        return body if values is None else {**body, "values": EncodedValues(values)}

    async def _send(self, value: Any) -> None:
        self.set_status(self.operation.status)
        if isinstance(value, Warned):
            for line in value.warnings:
                self.add_header("Warning", f'199 - "{_quoted_string_text(line)}"')
            for name, text in value.headers.items():
                self.set_header(name, text)
            value = value.value
        answers = self.operation.response_type
        if answers in (TEXT, JSON):
            self.set_header("Vary", "Accept")
        if answers is None:
            self.clear_header("Content-Type")
        elif isinstance(value, Download):
            await self._send_file(value)
        elif answers == TEXT:
            self.send(_bytes(value), "application/yaml" if accepts(self.request, "application/yaml") else TEXT)
        elif isinstance(answers, str):
            self.send(_bytes(value), answers)
        elif isinstance(value, bytes):
            self.send(value, "application/json")
        else:
            self.reply(value)

    async def _send_file(self, download: Download) -> None:
        name = re.sub(r"[^A-Za-z0-9._+-]", "_", download.name)
        self.set_header("Content-Type", download.media_type or str(self.operation.response_type))
        self.set_header("Content-Disposition", f'attachment; filename="{name}"')
        file = await asyncio.to_thread(download.file.open, "rb")
        with file:
            self.set_header("Content-Length", str(download.file.stat().st_size))
            with contextlib.suppress(StreamClosedError):  # the client has left
                while chunk := await asyncio.to_thread(file.read, _SEND_BYTES):
                    self.write(chunk)
                    await self.flush()


def routes(operations: Sequence[ChartOperation]) -> list[Route]:
    """One route per path; a path without variables comes before operation that would match it too.

    `/releases/upload` takes POST for uploads; other methods there mean a release with that name.
    """
    paths = sorted({operation.path for operation in operations}, key=lambda path: ("{" in path, path))
    return [(pattern_of(path), _handler(path, operations)) for path in paths]


def _handler(path: str, operations: Sequence[ChartOperation]) -> type[ChartHandler]:
    by_method, fixed = dict[str, ChartOperation](), dict[str, Mapping[str, str]]()
    for operation in sorted(operations, key=lambda operation: operation.path != path):
        match = re.fullmatch(pattern_of(operation.path), path) if operation.path != path and "{" not in path else None
        if operation.path == path or match:
            variables = dict(zip(names_of(operation.path), match.groups(), strict=True)) if match else {}
            if by_method.setdefault(operation.method, operation) is operation:
                fixed[operation.method] = variables
    body: dict[str, Any] = {method.lower(): ChartHandler._run for method in by_method}
    body |= {
        "operations": by_method,
        "fixed": fixed,
        "names": names_of(path),
    }
    return stream_request_body(type(f"Chart{path.title().translate(_PUNCTUATION)}", (ChartHandler,), body))


_PUNCTUATION = str.maketrans("", "", "/{}-")


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


def _quoted_string_text(line: str) -> str:
    """Replaces characters that a quoted string in a header cannot contain."""
    return re.sub(r"[^ !#-\[\]-~]", "_", line)
