"""The HTTP side of an upload: a multipart body in a temporary file, sent until the server answers.

The whole request is written to a file first, so that memory stays flat, its length is known and it can be sent again.
Sending again is always safe: the request has a run key, and a server counts a file once for each key. Only the standard
library is used: this is a part of the stand-alone uploader.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import io
import json
import shutil
import ssl
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from email.message import Message
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

RETRIED_STATUSES = (408, 425, 429, 500, 502, 503, 504)
MAX_PAUSE_SECONDS = 15.0
_FIRST_PAUSE_SECONDS = 1.0
_GZIP_MAGIC = b"\x1f\x8b"
_MAX_ERROR_BYTES = 64 * 1024

USAGE, UNREACHABLE, REFUSED = 2, 3, 4


class UploadError(Exception):
    """Ends the upload with an exit code and a message."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class UploadReply(NamedTuple):
    status: int
    body: Any
    """The JSON of the body, or its text."""
    server: str
    """The header Server."""


class Packed(NamedTuple):
    """A request body that can be sent repeatedly."""

    file: IO[bytes]
    length: int
    media_type: str


@contextlib.contextmanager
def packed(
    fields: Mapping[str, str],
    files: Sequence[tuple[str, Path]],
    texts: Mapping[str, str],
    compress: bool,
    attachments: Mapping[str, Path],
) -> Iterator[Packed]:
    """The multipart body of an upload, in a temporary file.

    `texts` are sent as files, `attachments` as they are, under the names by which the reports refer to them.
    """
    boundary = uuid.uuid4().hex
    with tempfile.TemporaryFile() as body:
        for name, value in fields.items():
            body.write(_part_head(boundary, f'name="{name}"') + value.encode("utf-8", "replace") + b"\r\n")
        for name, text in texts.items():
            body.write(_part_head(boundary, f'name="{name}"; filename="{name}"', "application/octet-stream"))
            body.write(text.encode("utf-8", "surrogateescape") + b"\r\n")
        sent = [(name, _display_path(path), path, compress and name != "attachment") for name, path in files]
        sent += [("attachment", shown, path, False) for shown, path in attachments.items()]
        for name, shown, path, is_packed in sent:
            quoted = shown.replace("\r", "%0D").replace("\n", "%0A").replace('"', "%22")
            body.write(_part_head(boundary, f'name="{name}"; filename="{quoted}"', "application/octet-stream"))
            _add(path, body, is_packed)
            body.write(b"\r\n")
        body.write(f"--{boundary}--\r\n".encode())
        yield Packed(body, body.tell(), f"multipart/form-data; boundary={boundary}")


def _part_head(boundary: str, disposition: str, media_type: str = "") -> bytes:
    content_type = f"Content-Type: {media_type}\r\n" if media_type else ""
    head = f"--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\n{content_type}\r\n"
    return head.encode("utf-8", "replace")


def _display_path(path: Path) -> str:
    """The path relative to the working directory, else the file name."""
    if not path.is_absolute():
        return path.as_posix()
    return path.relative_to(Path.cwd()).as_posix() if path.is_relative_to(Path.cwd()) else path.name


def _add(path: Path, body: IO[bytes], compress: bool) -> None:
    try:
        with path.open("rb") as file:
            is_packed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            file.seek(0)
            if is_packed or not compress or not path.stat().st_size:
                shutil.copyfileobj(file, body)
            else:
                with gzip.GzipFile(fileobj=body, mode="wb", filename="", mtime=0, compresslevel=6) as pack:
                    shutil.copyfileobj(file, pack)
    except OSError as error:
        raise UploadError(USAGE, f"{path}: {reason_of(error)}") from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would turn POST into GET and send the token to another host."""

    def redirect_request(
        self, request: Any, file: Any, code: int, message: str, headers: Message, url: str
    ) -> NoReturn:
        raise UploadError(REFUSED, f"the server redirects ({code}): use --url with the address that leads to {url}")


class _UploadConnection(http.client.HTTPConnection):
    """Reads the answer of a server that refuses and closes while the body is still being sent."""

    def send(self, data: Any) -> None:
        if self.sock is None:
            self.connect()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            super().send(data)


class _SecureConnection(_UploadConnection, http.client.HTTPSConnection):
    pass


class _Http(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(_UploadConnection, request)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(_SecureConnection, request)


class RemoteServer:
    """A Pilothouse server. Methods raise `UploadError` where it is unreachable, fails or refuses."""

    def __init__(
        self,
        base: str,
        token: str,
        timeout: float,
        retry_for: float,
        tried: Sequence[str] = (),
        is_awaited: bool = True,
    ) -> None:
        """`retry_for`: seconds from the first failure in which a request is tried again.

        `tried` are the places in which no server was found before this one. Where it is not `is_awaited`, nothing is
        known of a server there, and without an answer the first request is not tried again.
        """
        self.base = base
        self._token = token
        self._timeout = timeout
        self._retry_for = retry_for
        self._tried = "".join(f"\n  {line}" for line in tried)
        self._is_awaited = is_awaited
        self._has_answered = False
        self._opener = urllib.request.build_opener(_NoRedirects, _Http, _Https)

    def post(self, path: str, body: Packed, status: int) -> Mapping[str, Any]:
        """The JSON object of the answer, which has `status`."""
        headers = {"Content-Type": body.media_type, "Content-Length": str(body.length)}
        reply = self._request(path, body.file, headers)
        if reply.status != status or not isinstance(reply.body, dict) or "gateStatus" not in reply.body:
            raise UploadError(REFUSED, f"{self._described(reply)} answers {reply.status} to an upload{_HINT}")
        return reply.body

    def post_json(self, path: str, fields: Mapping[str, Any]) -> Any:
        """Posts a JSON object; the JSON object of the answer."""
        body = io.BytesIO(json.dumps(fields).encode())
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body.getvalue()))}
        return self._object(path, body, headers)

    def get(self, path: str) -> Any:
        """The JSON object of the answer."""
        return self._object(path, None, {})

    def _object(self, path: str, body: IO[bytes] | None, headers: Mapping[str, str]) -> Mapping[str, Any]:
        reply = self._request(path, body, headers)
        if not isinstance(reply.body, dict):
            raise UploadError(REFUSED, f"{self._described(reply)} answers {reply.status} without JSON to {path}{_HINT}")
        return reply.body

    def _request(self, path: str, body: IO[bytes] | None, headers: Mapping[str, str]) -> UploadReply:
        pause, end = _FIRST_PAUSE_SECONDS, None
        while True:
            after = None
            try:
                reply, after = self._send(path, body, headers)
                self._has_answered = True
                problem = None if reply.status < 400 else self._problem(reply, path)
                if problem is None:
                    return reply
                is_retried = reply.status in RETRIED_STATUSES
            except (OSError, http.client.HTTPException) as error:
                problem = UploadError(UNREACHABLE, f"{self.base} cannot be reached: {reason_of(error)}{_HINT}")
                is_tls = isinstance(getattr(error, "reason", error), ssl.SSLError)
                is_retried = (self._is_awaited or self._has_answered) and not is_tls
            now = time.monotonic()
            end = now + self._retry_for if end is None else end
            wait = pause if after is None else after
            if not is_retried or now + wait > end:
                raise problem if self._has_answered else UploadError(problem.exit_code, f"{problem}{self._tried}")
            print(f"pilothouse upload: {problem}; trying again in {wait:g} s", file=sys.stderr, flush=True)
            time.sleep(wait)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)

    def _send(self, path: str, body: IO[bytes] | None, headers: Mapping[str, str]) -> tuple[UploadReply, float | None]:
        """The answer, and the seconds of its Retry-After."""
        if body is not None:
            body.seek(0)
        request = urllib.request.Request(self.base + path, body, {"Accept": "application/json", **headers})  # noqa: S310 (http or https)
        if self._token:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                return UploadReply(answer.status, _decoded(answer.read()), answer.headers.get("Server", "")), None
        except urllib.error.HTTPError as refusal:
            with refusal:
                after = refusal.headers.get("Retry-After", "")
                body_read = _decoded(refusal.read(_MAX_ERROR_BYTES))
                reply = UploadReply(refusal.code, body_read, refusal.headers.get("Server", ""))
                return reply, float(after) if after.isascii() and after.isdigit() else None

    def _problem(self, reply: UploadReply, path: str) -> UploadError:
        message = reply.body.get("message") if isinstance(reply.body, dict) else None
        text = f"{reply.status}: {_printable(str(message or 'no reason was given'))}"
        if reply.status >= 500:
            return UploadError(UNREACHABLE, f"{self._described(reply)} fails: {text}")
        if reply.status in (404, 405):
            text += f" (requested {self.base + path}){_HINT}"
        return UploadError(REFUSED, f"{self._described(reply)} refuses: {text}")

    def _described(self, reply: UploadReply) -> str:
        name = "".join(c for c in reply.server if c.isprintable())[:60]
        return f"the server at {self.base}" + (f" ({name})" if name else "")


_HINT = "; is this Pilothouse's address? Set --url or PILOTHOUSE_URL"


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace")


def _printable(text: str) -> str:
    """One line, without what a terminal would take as a command."""
    return "".join(c if c.isprintable() else " " for c in text).strip()


def reason_of(error: Exception) -> str:
    """The reason of an error in a few words."""
    cause = getattr(error, "reason", None)
    tls = error if isinstance(error, ssl.SSLError) else cause
    if isinstance(tls, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {tls.verify_message}"
    if isinstance(tls, ssl.SSLError):
        return f"it does not speak TLS ({tls.reason}); is it http?"
    reason = cause or getattr(error, "strerror", None) or error
    return _printable(str(getattr(reason, "strerror", None) or reason))
