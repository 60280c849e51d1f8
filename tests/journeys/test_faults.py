"""Supervision with a locked store, a full disk, no free descriptors, a clock that jumps, and during shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import http.client
import itertools
import json
import os
import signal
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import Answer, Serve, Server, children_of, is_alive, wait_for
from requirements import MOUNTING

from models.config.loader import load
from models.paging import Paging
from models.supervision import events
from models.supervision.events import Filter
from models.supervision.process import Status
from supervisor.clock import Clock
from supervisor.services import open_services

SLEEPER = {"command": "sleep 1000"}
CRASHER = {
    "command": ["sh", "-c", "sleep 0.05; exit 3"],
    "restart": "always",
    "restart-delay": "20ms",
    "restart-max-delay": "20ms",
    "restart-limit": 0,
}


def stubborn(ready: Path) -> dict[str, Any]:
    return {"command": ["sh", "-c", f"trap '' TERM; : > {ready}; exec sleep 1000"]}


@contextlib.contextmanager
def locked(server: Server) -> Iterator[None]:
    """Locks the store, as another program would."""
    store = sqlite3.connect(server.data / "pilothouse.db", isolation_level=None, timeout=10)
    store.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        store.execute("ROLLBACK")
        store.close()


class PendingRequest:
    """A request in a thread."""

    def __init__(self, ask: Callable[[], Answer]) -> None:
        self.answer: Answer | None = None
        self._ask = ask
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            self.answer = self._ask()

    def wait(self) -> Answer | None:
        self._thread.join()
        return self.answer


def is_continuous(history: list[dict[str, Any]]) -> bool:
    """Whether each event begins where the one before it ended, with growing ids."""
    pairs = list(itertools.pairwise(history))
    return bool(pairs) and all(a["newStatus"] == b["oldStatus"] and a["id"] < b["id"] for a, b in pairs)


def whole_history(server: Server) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        path = f"/api/v1/events/by-process/crasher?size=100&sortBy=id&sortDirection=asc&page={len(found) // 100}"
        page = server.get(path).json
        found += page["content"]
        if page["last"]:
            return found


# The store


def test_supervision_continues_while_another_program_locks_the_store(serve: Serve) -> None:
    server = serve({"crasher": CRASHER, "web": SLEEPER})
    server.do("start", "crasher")
    stream = server.stream("/api/v1/processes/stream")
    with locked(server):
        pids = {server.info("crasher")["pid"]}
        before = whole_history(server)[-1]["id"]
        wait_for(lambda: server.get("/readyz").status == 503)
        assert server.get("/healthz").status == 200

        def restarts() -> bool:
            pids.add(server.info("crasher")["pid"])
            for path in ("/api/v1/processes", "/api/v1/events", "/api/v1/events/count", "/metrics"):
                assert server.get(path).status == 200
            return len(pids - {None}) > 3

        wait_for(restarts)
        start = PendingRequest(lambda: server.do("start", "web"))
        assert is_alive(wait_for(lambda: server.info("web")["pid"]))
        wait_for(lambda: server.status("web") == "running")
        assert start.answer is None  # its change is not stored yet
        assert whole_history(server)[-1]["id"] <= before + 5
    answer = start.wait()
    assert answer is not None
    assert answer.status == 200
    wait_for(lambda: server.get("/readyz").status == 200)
    assert server.do("stop", "crasher").status == 200
    history = whole_history(server)
    assert is_continuous(history)
    assert pids - {None} <= {event["pid"] for event in history}
    assert server.new_statuses("web") == ["starting", "running"]
    last = server.get("/api/v1/events?size=1&sortBy=eventTime").json["content"][0]["id"]
    ids = list[int]()
    while not ids or ids[-1] < last:
        ids.append(int(stream.next()["id"]))
    stream.close()
    assert ids == list(range(ids[0], last + 1))


def test_start_is_503_if_the_store_stays_locked(serve: Serve) -> None:
    server = serve({"web": SLEEPER})
    with locked(server):
        answer = server.do("start", "web")
        assert answer.status == 503
        assert set(answer.json) == {"timestamp", "path", "error", "message", "code"}
        assert server.status("web") == "running"
    wait_for(lambda: server.get("/readyz").status == 200)
    assert server.new_statuses("web") == ["starting", "running"]
    assert server.do("stop", "web").status == 200


def test_children_are_adopted_after_a_kill_with_a_locked_store(serve: Serve) -> None:
    server = serve({"web": SLEEPER})
    with locked(server):
        start = PendingRequest(lambda: server.do("start", "web"))
        pid = wait_for(lambda: server.info("web")["pid"])
        wait_for(lambda: children_of(server.data) == [pid], about="its command: before that it ends with the server")
        server.kill()
        assert start.wait() is None
    server.start()
    assert server.until("web", "running")["pid"] == pid
    assert children_of(server.data) == [pid]
    assert server.new_statuses("web") == ["starting", "running"]


def test_children_are_adopted_by_a_start_with_a_locked_store(serve: Serve) -> None:
    server = serve({"web": SLEEPER, "dead": SLEEPER})
    server.post("/api/v1/processes/group/start")
    pid, dead = server.info("web")["pid"], server.info("dead")["pid"]
    server.kill()
    os.kill(dead, signal.SIGKILL)
    wait_for(lambda: not is_alive(dead))
    with locked(server):
        server.start()
        assert server.info("web")["pid"] == pid
        assert server.status("dead") == "unknown"
        assert server.new_statuses("dead") == ["starting", "running"]
        wait_for(lambda: server.get("/readyz").status == 503)
    wait_for(lambda: server.get("/readyz").status == 200)
    assert server.new_statuses("dead") == ["starting", "running", "unknown"]
    assert server.new_statuses("web") == ["starting", "running"]


class FullDisk:
    """A small file system for the data directory, which the test fills."""

    def __init__(self, server: Server) -> None:
        self.server = server
        server.data.mkdir(mode=0o700)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(server.data)], check=True)

    def fill(self) -> None:
        with (self.server.data / "filler").open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"\0" * 1024)

    def free(self) -> None:
        (self.server.data / "filler").unlink()

    def close(self) -> None:
        self.server.close()
        subprocess.run(["umount", "-l", str(self.server.data)], check=True)


class FullFiles:
    """Lets no file of the server grow: like a full disk, where mounting is impossible."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def _limit(self, size: str) -> None:
        subprocess.run(["prlimit", f"--pid={self.server.pid}", f"--fsize={size}:"], check=True)

    def fill(self) -> None:
        self._limit(str((self.server.data / "pilothouse.db-wal").stat().st_size))

    def free(self) -> None:
        self._limit("unlimited")

    def close(self) -> None:
        self.server.close()


@pytest.mark.parametrize("disk", [FullFiles, pytest.param(FullDisk, marks=pytest.mark.needs(MOUNTING))])
def test_supervision_continues_while_the_disk_is_full(serve: Serve, disk: type[FullDisk | FullFiles]) -> None:
    server = serve({"crasher": CRASHER, "web": SLEEPER}, wait=False)
    full = disk(server)
    try:
        server.start()
        server.do("start", "crasher")

        def is_full() -> bool:
            full.fill()  # again: the server gives its reserve back, and shortens what it has
            return server.get("/readyz").status == 503

        wait_for(is_full, about="a full disk")
        start = PendingRequest(lambda: server.do("start", "web"))
        wait_for(lambda: server.status("web") == "running")
        pids = set[int | None]()
        while len(pids) < 8:
            pids.add(server.info("crasher")["pid"])
            assert server.get("/api/v1/processes").status == 200
            assert server.get("/api/v1/events").status == 200
        full.free()
        answer = start.wait()
        assert answer is not None
        assert answer.status in (200, 503)
        wait_for(lambda: server.get("/readyz").status == 200)
        assert server.do("stop", "crasher").status == 200
        history = whole_history(server)
        assert is_continuous(history)
        assert pids - {None} <= {event["pid"] for event in history}
        assert server.new_statuses("web") == ["starting", "running"]
        assert "Traceback" not in server.log.read_text()
        assert server.stop() == 0
    finally:
        full.close()


# Descriptors


class Connection:
    """A persistent connection, for a server that cannot accept another."""

    def __init__(self, server: Server) -> None:
        self.kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)

    def ask(self, method: str, path: str) -> Any:
        self.kept.request(method, path)
        response = self.kept.getresponse()
        text = response.read()
        return response.status, json.loads(text)


def test_start_without_free_descriptors_fails_with_the_reason(serve: Serve) -> None:
    names = [f"p{number}" for number in range(60)]
    server = serve(dict.fromkeys(names, SLEEPER), command=["prlimit", "--nofile=40:40"])
    with contextlib.closing(Connection(server).kept) as kept:
        connection = Connection(server)
        connection.kept = kept
        status, body = connection.ask("POST", "/api/v1/processes/group/start")
        assert status == 500
        assert body["code"] == "START_FAILED"
        _, listing = connection.ask("GET", "/api/v1/processes")
        failed = [one for one in listing if one["status"] == "failed_to_start"]
        running = [one for one in listing if one["status"] == "running"]
        assert len(running) + len(failed) == 60
        assert len(running) > 5
        assert len(failed) > 5
        assert all("Too many open files" in one["failedErrorLog"] for one in failed)
        assert sorted(children_of(server.data)) == sorted(one["pid"] for one in running)

        os.kill(running[0]["pid"], signal.SIGKILL)  # exits are still noticed
        wait_for(
            lambda: connection.ask("GET", f"/api/v1/processes/info/{running[0]['name']}")[1]["status"] == "aborted"
        )
        status, _ = connection.ask("POST", f"/api/v1/processes/stop/{running[1]['name']}")
        assert status == 200
        status, _ = connection.ask("POST", "/api/v1/processes/group/stop")
        assert status == 200
    assert server.do("start", failed[0]["name"]).status == 200
    assert server.info(failed[0]["name"])["failedErrorLog"] is None
    assert server.stop() == 0


def test_connections_that_wait_for_a_descriptor_cost_no_cpu_time(serve: Serve) -> None:
    server = serve({f"p{number}": SLEEPER for number in range(60)}, command=["prlimit", "--nofile=40:40"])
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as kept:
        kept.request("POST", "/api/v1/processes/group/start")
        assert kept.getresponse().read()
        idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(5)]
        waiting = PendingRequest(lambda: server.get("/healthz"))
        wait_for(lambda: "connections wait" in server.log.read_text())
        program, size = psutil.Process(server.pid), server.log.stat().st_size
        before, end = program.cpu_times(), time.monotonic() + 1
        while time.monotonic() < end:
            kept.request("GET", "/healthz")
            assert kept.getresponse().read().startswith(b'{"status":"UP",')
            time.sleep(0.1)
        after = program.cpu_times()
        assert after.user + after.system - before.user - before.system < 0.5
        assert server.log.stat().st_size - size < 10_000
        kept.request("POST", "/api/v1/processes/group/stop")
        assert kept.getresponse().read()
    answer = waiting.wait()
    assert answer is not None
    assert answer.status == 200
    for connection in idle:
        connection.close()
    assert server.stop() == 0


# The clock


class JumpingClock(Clock):
    jump = 0

    def now(self) -> int:
        return super().now() + self.jump


HOUR = 3600 * 1_000_000


@pytest.mark.parametrize("jump", [-50 * 365 * 24 * HOUR, -HOUR, HOUR, 100 * 365 * 24 * HOUR])
def test_uptime_does_not_depend_on_clock_jumps(tmp_path: Path, jump: int) -> None:
    file = tmp_path / "pilothouse.yaml"
    config = {"supervisor": {"processes": {"web": SLEEPER}}, "server": {"data-dir": str(tmp_path / "data")}}
    file.write_text(json.dumps(config))
    clock = JumpingClock()

    async def run_process() -> list[events.StatusEvent]:
        async with open_services(load(file, {}), lambda: load(file, {}), clock=clock) as services:
            await services.supervision.fleet.start("web")
            web = services.supervision.fleet.get("web")
            clock.jump = jump
            assert 0 <= web.uptime() < HOUR // 2
            await services.supervision.fleet.restart("web")
            assert 0 <= web.uptime() < HOUR // 2
            clock.jump = 0
            assert 0 <= web.uptime() < HOUR // 2
            await services.supervision.fleet.stop("web")
            return list(events.page(Paging(0, 100, "id", descending=False), Filter()).content)

    try:
        history = asyncio.run(run_process())
    finally:
        ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)  # this process is no longer a subreaper
    assert [entry.new for entry in history] == [
        Status.STARTING, Status.RUNNING, Status.STOPPING, Status.STOPPED,
        Status.STARTING, Status.RUNNING, Status.STOPPING, Status.STOPPED,
    ]  # fmt: skip
    assert all(0 <= entry.uptime < 20_000_000 for entry in history)
    assert history[3].uptime > 0


@pytest.mark.parametrize("is_live", [True, False], ids=["live", "ended"])
def test_start_time_in_the_future_gives_no_negative_runtime(serve: Serve, is_live: bool) -> None:
    server = serve({"web": SLEEPER})
    server.do("start", "web")
    pid = server.info("web")["pid"]
    server.kill()
    if not is_live:
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not is_alive(pid))
    with contextlib.closing(sqlite3.connect(server.data / "pilothouse.db")) as store, store:
        store.execute("UPDATE supervised SET start_time = start_time + ?", (365 * 24 * HOUR,))
    server.start()
    info = server.info("web")
    assert info["status"] == ("running" if is_live else "unknown")
    assert info["processRuntime"].startswith("PT")
    assert "-" not in info["processRuntime"] + info["processUptime"]
    assert "H" not in info["processRuntime"]


# Shutdown


def begin_shutdown(server: Server) -> None:
    """Sends SIGTERM and waits until the server is stopping."""
    assert server.process is not None
    server.process.send_signal(signal.SIGTERM)
    wait_for(lambda: ": stopping\n" in server.log.read_text())


def wait_for_exit(server: Server) -> int:
    assert server.process is not None
    return server.process.wait(30)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_child_that_ignores_the_stop_signal_is_killed_during_shutdown(
    serve: Serve, tmp_path: Path, number: int
) -> None:
    ready = tmp_path / "ready"
    server = serve({"mule": stubborn(ready) | {"stop-timeout": "300ms"}, "web": SLEEPER})
    server.post("/api/v1/processes/group/start")
    wait_for(ready.exists)
    assert server.stop(number) == 0
    assert children_of(server.data) == []
    server.start()
    assert server.new_statuses("mule") == ["starting", "running", "stopping", "aborted"]
    assert server.new_statuses("web") == ["starting", "running", "stopping", "stopped"]
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("second", [signal.SIGHUP, signal.SIGTERM], ids=["HUP", "TERM"])
def test_signal_during_shutdown_starts_no_process(serve: Serve, tmp_path: Path, second: int) -> None:
    ready = tmp_path / "ready"
    always = SLEEPER | {"auto-start": True, "restart": "always", "restart-delay": 0}
    mule = stubborn(ready) | {"stop-timeout": "700ms"}
    server = serve({"mule": mule, "web": always})
    server.do("start", "mule")
    wait_for(ready.exists)
    server.until("web", "running")
    server.configure({"supervisor": {"processes": {"mule": mule, "web": always, "new": always}}})
    begin_shutdown(server)
    for _ in range(3):
        assert server.process is not None
        server.process.send_signal(second)
    assert wait_for_exit(server) == 0
    assert children_of(server.data) == []
    assert "new" not in server.log.read_text()
    assert "Traceback" not in server.log.read_text()


def test_start_request_during_shutdown_is_503(serve: Serve, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    server = serve({"mule": stubborn(ready) | {"stop-timeout": "700ms"}, "web": SLEEPER})
    server.do("start", "mule")
    wait_for(ready.exists)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.connect()
    begin_shutdown(server)
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("POST", "/api/v1/processes/start/web")
        assert connection.getresponse().status == 503
    connection.close()
    assert wait_for_exit(server) == 0
    assert children_of(server.data) == []


@pytest.mark.parametrize("what", ["group/restart", "restart/mule"])
def test_restart_during_shutdown_leaves_nothing_running(serve: Serve, tmp_path: Path, what: str) -> None:
    ready = tmp_path / "ready"
    mule = stubborn(ready) | {"stop-timeout": "700ms"}
    server = serve({"mule": mule, "web": SLEEPER, "later": SLEEPER | {"order": 1}})
    server.post("/api/v1/processes/group/start")
    wait_for(ready.exists)
    restart = PendingRequest(lambda: server.post(f"/api/v1/processes/{what}"))
    wait_for(lambda: "stopping" in server.new_statuses("mule"), about="the stop, which may be over already")
    begin_shutdown(server)
    assert wait_for_exit(server) == 0
    restart.wait()
    assert children_of(server.data) == []
    assert "Traceback" not in server.log.read_text()


def test_child_of_an_entrypoint_is_not_stopped_with_the_server(tmp_path: Path) -> None:
    """An entrypoint starts a program and then executes the server in the same process."""
    entrypoint = ["sh", "-c", 'sleep 1000 & echo $! > sidecar; exec "$@"', "entrypoint"]
    server = Server(tmp_path, {"supervisor": {"processes": {"web": SLEEPER}}}, {}, entrypoint).start()
    server.do("start", "web")
    sidecar, web = int((tmp_path / "sidecar").read_text()), server.info("web")["pid"]
    assert server.stop() == 0
    try:
        assert is_alive(sidecar)
        assert not is_alive(web)
    finally:
        os.kill(sidecar, signal.SIGKILL)


def test_server_waits_no_longer_than_its_shutdown_timeout(serve: Serve, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    mule = stubborn(ready) | {"stop-timeout": "1h"}
    server = serve({"mule": mule, "web": SLEEPER}, server={"shutdown-timeout": "500ms"})
    server.post("/api/v1/processes/group/start")
    wait_for(ready.exists)
    pid = server.info("mule")["pid"]
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()
    server.configure({"supervisor": {"processes": {"mule": mule | {"stop-timeout": "200ms"}, "web": SLEEPER}}})
    server.start()
    wait_for(lambda: not is_alive(pid))
    assert server.until("mule", "aborted", "unknown")
    assert server.status("web") == "stopped"


def test_child_that_floods_its_output_and_ignores_signals_is_killed_by_shutdown(serve: Serve, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    spew = f"trap '' TERM INT HUP; : > {ready}; while :; do echo spew; done"
    server = serve({"spew": {"command": ["sh", "-c", spew], "stop-timeout": "300ms"}})
    server.do("start", "spew")
    wait_for(ready.exists)
    assert server.stop() == 0
    assert children_of(server.data) == []
    server.start()
    assert server.status("spew") == "aborted"
