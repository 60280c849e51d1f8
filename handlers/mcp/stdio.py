"""`run.py mcp`: the tools over standard input and output, for an agent that starts this process.

The process runs chart tools itself, on the server's data directory, and forwards the others to the running server, with
the token in PILOTHOUSE_TOKEN. Standard output has the protocol only; the log goes to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import os
import signal
import ssl
import stat
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import peewee
from tornado.httpclient import HTTPRequest
from tornado.simple_httpclient import HTTPStreamClosedError, HTTPTimeoutError, SimpleAsyncHTTPClient

from handlers.app import served
from handlers.http.credentials import Caller
from handlers.http.proxy import listens_beyond_loopback
from handlers.mcp.derived_tools import tools_of
from handlers.mcp.handler import MAX_MESSAGE_BYTES, why_disabled
from handlers.mcp.toolbox import Toolbox, ToolCaller
from models.charts.repositories.stored import catalogue
from models.config.settings import Config
from models.errors import TimedOut, Unavailable
from supervisor.charts.service import Charts
from supervisor.children.child import Children
from supervisor.cli.streams import discard_output
from supervisor.logging import set_up_logging
from supervisor.processes.service import inherited

_BUSY_TIMEOUT_MILLISECONDS = 5_000
_CONNECT_SECONDS = 10.0
_RESPONSE_SECONDS = 3600.0
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (addresses to connect to)


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb."""
    parser.epilog = "The tools of processes and reports need the running server, and use the token in PILOTHOUSE_TOKEN."
    parser.set_defaults(work=main)


def main(settings: Config, options: argparse.Namespace) -> int:
    """Returns the exit code."""
    reason = why_disabled(settings)
    if sys.stdin is None or sys.stdout is None:
        reason = "standard input and output must be open"
    if reason:
        print(f"run.py mcp: {reason}", file=sys.stderr)
        return 1
    lines = set_up_logging(settings.server.log_format)
    try:
        asyncio.run(_serve(settings))
    except asyncio.CancelledError:
        return 0
    except _PipeLost as lost:
        print(f"run.py mcp: standard input or output: {lost}", file=sys.stderr)
        return 1
    except (OSError, peewee.PeeweeException) as error:
        print(f"run.py mcp: {settings.server.data_dir}: {error}", file=sys.stderr)
        return 1
    finally:
        lines.close()
    return 0


class _PipeLost(Exception):
    """The agent has closed its end of a pipe; the message is the reason."""


def _first_of(group: BaseExceptionGroup[OSError]) -> OSError:
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first


async def _serve(settings: Config) -> None:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    token = os.environ.get("PILOTHOUSE_TOKEN", "").strip()
    module = importlib.import_module("handlers.mcp.sdk_server")
    tools = tools_of(served(settings), bool(settings.svc.kube.contexts))
    caller = None if token else Caller(is_remote=listens_beyond_loopback(settings), has_chart_key=True)
    async with _charts(settings) as charts:
        toolbox = Toolbox(lambda: settings, tools, lambda: charts)
        lost = None
        try:
            await module.serve_stdio(toolbox, ToolCaller(caller, RunningServer(settings, token).send), await _lines())
        except* OSError as group:  # raised in a task of the SDK
            lost = _first_of(group)
        if lost is not None:  # Python 3.11.2 would wrap an exception that is raised within `except*`
            discard_output()
            raise _PipeLost(lost.strerror)
        await toolbox.wait_for_changes()


@contextlib.asynccontextmanager
async def _charts(settings: Config) -> AsyncIterator[Charts]:
    """The chart service of this process. Its children have a tag of their own, so that the server leaves them alone."""
    data = Path(settings.server.data_dir)
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    catalogue.open(data / "charts.db")
    catalogue.execute_sql(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MILLISECONDS}")
    children = Children()
    charts = Charts(settings, data, children, uuid.uuid4().hex, inherited(os.environ))
    try:
        await charts.start()
        yield charts
    finally:
        await charts.end_jobs()
        charts.close()
        children.close()
        catalogue.close()


async def _lines() -> AsyncIterator[str] | None:
    """Returns the lines of standard input; None for a terminal, which the SDK reads.

    A pipe is read on the loop, so that a signal ends this process; a file is read at once.
    """
    kind = os.fstat(0).st_mode
    if stat.S_ISREG(kind):
        return _from_list([line.decode("utf-8", "replace") for line in sys.stdin.buffer])
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
        return None
    reader = asyncio.StreamReader(limit=2 * MAX_MESSAGE_BYTES)
    pipe = os.fdopen(os.dup(0), "rb", 0)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return _from_pipe(reader, transport)


async def _from_list(lines: list[str]) -> AsyncIterator[str]:
    for line in lines:
        yield line


async def _from_pipe(reader: asyncio.StreamReader, transport: asyncio.BaseTransport) -> AsyncIterator[str]:
    with contextlib.closing(transport):
        while True:
            try:
                line = await reader.readline()
            except ValueError:
                line = b"a line that is too long is no message\n"
            if not line:
                return
            yield line.decode("utf-8", "replace")


class RunningServer:
    """The server that runs on this configuration."""

    def __init__(self, settings: Config, token: str) -> None:
        host = next(iter(settings.server.address), "127.0.0.1")
        host = _WILDCARDS.get(host, host)
        scheme = "https" if settings.server.tls.certificate else "http"
        self._base = f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.server.port}"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._tls = _trusted_context(settings.server.tls.certificate)
        self._client = SimpleAsyncHTTPClient(force_instance=True)

    async def send(self, method: str, path: str, body: bytes) -> tuple[int, str, bytes]:
        """Returns status, media type and body. Raises `Unavailable`, `TimedOut`."""
        request = HTTPRequest(
            self._base + path,
            method=method,
            headers=self._headers | ({"Content-Type": "application/json"} if body else {}),
            body=body if method != "GET" else None,
            connect_timeout=_CONNECT_SECONDS,
            request_timeout=_RESPONSE_SECONDS,
            follow_redirects=False,
            ssl_options=self._tls,
        )
        try:
            response = await self._client.fetch(request, raise_error=False)
        except HTTPTimeoutError:
            raise TimedOut(f"the server at {self._base} did not answer in time") from None
        except (OSError, HTTPStreamClosedError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise Unavailable(
                f"this requires the running server, but no server responds at {self._base}: {reason}"
            ) from None
        return response.code, response.headers.get("Content-Type", ""), response.body


def _trusted_context(certificate: Path | None) -> ssl.SSLContext | None:
    """Returns a context that trusts the server's own certificate under any host name."""
    if certificate is None:
        return None
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = False
    return context
