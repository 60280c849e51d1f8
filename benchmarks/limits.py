"""Limits of the machine and of Python's standard library, measured in the same run.

As a program: the two HTTP servers that are measured, `hello` (Tornado's plainest JSON answer) and `bare` (an asyncio
protocol that answers the same bytes without reading: the ceiling of the load generator itself).
"""

import asyncio
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import tornado.web

from benchmarks.candidates import ROOT, free_port, until
from benchmarks.children import EndWatch, StartReports
from benchmarks.httpload import Target, hammer

Record = Callable[[str, float], None]
PATIENCE = 30.0


def measure(directory: Path, program: Path, children: int, seconds: float, record: Record) -> None:
    """Spawns and kills children in bulk, watches single ones, and calls two servers."""
    reports = StartReports(directory / "limit-words")
    command = [str(program), str(directory / "limit-words")]
    try:
        _bulk(reports, command, children, record)
        record("exit_notice", 1e6 * statistics.median(_exit_notices(reports, command, 60)))
        record("respawn", 1e3 * statistics.median(_respawns(reports, command, 30)))
    finally:
        reports.close()
    for name in ("hello", "bare"):
        _serve(name, seconds, record)


def _spawn(command: list[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)


def _bulk(reports: StartReports, command: list[str], children: int, record: Record) -> None:
    processes: list[subprocess.Popen[bytes]] = []
    begin = time.monotonic()
    try:
        processes += [_spawn(command) for _ in range(children)]
        record("spawn_rate", children / (time.monotonic() - begin))
        record("spawn_all", max(word.at for word in reports.collect(children, PATIENCE)) - begin)
        end_watch = EndWatch(child.pid for child in processes)
        begin = time.monotonic()
        for child in processes:
            os.killpg(child.pid, signal.SIGTERM)
        record("kill_all", end_watch.wait(PATIENCE) - begin)
    finally:
        _end(processes)


def _end(processes: list["subprocess.Popen[bytes]"]) -> None:
    for child in processes:
        child.kill()
        child.wait()


async def _exit(pid: int) -> float:
    """The second in which the loop called back for the end of `pid`."""
    loop = asyncio.get_running_loop()
    called: asyncio.Future[float] = loop.create_future()
    fd = os.pidfd_open(pid)

    def ended() -> None:
        loop.remove_reader(fd)
        called.set_result(time.monotonic())

    loop.add_reader(fd, ended)
    try:
        return await asyncio.wait_for(called, PATIENCE)
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def _exit_notices(reports: StartReports, command: list[str], count: int) -> list[float]:
    """Seconds from the child's last act to the callback."""

    async def notices() -> list[float]:
        found = []
        for _ in range(count):
            child = _spawn([*command, "once"])
            called = await _exit(child.pid)
            child.wait()
            found.append(called - reports.collect(1, PATIENCE)[0].at)
        return found

    return asyncio.run(notices())


def _respawns(reports: StartReports, command: list[str], count: int) -> list[float]:
    """Seconds from kill -9 over the callback to the replacement's first act: a restart and nothing else."""

    async def respawns() -> list[float]:
        found = []
        child = _spawn(command)
        try:
            reports.collect(1, PATIENCE)
            for _ in range(count):
                watched = asyncio.create_task(_exit(child.pid))
                await asyncio.sleep(0.003)
                begin = time.monotonic()
                child.kill()
                await watched
                old, child = child, _spawn(command)
                old.wait()
                found.append(reports.collect(1, PATIENCE)[0].at - begin)
        finally:
            _end([child])
        return found

    return asyncio.run(respawns())


def _serve(name: str, seconds: float, record: Record) -> None:
    port = free_port()
    server = subprocess.Popen([sys.executable, "-m", "benchmarks.limits", name, str(port)], cwd=ROOT)
    target = Target.get(port, "/")
    try:
        until(lambda: _answers(target), 15, name)
        one = hammer(target, 1, seconds)
        record(f"{name}_one", one.median)
        record(f"{name}_one_rate", one.rate)
        record(f"{name}_many", hammer(target, 8, seconds).rate)
    finally:
        server.kill()
        server.wait()


def _answers(target: Target) -> bool:
    assert isinstance(target.address, tuple)
    with socket.socket() as attempt:
        return attempt.connect_ex(target.address) == 0


class Hello(tornado.web.RequestHandler):
    def get(self) -> None:
        self.write({"message": "hello"})


class Bare(asyncio.Protocol):
    answer = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n{"message": "hello"}'

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(self.answer)


async def _server(name: str, port: int) -> None:
    if name == "hello":
        tornado.web.Application([("/", Hello)]).listen(port, "127.0.0.1")
    else:
        await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_server(sys.argv[1], int(sys.argv[2])))
