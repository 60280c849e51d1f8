"""The server is killed, its children continue, and the next server adopts them: nothing is lost or runs twice."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import os
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from conftest import Serve, Server, children_of, is_alive, python_command, tags_by_pid, wait_for

from models.supervision.process import Status
from supervisor.children import proc
from supervisor.children.tags import TAG_VARIABLE

SLEEPER = {"command": "sleep 1000"}


def stubborn(ready: Path) -> dict[str, Any]:
    """A process that ignores SIGTERM; it creates a file once it does."""
    return {"command": ["sh", "-c", f"trap '' TERM; : > {ready}; exec sleep 1000"]}


def kill_and_wait(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(pid))


def kill_and_restart(server: Server) -> Server:
    server.kill()
    return server.start()


def until_stored(server: Server, name: str, status: str) -> Any:
    """Waits until a process has this status and the store has its event; returns its info."""
    wait_for(lambda: server.new_statuses(name)[-1:] == [status], about=f"{name} to be {status}")
    return server.until(name, status)


def edit(server: Server, statement: str, *values: object) -> None:
    """Changes the store of a stopped server."""
    with contextlib.closing(sqlite3.connect(server.data / "pilothouse.db")) as store, store:
        assert store.execute(statement, values).rowcount == 1


@contextlib.contextmanager
def locked(server: Server) -> Iterator[None]:
    """Locks the store, as another program would."""
    with contextlib.closing(sqlite3.connect(server.data / "pilothouse.db", isolation_level=None, timeout=10)) as store:
        store.execute("BEGIN EXCLUSIVE")
        yield


def request_start(server: Server, name: str) -> None:
    """Requests a start from a server that is killed before it responds."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        server.do("start", name)


def tagged_pids(name: str, server: Server) -> list[int]:
    return [pid for pid in children_of(server.data) if tags_by_pid().get(pid, "").split(":", 2)[2:] == [name]]


@pytest.fixture
def unrelated_process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that no server started."""
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


# Adoption


@pytest.mark.parametrize("status", ["running", "healthy", "unhealthy"])
def test_child_is_adopted_with_its_pid_and_its_status(serve: Serve, tmp_path: Path, status: str) -> None:
    flag, check = tmp_path / "well", dict[str, Any]()
    if status != "running":
        probe = {"exec": {"command": ["test", "-e", str(flag)]}, "interval": "100ms", "failure-threshold": 1}
        check = {"health-check": probe}
    if status == "healthy":
        flag.touch()
    server = serve({"web": SLEEPER | check})
    assert server.do("start", "web").status == 200
    before = until_stored(server, "web", status)
    statuses = server.new_statuses("web")

    kill_and_restart(server)
    after = server.info("web")
    untouched = ("status", "pid", "startTime", "endTime", "exitCode")
    assert {key: after[key] for key in untouched} == {key: before[key] for key in untouched}
    assert server.new_statuses("web") == statuses
    wait_for(lambda: tagged_pids("web", server) == [before["pid"]], about="the end of the probe")


def test_health_checks_of_an_adopted_child_continue(serve: Serve, tmp_path: Path) -> None:
    flag = tmp_path / "well"
    flag.touch()
    check = {"exec": {"command": ["test", "-e", str(flag)]}, "interval": "100ms", "failure-threshold": 1}
    server = serve({"web": SLEEPER | {"health-check": check}})
    server.do("start", "web")
    pid = until_stored(server, "web", "healthy")["pid"]

    kill_and_restart(server)
    flag.unlink()
    assert server.until("web", "unhealthy")["pid"] == pid
    flag.touch()
    assert server.until("web", "healthy")["pid"] == pid
    assert server.new_statuses("web") == ["starting", "running", "healthy", "unhealthy", "healthy"]


def test_runtime_of_an_adopted_child_does_not_depend_on_the_wall_clock(serve: Serve) -> None:
    server = serve({"web": SLEEPER})
    server.do("start", "web")
    server.kill()
    edit(
        server, "UPDATE supervised SET start_time = start_time - 7200000000 WHERE name = 'web'"
    )  # the clock has jumped
    server.start()
    assert "H" not in server.info("web")["processRuntime"]
    assert server.info("web")["processRuntime"].startswith("PT")


# A process whose first thread has ended is a zombie to /proc, although it runs.
WITHOUT_FIRST_THREAD = python_command(
    "import ctypes, threading, time\n"
    "threading.Thread(target=time.sleep, args=(1000,)).start()\n"
    "ctypes.CDLL(None).pthread_exit(None)"
)


@pytest.mark.parametrize("is_stored", [True, False])
def test_child_whose_first_thread_has_ended_is_adopted(serve: Serve, is_stored: bool) -> None:
    server = serve({"web": {"command": WITHOUT_FIRST_THREAD, "auto-start": True}})
    pid = server.until("web", "running")["pid"]
    wait_for(lambda: not is_alive(pid), about="the end of the first thread")
    server.kill()
    if not is_stored:
        edit(server, "UPDATE supervised SET pid = NULL, status = ? WHERE name = 'web'", Status.STARTING.rank)
    server.start()
    assert server.until("web", "running")["pid"] == pid
    assert server.do("stop", "web").status == 200
    with contextlib.suppress(FileNotFoundError):  # it has been reaped
        assert not os.listdir(f"/proc/{pid}/task")[1:]


def test_the_environment_is_that_of_a_thread_where_the_first_has_ended(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve({"web": {"command": WITHOUT_FIRST_THREAD, "auto-start": True}})
    pid = server.until("web", "running")["pid"]
    wait_for(lambda: not is_alive(pid), about="the end of the first thread")
    assert TAG_VARIABLE.encode() in proc.environment(pid)
    read = proc._environ  # as Linux before 6.16: that of a zombie can be opened, and is empty
    monkeypatch.setattr(proc, "_environ", lambda folder: b"" if folder == f"/proc/{pid}" else read(folder))
    assert TAG_VARIABLE.encode() in proc.environment(pid)

    def refuse(folder: str) -> bytes:  # as later ones do to an ordinary user
        if folder == f"/proc/{pid}":
            raise PermissionError
        return read(folder)

    monkeypatch.setattr(proc, "_environ", refuse)
    assert TAG_VARIABLE.encode() in proc.environment(pid)
    monkeypatch.undo()
    assert server.do("stop", "web").status == 200
    assert proc.environment(pid) == b""


def test_the_environment_of_another_users_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "_environ", Mock(side_effect=PermissionError))
    with pytest.raises(PermissionError):
        proc.environment(os.getpid())


def test_children_are_adopted_after_each_kill_of_the_server(serve: Serve) -> None:
    server = serve({"web": SLEEPER, "db": SLEEPER})
    assert server.post("/api/v1/processes/group/start").status == 200
    pids = {one["name"]: one["pid"] for one in server.get("/api/v1/processes").json}
    for _ in range(3):
        kill_and_restart(server)
        assert {one["name"]: one["pid"] for one in server.get("/api/v1/processes").json} == pids
    assert sorted(children_of(server.data)) == sorted(pids.values())


def test_start_of_an_adopted_process_starts_no_second_child(serve: Serve) -> None:
    server = serve({"web": SLEEPER})
    server.do("start", "web")
    pid = server.info("web")["pid"]
    kill_and_restart(server)
    answer = server.do("start", "web")
    assert answer.status == 200
    assert str(pid) in answer.json["message"]
    assert server.post("/api/v1/processes/group/start").status == 409
    assert tagged_pids("web", server) == [pid]


def test_adopted_process_with_auto_start_is_not_started_twice(serve: Serve) -> None:
    server = serve({"web": SLEEPER | {"auto-start": True}, "new": SLEEPER})
    pid = server.until("web", "running")["pid"]
    server.configure(
        {"supervisor": {"processes": {"web": SLEEPER | {"auto-start": True}, "new": SLEEPER | {"auto-start": True}}}}
    )
    kill_and_restart(server)
    server.until("new", "running")  # auto-start has passed web, which comes first
    assert server.info("web")["pid"] == pid
    assert tagged_pids("web", server) == [pid]
    assert server.new_statuses("web") == ["starting", "running"]


def test_restart_replaces_an_adopted_child(serve: Serve) -> None:
    server = serve({"web": SLEEPER})
    server.do("start", "web")
    old = server.info("web")["pid"]
    kill_and_restart(server)
    assert server.do("restart", "web").status == 200
    new = server.info("web")["pid"]
    assert new != old
    assert tagged_pids("web", server) == [new]


# Exits


def test_adopted_child_is_stopped(serve: Serve) -> None:
    server = serve({"web": SLEEPER})
    server.do("start", "web")
    pid = server.info("web")["pid"]
    kill_and_restart(server)
    assert server.do("stop", "web").status == 200
    assert not is_alive(pid)
    info = server.info("web")
    assert (info["status"], info["exitCode"], info["pid"]) == ("stopped", 143, None)
    assert info["endTime"] is not None
    assert server.new_statuses("web") == ["starting", "running", "stopping", "stopped"]
    assert server.events("web")[-1]["pid"] == pid


def test_adopted_child_that_ignores_sigterm_is_killed_after_the_stop_timeout(serve: Serve, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    server = serve({"mule": stubborn(ready) | {"stop-timeout": "300ms"}})
    server.do("start", "mule")
    wait_for(ready.exists)
    pid = server.info("mule")["pid"]
    kill_and_restart(server)
    assert server.do("stop", "mule").status == 200
    assert not is_alive(pid)
    info = server.info("mule")
    assert (info["status"], info["exitCode"]) == ("aborted", 137)


def test_stop_of_an_adopted_child_ends_its_daemons(serve: Serve, tmp_path: Path) -> None:
    note = tmp_path / "daemon"
    server = serve(
        {"web": {"command": ["sh", "-c", f"setsid sleep 1000 & echo $! > {note}.new; mv {note}.new {note}; wait"]}}
    )
    server.do("start", "web")
    wait_for(note.exists)
    daemon = int(note.read_text())
    kill_and_restart(server)
    assert is_alive(daemon)
    assert server.do("stop", "web").status == 200
    assert not is_alive(daemon)


@pytest.fixture
def subreaper_without_reaping() -> Iterator[None]:
    """Orphans become children of this process and stay zombies, as in a container without an init process."""
    prctl = ctypes.CDLL(None).prctl
    assert prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
    yield
    prctl(36, 0, 0, 0, 0)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


@pytest.mark.usefixtures("subreaper_without_reaping")
def test_stopping_an_adopted_child_does_not_wait_until_it_is_reaped(serve: Serve) -> None:
    server = serve({"web": {**SLEEPER, "stop-timeout": "1h"}})
    server.do("start", "web")
    pid = server.info("web")["pid"]
    kill_and_restart(server)
    assert server.do("stop", "web").status == 200
    assert Path(f"/proc/{pid}/stat").exists()
    assert not is_alive(pid)
    assert server.status("web") == "stopped"
    assert "could not be ended" not in server.log.read_text()
    assert server.do("start", "web").status == 200


@pytest.mark.parametrize(
    ("how", "status", "code"),
    [
        (signal.SIGKILL, "aborted", 137),
        (signal.SIGTERM, "stopped", 143),
        (0, "finished", 0),
        (3, "failed", 3),
    ],
)
def test_exit_code_of_an_adopted_child_is_known(
    serve: Serve, tmp_path: Path, how: int | signal.Signals, status: str, code: int
) -> None:
    """Not a child of the new server: its zombie has the exit status or, once it is reaped, its pidfd."""
    file = tmp_path / "code"
    server = serve({
        "web": {"command": ["sh", "-c", f"while ! test -s {file}; do sleep 0.02; done; exit $(cat {file})"]},
        "kept": {
            "command": ["sh", "-c", f"while ! test -s {file}; do sleep 0.02; done; rm {file}.once || exec sleep 1000"
                        f"; exit $(cat {file})"],
            "restart": "on-failure", "restart-delay": "10ms",
        },
    })  # fmt: skip
    Path(f"{file}.once").touch()
    server.do("start", "web")
    server.do("start", "kept")
    pid = server.info("web")["pid"]
    kill_and_restart(server)
    if isinstance(how, signal.Signals):
        os.kill(pid, how)
    else:
        file.write_text(str(how))
    info = server.until("web", status)
    assert (info["exitCode"], info["pid"]) == (code, None)
    last = server.events("web")[-1]
    assert (last["newStatus"], last["oldStatus"], last["pid"], last["exitCode"]) == (status, "running", pid, code)
    if how == 3:
        wait_for(lambda: server.new_statuses("kept")[-3:] == ["failed", "starting", "running"])


def test_child_that_ended_without_a_server_is_unknown_with_one_event(serve: Serve) -> None:
    server = serve({"web": SLEEPER})
    server.do("start", "web")
    pid = server.info("web")["pid"]
    server.kill()
    kill_and_wait(pid)
    server.start()
    info = server.info("web")
    assert (info["status"], info["exitCode"], info["pid"]) == ("unknown", None, None)
    assert server.new_statuses("web") == ["starting", "running", "unknown"]
    assert server.events("web")[-1]["pid"] == pid
    kill_and_restart(server)
    assert server.stop() == 0
    server.start()
    assert server.new_statuses("web") == ["starting", "running", "unknown"]
    assert server.do("start", "web").status == 200


@pytest.mark.parametrize(
    ("policy", "statuses"),
    [
        ("never", ["starting", "running", "unknown"]),
        ("on-failure", ["starting", "running", "unknown"]),
        ("always", ["starting", "running", "unknown", "starting", "running"]),
    ],
)
def test_child_that_ended_without_a_server_is_restarted_once_by_its_policy(
    serve: Serve, policy: str, statuses: list[str]
) -> None:
    server = serve({"web": SLEEPER | {"restart": policy, "restart-delay": 0}})
    server.do("start", "web")
    old = server.info("web")["pid"]
    server.kill()
    kill_and_wait(old)
    server.start()
    wait_for(lambda: server.new_statuses("web") == statuses, about=f"{statuses}, not {server.new_statuses('web')}")
    kill_and_restart(server)
    assert server.new_statuses("web") == statuses
    assert len(tagged_pids("web", server)) == statuses.count("running") - 1


def test_pending_restart_is_made_by_the_next_server(serve: Serve) -> None:
    server = serve({"web": SLEEPER | {"restart": "on-failure", "restart-delay": "1s"}})
    server.do("start", "web")
    os.kill(server.info("web")["pid"], signal.SIGKILL)
    wait_for(lambda: "aborted" in server.new_statuses("web"))
    kill_and_restart(server)
    server.until("web", "running")
    assert server.new_statuses("web") == ["starting", "running", "aborted", "starting", "running"]
    assert len(tagged_pids("web", server)) == 1


def test_cancelled_restart_is_not_made_by_the_next_server(serve: Serve) -> None:
    server = serve({"web": SLEEPER | {"restart": "always", "restart-delay": "1m"}, "other": SLEEPER})
    server.do("start", "web")
    os.kill(server.info("web")["pid"], signal.SIGKILL)
    server.until("web", "aborted")
    assert server.do("stop", "web").status == 200
    kill_and_restart(server)
    assert server.post("/api/v1/processes/group/stop").status == 404  # nothing is live, and no restart is due
    assert server.new_statuses("web") == ["starting", "running", "aborted"]


# SIGKILL during an operation


def begin_to_stop(server: Server, name: str) -> None:
    """Requests a stop, and waits until the process is stopping."""

    def request() -> None:
        with contextlib.suppress(OSError):
            server.do("stop", name)

    threading.Thread(target=request, daemon=True).start()
    until_stored(server, name, "stopping")


def test_interrupted_stop_is_completed_by_the_next_server(serve: Serve, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    server = serve({"mule": stubborn(ready) | {"stop-timeout": "3s", "restart": "always", "restart-delay": 0}})
    server.do("start", "mule")
    wait_for(ready.exists)
    pid = server.info("mule")["pid"]
    begin_to_stop(server, "mule")
    server.kill()
    assert is_alive(pid)
    server.start()
    assert server.until("mule", "aborted")["exitCode"] == 137
    assert not is_alive(pid)
    assert server.new_statuses("mule") == ["starting", "running", "stopping", "aborted"]


def test_child_that_ended_during_an_interrupted_stop_is_not_restarted(serve: Serve, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    server = serve({"mule": stubborn(ready) | {"stop-timeout": "1m", "restart": "always", "restart-delay": 0}})
    server.do("start", "mule")
    wait_for(ready.exists)
    pid = server.info("mule")["pid"]
    begin_to_stop(server, "mule")
    server.kill()
    kill_and_wait(pid)
    server.start()
    assert server.status("mule") == "unknown"
    assert server.post("/api/v1/processes/group/stop").status == 404
    assert server.new_statuses("mule") == ["starting", "running", "stopping", "unknown"]


def test_adopted_starting_child_is_running_after_its_start_seconds(serve: Serve) -> None:
    server = serve({"slow": SLEEPER | {"start-seconds": "3s"}})

    def request() -> None:
        with contextlib.suppress(OSError):
            server.do("start", "slow")

    threading.Thread(target=request, daemon=True).start()
    pid = wait_for(lambda: server.info("slow")["pid"])
    assert server.status("slow") == "starting"
    wait_for(lambda: tagged_pids("slow", server) == [pid], about="its command: before that it ends with the server")
    kill_and_restart(server)
    assert server.until("slow", "running")["pid"] == pid
    starting, running = server.events("slow")
    assert (starting["newStatus"], running["newStatus"]) == ("starting", "running")
    lasted = datetime.fromisoformat(running["eventTime"]) - datetime.fromisoformat(starting["eventTime"])
    assert lasted.total_seconds() > 2.9  # start-seconds include the time before the kill
    assert tagged_pids("slow", server) == [pid]


# Differences between the store and the processes


@pytest.mark.parametrize("auto", [False, True], ids=["by hand", "auto-start"])
def test_child_without_a_stored_pid_is_found_by_its_tag(serve: Serve, auto: bool) -> None:
    server = serve({"web": SLEEPER | {"auto-start": auto}})
    server.do("start", "web")
    pid = server.info("web")["pid"]
    server.kill()
    edit(
        server,
        "UPDATE supervised SET pid = NULL, start_ticks = NULL, boot_id = NULL, start_time = NULL, status = ?",
        Status.STARTING.rank,
    )
    edit(server, "DELETE FROM event WHERE new_status = ?", Status.RUNNING.rank)
    server.start()
    info = server.until("web", "running")
    assert info["pid"] == pid
    assert info["startTime"] is not None
    assert tagged_pids("web", server) == [pid]
    assert server.new_statuses("web") == ["starting", "running"]
    kill_and_restart(server)
    assert server.info("web")["pid"] == pid


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM supervised WHERE name = 'web'",
        "UPDATE supervised SET status = 6, generation = 1, pid = 1, start_ticks = 1 WHERE name = 'web'",
    ],
    ids=["nothing", "the instance before"],
)
def test_child_without_a_stored_start_is_found_by_its_tag(serve: Serve, statement: str) -> None:
    server = serve({"web": SLEEPER})
    server.do("start", "web")
    server.do("stop", "web")
    server.do("start", "web")
    pid = server.info("web")["pid"]
    server.kill()
    edit(server, statement)
    server.start()
    assert server.until("web", "running")["pid"] == pid
    assert tagged_pids("web", server) == [pid]
    assert server.new_statuses("web")[-2:] == ["starting", "running"]
    assert server.do("restart", "web").status == 200
    assert not is_alive(pid)
    assert len(tagged_pids("web", server)) == 1


@pytest.mark.parametrize("stored", ["nothing", "the instance before", "the intent"])
def test_child_that_ended_before_its_start_was_stored_has_events_and_a_generation(serve: Serve, stored: str) -> None:
    server = serve({"web": {"command": ["sh", "-c", "sleep 1000 & wait"]}})
    if stored == "the instance before":
        server.do("start", "web")
        server.do("stop", "web")
    before = server.new_statuses("web")
    if stored == "the intent":
        server.do("start", "web")
        before = ["starting"]
        pid = server.info("web")["pid"]
        server.kill()
        edit(server, "DELETE FROM event WHERE new_status = ?", Status.RUNNING.rank)
        edit(
            server,
            "UPDATE supervised SET pid = NULL, start_ticks = NULL, boot_id = NULL, start_time = NULL, status = ?",
            Status.STARTING.rank,
        )
    else:
        with locked(server):
            begin = threading.Thread(target=request_start, args=[server, "web"])
            begin.start()
            wait_for(lambda: len(tagged_pids("web", server)) == 2)
            server.kill()
            begin.join()
        pid = min(tagged_pids("web", server), key=lambda pid: os.getsid(pid) != pid)
    generation = int(tags_by_pid()[pid].split(":")[1])
    os.kill(pid, signal.SIGKILL)
    server.start()
    wait_for(lambda: not tagged_pids("web", server))  # its remaining processes are ended
    new = ["unknown"] if stored == "the intent" else ["starting", "unknown"]
    assert server.new_statuses("web") == before + new
    server.do("start", "web")
    pid = server.info("web")["pid"]
    tag = wait_for(lambda: tags_by_pid().get(pid))  # it has no tag during an exec
    assert int(tag.split(":")[1]) == generation + 1


def test_child_with_an_older_configuration_is_reported_until_its_restart(serve: Serve) -> None:
    server = serve({"web": SLEEPER | {"environment": {"A": "1"}}, "same": SLEEPER})
    assert server.post("/api/v1/processes/group/start").status == 200
    pid, warning = server.info("web")["pid"], "runs with an older configuration"
    changed = {"web": SLEEPER | {"environment": {"A": "2"}}, "same": SLEEPER | {"stop-timeout": "3s"}}
    server.configure({"supervisor": {"processes": changed}})
    kill_and_restart(server)
    assert server.info("web")["pid"] == pid
    assert [line.partition("adoption: ")[2] for line in server.log.read_text().splitlines() if warning in line] == [
        f"web: pid {pid} {warning}: restart it"
    ]
    assert server.do("restart", "web").status == 200
    kill_and_restart(server)
    assert server.log.read_text().count(warning) == 1


@pytest.mark.parametrize("number", range(5))
def test_server_killed_right_after_an_automatic_restart_has_no_second_child(
    serve: Serve, tmp_path: Path, number: int
) -> None:
    """The restarted child kills the server at once: sometimes before its pid is stored, sometimes after."""
    kill_server = f"test -e {tmp_path}/first && ! test -e {tmp_path}/second && : > {tmp_path}/second && kill -9 $PPID"
    command = ["sh", "-c", f"{kill_server}; : > {tmp_path}/first; exec sleep 1000"]
    server = serve({"web": {"command": command, "restart": "always", "restart-delay": 0}})
    server.do("start", "web")
    first = until_stored(server, "web", "running")["pid"]
    wait_for((tmp_path / "first").exists)
    os.kill(first, signal.SIGKILL)
    assert server.process is not None
    assert server.process.wait(60) == -signal.SIGKILL
    (second,) = wait_for(lambda: tagged_pids("web", server))
    server.start()
    assert server.until("web", "running")["pid"] == second
    assert tagged_pids("web", server) == [second]
    statuses = server.new_statuses("web")
    assert statuses[:2] + statuses[3:] == ["starting", "running", "starting", "running"]
    assert statuses[2] in ("aborted", "unknown")


@pytest.mark.parametrize("same", ["pid", "pid and start", "pid and boot"])
def test_unrelated_process_with_a_reused_pid_is_not_ended(
    serve: Serve, unrelated_process: subprocess.Popen[bytes], same: str
) -> None:
    server = serve({"web": SLEEPER})
    server.do("start", "web")
    pid = server.info("web")["pid"]
    server.kill()
    kill_and_wait(pid)
    ticks = int(Path(f"/proc/{unrelated_process.pid}/stat").read_text().rpartition(")")[2].split()[19])
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    edit(
        server,
        "UPDATE supervised SET pid = ?, start_ticks = ?, boot_id = ?",
        unrelated_process.pid,
        ticks if same == "pid and start" else ticks - 1,
        boot if same == "pid and boot" else "another boot",
    )
    server.start()
    assert server.status("web") == "unknown"
    assert server.info("web")["pid"] is None
    assert server.do("stop", "web").status == 200
    assert server.do("start", "web").status == 200
    assert server.stop() == 0
    assert unrelated_process.poll() is None


def test_child_with_a_wrong_stored_start_time_is_ended_before_the_next_start(serve: Serve) -> None:
    server = serve({"web": SLEEPER | {"auto-start": True}})
    old = server.until("web", "running")["pid"]
    server.kill()
    edit(server, "UPDATE supervised SET start_ticks = start_ticks + 1")
    server.start()
    wait_for(lambda: not is_alive(old))
    new = server.until("web", "running")["pid"]
    assert tagged_pids("web", server) == [new]


def test_process_no_longer_configured_is_ended_by_the_next_server(serve: Serve) -> None:
    server = serve({"web": SLEEPER, "gone": SLEEPER})
    server.post("/api/v1/processes/group/start")
    web, gone = server.info("web")["pid"], server.info("gone")["pid"]
    server.kill()
    server.configure({"supervisor": {"processes": {"web": SLEEPER}}})
    server.start()
    wait_for(lambda: not is_alive(gone))
    assert server.info("web")["pid"] == web
    assert [one["name"] for one in server.get("/api/v1/processes").json] == ["web"]
    assert server.get("/api/v1/events/by-process/gone").status == 200
    assert server.new_statuses("gone")[:2] == ["starting", "running"]
    assert server.get("/api/v1/processes/info/gone").status == 404


def test_process_configured_again_is_not_started_and_can_be_started(serve: Serve) -> None:
    server = serve({"web": SLEEPER, "gone": SLEEPER})
    server.post("/api/v1/processes/group/start")
    gone = server.info("gone")["pid"]
    server.kill()
    server.configure({"supervisor": {"processes": {"web": SLEEPER}}})
    server.start()
    wait_for(lambda: not is_alive(gone))
    server.stop()
    server.configure({"supervisor": {"processes": {"web": SLEEPER, "gone": SLEEPER}}})
    server.start()
    assert server.status("gone") == "not_started"
    assert server.do("start", "gone").status == 200
    assert len(tagged_pids("gone", server)) == 1


FORKS = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(sys.argv[1] + ".new", "w") as note:
            note.write(str(os.getpid()))
        os.rename(sys.argv[1] + ".new", sys.argv[1])
        time.sleep(1000)
    os._exit(0)
time.sleep(1000)
"""


def test_only_daemons_of_an_ended_generation_are_ended_on_adoption(serve: Serve, tmp_path: Path) -> None:
    notes = {name: tmp_path / name for name in ("dead", "living")}
    server = serve({name: {"command": python_command(FORKS), "args": [str(note)]} for name, note in notes.items()})
    server.post("/api/v1/processes/group/start")
    for note in notes.values():
        wait_for(note.exists)
    daemons = {name: int(note.read_text()) for name, note in notes.items()}
    pid = server.info("dead")["pid"]
    server.kill()
    kill_and_wait(pid)
    assert is_alive(daemons["dead"])
    server.start()
    wait_for(lambda: not is_alive(daemons["dead"]))
    assert server.status("dead") == "unknown"
    assert server.status("living") == "running"
    assert is_alive(daemons["living"])
    assert server.do("stop", "living").status == 200
    assert not is_alive(daemons["living"])


# Children left running, and clean restarts


def test_children_left_running_by_a_stop_are_adopted(serve: Serve) -> None:
    server = serve({"web": SLEEPER}, supervisor={"on-exit": "leave"})
    server.do("start", "web")
    pid = server.info("web")["pid"]
    assert server.stop() == 0
    assert is_alive(pid)
    server.start()
    assert server.info("web")["pid"] == pid
    assert server.new_statuses("web") == ["starting", "running"]
    assert server.do("stop", "web").status == 200
    assert server.new_statuses("web") == ["starting", "running", "stopping", "stopped"]


def test_exit_statuses_are_kept_after_a_restart_of_the_server(serve: Serve) -> None:
    server = serve(
        {
            "never": SLEEPER,
            "good": {"command": "true"},
            "bad": {"command": ["sh", "-c", "exit 3"]},
            "shot": SLEEPER,
            "missing": {"command": "/nonexistent/program"},
            "stopped": SLEEPER,
            "live": SLEEPER,
        }
    )
    for name in ("good", "bad", "shot", "missing", "stopped", "live"):
        server.do("start", name)
    os.kill(server.info("shot")["pid"], signal.SIGKILL)
    server.do("stop", "stopped")
    expected = {
        "never": ("not_started", None),
        "good": ("finished", 0),
        "bad": ("failed", 3),
        "shot": ("aborted", 137),
        "missing": ("failed_to_start", None),
        "stopped": ("stopped", 143),
    }
    before = {name: server.until(name, status) for name, (status, _) in expected.items()}
    assert {name: (info["status"], info["exitCode"]) for name, info in before.items()} == expected
    assert server.stop() == 0
    server.start()
    assert {name: server.info(name) for name in expected} == before
    assert (server.info("live")["status"], server.info("live")["exitCode"]) == ("stopped", 143)
    kill_and_restart(server)
    assert {name: server.info(name) for name in expected} == before


def test_event_ids_increase_across_stops_and_kills_of_the_server(serve: Serve) -> None:
    server = serve({"web": SLEEPER})
    known: list[dict[str, Any]] = []
    for end in (server.kill, server.stop, server.kill, server.stop):
        server.do("restart", "web")
        events = server.events("web")
        assert events[: len(known)] == known
        known = events
        end()
        server.start()
    ids = [event["id"] for event in server.events("web")]
    assert ids == list(range(1, len(ids) + 1))
    assert len(ids) > 8
