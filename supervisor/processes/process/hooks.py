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
from models.errors import Invalid
from models.supervision.process import ProcessSpec, When
from supervisor.children import orphans
from supervisor.children.child import Child, Launch
from supervisor.children.orphans import ProcessTree
from supervisor.children.tags import TAG_VARIABLE
from supervisor.processes.process.attempts import Phase, StartAttempt, next_request
from supervisor.processes.process.context import SupervisionContext
from supervisor.processes.process.instance import ProcessInstance
from supervisor.processes.process.notify import SOCKET_VARIABLE, WATCHDOG_VARIABLE
from supervisor.processes.process.state import ProcessState
from supervisor.scheduling import BackgroundTasks

log = logging.getLogger("supervision")

_MAX_WAITING_ACTIONS = 2
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
class HookRun:
    """One run of a hook. `request` is the number of the request that it belongs to; a later stop ends it."""

    kind: str
    command: Sequence[str]
    timeout: float
    request: int
    variables: Mapping[str, str] = {}


@define(eq=False)
class _Running:
    hook: HookRun
    called_off: asyncio.Future[None]


class Hooks:
    """The hooks of one process. `start-pre` must succeed; the failure of another one is a notice."""

    def __init__(self, state: ProcessState, context: SupervisionContext, tasks: BackgroundTasks) -> None:
        self._state = state
        self._tasks = tasks
        self._name = state.name
        self._context = context
        self._running: list[_Running] = []
        self._called_off_before = 0
        self._stop_post_due: ProcessInstance | None = None
        self._action_lock = asyncio.Lock()
        self._waiting_actions = 0

    def call_off(self, request: int, *kinds: str) -> None:
        """Ends the hooks (of these kinds) that belong to requests before this one."""
        if not kinds:
            self._called_off_before = max(self._called_off_before, request)
        for running in self._running:
            is_meant = running.hook.request < request and (not kinds or running.hook.kind in kinds)
            if is_meant and not running.called_off.done():
                running.called_off.set_result(None)

    async def run_start_pre(self, launch: Launch, attempt: StartAttempt) -> None:
        """Runs `start-pre`, if there is one. Raises `HookFailed`; the attempt may be called off afterwards."""
        spec = self._state.spec
        if attempt.request < self._called_off_before:
            attempt.call_off()
        if not spec.start_pre or attempt.is_called_off:
            return
        attempt.phase = Phase.START_PRE
        try:
            await self._run(HookRun(START_PRE, spec.start_pre, spec.hook_timeout, attempt.request), spec, launch)
        except HookCalledOff:
            attempt.call_off()
        attempt.phase = Phase.SPAWN

    def start_post(self, instance: ProcessInstance, attempt: StartAttempt | None) -> None:
        """The instance has started: runs `start-post`, if there is one, in the background."""
        if instance.spec.start_post:
            request = attempt.request if attempt is not None else next_request()
            self._tasks.start(self._run_of_instance(START_POST, instance, instance.spec.start_post, request))

    async def run_stop_pre(self, instance: ProcessInstance, request: int) -> None:
        """Runs `stop-pre`, if there is one, for `stop-timeout` at most."""
        if instance.spec.stop_pre:
            longest = min(instance.spec.hook_timeout, instance.spec.stop_timeout)
            await self._run_of_instance(STOP_PRE, instance, instance.spec.stop_pre, request, longest)

    def on_exit(self, instance: ProcessInstance) -> None:
        """The instance has ended: its `start-post` is ended, its `stop-post` is due."""
        self.call_off(next_request(), START_POST)
        if instance.spec.stop_post:
            self._stop_post_due = instance

    async def run_stop_post(self, request: int) -> None:
        """Runs `stop-post` of the instance that ended last, unless it has run."""
        instance, self._stop_post_due = self._stop_post_due, None
        if instance is not None:
            await self._run_of_instance(STOP_POST, instance, instance.spec.stop_post, request)

    def on_failure(self, is_final: bool) -> None:
        """The process has failed: runs `on-failure`, if that is configured for this failure.

        While one runs, one other waits, and later failures do not count.
        """
        spec = self._state.spec
        action = spec.on_failure
        if action is None or self._context.closing or (action.when is When.FINAL and not is_final):
            return
        if self._waiting_actions < _MAX_WAITING_ACTIONS:
            hook = HookRun(ON_FAILURE, action.command, spec.hook_timeout, next_request(), self._end_variables())
            self._tasks.start(self._run_on_failure(hook))

    async def _run_on_failure(self, hook: HookRun) -> None:
        self._waiting_actions += 1
        state = self._state
        try:
            async with self._action_lock:
                if hook.request < self._called_off_before:
                    return
                launch = await self._context.launch(state.spec, state.record.generation)
                if hook.request < self._called_off_before:
                    return
                await self._run_noted(hook, state.spec, launch)
        except Invalid as problem:
            self._post_failed(hook.kind, f"{hook.kind} could not be started: {problem.message}")
        finally:
            self._waiting_actions -= 1

    def _end_variables(self) -> dict[str, str]:
        code = self._state.record.exit_code
        status = self._state.status.value
        return {"PILOTHOUSE_STATUS": status, "PILOTHOUSE_EXIT_CODE": "" if code is None else str(code)}

    async def _run_of_instance(
        self, kind: str, instance: ProcessInstance, command: Sequence[str], request: int, timeout: float | None = None
    ) -> None:
        if instance.launch is not None:
            hook = HookRun(kind, command, timeout or instance.spec.hook_timeout, request, self._end_variables())
            await self._run_noted(hook, instance.spec, instance.launch)

    async def _run_noted(self, hook: HookRun, spec: ProcessSpec, launch: Launch) -> None:
        """Runs a hook; a failure is a notice."""
        try:
            await self._run(hook, spec, launch)
        except HookFailed as problem:
            self._post_failed(hook.kind, str(problem))
        except HookCalledOff:
            log.info("%s: %s was ended by a stop", self._name, hook.kind)

    def _post_failed(self, kind: str, problem: str) -> None:
        self._context.notices.post("process.hook_failed", self._name, f"{self._name}: {problem}", hook=kind)

    async def _run(self, hook: HookRun, spec: ProcessSpec, launch: Launch) -> None:
        """Returns when it has ended with exit code 0. Raises `HookFailed`, `HookCalledOff`."""
        running = _Running(hook, asyncio.get_running_loop().create_future())
        self._running.append(running)
        try:
            await self._run_child(running, spec, launch)
        finally:
            self._running.remove(running)

    async def _run_child(self, running: _Running, spec: ProcessSpec, launch: Launch) -> None:
        hook = running.hook
        shown = f"{hook.kind} {' '.join(shown_words(hook.command))!r}"
        leftovers = self._context.leftovers.get(self._name)
        if leftovers is not None:  # the same hook of an earlier run of the server may be running
            await asyncio.wait({leftovers, running.called_off}, return_when=asyncio.FIRST_COMPLETED)
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


def _launch_of(hook: HookRun, launch: Launch) -> Launch:
    server_id, _, name = launch.environment[TAG_VARIABLE].split(":", 2)
    inherited = {key: text for key, text in launch.environment.items() if key not in _NOT_INHERITED}
    environment = {**inherited, **hook.variables, TAG_VARIABLE: f"{server_id}:0:{name}"}
    return evolve(launch, argv=list(hook.command), environment=environment, stdin=None)
