"""Which part of a log was written since a time: by the times that its lines begin with, and by starts and exits."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime

from models.supervision.log_marks import LogMark
from models.times import SECOND

_STAMP = re.compile(rb"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,6})\d*)? ?(Z|[+-]\d\d:?\d\d)?")
_MAX_STAMP_START = 64
"""How far behind the beginning of a line its time may stand: behind a level or a bracket."""


def written_since(text: bytes, end: int, at: int, marks: Iterable[LogMark]) -> bytes:
    """The part of `text`, which ends at `end` bytes of its file, that was written at or after `at` (microseconds).

    It begins at the first line whose time is not before `at`: a later line may quote an old date. Lines without a time
    belong to the line before. Where no line has one, the part begins at the last start or exit before `at`: nothing
    that was written since is missing. A time without a zone is local.
    """
    begin = end - len(text)
    before = [mark.position for mark in marks if mark.time < at and begin <= mark.position <= end]
    text = text[max(before, default=begin) - begin :]
    place, is_old = 0, False
    for line in text.splitlines(keepends=True):
        written = _time_of(line)
        if written is not None and written >= at:
            return text[place:] if is_old else text
        is_old = is_old or written is not None
        place += len(line)
    return b"" if is_old else text


def _time_of(line: bytes) -> int | None:
    """Microseconds since 1970 of the time that a line begins with."""
    found = _STAMP.search(line, 0, _MAX_STAMP_START)
    if found is None:
        return None
    day, clock, fraction, zone = (part.decode() if part else "" for part in found.groups())
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}.{fraction or '0':0<6}{zone}")
        return round(moment.timestamp() * SECOND)
    except (ValueError, OverflowError, OSError):
        return None
