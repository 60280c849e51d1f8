"""Random requests to every route: no 500, no hang, every error in the format of its service, and no traceback."""

from __future__ import annotations

import http.client
import json
import random
from collections.abc import Iterator

import pytest
from conftest import Answer, Server
from http_checks import ERROR_FIELDS, PROBLEM_FIELDS, connect, json_body, read_response, running_server, send_raw

from models import VERSION

SEED = 20
EACH = 25
PATTERNS = [
    "/processes", "/processes/info/{}", "/processes/start/{}", "/processes/stop/{}", "/processes/restart/{}",
    "/processes/group/{}", "/processes/logs/{}", "/processes/stream", "/processes/{}", "/supervisor/{}", "/events",
    "/events/{}", "/events/by-status/{}", "/events/by-process/{}", "/events/{}/{}", "/{}",
]  # fmt: skip
METHODS = ["GET", "GET", "GET", "HEAD", "POST", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PURGE", "get"]
NAMES = [
    "idle", "nosuch", "%2F", "..%2F..%2Fetc%2Fpasswd", "%00", "a%00b", "%FF", "%C3%28", "%ED%A0%80", "%F4%90%80%80",
    "%0A", "%0D%0A",
    "%7F", "%1B%5B2J", "%E2%80%AE", "%F0%9F%92%A9", "\u00fc".encode().decode("latin-1"), "%", "%zz", "%2", "%25",
    "%2500", "", ".", "..",
    "...", "~", "*", "'", "%22", "%3Cscript%3E", "%27%20OR%201=1--", "$%7Bjndi%7D", "{}", "[]", "0", "-1", "1e9",
    "9" * 30,
    str(2**31), str(2**63), str(2**64), "-" + str(2**63), "NaN", "null", "None", "true", "undefined", "group", "info",
    "count", "start",
    "running", "a" * 10_000, "%41" * 3000, "%C3%BC" * 1500, "a;b", "a&b", "a=b", "a,b", "@", ":", "::1", "%20", "+",
    "%5C", "%23", "%3F",
]  # fmt: skip
VALUES = [*NAMES, "-0", "+1", "01", "1.0", "0x10", "1_0", "%D9%A1", "asc", "eventTime", "id", "10001", "stdout"]
KEYS = [
    "page",
    "size",
    "sortBy",
    "sortDirection",
    "lines",
    "stream",
    "timeout",
    "x",
    "",
    "%00",
    "%FF",
    "page%5B%5D",
    "__proto__",
]
ACCEPTS = [
    "", "*/*", "text/event-stream", "text/html", "application/json;q=0", "text/event-stream;q=nonsense", ",,,;;;",
    "\xff\xfe", "a" * 5000,
    "text/html,text/event-stream", "application/*", "*", "/", "text/event-stream\t;", "TEXT/EVENT-STREAM",
]  # fmt: skip
HEADERS = [
    "Accept-Encoding: nonsense", "Accept-Language: \xff", "Last-Event-ID: \xb2", "Last-Event-ID: " + "9" * 400,
    "If-None-Match: *",
    "If-Modified-Since: never", "Range: bytes=0-", "Range: bytes=9-1", "Cookie: a=b; c; =d; \xff",
    "Cookie: " + "a=b; " * 2000,
    "Authorization: \xff", "Authorization: Digest", "Content-Type: multipart/form-data", "Content-Type: \xff/\xff",
    "Upgrade: websocket",
    "Connection: Upgrade", "X-HTTP-Method-Override: DELETE", "X-Forwarded-For: \xff", "Origin: \xff",
    "Referer: nonsense", "TE: trailers",
    "Accept-Charset: utf-16", "X: " + "y" * 20_000, "Prefer: wait=-1", "Content-Encoding: gzip", "Max-Forwards: x",
]  # fmt: skip
BODIES = [
    b"{}", b"null", b'{"a":"\\ud800"}', b"\xff\xfe\x00", b"[" * 10_000, b'{"timeout":1e999}',
    b'{"timeout":' + b"9" * 5000 + b"}",
    b"a=1&a=2&=&&%", b"--x\r\n\r\n--x--", b"\x00" * 5000,
    b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>",
]  # fmt: skip
PREFIXES = ["", "", "/supervision", "/charts", "/tracker"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(
        tmp_path_factory.mktemp("nonsense"), {"idle": {"command": "true", "stdout-logfile": "idle.log"}}
    ) as server:
        yield server


@pytest.fixture(autouse=True)
def check_server_after(server: Server) -> Iterator[None]:
    """After each test: the server runs, is healthy, and has logged no traceback."""
    yield
    assert json_body(server.get("/healthz")) == {"status": "UP", "version": VERSION}
    assert server.get("/api/v1/processes").status == 200
    assert "Traceback" not in server.log.read_text()


def one_request(dice: random.Random, pattern: str) -> tuple[str, str, bytes]:
    """A random request: its method, its path, its bytes."""
    method = dice.choice(METHODS)
    path = dice.choice(PREFIXES) + "/api/v1" + pattern
    while "{}" in path:
        path = path.replace("{}", dice.choice(NAMES).replace("{}", "%7B%7D"), 1)
    target = path
    if dice.random() < 0.6:
        pairs = [f"{dice.choice(KEYS)}={dice.choice(VALUES)}" for _ in range(dice.choice([1, 2, 2, 3, 6]))]
        target += "?" + dice.choice(["&", "&", "&&", ";"]).join(pairs)
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", *dice.sample(HEADERS, dice.choice([0, 0, 1, 2]))]
    if dice.random() < 0.5:
        lines.append(f"Accept: {dice.choice(ACCEPTS)}")
    sent = dice.choice(BODIES) if dice.random() < 0.4 else b""
    if sent or method == "POST":
        lines.append(f"Content-Length: {len(sent)}")
    return method, path, "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + sent


def check(method: str, path: str, answer: Answer) -> None:
    """The response is not a 500; an error has the format of the service of its path."""
    assert 200 <= answer.status < 500
    media_type = answer.headers.get("Content-Type")
    if method == "HEAD" or answer.status == 204 or media_type == "text/event-stream":
        assert answer.body == b""
        return
    if answer.status < 400:
        assert media_type in ("application/json", "text/plain; charset=utf-8")
        return
    outcome = json.loads(answer.body)
    if path.startswith(("/charts/", "/tracker/")):
        assert media_type == "application/problem+json"
        dated = {"timestamp", "code"} if path.startswith("/charts/") else set()
        assert set(outcome) == PROBLEM_FIELDS | dated
        assert (outcome["instance"], outcome["status"]) == (path, answer.status)
    else:
        assert media_type == "application/json"
        assert set(outcome) == ERROR_FIELDS
        assert outcome["path"] == path


@pytest.mark.parametrize("pattern", PATTERNS)
def test_random_requests_get_responses_in_the_format_of_their_service(server: Server, pattern: str) -> None:
    dice = random.Random(f"{SEED}{pattern}")
    for _ in range(EACH):
        method, path, request = one_request(dice, pattern)
        try:
            check(method, path, send_raw(server, request, method))
        except (AssertionError, ValueError, OSError, http.client.HTTPException) as failure:
            raise AssertionError(f"{request[:300]!r}: {failure!r}") from failure


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "pattern", ["/processes/info/{}", "/processes/start/{}", "/events/{}", "/events/by-process/{}"]
)
def test_odd_names_get_responses_in_the_format_of_their_service(server: Server, name: str, pattern: str) -> None:
    path = "/api/v1" + pattern.replace("{}", name, 1)
    method = "POST" if "start" in pattern else "GET"
    request = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
    check(method, path, send_raw(server, request.encode("latin-1"), method))


@pytest.mark.parametrize("query", ["size=0&size=5", "size=5&size=0", "page=1&page=x", "sortBy=pid&sortBy=nope"])
def test_the_last_of_two_equal_parameters_counts(server: Server, query: str) -> None:
    """A response never mixes both values."""
    last = query.split("&")[-1]
    assert server.get(f"/api/v1/events?{query}").status == server.get(f"/api/v1/events?{last}").status


@pytest.mark.parametrize("length", [1_000, 10_000, 60_000])
@pytest.mark.parametrize("shape", ["x={}", "page=1&x={}", "{}"])
def test_a_long_query_is_answered(server: Server, length: int, shape: str) -> None:
    assert server.get("/api/v1/events?" + shape.format("a" * length)).status == 200


@pytest.mark.parametrize(
    "request_",
    [
        b"\r\n\r\n", b"GET\r\n\r\n", b"GET /\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\x00" * 100,
        b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: local host\r\n\r\n", b"GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * 20_000 + b"\r\n",
    ],
    ids=lambda request: repr(request[:60]),
)  # fmt: skip
def test_bytes_that_are_not_http_are_refused_or_closed(server: Server, request_: bytes) -> None:
    with connect(server, timeout=10) as connection:
        connection.sendall(request_)
        connection.shutdown(1)
        try:
            answer = read_response(connection)
        except (http.client.HTTPException, ConnectionError):
            return
        assert 400 <= answer.status < 500


def test_a_tls_handshake_on_the_http_port_is_closed(server: Server) -> None:
    with connect(server, timeout=10) as connection:  # the head of a request may take a minute
        connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        assert connection.recv(1) == b""


@pytest.mark.parametrize(
    "target",
    [
        "*",
        "http://localhost/api/v1/processes",
        "localhost:80",
        "//localhost/api/v1/processes",
        "?x",
        "api/v1/processes",
    ],
)
@pytest.mark.parametrize("method", ["GET", "OPTIONS", "POST"])
def test_an_odd_target_is_answered(server: Server, target: str, method: str) -> None:
    answer = send_raw(server, f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", method)
    assert 200 <= answer.status < 500


def test_many_requests_on_one_connection_are_answered_in_order(server: Server) -> None:
    paths = [f"/api/v1/processes/info/{number}" for number in range(200)]
    with connect(server) as connection, connection.makefile("rb") as file:
        connection.sendall(b"".join(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for path in paths))
        for path in paths:
            assert file.readline() == b"HTTP/1.1 404 Not Found\r\n"
            headers = http.client.parse_headers(file)
            assert json.loads(file.read(int(headers["Content-Length"])))["path"] == path
