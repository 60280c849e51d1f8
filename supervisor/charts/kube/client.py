"""Kept-alive connections to one API server, shared by all callers.

A TLS handshake costs more than the rest of a read, so connections are kept open, which Tornado's HTTP client does not
do. httptools parses responses: Tornado's header parsing was more than half of the CPU time of a read.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httptools
from attrs import Factory, define, field

from models.charts import helm_errors
from models.charts.kubeconfig import Access, DataOrFile
from models.errors import TimedOut, Upstream
from supervisor.http.tls import load_certificate

MAX_CONNECTIONS = 8
_MAX_RESPONSE_BYTES = 64 * 1024**2
_MAX_HEAD_BYTES = 256 * 1024
_READ_BYTES = 256 * 1024
CONNECT_SECONDS = 5.0
RESPONSE_SECONDS = 20.0
_HAPPY_EYEBALLS_SECONDS = 0.25
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
"""What OpenSSL reports of a server that answers without TLS."""
CONNECTION_LOST = "cluster-connection-lost"
"""The code of an `Upstream` for a connection that ended before the response did."""
_BROKEN = (OSError, EOFError, httptools.HttpParserError)
"""Errors of a connection that ended early, and of a malformed response."""


class _ConnectionClosed(Exception):
    """The server had closed the kept connection before it answered."""


@define(eq=False)
class _KubeConnection:
    """One connection and its response parser."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    is_reusable: bool = False
    """Whether the server accepts another request."""
    _parser: httptools.HttpResponseParser = field(
        init=False, default=Factory(httptools.HttpResponseParser, takes_self=True)
    )
    _status: int = field(init=False, default=0)
    """0 until the final head is read; informational responses are skipped."""
    _head: int = field(init=False, default=0)
    """Bytes of headers so far."""
    _is_bounded: bool = field(init=False, default=False)
    """Whether the head gives the body's length; otherwise the end of the connection ends it."""
    _is_complete: bool = field(init=False, default=False)
    _body: list[bytes] = field(init=False, factory=list)

    async def request(self, message: bytes) -> tuple[int, bytes]:
        """Sends a request; returns status and body. Raises `_ConnectionClosed` and the errors in `_BROKEN`."""
        self._is_complete, size = False, 0
        self.writer.write(message)
        while not self._is_complete:
            if not (piece := await self._read(size)):
                break
            size += len(piece)
            self._parser.feed_data(piece)
            if size > (_MAX_RESPONSE_BYTES if self._status else _MAX_HEAD_BYTES):
                raise EOFError
        return self._status, b"".join(self._body)

    async def _read(self, size: int) -> bytes:
        """The next bytes; empty if the connection may end here and has."""
        try:
            piece = await self.reader.read(_READ_BYTES)
        except OSError:
            if size:
                raise
            raise _ConnectionClosed from None
        if not piece and not size:
            raise _ConnectionClosed
        if not piece and (self._is_bounded or not self._status):
            raise EOFError
        return piece

    def on_message_begin(self) -> None:
        self.is_reusable, self._status, self._head, self._is_bounded, self._body = False, 0, 0, False, []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Errors raised here surface as httptools errors."""
        name = name.lower()
        self._head += len(name) + len(value)
        self._is_bounded |= name in (b"content-length", b"transfer-encoding")
        if self._head > _MAX_HEAD_BYTES or (name == b"content-length" and int(value) > _MAX_RESPONSE_BYTES):
            raise EOFError

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._status = status if status >= 200 else 0

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._is_complete = self._status > 0
        self.is_reusable = self._parser.should_keep_alive()

    def close(self) -> None:
        self.writer.transport.abort()


class Connections:
    """At most eight connections; further callers wait."""

    def __init__(self, access: Access) -> None:
        """Reads the files that `access` names. Raises `Upstream`."""
        self._access = access
        try:
            self._tls = _tls(access) if access.scheme == "https" else None
            self._headers = _headers(access)
        except (OSError, ValueError):  # its message would name files
            raise _unreachable("its certificates or credentials cannot be read") from None
        self._idle: list[_KubeConnection] = []
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)
        self._is_closed = False

    async def request(self, method: str, path: str, accept: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Sends a request; returns status and body. Raises `Upstream` or `TimedOut` without a response.

        If a kept connection was closed, the request is sent again: it must be safe to repeat.
        """
        message = self._message(method, path, accept, body)
        async with self._slot():
            while self._idle:
                try:
                    return await self._request_on(self._idle.pop(), message)
                except _ConnectionClosed:
                    continue
            try:
                return await self._request_on(await self._connect(), message)
            except _ConnectionClosed:
                raise Upstream("the cluster closed the connection", CONNECTION_LOST) from None

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """Waits for a connection slot. If the requests before this one hang, the cluster hangs."""
        try:
            async with asyncio.timeout(RESPONSE_SECONDS):
                await self._slots.acquire()
        except TimeoutError:
            message = f"the cluster did not answer earlier requests within {RESPONSE_SECONDS:g} s"
            raise TimedOut(message, "timeout") from None
        try:
            yield
        finally:
            self._slots.release()

    def _message(self, method: str, path: str, accept: str, body: bytes | None) -> bytes:
        length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body is not None else ""
        head = f"{method} {self._access.prefix}{path} HTTP/1.1\r\n{self._headers}Accept: {accept}\r\n{length}\r\n"
        return head.encode() + (body or b"")

    async def _connect(self) -> _KubeConnection:
        access = self._access
        name = (access.server_name or access.host) if self._tls is not None else None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(
                    access.host,
                    access.port,
                    ssl=self._tls,
                    server_hostname=name,
                    limit=_READ_BYTES,
                    happy_eyeballs_delay=_HAPPY_EYEBALLS_SECONDS,
                )
        except OSError as error:
            raise _unreachable(_reason(error)) from None
        return _KubeConnection(reader, writer)

    async def _request_on(self, connection: _KubeConnection, message: bytes) -> tuple[int, bytes]:
        """Sends a request on a connection, kept if possible. Raises `_ConnectionClosed`, `Upstream`, `TimedOut`."""
        is_reusable = False
        try:
            async with asyncio.timeout(RESPONSE_SECONDS):
                response = await connection.request(message)
            is_reusable = connection.is_reusable and not connection.reader.at_eof()
        except TimeoutError:
            raise TimedOut(f"the cluster did not answer within {RESPONSE_SECONDS:g} s", "timeout") from None
        except _BROKEN:
            raise Upstream("the cluster closed the connection", CONNECTION_LOST) from None
        finally:
            if is_reusable and not self._is_closed:
                self._idle.append(connection)
            else:
                connection.close()
        return response

    def close(self) -> None:
        """Closes idle connections; requests in progress finish."""
        self._is_closed = True
        for connection in self._idle:
            connection.close()
        self._idle.clear()


def _unreachable(reason: str) -> Upstream:
    return Upstream(f"the cluster cannot be reached: {reason}", helm_errors.CLUSTER_UNREACHABLE)


def _reason(error: OSError) -> str:
    """Why there is no connection, as for a change: `helm_errors` has the same texts."""
    if isinstance(error, TimeoutError):
        return helm_errors.NO_ANSWER
    if isinstance(error, ssl.SSLCertVerificationError):
        return helm_errors.UNTRUSTED
    if isinstance(error, ssl.SSLError):
        return helm_errors.NO_TLS if error.reason in _NO_TLS else helm_errors.HANDSHAKE
    if isinstance(error, socket.gaierror):
        return helm_errors.unresolved(error.strerror or "the resolver gave no reason")
    return os.strerror(error.errno).lower() if error.errno else "no connection"


def _headers(access: Access) -> str:
    """The headers of every request. Raises `ValueError` for a value with a line break."""
    host = f"[{access.host}]" if ":" in access.host else access.host
    headers = [("Host", f"{host}:{access.port}"), ("User-Agent", "pilothouse")]
    if access.token:
        headers.append(("Authorization", f"Bearer {_bytes(access.token).decode('ascii').strip()}"))
    elif access.basic:
        headers.append(("Authorization", f"Basic {b64encode(':'.join(access.basic).encode()).decode()}"))
    headers += access.headers
    if any(not text.isprintable() for header in headers for text in header):
        raise ValueError("not a header value")
    return "".join(f"{name}: {value}\r\n" for name, value in headers)


def _tls(access: Access) -> ssl.SSLContext:
    """The TLS context. Raises `OSError` or `ValueError` for an unusable certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not access.verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif access.authority:
        context.load_verify_locations(cadata=_bytes(access.authority).decode("ascii"))
    else:
        context.load_default_certs()
    if access.certificate:
        load_certificate(context, _bytes(access.certificate), _bytes(access.key or access.certificate))
    return context


def _bytes(blob: DataOrFile) -> bytes:
    return blob.data if blob.data is not None else Path(blob.file or "").read_bytes()
