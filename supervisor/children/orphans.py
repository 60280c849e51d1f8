"""Orphans: processes that a child leaves running are found by process tree, group, control group and tag, and ended.

The server is the subreaper: a daemon whose parents are gone becomes its child, so that its exit is reaped. Everything
that a child starts inherits the tag in its environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import hashlib
import logging
import math
import os
import signal
from collections.abc import Iterable, Set
from itertools import count
from pathlib import Path

from supervisor.children.child import Child, Children
from supervisor.children.proc import is_running, stat, threads
from supervisor.children.tags import TaggedProcess, all_pids, tagged_processes

log = logging.getLogger("orphans")

_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS, _MAX_POLL_SECONDS = 0.05, 0.25
_KILL_TIMEOUT_SECONDS = 2.0
_SCAN_INTERVAL_SECONDS = 0.01


def become_subreaper() -> bool:
    """Makes the server the parent of its children's orphans; returns whether the kernel supports that."""
    return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def descendants(pid: int, excluded: Set[tuple[int, int]] = frozenset()) -> set[int]:
    """All descendants of a process, by the kernel's lists of children; without those `excluded` and their descendants.

    `excluded` holds pids with their start in ticks: a pid alone may be reused.
    """
    seen: set[int] = set()
    queue = [pid]
    while queue:
        for child in _children(queue.pop()):
            if child not in seen and not (excluded and _with_start(child) in excluded):
                seen.add(child)
                queue.append(child)
    return seen


def _with_start(pid: int) -> tuple[int, int]:
    facts = stat(pid)
    return (pid, facts[3] if facts else 0)


def _children(pid: int) -> list[int]:
    """The children of all threads of a process."""
    pids: list[int] = []
    for thread in threads(pid):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:  # noqa: PTH123 (as above)
            pids += map(int, file.readall().split())
    return pids


class ProcessTree:
    """The descendants of a child, held by pidfd: once it has ended, the kernel no longer shows what it had started."""

    def __init__(self, pid: int) -> None:
        self._pidfds: dict[int, int] = {}
        for descendant in descendants(pid):
            with contextlib.suppress(OSError):  # it ended meanwhile, or no descriptor is free
                self._pidfds[descendant] = os.pidfd_open(descendant)

    def living(self) -> set[int]:
        """Those that are still running; a pid that was reused is none of them."""
        living: set[int] = set()
        for pid, pidfd in self._pidfds.items():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(pidfd, 0)
                facts = stat(pid)
                if facts is not None and is_running(pid, facts[0]):
                    living.add(pid)
        return living

    def close(self) -> None:
        for pidfd in self._pidfds.values():
            os.close(pidfd)
        self._pidfds.clear()


def _own_cgroup() -> Path | None:
    """The cgroup v2 folder of the server itself."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            inside = next(
                (g[3:] for g in Path("/proc/self/cgroup").read_text().splitlines() if g.startswith("0::")), "/"
            )
            return Path(before.split()[4]) / inside.strip().lstrip("/")
    return None


class Cgroups:
    """One control group for each process, below that of the server, and in it one for each instance.

    An instance never has a group that was there before: with Linux 6.14 and later (and their backports), what is cloned
    into a group that was killed once is killed too, because the kernel counts the kills of another group.

    Without cgroup v2 that has `cgroup.kill` (Linux 5.14) and may be written, all methods do nothing.
    """

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._numbers = count(1)

    @property
    def is_available(self) -> bool:
        return self._root is not None

    @classmethod
    def open(cls, server_id: str) -> Cgroups:
        try:
            own = _own_cgroup()
            if own is None:
                return cls(None)
            root = own / f"pilothouse-{server_id}"
            root.mkdir(exist_ok=True)
            if not (root / "cgroup.kill").exists():
                root.rmdir()
                return cls(None)
        except OSError as error:
            log.debug("no control groups: %s", error)
            return cls(None)
        return cls(root)

    @staticmethod
    def folder(name: str) -> str:
        """The name of the folder of a process' group."""
        return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:24]

    def _group(self, name: str) -> str:
        return f"{self._root}/{self.folder(name)}"

    def prepare(self, name: str) -> str | None:
        """Makes the group that a new instance is to be in; returns its folder, `None` without control groups."""
        if self._root is None:
            return None
        group = self._group(name)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(group)  # noqa: PTH102 (a fifth of the time: each start)
            _remove_empty(group)
            for number in self._numbers:
                with contextlib.suppress(FileExistsError):  # of an earlier run of the server
                    os.mkdir(f"{group}/{number}")  # noqa: PTH102 (as above)
                    return f"{group}/{number}"
        except OSError as error:
            log.debug("%s has no control group: %s", name, error)
        return None

    def populated(self, name: str) -> bool:
        """Whether its group has a live member."""
        return b"populated 1" in self._read(name, "cgroup.events")

    def members(self, name: str) -> list[int]:
        """The live members of its group, and of the groups that these have made in it."""
        return _members(self._group(name)) if self.populated(name) else []

    def _read(self, name: str, file: str) -> bytes:
        """The content of a file of its group; empty where there is none."""
        return b"" if self._root is None else _read(f"{self._group(name)}/{file}")

    def kill(self, name: str) -> None:
        self.kill_folder(self.folder(name))

    def kill_folder(self, folder: str) -> None:
        """Sends SIGKILL to all members of the group in that folder."""
        if self._root is not None:
            with contextlib.suppress(OSError):
                _write(f"{self._root}/{folder}", "cgroup.kill", "1")

    def left(self) -> dict[str, set[int]]:
        """The live members of all groups, by folder."""
        groups = [] if self._root is None else self._root.glob("*/")
        return {group.name: set(pids) for group in groups if (pids := _members(str(group)))}

    def close(self) -> None:
        """Removes the groups that are empty."""
        if self._root is not None:
            _remove_empty(str(self._root))
            with contextlib.suppress(OSError):
                self._root.rmdir()


def _remove_empty(group: str) -> None:
    """Removes the groups in this one that have no live member."""
    for folder, inner, _ in os.walk(group, topdown=False):
        for name in inner:
            with contextlib.suppress(OSError):
                os.rmdir(f"{folder}/{name}")  # noqa: PTH106 (as `prepare`)


def _members(group: str) -> list[int]:
    return [int(pid) for folder, _, _ in os.walk(group) for pid in _read(f"{folder}/cgroup.procs").split()]


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as stream:  # noqa: PTH123 (each stop reads one)
            return stream.readall()
    except OSError:
        return b""


def _write(group: str, file: str, text: str) -> None:
    with open(f"{group}/{file}", "wb", buffering=0) as stream:  # noqa: PTH123 (as `_read`)
        stream.write(text.encode())


class Orphans:
    def __init__(self, children: Children, cgroups: Cgroups, server_id: str) -> None:
        self._children = children
        self._cgroups = cgroups
        self._server_id = server_id
        # A script may start a program and then `exec` the server: that program is not the server's to end.
        self._earlier_children = frozenset(map(_with_start, _children(os.getpid())))
        self._scan: asyncio.Future[list[TaggedProcess]] | None = None
        self._scanned_at = -math.inf

    def reap(self) -> None:
        """Reaps the orphans that ended."""
        with contextlib.suppress(ChildProcessError):
            while result := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if result.si_pid in self._children.pids:
                    return  # its own watcher reaps it
                os.waitid(os.P_PID, result.si_pid, os.WEXITED)

    def are_likely(self, child: Child, name: str) -> bool:
        """Whether a child that has just ended left something running, as far as that is known at once."""
        return _group_lives(child.pid) or self._cgroups.populated(name)

    def _unwatched(self) -> set[int]:
        try:
            pids = Path("/proc/thread-self/children").read_text().split()
        except OSError:  # no descriptor is free: an exit must be handled all the same
            return set()
        return set(map(int, pids)).difference(self._children.pids)

    def _tagged(self, pids: Iterable[int] | None = None) -> list[TaggedProcess]:
        """The tagged processes among these, or among all. A fault in reading them must not stop a stop."""
        try:
            return tagged_processes(self._server_id, pids, self._children.key)
        except Exception:
            log.exception("the tagged processes could not be read")
            return []

    async def _orphans(self) -> list[TaggedProcess]:
        """Returns the server's unwatched children. One scan serves all callers of one iteration of the loop, or soon
        after another scan.

        It reads all children of the server: at each of five hundred exits it would take a fifth of their time.
        """
        if self._scan is None:
            loop = asyncio.get_running_loop()
            self._scan = loop.create_future()
            loop.call_at(self._scanned_at + _SCAN_INTERVAL_SECONDS, self._run_scan)
        return await asyncio.shield(self._scan)

    def _run_scan(self) -> None:
        self._scanned_at = asyncio.get_running_loop().time()
        scan, self._scan = self._scan, None
        if scan is not None:
            scan.set_result(self._tagged(self._unwatched()))

    async def _left_by(self, child: Child, name: str) -> set[int]:
        """Returns what this child, or an earlier one of the process, left running: orphans with its name, and its
        group.

        Orphans of an adopted child are not our children, so all processes are read.
        """
        tagged = await (asyncio.to_thread(self._tagged) if child.is_adopted else self._orphans())
        orphans = {pid for one in tagged if one.name == name and (pid := one.identity.pid) not in self._children.pids}
        return orphans | set(self._cgroups.members(name))

    async def sweep(self, name: str, generation: int, timeout: float) -> None:
        """Ends the orphans that this generation of a process, or an earlier one, has left."""
        tagged = await self._orphans()
        await end({one.identity.pid for one in tagged if one.name == name and one.generation <= generation}, timeout)

    async def clear(
        self, child: Child, name: str, stop_signal: int, timeout: float, tree: ProcessTree | None = None
    ) -> bool:
        """Ends the orphans of an ended child: `stop_signal` once, SIGKILL after `timeout` seconds.

        Returns whether it left anything.
        """
        loop = asyncio.get_running_loop()
        signalled: set[int] = set()
        end = loop.time() + timeout
        while loop.time() < end + _KILL_TIMEOUT_SECONDS:
            self.reap()  # a zombie keeps its group alive
            left = await self._left_by(child, name) | (tree.living() if tree else set())
            if not left and not (_group_lives(child.pid) and await self._has_living(child)):
                return bool(signalled)
            late = loop.time() >= end
            if late or not signalled:
                number = "SIGKILL" if late else f"signal {stop_signal}"
                log.info("%s: sent %s to processes that it left running", name, number)
            self._signal(
                child, name, left if late else left - signalled, signal.SIGKILL if late else stop_signal, not signalled
            )
            signalled |= left or {child.pid}
            _send({pid for pid in left if not _handles(pid, stop_signal)}, stop_signal)
            await _any_end(
                left, min(max(end - loop.time(), _POLL_SECONDS), _MAX_POLL_SECONDS) if left else _POLL_SECONDS
            )
        log.error("%s: processes that it left running could not be ended", name)
        return True

    async def end_remaining(self, timeout: float = 1.0) -> None:
        """At shutdown: ends all descendants of the server and all tagged processes, SIGKILL after `timeout` seconds.

        Children that the server's process had before it started, and theirs, go on.
        """
        tagged, groups = await asyncio.to_thread(lambda: (self._tagged(), self._cgroups.left()))
        pids = descendants(os.getpid(), self._earlier_children) | {process.identity.pid for process in tagged}
        pids = _living(pids.union(*groups.values()) - {self._children.launcher.pid})
        if pids:
            log.warning("ending processes that are still running: pid %s", ", ".join(map(str, sorted(pids))))
            await end(pids, timeout)
            for folder in groups:
                self._cgroups.kill_folder(folder)
            await _wait_until_ended(pids)
        self.reap()

    async def _has_living(self, child: Child) -> bool:
        """Whether its group has more than zombies: those of an adopted child are reaped by another process."""
        return not child.is_adopted or await asyncio.to_thread(_is_more_than_zombies, child.pid)

    def _signal(self, child: Child, name: str, pids: set[int], number: int, group: bool) -> None:
        if number == signal.SIGKILL:
            self._cgroups.kill(name)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if group or number == signal.SIGKILL:
                os.killpg(child.pid, number)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getpgid(pid) != child.pid:
                    os.kill(pid, number)


async def end(pids: set[int], timeout: float) -> None:
    """Sends SIGTERM to each, and SIGKILL to those that are running after `timeout` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    begun = {_with_start(pid) for pid in pids}
    _send(pids, signal.SIGTERM)
    while (pids := {pid for pid in _living(pids) if _with_start(pid) in begun}) and loop.time() < deadline:
        await _any_end(pids, deadline - loop.time())
    _send(pids, signal.SIGKILL)


async def _wait_until_ended(pids: set[int]) -> None:
    """Returns when all of these have ended, or after a while: one may hang in the kernel."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _KILL_TIMEOUT_SECONDS
    while (pids := _living(pids)) and loop.time() < deadline:
        await _any_end(pids, deadline - loop.time())


def _living(pids: Iterable[int]) -> set[int]:
    return {pid for pid in pids if (facts := stat(pid)) and is_running(pid, facts[0])}


def _send(pids: set[int], number: int) -> None:
    for pid in sorted(pids):  # parents first: one whose child ends before it has the signal goes on
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _handles(pid: int, number: int) -> bool:
    """Whether a process catches, ignores or blocks a signal. One that does not, and is running, has lost the signal.

    It was between fork and exec then, where a shell's child discards signals.
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
    for pid in all_pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) == group and (facts := stat(pid)) and is_running(pid, facts[0]):
                return True
    return False


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _any_end(pids: set[int], timeout: float) -> None:
    """Returns when one of these has ended (and reaps it where it is our child), or after `timeout` seconds."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    watched: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            watched[os.pidfd_open(pid)] = pid
    for pidfd in watched:
        loop.add_reader(pidfd, _set, ended)
    try:
        await asyncio.wait({ended}, timeout=timeout if watched else min(timeout, _POLL_SECONDS))
    finally:
        for pidfd in watched:
            loop.remove_reader(pidfd)
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
            os.close(pidfd)
