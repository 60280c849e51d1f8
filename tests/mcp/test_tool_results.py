"""What tools return of logs, and how large a result may be."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Server
from http_checks import running_server
from mcp_clients import KEY, error_text, over_http, result_text, run_client


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
