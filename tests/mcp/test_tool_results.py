"""What tools return of logs, and how large a result may be."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Server
from http_checks import running_server
from mcp_clients import KEY, error_text, over_http, result_text, run_client

from handlers.mcp import results
from handlers.mcp.results import ToolResult


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    logs = {"stdout-logfile": str(folder / "out.log"), "stderr-logfile": str(folder / "err.log")}
    bare = {"command": "true", "log": "inherit"}
    with running_server(folder, {"web": {"command": "true", **logs}, "bare": bare}, svc={}) as one:
        yield one


def write(file: Path, text: str, written: float) -> None:
    file.write_text(text)
    os.utime(file, (written, written))


def test_both_logs_are_returned_without_a_stream(server: Server, folder: Path) -> None:
    out, err = folder / "out.log", folder / "err.log"

    async def work() -> None:
        async with over_http(server, **KEY) as client:

            async def logs(**arguments: object) -> str:
                return result_text(await client.call_tool("process_logs", {"name": "web", **arguments}))

            assert await logs() == "==> stderr is empty <==\n==> stdout is empty <==\n"
            write(out, "one\ntwo\n", 2000)
            assert await logs() == "==> stderr is empty <==\n==> stdout <==\none\ntwo\n"
            write(err, "bad\nworse", 3000)
            assert await logs(lines=1) == "==> stdout <==\ntwo\n==> stderr <==\nworse\n"
            write(out, "one\ntwo\n", 4000)
            assert (await logs()).endswith("==> stdout <==\none\ntwo\n")
            assert await logs(stream="stderr") == "bad\nworse"
            missing = await client.call_tool("process_logs", {"name": "bare"})
            assert "stdout-logfile is not set" in error_text(missing)

    run_client(work)


@pytest.mark.parametrize("line", ["x" * 400, "\x01" * 120, "ü" * 200], ids=["plain", "escaped", "two bytes"])
def test_a_result_of_a_million_bytes_is_an_error_that_names_a_smaller_call(
    server: Server, folder: Path, line: str
) -> None:
    write(folder / "out.log", f"{line}\n" * 5000, 5000)

    async def work() -> None:
        async with over_http(server, **KEY) as client:
            large = await client.call_tool("process_logs", {"name": "web", "stream": "stdout", "lines": 5000})
            assert error_text(large).endswith("; call it with smaller lines")
            fitting = await client.call_tool("process_logs", {"name": "web", "stream": "stdout", "lines": 1200})
            assert result_text(fitting) == f"{line}\n" * 1200
            assert json.loads(result_text(await client.call_tool("process_info", {"name": "web"})))["name"] == "web"

    run_client(work)


@pytest.mark.parametrize("blank", ["", " "], ids=["compact", "spaced"])
def test_rows_of_a_page_are_those_of_the_list_as_they_were(blank: str) -> None:
    rows = [f'{{"name":{blank}"], [é{number}","of":[1,{{}}]}}' for number in range(45)]
    text = "[" + f",{blank}".join(rows) + "]"

    def page(cursor: int, limit: int | None = None) -> Any:
        return json.loads(asyncio.run(results.page(ToolResult(text), cursor, limit)).text)

    assert page(0) == {"items": json.loads(text)[:20], "total": 45, "nextCursor": "20"}
    assert page(40) == {"items": json.loads(text)[40:], "total": 45}
    assert page(50) == {"items": [], "total": 45}
    assert page(0, 45) == json.loads(text)
    for other in ("[]", f"[{blank}]", "{}", "text"):
        assert asyncio.run(results.page(ToolResult(other), 0, None)).text == other


def test_the_loop_runs_while_a_large_result_is_paged_and_measured() -> None:
    rows = ToolResult(json.dumps([{"name": "x" * 1000}] * 3000))
    assert runs_meanwhile(results.page(rows, 0, None)) > 40
    assert runs_meanwhile(results.bounded(ToolResult("\n" * 900_000), (), "")) > 10


def runs_meanwhile(work: Coroutine[Any, Any, object]) -> int:
    """How often the loop runs another task until `work` is done."""

    async def run() -> int:
        task, runs = asyncio.create_task(work), 0
        while not task.done():
            await asyncio.sleep(0)
            runs += 1
        await task
        return runs

    return asyncio.run(run())
