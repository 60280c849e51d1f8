"""Environment files that cannot be read at once: the server goes on answering, and a stop overtakes the start."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import Server, wait_for

PROCESSES = "/api/v1/processes"


@pytest.fixture
def slow(serve: Callable[..., Server], tmp_path: Path) -> tuple[Server, Path]:
    """A server with a process whose environment file is a pipe: it is read when somebody writes to it."""
    file = tmp_path / "variables"
    file.write_text("A=1\n")
    command = ["sh", "-c", "echo $A > said; exec sleep 1000"]
    process: dict[str, Any] = {"command": command, "env-file": str(file), "directory": str(tmp_path)}
    server = serve(supervisor={"processes": {"slow": process}})
    file.unlink()
    os.mkfifo(file)
    return server, file


def is_open_for_reading(file: Path) -> int | None:
    """A descriptor to write to the pipe; `None` while nobody reads it."""
    try:
        return os.open(file, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


def test_the_server_answers_while_an_environment_file_is_read(slow: tuple[Server, Path], tmp_path: Path) -> None:
    server, file = slow
    with ThreadPoolExecutor(1) as threads:
        start = threads.submit(server.post, f"{PROCESSES}/start/slow")
        pipe = wait_for(lambda: is_open_for_reading(file), about="the environment file to be opened")
        assert server.get("/healthz").status == 200
        os.write(pipe, b"A=2\n")
        os.close(pipe)
        assert start.result().status == 200
    wait_for(lambda: (tmp_path / "said").exists() and (tmp_path / "said").read_text() == "2\n", about="the variable")


def test_a_stop_overtakes_a_start_that_reads_its_environment_file(slow: tuple[Server, Path]) -> None:
    server, file = slow
    with ThreadPoolExecutor(2) as threads:
        start = threads.submit(server.post, f"{PROCESSES}/start/slow")
        pipe = wait_for(lambda: is_open_for_reading(file), about="the environment file to be opened")
        stop = threads.submit(server.post, f"{PROCESSES}/stop/slow")
        assert server.get("/healthz").status == 200
        os.write(pipe, b"A=2\n")
        os.close(pipe)
        assert start.result().status in (200, 500)  # 500 where the stop came first
        stop.result()
    assert server.get(f"{PROCESSES}/info/slow").json["status"] in ("stopped", "not_started")
