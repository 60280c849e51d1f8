"""How many calls stand between a request's head and the function that answers it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from conftest import ROOT
from in_process import TIMEOUT_SECONDS, application, fetch
from tornado.httpclient import AsyncHTTPClient
from tornado.ioloop import IOLoop

from handlers.app import Application
from handlers.supervision.processes import list_processes

MAX_CALLS = 47
OWN = tuple(f"{ROOT}/{folder}/" for folder in ("handlers", "models", "supervisor"))


@pytest.fixture
def app(io_loop: IOLoop, tmp_path: Path) -> Iterator[Application]:
    with application(io_loop, tmp_path) as app:
        yield app


@pytest.mark.gen_test(timeout=TIMEOUT_SECONDS)
async def test_a_request_reaches_its_function_in_few_calls(http_client: AsyncHTTPClient, base_url: str) -> None:
    await fetch(http_client, f"{base_url}/api/v1/processes")  # what is cached is cached
    calls: list[str] = []
    # The loop turns once on the way: what the server's other tasks do in that turn has another context.
    is_counted = ContextVar("is_counted", default=False)

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code.co_name == "find_handler":
            is_counted.set(True)
        elif is_counted.get() and code is list_processes.__code__:
            is_counted.set(False)
            calls.append("reached")
        elif is_counted.get() and code.co_filename.startswith(OWN) and "reached" not in calls:
            calls.append(code.co_qualname)

    gc.disable()  # what other tests have left is not finalized by this request
    sys.setprofile(count)
    try:
        response = await fetch(http_client, f"{base_url}/api/v1/processes")
    finally:
        sys.setprofile(None)
        gc.enable()
    assert response.code == 200
    assert calls.pop() == "reached"
    assert 20 < len(calls) <= MAX_CALLS, calls
