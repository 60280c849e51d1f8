"""Log files: the last lines, rotation, and following a file across rotations."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock, call

import psutil
import pytest

from supervisor.children.openings import FilePlace
from supervisor.clock import Clock
from supervisor.processes.logs import access as log_access
from supervisor.processes.logs import files as log_files
from supervisor.processes.logs import rotation as log_rotation
from supervisor.processes.logs.files import LogFile, LogFiles, tail
from supervisor.processes.logs.rotation import Rotation, rotate
from supervisor.processes.notices import Notices


def run(work: Coroutine[Any, Any, None]) -> None:
    async def with_timeout() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(with_timeout())


def numbered(count: int, first: int = 0) -> bytes:
    return b"".join(b"line %d\n" % number for number in range(first, first + count))


# The last lines


@pytest.mark.parametrize(
    ("content", "lines", "expected"),
    [
        (b"", 1, b""),
        (b"", 10_000, b""),
        (b"\n", 1, b"\n"),
        (b"\n\n\n", 2, b"\n\n"),
        (b"a\nb\nc\n", 1, b"c\n"),
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc\n", 3, b"a\nb\nc\n"),
        (b"a\nb\nc\n", 10_000, b"a\nb\nc\n"),
        (b"no newline", 1, b"no newline"),
        (b"a\nno newline", 1, b"no newline"),
        (b"a\nno newline", 2, b"a\nno newline"),
        (b"\xff\xfe\x00\n\x80\n", 1, b"\x80\n"),
        (b"10%\r20%\r100%\n", 1, b"10%\r20%\r100%\n"),
        (b"one\r\ntwo\r\n", 1, b"two\r\n"),
        (b"form\x0cfeed\nnext\x1eline\n", 2, b"form\x0cfeed\nnext\x1eline\n"),
    ],
)
def test_tail_returns_the_last_lines(tmp_path: Path, content: bytes, lines: int, expected: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    assert tail(path, lines) == (expected, len(content))


@pytest.mark.parametrize("lines", [1, 2, 999, 9_999, 10_000])
def test_the_last_lines_of_a_long_file_are_read_from_its_end(tmp_path: Path, lines: int) -> None:
    path = tmp_path / "log"
    path.write_bytes(numbered(50_000))
    assert tail(path, lines)[0] == numbered(lines, 50_000 - lines)


@pytest.mark.parametrize("length", [64 * 1024 - 1, 64 * 1024, 64 * 1024 + 1, 1024 * 1024])
def test_tail_returns_lines_larger_than_a_block_whole(tmp_path: Path, length: int) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"first\n" + b"x" * length + b"\n" + b"y" * length + b"\n")
    assert tail(path, 1)[0] == b"y" * length + b"\n"
    assert tail(path, 2)[0] == b"x" * length + b"\n" + b"y" * length + b"\n"
    assert tail(path, 3)[0].startswith(b"first\n")


def test_tail_reads_a_bounded_part_of_a_file_without_newlines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"z" * 3_000_000)
    text, end = tail(path, 10_000, max_bytes=1_000_000)
    assert end == 3_000_000
    assert 1_000_000 <= len(text) <= 1_000_000 + 64 * 1024


@pytest.mark.parametrize("name", ["missing", "no/folder/here"])
def test_tail_of_a_missing_file_is_empty(tmp_path: Path, name: str) -> None:
    assert tail(tmp_path / name, 10) == (b"", 0)


# Rotation


def backups(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in sorted(path.parent.iterdir())}


@pytest.mark.parametrize(
    ("size", "limit", "rotated"),
    [(0, 100, False), (99, 100, False), (100, 100, True), (101, 100, True), (10_000, 0, False)],
)
def test_a_file_is_rotated_when_it_has_reached_its_limit(tmp_path: Path, size: int, limit: int, rotated: bool) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * size)
    assert rotate(LogFile(str(path), limit, 2)).result is (Rotation.ROTATED if rotated else Rotation.NONE)
    expected = {"log": b"", "log.1": b"x" * size} if rotated else {"log": b"x" * size}
    assert backups(path) == expected


def test_a_missing_file_is_not_rotated(tmp_path: Path) -> None:
    assert rotate(LogFile(str(tmp_path / "log"), 1, 2)).result is Rotation.MISSING
    assert list(tmp_path.iterdir()) == []


def test_rotation_without_backups_truncates_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 100)
    assert rotate(LogFile(str(path), 100, 0)).result is Rotation.ROTATED
    assert backups(path) == {"log": b""}


def test_backups_are_renumbered_and_the_oldest_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for number in range(6):
        path.write_bytes(b"%d" % number * 10)
        assert rotate(LogFile(str(path), 10, 3)).result is Rotation.ROTATED
    assert backups(path) == {"log": b"", "log.1": b"5" * 10, "log.2": b"4" * 10, "log.3": b"3" * 10}


def test_writer_in_append_mode_continues_at_the_start_of_a_rotated_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("ab", buffering=0) as writer:
        writer.write(b"before\n")
        assert rotate(LogFile(str(path), 1, 1)).result is not Rotation.NONE
        writer.write(b"after\n")
    assert backups(path) == {"log": b"after\n", "log.1": b"before\n"}


def test_backup_has_the_permissions_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"secret")
    path.chmod(0o600)
    assert rotate(LogFile(str(path), 1, 1)).result is not Rotation.NONE
    assert (tmp_path / "log.1").stat().st_mode & 0o777 == 0o600


def test_lines_written_during_a_rotation_are_in_the_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"first\n")
    move = FilePlace.rename

    def write_and_move(place: FilePlace, old: bytes, new: bytes) -> None:
        append(path, b"later\n")
        move(place, old, new)

    monkeypatch.setattr(FilePlace, "rename", write_and_move)
    assert rotate(LogFile(str(path), 1, 3)).result is Rotation.ROTATED
    assert backups(path) == {"log": b"", "log.1": b"first\nlater\n"}


@pytest.mark.parametrize("name", ["web.log", "web.log.1"])
def test_a_link_that_is_put_in_place_of_a_file_during_a_rotation_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A server that runs as root rotates files in folders of other users."""
    path, secret = tmp_path / "web.log", tmp_path / "secret"
    path.write_bytes(b"x" * 100)
    secret.write_bytes(b"kept")
    copy = log_rotation._copy_to_backup

    def swap(source: FilePlace, backups: int) -> bool:
        is_copied = copy(source, backups)
        with path.open("ab") as file:
            file.write(b"added meanwhile")
        (tmp_path / name).unlink()
        (tmp_path / name).symlink_to(secret)
        return is_copied

    monkeypatch.setattr(log_rotation, "_copy_to_backup", swap)
    rotate(LogFile(str(path), 100, 3))
    assert secret.read_bytes() == b"kept"


def test_full_disk_deletes_the_oldest_backups_and_then_truncates_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    for name, content in {"log": b"now" * 10, "log.1": b"one", "log.2": b"two", "log.3": b"three"}.items():
        (tmp_path / name).write_bytes(content)
    copy, room = shutil.copyfileobj, 0

    def little_space(source: Any, target: Any, length: int = 0) -> None:
        """Has space for the copy when at most `room` backups remain."""
        if len(list(tmp_path.glob("log.[1-9]"))) > room:
            target.write(source.read(5))
            raise OSError(28, os.strerror(28))
        copy(source, target, length)

    monkeypatch.setattr(shutil, "copyfileobj", little_space)
    room = 2
    assert rotate(LogFile(str(path), 10, 3)).result is Rotation.ROTATED
    assert backups(path) == {"log": b"", "log.1": b"now" * 10, "log.2": b"one", "log.3": b"two"}
    path.write_bytes(b"later" * 10)
    room = -1
    assert rotate(LogFile(str(path), 10, 3)).result is Rotation.TRUNCATED
    assert backups(path) == {"log": b""}


def test_a_truncation_on_a_full_disk_is_a_notice_once_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"

    def no_space(source: Any, target: Any, length: int = 0) -> None:
        raise OSError(122, os.strerror(122))

    class Hours(Clock):
        hours = 0.0

        def since_boot(self) -> float:
            return self.hours * 3600

    monkeypatch.setattr(shutil, "copyfileobj", no_space)
    clock, notices = Hours(), Mock(spec=Notices)
    logs = LogFiles(lambda: [LogFile(str(path), 10, 3, "web")], clock, notices)
    message = f"{path} was truncated without a backup: the disk is full"
    for hours, posted in ((0.0, 1), (0.5, 1), (1.0, 2)):
        clock.hours = hours
        path.write_bytes(b"x" * 10)
        asyncio.run(logs.rotate())
        assert path.read_bytes() == b""
        assert notices.post.mock_calls == [call("log.truncated", "web", message, path=str(path))] * posted


def test_a_file_that_cannot_be_copied_for_another_reason_keeps_its_backups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "log"
    before = {"log": b"now" * 10, "log.1": b"one"}
    for name, content in before.items():
        (tmp_path / name).write_bytes(content)

    def broken(source: Any, target: Any, length: int = 0) -> None:
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr(shutil, "copyfileobj", broken)
    assert rotate(LogFile(str(path), 10, 3)).result is Rotation.FAILED
    assert backups(path) == before
    assert "cannot be rotated" in caplog.text


# Following


class Follower:
    """Reads a followed log and collects its bytes."""

    def __init__(self, follow: LogFiles, path: Path, lines: int = 10) -> None:
        self.pieces = cast("Any", follow.follow(str(path), lines))
        self.got = b""

    @classmethod
    async def begin(cls, follow: LogFiles, path: Path, lines: int = 10) -> Follower:
        """Returns a follower that has read the current content."""
        follower = cls(follow, path, lines)
        follower.got = await anext(follower.pieces)
        return follower

    async def until(self, expected: bytes) -> None:
        while len(self.got) < len(expected):
            self.got += await anext(self.pieces)
        assert self.got == expected


@pytest.fixture(autouse=True)
def poll_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "_FOLLOW_POLL_SECONDS", 0.001)


def append(path: Path, text: bytes) -> None:
    with path.open("ab") as file:
        file.write(text)


def test_follower_gets_the_last_lines_and_then_added_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(numbered(100))

    async def work() -> None:
        follower = Follower(LogFiles(list), path, 3)
        await follower.until(numbered(3, 97))
        append(path, b"added\n")
        await follower.until(numbered(3, 97) + b"added\n")
        await follower.pieces.aclose()

    run(work())


@pytest.mark.parametrize("when", ["at its beginning", "later", "after a rotation"])
def test_follower_continues_when_descriptors_are_available_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    path, attempts = tmp_path / "log", 0
    path.write_bytes(b"first\n")

    def none_free(path: Path) -> Any:
        nonlocal attempts
        attempts += 1
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    async def exhausted() -> None:
        monkeypatch.setattr(log_files, "opened", none_free)
        monkeypatch.setattr(log_files, "log_place", none_free)
        before = attempts
        while attempts < before + 3:
            await asyncio.sleep(0.001)
        monkeypatch.setattr(log_files, "opened", log_access.opened)
        monkeypatch.setattr(log_files, "log_place", log_access.log_place)

    async def work() -> None:
        logs = LogFiles(lambda: [LogFile(str(path), 1, 3)])
        follower = Follower(logs, path)
        if when != "at its beginning":
            await follower.until(b"first\n")
            append(path, b"second\n")
        if when == "after a rotation":
            await logs.rotate()
            append(path, b"third\n")
        expected = {"at its beginning": b"first\n", "later": b"first\nsecond\n"}
        async with asyncio.TaskGroup() as group:
            group.create_task(exhausted())
            group.create_task(follower.until(expected.get(when, b"first\nsecond\nthird\n")))
        await follower.pieces.aclose()

    run(work())


def test_follower_may_start_before_the_file_exists(tmp_path: Path) -> None:
    async def work() -> None:
        follower = Follower(LogFiles(list), tmp_path / "log")
        await follower.until(b"")
        append(tmp_path / "log", b"first\n")
        await follower.until(b"first\n")
        await follower.pieces.aclose()

    run(work())


def test_follower_gets_a_line_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"whole\nhal")

    async def work() -> None:
        follower = Follower(LogFiles(list), path)
        await follower.until(b"whole\n")
        append(path, b"f")
        append(path, b"\nnext")
        await follower.until(b"whole\nhalf\n")
        append(path, b"\n")
        await follower.until(b"whole\nhalf\nnext\n")
        await follower.pieces.aclose()

    run(work())


def test_follower_gets_a_long_line_without_newline(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 300_000)

    async def work() -> None:
        follower = Follower(LogFiles(list), path)
        await follower.until(b"x" * 300_000)
        await follower.pieces.aclose()

    run(work())


@pytest.mark.parametrize("seed", range(8))
def test_no_line_is_lost_or_doubled_across_rotations(tmp_path: Path, seed: int) -> None:
    """Writing, rotating and reading in any order; never more rotations behind than there are backups."""
    chance, path = random.Random(seed), tmp_path / "log"
    file = LogFile(str(path), 50, 3)

    async def work() -> None:
        follow = LogFiles(lambda: [file])
        path.write_bytes(b"")
        follower, written, behind = await Follower.begin(follow, path, 10_000), b"", 0
        for number in range(300):
            line = b"line %d of %s\n" % (number, b"z" * chance.randrange(0, 200))
            append(path, line)
            written += line
            if chance.random() < 0.3 and behind < 3:
                await follow.rotate()
                behind += 1
            if chance.random() < 0.3:
                await follower.until(written)
                behind = 0
        await follower.until(written)
        await follower.pieces.aclose()

    run(work())


def test_follower_gets_a_line_split_by_a_rotation_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = LogFile(str(path), 1, 2)

    async def work() -> None:
        follow = LogFiles(lambda: [file])
        append(path, b"first\nha")
        follower = Follower(follow, path)
        await follower.until(b"first\n")
        append(path, b"l")
        await follow.rotate()
        append(path, b"f\n")
        await follower.until(b"first\nhalf\n")
        await follower.pieces.aclose()

    run(work())


def test_follower_continues_after_a_rotation_without_backups(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = LogFile(str(path), 1, 0)

    async def work() -> None:
        follow = LogFiles(lambda: [file])
        append(path, b"one\n")
        follower = Follower(follow, path)
        await follower.until(b"one\n")
        await follow.rotate()
        append(path, b"two, and longer than what was there\n")
        await follower.until(b"one\ntwo, and longer than what was there\n")
        await follower.pieces.aclose()

    run(work())


def test_follower_ignores_a_backup_that_is_not_of_the_last_rotation(tmp_path: Path) -> None:
    path = tmp_path / "log"
    (tmp_path / "log.1").write_bytes(b"long ago and far away\n" * 5)
    file = LogFile(str(path), 1, 0)

    async def work() -> None:
        follow = LogFiles(lambda: [file])
        append(path, b"one\n")
        follower = Follower(follow, path)
        await follower.until(b"one\n")
        await follow.rotate()
        append(path, b"two\n")
        await follower.until(b"one\ntwo\n")
        await follower.pieces.aclose()

    run(work())


def test_follower_reads_a_truncated_file_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(numbered(10))

    async def work() -> None:
        follower = Follower(LogFiles(list), path)
        await follower.until(numbered(10))
        os.truncate(path, 0)
        append(path, b"new\n")
        await follower.until(numbered(10) + b"new\n")
        await follower.pieces.aclose()

    run(work())


def test_followers_of_one_file_are_independent(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = LogFile(str(path), 500, 5)

    async def work() -> None:
        follow = LogFiles(lambda: [file])
        path.write_bytes(b"")
        followers, written = [await Follower.begin(follow, path, 10_000) for _ in range(20)], b""
        for number in range(100):
            append(path, b"line %d\n" % number)
            written += b"line %d\n" % number
            if number % 25 == 24:
                await asyncio.gather(*(follower.until(written) for follower in followers[: number // 5]))
                await follow.rotate()
        await asyncio.gather(*(follower.until(written) for follower in followers))
        for follower in followers:
            await follower.pieces.aclose()

    run(work())


def test_cancelled_followers_leave_no_file_open(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(numbered(10))

    async def listen(pieces: AsyncIterator[bytes]) -> None:
        async with aclosing(cast("Any", pieces)) as open_pieces:
            async for _ in open_pieces:
                pass

    async def work() -> None:
        follow = LogFiles(list)
        for _ in range(3):
            tasks = [asyncio.create_task(listen(follow.follow(str(path), 5))) for _ in range(30)]
            await asyncio.sleep(0.05)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        process = psutil.Process()
        while str(path) in {one.path for one in process.open_files()}:  # a thread may still read it
            await asyncio.sleep(0.01)
        follower = Follower(follow, path)  # the lock is free
        await follower.until(numbered(10))
        await follower.pieces.aclose()

    run(work())
