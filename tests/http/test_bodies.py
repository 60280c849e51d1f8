"""Request bodies: unexpected bodies are ignored, and a client that is still sending sees a refusal."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Answer, Serve, Server
from http_checks import check_error, check_problem, connect, json_body, read_response, running_server, send_request

from models import VERSION

START = "/api/v1/processes/start/idle"
STOP = "/api/v1/processes/stop/idle"
KIB, MIB = 1024, 1024 * 1024
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("bodies"), {"idle": {"command": "true"}}) as server:
        yield server


def send(server: Server, path: str, size: int, chunked: bool = False, lines: str = "", method: str = "POST") -> Answer:
    """Sends the whole body before reading the response, as a simple client does; fails if it cannot."""
    with connect(server) as connection:
        framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
        connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{framing}\r\n{lines}\r\n".encode())
        piece = b"x" * 65536
        for start in range(0, size, len(piece)):
            data = piece[: size - start]
            connection.sendall(b"%x\r\n%s\r\n" % (len(data), data) if chunked else data)
        if chunked:
            connection.sendall(b"0\r\n\r\n")
        return read_response(connection)


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
@pytest.mark.parametrize("size", [64 * KIB + 1, 20 * MIB])
def test_a_body_that_is_too_large_is_413_and_the_client_sees_it(server: Server, size: int, chunked: bool) -> None:
    outcome = check_error(send(server, STOP, size, chunked), 413, STOP)
    assert str(64 * KIB) in outcome["message"]


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
def test_a_body_of_exactly_the_limit_passes(server: Server, chunked: bool) -> None:
    assert send(server, STOP, 64 * KIB, chunked).status == 200


@pytest.mark.parametrize(
    "path",
    [
        STOP,
        "/tracker/api/v1/runs/finish",
        "/charts/api/v1/charts/create",
        "/charts/api/v1/repos/pull",
        "/login",
    ],
)
def test_a_body_of_short_values_has_at_most_64_kib(server: Server, path: str) -> None:
    answer = server.ask("POST", path, b'{"a":"%s"}' % (b"x" * 64 * KIB), JSON)
    assert answer.status == 413
    assert b"65536 bytes" in answer.body


@pytest.mark.parametrize("path", ["/charts/api/v1/charts/template", "/charts/api/v1/charts/lint", "/mcp"])
def test_json_with_too_many_structural_bytes_is_413_before_it_is_parsed(server: Server, path: str) -> None:
    headers = JSON | {"Accept": "application/json, text/event-stream"}
    not_parsed = b'{"values":{"a":[' + b"1," * 100_000
    answer = server.ask("POST", path, not_parsed, headers)
    assert answer.status == 413
    assert b"more than 100000" in answer.body
    long_text = b'{"values":{"a":"%s"' % (b"x" * 200_000)
    assert server.ask("POST", path, long_text, headers).status == 400


def test_a_request_with_a_too_large_body_changes_nothing(server: Server) -> None:
    check_error(send(server, START, 2 * MIB), 413, START)
    assert server.new_statuses("idle") == []


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
@pytest.mark.parametrize("path", ["/api/v1/nope", "/charts/api/v1/nope", "/tracker/api/v1/nope"])
def test_a_hundred_megabytes_to_an_unknown_path_are_404(server: Server, path: str, chunked: bool) -> None:
    answer = send(server, path, 100 * MIB, chunked)
    assert answer.status == 404
    if path.startswith("/api"):
        check_error(answer, 404, path)
    else:
        check_problem(answer, 404, path, has_timestamp=path.startswith("/charts"))


def test_a_discarded_large_body_needs_no_memory(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:  # the peak of a shared one is that of other tests
        assert send(server, "/api/v1/nope", 100 * MIB).status == 404
        with open(f"/proc/{server.pid}/status") as status:
            peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    assert peak < 100 * 1024


@pytest.mark.parametrize(
    ("method", "path", "lines", "status"),
    [
        ("POST", "/api/v1/processes", "", 405),
        ("PUT", "/api/v1/nope", "", 404),
        ("POST", STOP, "Sec-Fetch-Site: cross-site\r\n", 403),
        ("POST", STOP, "Origin: http://evil.example\r\n", 403),
        ("POST", STOP, "X-Tracker-Token: bad\r\n", 401),
        ("POST", STOP, "X-Forwarded-For: 10.0.0.1\r\n", 401),
        ("PROPFIND", STOP, "", 405),
    ],
)
@pytest.mark.parametrize(
    "form", ["", "Content-Type: multipart/form-data; boundary=abc\r\n", "Content-Type: application/json\r\n"]
)
def test_a_refusal_is_readable_after_any_body(
    server: Server, method: str, path: str, lines: str, status: int, form: str
) -> None:
    check_error(send(server, path, 3 * MIB, lines=lines + form, method=method), status, path)


def test_a_foreign_host_with_a_body_is_421(server: Server) -> None:
    with connect(server) as connection:
        connection.sendall(
            b"POST %s HTTP/1.1\r\nHost: evil.example\r\nContent-Length: %d\r\n\r\n" % (STOP.encode(), 3 * MIB)
        )
        connection.sendall(b"x" * 3 * MIB)
        check_error(read_response(connection), 421, STOP)


def test_the_connection_is_kept_after_a_413(server: Server) -> None:
    with connect(server) as connection:
        connection.sendall(f"POST {STOP} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {2 * MIB}\r\n\r\n".encode())
        connection.sendall(b"x" * 2 * MIB)
        check_error(read_response(connection), 413, STOP)
        connection.sendall(f"POST {STOP} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
        assert read_response(connection).status == 200


def test_a_client_that_waits_for_100_continue_receives_it(server: Server) -> None:
    with connect(server) as connection:
        head = f"POST {STOP} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(b"abc")
        assert read_response(connection).status == 200


def test_more_than_max_body_is_not_read_to_its_end(serve: Serve) -> None:
    server = serve(server={"max-body": "2M"})
    with connect(server) as connection:
        connection.sendall(b"POST /api/v1/nope HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000000\r\n\r\n")
        connection.sendall(b"x" * (2 * MIB + 1))
        check_error(read_response(connection), 404, "/api/v1/nope")


@pytest.mark.parametrize(
    ("path", "framing", "status"),
    [
        ("/api/v1/nope", "Content-Length: 1000000", 404),
        (STOP, "Content-Length: 2000000", 413),
        ("/api/v1/processes", "Transfer-Encoding: chunked", 405),
    ],
)
def test_a_client_that_never_sends_its_body_is_answered_after_ten_seconds(
    slow: dict[str, tuple[float, Answer]], path: str, framing: str, status: int
) -> None:
    took, answer = slow[path]
    check_error(answer, status, path)
    assert took > 9


def test_a_slow_client_may_send_a_small_body_in_pieces(server: Server) -> None:
    with connect(server) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in f"POST {STOP} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nabcde".encode():
            connection.sendall(bytes([byte]))
        assert read_response(connection).status == 200
    assert server.get("/healthz").status == 200


def test_a_client_that_disconnects_during_its_body_affects_no_other(server: Server) -> None:
    for path in (STOP, "/api/v1/nope"):
        with connect(server) as connection:
            connection.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nabc".encode())
    assert json_body(server.get("/healthz")) == {"status": "UP", "version": VERSION}
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize(
    ("content_type", "sent"),
    [
        ("application/json", b"{}"), ("application/json", b'{"timeout": 1e999'), ("application/json", b'"\\ud800"'),
        ("application/json", b"\xff\x00"), ("text/plain", b"hello"), ("application/octet-stream", b"\x00" * 1000),
        ("application/x-www-form-urlencoded", b"a=1&b=%ff"), (None, b"whatever"), ("nonsense", b"x"), ("", b"x"),
        ("application/json; charset=utf-16", b"\xff\xfe{\x00"),
        ("multipart/form-data", b"x"), ("multipart/form-data; boundary=a", b"--b\r\n\r\nx"),
    ],
)  # fmt: skip
def test_an_unexpected_body_is_ignored(server: Server, content_type: str | None, sent: bytes) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    assert server.ask("POST", STOP, sent, headers).status == 200


def test_the_body_of_a_get_is_ignored(server: Server) -> None:
    assert server.ask("GET", "/api/v1/processes", b"[1,2,3]").status == 200


@pytest.fixture(scope="module")
def slow(server: Server) -> dict[str, tuple[float, Answer]]:
    """The responses to simultaneous clients that announce a body and never send it."""
    answers: dict[str, tuple[float, Answer]] = {}

    def wait(path: str, framing: str) -> None:
        began = time.monotonic()
        answer = send_request(server, "POST", path, [framing])
        answers[path] = time.monotonic() - began, answer

    table = {
        "/api/v1/nope": "Content-Length: 1000000",
        STOP: "Content-Length: 2000000",
        "/api/v1/processes": "Transfer-Encoding: chunked",
    }
    threads = [threading.Thread(target=wait, args=case) for case in table.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


@pytest.mark.parametrize("path", ["/api/v1/processes", "/", "/api/v1/nope"])
def test_a_request_has_at_most_a_thousand_parameters_and_cookies(server: Server, path: str) -> None:
    fits = server.ask("GET", f"{path}?{'&'.join(['a=1'] * 1000)}", headers={"Cookie": ";".join(["a=1"] * 1000)})
    assert fits.status in (200, 404)
    answer = server.ask("GET", path, headers={"Cookie": ";".join(["a=1"] * 1001)})
    assert answer.status == 400
    assert b"more than 1000 cookies" in answer.body
    answer = server.ask("GET", f"{path}?{'&'.join(['a=1'] * 1001)}")
    assert answer.status == 400
    assert b"more than 1000 query parameters" in answer.body


def test_a_form_has_at_most_a_thousand_fields(server: Server) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = server.ask("POST", "/login", b"&".join([b"a=1"] * 1001), headers)
    assert answer.status == 400
    assert b"more than 1000 fields" in answer.body
    assert server.ask("POST", "/login", b"&".join([b"a=1"] * 1000), headers).status == 401
