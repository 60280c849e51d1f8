"""Unfinished requests: their memory is limited; the oldest are answered 408 and closed."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from conftest import Serve, Server, wait_for
from http_checks import check_error, connect, read_response, running_server

LIMIT = 1024 * 1024
PIECE = 50_000
ENOUGH = LIMIT // PIECE + 3
"""The number of unfinished requests that exceeds the limit."""
MULTIPART = "Content-Type: multipart/form-data; boundary=b\r\n"
HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Filler: " + b"x" * PIECE


def half_sent(method: str, path: str, body: bytes, lines: str = "", length: int = 1_000_000) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{lines}Content-Length: {length}\r\n\r\n"
    return head.encode() + body


TEXT_PART = b'--b\r\nContent-Disposition: form-data; name="project"\r\n\r\n'
UNFINISHED = {
    "a head": HEAD,
    "a body": half_sent("POST", "/api/v1/processes/stop/idle", b"x" * PIECE, length=PIECE + 1),
    "a JSON body of the charts": half_sent("POST", "/api/v1/charts/template", b"x" * PIECE),
    "the text parts of an upload": half_sent("POST", "/api/v1/ingest", TEXT_PART + b"x" * PIECE, MULTIPART),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("unfinished")
    with running_server(folder, {"idle": {"command": "true"}}, server={"max-unfinished": str(LIMIT)}) as server:
        yield server


def has_reply(connection: socket.socket) -> bool:
    connection.settimeout(0.01)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except TimeoutError:
        return False
    finally:
        connection.settimeout(30)


def is_open(connection: socket.socket) -> bool:
    connection.settimeout(0.01)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return True
    except ConnectionError:
        return False
    finally:
        connection.settimeout(30)
    return False


@pytest.mark.parametrize("kind", UNFINISHED)
def test_beyond_the_limit_the_oldest_unfinished_request_is_answered_408_and_closed(server: Server, kind: str) -> None:
    with contextlib.ExitStack() as stack:
        connections = []
        for _ in range(ENOUGH):
            connection = stack.enter_context(connect(server))
            connection.sendall(UNFINISHED[kind])
            connections.append(connection)
            server.get("/healthz")  # the server has read what came before
        wait_for(lambda: has_reply(connections[0]), about="the oldest request's response")
        reply = read_response(connections[0])
        assert reply.status == 408
        assert reply.headers["Connection"] == "close"
        assert connections[0].recv(1) == b"", "closed"
        assert is_open(connections[-1]), "the newest is within the limit"
        wait_for(lambda: sum(map(is_open, connections)) * PIECE <= LIMIT, about="as many as the limit allows")


def test_the_408_of_a_body_has_the_format_of_its_service(server: Server) -> None:
    path = "/api/v1/processes/stop/idle"
    with contextlib.ExitStack() as stack:
        oldest = stack.enter_context(connect(server))
        oldest.sendall(UNFINISHED["a body"])
        server.get("/healthz")
        for _ in range(ENOUGH):
            stack.enter_context(connect(server)).sendall(HEAD)
        outcome = check_error(read_response(oldest), 408, path, "REQUEST_TIMEOUT")
        assert "not complete" in outcome["message"]


def test_a_body_that_is_streamed_to_disk_does_not_count(server: Server) -> None:
    """An upload may be much larger than the limit."""
    part = b'--b\r\nContent-Disposition: form-data; name="junit"; filename="a.xml"\r\n\r\n'
    size = 4 * LIMIT
    with connect(server) as connection:
        lines = f"Host: 127.0.0.1\r\n{MULTIPART}Content-Length: {len(part) + size}\r\n"
        connection.sendall(f"POST /api/v1/ingest HTTP/1.1\r\n{lines}\r\n".encode() + part)
        connection.sendall(b"x" * size)
        assert read_response(connection).status == 400


def test_a_body_that_is_dropped_does_not_count(server: Server) -> None:
    size = 4 * LIMIT
    with connect(server) as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % size)
        connection.sendall(b"x" * size)
        assert read_response(connection).status == 404


def test_requests_that_are_complete_do_not_count_however_many_a_connection_sends(server: Server) -> None:
    body = b"x" * PIECE
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    for _ in range(4 * LIMIT // PIECE):
        connection.request("POST", "/api/v1/processes/stop/idle", body)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        response.read()
    connection.close()


def test_a_half_sent_head_after_a_response_is_answered_408_too(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        oldest = stack.enter_context(connect(server))
        oldest.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert read_response(oldest).status == 200
        oldest.sendall(HEAD)
        server.get("/healthz")
        for _ in range(ENOUGH):
            stack.enter_context(connect(server)).sendall(HEAD)
        assert read_response(oldest).status == 408


@pytest.mark.parametrize("size", [70_000, 500_000])
def test_a_head_that_is_too_long_is_answered_431(server: Server, size: int) -> None:
    with connect(server) as connection:
        with contextlib.suppress(OSError):  # the server may close it before all is sent
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: a=" + b"x" * size + b"\r\n\r\n")
        answer = read_response(connection)
    assert answer.status == 431
    assert answer.text == "431 Request Header Fields Too Large: the URL and the headers have more than 64 KiB\n"


def test_a_head_and_a_body_in_one_piece_are_no_long_head(server: Server) -> None:
    with connect(server) as connection:
        for _ in range(2):
            connection.sendall(b"POST /api/v1/charts/template HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            connection.sendall(b"Content-Length: 400000\r\n\r\n" + b" " * 400_000)
            answer = read_response(connection)
            assert answer.status == 400
            assert "chartRef" in answer.json["detail"]


def test_with_tls_the_oldest_is_answered_408_too(serve: Serve, tmp_path: Path) -> None:
    authority, chain, key = trustme.CA(), tmp_path / "chain.pem", tmp_path / "key.pem"
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(str(chain))
    issued.private_key_pem.write_to_path(str(key))
    server = serve(server={"max-unfinished": str(LIMIT), "tls": {"certificate": str(chain), "key": str(key)}})
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    with contextlib.ExitStack() as stack:
        connections = []
        for _ in range(ENOUGH):
            connection = stack.enter_context(trusting.wrap_socket(connect(server), server_hostname="127.0.0.1"))
            connection.sendall(HEAD)
            connections.append(connection)
        assert read_response(connections[0]).status == 408
