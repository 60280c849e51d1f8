"""The log: complete lines in order, without waiting for the reader."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from supervisor import logging as module
from supervisor.logging import MAX_RECENT_LINES, JsonFormatter, Lines, RecentLines, TextFormatter


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


def test_text_line_has_time_level_logger_and_message() -> None:
    line = TextFormatter().format(record("%s: %s -> %s", "web", "starting", "running"))
    time, level, logger, message_text = line.split(" ", 3)
    assert time.endswith("Z")
    assert (level, logger, message_text) == ("INFO", "supervision:", "web: starting -> running")


@pytest.mark.parametrize("name", ["a\nb", "a\r\nINFO server: stopped"])
def test_a_name_with_a_line_break_makes_no_second_line(name: str) -> None:
    assert "\n" not in TextFormatter().format(record("%s", name))


def test_json_line_is_one_object() -> None:
    line = JsonFormatter().format(record("%s", "ä\n"))
    assert "\n" not in line
    assert json.loads(line) | {"time": ""} == {"time": "", "level": "INFO", "logger": "supervision", "message": "ä\n"}


def test_lines_of_one_loop_iteration_are_written_whole_and_in_order(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    lines = lines_to(writer)

    async def log_lines() -> None:
        for number in range(40):
            lines.emit(record("line %d", number))

    asyncio.run(log_lines())
    lines.close()
    assert [line.split()[-1] for line in os.read(reader, 65536).splitlines()] == [b"%d" % n for n in range(40)]


def test_stalled_reader_does_not_block_logging_and_gets_all_lines_later(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    lines = lines_to(writer)
    received = bytearray()

    async def log_lines() -> None:
        for number in range(2000):  # far more than the pipe holds
            lines.emit(record("line %d", number))
        await asyncio.sleep(0)
        while b"line 1999" not in received:
            received.extend(await asyncio.to_thread(os.read, reader, 65536))

    asyncio.run(asyncio.wait_for(log_lines(), 30))
    assert received.count(b"\n") == 2000


def test_line_longer_than_the_pipe_buffer_is_written_whole(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    lines = lines_to(writer)
    received = bytearray()

    def read() -> None:
        while b"end" not in received:
            received.extend(os.read(reader, 1000))

    drain = threading.Thread(target=read)
    drain.start()
    lines.emit(record("x" * 20_000 + "end"))
    lines.close()
    drain.join(10)
    assert received.count(b"x") == 20_000


def test_dropped_lines_are_counted(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = pipe
    monkeypatch.setattr(module, "_MAX_WAITING_LINES", 100)
    lines = lines_to(writer)
    for number in range(1000):
        lines.emit(record("%d %s", number, "x" * 60))
    received = bytearray()
    while b"lines were lost" not in received:
        received.extend(os.read(reader, 65536))
        lines.emit(record("more"))
    assert int(received.partition(b" lines were lost")[0].split()[-1]) > 800


def test_closed_reader_raises_no_error(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.close(reader)
    lines = lines_to(writer)
    lines.emit(record("written to a closed pipe"))
    lines.close()


def test_the_last_lines_are_kept_and_followed() -> None:
    kept = RecentLines()
    for number in range(MAX_RECENT_LINES + 5):
        kept.add(str(number))
    kept.add("x" * 5000)
    assert len(kept.newest(MAX_RECENT_LINES)) == MAX_RECENT_LINES
    assert [len(kept.newest(2)[1]), kept.newest(2)[0]] == [4096, str(MAX_RECENT_LINES + 4)]
    assert kept.newest(0) == []

    async def follow() -> list[bytes]:
        pieces = kept.follow(1)
        found = [await anext(pieces)]
        kept.add("new")
        kept.add("newer")
        return [*found, await anext(pieces)]

    assert asyncio.run(follow())[1] == b"new\nnewer\n"


def test_the_destination_of_the_log_is_named(tmp_path: Path) -> None:
    code = "from supervisor.logging import destination; print(destination())"

    def shown(stderr: Any, **environ: str) -> str:
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, env=os.environ | environ)
        return done.stdout.decode().strip()

    with (tmp_path / "server.log").open("w") as file:
        assert shown(file) == str(tmp_path / "server.log")
        facts = os.fstat(file.fileno())
        journal = f"{facts.st_dev}:{facts.st_ino}"
        assert shown(file, JOURNAL_STREAM=journal).startswith("the journal: journalctl _PID=")
    assert shown(subprocess.DEVNULL) == "nowhere: standard error is /dev/null"
    assert shown(subprocess.PIPE) == "a pipe: what has started the server reads it"
