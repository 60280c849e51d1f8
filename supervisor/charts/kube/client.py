"""Kept-alive connections to one API server: a few of them, shared by all who ask.

A TLS handshake costs more than all the rest of a read, so connections are kept open, which Tornado's own HTTP client
does not do. Answers are read by httptools: what Tornado does with headers was more than half of our work for a read,
and one of a release asks three times.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httptools
from attrs import Factory, define, field

from models.charts.kubeconfig import Access, Blob
from models.errors import Upstream

_MOST = 8
_LARGEST = 64 * 1024**2
_LONGEST_HEAD = 256 * 1024
_PIECE = 256 * 1024
_CONNECT = 5.0
_ANSWER = 20.0
_NEXT_ADDRESS = 0.25
_UNREACHABLE = "the cluster cannot be reached"
_BROKEN = (OSError, EOFError, httptools.HttpParserError)
"""What comes of a connection that ends too soon, or of an answer that is none."""


class _Unanswered(Exception):
    """The connection had been closed at the other end before anything was answered."""


@define(eq=False)
class _Wire:
    """One connection, and what httptools finds in what comes on it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    is_kept: bool = False
    """Whether the server will take another request."""
    _parser: httptools.HttpResponseParser = field(
        init=False, default=Factory(httptools.HttpResponseParser, takes_self=True)
    )
    _status: int = field(init=False, default=0)
    """0 until the head is read; an answer that only announces another has none."""
    _head: int = field(init=False, default=0)
    """How long its headers are so far."""
    _is_bounded: bool = field(init=False, default=False)
    """Whether the head says where the body ends; else the end of the connection does."""
    _is_whole: bool = field(init=False, default=False)
    _body: list[bytes] = field(init=False, factory=list)

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of the answer. Raises `_Unanswered`, and what is in `_BROKEN`."""
        self._is_whole, size = False, 0
        self.writer.write(request)
        while not self._is_whole:
            if not (piece := await self._read(size)):
                break
            size += len(piece)
            self._parser.feed_data(piece)
            if size > (_LARGEST if self._status else _LONGEST_HEAD):
                raise EOFError
        return self._status, b"".join(self._body)

    async def _read(self, size: int) -> bytes:
        """What comes after so many bytes; nothing where the connection may end, and has."""
        try:
            piece = await self.reader.read(_PIECE)
        except OSError:
            if size:
                raise
            raise _Unanswered from None
        if not piece and not size:
            raise _Unanswered
        if not piece and (self._is_bounded or not self._status):
            raise EOFError
        return piece

    def on_message_begin(self) -> None:
        self.is_kept, self._status, self._head, self._is_bounded, self._body = False, 0, 0, False, []

    def on_header(self, name: bytes, value: bytes) -> None:
        """What it raises comes as one of httptools' errors."""
        name = name.lower()
        self._head += len(name) + len(value)
        self._is_bounded |= name in (b"content-length", b"transfer-encoding")
        if self._head > _LONGEST_HEAD or (name == b"content-length" and int(value) > _LARGEST):
            raise EOFError

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._status = status if status >= 200 else 0

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._is_whole = self._status > 0
        self.is_kept = self._parser.should_keep_alive()

    def close(self) -> None:
        self.writer.transport.abort()


class Connections:
    """At most eight at a time; whoever finds none free waits."""

    def __init__(self, access: Access) -> None:
        """Reads the files that `access` names. Raises `Upstream`."""
        self._access = access
        try:
            self._tls = _tls(access) if access.scheme == "https" else None
            self._headers = _headers(access)
        except (OSError, ValueError):  # no words of its own: they name files
            raise Upstream(f"{_UNREACHABLE}: its certificates or credentials cannot be read") from None
        self._idle: list[_Wire] = []
        self._slots = asyncio.Semaphore(_MOST)
        self._is_closed = False

    async def ask(self, method: str, path: str, accept: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Status and body of the answer. Raises `Upstream` where none comes.

        Where a kept connection turns out to be closed it is asked again on another: what is asked must bear that.
        """
        request = self._request(method, path, accept, body)
        async with self._slot():
            while self._idle:
                try:
                    return await self._asked(self._idle.pop(), request)
                except _Unanswered:
                    continue
            try:
                return await self._asked(await self._connect(), request)
            except _Unanswered:
                raise Upstream("the cluster broke off its answer") from None

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """Where those before us get no answer in time, neither shall we: that the cluster hangs is told to all."""
        try:
            async with asyncio.timeout(_ANSWER):
                await self._slots.acquire()
        except TimeoutError:
            raise Upstream(f"the cluster did not answer those before within {_ANSWER:g} s") from None
        try:
            yield
        finally:
            self._slots.release()

    def _request(self, method: str, path: str, accept: str, body: bytes | None) -> bytes:
        length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body is not None else ""
        head = f"{method} {self._access.prefix}{path} HTTP/1.1\r\n{self._headers}Accept: {accept}\r\n{length}\r\n"
        return head.encode() + (body or b"")

    async def _connect(self) -> _Wire:
        access = self._access
        name = (access.server_name or access.host) if self._tls is not None else None
        try:
            async with asyncio.timeout(_CONNECT):
                reader, writer = await asyncio.open_connection(
                    access.host,
                    access.port,
                    ssl=self._tls,
                    server_hostname=name,
                    limit=_PIECE,
                    happy_eyeballs_delay=_NEXT_ADDRESS,
                )
        except TimeoutError:
            raise Upstream(f"{_UNREACHABLE}: it does not answer") from None
        except ssl.SSLCertVerificationError:
            raise Upstream(f"{_UNREACHABLE}: its certificate is not one that the kubeconfig trusts") from None
        except ssl.SSLError:
            raise Upstream(f"{_UNREACHABLE}: there is no TLS to be agreed on") from None
        except OSError as error:
            raise Upstream(f"{_UNREACHABLE}: {os.strerror(error.errno) if error.errno else 'no connection'}") from None
        return _Wire(reader, writer)

    async def _asked(self, wire: _Wire, request: bytes) -> tuple[int, bytes]:
        """Asks on a connection, and keeps it if it may be asked again. Raises `_Unanswered`, and `Upstream`."""
        is_kept = False
        try:
            async with asyncio.timeout(_ANSWER):
                answer = await wire.ask(request)
            is_kept = wire.is_kept and not wire.reader.at_eof()
        except TimeoutError:
            raise Upstream(f"the cluster did not answer within {_ANSWER:g} s") from None
        except _BROKEN:
            raise Upstream("the cluster broke off its answer") from None
        finally:
            if is_kept and not self._is_closed:
                self._idle.append(wire)
            else:
                wire.close()
        return answer

    def close(self) -> None:
        """No more is kept; who is asking just now is answered."""
        self._is_closed = True
        for wire in self._idle:
            wire.close()
        self._idle.clear()


def _headers(access: Access) -> str:
    """Those of every request. Raises `ValueError` where what is in them would be more than one line."""
    host = f"[{access.host}]" if ":" in access.host else access.host
    headers = [("Host", f"{host}:{access.port}"), ("User-Agent", "pilothouse")]
    if access.token:
        headers.append(("Authorization", f"Bearer {_bytes(access.token).decode('ascii').strip()}"))
    elif access.basic:
        headers.append(("Authorization", f"Basic {b64encode(':'.join(access.basic).encode()).decode()}"))
    headers += access.headers
    if any(not text.isprintable() for header in headers for text in header):
        raise ValueError("a header that is none")
    return "".join(f"{name}: {value}\r\n" for name, value in headers)


def _tls(access: Access) -> ssl.SSLContext:
    """Raises `OSError` or `ValueError` where a certificate cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not access.verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif access.authority:
        context.load_verify_locations(cadata=_bytes(access.authority).decode("ascii"))
    else:
        context.load_default_certs()
    if access.certificate:
        _load_certificate(context, _bytes(access.certificate), _bytes(access.key or access.certificate))
    return context


def _load_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """OpenSSL takes these from files only: one that is in memory, and gone at once."""
    handle = os.memfd_create("client", os.MFD_CLOEXEC)
    try:
        os.write(handle, certificate + b"\n" + key)
        context.load_cert_chain(f"/proc/self/fd/{handle}", password=_no_password)
    finally:
        os.close(handle)


def _no_password() -> str:
    raise ValueError("an encrypted key")


def _bytes(blob: Blob) -> bytes:
    return blob.data if blob.data is not None else Path(blob.file or "").read_bytes()
