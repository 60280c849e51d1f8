"""Sessions of MCP clients: their limit, their end, and the calls that end with them."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from chart_servers import web_server
from conftest import ROOT, Answer, Serve, Server, wait_for
from http_checks import running_server
from mcp_clients import FULL, KEY, Transport, error_text, over_http, over_sse, over_stdio, result_text, run_client
from small_charts import temporary_files

from handlers.mcp.results import MAX_RESULT_BYTES, of_response
from handlers.mcp.sdk_server import CALLER_KEY, HttpTransports
from handlers.mcp.toolbox import Toolbox
from models.config.settings import Config
from models.errors import TooLarge

KUBE = {"kube": {"kubeconfig": "/nonexistent"}}
HEAD = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
HELLO = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
    },
}  # fmt: skip


def send(server: Server, message: Any, session: str = "") -> Answer:
    headers = {**HEAD, **({"Mcp-Session-Id": session} if session else {})}
    return server.ask("POST", "/mcp", json.dumps(message).encode(), headers)


class Listener:
    """An open event stream of the tool server."""

    def __init__(self, server: Server, path: str = "/sse", **headers: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        self._connection.request("GET", path, headers={"Accept": "text/event-stream", **headers})
        self._response = self._connection.getresponse()
        self.status = self._response.status

    def endpoint(self) -> str:
        """The path for messages, from the first event."""
        lines = iter(self._response.readline, b"")
        return next(line for line in lines if line.startswith(b"data: ")).decode().split()[1]

    def read_to_end(self) -> bytes:
        """Reads until the server closes the stream, possibly within an event."""
        try:
            return self._response.read()
        except http.client.IncompleteRead as cut:
            return cut.partial

    def close(self) -> None:
        self._response.close()
        self._connection.close()


def new_session(server: Server) -> str:
    """Opens a session and returns its id."""
    answer = send(server, HELLO)
    assert answer.status == 200, answer
    return str(answer.headers["Mcp-Session-Id"])


def test_the_limit_of_streams_is_that_of_sessions(serve: Serve) -> None:
    server = serve(server={"max-streams": 2}, svc=KUBE)
    sessions = [new_session(server), new_session(server)]
    assert send(server, HELLO).status == 503
    streams = [Listener(server), Listener(server)]
    assert all(stream.endpoint() for stream in streams)
    full = Listener(server)
    assert full.status == 503
    assert server.ask("DELETE", "/mcp", None, {**HEAD, "Mcp-Session-Id": sessions[0]}).status == 200
    assert send(server, {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}, sessions[0]).status == 404
    assert send(server, {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}, sessions[1]).status == 200
    new_session(server)
    streams[0].close()

    def has_room() -> Listener | None:
        stream = Listener(server)
        if stream.status == 200:
            return stream
        stream.close()
        return None

    for stream in (full, streams[1], wait_for(has_room)):
        stream.close()
    assert not any(session in server.log.read_text() for session in sessions)


def test_an_idle_session_ends() -> None:
    """Uses the transport directly; in the server its timeout is half an hour."""

    async def work() -> None:
        serving = HttpTransports(Toolbox(Config, [], lambda: pytest.fail("no chart is asked for")), 1024, 1, 3)
        await serving.start()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await serving.http({**scope, CALLER_KEY: None}, receive, send)

        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://here") as http:
            first = await http.post("/mcp", json=HELLO, headers=HEAD)
            assert first.status_code == 200
            assert (await http.post("/mcp", json=HELLO, headers=HEAD)).status_code == 503
            assert (await http.post("/mcp", content=b"x" * 1025, headers=HEAD)).status_code == 413
            end = time.monotonic() + 30
            while (await http.post("/mcp", json=HELLO, headers=HEAD)).status_code == 503:
                assert time.monotonic() < end
            ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
            gone = {**HEAD, "Mcp-Session-Id": first.headers["Mcp-Session-Id"]}
            assert (await http.post("/mcp", json=ping, headers=gone)).status_code == 404
        await serving.close()

    asyncio.run(work())


def test_the_stop_of_the_server_waits_for_no_client(serve: Serve) -> None:
    server = serve(svc=KUBE)
    session = new_session(server)
    streams = [Listener(server), Listener(server, "/mcp", **{"Mcp-Session-Id": session})]
    assert [stream.status for stream in streams] == [200, 200]
    assert server.stop() == 0
    for stream in streams:
        assert b"Traceback" not in stream.read_to_end()
        stream.close()
    log = server.log.read_text()
    assert "Traceback" not in log
    assert log.endswith("INFO server: stopped\n")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("open"), svc=KUBE) as one:
        yield one


def test_a_message_that_is_too_large_is_refused(server: Server) -> None:
    large = 16 * 1024 * 1024 + 1
    assert server.ask("POST", "/mcp", b" " * large, HEAD).status == 413
    assert server.ask("POST", "/sse/messages", b" " * large, HEAD).status == 413
    assert server.ask("POST", "/mcp", b" " * (large - 1), HEAD).status == 400


@pytest.mark.parametrize("path", ["/mcp", "/sse/messages"])
def test_a_message_is_small_besides_values_and_archives_of_charts(server: Server, path: str) -> None:
    def call(tool: str, **arguments: Any) -> Answer:
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
        return server.ask("POST", path, json.dumps(message).encode(), HEAD)

    large = server.ask("POST", path, json.dumps({**HELLO, "id": "x" * 70_000}).encode(), HEAD)
    assert large.status == 413
    assert "65536 bytes besides the values and archive of a chart" in large.text
    assert call("process_info", name="x" * 70_000).status != 413
    assert call("helm_template", chartRef="a/b", values={"a": "x" * 70_000}).status != 413
    assert call("helm_template", chartRef="a/b", values={"a": [[]] * 60_000}).status == 413


def test_an_invalid_message_is_reported_without_a_traceback(serve: Serve) -> None:
    server = serve(svc=KUBE)
    assert server.ask("POST", "/mcp", b"{", HEAD).status == 400
    assert server.ask("POST", "/mcp", b"[]", HEAD).status == 400
    stream = Listener(server)
    path = stream.endpoint()
    assert server.ask("POST", path, b"{", HEAD).status == 400
    assert server.ask("POST", "/sse/messages?session_id=x", b"{}", HEAD).status == 400
    assert server.ask("POST", "/sse/messages?session_id=" + "0" * 32, b"{}", HEAD).status == 404
    stream.close()
    answer = server.ask("HEAD", "/sse")
    assert (answer.status, answer.body, answer.headers["Content-Type"]) == (200, b"", "text/event-stream")
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


def test_results_have_a_size_limit() -> None:
    assert of_response(200, "text/plain", b"x" * MAX_RESULT_BYTES).text
    with pytest.raises(TooLarge, match="REST returns all of it"):
        of_response(200, "text/plain", b"x" * (MAX_RESULT_BYTES + 1))


# Who leaves


@pytest.mark.parametrize("way", ["http-modern", "http-legacy", "sse", "stdio"])
def test_calls_of_a_disconnected_client_are_cancelled(serve: Serve, tmp_path: Path, way: str) -> None:
    requested, go = threading.Event(), threading.Event()

    def stall(_: Any) -> tuple[int, dict[str, str], bytes]:
        requested.set()
        go.wait(60)
        return 404, {}, b""

    with web_server() as place:
        place.serve()
        security = {**FULL["security"], "allowed-hosts": [place.host_port]}
        read_to_end = {"temp-dir": str(tmp_path / "temp")}
        server = serve(svc={"security": security, "rest": read_to_end, **KUBE})
        assert server.post("/api/v1/repos", json.dumps({"name": "lab", "url": place.url}).encode(), **KEY).status == 201
        place.pages["/index.yaml"] = stall

        async def work() -> None:
            async with way_of(way)(server) as client:
                call = asyncio.create_task(client.call_tool("helm_repo_update", {"name": "lab"}))
                assert await asyncio.to_thread(requested.wait, 60)
                assert temporary_files(tmp_path / "temp")
                call.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await call

        try:
            run_client(work)
            wait_for(lambda: not temporary_files(tmp_path / "temp"), 15, "the request's folder to be gone")
        finally:
            go.set()
    assert "Traceback" not in server.log.read_text()


def way_of(word: str) -> Transport:
    if word == "stdio":
        return over_stdio
    if word == "sse":
        return lambda server: over_sse(server, **KEY)
    return lambda server: over_http(server, mode="auto" if word == "http-modern" else "legacy", **KEY)


def test_a_change_that_has_begun_is_finished(serve: Serve) -> None:
    requested, go = threading.Event(), threading.Event()

    def stall(_: Any) -> tuple[int, dict[str, str], bytes]:
        requested.set()
        go.wait(60)
        return 200, {}, b"apiVersion: v1\nentries: {}\n"

    with web_server() as place:
        place.pages["/index.yaml"] = stall
        server = serve(svc={"security": {**FULL["security"], "allowed-hosts": [place.host_port]}, **KUBE})
        message = {
            "jsonrpc": "2.0", "id": 2, "method": "tools/call",
            "params": {"name": "helm_repo_add", "arguments": {"name": "lab", "url": place.url}},
        }  # fmt: skip
        session = server.ask("POST", "/mcp", json.dumps(HELLO).encode(), {**HEAD, **KEY}).headers["Mcp-Session-Id"]
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", "/mcp", json.dumps(message), {**HEAD, **KEY, "Mcp-Session-Id": session})
        assert requested.wait(60)
        connection.close()
        go.set()
        wait_for(lambda: server.get("/api/v1/repos").json == [{"name": "lab", "url": place.url}])


# Over standard streams


def started(server: Server, **more: Any) -> subprocess.Popen[bytes]:
    arguments = ["--config", str(server.file), "--port", str(server.port), "--data-dir", str(server.data), "mcp"]
    return subprocess.Popen(
        [sys.executable, str(ROOT / "run.py"), *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=server.folder, **more,
    )  # fmt: skip


def exchange(process: subprocess.Popen[bytes], message: Any) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(message).encode() + b"\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


@pytest.mark.parametrize("end", ["closed", signal.SIGTERM, signal.SIGINT])
def test_the_stdio_server_ends_at_eof_or_by_a_signal(serve: Serve, end: Any) -> None:
    process = started(serve(svc=KUBE))
    with process:
        assert exchange(process, HELLO)["result"]["serverInfo"]["name"] == "pilothouse"
        if end == "closed":
            output, errors = process.communicate(timeout=60)
        else:
            process.send_signal(end)
            process.wait(60)
            assert process.stdout is not None
            assert process.stderr is not None
            output, errors = process.stdout.read(), process.stderr.read()
    assert process.returncode == 0
    assert output == b""
    assert b"Traceback" not in errors


def test_an_agent_that_closed_its_pipe_is_one_line(serve: Serve) -> None:
    server = serve(svc=KUBE)
    with started(server) as process:
        exchange(process, HELLO)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}).encode() + b"\n")
        process.stdin.flush()
        assert process.wait(60) == 1
        lines = process.stderr.read().splitlines()  # another server of this machine may have left a folder
        own = [line for line in lines if b"left by an earlier server" not in line]
        assert own == [b"run.py mcp: standard input or output: Broken pipe"]
    command = [sys.executable, str(ROOT / "run.py"), "--data-dir", str(server.data), "mcp"]
    closed = ["sh", "-c", 'exec "$@" <&-', "sh", *command]
    done = subprocess.run(closed, cwd=server.folder, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, b"run.py mcp: standard input and output must be open\n")


def test_standard_output_has_protocol_messages_only(serve: Serve) -> None:
    server = serve({"web": {"command": "true"}}, svc={**FULL, **KUBE})
    with started(server, env={**os.environ, "SERVER_LOG_FORMAT": "json"}) as process:
        exchange(process, HELLO)
        assert process.stdin is not None
        process.stdin.write(b"x" * 100 + b"\n" + b"{}\n")
        for number, (tool, arguments) in enumerate(
            [("helm_create", {"name": "c"}), ("process_list", {}), ("helm_show_all", {})], 2
        ):
            call = {"name": tool, "arguments": arguments}
            process.stdin.write(
                json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": call}).encode() + b"\n"
            )
        process.stdin.flush()
        assert process.stdout is not None
        answered: set[int] = set()
        while not answered >= {2, 3, 4}:
            message = json.loads(process.stdout.readline())
            assert message["jsonrpc"] == "2.0"
            answered.add(message.get("id") or 0)


def test_the_stdio_server_needs_no_server_and_no_lock(tmp_path: Path) -> None:
    server = Server(tmp_path, {"svc": KUBE}, {}, [])

    async def work() -> None:
        async with over_stdio(server) as one, over_stdio(server) as other:
            assert result_text(await one.call_tool("helm_repo_list", {})) == "[]"
            assert result_text(await other.call_tool("helm_repo_list", {})) == "[]"
            assert "requires the running server" in error_text(await one.call_tool("run_detail", {"id": "1"}))
        with contextlib.closing(server.start()):
            async with over_stdio(server) as one:
                assert result_text(await one.call_tool("process_list", {})) == "[]"

    run_client(work)


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain"])
def test_a_body_that_is_not_json_is_not_read(server: Server, kind: str) -> None:
    assert server.ask("POST", "/mcp", json.dumps(HELLO).encode(), {**HEAD, "Content-Type": kind}).status == 400
    assert server.ask("POST", "/sse/messages", b"{}", {**HEAD, "Content-Type": kind}).status == 400
