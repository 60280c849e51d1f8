"""The log: complete lines in order, without waiting for the reader."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import threading
from collections.abc import Iterator

import pytest

from supervisor import logging as module
from supervisor.logging import JsonFormatter, Lines, TextFormatter


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    yield reader, writer
    for end in (reader, writer):
        with contextlib.suppress(OSError):
            os.close(end)


def record(message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("supervision", logging.INFO, __file__, 1, message, args, None)


def lines_to(writer: int) -> Lines:
    lines = Lines(writer)
    lines.setFormatter(TextFormatter())
    return lines


def test_text_has_time_level_part_and_words() -> None:
    line = TextFormatter().format(record("%s: %s -> %s", "web", "starting", "running"))
    time, level, part, words = line.split(" ", 3)
    assert time.endswith("Z")
    assert (level, part, words) == ("INFO", "supervision:", "web: starting -> running")


@pytest.mark.parametrize("name", ["a\nb", "a\r\nINFO server: stopped"])
def test_a_name_with_a_line_break_makes_no_second_line(name: str) -> None:
    assert "\n" not in TextFormatter().format(record("%s", name))


def test_json_is_one_object_a_line() -> None:
    line = JsonFormatter().format(record("%s", "ä\n"))
    assert "\n" not in line
    assert json.loads(line) | {"time": ""} == {"time": "", "level": "INFO", "logger": "supervision", "message": "ä\n"}


def test_lines_of_one_turn_leave_in_order_and_whole(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    lines = lines_to(writer)

    async def talk() -> None:
        for number in range(40):
            lines.emit(record("line %d", number))

    asyncio.run(talk())
    lines.close()
    assert [line.split()[-1] for line in os.read(reader, 65536).splitlines()] == [b"%d" % n for n in range(40)]


def test_a_reader_that_stalls_delays_no_other_and_gets_the_rest_later(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    lines = lines_to(writer)
    got = bytearray()

    async def talk() -> None:
        for number in range(2000):  # far more than the pipe holds
            lines.emit(record("line %d", number))
        await asyncio.sleep(0)
        while b"line 1999" not in got:
            got.extend(await asyncio.to_thread(os.read, reader, 65536))

    asyncio.run(asyncio.wait_for(talk(), 30))
    assert got.count(b"\n") == 2000


def test_a_line_longer_than_a_pipe_takes_at_once_arrives_whole(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    lines = lines_to(writer)
    got = bytearray()

    def take() -> None:
        while b"end" not in got:
            got.extend(os.read(reader, 1000))

    drain = threading.Thread(target=take)
    drain.start()
    lines.emit(record("x" * 20_000 + "end"))
    lines.close()
    drain.join(10)
    assert got.count(b"x") == 20_000


def test_what_no_reader_takes_is_counted(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = pipe
    monkeypatch.setattr(module, "_MAX_WAITING_LINES", 100)
    lines = lines_to(writer)
    for number in range(1000):
        lines.emit(record("%d %s", number, "x" * 60))
    got = bytearray()
    while b"lines were lost" not in got:
        got.extend(os.read(reader, 65536))
        lines.emit(record("more"))
    assert int(got.partition(b" lines were lost")[0].split()[-1]) > 800


def test_a_reader_that_left_is_no_fault(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.close(reader)
    lines = lines_to(writer)
    lines.emit(record("nobody hears this"))
    lines.close()
