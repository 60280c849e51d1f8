"""What a child leaves behind when it ends: found by group, control group and mark, asked to go, then made to.

We are the subreaper: a daemon whose parents are gone becomes our child, so its end is ours to see and it leaves no
zombie. Each bears the mark of the child that started it in its environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import math
import os
import signal
from collections.abc import Iterable
from pathlib import Path

from attrs import frozen

from supervisor.processes.cgroups import Cgroups
from supervisor.processes.child import MARK, SPEC, Child, Children, Identity, boot_id, stat

log = logging.getLogger("orphans")

_PR_SET_CHILD_SUBREAPER = 36
_LOOK_AGAIN, _LOOK_AT_MOST = 0.05, 0.25
_KILLED_GO_WITHIN = 2.0
_LOOKS_APART = 0.01


def become_subreaper() -> bool:
    """Makes orphans of our children ours instead of init's; `False` where the kernel does not know that."""
    return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


@frozen
class TaggedProcess:
    """A process that was started, directly or not, by the child of that name and generation."""

    name: str
    generation: int
    identity: Identity
    leads: bool
    """Whether it leads its session, as every child of ours does."""
    spec: str
    """What it was started by (`ProcessSpec.launched_as`); empty where that is not told."""


def bearer(instance: str, pid: int) -> TaggedProcess | None:
    """Who a process is by its mark; `None` if it bears none of ours, is a zombie, or may not be asked."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    words = environment.split(b"\0")
    mark = _after(words, f"{MARK}={instance}:")
    facts = stat(pid)
    if mark is None or facts is None or facts[0] in "ZX":
        return None
    generation, _, name = mark.partition(":")
    if not generation.isdigit():
        return None
    identity = Identity(pid, facts[3], boot_id())
    return TaggedProcess(name, int(generation), identity, facts[2] == pid, _after(words, f"{SPEC}=") or "")


def _after(words: list[bytes], start: str) -> str | None:
    """The rest of the first of these words that starts so."""
    begin = start.encode()
    word = next((word for word in words if word.startswith(begin)), None)
    return None if word is None else word[len(begin) :].decode("utf-8", "surrogateescape")


def tagged_processes(instance: str, pids: Iterable[int] | None = None) -> list[TaggedProcess]:
    """Those of `pids`, or of the whole machine, that bear a mark of ours; oldest first."""
    if pids is None:
        pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208 (a hundred times cheaper)
    found = [one for pid in pids if (one := bearer(instance, pid))]
    return sorted(found, key=lambda one: (one.identity.start_ticks, one.identity.pid))


class Orphans:
    def __init__(self, children: Children, cgroups: Cgroups, instance: str) -> None:
        self._children = children
        self._cgroups = cgroups
        self._instance = instance
        self._scan: asyncio.Future[list[TaggedProcess]] | None = None
        self._looked = -math.inf

    def bury(self) -> None:
        """Reaps the orphans that ended. Called now and then: a zombie takes no more than a line in a table."""
        with contextlib.suppress(ChildProcessError):
            while word := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if word.si_pid in self._children.pids:
                    return  # its own watcher will
                os.waitid(os.P_PID, word.si_pid, os.WEXITED)

    def are_likely(self, child: Child, name: str) -> bool:
        """Whether a child that has just ended left something behind, as far as that can be told at once."""
        return _group_lives(child.pid) or self._cgroups.populated(name)

    def _unwatched(self) -> set[int]:
        try:
            pids = Path("/proc/thread-self/children").read_text().split()
        except OSError:  # no descriptor is free: an end must be told all the same
            return set()
        return set(map(int, pids)).difference(self._children.pids)  # no loop of ours: at a stop of all there are many

    async def _orphans(self) -> list[TaggedProcess]:
        """Our unwatched children. One look serves all who ask in the same turn of the loop, or soon after another look.

        It is a walk through all our children: at each of five hundred ends it would take a fifth of their time.
        """
        if self._scan is None:
            loop = asyncio.get_running_loop()
            self._scan = loop.create_future()
            loop.call_at(self._looked + _LOOKS_APART, self._look)
        return await asyncio.shield(self._scan)

    def _look(self) -> None:
        self._looked = asyncio.get_running_loop().time()
        scan, self._scan = self._scan, None
        if scan is not None:
            scan.set_result(tagged_processes(self._instance, self._unwatched()))

    async def left_by(self, child: Child, name: str) -> set[int]:
        """What lives of all that this child, or one before it, started: orphans with its name, and its control group.

        Orphans of an adopted child are not our children: they are looked for everywhere.
        """
        found = await (asyncio.to_thread(tagged_processes, self._instance) if child.is_adopted else self._orphans())
        orphans = {pid for one in found if one.name == name and (pid := one.identity.pid) not in self._children.pids}
        return orphans | set(self._cgroups.members(name))

    async def sweep(self, name: str, generation: int, patience: float) -> None:
        """Ends the orphans that this generation of a process, or one before it, has left."""
        found = await self._orphans()
        await end({one.identity.pid for one in found if one.name == name and one.generation <= generation}, patience)

    async def clear(self, child: Child, name: str, stop_signal: int, patience: float) -> None:
        """Ends what the ended child left behind: `stop_signal` once, SIGKILL after `patience` seconds."""
        loop = asyncio.get_running_loop()
        asked: set[int] = set()
        end = loop.time() + patience
        while loop.time() < end + _KILLED_GO_WITHIN:
            self.bury()  # a zombie keeps its group alive
            left = await self.left_by(child, name)
            if not left and not (_group_lives(child.pid) and await self._has_living(child)):
                return
            late = loop.time() >= end
            if late or not asked:
                log.info("%s: %s sent to what it left behind", name, "SIGKILL" if late else f"signal {stop_signal}")
            self._ask(child, name, left if late else left - asked, signal.SIGKILL if late else stop_signal, not asked)
            asked |= left or {child.pid}
            _send({pid for pid in left if not _handles(pid, stop_signal)}, stop_signal)
            await _any_end(left, min(max(end - loop.time(), _LOOK_AGAIN), _LOOK_AT_MOST) if left else _LOOK_AGAIN)
        log.error("%s: something that it left behind could not be ended", name)

    async def _has_living(self, child: Child) -> bool:
        """Whether its group is more than zombies: those of an adopted child may wait long for whose they are."""
        return not child.is_adopted or await asyncio.to_thread(_is_more_than_zombies, child.pid)

    def _ask(self, child: Child, name: str, pids: set[int], number: int, group: bool) -> None:
        if number == signal.SIGKILL:
            self._cgroups.kill(name)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if group or number == signal.SIGKILL:
                os.killpg(child.pid, number)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getpgid(pid) != child.pid:
                    os.kill(pid, number)


async def end(pids: set[int], patience: float) -> None:
    """SIGTERM to each, SIGKILL to those that are there after `patience` seconds. For what is no child of ours."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    _send(pids, signal.SIGTERM)
    while (pids := {pid for pid in pids if (facts := stat(pid)) and facts[0] not in "ZX"}) and loop.time() < deadline:
        await _any_end(pids, deadline - loop.time())
    _send(pids, signal.SIGKILL)


def _send(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _handles(pid: int, number: int) -> bool:
    """Whether a process catches, ignores or blocks a signal. One that does not, and lives, has not had it.

    It was between fork and exec then, where a shell's child loses what reaches it.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return True
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigBlk:", "SigIgn:", "SigCgt:"))]
    return any(mask >> (number - 1) & 1 for mask in masks)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _is_more_than_zombies(group: int) -> bool:
    for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):  # noqa: PTH208 (as above)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) == group and (facts := stat(pid)) and facts[0] not in "ZX":
                return True
    return False


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _any_end(pids: set[int], timeout: float) -> None:
    """Returns when one of these has ended (and reaps it where it is ours), or after `timeout` seconds."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    watched: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            watched[os.pidfd_open(pid)] = pid
    for pidfd in watched:
        loop.add_reader(pidfd, _set, ended)
    try:
        await asyncio.wait({ended}, timeout=timeout if watched else min(timeout, _LOOK_AGAIN))
    finally:
        for pidfd in watched:
            loop.remove_reader(pidfd)
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
            os.close(pidfd)
