"""Clients that send a byte now and then, or never read, cost little and are disconnected in the end."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import changed_constants
import pytest
import trustme
from chart_servers import WebServer, chart_archive, web_server
from conftest import Server, wait_for
from fault_injection import (
    API,
    PULL,
    SLEEPER,
    ParallelRequests,
    charts_settings,
    check_no_traceback,
    check_reads,
    create_records,
    is_swept,
    open_descriptors,
    resident_mib,
    send_prepared,
    upload_request,
)  # fmt: skip
from uploads import FORM, INGEST, query_store

HEAD, BODY, UNREAD = 2.0, 3.0, 2.0
"""Timeouts in seconds of headers, a body and an unread response in these tests; the defaults are 60, 600 and 300."""
MANY = 90


@pytest.fixture(scope="module")
def repository() -> Iterator[WebServer]:
    with web_server() as one:
        yield one


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, repository: WebServer) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("slow")
    config = {"supervisor": {"processes": {"web": SLEEPER}}, "svc": charts_settings(repository, folder / "temp")}
    command = changed_constants.server_command(
        run___HEADERS_TIMEOUT_SECONDS=HEAD, run___BODY_TIMEOUT_SECONDS=BODY, handlers__listener___UNREAD_SECONDS=UNREAD
    )
    one = Server(folder, config, {}, command)
    try:
        create_records(one.start(), repository)
        check_reads(one)
        yield one
        check_no_traceback(one)
    finally:
        one.close()


@contextlib.contextmanager
def connections(server: Server, count: int, begin: bytes, room: int = 0) -> Iterator[list[socket.socket]]:
    """Opens `count` connections and sends `begin` on each; `room` is the size of their receive buffers."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            one = stack.enter_context(socket.socket())
            if room:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
            one.connect(("127.0.0.1", server.port))
            one.sendall(begin)
            found.append(one)
        yield found


def trickle(clients: list[socket.socket], while_: Callable[[], bool], byte: bytes = b"x") -> None:
    """Sends single bytes on all connections as long as `while_` returns true."""
    while while_():
        for one in clients:
            with contextlib.suppress(OSError):
                one.sendall(byte)
        time.sleep(0.1)  # the client must be slow


def request_head(method: str, path: str, length: int, *lines: str) -> bytes:
    own = "".join(f"{line}\r\n" for line in ("Host: localhost", f"Content-Length: {length}", *lines))
    return f"{method} {path} HTTP/1.1\r\n{own}\r\n".encode()


HALF_A_HEAD = b"GET /api/v1/processes HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
UPLOAD = request_head("POST", INGEST, 10_000_000, f"Content-Type: {FORM}")
PARTS = (
    b"------boundary7MA4YWxkTrZu0gW\r\nContent-Disposition: form-data; name=\"project\"\r\n\r\nslow\r\n"
    b"------boundary7MA4YWxkTrZu0gW\r\nContent-Disposition: form-data; name=\"junit\"; filename=\"a.xml\"\r\n\r\n"
    + b" " * 300_000
)  # fmt: skip


@pytest.mark.parametrize(
    ("begin", "count"),
    [
        (b"", MANY),
        (HALF_A_HEAD, MANY),
        (request_head("POST", f"{API}/repos", 5000, "Content-Type: application/json", "X-API-Key: open sesame"), MANY),
        (UPLOAD + PARTS, 30),
    ],
    ids=["silence", "head", "body", "upload"],
)
def test_client_that_sends_too_slowly_is_disconnected(
    server: Server, repository: WebServer, begin: bytes, count: int
) -> None:
    before, had = open_descriptors(server), resident_mib(server)
    with connections(server, count, begin) as clients:
        wait_for(lambda: open_descriptors(server) >= before + count // 3)
        check_reads(server)
        assert send_prepared(server, upload_request("meanwhile")).status == 201
        assert server.do("restart", "web").status == 200
        end = time.monotonic() + 30
        trickle(
            clients if begin else [], lambda: open_descriptors(server) >= before + count / 10 and time.monotonic() < end
        )
        wait_for(lambda: open_descriptors(server) <= before + 4, about="slow clients to be disconnected")
    assert resident_mib(server) - had < 25
    wait_for(lambda: not list((server.data / "incoming").iterdir()))
    assert query_store(server, "SELECT 1 FROM project WHERE name = 'slow'") == []


@pytest.mark.parametrize("what", ["archive", "log", "pipelined"])
def test_client_that_never_reads_its_response_is_disconnected(server: Server, repository: WebServer, what: str) -> None:
    if what == "archive":
        noise = random.Random(1).randbytes(8_000_000)
        repository.serve(("tint", "0.1.0", chart_archive("tint", "0.1.0", {"noise.bin": noise})))
        assert server.post(f"{API}/repos/lab/update", X_API_Key="open sesame").status == 200
        body = PULL[2] or b""
        begin = (
            request_head("POST", PULL[1], len(body), "X-API-Key: open sesame", "Content-Type: application/json") + body
        )
        count = 10
    elif what == "log":
        begin, count = request_head("GET", "/v3/api-docs", 0), 40
    else:
        begin, count = request_head("GET", f"{API}/processes", 0) * 2000, 10
    before, had = open_descriptors(server), resident_mib(server)
    with connections(server, count, begin, room=4096):
        wait_for(lambda: open_descriptors(server) >= before + count // 3)
        check_reads(server)
        wait_for(lambda: open_descriptors(server) <= before + 4, about="clients that do not read to be disconnected")
    assert resident_mib(server) - had < 25
    wait_for(lambda: is_swept(server.folder / "temp"), about="the folder")


def test_client_that_reads_slowly_gets_the_whole_response(server: Server) -> None:
    """Reading takes longer than the timeout, but no pause in it does."""
    whole = server.get("/v3/api-docs").body
    with connections(server, 1, request_head("GET", "/v3/api-docs", 0, "Connection: close"), room=4096) as (one,):
        received = b""
        end = time.monotonic() + 2 * UNREAD
        while chunk := one.recv(1500 if time.monotonic() < end else 65536):
            received += chunk
            time.sleep(0.02)  # the client must be slow
    assert received.endswith(whole)


def test_a_stream_without_a_reader_is_dropped_and_one_that_is_read_continues(server: Server) -> None:
    lines = ("Accept: text/event-stream",)
    before = open_descriptors(server)
    with connections(server, 20, request_head("GET", f"{API}/processes/stream", 0, *lines), room=4096):
        stream = server.stream(f"{API}/processes/stream")
        wait_for(lambda: open_descriptors(server) >= before + 15)
        while open_descriptors(server) > before + 5:
            ParallelRequests(server, [("POST", f"{API}/processes/restart/web", None, {})] * 5).start().answers()
            stream.next()
        assert server.do("stop", "web").status == 200
        while '"newStatus":"stopped"' not in stream.next()["data"]:
            pass
        stream.close()
    assert server.do("start", "web").status == 200


def test_unfinished_tls_handshake_is_ended(tmp_path: Path) -> None:
    authority = trustme.CA()
    pair = authority.issue_cert("127.0.0.1")
    pair.private_key_pem.write_to_path(tmp_path / "key.pem")
    (tmp_path / "cert.pem").write_bytes(b"".join(pem.bytes() for pem in pair.cert_chain_pems))
    tls = {"certificate": str(tmp_path / "cert.pem"), "key": str(tmp_path / "key.pem")}
    server = Server(
        tmp_path, {"server": {"tls": tls}}, {}, changed_constants.server_command(run___HEADERS_TIMEOUT_SECONDS=HEAD)
    )
    try:
        server.start()
        before = open_descriptors(server)
        with connections(server, MANY, b"\x16\x03\x01\x02\x00\x01"):
            wait_for(lambda: open_descriptors(server) >= before + MANY // 3)
            wait_for(lambda: open_descriptors(server) <= before + 2, about="handshakes to be ended")
        check_no_traceback(server)
    finally:
        server.close()
