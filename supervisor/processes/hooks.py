"""Hooks: commands that run before and after the start and the stop of a process, as its user and with its environment.

Their tag has generation 0, which no instance has, so that none is adopted; after a kill -9 they are ended as leftovers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, evolve, frozen

from models.config.redaction import shown_words
from models.supervision.process import ProcessSpec
from supervisor.children import orphans
from supervisor.children.child import TAG_VARIABLE, Child, Launch
from supervisor.children.orphans import ProcessTree
from supervisor.processes.context import SupervisionContext
from supervisor.processes.notify import SOCKET_VARIABLE, WATCHDOG_VARIABLE

log = logging.getLogger("hooks")

START_PRE, START_POST, STOP_PRE, STOP_POST, ON_FAILURE = (
    "start-pre",
    "start-post",
    "stop-pre",
    "stop-post",
    "on-failure",
)


_NOT_INHERITED = {SOCKET_VARIABLE, WATCHDOG_VARIABLE}  # a hook must not notify in the name of the process


class HookFailed(Exception):
    """It ended with an error, took too long or could not be started; the message has the reason."""


class HookCalledOff(Exception):
    """A stop that was requested later has ended it."""


@frozen
class Hook:
    """One run of a hook. `request` is the number of the request that it belongs to; a later stop ends it."""

    kind: str
    command: Sequence[str]
    timeout: float
    request: int
    variables: Mapping[str, str] = {}


@define(eq=False)
class _Running:
    hook: Hook
    called_off: asyncio.Future[None]


class Hooks:
    """The hooks of one process."""

    def __init__(self, name: str, context: SupervisionContext) -> None:
        self._name = name
        self._context = context
        self._running: list[_Running] = []

    def call_off(self, request: int, *kinds: str) -> None:
        """Ends the hooks (of these kinds) that belong to requests before this one."""
        for running in self._running:
            is_meant = running.hook.request < request and (not kinds or running.hook.kind in kinds)
            if is_meant and not running.called_off.done():
                running.called_off.set_result(None)

    async def run(self, hook: Hook, spec: ProcessSpec, launch: Launch) -> None:
        """Returns when it has ended with exit code 0. Raises `HookFailed`, `HookCalledOff`."""
        running = _Running(hook, asyncio.get_running_loop().create_future())
        self._running.append(running)
        try:
            await self._run(running, spec, launch)
        finally:
            self._running.remove(running)

    async def _run(self, running: _Running, spec: ProcessSpec, launch: Launch) -> None:
        hook = running.hook
        shown = f"{hook.kind} {' '.join(shown_words(hook.command))!r}"
        if self._context.leftovers is not None:  # the same hook of an earlier run of the server may be running
            await asyncio.wait({self._context.leftovers, running.called_off}, return_when=asyncio.FIRST_COMPLETED)
        if running.called_off.done():
            raise HookCalledOff
        try:
            async with self._context.spawn_lock:
                child = self._context.children.spawn(_launch_of(hook, launch))
        except (OSError, ValueError) as error:
            raise HookFailed(f"{shown} could not be started: {getattr(error, 'strerror', None) or error}") from None
        self._context.children.watch(child, lambda _: None)
        try:
            waits_for: set[asyncio.Future[Any]] = {child.exited, running.called_off}
            await asyncio.wait(waits_for, timeout=hook.timeout, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            child.send(signal.SIGKILL)
            raise
        if not child.exited.done():
            await self._end(child, 0.0 if hook.kind == STOP_PRE else spec.stop_timeout)
            if running.called_off.done():
                raise HookCalledOff
            raise HookFailed(f"{shown} did not end within {hook.timeout:g} s")
        exit = child.exited.result()
        if exit is None or exit.exit_code != 0:
            await self._context.orphans.sweep(self._name, 0, 0.0)
            raise HookFailed(f"{shown} ended with {exit or 'an unknown exit code'}")

    async def _end(self, child: Child, timeout: float) -> None:
        """Ends it and all that it started: SIGTERM, and SIGKILL after `timeout` seconds."""
        with contextlib.closing(ProcessTree(child.pid)) as tree:
            if timeout:
                child.send(signal.SIGTERM)
                await asyncio.wait({child.exited}, timeout=timeout)
            child.send(signal.SIGKILL)
            await asyncio.wait({child.exited})
            await orphans.end(tree.living(), 0.0)


def _launch_of(hook: Hook, launch: Launch) -> Launch:
    server_id, _, name = launch.environment[TAG_VARIABLE].split(":", 2)
    inherited = {key: text for key, text in launch.environment.items() if key not in _NOT_INHERITED}
    environment = {**inherited, **hook.variables, TAG_VARIABLE: f"{server_id}:0:{name}"}
    return evolve(launch, argv=list(hook.command), environment=environment, stdin=None)
