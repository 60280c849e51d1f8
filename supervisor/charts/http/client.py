"""The one way out: what is fetched, or sent, on a caller's behalf goes through here, and only where it may.

Each request resolves its host, checks every address, and connects to one of those, so that a name cannot mean another
machine a moment later; each redirect does so again. Proxies of the environment are not asked. The connection is
Tornado's own (`tornado.http1connection`): a general client would resolve again, and follow where it is led.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache

from tornado.http1connection import HTTP1Connection, HTTP1ConnectionParameters
from tornado.httputil import HTTPHeaders, HTTPInputError, RequestStartLine
from tornado.iostream import IOStream, StreamClosedError, UnsatisfiableReadError
from tornado.netutil import Resolver
from tornado.tcpclient import TCPClient

from models.config.settings import ChartSecurity, Fetch
from models.errors import Invalid, Problem, TimedOut, Unavailable, Upstream
from supervisor.charts.http import urls
from supervisor.charts.http.dns import Addresses, Names, Policy
from supervisor.charts.http.exchange import CHUNK, KEPT, Request, Response, Taker, exchange
from supervisor.charts.http.urls import Url

Lookup = Callable[[str, int], Awaitable[Addresses]]

_REDIRECTS = (301, 302, 303, 307, 308)
_AGENT = "pilothouse"
_AT_ONCE = 64

_OURS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
"""What we lack ourselves, which is no fault of those whom we ask."""


class Fetcher:
    def __init__(self, limits: Fetch, security: ChartSecurity, lookup: Lookup | None = None) -> None:
        """`lookup` resolves a name; it is the system's by default."""
        self.limits = limits
        self.policy = Policy(
            security.block_private_networks, frozenset(urls.host_port(one) for one in security.allowed_hosts)
        )
        self._lookup = lookup or Names()
        self._turns = asyncio.Semaphore(_AT_ONCE)

    def check(self, url: Url) -> None:
        """Raises `Invalid` where the host's name alone, or the address that it is, says that it may not be reached."""
        if self.policy.is_allowed(url.host, url.port):
            return
        why = "loopback" if url.host == "localhost" or url.host.endswith(".localhost") else None
        if why is None and (":" in url.host or url.host.replace(".", "").isdigit()):
            why = self.policy.refusal(url.host)
        if why:
            raise _refused(url, why)

    async def fetch(self, request: Request) -> Response:
        """Sends a request and follows where it leads. The status is the caller's to judge.

        Raises `Invalid` (an address that may not be reached, an answer that is too large), `Upstream` (unreachable, or
        not speaking HTTP), `TimedOut`.
        """
        try:
            async with asyncio.timeout(self.limits.timeout), self._turns:
                return await self._followed(request)
        except TimeoutError:
            took = f"svc.fetch.timeout ({self.limits.timeout:g} s)"
            raise TimedOut(f"{request.url} took longer than {took}") from None

    async def _followed(self, request: Request) -> Response:
        url, method = request.url, request.method
        for _ in range(self.limits.max_redirects + 1):
            response = await self._sent(request, url, method)
            location = response.headers.get("Location")
            if response.status not in _REDIRECTS or not location or request.body is not None:
                return response
            url = url.linked(location)
            method = "HEAD" if method == "HEAD" else "GET"
        raise Upstream(f"{request.url} leads to more than {self.limits.max_redirects} redirects")

    async def _sent(self, request: Request, url: Url, method: str) -> Response:
        """One request to one place."""
        self.check(url)
        headers = self._headers(request, url)
        start = RequestStartLine(method, url.target, "HTTP/1.1")
        try:
            async with self._connected(url, request.verify) as stream:
                connection = HTTP1Connection(stream, True, _parameters(request))
                connection.write_headers(start, headers)
                taker = Taker(url, request, stream)
                try:
                    await exchange(connection, request.body, taker)
                finally:
                    stream.close()
                    taker.close()
                return taker.response()
        except StreamClosedError as closed:
            raise _failure(url, closed.real_error) from None
        except (OSError, ssl.SSLError, HTTPInputError) as error:
            raise _failure(url, error) from None

    def _headers(self, request: Request, url: Url) -> HTTPHeaders:
        headers = HTTPHeaders({"User-Agent": _AGENT, "Connection": "close", **request.headers, "Host": url.authority})
        is_own = url.origin == request.url.origin
        is_downgrade = request.url.scheme == "https" and url.scheme == "http"
        login = request.login or request.url.login
        if request.token and is_own:
            headers["Authorization"] = f"Bearer {request.token}"
        elif login and (is_own or (request.pass_login and not is_downgrade)):
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
    async def _connected(self, url: Url, verify: bool) -> AsyncIterator[IOStream]:
        """A connection to one of the addresses that were checked; it is closed whatever happens."""
        client = TCPClient(resolver=_Checked(self, url))
        options = await asyncio.to_thread(_tls, verify) if url.scheme == "https" else None
        stream = await client.connect(url.host, url.port, ssl_options=options, max_buffer_size=KEPT)
        try:
            yield stream
        finally:
            stream.close()

    async def addresses(self, url: Url) -> Addresses:
        """Where this host is. Raises `Invalid` if any of it is where nobody may go, `Upstream` if it is nowhere."""
        try:
            found = await self._lookup(url.host, url.port)
        except OSError as error:
            raise _failure(url, error) from None
        if not self.policy.is_allowed(url.host, url.port):
            for _, address in found:
                if why := self.policy.refusal(address[0]):
                    raise _refused(url, why)
        return found


class _Checked(Resolver):
    """Gives a connection the addresses that were checked, and no others."""

    def initialize(self, fetcher: Fetcher, url: Url) -> None:
        self._fetcher, self._url = fetcher, url

    async def resolve(self, host: str, port: int, family: socket.AddressFamily = socket.AF_UNSPEC) -> Addresses:
        return await self._fetcher.addresses(self._url)


def _failure(url: Url, error: BaseException | None) -> Problem:
    if isinstance(error, OSError) and error.errno in _OURS:
        return Unavailable(f"{url} cannot be asked now: {_why(error)}")
    return Upstream(f"{url} cannot be reached: {_why(error)}")


def _refused(url: Url, why: str) -> Invalid:
    return Invalid(f"{url} is refused: its address is {why} (see svc.security.allowed-hosts)")


@cache
def _tls(verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _parameters(request: Request) -> HTTP1ConnectionParameters:
    # the taker counts what comes: Tornado's own bound would only close the connection, without a word
    return HTTP1ConnectionParameters(
        no_keep_alive=True, chunk_size=CHUNK, max_body_size=2**62, decompress=request.unpack
    )


def _why(error: BaseException | None) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not good: {error.verify_message}"
    if isinstance(error, socket.gaierror):
        return "there is no such host"
    if isinstance(error, UnsatisfiableReadError):
        return "its headers are too long"
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    return str(error) if error else "it closed the connection"
