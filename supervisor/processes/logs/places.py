"""Places in a log file that are found again after its rotations, after it was emptied and after a restart."""

from __future__ import annotations

import re

from attrs import Factory, define, frozen

from models.errors import Invalid

_CURSOR = re.compile(r"([0-9a-f]{8})\.(-?\d{1,15})\.(\d{1,18})\.(\d{1,20})")


@define
class Position:
    """How far a follower has read: the number of the content, which is that of the rotations before it, and the offset
    in it."""

    rotations: int
    at: int
    total: int | None = None
    """The same place in bytes of all the file's content, also what was rotated away; `None`: not known."""
    lost: int = 0
    """How many bytes were rotated away for good before they were read."""


@frozen
class Cursor:
    """A place in a log file that is found again after a rotation and after a restart of the server."""

    run_id: str
    rotation: int
    offset: int
    inode: int
    """That of the newest backup, 0 without one."""

    def __str__(self) -> str:
        return f"{self.run_id}.{self.rotation}.{self.offset}.{self.inode}"


def read_cursor(text: str, name: str = "after") -> Cursor:
    """Raises `Invalid`, which names the input."""
    match = _CURSOR.fullmatch(text)
    if match is None:
        raise Invalid(f"{name} is not the cursor of a log")
    return Cursor(match[1], int(match[2]), int(match[3]), int(match[4]))


@define
class Contents:
    """The contents that a file has had, by number. A rotation ends one; so does an emptying, which keeps no backup."""

    backups: int | None = None
    """How many backups the file may have; `None`: not known yet."""
    number: int = 0
    """That of the present content."""
    start: int = 0
    """Where the present content begins, in bytes of all content in this run of the server."""
    _kept: dict[int, int | None] = Factory(dict)
    """Where the contents of the backups begin, oldest first; `None`: not known."""

    def allow(self, backups: int) -> None:
        """The file may have so many backups. Those of a former run have negative numbers."""
        if self.backups is None:
            former: dict[int, int | None] = {-number: None for number in range(backups, 0, -1)}
            self._kept = former | self._kept
        self.backups = backups

    def rotate(self, removed: int, has_backup: bool) -> None:
        """The content was moved to the first backup, or it is lost with all backups: the disk was full."""
        if has_backup:
            self._kept[self.number] = self.start
        else:
            self._kept.clear()
        for number in list(self._kept)[: max(0, len(self._kept) - (self.backups or 0))]:
            del self._kept[number]
        self.number, self.start = self.number + 1, self.start + removed

    def empty(self) -> None:
        """The content was deleted; the backups stay."""
        self.number += 1

    def backup_of(self, number: int) -> int | None:
        """Which backup has a content, 0 for the file itself; `None` where it is gone."""
        if number >= self.number:
            return 0
        kept = list(self._kept)
        return len(kept) - kept.index(number) if number in self._kept else None

    def next_to(self, number: int) -> int:
        """The oldest content after another that is not gone."""
        return next((kept for kept in self._kept if kept > number), self.number)

    def is_rotated_away(self, number: int) -> bool:
        """Whether a content was moved to a backup that is deleted by now; one that was emptied was not."""
        return number < min(self._kept, default=number)

    def start_of(self, number: int) -> int | None:
        """Where a content begins, in bytes of all content; `None` where that is not known."""
        return self.start if number == self.number else self._kept.get(number)

    def oldest(self, backups: int) -> int:
        """The content in the backup with this number, or the oldest after it; the present one for 0."""
        kept = list(self._kept)[-backups:] if backups else []
        return kept[0] if kept else self.number

    def of_former_run(self, backups: int) -> int:
        """The content that was the file's, in a former run, when it had so many newer backups than now."""
        kept = list(self._kept)
        before = kept[-backups - 1] if len(kept) > backups else min(kept, default=1) - 2
        return before + 1

    def measure(self, sizes: list[int]) -> None:
        """Learns the sizes of the backups of a former run, the newest first."""
        for number in (kept for kept in self._kept if kept < 0):
            self._kept[number] = -sum(sizes[:-number])
