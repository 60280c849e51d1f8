"""The application in the test's own process and loop, for pytest-tornado's `app` fixture."""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tornado.httpclient import AsyncHTTPClient, HTTPResponse
from tornado.ioloop import IOLoop

from handlers.app import Application
from models.config import loader
from supervisor.services import Services, open_services

TIMEOUT_SECONDS = 60.0
"""For `gen_test`, whose default of five seconds a busy machine may exceed."""
_PR_SET_CHILD_SUBREAPER = 36


@contextlib.contextmanager
def application(io_loop: IOLoop, folder: Path, **sections: Any) -> Iterator[Application]:
    """Opens the whole application with its own services and stores, and closes it after the test."""
    file = folder / "pilothouse.yaml"
    file.write_text(
        json.dumps({**sections, "server": {"data-dir": str(folder / "data"), **sections.get("server", {})}})
    )
    stack, interval = contextlib.AsyncExitStack(), sys.getswitchinterval()

    async def start() -> Services:
        opened = open_services(loader.load(file, {}), lambda: loader.load(file, {}))
        return await stack.enter_async_context(opened)

    async def stop(app: Application) -> None:
        app.streams.close()
        await app.tools.close()
        await stack.aclose()

    app = io_loop.run_sync(lambda: _application_with(start))
    try:
        yield app
    finally:
        io_loop.run_sync(lambda: stop(app))
        sys.setswitchinterval(interval)
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


async def _application_with(start: Any) -> Application:
    return Application(await start())


async def fetch(
    client: AsyncHTTPClient, url: str, method: str = "GET", headers: Mapping[str, str] | None = None, body: bytes = b""
) -> HTTPResponse:
    """Any response, redirects and failures too."""
    return await client.fetch(
        url,
        raise_error=False,
        method=method,
        headers=dict(headers or {}),
        body=body if method in ("POST", "PUT", "DELETE") else None,
        allow_nonstandard_methods=True,
        follow_redirects=False,
        request_timeout=TIMEOUT_SECONDS,
    )
