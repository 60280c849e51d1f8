"""Stages the attachments of uploads, and removes them when their time or their run is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import peewee

from models.config.settings import AttachmentSettings
from models.errors import Problem
from models.tracker.files import attachments
from models.tracker.files.attachment_files import AttachmentFolder, StagedFile
from models.tracker.tables import reports
from supervisor.clock import Clock

log = logging.getLogger("tracker")

_PERIOD_SECONDS = 600.0
_MAX_WARNINGS = 20
_PAUSE_SECONDS = 0.01


class Attachments:
    """The attachments of all runs. `folder` has their contents."""

    def __init__(
        self,
        folder: Path | None,
        settings: AttachmentSettings,
        clock: Clock,
        in_store: Callable[[Callable[[], Any]], Awaitable[Any]],
    ) -> None:
        """`in_store` runs a piece of work on the tracker's store, in a worker.

        Without a folder nothing is stored: nodes that share a database need one that they share too.
        """
        self.is_open = settings.enabled and folder is not None
        self.folder = AttachmentFolder(folder or Path("/nonexistent"))
        self.settings = settings
        self._clock = clock
        self._doubtful: set[str] = set()
        """Contents of uploads that failed, which may have been moved to their place already."""
        self._in_store = in_store

    def stage(self, received: Sequence[tuple[str, Path, int]]) -> tuple[list[StagedFile], list[str]]:
        """Moves the files of an upload (name, path, size) into the folder. Returns warnings. For a worker."""
        if received and not self.is_open:
            setting = "dir, which nodes with one database share" if self.settings.enabled else "enabled"
            return [], [f"attachments are not stored here (tracker.attachments.{setting})"]
        staged, warnings = [], []
        for name, path, size in received:
            if size > self.settings.file:
                warnings.append(f"the attachment {name} was not stored: more than {self.settings.file} bytes")
                continue
            try:
                staged.append(self.folder.stage(path, name))
            except OSError as error:
                log.error("an attachment could not be stored: %s", error)
                warnings.append(f"the attachment {name} was not stored: {error.strerror}")
        if (more := len(warnings) - _MAX_WARNINGS) > 0:
            warnings[_MAX_WARNINGS:] = [f"{more} more attachments were not stored"]
        return staged, warnings

    def discard(self, staged: Sequence[StagedFile], is_stored: bool) -> None:
        """Removes what is left of staged files; without rows, their contents soon after. For a worker."""
        if not is_stored:
            self._doubtful.update(file.hash for file in staged)
        try:
            self.folder.discard(staged)
        except OSError as error:
            log.warning("attachments could not be removed: %s", error)

    def remove_unused(self, hashes: Collection[str]) -> None:
        """Removes the contents that no attachment has. For a worker, with the store's connection."""
        if hashes:
            try:
                attachments.remove_unused(self.folder, hashes)
            except (OSError, peewee.PeeweeException) as error:
                log.warning("attachments could not be removed: %s", error)

    async def watch(self) -> None:
        """Removes what a killed server left, then what expires, for ever."""
        if not self.is_open:
            return
        try:
            await self._sweep()
        except (OSError, peewee.PeeweeException, Problem) as error:
            log.warning("attachments could not be removed: %s", error)
        while True:
            try:
                await self._delete_expired()
            except (peewee.PeeweeException, Problem) as error:
                log.warning("attachments could not be removed: %s", error)
            await asyncio.sleep(_PERIOD_SECONDS)

    async def _sweep(self) -> None:
        if reports.is_local:
            await asyncio.to_thread(self.folder.sweep_temporary)
        contents = self.folder.contents(attachments.BATCH_ROWS)
        while batch := await asyncio.to_thread(next, contents, ()):
            await self._in_store(lambda: self.remove_unused(batch))
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _delete_expired(self) -> None:
        doubtful, self._doubtful = self._doubtful, set()
        await self._in_store(lambda: self.remove_unused(doubtful))
        days = self.settings.retain_days
        before = self._clock.expired_before(days)
        while days and (hashes := await self._in_store(lambda: attachments.delete_expired(before))):
            await self._in_store(lambda: self.remove_unused(hashes))
            await asyncio.sleep(_PAUSE_SECONDS)
        while excess := await self._in_store(lambda: attachments.delete_excess(self.settings)):
            await self._in_store(lambda: self.remove_unused(excess))
            await asyncio.sleep(_PAUSE_SECONDS)
