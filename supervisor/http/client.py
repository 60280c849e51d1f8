"""The guarded HTTP client: every request on a caller's behalf goes through it, and only to allowed addresses.

Each request resolves its host, checks every address and connects to one of those, so a name cannot change its meaning
in between; each redirect is checked again. Proxies of the environment are not used. It is built on Tornado's
`http1connection`, because a general client would resolve again and follow redirects on its own.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import hashlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO, Any

from attrs import Factory, define, field, frozen
from tornado.http1connection import HTTP1Connection, HTTP1ConnectionParameters
from tornado.httputil import HTTPHeaders, HTTPInputError, HTTPMessageDelegate, RequestStartLine, ResponseStartLine
from tornado.iostream import IOStream, StreamClosedError, UnsatisfiableReadError
from tornado.netutil import Resolver
from tornado.tcpclient import TCPClient

from models.errors import Failed, Invalid, Problem, TimedOut, TooLargeResponse, Unavailable, Upstream
from supervisor.http.dns import Addresses, CoalescingResolver, Policy
from supervisor.http.tls import TlsCredentials, context_of, system_context
from supervisor.http.urls import OriginLogin, Url

log = logging.getLogger("fetch")

_READ_BYTES = 64 * 1024
_MAX_MEMORY_BYTES = 8 * 1024**2


@frozen
class Request:
    """A request to send. `body` is bytes or a file; `into` is the file for the response body, or None for memory.

    The response body may have `max_bytes` bytes. `login` goes only to the origin of `url`, or with `pass_login`
    wherever redirects lead; `token` goes only to the origin.
    """

    url: Url
    max_bytes: int = _MAX_MEMORY_BYTES
    method: str = "GET"
    headers: Mapping[str, str] = Factory(dict)
    into: Path | None = None
    body: bytes | Path | None = None
    login: OriginLogin | None = None
    token: str | None = field(default=None, repr=False)
    token_header: str = "Authorization"  # noqa: S105 (a header)
    auth_scheme: str = "Bearer"
    """Stands before `token`; empty: nothing does."""
    pass_login: bool = False
    verify: bool = True
    """Whether to verify the certificate."""
    tls: TlsCredentials | None = None
    """The certificates for the origin of `url`, and for no other."""
    unpack: bool = False
    """Whether the response may be compressed in transfer (not for archives)."""


@define
class Response:
    """A response; `url` is the last URL after redirects. `sha256` is the hex digest of the body."""

    url: Url
    status: int
    headers: HTTPHeaders
    body: bytes
    size: int
    sha256: str

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300


async def exchange(connection: HTTP1Connection, body: bytes | Path | None, reader: ResponseReader) -> None:
    """Sends the body and reads the response, which may arrive before the whole body was sent."""
    reading = asyncio.ensure_future(connection.read_response(reader))
    writing = asyncio.ensure_future(_write(connection, body))
    try:
        while not (reading.done() or reader.over.done()):
            waiting: list[asyncio.Future[Any]] = [reading, reader.over, *([] if writing.done() else [writing])]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
        if reading.done() and not reader.is_too_large:
            reading.result()
    finally:
        reading.cancel()
        writing.cancel()
        await asyncio.gather(reading, writing, return_exceptions=True)


async def _write(connection: HTTP1Connection, body: bytes | Path | None) -> None:
    try:
        if isinstance(body, bytes):
            await connection.write(body)
        elif body is not None:
            with body.open("rb") as file:
                while chunk := await asyncio.to_thread(file.read, _READ_BYTES):
                    await connection.write(chunk)
        connection.finish()
    except StreamClosedError:
        log.debug("the response came before the whole body was sent")  # the response gives the reason


class ResponseReader(HTTPMessageDelegate):
    """Reads a response up to its limit, into a file or memory."""

    def __init__(self, url: Url, request: Request, stream: IOStream) -> None:
        self._url, self._request, self._stream = url, request, stream
        self._file: IO[bytes] | None = None
        self._write_error: OSError | None = None
        self._content = bytearray()
        self._hash = hashlib.sha256()
        self._status, self._size, self._finished = 0, 0, False
        self._headers = HTTPHeaders()
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def headers_received(self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders) -> None:
        assert isinstance(start_line, ResponseStartLine)
        self._status, self._headers = start_line.code, headers
        if self._request.into is not None and 200 <= self._status < 300:
            with self._catch_write_error():
                self._file = self._request.into.open("wb")

    @property
    def _bound(self) -> int:
        return self._request.max_bytes if 200 <= self._status < 300 else _MAX_MEMORY_BYTES

    @property
    def is_too_large(self) -> bool:
        return self._size > self._bound

    def data_received(self, chunk: bytes) -> Awaitable[None]:
        """Takes a chunk, then yields: a few compressed bytes may inflate to a thousand chunks."""
        self._take(chunk)
        return asyncio.sleep(0)

    def _take(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self.is_too_large or self._write_error is not None:
            self._stream.close()
            return
        self._hash.update(chunk)
        if self._file is not None:
            with self._catch_write_error():
                self._file.write(chunk)
        else:
            self._content += chunk

    @contextmanager
    def _catch_write_error(self) -> Iterator[None]:
        """A full disk is a local failure, not the server's."""
        try:
            yield
        except OSError as error:
            self._write_error = error

    def finish(self) -> None:
        self._finished = True
        self.on_connection_close()

    def on_connection_close(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def close(self) -> None:
        if self._file is not None:
            with self._catch_write_error():
                self._file.close()

    def response(self) -> Response:
        """The complete response.

        Raises `Upstream` if it was cut off, `TooLargeResponse`; `Invalid` if a file is too large, because the caller
        chose its URL; `Failed` if it could not be stored.
        """
        if self._write_error is not None:
            raise Failed(f"the download could not be stored: {self._write_error.strerror} (svc.rest.temp-dir)")
        if self.is_too_large:
            kind = Invalid if self._file is not None else TooLargeResponse
            raise kind(f"{self._url} is larger than {self._bound} bytes")
        if not self._finished:
            raise Upstream(f"{self._url} cannot be reached: the response was cut off")
        return Response(
            self._url, self._status, self._headers, bytes(self._content), self._size, self._hash.hexdigest()
        )


Lookup = Callable[[str, int], Awaitable[Addresses]]

_REDIRECT_STATUSES = (301, 302, 303, 307, 308)
_AGENT = "pilothouse"
MAX_CONCURRENT_FETCHES = 64

_LOCAL_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
"""Errors of this machine, not of the server."""


@frozen
class Rules:
    """Where a client may connect and for how long, with the names of the settings for messages."""

    policy: Policy
    timeout: float
    timeout_setting: str
    hosts_setting: str
    max_redirects: int | None = None
    """None: a redirect is returned like any response."""
    needs_https: bool = False
    """Whether http is refused but for allowed hosts."""
    ca_file: Path | None = None
    """Certificates that are trusted in addition to the system's."""


class GuardedClient:
    def __init__(self, rules: Rules, lookup: Lookup | None = None) -> None:
        """`lookup` resolves a name; the system's resolver by default."""
        self.rules = rules
        self.policy = rules.policy
        self._lookup = lookup or CoalescingResolver()
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_FETCHES)

    def check(self, url: Url) -> None:
        """Raises `Invalid` if the host's name or literal address may not be reached."""
        if self.policy.is_allowed(url.host, url.port):
            return
        reason = "loopback" if url.host == "localhost" or url.host.endswith(".localhost") else None
        if reason is None and (":" in url.host or url.host.replace(".", "").isdigit()):
            reason = self.policy.refusal(url.host)
        if reason:
            raise self._refused(url, f"its address is {reason}")
        if self.rules.needs_https and url.scheme != "https":
            raise self._refused(url, "it is not https")

    def _refused(self, url: Url, reason: str) -> Invalid:
        return Invalid(f"{url} is refused: {reason} (see {self.rules.hosts_setting})")

    async def fetch(self, request: Request) -> Response:
        """Sends a request and follows redirects. The caller judges the status.

        Raises `Invalid` (a refused address, a response that is too large), `Upstream` (unreachable or not HTTP), and
        `TimedOut`.
        """
        try:
            async with asyncio.timeout(self.rules.timeout), self._slots:
                return await self._followed(request)
        except TimeoutError:
            took = f"{self.rules.timeout_setting} ({self.rules.timeout:g} s)"
            raise TimedOut(f"{request.url} took longer than {took}") from None

    async def _followed(self, request: Request) -> Response:
        url, method = request.url, request.method
        most = self.rules.max_redirects
        for _ in range((most or 0) + 1):
            response = await self._sent(request, url, method)
            location = response.headers.get("Location")
            if response.status not in _REDIRECT_STATUSES or not location or request.body is not None or most is None:
                return response
            url = url.linked(location)
            method = "HEAD" if method == "HEAD" else "GET"
        raise Upstream(f"{request.url} leads to more than {most} redirects")

    async def _sent(self, request: Request, url: Url, method: str) -> Response:
        """One request to one URL."""
        self.check(url)
        headers = self._headers(request, url)
        start = RequestStartLine(method, url.target, "HTTP/1.1")
        try:
            async with self._connected(request, url) as stream:
                connection = HTTP1Connection(stream, True, _parameters(request))
                connection.write_headers(start, headers)
                reader = ResponseReader(url, request, stream)
                try:
                    await exchange(connection, request.body, reader)
                finally:
                    stream.close()
                    reader.close()
                return reader.response()
        except StreamClosedError as closed:
            raise _failure(url, closed.real_error) from None
        except (OSError, ssl.SSLError, HTTPInputError) as error:
            raise _failure(url, error) from None

    def _headers(self, request: Request, url: Url) -> HTTPHeaders:
        headers = HTTPHeaders({"User-Agent": _AGENT, "Connection": "close", **request.headers, "Host": url.authority})
        is_same_origin = url.origin == request.url.origin
        is_downgrade = request.url.scheme == "https" and url.scheme == "http"
        login = request.login or request.url.login
        if request.token and is_same_origin:
            headers[request.token_header] = f"{request.auth_scheme} {request.token}".lstrip()
        elif login and (is_same_origin or (request.pass_login and not is_downgrade)):
            pair = f"{login.username}:{login.password}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        if request.unpack:
            headers["Accept-Encoding"] = "gzip"
        if request.body is not None:
            size = len(request.body) if isinstance(request.body, bytes) else request.body.stat().st_size
            headers["Content-Length"] = str(size)
        elif request.method in ("POST", "PUT"):
            headers["Content-Length"] = "0"
        return headers

    @asynccontextmanager
    async def _connected(self, request: Request, url: Url) -> AsyncIterator[IOStream]:
        """A connection to one of the checked addresses; always closed."""
        client = _Connector(resolver=_CheckedResolver(self, url))
        options = await asyncio.to_thread(self._tls, request, url) if url.scheme == "https" else None
        try:
            stream = await client.connect(url.host, url.port, ssl_options=options, max_buffer_size=_MAX_MEMORY_BYTES)
        except BaseException:
            client.close_begun()
            raise
        try:
            yield stream
        finally:
            stream.close()

    def _tls(self, request: Request, url: Url) -> ssl.SSLContext:
        if request.tls is not None and url.origin == request.url.origin:
            return context_of(request.tls, request.verify, self.rules.ca_file)
        return system_context(request.verify, self.rules.ca_file)

    async def addresses(self, url: Url) -> Addresses:
        """The host's addresses. Raises `Invalid` if any is refused, `Upstream` if there is none."""
        try:
            addresses = await self._lookup(url.host, url.port)
        except OSError as error:
            raise _failure(url, error) from None
        if not self.policy.is_allowed(url.host, url.port):
            for _, address in addresses:
                if reason := self.policy.refusal(address[0]):
                    raise self._refused(url, f"its address is {reason}")
        return addresses


class _Connector(TCPClient):
    """Can close what it has connected: Tornado's loses a connection that is made as its caller is cancelled."""

    def __init__(self, resolver: Resolver) -> None:
        super().__init__(resolver)
        self._begun: list[IOStream] = []

    def _create_stream(self, *arguments: Any, **options: Any) -> tuple[IOStream, asyncio.Future[IOStream]]:
        stream, connecting = super()._create_stream(*arguments, **options)
        self._begun.append(stream)
        return stream, connecting

    def close_begun(self) -> None:
        for stream in self._begun:
            if stream.socket is not None:  # TLS has not taken it over
                stream.close()


class _CheckedResolver(Resolver):
    """Resolves to the checked addresses only."""

    def initialize(self, fetcher: GuardedClient, url: Url) -> None:
        self._fetcher, self._url = fetcher, url

    async def resolve(self, host: str, port: int, family: socket.AddressFamily = socket.AF_UNSPEC) -> Addresses:
        return await self._fetcher.addresses(self._url)


TLS_FAILED = "tls-failed"
"""The code of an `Upstream` for a server that speaks TLS, but not to us: its certificate is not valid, for example."""


def _failure(url: Url, error: BaseException | None) -> Problem:
    reason = _reason(error)
    if isinstance(error, ssl.SSLError):
        return Upstream(f"{url} cannot be reached: {reason}", None if reason == _NO_TLS else TLS_FAILED)
    if isinstance(error, OSError) and error.errno in _LOCAL_ERRORS:
        return Unavailable(f"{url} cannot be fetched now: {reason}")
    return Upstream(f"{url} cannot be reached: {reason}")


def _parameters(request: Request) -> HTTP1ConnectionParameters:
    # the reader counts bytes: Tornado would only close the connection
    return HTTP1ConnectionParameters(
        no_keep_alive=True, chunk_size=_READ_BYTES, max_body_size=2**62, decompress=request.unpack
    )


_NO_TLS = "it does not support TLS"
_NO_TLS_REASONS = ("wrong version number", "http request", "record layer failure", "unexpected eof while reading")
"""What OpenSSL reports of a server that answers in plain text, or closes the connection."""


def _reason(error: BaseException | None) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "").lower().replace("_", " ")
        return _NO_TLS if reason in _NO_TLS_REASONS else f"TLS failed: {reason or 'no reason given'}"
    if isinstance(error, socket.gaierror):
        return "the host does not exist"
    if isinstance(error, UnsatisfiableReadError):
        return "its headers are too long"
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    return str(error) if error else "it closed the connection"
