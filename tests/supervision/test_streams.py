"""Event streams: headers, `connected`, status changes with replay, followed logs, and the limit of streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import AsyncMock, Mock

import changed_constants
import peewee
import pytest
from conftest import TIMEOUT_SECONDS, Serve, Server, Stream, python_command, wait_for
from http_checks import EVENT_FIELDS, check_error, check_problem, parse_compact, running_server, write_history
from users import bearer, create_token, open_accounts

from handlers.http import stream_credentials
from handlers.http.stream_credentials import StreamCredentials
from models.errors import Unavailable
from models.supervision.events import StatusEvent
from models.supervision.process import Status
from models.tracker.tables import reports

STATUS = "/api/v1/processes/stream"
RUNS = "/tracker/api/v1/events"
IDLE = {"idle": {"command": "true", "stdout-logfile": "idle.log"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    processes: dict[str, Any] = {**IDLE, "sleeper": {"command": "sleep 1000"}}
    with running_server(tmp_path_factory.mktemp("streams"), processes) as server:
        yield server


def old_events(count: int) -> list[StatusEvent]:
    return [
        StatusEvent(
            id=id,
            at=1_800_000_000_000_000 + id,
            process="old",
            pid=id,
            start=None,
            end=None,
            exit_code=None,
            new=Status.STARTING if id % 2 else Status.RUNNING,
            old=Status.NOT_STARTED if id % 2 else Status.STARTING,
            uptime=0,
        )
        for id in range(1, count + 1)
    ]


def changes(stream: Stream, count: int) -> list[dict[str, Any]]:
    """Reads the next status changes and checks that each has the format of the history."""
    found = []
    for _ in range(count):
        result = stream.next()
        assert result["event"] == "status"
        change = json.loads(result["data"])
        assert result["data"] == json.dumps(change, separators=(",", ":"), ensure_ascii=False)
        assert set(change) == EVENT_FIELDS
        assert result["id"] == str(change["id"])
        found.append(change)
    return found


def remaining_events(stream: Stream) -> Iterator[dict[str, str]]:
    """The events until the stream ends."""
    with contextlib.suppress(EOFError):
        while True:
            yield stream.next()


def open_streams(server: Server) -> float:
    found = re.search(r"^pilothouse_streams_open (\S+)$", server.get("/metrics").text, re.M)
    assert found
    return float(found[1])


# Headers


@pytest.mark.parametrize(
    "path", [STATUS, f"/supervision{STATUS}", RUNS, "/api/v1/events", "/api/v1/processes/logs/idle"]
)
def test_stream_headers_forbid_caching_and_buffering(server: Server, path: str) -> None:
    stream = server.stream(path)
    assert stream.status == 200
    assert stream.headers.get_all("Content-Type") == ["text/event-stream"]
    assert stream.headers["Cache-Control"] == "no-cache"
    assert stream.headers["X-Accel-Buffering"] == "no"
    assert stream.headers["X-Content-Type-Options"] == "nosniff"
    assert "Content-Length" not in stream.headers
    assert "Server" not in stream.headers
    stream.close()


STREAMS = [STATUS, RUNS, "/api/v1/events", "/api/v1/live", "/api/v1/processes/logs/idle"]


@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_ends_when_its_token_is_revoked(server: Server, path: str) -> None:
    stream = server.stream(path, **bearer(create_token(server.data, "leaver")))
    assert stream.status == 200
    with open_accounts(server.data):
        reports.execute_sql("UPDATE token SET revoked_at = 1")
    list(remaining_events(stream))
    stream.close()


def test_a_stream_ends_with_its_token_also_after_the_store_could_not_be_read(serve: Serve) -> None:
    one = serve(command=changed_constants.server_command(handlers__http__stream_credentials___MIN_CHECK_SECONDS=0.05))
    stream = one.stream(STATUS, **bearer(create_token(one.data, "leaver")))
    with open_accounts(one.data):
        reports.execute_sql("ALTER TABLE token RENAME TO away")
    wait_for(lambda: "the credentials of streams could not be checked" in one.log.read_text())
    with open_accounts(one.data):
        reports.execute_sql("UPDATE away SET revoked_at = 1")
        reports.execute_sql("ALTER TABLE away RENAME TO token")
    list(remaining_events(stream))
    stream.close()


def test_the_check_of_credentials_survives_any_error_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_credentials, "_MIN_CHECK_SECONDS", 0.01)

    async def work() -> None:
        answers = iter((peewee.DatabaseError("the connection broke"), Unavailable("not now"), [False]))
        checks = StreamCredentials(Mock(are_valid=AsyncMock(side_effect=answers)))
        stream, ended = Mock(), asyncio.Event()
        stream.close.side_effect = ended.set
        checks.add(stream, Mock(kind="token", id=1))
        await asyncio.wait_for(ended.wait(), TIMEOUT_SECONDS)
        stream.when_closed.call_args.args[0](stream)

    asyncio.run(work())


@pytest.mark.parametrize("path", [*STREAMS, "/sse", "/api/v1/processes/logs/idle?download=true"])
def test_head_of_a_stream_ends_and_has_no_length(server: Server, path: str) -> None:
    answer = server.ask("HEAD", path, headers={"Accept": "text/event-stream"} if "?" not in path else {})
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["Content-Type"] == ("text/event-stream" if "?" not in path else "text/plain; charset=utf-8")
    assert "Content-Length" not in answer.headers
    assert server.get("/healthz").status == 200


def test_tracker_stream_begins_with_the_event_line_of_connected(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(f"GET {RUNS} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        received = b""
        while not received.endswith(b"data: {}\n\n"):
            received += connection.recv(1000)
    assert received.partition(b"\r\n\r\n")[2] == b"event: connected\nretry: 3000\ndata: {}\n\n"


# Status changes


@pytest.mark.parametrize("path", [STATUS, f"/supervision{STATUS}"])
def test_every_change_is_streamed_as_the_history_reports_it(server: Server, path: str) -> None:
    stream = server.stream(path)
    server.do("start", "sleeper")
    server.do("stop", "sleeper")
    found = changes(stream, 4)
    assert [change["newStatus"] for change in found] == ["starting", "running", "stopping", "stopped"]
    for change in found:
        assert parse_compact(server.get(f"/api/v1/events/{change['id']}")) == change
    stream.close()


def test_new_stream_has_no_earlier_events(server: Server) -> None:
    server.do("restart", "sleeper")
    stream = server.stream(STATUS)
    server.do("stop", "sleeper")
    assert [change["newStatus"] for change in changes(stream, 2)] == ["stopping", "stopped"]
    stream.close()


@pytest.mark.parametrize("last", ["", "x", "-1", "1.5", "9" * 30, "٣", "1 2", "0x1", "null"])
def test_invalid_last_event_id_counts_as_absent(server: Server, last: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(f"GET {STATUS} HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: {last}\r\n\r\n".encode())
        received = b""
        while b": status changes" not in received:
            received += connection.recv(1000)
        assert received.startswith(b"HTTP/1.1 200")
        assert b"event: status" not in received


@pytest.mark.parametrize("count", [1, 99, 100, 101, 499, 500, 501, 1500, 6000])
def test_last_event_id_replays_missed_events_once_without_a_gap(serve: Serve, count: int) -> None:
    server = serve(IDLE, wait=False)
    write_history(server.data, old_events(count + 1))
    server.start()
    stream = server.stream(STATUS, Last_Event_ID="1")
    server.do("start", "idle")
    server.until("idle", "finished")
    assert [change["id"] for change in changes(stream, count + 3)] == list(range(2, count + 5))
    stream.close()


@pytest.mark.parametrize(("last", "first"), [("0", 1), ("10", 11), ("9999", 11)])
def test_replay_begins_after_the_last_event_id(serve: Serve, last: str, first: int) -> None:
    server = serve(IDLE, wait=False)
    write_history(server.data, old_events(10))
    server.start()
    stream = server.stream(STATUS, Last_Event_ID=last)
    if int(last) < 9999:
        server.do("start", "idle")
        assert changes(stream, 1)[0]["id"] == first
    stream.close()


def test_reconnecting_clients_get_every_change_once(serve: Serve) -> None:
    """Clients disconnect and reconnect with their last event id during the changes."""
    server = serve({"idle": {"command": "true"}, "other": {"command": "true"}})
    rounds = 25
    seen: dict[int, list[int]] = {number: [] for number in range(4)}
    total = rounds * 2 * 3

    def watch(number: int) -> None:
        while not seen[number] or seen[number][-1] < total:
            stream = server.stream(STATUS, Last_Event_ID=str(seen[number][-1] if seen[number] else 0))
            wanted = min(number + 5, total - (seen[number][-1] if seen[number] else 0))
            seen[number] += [change["id"] for change in changes(stream, wanted)]
            stream.close()

    watchers = [threading.Thread(target=watch, args=(number,), daemon=True) for number in seen]
    for watcher in watchers:
        watcher.start()
    for _ in range(rounds):
        assert server.post("/api/v1/processes/group/start").status == 200
        wait_for(lambda: all(p["status"] == "finished" for p in server.get("/api/v1/processes").json))
    for watcher in watchers:
        watcher.join(30)
    assert all(found == list(range(1, total + 1)) for found in seen.values())


# The limit of streams, and slow clients


def test_last_streams_are_reserved_for_callers_with_an_account(serve: Serve) -> None:
    server = serve(IDLE, server={"max-streams": 10})
    streams = [server.stream(STATUS) for _ in range(9)]
    check_error(server.get(STATUS, Accept="text/event-stream"), 503, STATUS)
    token = create_token(server.data, "ulla")
    streams.append(server.stream(STATUS, Authorization=f"Bearer {token}"))
    assert streams[-1].status == 200
    for stream in streams:
        stream.close()


def test_more_than_max_streams_is_503_with_retry_after(serve: Serve) -> None:
    server = serve(IDLE, server={"max-streams": 2})
    streams = [server.stream(STATUS), server.stream(RUNS)]
    for path in (STATUS, f"/supervision{STATUS}", "/api/v1/processes/logs/idle"):
        answer = server.get(path, Accept="text/event-stream")
        check_error(answer, 503, path)
        assert int(answer.headers["Retry-After"]) > 0
    answer = server.get(RUNS)
    check_problem(answer, 503, RUNS, has_timestamp=False)
    assert int(answer.headers["Retry-After"]) > 0
    assert server.get("/api/v1/processes").status == 200
    streams.pop().close()
    wait_for(lambda: open_streams(server) == 1, about="a closed stream to free its place")
    streams.append(server.stream(STATUS))
    assert streams[-1].status == 200
    for stream in streams:
        stream.close()


def test_stream_of_a_disconnected_client_is_not_counted(server: Server) -> None:
    wait_for(lambda: open_streams(server) == 0)
    streams = [server.stream(path) for path in (STATUS, RUNS, "/api/v1/processes/logs/idle")]
    assert open_streams(server) == 3
    for stream in streams:
        stream.close()
    wait_for(lambda: open_streams(server) == 0, about="the end of three streams")


def test_a_slow_client_is_dropped_and_a_fast_one_misses_nothing(serve: Serve) -> None:
    names = [f"{number}{'ü' * 250}" for number in range(20)]
    server = serve({name: {"command": "true"} for name in names}, server={"stream-buffer": "64K"})
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(("127.0.0.1", server.port))
    slow.sendall(f"GET {STATUS} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    fast = server.stream(STATUS)
    seen: list[int] = []

    def read() -> None:
        with contextlib.suppress(EOFError, OSError, ValueError):
            while True:
                seen.append(int(fast.next()["id"]))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    wait_for(lambda: open_streams(server) == 2)
    for _ in range(200):
        server.post("/api/v1/processes/group/start")
        if open_streams(server) == 1:
            break
    assert open_streams(server) == 1
    total = wait_for(lambda: server.get("/api/v1/events/count").json["totalEvents"])
    wait_for(lambda: len(seen) >= total)
    assert seen[:total] == list(range(1, total + 1))
    slow.close()
    server.stop()
    reader.join(30)
    fast.close()


def test_server_stop_ends_all_streams(serve: Serve) -> None:
    server = serve(IDLE)
    streams = [server.stream(path) for path in (STATUS, RUNS, "/api/v1/processes/logs/idle")]
    assert server.stop() == 0
    for stream in streams:
        result = list(remaining_events(stream))
        assert len(result) <= 1
        assert all(event["event"] == "connected" for event in result)
        stream.close()


# Followed logs


def test_log_stream_begins_with_the_last_lines_and_follows_the_file(serve: Serve) -> None:
    code = """
import pathlib, time
print('one\\ntwo\\nthree', flush=True)
while not pathlib.Path('go').exists():
    time.sleep(0.01)
print('four ü \\u2028 \\x0b five', flush=True)
time.sleep(1000)
"""
    server = serve(
        {"talker": {"command": python_command(code), "stdout-logfile": "talk.log", "environment": {"PYTHONUTF8": "1"}}}
    )
    server.do("start", "talker")
    wait_for(lambda: (server.folder / "talk.log").read_bytes().endswith(b"three\n"))  # its end is a write of its own
    stream = server.stream("/api/v1/processes/logs/talker?lines=2")
    assert stream.next() == {"retry": "3000", "event": "log", "data": "two\nthree"}
    (server.folder / "go").touch()
    assert stream.next() == {"event": "log", "data": "four ü \u2028 \x0b five"}
    stream.close()


def test_last_ten_thousand_lines_of_a_log_are_streamed(serve: Serve) -> None:
    lines = [f"{number} {'x' * 200}" for number in range(10_000)]
    server = serve(IDLE, wait=False)
    (server.folder / "idle.log").write_text("\n".join(lines) + "\n")
    server.start()
    stream = server.stream("/api/v1/processes/logs/idle?lines=10000")
    timeout = threading.Timer(15, stream.socket.shutdown, [socket.SHUT_RDWR])  # heartbeats prevent the socket's timeout
    timeout.start()
    found: list[str] = []
    while len(found) < len(lines):
        found += stream.next()["data"].split("\n")
    timeout.cancel()
    assert found == lines
    stream.close()


@pytest.mark.parametrize(
    ("what", "status", "code"),
    [
        ("nosuch", 404, "PROCESS_NOT_FOUND"),
        ("sleeper", 404, "NOT_FOUND"),
        ("idle?lines=0", 400, None),
        ("idle?stream=x", 400, None),
    ],
)
def test_a_log_that_cannot_be_followed_is_an_error_response(
    server: Server, what: str, status: int, code: str | None
) -> None:
    path = f"/api/v1/processes/logs/{what.partition('?')[0]}"
    check_error(server.get(f"/api/v1/processes/logs/{what}", Accept="text/event-stream"), status, path, code)
    head = server.ask("HEAD", f"/api/v1/processes/logs/{what}", headers={"Accept": "text/event-stream"})
    assert (head.status, head.headers["Content-Type"], head.body) == (status, "application/json", b"")
