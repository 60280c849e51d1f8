"""An upload on its way: the request as a file, and the server that gets it, once whatever may happen.

The whole request is written to a file first, so that memory stays flat, its length is known, and it can be sent again.
It may always be sent again: it bears a run key, and a server counts a file only once for each.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import gzip
import http.client
import json
import os
import shutil
import signal
import ssl
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from email.message import Message
from pathlib import Path
from typing import IO, Any, NoReturn

from attrs import frozen

from models.config import parsers
from models.errors import Denied, Invalid, Problem, Unavailable
from supervisor.cli import ci_environment

_AGAIN = (429, 502, 503, 504)
_PAUSES = (0.4, 0.8)
_LONGEST_PAUSE = 30.0
_GZIP = b"\x1f\x8b"
_WORDS = 64 * 1024


@frozen
class Reply:
    status: int
    body: Any
    """What its JSON says, or its text where it is none."""


@frozen
class Parcel:
    """A request that is ready to be sent, as often as it takes."""

    file: IO[bytes]
    length: int
    media_type: str


@contextlib.contextmanager
def packed(fields: Mapping[str, str], files: Sequence[tuple[str, Path]], compress: bool) -> Iterator[Parcel]:
    """The multipart body of an upload, in a file that is gone afterwards."""
    boundary = uuid.uuid4().hex
    with tempfile.TemporaryFile() as body:
        for name, value in fields.items():
            body.write(_part_head(boundary, f'name="{name}"') + value.encode("utf-8", "replace") + b"\r\n")
        for name, path in files:
            shown = _shown(path).replace("\r", "%0D").replace("\n", "%0A").replace('"', "%22")
            body.write(_part_head(boundary, f'name="{name}"; filename="{shown}"', "application/octet-stream"))
            _add(path, body, compress)
            body.write(b"\r\n")
        body.write(f"--{boundary}--\r\n".encode())
        yield Parcel(body, body.tell(), f"multipart/form-data; boundary={boundary}")


def _part_head(boundary: str, about: str, media_type: str = "") -> bytes:
    kind = f"Content-Type: {media_type}\r\n" if media_type else ""
    head = f"--{boundary}\r\nContent-Disposition: form-data; {about}\r\n{kind}\r\n"
    return head.encode("utf-8", "replace")


def _shown(path: Path) -> str:
    """The path as a reader on another machine understands it."""
    if not path.is_absolute():
        return path.as_posix()
    return path.relative_to(Path.cwd()).as_posix() if path.is_relative_to(Path.cwd()) else path.name


def _add(path: Path, body: IO[bytes], compress: bool) -> None:
    try:
        with path.open("rb") as file:
            packed = file.read(len(_GZIP)) == _GZIP
            file.seek(0)
            if packed or not compress or not path.stat().st_size:
                shutil.copyfileobj(file, body)
            else:
                with gzip.GzipFile(fileobj=body, mode="wb", filename="", mtime=0, compresslevel=6) as pack:
                    shutil.copyfileobj(file, pack)
    except OSError as error:
        raise Invalid(f"{path}: {why(error)}") from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would make a GET of a POST, and hand our token to whoever it names."""

    def redirect_request(
        self, request: Any, file: Any, code: int, message: str, headers: Message, url: str
    ) -> NoReturn:
        raise Denied(f"the server sends us elsewhere ({code}): --url should be what leads to {url}")


class _Persistent(http.client.HTTPConnection):
    """Reads the answer of a server that has heard enough and closes while we are still sending."""

    def send(self, data: Any) -> None:
        if self.sock is None:
            self.connect()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            super().send(data)


class _PersistentSecure(_Persistent, http.client.HTTPSConnection):
    pass


class _Plain(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(_Persistent, request)


class _Secure(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(_PersistentSecure, request)


class Server:
    """The other end. Raises `Unavailable` where it cannot be reached or is broken, `Denied` where it refuses."""

    def __init__(self, base: str, token: str, timeout: float) -> None:
        self.base = base
        self._token = token
        self._timeout = timeout
        self._opener = urllib.request.build_opener(_NoRedirects, _Plain, _Secure)

    def post(self, parcel: Parcel) -> Mapping[str, Any]:
        """The created run, as the server tells it."""
        headers = {"Content-Type": parcel.media_type, "Content-Length": str(parcel.length)}
        reply = self._patiently("/api/v1/ingest", parcel.file, headers)
        if reply.status != 201 or not isinstance(reply.body, dict):
            raise Denied(f"this is no pilothouse: it answers {reply.status} to an upload")
        return reply.body

    def rules(self, run_id: int) -> list[str]:
        """What the gate says of a run, a line for each rule; whoever may only post reports is not told."""
        try:
            reply = self._patiently(f"/api/v1/runs/{run_id}/quality-gate")
        except Denied:
            return ["(a token of scope FULL would be told the rules too)"]
        rules = reply.body["rules"]
        return [f"{'passed' if rule['passed'] else 'FAILED'} {rule['name']}: {rule['detail']}" for rule in rules]

    def _patiently(self, path: str, body: IO[bytes] | None = None, headers: Mapping[str, str] | None = None) -> Reply:
        for pause in (*_PAUSES, None):
            try:
                reply, again = self._ask(path, body, headers or {})
            except (OSError, http.client.HTTPException) as error:
                if pause is None:
                    raise Unavailable(f"{self.base} cannot be reached: {why(error)}") from None
                again = None
            else:
                if reply.status not in _AGAIN or pause is None:
                    return _good(reply, self.base + path)
            time.sleep(min(max(pause, again or 0.0), _LONGEST_PAUSE))
        raise AssertionError("the last try returns or raises")

    def _ask(self, path: str, body: IO[bytes] | None, headers: Mapping[str, str]) -> tuple[Reply, float | None]:
        """The answer, and after how many seconds the server wants to be asked again."""
        if body is not None:
            body.seek(0)
        request = urllib.request.Request(self.base + path, body, {"Accept": "application/json", **headers})  # noqa: S310 (http or https)
        if self._token:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                return Reply(answer.status, _said(answer.read())), None
        except urllib.error.HTTPError as refusal:
            with refusal:
                again = refusal.headers.get("Retry-After", "")
                return Reply(refusal.code, _said(refusal.read(_WORDS))), float(again) if again.isdigit() else None


def _good(reply: Reply, url: str) -> Reply:
    """Raises for a status that is a failure, with the server's words."""
    if reply.status < 400:
        return reply
    words = reply.body.get("message") if isinstance(reply.body, dict) else None
    shown = "".join(letter if letter.isprintable() else " " for letter in str(words or "it says no more"))
    told = f"{reply.status}: {shown}"
    if reply.status >= 500:
        raise Unavailable(f"the server fails: {told}")
    if reply.status == 404:
        told += f" (asked at {url})"
    raise Denied(f"the server refuses: {told}")


def _said(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")


def why(error: Exception) -> str:
    """An error's own words, without the machinery around them."""
    cause = getattr(error, "reason", None)
    tls = error if isinstance(error, ssl.SSLError) else cause
    if isinstance(tls, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {tls.verify_message}"
    if isinstance(tls, ssl.SSLError):
        return f"there is no TLS to be agreed on ({tls.reason}); is it http?"
    reason = cause or getattr(error, "strerror", None) or error
    return str(getattr(reason, "strerror", None) or reason)


PASSED, GATE_FAILED = 0, 1
EXITS: Mapping[type[Problem], int] = {Invalid: 2, Unavailable: 3, Denied: 4}
"""Exit codes: what was asked for cannot be; the server cannot be reached or is broken; it refused."""

_FIELDS = ("branch", "commit", "flag", "runKey", "baseBranch", "prNumber", "buildUrl", "buildName", "repoUrl", "module")


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds what is to be said behind the verb."""
    parser.epilog = (
        "A token is taken from PILOTHOUSE_TOKEN. Exit codes: 0 passed, 1 the gate failed, 2 usage, "
        "3 unreachable, 4 refused."
    )
    parser.set_defaults(alone=main)
    parser.add_argument("--url", help="where it serves (default: PILOTHOUSE_URL, else http://127.0.0.1:8080)")
    parser.add_argument("--token-file", type=Path, help="a file with the token, instead of PILOTHOUSE_TOKEN")
    parser.add_argument("--project", required=True)
    for name, metavar in {"junit": "test reports", "jacoco": "coverage reports"}.items():
        told = f"{metavar}; ** goes through folders; may be repeated"
        parser.add_argument(f"--{name}", metavar="GLOB", action="append", default=[], help=told)
    for name in _FIELDS:
        parser.add_argument(f"--{_dashed(name)}", dest=name, metavar=name.upper(), help=_HELP.get(name))
    parser.add_argument("--no-gzip", action="store_true", help="send the files as they are")
    parser.add_argument("--gate", action="store_true", help="exit with 1 where the quality gate fails")
    parser.add_argument("--timeout", type=_seconds, default=120.0, metavar="S", help="seconds without an answer (120)")


_HELP = {
    "branch": "this and what follows: default from the CI system's environment, where there is one",
    "runKey": "uploads of one key are one run (default: the CI system's run, else a new one)",
}


def _seconds(raw: str) -> float:
    try:
        return parsers.some_time(parsers.seconds(raw))
    except parsers.ValidationError as unfit:
        raise argparse.ArgumentTypeError(str(unfit)) from None


def _dashed(name: str) -> str:
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name)


def main(asked: argparse.Namespace) -> int:
    """Returns the exit code. Ctrl-C ends the process at once (130 to a shell): nothing is left of it.

    As an exception it could come between two instructions of ours just before a wait, which would not notice it.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # a script's background job ignores it, and goes on
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return _upload(asked)
    except Problem as problem:
        print(f"pilothouse upload: {problem.message}", file=sys.stderr)
        return EXITS[type(problem)]
    finally:
        signal.signal(signal.SIGINT, before)


def _upload(asked: argparse.Namespace) -> int:
    files = [(name, file) for name in ("junit", "jacoco") for file in _matches(name, getattr(asked, name))]
    if not asked.junit:
        raise Invalid("--junit GLOB is needed: a run has test reports")
    server = Server(_base(asked.url), _token(asked.token_file), asked.timeout)
    with packed(_fields(asked), files, not asked.no_gzip) as parcel:
        run = server.post(parcel)
    print(_summary(run, server.base))
    if not asked.gate:
        return PASSED
    for line in server.rules(run["runId"]):
        print(line)
    print(f"gate: {run['gateStatus']}")
    return PASSED if run["gateStatus"] == "PASSED" else GATE_FAILED


def _summary(run: Mapping[str, Any], base: str) -> str:
    covered = run["lineCoveragePct"]
    coverage = "" if covered is None else f", {int(covered * 100) / 100:.2f} % of lines"
    counts = f"{run['tests']} tests, {run['failures']} failed, {run['skipped']} skipped{coverage}"
    return f"{run['project']}: {counts}; {base}{run['runPath']}"


def _fields(asked: argparse.Namespace) -> dict[str, str]:
    """What was given, else what the CI system tells; a flag's run is one of its own."""
    if not asked.project.strip():
        raise Invalid("--project is blank")
    told = ci_environment.facts(os.environ)
    given = {name: value for name in _FIELDS if (value := getattr(asked, name))}
    if "runKey" in told and given.get("flag"):
        told["runKey"] += f"/{given['flag']}"
    return {"project": asked.project, "runKey": f"upload-{uuid.uuid4().hex}", **told, **given}


def _matches(name: str, patterns: Sequence[str]) -> list[Path]:
    found: dict[Path, None] = {}
    for pattern in patterns:
        names = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 (absolute ones too)
        files = [path for path in map(Path, names) if path.is_file()]
        if not files:
            why_not = "this is a folder: name its files" if Path(pattern).is_dir() else "there is no such file"
            raise Invalid(f"--{name} {pattern}: {why_not}")
        found |= dict.fromkeys(files)
    return list(found)


def _base(given: str | None) -> str:
    url = (given or os.environ.get("PILOTHOUSE_URL") or "http://127.0.0.1:8080").rstrip("/")
    try:
        parts = urllib.parse.urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        raise Invalid("--url must be an http or https URL") from None
    if not good or not url.isascii() or not url.isprintable() or " " in url:
        raise Invalid("--url must be an http or https URL")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise Invalid("--url has a host, a port and a path alone")
    return url


def _token(file: Path | None) -> str:
    token = os.environ.get("PILOTHOUSE_TOKEN", "")
    if file is not None:
        try:
            token = file.read_text()
        except (OSError, ValueError) as error:
            raise Invalid(f"--token-file {file}: {why(error)}") from None
        if not token.strip():
            raise Invalid(f"--token-file {file}: it is empty")
    token = token.strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise Invalid("the token is none: it has characters that a token cannot have")
    return token
