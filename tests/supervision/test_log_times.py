"""Which part of a log was written since a time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from models.supervision.log_marks import LogMark
from models.supervision.log_times import written_since

MINUTE = 60_000_000


@pytest.fixture(autouse=True)
def zone() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC-2"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


def at(minute: int) -> int:
    """10:MM in UTC on the day of the logs below."""
    return (1_795_600_800 + 60 * minute) * 1_000_000


def mark(minute: int, position: int) -> LogMark:
    return LogMark(1, "web.log", "web", position, at(minute), 7, None, False)


@pytest.mark.parametrize(
    "line",
    [
        b"2026-11-25T10:%02d:00Z one",
        b"2026-11-25 10:%02d:00.123 +00:00 one",
        b"2026-11-25 12:%02d:00,123 one",
        b"INFO [2026-11-25T12:%02d:00.123456789+0200] one",
        b"\x1b[32m2026-11-25T05:%02d:00-05:00\x1b[0m one",
    ],
)
def test_lines_are_selected_by_the_times_that_they_begin_with(line: bytes) -> None:
    lines = [line % minute + b"\n" for minute in (0, 10, 20)]
    text = b"".join([lines[0], lines[1], b"  continued\n", lines[2], b"  2026-11-25\n"])
    since = [written_since(text, len(text), at(minute), []) for minute in (-1, 5, 15, 25)]
    assert [len(part.splitlines()) for part in since] == [5, 4, 2, 0]
    assert since[2].startswith(lines[2])


def test_a_line_that_quotes_an_old_date_hides_no_newer_lines() -> None:
    old, new = b"2026-11-25T09:59:00Z old\n", b"2026-11-25T10:01:00Z a\n2026-11-25T10:02:00Z b\n"
    quoting = b"restoring backup of 2025-01-01 00:00:00\n"
    for text in (new + quoting, old + new + quoting, old + new + quoting + new):
        assert written_since(text, len(text), at(0), []) == text.removeprefix(old)


def test_without_times_it_begins_at_the_last_start_or_exit_before() -> None:
    text = b"one\ntwo\nthree\n"
    marks = [mark(0, 100), mark(10, 104), mark(20, 108)]
    cut = [written_since(text, 114, at(minute), marks) for minute in (0, 5, 15, 25)]
    assert cut == [text, text, b"two\nthree\n", b"three\n"]
    assert written_since(text, 14, at(25), [mark(20, 3000)]) == text, "a mark behind the end of the text"


def test_a_time_behind_the_beginning_of_a_line_or_out_of_range_is_text() -> None:
    for line in (b"x" * 65 + b"2026-11-25T10:00:00Z\n", b"2026-13-45T10:00:00Z\n", b"2026-11-25\n"):
        assert written_since(line, len(line), at(99), []) == line
