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

from conftest import Answer, Server, wait_for

from models.supervision.events import StatusEvent, append
from models.supervision.tables import database

STATUSES = (
    "not_started", "running", "finished", "unknown", "failed", "failed_to_start",
    "stopped", "stopping", "aborted", "starting", "healthy", "unhealthy",
)  # fmt: skip
"""In the order of the specification."""

PROCESS_FIELDS = {
    "name", "status", "pid", "startTime", "endTime", "exitCode", "processRuntime", "processUptime",
    "stdoutLogfile", "stderrLogfile", "failedErrorLog",
}  # fmt: skip
EVENT_FIELDS = {
    "id", "pid", "eventTime", "processName", "startTime", "endTime", "exitCode", "newStatus", "oldStatus",
    "processUptime",
}  # fmt: skip
PAGE_FIELDS = {
    "content", "totalPages", "totalElements", "first", "last", "empty", "numberOfElements", "size", "number",
    "pageable", "sort",
}  # fmt: skip
PAGEABLE_FIELDS = {"pageSize", "pageNumber", "offset", "paged", "unpaged", "sort"}
SORT_FIELDS = {"unsorted", "sorted", "empty"}
SUPERVISOR_FIELDS = {"nodeName", "description", "physicalMemory", "physicalCpu", "operatingSystem", "availableMemory"}
ERROR_FIELDS = {"timestamp", "path", "error", "message", "code"}
PROBLEM_FIELDS = {"type", "title", "status", "detail", "instance", "message"}

TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")
DURATION = re.compile(r"PT(?=\d)(\d+H)?([1-5]?\dM)?([1-5]?\d(\.\d{0,5}[1-9])?S)?")
UPTIME = re.compile(r"\d\ds|\ds|(\d+d 1?\dh |\d+d 2[0-3]h |1?\dh |2[0-3]h )?[1-5]?\dm")

ERROR_CODES = {
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
    """Starts a server that several tests may share."""
    config = {**sections, "supervisor": {"processes": processes or {}, **sections.get("supervisor", {})}}
    server = Server(folder, config, {}, [])
    try:
        yield server.start()
    finally:
        server.close()


def ready(server: Server, path: str = "/readyz") -> Answer:
    """The first response that the server is ready: for ten seconds it is not where a busy machine holds up its loop."""
    found: Answer = wait_for(lambda: (answer := server.get(path)).status == 200 and answer, about="a ready server")
    return found


def write_history(data: Path, entries: Sequence[StatusEvent]) -> None:
    """Writes events into the data directory of a stopped server."""
    data.mkdir(mode=0o700, exist_ok=True)
    database.open(data / "pilothouse.db")
    with database.atomic():
        append(entries)
    database.close()


def json_body(answer: Answer) -> Any:
    """Returns the value of a JSON response: compact UTF-8, its media type without parameters."""
    assert answer.headers.get_all("Content-Type") == ["application/json"], answer.headers
    return parse_compact(answer)


def parse_compact(answer: Answer) -> Any:
    value = json.loads(answer.body)
    assert answer.body == json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(), "not compact"
    return value


def check_error(answer: Answer, status: int, path: str, code: str | None = None) -> Any:
    """Checks all fields of supervision's ErrorResponse and returns it."""
    assert answer.status == status, answer
    value = json_body(answer)
    assert set(value) == ERROR_FIELDS
    assert TIMESTAMP.fullmatch(value["timestamp"])
    assert value["path"] == path
    assert value["error"] == reason_phrase(status)
    assert value["message"]
    assert value["code"] == (code or ERROR_CODES[status])
    return value


def check_problem(answer: Answer, status: int, path: str, has_timestamp: bool) -> Any:
    """Checks all fields of a problem document and returns it. Only those of charts have a timestamp."""
    assert answer.status == status, answer
    assert answer.headers.get_all("Content-Type") == ["application/problem+json"]
    value = parse_compact(answer)
    assert set(value) == (PROBLEM_FIELDS | {"timestamp", "code"} if has_timestamp else PROBLEM_FIELDS)
    assert not has_timestamp or TIMESTAMP.fullmatch(value["timestamp"])
    assert (value["type"], value["status"], value["title"]) == ("about:blank", status, reason_phrase(status))
    assert value["instance"] == path
    assert value["message"] == value["detail"] != ""
    return value


def check_service_error(service: str, answer: Answer, status: int, path: str) -> Any:
    """Checks an error response in the format of this service."""
    if service == "supervision":
        return check_error(answer, status, path)
    return check_problem(answer, status, path, has_timestamp=service == "charts")


def reason_phrase(status: int) -> str:
    return {413: "Content Too Large", 422: "Unprocessable Content"}.get(status) or HTTPStatus(status).phrase


def connect(server: Server, timeout: float = 30.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=timeout)


def read_response(connection: socket.socket, method: str = "GET") -> Answer:
    """Reads the next response on a connection. Raises `http.client.HTTPException` or `OSError` if there is none."""
    response = http.client.HTTPResponse(connection, method=method)
    response.begin()
    streams = response.headers.get("Content-Type") == "text/event-stream" and method != "HEAD"
    return Answer(response.status, response.headers, b"" if streams else response.read())


def send_raw(server: Server, request: str | bytes, method: str = "GET") -> Answer:
    """Sends a request that a client library would refuse, and reads the response."""
    with connect(server) as connection:
        connection.sendall(request.encode() if isinstance(request, str) else request)
        return read_response(connection, method)


def send_request(server: Server, method: str, path: str, lines: Sequence[str] = (), host: str | None = None) -> Answer:
    """Sends a request with unchanged path and headers, and reads the response."""
    host = f"127.0.0.1:{server.port}" if host is None else host
    head = "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {host}", *lines])
    return send_raw(server, f"{head}\r\n\r\n", method)
