"""Forwarding of logs: the formats of the sinks, a kill -9 of the server, a flood, a sink that is not there."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import altered
import pytest
from conftest import Server, wait_for

from supervisor.processes import log_sinks
from supervisor.processes.log_forwarding import split_lines
from supervisor.processes.log_sinks import Journald, Origin, StandardOutput, Syslog

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
def test_text_is_split_into_lines_and_long_ones_into_pieces(text: bytes, lines: list[bytes], rest: bytes) -> None:
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


def test_a_stalled_standard_output_takes_lines_later_and_none_twice(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_missing_socket_takes_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Syslog(str(tmp_path / "missing")).send(WEB, [b"x"])


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
    command = altered.command(supervisor__processes__log_sinks___JOURNAL_SOCKET=str(folder / "journal"))
    config = {"server": settings, "supervisor": {"log": "capture", "processes": processes}}
    server = Server(folder, config, {}, command)
    yield server.start()
    server.close()


def test_no_line_is_passed_over_by_rotation_and_kill_9(server: Server, udp: socket.socket) -> None:
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
    assert (server.data / "logs" / "counter.out.1").exists()


def test_a_flood_is_forwarded_whole_while_the_server_answers(server: Server) -> None:
    server.do("start", "flood")
    wait_for(lambda: server.get("/healthz").status == 200 and "flood | without end" in server.log.read_text())
    numbers = re.findall(r"^flood \| (\d+)$", server.log.read_text(), re.MULTILINE)
    assert numbers == list(map(str, range(1, 100_001)))


def test_lines_wait_for_a_sink_that_is_not_there(server: Server) -> None:
    server.do("start", "to-journal")
    wait_for(lambda: "logs: journald takes no lines: No such file or directory" in server.log.read_text())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind(str(server.folder / "journal"))
        one.settimeout(30)
        assert b"hello" in one.recv(1 << 16)
    wait_for(lambda: "logs: journald takes lines again" in server.log.read_text())
