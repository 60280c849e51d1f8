"""Permissions of the tool server: which callers it accepts and which tools they see."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from conftest import ROOT, Answer, Serve, Server
from http_checks import check_service_error, running_server
from mcp.shared.exceptions import MCPError
from mcp_clients import (
    CHANGING,
    FULL,
    KEY,
    LIVE,
    READING,
    error_text,
    over_http,
    over_sse,
    over_stdio,
    result_text,
    run_client,
    tool_names,
)

from handlers.app import SERVICES
from handlers.http.credentials import Caller
from handlers.mcp import handler
from handlers.mcp.derived_tools import tools_of
from handlers.mcp.toolbox import Toolbox, ToolCaller
from models.config.settings import (
    AccessInterceptorSettings,
    ChartSecurity,
    Config,
    McpSettings,
    RestSettings,
    SvcSettings,
)
from models.errors import NotFound
from supervisor.services import CannotStart

KUBE = {"kube": {"kubeconfig": "/nonexistent"}}
SLEEPER = {"command": "sleep 1000"}
PATHS = ["/mcp", "/sse", "/sse/messages", "/charts/mcp", "/charts/sse", "/tracker/mcp", "/supervision/sse"]
HEAD = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
HELLO = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
    },
}  # fmt: skip


def initialize(server: Server, path: str = "/mcp", **headers: str) -> Answer:
    """Sends the first message of a client."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return server.ask("POST", path, json.dumps(HELLO).encode(), {**HEAD, **named})


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("reading"), {"web": SLEEPER}, svc=KUBE) as server:
        yield server


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("keyed"), {"web": SLEEPER}, svc={**FULL, **KUBE}) as server:
        yield server


POSTURES: list[tuple[ChartSecurity, bool]] = [
    (ChartSecurity(), False),
    (ChartSecurity(api_key="k"), False),
    (ChartSecurity(mode="FULL"), False),
    (ChartSecurity(mode="FULL", api_key="  "), False),
    (ChartSecurity(mode="FULL", api_key="k"), True),
]


async def send(method: str, path: str, body: bytes) -> tuple[int, str, bytes]:
    raise AssertionError("no request is sent")


@pytest.mark.parametrize("is_gated", [True, False], ids=["gated", "interceptor-off"])
@pytest.mark.parametrize(
    ("security", "may_change"), POSTURES, ids=["default", "read-only-key", "full", "blank-key", "full-key"]
)
def test_changing_tools_require_full_mode_and_a_key(security: ChartSecurity, may_change: bool, is_gated: bool) -> None:
    config = Config(
        svc=SvcSettings(
            security=security, rest=RestSettings(access_interceptor=AccessInterceptorSettings(enabled=is_gated))
        )
    )
    tools = tools_of(SERVICES)
    toolbox = Toolbox(lambda: config, tools, lambda: pytest.fail("no chart is asked for"))
    for caller in (Caller(is_remote=False, has_chart_key=True), None):
        assert {tool.name for tool in toolbox.list(ToolCaller(caller, send))} == (
            READING | CHANGING if may_change else READING
        )
    anonymous = {tool.name for tool in toolbox.list(ToolCaller(Caller(is_remote=False), send))}
    assert anonymous == (READING | CHANGING if may_change else READING) - LIVE
    if not may_change:
        with pytest.raises(NotFound, match="there is no tool helm_install: changes are disabled"):
            toolbox.find("helm_install")


@pytest.mark.parametrize("is_full", [False, True], ids=["read-only", "full"])
def test_the_mode_decides_which_tools_are_listed(serve: Serve, is_full: bool) -> None:
    """Also if the interceptor of REST is disabled."""
    rest = {"access-interceptor": {"enabled": False}}
    server = serve({"web": SLEEPER}, svc={**(FULL if is_full else {}), "rest": rest, **KUBE})

    async def work() -> None:
        async with over_http(server, **(KEY if is_full else {})) as client:
            assert await tool_names(client) == (READING | CHANGING if is_full else READING - LIVE)
            if is_full:
                assert "started" in result_text(await client.call_tool("process_start", {"name": "web"}))
            else:
                with pytest.raises(MCPError, match="there is no tool process_start: changes are disabled"):
                    await client.call_tool("process_start", {"name": "web"})
        async with over_stdio(server) as client:
            assert await tool_names(client) == (READING | CHANGING if is_full else READING)

    run_client(work)
    assert server.status("web") == ("running" if is_full else "not_started")


def test_hints_describe_the_effects_of_a_tool(keyed: Server) -> None:
    async def work() -> None:
        async with over_sse(keyed, **KEY) as client:
            tools = (await client.list_tools()).tools
        hints = {one.name: one.annotations for one in tools if one.annotations is not None}
        assert len(hints) == len(tools)
        assert {name for name, hint in hints.items() if not hint.read_only_hint} == CHANGING
        assert {name for name, hint in hints.items() if hint.destructive_hint} == CHANGING - {
            "helm_install", "helm_test", "process_start", "process_start_selected",
        }  # fmt: skip

    run_client(work)


@pytest.mark.parametrize(
    "path", [*PATHS, "/%6dcp", "/m%63p", "/%73se", "/sse%2Fmessages", "/mcp/", "/mcp/any", "/sse/x"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PUT"])
def test_a_configured_key_is_required_for_every_request(keyed: Server, path: str, method: str) -> None:
    prefix = path.split("/")[1]
    for headers in ({}, {"X-API-Key": "wrong"}, {"X-API-Key": " "}):
        answer = keyed.ask(method, path, b"{}" if method in ("POST", "PUT") else None, headers)
        assert check_service_error(prefix if prefix in ("charts", "tracker") else "supervision", answer, 401, path)


@pytest.mark.parametrize("mode", ["FULL", "READ_ONLY"])
def test_the_key_is_required_also_if_the_tools_are_disabled(serve: Serve, mode: str) -> None:
    server = serve(svc={"security": {"mode": mode, "api-key": "open sesame"}, "mcp": {"enabled": False}})
    for path in (*PATHS, "/%6dcp"):
        assert server.get(path).status == 401
        assert server.get(path, **KEY).status == 404
    assert "svc.mcp.enabled" in server.get("/mcp", **KEY).json["message"]


def test_the_key_is_accepted_on_every_path(keyed: Server) -> None:
    for path in ("/mcp", "/charts/mcp", "/%6dcp", "/supervision/mcp", "/tracker/mcp"):
        assert initialize(keyed, path, **KEY).status == 200
    assert keyed.post("/sse/messages", b"{}", **KEY).status == 400
    assert keyed.get("/mcp/any", **KEY).status == 404
    assert keyed.ask("PUT", "/mcp", b"", KEY).status == 405
    assert keyed.ask("PUT", "/mcp", b"", KEY).headers["Allow"] == "GET, POST, DELETE, HEAD, OPTIONS"
    assert keyed.ask("OPTIONS", "/sse").headers["Allow"] == "GET, HEAD, OPTIONS"


def test_similar_paths_are_not_tool_endpoints(keyed: Server) -> None:
    for path in ("/mcpx", "/ssex", "/api/v1/mcp", "/mc%70p", "/%25mcp"):
        assert keyed.get(path).status == 404


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize("path", ["/mcp", "/sse", "/sse/messages"])
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
def test_a_page_of_another_origin_is_refused(reading: Server, path: str, method: str, origin: str) -> None:
    body = json.dumps(HELLO).encode() if method == "POST" else None
    assert reading.ask(method, path, body, {**HEAD, "Origin": origin}).status == 403
    assert reading.ask(method, path, body, {**HEAD, "Sec-Fetch-Site": "cross-site"}).status == 403


def test_a_page_of_the_same_origin_is_admitted(reading: Server) -> None:
    assert initialize(reading, Origin=f"http://127.0.0.1:{reading.port}").status == 200
    assert initialize(reading, Host="evil.example").status == 421


def test_an_invalid_token_is_refused_not_anonymous(reading: Server) -> None:
    assert initialize(reading, Authorization="Bearer wrong").status == 401
    assert initialize(reading, X_Tracker_Token="wrong").status == 401
    assert initialize(reading, Authorization="Basic YTpi").status == 200


def token(server: Server, name: str, *more: str) -> str:
    """A token of an account, which is created if it is missing."""

    program = [
        sys.executable,
        str(ROOT / "run.py"),
        "--config",
        str(server.file),
        "--data-dir",
        str(server.data),
        "user",
    ]
    subprocess.run([*program, "add", name, *more], input="a long password\na long password\n", text=True, check=False)
    made = subprocess.run([*program, "token", name], capture_output=True, text=True, check=True)
    return made.stdout.strip()


def test_closed_mode_requires_a_token_or_the_key(serve: Serve) -> None:
    closed = {"security": {"open-mode": False}}
    server = serve({"web": SLEEPER}, tracker=closed, svc=KUBE)
    assert initialize(server).status == 401
    bearer = {"Authorization": f"Bearer {token(server, 'ann')}"}

    async def with_token() -> None:
        async with over_http(server, **bearer) as client:
            assert await tool_names(client) == READING - LIVE
            assert json.loads(result_text(await client.call_tool("process_list", {})))[0]["name"] == "web"
        async with over_stdio(server, PILOTHOUSE_TOKEN=bearer["Authorization"].split()[1]) as client:
            assert json.loads(result_text(await client.call_tool("process_list", {})))[0]["name"] == "web"

    run_client(with_token)
    other = serve(tracker=closed, svc={**FULL, **KUBE})
    assert initialize(other, Authorization=f"Bearer {token(other, 'bob')}").status == 401

    async def with_key() -> None:
        async with over_http(other, **KEY) as client:
            assert {name for name in READING | CHANGING if name.startswith("helm_")} == await tool_names(client)
            assert result_text(await client.call_tool("helm_repo_list", {})) == "[]"
            assert "an account is needed" in error_text(await client.call_tool("project_list", {}))

    run_client(with_key)


def test_a_session_cookie_is_not_accepted(serve: Serve) -> None:
    server = serve(tracker={"security": {"open-mode": False, "admin-password": "a long password"}}, svc=KUBE)
    login = server.post(
        "/login", b"username=admin&password=a+long+password", Content_Type="application/x-www-form-urlencoded"
    )
    cookie = login.headers["Set-Cookie"].partition(";")[0]
    assert server.get("/api/v1/processes", Cookie=cookie).status == 200
    assert initialize(server, Cookie=cookie).status == 401


@pytest.mark.parametrize("header", ["Via", "X-Remote-User"])
def test_a_call_by_any_proxy_is_remote(serve: Serve, header: str) -> None:
    proxy = {"server": {"trusted-proxies": ["127.0.0.1"]}}
    server = serve(
        {"web": SLEEPER}, svc=FULL, tracker={"security": {"proxy-login": {"header": "X-Remote-User"}}}, **proxy
    )
    behind = {**KEY, header: "ann"}

    async def work() -> None:
        async with over_http(server, **behind) as client:
            assert "account is needed" in error_text(await client.call_tool("process_start", {"name": "web"}))

    run_client(work)


def test_only_an_admin_changes_processes_beyond_loopback(serve: Serve) -> None:
    server = serve({"web": SLEEPER}, svc={**FULL, **KUBE})
    admin, other = (token(server, *who) for who in (("ann", "--admin"), ("bob",)))
    processes = {name for name in CHANGING if name.startswith("process_")}
    behind = {**KEY, "X-Forwarded-For": "192.0.2.7"}

    async def work() -> None:
        async with over_http(server, **behind) as client:
            assert await tool_names(client) == (READING | CHANGING) - processes - {"process_logs"}
            detail = server.ask("POST", "/api/v1/processes/start/web", b"", behind).json["message"]
            assert error_text(await client.call_tool("process_start", {"name": "web"})) == detail
        async with over_http(server, **behind, Authorization=f"Bearer {other}") as client:
            assert await tool_names(client) == (READING | CHANGING) - processes
            assert "ADMIN" in error_text(await client.call_tool("process_start", {"name": "web"}))
        async with over_http(server, **behind, Authorization=f"Bearer {admin}") as client:
            assert await tool_names(client) == READING | CHANGING
            assert "started" in result_text(await client.call_tool("process_start", {"name": "web"}))

    run_client(work)


def test_the_sdk_is_imported_at_the_first_request_and_not_before(serve: Serve) -> None:
    server = serve(svc={**FULL, **KUBE})

    def has_it() -> bool:
        with open(f"/proc/{server.pid}/maps") as maps:
            return "pydantic_core" in maps.read()

    assert server.get("/mcp").status == 401
    assert server.get("/v3/api-docs").status == 200
    assert not has_it()
    assert initialize(server, **KEY).status == 200
    assert has_it()


def test_disabled_tools_are_not_served_over_stdio(serve: Serve) -> None:

    server = serve(svc={"mcp": {"enabled": False}})
    program = [sys.executable, str(ROOT / "run.py"), "--config", str(server.file), "mcp"]
    done = subprocess.run(program, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (1, "")
    assert "svc.mcp.enabled" in done.stderr


def test_tools_need_the_extra_mcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "is_installed", lambda: False)
    wanted, unasked = (Config(svc=SvcSettings(mcp=McpSettings(enabled=one))) for one in (True, None))
    assert "pip install" in str(handler.why_disabled(unasked))
    handler.check_installed(unasked)
    with pytest.raises(CannotStart, match=r"svc\.mcp\.enabled"):
        handler.check_installed(wanted)
