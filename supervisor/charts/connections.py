"""Kept-alive connections to one API server: a few of them, shared by all who ask.

Tornado's own HTTP client opens one for each request. A TLS handshake costs more than all the rest of a read, so this
keeps Tornado's connections (`HTTP1Connection`) open; a library would cost memory in a process that has little.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from base64 import b64encode
from pathlib import Path

from attrs import Factory, define
from tornado.http1connection import HTTP1Connection, HTTP1ConnectionParameters
from tornado.httputil import HTTPHeaders, HTTPMessageDelegate, RequestStartLine, ResponseStartLine
from tornado.iostream import IOStream
from tornado.tcpclient import TCPClient

from models.charts.kubeconfig import Access, Blob
from models.errors import Upstream

_MOST = 8
_LARGEST = 64 * 1024**2
_CONNECT = 5.0
_ANSWER = 20.0
_UNREACHABLE = "the cluster cannot be reached"


@define(eq=False)
class _Answer(HTTPMessageDelegate):
    """What comes back on one connection."""

    status: int = 0
    is_whole: bool = False
    chunks: list[bytes] = Factory(list)

    def headers_received(self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders) -> None:
        self.status = start_line.code if isinstance(start_line, ResponseStartLine) else 0

    def data_received(self, chunk: bytes) -> None:
        self.chunks.append(chunk)

    def finish(self) -> None:
        self.is_whole = True


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
        self._client = TCPClient()
        self._idle: list[IOStream] = []
        self._slots = asyncio.Semaphore(_MOST)
        self._is_closed = False

    async def get(self, path: str, accept: str) -> tuple[int, bytes]:
        """Status and body of a GET. Raises `Upstream` where no answer comes."""
        async with self._slots:
            while self._idle:  # one that was kept may have been closed at the other end meanwhile
                stream = self._idle.pop()
                answer = await self._ask(stream, path, accept)
                if answer.is_whole or answer.status:
                    return self._told(answer)
            return self._told(await self._ask(await self._connect(), path, accept))

    def _told(self, answer: _Answer) -> tuple[int, bytes]:
        if not answer.is_whole:
            raise Upstream("the cluster broke off its answer")
        return answer.status, b"".join(answer.chunks)

    async def _connect(self) -> IOStream:
        access = self._access
        try:
            async with asyncio.timeout(_CONNECT):
                stream = await self._client.connect(access.host, access.port, max_buffer_size=_LARGEST)
                stream.set_nodelay(True)
                if self._tls is not None:
                    stream = await stream.start_tls(False, self._tls, access.server_name or access.host)
        except TimeoutError:
            raise Upstream(f"{_UNREACHABLE}: it does not answer") from None
        except ssl.SSLCertVerificationError:
            raise Upstream(f"{_UNREACHABLE}: its certificate is not one that the kubeconfig trusts") from None
        except ssl.SSLError:
            raise Upstream(f"{_UNREACHABLE}: there is no TLS to be agreed on") from None
        except OSError as error:
            raise Upstream(f"{_UNREACHABLE}: {os.strerror(error.errno) if error.errno else 'no connection'}") from None
        return stream

    async def _ask(self, stream: IOStream, path: str, accept: str) -> _Answer:
        """Asks on a connection, and keeps it if it may be asked again."""
        answer = _Answer()
        limits = HTTP1ConnectionParameters(no_keep_alive=False, max_body_size=_LARGEST)
        connection = HTTP1Connection(stream, True, limits)
        is_kept = False
        try:
            async with asyncio.timeout(_ANSWER):
                headers = self._headers.copy()
                headers["Accept"] = accept
                connection.write_headers(RequestStartLine("GET", self._access.prefix + path, ""), headers)
                connection.finish()
                is_kept = await connection.read_response(answer)
        except TimeoutError:
            raise Upstream(f"the cluster did not answer within {_ANSWER:g} s") from None
        except OSError:
            answer.is_whole = False
        finally:
            if is_kept and answer.is_whole and not self._is_closed and not stream.closed():
                self._idle.append(connection.detach())
            else:
                connection.close()
        return answer

    def close(self) -> None:
        """No more is kept; who is asking just now is answered."""
        self._is_closed = True
        for stream in self._idle:
            stream.close()
        self._idle.clear()
        self._client.close()


def _headers(access: Access) -> HTTPHeaders:
    host = f"[{access.host}]" if ":" in access.host else access.host
    headers = HTTPHeaders({"Host": f"{host}:{access.port}", "User-Agent": "pilothouse", "Connection": "keep-alive"})
    if access.token:
        headers["Authorization"] = f"Bearer {_bytes(access.token).decode('ascii').strip()}"
    elif access.basic:
        headers["Authorization"] = f"Basic {b64encode(':'.join(access.basic).encode()).decode()}"
    for name, value in access.headers:
        headers.add(name, value)
    return headers


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
