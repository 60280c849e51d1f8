"""Helpers for tests of the HTTP contract: requests, and checks of responses."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from conftest import Answer, Server

from models.supervision.events import Entry, append
from models.supervision.tables import database

STATUSES = (
    "not_started", "running", "finished", "unknown", "failed", "failed_to_start",
    "stopped", "stopping", "aborted", "starting", "healthy", "unhealthy",
)  # fmt: skip
"""In the seed's order."""

PROCESS = {
    "name", "status", "pid", "startTime", "endTime", "exitCode", "processRuntime", "processUptime",
    "stdoutLogfile", "stderrLogfile", "failedErrorLog",
}  # fmt: skip
EVENT = {
    "id", "pid", "eventTime", "processName", "startTime", "endTime", "exitCode", "newStatus", "oldStatus",
    "processUptime",
}  # fmt: skip
PAGE = {
    "content", "totalPages", "totalElements", "first", "last", "empty", "numberOfElements", "size", "number",
    "pageable", "sort",
}  # fmt: skip
PAGEABLE = {"pageSize", "pageNumber", "offset", "paged", "unpaged", "sort"}
SORT = {"unsorted", "sorted", "empty"}
SUPERVISOR = {"nodeName", "description", "physicalMemory", "physicalCpu", "operatingSystem", "availableMemory"}
ERROR = {"timestamp", "path", "error", "message", "code"}
PROBLEM = {"type", "title", "status", "detail", "instance", "message"}

WHEN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")
LENGTH = re.compile(r"PT(?=\d)(\d+H)?([1-5]?\dM)?([1-5]?\d(\.\d{0,5}[1-9])?S)?")
UPTIME = re.compile(r"\d\ds|\ds|(\d+d 1?\dh |\d+d 2[0-3]h |1?\dh |2[0-3]h )?[1-5]?\dm")

CODES = {
    400: "VALIDATION_ERROR",
    401: "UNAUTHORIZED",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    413: "CONTENT_TOO_LARGE",
    421: "MISDIRECTED_REQUEST",
    503: "SERVICE_UNAVAILABLE",
}
"""The default codes of an ErrorResponse."""


@contextlib.contextmanager
def running_server(folder: Path, processes: dict[str, Any] | None = None, **sections: Any) -> Iterator[Server]:
    """A running server, which several tests may share."""
    config = {**sections, "supervisor": {"processes": processes or {}, **sections.get("supervisor", {})}}
    server = Server(folder, config, {}, [])
    try:
        yield server.start()
    finally:
        server.close()


def write_history(data: Path, entries: Sequence[Entry]) -> None:
    """Writes a history into the data directory of a server that is not running."""
    data.mkdir(mode=0o700, exist_ok=True)
    database.open(data / "pilothouse.db")
    with database.atomic():
        append(entries)
    database.close()


def body(answer: Answer) -> Any:
    """The value of a JSON response, which must be compact UTF-8 with a media type without parameters."""
    assert answer.headers.get_all("Content-Type") == ["application/json"], answer.headers
    return compact(answer)


def compact(answer: Answer) -> Any:
    value = json.loads(answer.body)
    assert answer.body == json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(), "not compact"
    return value


def error(answer: Answer, status: int, path: str, code: str | None = None) -> Any:
    """Checks all fields of supervision's ErrorResponse and returns it."""
    assert answer.status == status, answer
    value = body(answer)
    assert set(value) == ERROR
    assert WHEN.fullmatch(value["timestamp"])
    assert value["path"] == path
    assert value["error"] == reason(status)
    assert value["message"]
    assert value["code"] == (code or CODES[status])
    return value


def problem(answer: Answer, status: int, path: str, dated: bool) -> Any:
    """Checks all fields of a problem document and returns it: that of charts is dated, the tracker's is not."""
    assert answer.status == status, answer
    assert answer.headers.get_all("Content-Type") == ["application/problem+json"]
    value = compact(answer)
    assert set(value) == (PROBLEM | {"timestamp", "code"} if dated else PROBLEM)
    assert not dated or WHEN.fullmatch(value["timestamp"])
    assert (value["type"], value["status"], value["title"]) == ("about:blank", status, reason(status))
    assert value["instance"] == path
    assert value["message"] == value["detail"] != ""
    return value


def error_of(service: str, answer: Answer, status: int, path: str) -> Any:
    """The error shape of a service, by its name."""
    if service == "supervision":
        return error(answer, status, path)
    return problem(answer, status, path, dated=service == "charts")


def reason(status: int) -> str:
    return {413: "Content Too Large", 422: "Unprocessable Content"}.get(status) or HTTPStatus(status).phrase


def connect(server: Server, timeout: float = 30.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=timeout)


def answered(connection: socket.socket, method: str = "GET") -> Answer:
    """The next response on a connection. Raises `http.client.HTTPException` or `OSError` if there is none."""
    response = http.client.HTTPResponse(connection, method=method)
    response.begin()
    streams = response.headers.get("Content-Type") == "text/event-stream" and method != "HEAD"
    return Answer(response.status, response.headers, b"" if streams else response.read())


def raw(server: Server, request: str | bytes, method: str = "GET") -> Answer:
    """Sends a request that a client library would refuse, and reads the response."""
    with connect(server) as connection:
        connection.sendall(request.encode() if isinstance(request, str) else request)
        return answered(connection, method)


def send_request(server: Server, method: str, path: str, lines: Sequence[str] = (), host: str | None = None) -> Answer:
    """Sends a request with unchanged path and headers, and reads the response."""
    host = f"127.0.0.1:{server.port}" if host is None else host
    head = "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {host}", *lines])
    return raw(server, f"{head}\r\n\r\n", method)
