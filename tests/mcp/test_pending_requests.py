"""After the end of standard input, `run.py mcp` answers all requests already received."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from handlers.mcp.sdk_server import PendingRequests

HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a shell", "version": "1"}}
ASKED: list[dict[str, Any]] = [
    {"id": 1, "method": "initialize", "params": HELLO},
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/list"},
    {"id": "three", "method": "tools/call", "params": {"name": "helm_repo_list", "arguments": {}}},
    {"id": 4, "method": "tools/call", "params": {"name": "helm_create", "arguments": {"name": "demo"}}},
    {"id": 5, "method": "no/such"},
]


@pytest.mark.parametrize("from_a_file", [False, True], ids=["a pipe", "a file"])
def test_all_pending_requests_are_answered_before_the_exit(from_a_file: bool, tmp_path: Path) -> None:
    lines = "".join(json.dumps({"jsonrpc": "2.0", **one}) + "\n" for one in ASKED).encode()
    (tmp_path / "asked").write_bytes(lines)
    command = [sys.executable, str(ROOT / "run.py"), "--data-dir", str(tmp_path / "data"), "mcp"]
    with (tmp_path / "asked").open("rb") as file:
        given: dict[str, Any] = {"stdin": file} if from_a_file else {"input": lines}
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60, check=True, **given)
    answers = {answer["id"]: answer for answer in map(json.loads, done.stdout.splitlines())}
    assert set(answers) == {1, 2, "three", 4, 5}
    assert [tool for tool in answers[2]["result"]["tools"] if tool["name"] == "helm_create"]
    assert not answers["three"]["result"]["isError"]
    assert not answers[4]["result"]["isError"]
    assert answers[5]["error"]["code"] == -32601


NOT_ANSWERED = (
    "no message",
    '["no", "message"]',
    '{"id": 2, "method": "ping"}',
    '{"jsonrpc": "2.0", "id": 3, "method": 5}',
    '{"jsonrpc": "2.0", "id": true, "method": "ping"}',
    '{"jsonrpc": "2.0", "id": 4, "method": "ping", "params": []}',
    '{"jsonrpc": "2.0", "id": 5, "method": "ping", "params": {"a": "\\ud800"}}',
    f'{{"jsonrpc": "2.0", "id": 6, "method": "ping", "params": {{"a": {"[" * 900}{"]" * 900}}}}}',
)
"""Lines with an id, to which the SDK answers nothing."""


def test_cancelled_and_malformed_requests_do_not_delay_the_exit() -> None:
    async def work() -> list[str]:
        async def lines() -> AsyncIterator[str]:
            yield '{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'
            for line in NOT_ANSWERED:
                yield line
            yield '{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}'

        async with asyncio.timeout(10):
            return [line async for line in PendingRequests().until_answered(lines())]

    assert len(asyncio.run(work())) == len(NOT_ANSWERED) + 2


def test_a_malformed_request_does_not_keep_the_process(tmp_path: Path) -> None:
    lines = "\n".join([*NOT_ANSWERED, '{"jsonrpc": "2.0", "id": "last", "method": "ping"}', ""]).encode()
    command = [sys.executable, str(ROOT / "run.py"), "--data-dir", str(tmp_path / "data"), "mcp"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60, check=True, input=lines)
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["last"]
