"""Health checks of running processes: by HTTP, by TCP or by a command."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
from collections.abc import Callable

from attrs import frozen
from tornado.httpclient import HTTPClientError
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from models.config.redaction import shown_address, shown_words
from models.supervision.process import ExecProbe, HealthCheck, HttpProbe, ProcessSpec, TcpProbe
from supervisor.children.child import Children, Launch
from supervisor.children.tags import TAG_VARIABLE
from supervisor.clock import Clock
from supervisor.scheduling import retrieve_exception

log = logging.getLogger("health")

_MAX_CONCURRENT_PROBES = 1000
_MAX_BODY_BYTES = 2**40  # the body is discarded; the timeout limits it


@frozen
class HealthReport:
    """The last health check of a process. Times are microseconds since 1970.

    `failures` counts the failed checks in a row; `since` is when the present row of equal results began.
    """

    check: str
    ok: bool
    message: str
    failures: int
    since: int
    checked_at: int


class Prober:
    """Runs the probes, which share one HTTP client."""

    def __init__(self, children: Children, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._children = children
        self._client: SimpleAsyncHTTPClient | None = None
        self._reports: dict[str, HealthReport] = {}

    def report(self, name: str) -> HealthReport | None:
        """The last health check of the present instance of a process; `None` before the first."""
        return self._reports.get(name)

    async def watch(self, spec: ProcessSpec, launch: Launch, on_change: Callable[[bool], None]) -> None:
        """Probes until cancelled; calls `on_change` when a threshold is reached, and again when the result changes."""
        check = spec.health_check
        if check is None:
            return
        self._reports.pop(spec.name, None)
        await self._clock.sleep(check.initial_delay)
        healthy: bool | None = None
        streak, last = 0, None
        while True:
            try:
                failure = await self.probe(check, launch)
            except Exception as error:  # a probe that cannot be made is a failure too
                failure = str(error) or type(error).__name__
            succeeded = not failure
            streak = streak + 1 if succeeded == last else 1
            last = succeeded
            self._note(spec.name, check, failure, streak)
            if succeeded != healthy and streak >= (check.success_threshold if succeeded else check.failure_threshold):
                healthy = succeeded
                if failure:
                    log.warning("%s: unhealthy: %s", spec.name, failure)
                on_change(succeeded)
            await self._clock.sleep(check.interval)

    def _note(self, name: str, check: HealthCheck, problem: str, streak: int) -> None:
        now, previous = self._clock.now(), self._reports.get(name)
        since = previous.since if previous is not None and streak > 1 else now
        self._reports[name] = HealthReport(
            check_name(check), not problem, problem, streak if problem else 0, since, now
        )

    async def probe(self, check: HealthCheck, launch: Launch) -> str:
        """Why the probe failed; empty where it succeeded. No response within `timeout` is a failure."""
        try:
            async with asyncio.timeout(check.timeout):
                if check.http is not None:
                    return await self._http(check.http, check.timeout)
                if check.tcp is not None:
                    return await self._tcp(check.tcp)
                return await self._exec(check.exec, launch) if check.exec is not None else ""
        except TimeoutError:
            return f"no response within {check.timeout:g} s"
        except (ssl.SSLError, socket.gaierror) as error:  # their errno is not one of the system
            return error.strerror or str(error)
        except OSError as error:
            return os.strerror(error.errno) if error.errno else str(error)

    async def _http(self, probe: HttpProbe, timeout: float) -> str:
        if self._client is None:
            self._client = SimpleAsyncHTTPClient(
                force_instance=True, max_clients=_MAX_CONCURRENT_PROBES, max_body_size=_MAX_BODY_BYTES
            )
        try:
            request = self._client.fetch(
                probe.url,
                method=probe.method,
                headers=dict(probe.headers),
                allow_nonstandard_methods=True,
                follow_redirects=False,
                connect_timeout=timeout,
                request_timeout=timeout,
                raise_error=False,
                streaming_callback=_discard,
            )
            request.add_done_callback(retrieve_exception)  # the probe may have ended
            response = await asyncio.shield(request)  # Tornado logs a trace where a cancelled request fails
        except (HTTPClientError, ValueError) as error:
            return str(error)
        if any(low <= response.code <= high for low, high in probe.status):
            return ""
        return f"{probe.method} {shown_address(probe.url)}: {response.error or response.code}"

    async def _tcp(self, probe: TcpProbe) -> str:
        _, writer = await asyncio.open_connection(probe.host, probe.port)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return ""

    async def _exec(self, probe: ExecProbe, launch: Launch) -> str:
        """Runs the command with the user, directory and environment of the process, but without its log files."""
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


def check_name(check: HealthCheck) -> str:
    """The check in a few words, with secrets hidden."""
    if check.http is not None:
        return f"{check.http.method} {shown_address(check.http.url)}"
    if check.tcp is not None:
        return f"tcp {check.tcp.host}:{check.tcp.port}"
    return f"exec {' '.join(shown_words(check.exec.command))}" if check.exec is not None else "none"


def _discard(chunk: bytes) -> None:
    """Only the status code counts."""


def _probe_launch(probe: ExecProbe, launch: Launch) -> Launch:
    """Generation 0, which no instance has: a process that a probe leaves running is never adopted."""
    server_id, _, name = launch.environment[TAG_VARIABLE].split(":", 2)
    environment = {**launch.environment, TAG_VARIABLE: f"{server_id}:0:{name}"}
    return Launch(
        list(probe.command), environment, launch.directory, uid=launch.uid, gid=launch.gid,
        groups=launch.groups, stdout=os.devnull, redirect_stderr=True,
    )  # fmt: skip
