"""Clients of the MCP SDK over each of the three transports."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import httpx2
from conftest import ROOT, Server
from mcp.client.client import Client
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

Result = TypeVar("Result")
Transport = Callable[..., contextlib.AbstractAsyncContextManager[Client]]

READING = {
    "helm_list", "helm_status", "helm_history", "helm_get_values", "helm_get_manifest", "helm_get_notes",
    "helm_get_hooks", "helm_get_resources", "helm_template", "helm_lint", "helm_create", "helm_show_all",
    "helm_show_chart", "helm_show_values", "helm_show_readme", "helm_show_crds", "helm_search_hub",
    "helm_dependency_resolve", "helm_repo_list", "helm_repo_charts", "helm_repo_versions", "helm_repo_update",
    "helm_repo_update_all", "helm_pull", "helm_images", "helm_diff", "helm_search_repo", "helm_dependency_list",
    "helm_tree", "helm_object", "helm_events", "helm_contexts", "helm_upgrades", "helm_registry_list",
    "process_list", "process_info", "process_details", "process_groups", "process_notices", "process_runs",
    "process_logs", "event_list",
    "project_list", "run_list", "run_detail", "gate_verdict", "flaky_tests",
    "run_tests", "failure_clusters", "project_search",
}  # fmt: skip
LIVE = {"helm_tree", "helm_object", "helm_events"}
"""Reads that need the key or an ADMIN, over HTTP."""
CHANGING = {
    "helm_install", "helm_upgrade", "helm_uninstall", "helm_rollback", "helm_test", "helm_repo_add",
    "helm_repo_remove", "helm_push", "helm_diff_upgrade", "helm_registry_login", "helm_registry_logout",
    "process_start", "process_stop", "process_restart", "process_signal", "process_schedule",
    "process_start_selected", "process_stop_selected", "process_restart_selected", "process_signal_selected",
}  # fmt: skip
KEY = {"X-API-Key": "open sesame"}
FULL: dict[str, Any] = {"security": {"mode": "FULL", "api-key": "open sesame"}}


@contextlib.asynccontextmanager
async def over_http(server: Server, path: str = "/mcp", mode: str = "auto", **headers: str) -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers=_header_names(headers), timeout=60) as http,
        Client(streamable_http_client(f"http://127.0.0.1:{server.port}{path}", http_client=http), mode=mode) as client,
    ):
        yield client


@contextlib.asynccontextmanager
async def over_sse(server: Server, path: str = "/sse", **headers: str) -> AsyncIterator[Client]:
    transport = sse_client(f"http://127.0.0.1:{server.port}{path}", headers=_header_names(headers), timeout=60)
    async with Client(transport, mode="legacy") as client:
        yield client


@contextlib.asynccontextmanager
async def over_stdio(server: Server, mode: str = "auto", **environ: str) -> AsyncIterator[Client]:
    """Starts the stdio server, with the port of the running server as an argument, as in an agent's configuration."""
    arguments = ["--config", str(server.file), "--port", str(server.port), "--data-dir", str(server.data), "mcp"]
    started = StdioServerParameters(
        command=sys.executable,
        args=[str(ROOT / "run.py"), *arguments],
        env={**os.environ, "PYTHONWARNINGS": "error", **environ},
        cwd=server.folder,
    )
    with (server.folder / "stdio.log").open("a") as log:
        async with Client(stdio_client(started, errlog=log), mode=mode) as client:
            yield client


TRANSPORTS: dict[str, Transport] = {"http": over_http, "sse": over_sse, "stdio": over_stdio}


def _header_names(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def run_client(work: Callable[[], Awaitable[Result]]) -> Result:
    """Runs a client, for at most two minutes."""

    async def within() -> Result:
        async with asyncio.timeout(120):
            return await work()

    return asyncio.run(within())


async def tool_names(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}


def result_text(result: Any) -> str:
    """The text of a successful call."""
    assert not result.is_error, result
    return str(result.content[0].text)


def error_text(result: Any) -> str:
    """The message of a failed call, which is its only content."""
    assert result.is_error, result
    assert len(result.content) == 1
    assert result.structured_content is None
    return str(result.content[0].text)
