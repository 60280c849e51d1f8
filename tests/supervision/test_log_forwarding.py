"""Forwarding of logs: the formats of the sinks, a kill -9 of the server, a flood, a missing sink."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import changed_constants
import pytest
from conftest import Server, until, wait_for

from models.supervision.process import LogForward, ProcessSpec, Size
from supervisor.processes.logs import files as log_files
from supervisor.processes.logs import forwarding as log_forwarding
from supervisor.processes.logs import sinks as log_sinks
from supervisor.processes.logs import threads as log_threads
from supervisor.processes.logs.files import LogFile, LogFiles
from supervisor.processes.logs.forwarding import LogForwarder, split_lines
from supervisor.processes.logs.places import Position
from supervisor.processes.logs.sinks import Journald, Origin, Sink, StandardOutput, Syslog

WEB = Origin("we b", "stderr")


@pytest.mark.parametrize(
    ("text", "lines", "rest"),
    [
        (b"", [], b""),
        (b"a\nb", [b"a"], b"b"),
        (b"a\n\nb\n", [b"a", b"", b"b"], b""),
        (b"\x1b[m\xff\n\r\n", [b"\x1b[m\xff", b"\r"], b""),
        (b"abcdefgh\n", [b"abcd", b"efgh"], b""),
        (b"abcdefghi\nj", [b"abcd", b"efgh", b"i"], b"j"),
        (b"abcdefghi", [b"abcd", b"efgh"], b"i"),
        (b"abcdefgh", [b"abcd"], b"efgh"),
    ],
)
def test_text_is_split_into_lines_and_long_lines_into_pieces(text: bytes, lines: list[bytes], rest: bytes) -> None:
    assert split_lines(text, 4) == (lines, rest)


@pytest.mark.parametrize(
    ("as_json", "expected"),
    [
        (False, rb"we b \| \x1b\[1mbold\xff\n"),
        (True, rb'\{"time": "[-0-9T:.]+Z", "process": "we b", "stream": "stderr", "message": ".*bold\xef\xbf\xbd"\}\n'),
    ],
)
def test_standard_output_has_the_name_before_each_line(as_json: bool, expected: bytes) -> None:
    reader, writer = os.pipe()
    try:
        assert StandardOutput(as_json, writer).send(WEB, [b"\x1b[1mbold\xff"]) == (1, 0)
        assert re.fullmatch(expected, os.read(reader, 1000))
    finally:
        os.close(reader)
        os.close(writer)


def test_stalled_standard_output_accepts_lines_later_and_none_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_sinks, "_WRITE_SECONDS", 0.01)
    reader, writer = os.pipe()
    try:
        os.set_blocking(reader, False)
        lines = [b"%05d" % n * 10 for n in range(5000)]
        expected = b"".join(b"we b | " + line + b"\n" for line in lines)
        sink, received, rounds = StandardOutput(False, writer), b"", 0
        while len(received) < len(expected):
            done, lost = sink.send(WEB, lines)
            lines, rounds = lines[done:], rounds + 1
            assert lost == 0
            with contextlib.suppress(BlockingIOError):
                received += os.read(reader, 1 << 20)
        assert received == expected
        assert rounds > 2
    finally:
        os.close(reader)
        os.close(writer)


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind(str(tmp_path / "socket"))
        one.settimeout(30)
        yield one


def test_journald_gets_its_native_protocol(
    receiver: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_sinks, "_JOURNAL_SOCKET", str(tmp_path / "socket"))
    with contextlib.closing(Journald()) as sink:
        assert sink.send(WEB, [b"<3>no\xff", b"x" * 65536]) == (2, 0)
    message = receiver.recv(1 << 20)
    assert message == (
        b"PRIORITY=3\nSYSLOG_IDENTIFIER\n\x04\0\0\0\0\0\0\0we b\nPILOTHOUSE_STREAM\n\x06\0\0\0\0\0\0\0stderr\n"
        b"MESSAGE\n\x03\0\0\0\0\0\0\0no\xff\n"
    )
    assert receiver.recv(1 << 20).startswith(b"PRIORITY=6\n")


def test_syslog_gets_rfc_5424(receiver: socket.socket, tmp_path: Path) -> None:
    with contextlib.closing(Syslog(str(tmp_path / "socket"))) as sink:
        assert sink.send(WEB, [b"<2>a <b>", b"plain"]) == (2, 0)
    pattern = rb"<%d>1 \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z \S+ we_b - stderr - %s"
    assert re.fullmatch(pattern % (26, b"a <b>"), receiver.recv(1 << 20))
    assert re.fullmatch(pattern % (30, b"plain"), receiver.recv(1 << 20))


def test_send_to_a_missing_socket_raises_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Syslog(str(tmp_path / "missing")).send(WEB, [b"x"])


class FailingSink(Sink):
    """Raises each of `errors` once, then accepts all lines."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.lines: list[bytes] = []

    def send(self, origin: Origin, lines: Sequence[bytes]) -> tuple[int, int]:
        if self.errors:
            raise self.errors.pop(0)
        self.lines += lines
        return len(lines), 0


@contextlib.asynccontextmanager
async def forwarding(folder: Path, logs: LogFiles, sink: Sink, backups: int = 1) -> AsyncIterator[LogForwarder]:
    """A forwarder of the file `log` in that folder."""
    path = folder / "log"
    path.touch()
    forwarder = LogForwarder(logs, lambda _: sink, folder / "positions")
    await forwarder.refresh(
        {
            "web": ProcessSpec(
                "web",
                ("x",),
                log_forward=LogForward.STDOUT,
                stdout_logfile=str(path),
                log_backups=backups,
                log_max_bytes=Size(10),
            )
        }
    )
    yield forwarder
    await forwarder.close()


def test_forwarding_from_a_file_that_hangs_begins_when_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the start of the server nor its loop waits for the file."""
    answers = threading.Event()

    def hanging(path: str) -> int:
        assert threading.current_thread() is not threading.main_thread()
        answers.wait()
        return real(path)

    real = log_files.size_of
    monkeypatch.setattr(log_threads, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(log_files, "size_of", hanging)
    (tmp_path / "log").write_bytes(b"before\n")

    async def work() -> None:
        sink = FailingSink()
        try:
            async with forwarding(tmp_path, LogFiles(list), sink) as forwarder:
                assert [source.place for source in forwarder._sources.values()] == [None]
                forwarder.start()
                answers.set()
                await until(lambda: all(source.place is not None for source in forwarder._sources.values()))
                with (tmp_path / "log").open("ab") as file:
                    file.write(b"after\n")
                await until(lambda: sink.lines == [b"after"])
        finally:
            answers.set()

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_file_whose_watch_does_not_begin_in_time_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_forwarding, "_RETRY_SECONDS", 0.01)
    (tmp_path / "log").write_bytes(b"before\n")

    async def work() -> None:
        logs, sink, read = LogFiles(list), FailingSink(), asyncio.Event()
        run_each, read_on = logs.threads.run_each, logs.read_on

        async def unanswered(*_: object) -> dict[str, object]:
            monkeypatch.setattr(logs.threads, "run_each", run_each)
            return {}

        async def noted(path: str, place: Position) -> bytes:
            added = await read_on(path, place)
            read.set()
            return added

        monkeypatch.setattr(logs.threads, "run_each", unanswered)
        monkeypatch.setattr(logs, "read_on", noted)
        async with forwarding(tmp_path, logs, sink) as forwarder:
            forwarder.start()
            await read.wait()
            with (tmp_path / "log").open("ab") as file:
                file.write(b"after\n")
            await until(lambda: sink.lines == [b"after"])

    asyncio.run(asyncio.wait_for(work(), 60))


def test_forwarding_survives_errors_of_unexpected_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_forwarding, "_RETRY_SECONDS", 0.01)
    with pytest.raises(UnicodeError) as bad_host:
        Syslog("udp://a..b:514").send(WEB, [b"x"])

    async def work() -> None:
        sink = FailingSink(bad_host.value, RuntimeError("odd"))
        async with forwarding(tmp_path, LogFiles(list), sink) as forwarder:
            forwarder.start()
            (tmp_path / "log").write_bytes(b"one\ntwo\n")
            await until(lambda: sink.lines == [b"one", b"two"])

    asyncio.run(asyncio.wait_for(work(), 30))
    assert f"accepts no lines: {bad_host.value}" in caplog.text
    assert f"unexpected error while forwarding {tmp_path / 'log'}" in caplog.text


@pytest.mark.parametrize(
    ("backups", "restarted", "lost"),
    [(0, False, 60), (1, False, 50), (2, False, 30), (3, False, 0), (2, True, 30), (3, True, 0)],
)
def test_bytes_lost_by_rotation_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, backups: int, restarted: bool, lost: int
) -> None:
    """10 bytes were forwarded; then 30, 20 and 10 bytes are written and rotated, the first before a restart if any."""
    path, sink = tmp_path / "log", FailingSink()
    logs = LogFiles(lambda: [LogFile(str(path), 10, backups)])

    async def write_and_rotate(size: int) -> None:
        with path.open("ab") as file:
            file.write(b"x" * (size - 1) + b"\n")
        await logs.rotate()

    async def work() -> None:
        nonlocal logs
        async with forwarding(tmp_path, logs, sink, backups) as forwarder:
            path.write_bytes(b"forwarded\n")
            await forwarder._round(None)
        if restarted:
            await write_and_rotate(30)
            logs = LogFiles(lambda: [LogFile(str(path), 10, backups)])
        async with forwarding(tmp_path, logs, sink, backups) as forwarder:
            for size in (20, 10) if restarted else (30, 20, 10):
                await write_and_rotate(size)
            path.write_bytes(b"end\n")
            while b"end" not in sink.lines:
                forwarder.opened([str(path)])
                await forwarder._round(None)
            assert forwarder.lost_bytes["web"] == lost

    asyncio.run(asyncio.wait_for(work(), 30))
    assert sum(len(line) + 1 for line in sink.lines) == 74 - lost
    assert caplog.text.count(f"web: 0 lines and {lost} bytes were lost before they were forwarded") == bool(lost)


COUNT = "n=0; while test $n -lt 200; do n=$((n+1)); echo $n; sleep 0.01; done; exec sleep 1000"
FLOOD = "seq 1 100000; printf 'without end'; exec sleep 1000"


@pytest.fixture(scope="module")
def udp() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        one.settimeout(30)
        yield one


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, udp: socket.socket) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("forwarding")
    processes: dict[str, dict[str, Any]] = {
        "counter": {"command": ["sh", "-c", COUNT], "log-forward": "syslog", "log-max-bytes": "256", "log-backups": 20},
        "flood": {"command": ["sh", "-c", FLOOD], "log-forward": "stdout"},
        "to-journal": {"command": ["sh", "-c", "echo hello; exec sleep 1000"], "log-forward": "journald"},
    }
    settings = {"syslog": f"udp://127.0.0.1:{udp.getsockname()[1]}"}
    command = changed_constants.server_command(
        supervisor__processes__logs__sinks___JOURNAL_SOCKET=str(folder / "journal")
    )
    config = {"server": settings, "supervisor": {"log": "capture", "processes": processes}}
    server = Server(folder, config, {}, command)
    yield server.start()
    server.close()


def test_no_line_is_lost_by_rotation_and_kill_9(server: Server, udp: socket.socket) -> None:
    server.do("start", "counter")
    numbers: set[int] = set()

    def receive(until: int) -> None:
        while until not in numbers:
            numbers.add(int(udp.recv(1 << 16).rpartition(b" ")[2]))

    receive(50)
    server.kill()
    server.start()
    receive(200)
    assert numbers == set(range(1, 201))
    wait_for((server.data / "logs" / "counter.out.1").exists)


def test_a_flood_is_forwarded_whole_while_the_server_answers(server: Server) -> None:
    server.do("start", "flood")
    wait_for(lambda: server.get("/healthz").status == 200 and "flood | without end" in server.log.read_text())
    numbers = re.findall(r"^flood \| (\d+)$", server.log.read_text(), re.MULTILINE)
    assert numbers == list(map(str, range(1, 100_001)))


def test_lines_wait_for_a_missing_sink(server: Server) -> None:
    server.do("start", "to-journal")
    wait_for(lambda: "logs: journald accepts no lines: No such file or directory" in server.log.read_text())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind(str(server.folder / "journal"))
        one.settimeout(30)
        assert b"hello" in one.recv(1 << 16)
    wait_for(lambda: "logs: journald accepts lines again" in server.log.read_text())
