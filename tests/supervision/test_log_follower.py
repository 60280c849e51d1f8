"""A log file followed in chunks: through rotations, after a cursor, by several readers, with starts and exits."""

from __future__ import annotations

import asyncio
import errno
import random
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import pytest

from models.errors import Invalid
from models.supervision.log_marks import LogMark
from supervisor.processes.logs import access as log_access
from supervisor.processes.logs import files as log_files
from supervisor.processes.logs import follower as log_follower
from supervisor.processes.logs import rotation as log_rotation
from supervisor.processes.logs.files import LogFile, LogFiles
from supervisor.processes.logs.follower import MAX_CHUNK_BYTES, Beginning, Chunk, LogFollower
from supervisor.processes.logs.places import read_cursor
from supervisor.processes.logs.process_logs import ProcessLogs
from supervisor.pubsub import PubSub


class Source:
    """Log files with marks, without a server."""

    def __init__(self, path: Path, backups: int = 50) -> None:
        self.file = LogFile(str(path), 1, backups)
        self.files = LogFiles(lambda: [self.file])
        self.new_marks: PubSub[LogMark] = PubSub()
        self.stored: list[LogMark] = []
        self.path = path

    async def marks(self, path: str) -> list[LogMark]:
        return list(self.stored)

    def write(self, text: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(text)

    def mark(self, exit_code: int | None = None) -> LogMark:
        rotation, size = self.files.rotations(str(self.path)), self.path.stat().st_size
        is_exit, number = exit_code is not None, len(self.stored) + 1
        found = LogMark(number, str(self.path), "web", size, 0, 7, exit_code, is_exit, rotation)
        self.stored.append(found)
        self.new_marks.publish(found)
        return found

    def follower(self, **beginning: Any) -> LogFollower:
        return LogFollower(cast("ProcessLogs", self), self.file, Beginning(**beginning))


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.setattr(log_follower, "CHUNK_SECONDS", 0.001)
    monkeypatch.setattr(log_follower, "_POLL_SECONDS", 0.002)
    (tmp_path / "web.log").touch()
    return Source(tmp_path / "web.log")


def run(work: Coroutine[Any, Any, None]) -> None:
    async def with_timeout() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(with_timeout())


async def until(chunks: AsyncIterator[Chunk], end: bytes) -> tuple[bytes, Chunk]:
    """The text up to `end`, and the chunk that ends with it."""
    text = b""
    async for chunk in chunks:
        assert len(chunk.text) <= MAX_CHUNK_BYTES
        assert chunk.end - chunk.first == len(chunk.text) - chunk.carried
        text += chunk.text
        if text.endswith(end):
            return text, chunk
    raise AssertionError("the log has ended")


def test_nothing_is_lost_or_repeated_by_rotations_split_lines_and_reconnects(source: Source) -> None:
    async def work() -> None:
        choose = random.Random(7)
        lines = b"".join(b"line %d %s\n" % (number, b"x" * choose.randrange(200)) for number in range(4000))
        received, at = b"", 0
        cursor = (await anext(source.follower().chunks())).cursor
        while at < len(lines):
            chunks = source.follower(lines=0, after=cursor).chunks()
            for _ in range(5):
                step = choose.randrange(1, 9000)  # ends within a line more often than not
                source.write(lines[at : at + step])
                at += step
                if choose.random() < 0.5:
                    await source.files.rotate()
                if choose.random() < 0.5:
                    chunk = await anext(chunks)
                    received, cursor = received + chunk.text, chunk.cursor
            await chunks.aclose()
        async for chunk in source.follower(after=cursor).chunks():
            received += chunk.text
            if len(received) >= len(lines):
                break
        assert received == lines

    run(work())


def test_a_place_from_before_a_clear_goes_on_at_the_new_beginning(source: Source) -> None:
    new = b"".join(b"new line %d\n" % number for number in range(100))

    async def work() -> None:
        source.write(b"old line\n" * 5)
        await source.files.rotate()
        source.write(b"old line\n" * 10)
        _, chunk = await until(source.follower().chunks(), b"old line\n")
        place = await source.files.resume(source.file, None)
        stored = await source.files.mark(str(source.path), place, place.at)
        assert await source.files.clear([str(source.path)]) == []
        source.write(new)
        for _ in range(2):  # the second time the new content is in a backup
            assert (await anext(source.follower(after=chunk.cursor).chunks())).text == new
            resumed = await source.files.resume(source.file, stored)
            assert await source.files.read_on(str(source.path), resumed) == new
            assert await source.files.remaining(str(source.path), place) == len(new)
            await source.files.rotate()
        assert await source.files.between(str(source.path), place.rotations, 0, 100) == b""
        assert await source.files.between(str(source.path), place.rotations - 1, 0, 1000) == b"old line\n" * 5
        offset, inode = await source.files.mark(str(source.path), place, place.at)
        after_restart = LogFiles(lambda: [source.file])
        resumed = await after_restart.resume(source.file, (offset, inode))
        assert (await after_restart.read_on(str(source.path), resumed), resumed.lost) == (new, 0)

    run(work())


def test_a_cursor_in_a_backup_of_a_former_run_is_valid(source: Source) -> None:
    async def work() -> None:
        source.write(b"one\n")
        _, chunk = await until(source.follower().chunks(), b"one\n")
        source.write(b"x" * 2 * MAX_CHUNK_BYTES + b"\n")
        await source.files.rotate()
        source.files = LogFiles(lambda: [source.file])
        cursor = (await anext(source.follower(after=chunk.cursor).chunks())).cursor
        assert cursor is not None
        assert cursor.rotation < 0
        assert read_cursor(str(cursor)) == cursor

    run(work())


def test_cursor_is_found_in_the_backups_after_a_restart_of_the_server(source: Source) -> None:
    async def work() -> None:
        source.write(b"one\n")
        _, chunk = await until(source.follower().chunks(), b"one\n")
        source.write(b"two\n")
        await source.files.rotate()
        source.write(b"three\n")
        other = Source(source.path)
        text, _ = await until(other.follower(after=chunk.cursor).chunks(), b"three\n")
        assert text in (b"two\nthree\n", b"one\ntwo\nthree\n")  # without an earlier backup the position is unknown

    run(work())


def test_marks_of_starts_and_exits_are_between_the_lines(source: Source) -> None:
    async def work() -> None:
        source.mark()
        source.write(b"first\nwithout an end")
        source.mark(exit_code=3)
        source.mark()
        source.write(b"second\n")
        chunks = source.follower().chunks()
        _, chunk = await until(chunks, b"second\n")
        assert [(mark.position, mark.exit_code) for mark in chunk.marks] == [(0, None), (20, 3), (20, None)]
        source.write(b"last words")
        source.mark(exit_code=0)
        text, chunk = await until(chunks, b"last words")
        assert (text, [mark.exit_code for mark in chunk.marks]) == (b"last words", [0])
        await source.files.rotate()
        source.stored.clear()
        source.mark()
        assert [mark.position for mark in (await anext(chunks)).marks] == [0]

    run(work())


@pytest.mark.parametrize(
    ("beginning", "texts"),
    [
        ({"lines": 2}, [b"b\nc\n"]),
        ({"lines": 0}, [b""]),
        ({"lines": 10}, [b"a\nb\nc\n"]),
        ({"at": 3}, [b"a\nb\nc\n"]),
        ({"at": 100}, [b"c\n"]),
    ],
)
def test_added_reader_gets_the_text_before_the_current_position(
    source: Source, beginning: dict[str, Any], texts: list[bytes]
) -> None:
    async def work() -> None:
        source.write(b"a\nb\nc\n")
        follower = source.follower()
        chunks = follower.chunks()
        await until(chunks, b"c\n")
        follower.add(Beginning(**{"lines": 1, **beginning}))
        repeated = [await anext(chunks) for _ in texts]
        assert [chunk.text for chunk in repeated] == texts
        assert repeated[0].is_beginning
        assert repeated[-1].end == 6
        source.write(b"d\n")
        assert (await until(chunks, b"d\n"))[0] == b"d\n"

    run(work())


def test_added_reader_with_a_cursor_continues_after_it(source: Source) -> None:
    async def work() -> None:
        source.write(b"a\n")
        follower = source.follower()
        chunks = follower.chunks()
        _, first = await until(chunks, b"a\n")
        source.write(b"b\n")
        await until(chunks, b"b\n")
        follower.add(Beginning(after=first.cursor))
        again = await anext(chunks)
        assert (again.text, again.after, again.is_beginning) == (b"b\n", first.cursor, True)

    run(work())


def test_link_far_before_the_end_gets_its_context_and_the_number_of_later_lines(source: Source) -> None:
    async def work() -> None:
        line = b"x" * 99 + b"\n"
        source.write(line * 20_000)
        follower = source.follower()
        chunks = follower.chunks()
        await until(chunks, line)
        follower.add(Beginning(at=500_000))
        near, rest = await anext(chunks), await anext(chunks)
        assert near.first <= 500_000 < near.end
        assert near.text.count(b"\n") + rest.dropped == (rest.end - near.first) // 100
        assert rest.after == near.cursor

    run(work())


def test_no_file_is_looked_up_on_the_event_loop(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that does not answer holds a thread, not the loop."""
    on_loop = list[str]()

    def noted(path: Path | str) -> Any:
        if threading.current_thread() is threading.main_thread():
            on_loop.append(str(path))
        return log_access.log_place(path)

    async def work() -> None:
        source.write(b"one\n")
        async with aclosing(source.follower().chunks()) as chunks:
            _, first = await until(chunks, b"one\n")
            source.write(b"two\n")
            await source.files.rotate()
            await until(chunks, b"two\n")
        assert first.cursor is not None
        former = read_cursor(f"00000000.0.{first.cursor.offset}.0")
        async with aclosing(source.follower(after=former).chunks()) as chunks:
            await until(chunks, b"two\n")
        assert [piece async for piece in source.files.content(source.file, True)] == [b"one\ntwo\n"]

    for module in (log_files, log_rotation):
        monkeypatch.setattr(module, "log_place", noted)
    run(work())
    assert on_loop == []


def test_follower_goes_on_after_its_last_chunk_when_the_file_answers_again(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unanswered(*_: object) -> bytes:
        raise OSError(errno.ETIMEDOUT, "the file system does not answer")

    async def work() -> None:
        source.write(b"one\n")
        follower = source.follower()
        async with aclosing(follower.chunks()) as chunks:
            await until(chunks, b"one\n")
            monkeypatch.setattr(source.files, "read_on", unanswered)
            with pytest.raises(OSError, match="does not answer"):
                await anext(chunks)
        monkeypatch.undo()
        source.write(b"two\n")
        async with aclosing(follower.again().chunks()) as chunks:
            assert (await until(chunks, b"two\n"))[0] == b"two\n"

    run(work())


@pytest.mark.parametrize(
    "text", ["", "x", "1.2.3", "0123456789.1.2.3", "zzzzzzzz.1.2.3", "01234567.--1.2.3", "01234567.1.2.3.4"]
)
def test_invalid_cursor_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="cursor"):
        read_cursor(text)
    assert str(read_cursor("01234567.1.2.3")) == "01234567.1.2.3"
