"""No release is left pending by a helm of ours: one that it has left half done is marked as failed.

A change is noted in a file before its helm starts, until it is over. So where the server is killed meanwhile, the next
start waits for that helm to be gone, and does then what could not be done before.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from models.charts.recovery import Change
from models.errors import Failed, Problem
from supervisor.charts.helm.runner import NAME
from supervisor.charts.kube.config import Place
from supervisor.charts.kube.releases import Native
from supervisor.charts.release_reads import Clusters
from supervisor.processes.child import boot_id, stat
from supervisor.processes.orphans import tagged_processes

log = logging.getLogger("charts")

_KILLED = "the server that had begun it was killed"
_LOOK_AGAIN = 0.2
_SETTLES_WITHIN = 10.0

Alone = Callable[..., contextlib.AbstractAsyncContextManager[None]]

About = tuple[str, ...]
"""What tells a release from all others: its cluster, namespace and name."""


def about(place: Place, namespace: str, name: str) -> About:
    return ":".join(map(str, place.files)), place.context or "", namespace, name


@frozen
class _Note:
    """A change that has begun, as it is kept in a file: where, by whom, and by which mark its helm is known."""

    file: Path
    place: Place
    change: Change
    mark: str
    owner: tuple[int, int, str]
    """Pid, start and boot of the server."""

    def write(self) -> None:
        place = {"files": [str(file.absolute()) for file in self.place.files], "context": self.place.context}
        told = {"place": place, "change": asdict(self.change), "mark": self.mark, "owner": self.owner}
        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self.file, "x", opener=_privately) as file:
            json.dump(told, file)

    @classmethod
    def read(cls, file: Path) -> _Note:
        """Raises `OSError`, `ValueError`, `KeyError`, `TypeError`."""
        told = json.loads(file.read_text())
        place = Place(tuple(map(Path, told["place"]["files"])), told["place"]["context"])
        pid, started, boot = told["owner"]
        return cls(file, place, Change(**told["change"]), str(told["mark"]), (int(pid), int(started), str(boot)))

    @property
    def about(self) -> About:
        return about(self.place, self.change.namespace, self.change.name)

    @property
    def is_owned(self) -> bool:
        """Whether the server that wrote it lives."""
        pid, started, boot = self.owner
        facts = stat(pid)
        return boot == boot_id() and facts is not None and facts[3] == started and facts[0] not in "ZX"

    def has_helm(self) -> bool:
        """Whether a helm lives that was begun under its mark before we were."""
        ours = _ourselves()[1]
        return any(one.name == NAME and one.identity.start_ticks < ours for one in tagged_processes(self.mark))


class Pending:
    def __init__(self, folder: Path, clusters: Clusters, mark: str) -> None:
        """`folder` is for the notes; `mark` the word by which children of ours are known."""
        self._folder = folder
        self._clusters = clusters
        self._mark = mark
        self._left: dict[About, list[tuple[_Note, str]]] = {}
        """What earlier changes have left and could not be mended yet, with why they were cut off."""
        self._running: set[asyncio.Task[Any]] = set()

    @contextlib.asynccontextmanager
    async def change(self, place: Place, change: Change) -> AsyncIterator[Callable[[str], None]]:
        """The time in which helm changes a release, which nobody else of us does meanwhile.

        It is called with the reason where helm has begun and did not come to a good end.
        """
        note = _Note(self._folder / uuid.uuid4().hex, place, change, self._mark, _ourselves())
        why: list[str] = []
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            await self._settle_left(note.about)
            self._write(note)
            try:
                yield why.append
            finally:
                if why:
                    await self._settle(note, why[0])
                else:
                    note.file.unlink(missing_ok=True)
        finally:
            self._running.discard(task)

    @staticmethod
    def _write(note: _Note) -> None:
        try:
            note.write()
        except OSError as error:
            raise Failed(f"the change cannot be noted, so it was not begun: {error.strerror}") from None

    async def _settle_left(self, about: About) -> None:
        for note, why in self._left.pop(about, []):
            await self._settle(note, why)

    async def _settle(self, note: _Note, why: str) -> None:
        """Marks as failed what it has left half done. Where the cluster does not let us, a later change tries again."""
        change = note.change
        try:
            source = await self._clusters.source(note.place)
            if isinstance(source, Native) and await source.give_up(change, change.described(why)):
                log.warning("release %s/%s: %s was cut off: marked as failed", *note.about[2:], change.command)
        except Problem as problem:
            log.warning("release %s/%s may be left pending: %s", *note.about[2:], problem.message)
            self._left.setdefault(note.about, []).append((note, why))
            return
        note.file.unlink(missing_ok=True)

    def read(self) -> None:
        """Takes up what servers before us have noted."""
        for file in self._folder.glob("*"):
            try:
                note = _Note.read(file)
            except (OSError, ValueError, KeyError, TypeError):  # it was killed while it wrote
                file.unlink(missing_ok=True)
                continue
            if not note.is_owned:
                self._left.setdefault(note.about, []).append((note, _KILLED))

    async def settle(self, alone: Alone) -> None:
        """Mends what servers before us have left. `alone` keeps others from a release meanwhile."""
        await asyncio.gather(*(self._settle_alone(about, alone) for about in self._left))

    async def _settle_alone(self, about: About, alone: Alone) -> None:
        notes = [note for note, _ in self._left[about]]
        try:
            async with alone(*about):
                while await asyncio.to_thread(lambda: any(note.has_helm() for note in notes)):
                    await asyncio.sleep(_LOOK_AGAIN)
                await self._settle_left(about)
        except Problem as problem:  # somebody has changed it all the time: the next change settles it
            log.warning("release %s/%s may be left pending: %s", *about[2:], problem.message)

    async def close(self) -> None:
        """Waits a moment for what is being settled, when all helms have ended."""
        if self._running:
            await asyncio.wait(self._running, timeout=_SETTLES_WITHIN)


def _privately(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _ourselves() -> tuple[int, int, str]:
    facts = stat(os.getpid())
    return os.getpid(), facts[3] if facts else 0, boot_id()
