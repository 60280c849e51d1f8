"""Marks releases that an interrupted helm process left pending as failed.

Each change is recorded in a file before helm starts, and removed when it ends. If the server is killed meanwhile, the
next start waits for that helm process to end and then recovers its release.
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

from models.charts.releases import StartedChange
from models.errors import Failed, Problem
from supervisor.charts.helm.runner import PROCESS_NAME
from supervisor.charts.kube.config import ConfiguredCluster
from supervisor.charts.kube.releases import Native
from supervisor.charts.release_reads import Clusters
from supervisor.children.proc import boot_id, is_running, stat
from supervisor.children.tags import tagged_processes
from supervisor.clock import Clock

log = logging.getLogger("charts")

_SERVER_KILLED = "the server that had begun it was killed"
_POLL_SECONDS = 0.2
CLOSE_SECONDS = 10.0

Exclusive = Callable[..., contextlib.AbstractAsyncContextManager[None]]

ReleaseKey = tuple[str, ...]
"""Identifies a release: its cluster, namespace and name."""


def release_key(place: ConfiguredCluster, namespace: str, name: str) -> ReleaseKey:
    return ":".join(map(str, place.files)), place.context or "", namespace, name


@frozen
class _Record:
    """A change in progress as stored in a file: cluster, change, the tag of its helm process, and the server."""

    file: Path
    place: ConfiguredCluster
    change: StartedChange
    tag: str
    owner: tuple[int, int, str]
    """Pid, start time and boot of the server."""

    def write(self) -> None:
        place = {"files": [str(file.absolute()) for file in self.place.files], "context": self.place.context}
        document = {"place": place, "change": asdict(self.change), "mark": self.tag, "owner": self.owner}
        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self.file, "x", opener=_open_private) as file:
            json.dump(document, file)

    @classmethod
    def read(cls, file: Path) -> _Record:
        """Reads a record. Raises `OSError`, `ValueError`, `KeyError`, `TypeError`."""
        document = json.loads(file.read_text())
        place = ConfiguredCluster(tuple(map(Path, document["place"]["files"])), document["place"]["context"])
        pid, started, boot = document["owner"]
        return cls(
            file, place, StartedChange(**document["change"]), str(document["mark"]), (int(pid), int(started), str(boot))
        )

    @property
    def release_key(self) -> ReleaseKey:
        return release_key(self.place, self.change.namespace, self.change.name)

    @property
    def is_owned(self) -> bool:
        """Whether the server that wrote it is alive."""
        pid, started, boot = self.owner
        facts = stat(pid)
        return boot == boot_id() and facts is not None and facts[3] == started and is_running(pid, facts[0])

    def has_helm(self) -> bool:
        """Whether a helm process with its tag, older than this server, is alive."""
        own_start = _own_identity()[1]
        return any(
            process.name == PROCESS_NAME and process.identity.start_ticks < own_start
            for process in tagged_processes(self.tag)
        )


class Recovery:
    def __init__(self, folder: Path, clusters: Clusters, tag: str, clock: Clock) -> None:
        """`folder` holds the records; `tag` marks this server's processes."""
        self._folder = folder
        self._clock = clock
        self._clusters = clusters
        self._tag = tag
        self._unrecovered: dict[ReleaseKey, list[tuple[_Record, str]]] = {}
        """Interrupted changes that could not be recovered yet, with the reason of the interruption."""
        self._running: set[asyncio.Task[Any]] = set()

    @contextlib.asynccontextmanager
    async def change(self, place: ConfiguredCluster, change: StartedChange) -> AsyncIterator[Callable[[str], None]]:
        """The time in which helm changes a release exclusively.

        Yields a function to call with the reason if helm began and did not succeed.
        """
        record = _Record(self._folder / uuid.uuid4().hex, place, change, self._tag, _own_identity())
        reason: list[str] = []
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            await self._recover_earlier(record.release_key)
            self._write(record)
            try:
                yield reason.append
            finally:
                if reason:
                    await self._recover(record, reason[0])
                else:
                    record.file.unlink(missing_ok=True)
        finally:
            self._running.discard(task)

    @staticmethod
    def _write(record: _Record) -> None:
        try:
            record.write()
        except OSError as error:
            raise Failed(f"the change was not started because it cannot be recorded: {error.strerror}") from None

    async def _recover_earlier(self, release_key: ReleaseKey) -> None:
        for record, reason in self._unrecovered.pop(release_key, []):
            await self._recover(record, reason)

    async def _recover(self, record: _Record, reason: str) -> None:
        """Marks the release as failed if this change left it pending. If that fails, the next change retries."""
        change = record.change
        try:
            source = await self._clusters.source(record.place)
            if isinstance(source, Native) and await source.mark_failed(change, change.described(reason)):
                log.warning(
                    "release %s/%s: %s was interrupted: marked as failed", *record.release_key[2:], change.command
                )
        except Problem as problem:
            log.warning("release %s/%s may be left pending: %s", *record.release_key[2:], problem.message)
            self._unrecovered.setdefault(record.release_key, []).append((record, reason))
            return
        record.file.unlink(missing_ok=True)

    def read(self) -> None:
        """Loads the records of earlier servers."""
        for file in self._folder.glob("*"):
            try:
                record = _Record.read(file)
            except (OSError, ValueError, KeyError, TypeError):  # the server was killed while writing it
                file.unlink(missing_ok=True)
                continue
            if not record.is_owned:
                self._unrecovered.setdefault(record.release_key, []).append((record, _SERVER_KILLED))

    async def settle(self, exclusive: Exclusive) -> None:
        """Recovers the changes of earlier servers. `exclusive` locks a release meanwhile."""
        await asyncio.gather(*(self._recover_exclusively(release_key, exclusive) for release_key in self._unrecovered))

    async def _recover_exclusively(self, release_key: ReleaseKey, exclusive: Exclusive) -> None:
        records = [record for record, _ in self._unrecovered[release_key]]
        try:
            async with exclusive(*release_key):
                while await asyncio.to_thread(lambda: any(record.has_helm() for record in records)):
                    await self._clock.sleep(_POLL_SECONDS)
                await self._recover_earlier(release_key)
        except Problem as problem:  # it was locked all the time: the next change recovers it
            log.warning("release %s/%s may be left pending: %s", *release_key[2:], problem.message)

    async def close(self) -> None:
        """Waits briefly for recoveries in progress, after all helm processes have ended."""
        if self._running:
            await asyncio.wait(self._running, timeout=CLOSE_SECONDS)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _own_identity() -> tuple[int, int, str]:
    facts = stat(os.getpid())
    return os.getpid(), facts[3] if facts else 0, boot_id()
