"""The output of a process, read and followed over HTTP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import Answer, Serve, Server, Stream, python_command, wait_for

SLEEPER = {"command": "sleep 1000"}


def logs(server: Server, name: str, query: str = "") -> Answer:
    return server.get(f"/api/v1/processes/logs/{name}{query}")


def follow(server: Server, name: str, query: str = "") -> Stream:
    stream = server.stream(f"/api/v1/processes/logs/{name}{query}")
    assert stream.status == 200
    assert stream.headers["Content-Type"] == "text/event-stream"
    return stream


def lines_of(stream: Stream, count: int) -> list[str]:
    """The next `count` lines at least."""
    found: list[str] = []
    while len(found) < count:
        event = stream.next()
        assert event["event"] == "log"
        found += event["data"].split("\n")
    return found


def test_last_lines_of_the_output_of_a_process_are_returned(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "folder" / "out.log"
    server = serve({"web": {"command": ["seq", "1", "300"], "stdout-logfile": str(file)}})
    assert logs(server, "web").text == ""  # nothing was ever written
    server.do("start", "web")
    server.until("web", "finished")
    answer = logs(server, "web")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.text == "".join(f"{number}\n" for number in range(101, 301))
    assert logs(server, "web", "?lines=1").text == "300\n"
    assert logs(server, "web", "?lines=&stream=").text == answer.text
    assert logs(server, "web", "?lines=10000&stream=stdout").text.startswith("1\n2\n")
    file.unlink()
    assert logs(server, "web").text == ""


def test_stdout_and_stderr_have_separate_files_or_one_file(serve: Serve, tmp_path: Path) -> None:
    both = {"command": ["sh", "-c", "echo out; echo err >&2"]}
    apart = {"stdout-logfile": str(tmp_path / "out"), "stderr-logfile": str(tmp_path / "err")}
    together = {"stdout-logfile": str(tmp_path / "all"), "redirect-stderr": True}
    server = serve({"apart": both | apart, "together": both | together})
    server.post("/api/v1/processes/group/start")
    server.until("apart", "finished")
    server.until("together", "finished")
    assert logs(server, "apart").text == "out\n"
    assert logs(server, "apart", "?stream=stderr").text == "err\n"
    assert logs(server, "together").text == "out\nerr\n"
    assert logs(server, "together", "?stream=stderr").status == 404


REFUSED = [
    ("web", "?lines=0", 400, "VALIDATION_ERROR"),
    ("web", "?lines=10001", 400, "VALIDATION_ERROR"),
    ("web", "?lines=-1", 400, "VALIDATION_ERROR"),
    ("web", "?lines=many", 400, "VALIDATION_ERROR"),
    ("web", "?lines=1.5", 400, "VALIDATION_ERROR"),
    ("web", "?stream=stdin", 400, "VALIDATION_ERROR"),
    ("silent", "?lines=0", 400, "VALIDATION_ERROR"),
    ("web", "?stream=stderr", 404, "NOT_FOUND"),
    ("silent", "", 404, "NOT_FOUND"),
    ("nobody", "", 404, "PROCESS_NOT_FOUND"),
]


@pytest.mark.parametrize("accept", ["*/*", "text/event-stream"])
def test_invalid_log_request_is_refused_with_its_error_code(serve: Serve, tmp_path: Path, accept: str) -> None:
    server = serve({"web": SLEEPER | {"stdout-logfile": str(tmp_path / "out")}, "silent": SLEEPER})
    for name, query, status, code in REFUSED:
        answer = server.get(f"/api/v1/processes/logs/{name}{query}", Accept=accept)
        assert (answer.status, answer.json["code"]) == (status, code), (name, query)
        assert set(answer.json) == {"timestamp", "path", "error", "message", "code"}


def test_follower_gets_the_last_lines_and_then_every_added_line(serve: Serve, tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"seq 1 50; while [ ! -e {go} ]; do sleep 0.02; done; seq 51 5000; sleep 1000"
    server = serve({"web": {"command": ["sh", "-c", code], "stdout-logfile": str(tmp_path / "out")}})
    server.do("start", "web")
    wait_for(lambda: logs(server, "web", "?lines=1").text == "50\n")
    stream = follow(server, "web", "?lines=10")
    assert lines_of(stream, 10) == [str(number) for number in range(41, 51)]
    go.touch()
    assert lines_of(stream, 4950) == [str(number) for number in range(51, 5001)]
    stream.close()


def test_follower_gets_every_line_once_across_rotations(serve: Serve, tmp_path: Path) -> None:
    """The writer is so slow that hardly a line is lost between copy and truncation."""
    out = tmp_path / "out"
    code = "import sys, time\nfor n in range(550): print(n, 'x' * 100, flush=True); time.sleep(0.01)\ntime.sleep(1000)"
    spec = {"command": python_command(code), "stdout-logfile": str(out), "log-max-bytes": "10K", "log-backups": 3}
    server = serve({"web": spec})
    server.do("start", "web")
    stream = follow(server, "web", "?lines=10000")
    received = list[int]()
    while received[-1:] != [549]:
        received += [int(line.split()[0]) for line in lines_of(stream, 1)]
    stream.close()
    assert sorted(set(received)) == received  # in order, none twice
    assert len(received) >= 545  # one may be lost at each rotation (supervision.md)
    assert (tmp_path / "out.1").stat().st_size >= 10 * 1024
    assert out.stat().st_size < 10 * 1024 * 2


def test_log_that_is_written_fast_stays_below_twice_its_limit(serve: Serve, tmp_path: Path) -> None:
    """32 MB/s for longer than the interval of the periodic check, with which alone it would be ten times its limit.

    A writer that was delayed does not catch up: the rate would be higher then.
    """
    out, largest = tmp_path / "out", tmp_path / "largest"
    code = f"""
import os, time
block, largest = b"x" * 65535 + b"\\n", 0
for _ in range(2560):
    os.write(1, block)
    largest = max(largest, os.fstat(1).st_size)
    time.sleep(1 / 512)
open({str(largest)!r}, "w").write(str(largest))
"""
    limit = 16 * 1024 * 1024
    spec = {"command": python_command(code), "stdout-logfile": str(out), "log-max-bytes": limit, "log-backups": 1}
    server = serve({"web": spec})
    server.do("start", "web")
    wait_for(lambda: largest.exists() and largest.read_text(), 60)
    assert limit // 2 <= int(largest.read_text()) < 2 * limit


def test_bytes_that_are_not_utf8_do_not_end_a_log_stream(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"\xff\xfe bytes \x00\n" + "größe ☃\n".encode())
    code = f"cat {tmp_path / 'text'}; exec sleep 1000"
    server = serve({"web": {"command": ["sh", "-c", code], "stdout-logfile": str(tmp_path / "out")}})
    server.do("start", "web")
    wait_for(lambda: "☃" in logs(server, "web").text)
    assert logs(server, "web").text == "\ufffd\ufffd bytes \x00\ngröße ☃\n"
    stream = follow(server, "web")
    assert lines_of(stream, 2) == ["\ufffd\ufffd bytes \x00", "größe ☃"]
    stream.close()


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"], ids=ascii)
def test_only_a_newline_ends_a_line_of_a_stream(serve: Serve, tmp_path: Path, separator: str) -> None:
    out = tmp_path / "out"
    out.write_text(f"one{separator}line\nanother\n")
    server = serve({"web": SLEEPER | {"stdout-logfile": str(out)}})
    stream = follow(server, "web")
    assert lines_of(stream, 2) == [f"one{separator}line", "another"]
    stream.close()


def test_disconnected_followers_leave_no_file_or_thread_open(serve: Serve, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("hello\n" * 1000)
    server = serve({"web": SLEEPER | {"stdout-logfile": str(out)}})
    program = psutil.Process(server.pid)

    def connect_and_disconnect() -> None:
        streams = [follow(server, "web", "?lines=500") for _ in range(20)]
        for stream in streams[::2]:
            stream.next()
        for stream in streams:
            stream.close()
        wait_for(lambda: metric(server, "pilothouse_streams_open") == 0)

    for _ in range(3):
        connect_and_disconnect()
    files, threads = program.num_fds(), program.num_threads()
    for _ in range(3):
        connect_and_disconnect()
    wait_for(lambda: program.num_fds() <= files)
    assert program.num_threads() <= max(threads, 8)
    wait_for(lambda: str(out) not in {one.path for one in program.open_files()})
    assert "Traceback" not in server.log.read_text()
    assert "never retrieved" not in server.log.read_text()


def metric(server: Server, name: str) -> float:
    line = next(line for line in server.get("/metrics").text.splitlines() if line.startswith(f"{name} "))
    return float(line.split()[1])


def test_follower_that_does_not_read_delays_no_other_follower(serve: Serve, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"".join(b"%07d %s\n" % (number, b"x" * 1000) for number in range(10_000)))
    server = serve({"web": SLEEPER | {"stdout-logfile": str(out)}})
    idle = [follow(server, "web", "?lines=10000") for _ in range(3)]
    stream = follow(server, "web", "?lines=1")
    assert lines_of(stream, 1)[0].startswith("0009999 ")
    with out.open("a") as file:
        file.write("added\n")
    assert lines_of(stream, 1) == ["added"]
    for one in [*idle, stream]:
        one.close()
    wait_for(lambda: metric(server, "pilothouse_streams_open") == 0)
    assert "Traceback" not in server.log.read_text()
    assert "never retrieved" not in server.log.read_text()


def test_a_stream_of_a_log_ends_with_the_server(serve: Serve, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("hello\n")
    server = serve({"web": SLEEPER | {"stdout-logfile": str(out)}})
    stream = follow(server, "web")
    assert lines_of(stream, 1) == ["hello"]
    assert server.stop() == 0
    with pytest.raises(EOFError):
        stream.next()
    stream.close()
    assert "Traceback" not in server.log.read_text()
    assert "never retrieved" not in server.log.read_text()


def test_start_fails_if_the_log_file_cannot_be_opened(serve: Serve, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "file").touch()
    specs: dict[str, Any] = {
        "folder": SLEEPER | {"stdout-logfile": str(tmp_path)},
        "pipe": SLEEPER | {"stdout-logfile": str(pipe)},
        "below": SLEEPER | {"stdout-logfile": str(tmp_path / "file" / "out")},
        "null": SLEEPER | {"stdout-logfile": os.devnull},
    }
    server = serve(specs)
    for name in ("folder", "pipe", "below"):
        assert server.do("start", name).status == 500
        info = server.info(name)
        assert info["status"] == "failed_to_start"
        assert str(tmp_path) in info["failedErrorLog"]
    assert server.do("start", "null").status == 200
    assert logs(server, "null").text == ""
    assert server.get("/healthz").status == 200
