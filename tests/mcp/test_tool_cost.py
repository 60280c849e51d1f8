"""What the tools cost an agent: their descriptions, sets of them, and pages of long lists. A token is four bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Serve, Server
from http_checks import running_server
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from mcp_clients import (
    CHANGING,
    FULL,
    KEY,
    LIVE,
    READING,
    error_text,
    over_http,
    over_stdio,
    result_text,
    run_client,
    tool_names,
)

KUBE = {"kube": {"kubeconfig": "/nonexistent"}}
JOB = {"command": "true"}
PROCESSES = {f"job{number:02}": JOB for number in range(45)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("full"), PROCESSES, svc={**FULL, **KUBE}) as one:
        yield one


async def cost(client: Client) -> float:
    """The tokens of the list of tools."""
    listed = await client.list_tools()
    return len(listed.model_dump_json(by_alias=True, exclude_none=True)) / 4


def test_the_descriptions_of_all_tools_are_short(server: Server, serve: Serve) -> None:
    reading = serve({"web": JOB}, svc={"security": {"api-key": "open sesame"}, **KUBE})

    async def work() -> None:
        async with over_http(reading, **KEY) as client:
            assert await tool_names(client) == READING
            assert await cost(client) <= 4500
        async with over_http(server, **KEY) as client:
            assert await cost(client) <= 9000
        async with over_http(server, "/mcp?toolsets=tests", **KEY) as client:
            assert await cost(client) <= 2000

    run_client(work)


def test_every_argument_is_described(server: Server) -> None:
    """In the tool, or where several tools have it, in the instructions of the server."""

    async def work() -> None:
        async with over_http(server, **KEY) as client:
            listed = (await client.list_tools()).tools
            instructions = client.instructions or ""
        bare = {
            (tool.name, name)
            for tool in listed
            for name, schema in tool.input_schema["properties"].items()
            if not schema.get("description") and f" {name}: " not in instructions
        }
        assert bare == set()
        by_name = {tool.name: tool.input_schema["properties"] for tool in listed}
        assert by_name["run_list"]["id"]["description"] == "The project, by id or name"
        assert by_name["helm_diff"]["context"]["description"] == "Unchanged lines around each change"
        assert by_name["process_logs"]["stream"]["default"] == "both"

    run_client(work)


def of(*prefixes: str) -> set[str]:
    return {name for name in READING | CHANGING if name.startswith(prefixes)}


def test_an_address_selects_sets_of_tools(server: Server) -> None:
    async def work() -> None:
        async with over_http(server, "/mcp?toolsets=processes", **KEY) as client:
            assert await tool_names(client) == of("process_", "event_")
            with pytest.raises(
                MCPError, match="there is no tool helm_list: the address of this connection leaves it out"
            ):
                await client.call_tool("helm_list", {})
        async with over_http(server, "/mcp?toolsets=charts,processes&readonly=true", **KEY) as client:
            assert await tool_names(client) == of("process_", "event_", "helm_") & READING
            with pytest.raises(MCPError, match="there is no tool process_start"):
                await client.call_tool("process_start", {"name": "job00"})

    run_client(work)


@pytest.mark.parametrize("query", ["toolsets=none", "toolsets=tests,x", "readonly=maybe"])
def test_a_bad_selection_is_refused(server: Server, query: str) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode()
    answer = server.ask("POST", f"/mcp?{query}", body, {**KEY, "Content-Type": "application/json"})
    assert answer.status == 400, answer


def test_the_configuration_turns_sets_off(serve: Serve, tmp_path: Path) -> None:
    server = serve({"web": JOB}, svc={**KUBE, "mcp": {"toolsets": ["tests"]}})

    async def work() -> None:
        async with over_http(server) as client:
            assert await tool_names(client) == READING - LIVE - of("process_", "event_", "helm_")
            with pytest.raises(MCPError, match=r"svc\.mcp\.toolsets"):
                await client.call_tool("process_list", {})
        async with over_stdio(server) as client:
            assert await tool_names(client) == READING - of("process_", "event_", "helm_")

    run_client(work)


def test_long_lists_are_pages_of_twenty_rows(server: Server) -> None:
    async def work() -> None:
        async with over_http(server, **KEY) as client:

            async def page(**arguments: Any) -> Any:
                return json.loads(result_text(await client.call_tool("process_list", arguments)))

            first = await page()
            assert (len(first["items"]), first["total"], first["nextCursor"]) == (20, 45, "20")
            last = await page(cursor="40")
            assert (len(last["items"]), last["total"], "nextCursor" in last) == (5, 45, False)
            names = [row["name"] for start in ("0", "20", "40") for row in (await page(cursor=start))["items"]]
            assert names == sorted(PROCESSES)
            short = await page(select="job0*")
            assert len(short) == 10
            wrong = await client.call_tool("process_list", {"cursor": "next"})
            assert "nextCursor" in error_text(wrong)

    run_client(work)


def test_a_result_is_text_only(server: Server) -> None:
    async def work() -> None:
        async with over_http(server, **KEY) as client:
            result = await client.call_tool("process_info", {"name": "job00"})
            assert json.loads(result_text(result))["name"] == "job00"
            assert result.structured_content is None

    run_client(work)
