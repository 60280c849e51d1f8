"""Kept-alive connections to one API server: a few of them, shared by all who ask.

A TLS handshake costs more than all the rest of a read, so connections are kept open, which Tornado's own HTTP client
does not do. What is read here is the little of HTTP/1.1 that an API server says, on the streams of asyncio: what a
general reader does with headers was more than half of our work for a read, and one of a release asks three times.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from attrs import frozen

from models.charts.kubeconfig import Access, Blob
from models.errors import Upstream

_MOST = 8
_LARGEST = 64 * 1024**2
_LONGEST_HEAD = 256 * 1024
_CONNECT = 5.0
_ANSWER = 20.0
_NEXT_ADDRESS = 0.25
_UNREACHABLE = "the cluster cannot be reached"
_BROKEN = (OSError, EOFError, ValueError, asyncio.LimitOverrunError)
"""What comes of a connection that ends too soon, or of an answer that is none."""


class _Unanswered(Exception):
    """The connection had been closed at the other end before anything was answered."""


@frozen
class _Wire:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

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
                    limit=_LONGEST_HEAD,
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
                wire.writer.write(request)
                status, headers = await _head(wire.reader)
                content = await _body(wire.reader, status, headers)
            is_kept = headers.get(b"connection", b"").lower() != b"close" and not wire.reader.at_eof()
        except TimeoutError:
            raise Upstream(f"the cluster did not answer within {_ANSWER:g} s") from None
        except _BROKEN:
            raise Upstream("the cluster broke off its answer") from None
        finally:
            if is_kept and not self._is_closed:
                self._idle.append(wire)
            else:
                wire.close()
        return status, content

    def close(self) -> None:
        """No more is kept; who is asking just now is answered."""
        self._is_closed = True
        for wire in self._idle:
            wire.close()
        self._idle.clear()


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[bytes, bytes]]:
    """The status and the headers, by their names in small letters; what only announces an answer is passed over."""
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError) as error:
            if getattr(error, "partial", b""):
                raise
            raise _Unanswered from None
        line, *lines = head[:-4].split(b"\r\n")
        protocol, status = line.split(None, 2)[:2]
        if not protocol.startswith(b"HTTP/1."):
            raise ValueError("no HTTP")
        if int(status) >= 200:
            fields = (line.partition(b":") for line in lines)
            return int(status), {name.lower(): value.strip() for name, _, value in fields}


async def _body(reader: asyncio.StreamReader, status: int, headers: dict[bytes, bytes]) -> bytes:
    if status in (204, 304):
        return b""
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        return await _chunks(reader)
    if b"content-length" not in headers:
        return await _rest(reader)
    length = int(headers[b"content-length"])
    if not 0 <= length <= _LARGEST:
        raise ValueError("no length, or too much")
    return await reader.readexactly(length)


async def _rest(reader: asyncio.StreamReader) -> bytes:
    found = bytearray()
    while piece := await reader.read(_LONGEST_HEAD):
        found += piece
        if len(found) > _LARGEST:
            raise ValueError("too much")
    return bytes(found)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    found, length = [], 0
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        length += size
        if size < 0 or length > _LARGEST:
            raise ValueError("too much")
        found.append((await reader.readexactly(size + 2))[:-2])
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return b"".join(found)


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
