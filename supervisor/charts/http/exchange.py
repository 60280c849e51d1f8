"""One request and its answer on a connection that is open: what is sent, and what is taken, up to its bound."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from attrs import Factory, define, field, frozen
from tornado.http1connection import HTTP1Connection
from tornado.httputil import HTTPHeaders, HTTPMessageDelegate, RequestStartLine, ResponseStartLine
from tornado.iostream import IOStream, StreamClosedError

from models.errors import Failed, Invalid, Upstream
from supervisor.charts.http.urls import Login, Url

log = logging.getLogger("fetch")

CHUNK = 64 * 1024
KEPT = 8 * 1024**2


@frozen
class Request:
    """What is to be fetched or sent. `body` is bytes or a file; `into` is where the answer's body is put.

    The answer's body is kept in memory where `into` is None; it may have `most` bytes. `login` goes to the origin of
    `url` only, or wherever it leads with `pass_login`; so does `token` (a Bearer), but never elsewhere.
    """

    url: Url
    most: int = KEPT
    method: str = "GET"
    headers: Mapping[str, str] = Factory(dict)
    into: Path | None = None
    body: bytes | Path | None = None
    login: Login | None = None
    token: str | None = field(default=None, repr=False)
    pass_login: bool = False
    verify: bool = True
    """Whether a certificate must be good."""
    unpack: bool = False
    """Whether the answer may be sent compressed (not for archives, which are)."""


@define
class Response:
    """What came back, at last from `url`. `sha256` is of the body, in hex."""

    url: Url
    status: int
    headers: HTTPHeaders
    body: bytes
    size: int
    sha256: str

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300


async def exchange(connection: HTTP1Connection, body: bytes | Path | None, taker: Taker) -> None:
    """Sends the body and takes the answer, which may come before all was sent and says then why nobody reads on."""
    reading = asyncio.ensure_future(connection.read_response(taker))
    writing = asyncio.ensure_future(_write(connection, body))
    try:
        while not (reading.done() or taker.over.done()):
            waiting: list[asyncio.Future[Any]] = [reading, taker.over, *([] if writing.done() else [writing])]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
        if reading.done() and not taker.is_too_large:
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
                while chunk := await asyncio.to_thread(file.read, CHUNK):
                    await connection.write(chunk)
        connection.finish()
    except StreamClosedError:
        log.debug("the answer came before all was sent")  # and tells why


class Taker(HTTPMessageDelegate):
    """Takes an answer as it comes, up to its bound, into a file or into memory."""

    def __init__(self, url: Url, request: Request, stream: IOStream) -> None:
        self._url, self._request, self._stream = url, request, stream
        self._file: IO[bytes] | None = None
        self._unkept: OSError | None = None
        self._kept = bytearray()
        self._hash = hashlib.sha256()
        self._status, self._size, self._finished = 0, 0, False
        self._headers = HTTPHeaders()
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def headers_received(self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders) -> None:
        assert isinstance(start_line, ResponseStartLine)
        self._status, self._headers = start_line.code, headers
        if self._request.into is not None and 200 <= self._status < 300:
            with self._keeping():
                self._file = self._request.into.open("wb")

    @property
    def _bound(self) -> int:
        return self._request.most if 200 <= self._status < 300 else KEPT

    @property
    def is_too_large(self) -> bool:
        return self._size > self._bound

    def data_received(self, chunk: bytes) -> Awaitable[None]:
        """Takes a piece. A few bytes may unpack to a thousand pieces: others have their turn between any two."""
        self._take(chunk)
        return asyncio.sleep(0)

    def _take(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self.is_too_large or self._unkept is not None:
            self._stream.close()
            return
        self._hash.update(chunk)
        if self._file is not None:
            with self._keeping():
                self._file.write(chunk)
        else:
            self._kept += chunk

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        """A disk that takes no more is ours: whoever we fetch from is not to blame."""
        try:
            yield
        except OSError as error:
            self._unkept = error

    def finish(self) -> None:
        self._finished = True
        self.on_connection_close()

    def on_connection_close(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def close(self) -> None:
        if self._file is not None:
            with self._keeping():
                self._file.close()

    def response(self) -> Response:
        """The answer, when it is whole.

        Raises `Upstream` where it broke off or is too large; `Invalid` where what is too large was to become a file:
        an index or archive that a caller has chosen; `Failed` where there is no room for it.
        """
        if self._unkept is not None:
            raise Failed(f"what was fetched could not be kept: {self._unkept.strerror} (svc.rest.temp-dir)")
        if self.is_too_large:
            kind = Invalid if self._file is not None else Upstream
            raise kind(f"{self._url} is larger than {self._bound} bytes")
        if not self._finished:
            raise Upstream(f"{self._url} cannot be reached: its answer broke off")
        return Response(self._url, self._status, self._headers, bytes(self._kept), self._size, self._hash.hexdigest())
