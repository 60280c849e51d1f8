"""HTTP to the server: over its control socket, TCP or TLS."""

from __future__ import annotations

import http.client
import json
import os
import socket
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from supervisor.cli.ctl.discovery import Address, ServerPlace, places
from supervisor.cli.ctl.errors import FAILED, REFUSED, UNKNOWN, USAGE, CtlError, ServerAway
from supervisor.cli.ctl.terminal import plain

API = "/api/v1"
_CONNECT_SECONDS = 10.0
_QUIET_SECONDS = 75.0
"""How long a stream may be silent. The server sends a heartbeat three times as often."""

_CODES = {401: REFUSED, 403: REFUSED}


class Reply(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            raise CtlError("the answer is not JSON: is this a pilothouse?") from None

    def now(self) -> float | None:
        """The server's time, in seconds since 1970."""
        date = self.headers["Date"]
        return parsedate_to_datetime(date).timestamp() if date else None


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Client:
    """One server. The first request finds it; the others go to the same address."""

    def __init__(self, options: Namespace, timeout: float) -> None:
        """Reads the token. Raises `CtlError`."""
        self._options = options
        self._timeout = timeout
        self._token = read_token(options.token_file, os.environ)
        self._address: Address | None = None

    def get(self, path: str, query: Sequence[tuple[str, str]] = (), **headers: str) -> Reply:
        """Raises `CtlError`."""
        return self._checked(self._request("GET", _target(path, query), headers, self._timeout))

    def post(self, path: str, query: Sequence[tuple[str, str]] = (), tolerated: Iterable[int] = ()) -> Reply:
        """A change, which may take as long as it takes. Raises `CtlError`, but not for `tolerated` statuses."""
        return self._checked(self._request("POST", _target(path, query), {}, None), tolerated)

    @property
    def address(self) -> Address | None:
        """Where the server was found; `None` before the first request."""
        return self._address

    def version(self) -> str:
        """The version of the server. Raises `CtlError`."""
        return str(self._checked(self._request("GET", "/healthz", {}, self._timeout)).json["version"])

    def stream(self, path: str, query: Sequence[tuple[str, str]] = (), **headers: str) -> EventStream:
        """An open event stream. Raises `CtlError`."""
        headers = {"Accept": "text/event-stream", **headers}
        return EventStream(*self._open("GET", _target(path, query), headers, self._timeout))

    def _request(self, method: str, target: str, headers: Mapping[str, str], timeout: float | None) -> Reply:
        connection, _, response = self._open(method, target, headers, timeout)
        try:
            return Reply(response.status, response.headers, response.read())
        except (OSError, http.client.HTTPException) as error:
            raise ServerAway(f"{self._address}: the connection was lost: {reason(error)}") from None
        finally:
            connection.close()

    def _open(
        self, method: str, target: str, headers: Mapping[str, str], timeout: float | None
    ) -> tuple[http.client.HTTPConnection, socket.socket, http.client.HTTPResponse]:
        connection = self._connect()
        try:
            connection.request(method, self._prefix + target, headers={**headers, **self._credentials()})
            used = connection.sock  # the connection forgets it where the response ends with it, as a stream does
            assert used is not None
            used.settimeout(timeout)
            return connection, used, connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ServerAway(f"{self._address}: {reason(error)}") from None

    def _credentials(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def _connect(self) -> http.client.HTTPConnection:
        """A connection to the first address that takes one. Raises `ServerAway` with a line for each place."""
        if self._address is not None:
            try:
                return self._connected(self._address)
            except OSError as error:
                raise ServerAway(f"{self._address}: {reason(error)}") from None
        tried = []
        for place in places(self._options, os.environ):
            for address, problem in self._attempts(place):
                if isinstance(problem, http.client.HTTPConnection):
                    self._address = address
                    return problem
                is_named = address is None or place.name.endswith(address.socket or address.url)
                tried.append(f"{place.name}: {problem}" if is_named else f"{place.name}: {address}: {problem}")
        raise ServerAway("\n".join(["no server answers", *(f"  {line}" for line in tried)]))

    def _attempts(self, place: ServerPlace) -> Iterator[tuple[Address | None, str | http.client.HTTPConnection]]:
        if place.problem:
            yield None, place.problem
        for address in place.addresses:
            try:
                yield address, self._connected(address)
            except OSError as error:
                yield address, reason(error)

    def _connected(self, address: Address) -> http.client.HTTPConnection:
        """Raises `OSError`."""
        limit = min(self._timeout, _CONNECT_SECONDS)
        connection: http.client.HTTPConnection
        if address.socket:
            connection = _SocketConnection(address.socket, limit)
        else:
            parts = urlsplit(address.url)
            if parts.scheme == "https":
                import ssl  # only where it is needed: it takes 15 ms

                context = ssl.create_default_context(cafile=self._options.ca)
                connection = http.client.HTTPSConnection(
                    parts.hostname or "", parts.port, timeout=limit, context=context
                )
            else:
                connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=limit)
        connection.connect()
        return connection

    def _checked(self, reply: Reply, tolerated: Iterable[int] = ()) -> Reply:
        if reply.status < 300 or reply.status in tolerated:
            return reply
        raise refusal(reply.status, reply.body, reply.headers["Location"])

    @property
    def _prefix(self) -> str:
        """The path of the base URL, for a server behind a proxy."""
        return urlsplit(self._address.url).path if self._address and self._address.url else ""


class EventStream:
    """An open event stream: iterating gives events, with their fields by name; a heartbeat is an empty one.

    Raises `CtlError`.
    """

    def __init__(
        self, connection: http.client.HTTPConnection, used: socket.socket, response: http.client.HTTPResponse
    ) -> None:
        self._connection = connection
        self._socket = used
        self._response = response
        if response.status != 200:
            body = response.read(64 * 1024)
            connection.close()
            raise refusal(response.status, body, response.headers["Location"])
        self.limit(_QUIET_SECONDS)

    def limit(self, seconds: float) -> None:
        """How long to wait for more before `TimeoutError` is raised."""
        self._socket.settimeout(seconds)

    def __iter__(self) -> Iterator[dict[str, str]]:
        event: dict[str, str] = {}
        try:
            while raw := self._response.readline():
                line = raw.decode("utf-8", "replace").rstrip("\n")
                if not line:
                    yield event
                    event = {}
                name, _, value = line.partition(":")
                value = value.removeprefix(" ")
                if name in ("event", "data", "id"):
                    event[name] = f"{event[name]}\n{value}" if name in event else value
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ServerAway(f"the connection was lost: {reason(error)}") from None
        raise ServerAway("the connection was lost: the server closed it")

    def close(self) -> None:
        self._response.close()
        self._connection.close()


def refusal(status: int, body: bytes, location: str | None = None) -> CtlError:
    """The error for a status above 299, with the server's message, or with where it redirects to."""
    if status < 400 and location:
        return CtlError(f"the server redirects to {plain(location)}: name the address of pilothouse itself")
    try:
        content = json.loads(body)
        message, code = str(content.get("message") or content.get("detail") or status), str(content.get("code"))
    except (ValueError, AttributeError):
        message, code = f"the server answers {status}", ""
    exits = {"PROCESS_NOT_FOUND": UNKNOWN, "INVALID_SELECTOR": USAGE, **dict.fromkeys(("UNAUTHORIZED",), REFUSED)}
    return CtlError(message, _CODES.get(status) or exits.get(code) or FAILED)


def reason(error: Exception) -> str:
    """Why a connection failed, in the operating system's words."""
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
    verify = getattr(error, "verify_message", None)
    if verify:
        return f"its certificate is not trusted: {verify}"
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def _target(path: str, query: Sequence[tuple[str, str]]) -> str:
    return f"{API}{path}?{urlencode(query, quote_via=quote)}" if query else API + path


def read_token(file: str | None, environ: Mapping[str, str]) -> str:
    """The token of `--token-file`, else of PILOTHOUSE_TOKEN. Raises `CtlError`."""
    if file is None:
        return environ.get("PILOTHOUSE_TOKEN", "").strip()
    try:
        return Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CtlError(f"--token-file {file}: {getattr(error, 'strerror', None) or 'is not UTF-8'}", USAGE) from None
