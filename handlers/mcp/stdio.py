"""`run.py mcp`: the tools for an agent that starts us, over standard input and output.

A process of its own, beside the server: it does the chart tools itself, on the same data directory, and passes the
others on to the running server, as the account whose token is in PILOTHOUSE_TOKEN. Nothing but the protocol goes to
standard output; our log goes to standard error.
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
from handlers.charts.all_operations import OPERATIONS
from handlers.http.credentials import Caller
from handlers.http.proxy import listens_beyond_loopback
from handlers.mcp.derived_tools import chart_tools, rest_tools
from handlers.mcp.handler import LARGEST, why_off
from handlers.mcp.toolbox import Asker, Toolbox
from models.charts.tables import catalogue
from models.config.settings import Config
from models.errors import TimedOut, Unavailable
from supervisor.charts.service import Charts
from supervisor.logging import set_up_logging
from supervisor.processes.child import Children
from supervisor.services import inherited

_PATIENCE = 5_000
_CONNECTING_TAKES = 10.0
_ANSWER_TAKES = 3600.0
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (to be reached, not to listen on)


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds what is to be said behind the verb."""
    parser.epilog = "The tools of processes and reports ask the running server, with the token in PILOTHOUSE_TOKEN."
    parser.set_defaults(work=main)


def main(settings: Config, asked: argparse.Namespace) -> int:
    """Returns the exit code."""
    if why := why_off(settings):
        print(f"run.py mcp: {why}", file=sys.stderr)
        return 1
    lines = set_up_logging(settings.server.log_format)
    try:
        asyncio.run(_serve(settings))
    except asyncio.CancelledError:
        return 0
    except (OSError, peewee.PeeweeException) as error:
        print(f"run.py mcp: {settings.server.data_dir}: {error}", file=sys.stderr)
        return 1
    finally:
        lines.close()
    return 0


async def _serve(settings: Config) -> None:
    this = asyncio.current_task()
    assert this is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, this.cancel)
    token = os.environ.get("PILOTHOUSE_TOKEN", "").strip()
    module = importlib.import_module("handlers.mcp.serving")
    tools = [*chart_tools(OPERATIONS), *rest_tools(served(settings))]
    caller = None if token else Caller(is_remote=listens_beyond_loopback(settings))
    async with _charts(settings) as charts:
        toolbox = Toolbox(lambda: settings, tools, lambda: charts)
        await module.serve_streams(toolbox, Asker(caller, Running(settings, token).ask), await _lines())
        await toolbox.settled()


@contextlib.asynccontextmanager
async def _charts(settings: Config) -> AsyncIterator[Charts]:
    """The chart service of this process. Its children bear a mark of their own: the server's are not theirs to end."""
    data = Path(settings.server.data_dir)
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    catalogue.open(data / "charts.db")
    catalogue.execute_sql(f"PRAGMA busy_timeout = {_PATIENCE}")
    children = Children()
    charts = Charts(settings, data, children, uuid.uuid4().hex, inherited(os.environ))
    try:
        await charts.start()
        yield charts
    finally:
        await charts.close()
        children.close()
        catalogue.close()


async def _lines() -> AsyncIterator[str] | None:
    """Of standard input: of a pipe so that a signal can end us; of a file at once; of a terminal the SDK reads them."""
    kind = os.fstat(0).st_mode
    if stat.S_ISREG(kind):
        return _each([line.decode("utf-8", "replace") for line in sys.stdin.buffer])
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
        return None
    reader = asyncio.StreamReader(limit=2 * LARGEST)
    pipe = os.fdopen(os.dup(0), "rb", 0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return _read(reader)


async def _each(lines: list[str]) -> AsyncIterator[str]:
    for line in lines:
        yield line


async def _read(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    while True:
        try:
            line = await reader.readline()
        except ValueError:
            line = b"a line that is too long is no message\n"
        if not line:
            return
        yield line.decode("utf-8", "replace")


class Running:
    """The running server, as this configuration says where it is."""

    def __init__(self, settings: Config, token: str) -> None:
        host = settings.server.address[0]
        host = _EVERYWHERE.get(host, host)
        scheme = "https" if settings.server.tls.certificate else "http"
        self._base = f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.server.port}"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._tls = _trusting(settings.server.tls.certificate)
        self._client = SimpleAsyncHTTPClient(force_instance=True)

    async def ask(self, method: str, path: str, body: bytes) -> tuple[int, str, bytes]:
        """Returns status, media type and body. Raises `Unavailable`, `TimedOut`."""
        request = HTTPRequest(
            self._base + path,
            method=method,
            headers=self._headers | ({"Content-Type": "application/json"} if body else {}),
            body=body if method != "GET" else None,
            connect_timeout=_CONNECTING_TAKES,
            request_timeout=_ANSWER_TAKES,
            follow_redirects=False,
            ssl_options=self._tls,
        )
        try:
            answer = await self._client.fetch(request, raise_error=False)
        except HTTPTimeoutError:
            raise TimedOut(f"the server at {self._base} did not answer in time") from None
        except (OSError, HTTPStreamClosedError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise Unavailable(f"this needs the running server, and none answers at {self._base}: {why}") from None
        return answer.code, answer.headers.get("Content-Type", ""), answer.body


def _trusting(certificate: Path | None) -> ssl.SSLContext | None:
    """Trusts the server's own certificate, whatever name it was made for."""
    if certificate is None:
        return None
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = False
    return context
