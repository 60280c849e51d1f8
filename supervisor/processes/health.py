"""Asks a running process how it is: by HTTP, by TCP, or by a command."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
from collections.abc import Callable

from tornado.httpclient import HTTPClientError
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from models.config.redaction import shown_address, shown_words
from models.supervision.process import ExecProbe, HealthCheck, HttpProbe, ProcessSpec, TcpProbe
from supervisor.processes.child import MARK, Children, Launch

log = logging.getLogger("health")

_MOST_AT_ONCE = 1000
_MOST_BODY = 2**40  # it is not kept: how long it may take is bound by the timeout


class Prober:
    """Makes probes; holds what they share."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._client: SimpleAsyncHTTPClient | None = None

    async def watch(self, spec: ProcessSpec, launch: Launch, told: Callable[[bool], None]) -> None:
        """Probes until cancelled; `told` gets True or False when a threshold is reached, and again when it turns."""
        check = spec.health_check
        if check is None:
            return
        await asyncio.sleep(check.initial_delay)
        healthy: bool | None = None
        streak, last = 0, None
        while True:
            try:
                wrong = await self.ask(check, launch)
            except Exception as error:  # a probe that cannot be made says nothing good
                wrong = str(error) or type(error).__name__
            good = not wrong
            streak = streak + 1 if good == last else 1
            last = good
            if good != healthy and streak >= (check.success_threshold if good else check.failure_threshold):
                healthy = good
                if wrong:
                    log.warning("%s: unhealthy: %s", spec.name, wrong)
                told(good)
            await asyncio.sleep(check.interval)

    async def ask(self, check: HealthCheck, launch: Launch) -> str:
        """What is wrong, in words; nothing where it is well. No answer within `timeout` is wrong."""
        try:
            async with asyncio.timeout(check.timeout):
                if check.http is not None:
                    return await self._http(check.http, check.timeout)
                if check.tcp is not None:
                    return await self._tcp(check.tcp)
                return await self._exec(check.exec, launch) if check.exec is not None else ""
        except TimeoutError:
            return f"no answer within {check.timeout:g} s"
        except (ssl.SSLError, socket.gaierror) as error:  # their numbers are not those of the system
            return error.strerror or str(error)
        except OSError as error:
            return os.strerror(error.errno) if error.errno else str(error)

    async def _http(self, probe: HttpProbe, timeout: float) -> str:
        if self._client is None:
            self._client = SimpleAsyncHTTPClient(
                force_instance=True, max_clients=_MOST_AT_ONCE, max_body_size=_MOST_BODY
            )
        try:
            asked = self._client.fetch(
                probe.url,
                method=probe.method,
                headers=dict(probe.headers),
                allow_nonstandard_methods=True,
                follow_redirects=False,
                connect_timeout=timeout,
                request_timeout=timeout,
                raise_error=False,
                streaming_callback=_drop,
            )
            asked.add_done_callback(lambda done: done.cancelled() or done.exception())  # who waited may be gone
            answer = await asyncio.shield(asked)  # Tornado logs a trace where an answer that was given up fails
        except (HTTPClientError, ValueError) as error:
            return str(error)
        if any(low <= answer.code <= high for low, high in probe.status):
            return ""
        return f"{probe.method} {shown_address(probe.url)}: {answer.error or answer.code}"

    async def _tcp(self, probe: TcpProbe) -> str:
        _, writer = await asyncio.open_connection(probe.host, probe.port)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return ""

    async def _exec(self, probe: ExecProbe, launch: Launch) -> str:
        """Runs the command as the process itself is run: its user, its folder, its environment, not its log files."""
        child = self._children.spawn(_probe_launch(probe, launch))
        self._children.watch(child, lambda _: None)
        try:
            exit = await asyncio.shield(child.exited)
        finally:
            child.send(signal.SIGKILL)
        if exit is not None and exit.exit_code == 0:
            return ""
        return f"{' '.join(shown_words(probe.command))!r} ended with {exit}"

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


def _drop(chunk: bytes) -> None:
    """The status tells; the body does not matter."""


def _probe_launch(probe: ExecProbe, launch: Launch) -> Launch:
    """As generation 0, which no child ever is: what a probe leaves behind is never taken for the process."""
    instance, _, name = launch.environment[MARK].split(":", 2)
    environment = {**launch.environment, MARK: f"{instance}:0:{name}"}
    return Launch(
        list(probe.command), environment, launch.directory, uid=launch.uid, gid=launch.gid,
        stdout=os.devnull, redirect_stderr=True,
    )  # fmt: skip
