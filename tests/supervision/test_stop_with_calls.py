"""SIGTERM with `on-exit: leave` while calls run: each ends with 503, and nothing is signalled after that."""

from __future__ import annotations

import asyncio
import os
import signal
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import Answer, Serve, Server, is_alive, wait_for

from models.errors import Unavailable
from supervisor.children.child import Child
from supervisor.children.proc import ProcessIdentity

LEAVE = {"on-exit": "leave"}
CALLS = [
    "/api/v1/processes/stop/stubborn",
    "/api/v1/processes/restart/stubborn",
    "/api/v1/processes/start/late",
    "/api/v1/processes/start/dependent",
    "/api/v1/processes/stop?select=stubborn",
    "/api/v1/processes/restart?select=stubborn,late",
    "/api/v1/processes/start?select=late",
    "/api/v1/processes/group/stop",
    "/api/v1/processes/group/restart",
]


def processes(folder: Path) -> dict[str, Any]:
    ready = "trap '' TERM; : > " + str(folder / "ready") + "; while :; do sleep 0.1; done"
    return {
        "stubborn": {"command": ["sh", "-c", ready], "stop-timeout": "10m"},
        "late": {"command": "sleep 1000", "type": "notify", "ready-timeout": "10m"},
        "dependent": {"command": "sleep 1000", "depends-on": ["late"], "start-timeout": "10m"},
    }


def begun(server: Server, path: str) -> bool:
    """Whether the call has changed something."""
    name = "stubborn" if "stubborn" in path or "group" in path else "late"
    return server.status(name) in ("stopping", "starting")


@pytest.mark.parametrize("path", CALLS)
def test_call_ends_with_503_and_the_process_goes_on(serve: Serve, tmp_path: Path, path: str) -> None:
    server = serve(processes(tmp_path), supervisor=LEAVE)
    assert server.do("start", "stubborn").status == 200
    wait_for((tmp_path / "ready").exists)
    pid = server.info("stubborn")["pid"]
    with ThreadPoolExecutor() as pool:
        call: Future[Answer] = pool.submit(server.post, path)
        wait_for(lambda: begun(server, path))
        assert server.stop() == 0
        answer = call.result()
    assert (answer.status, answer.json["message"]) == (503, "the server is stopping")
    assert is_alive(pid)
    log = server.log.read_text()
    assert "Traceback" not in log
    assert "Bad file descriptor" not in log
    server.start()
    assert server.info("stubborn")["pid"] == pid
    os.killpg(pid, signal.SIGKILL)


def test_no_signal_is_sent_to_a_child_that_was_left_running() -> None:
    """Its descriptor is closed, and may be another file's."""

    async def released() -> Child:
        exited = asyncio.get_running_loop().create_future()
        return Child(ProcessIdentity(os.getpid(), 0, ""), -1, None, exited, is_released=True)

    child = asyncio.run(released())
    for send in (child.send, child.send_to_main):
        with pytest.raises(Unavailable, match="the server is stopping"):
            send(0)
