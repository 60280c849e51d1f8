"""Notifications: readiness, status, watchdog, accepted senders, and a kill -9 of the server in between."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import Answer, Server, children_of, is_alive, wait_for
from requirements import ROOT_USER

from supervisor.children.proc import environment
from supervisor.processes.process.notify import MAX_STATUS_BYTES, Notification, address, parsed

CLIENT = """
import os, socket, sys, time
def send(text, uid=None):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        one.connect(os.environ["NOTIFY_SOCKET"].replace("@", "\\0", 1))
    except ConnectionRefusedError:
        return  # the server is down
    if uid is not None:
        os.setreuid(uid, uid)
    one.send(text.encode())
def wait(name):
    while not os.path.exists(name):
        time.sleep(0.01)
def done(name):
    open(name, "w").close()
"""


def client(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", f"{CLIENT}\n{code}"]


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        (b"READY=1", {"ready": True}),
        (b"READY=0", {}),
        (b"READY=1\nSTATUS=loading \xc3\xa9\n", {"ready": True, "status": "loading \xe9"}),
        (b"STATUS=", {"status": ""}),
        (b"STATUS=" + b"x" * 2000, {"status": "x" * MAX_STATUS_BYTES}),
        (b"STATUS=" + b"x" * (MAX_STATUS_BYTES - 1) + b"\xc3\xa9", {"status": "x" * (MAX_STATUS_BYTES - 1)}),
        (b"STATUS=a\xffb", {"status": "ab"}),
        (b"STATUS=a=b", {"status": "a=b"}),
        (b"EXTEND_TIMEOUT_USEC=5000000", {"extension": 5.0}),
        (b"EXTEND_TIMEOUT_USEC=" + b"9" * 30, {"extension": 3600.0}),
        (b"EXTEND_TIMEOUT_USEC=-1", {}),
        (b"EXTEND_TIMEOUT_USEC=soon", {}),
        (b"EXTEND_TIMEOUT_USEC=" + b"9" * 4000, {}),
        (b"WATCHDOG=1", {"watchdog": "1"}),
        (b"WATCHDOG=trigger", {"watchdog": "trigger"}),
        (b"WATCHDOG=2\nMAINPID=1\nFDSTORE=1\nRELOADING=1", {}),
        (b"", {}),
        (b"\0\xff\n\n=\n", {}),
    ],
)
def test_a_message_is_parsed(message: bytes, parts: dict[str, Any]) -> None:
    assert parsed(message) == Notification(**parts)


PROCESSES: dict[str, dict[str, Any]] = {
    "shell": {"command": ["sh", "-c", "systemd-notify --ready --status='all is well'; exec sleep 1000"]},
    "gated": {"command": client("wait('gate'); send('STATUS=open\\nREADY=1'); time.sleep(1000)")},
    "squatted": {"command": client("send('READY=1'); time.sleep(1000)")},
    "silent": {"command": "sleep 1000", "ready-timeout": "100ms"},
    "extended": {
        "command": client("send('EXTEND_TIMEOUT_USEC=60000000'); wait('late'); send('READY=1'); time.sleep(1000)"),
        "ready-timeout": "3s",
    },
    "quitter": {"command": ["sh", "-c", "exit 5"]},
    "parting": {"command": client("send('READY=1\\nSTATUS=bye'); raise SystemExit(3)")},
    "forged": {
        "command": client("if os.fork(): time.sleep(1000)\nsend('READY=1', 65534); wait('never')"),
        "ready-timeout": 0,
    },
    "hooked": {"command": "sleep 1000", "start-pre": ["sh", "-c", "test -z $NOTIFY_SOCKET"], "ready-timeout": "50ms"},
    "dog": {
        "command": client("send('READY=1')\nwhile True: send('WATCHDOG=1'); time.sleep(0.1)"),
        "watchdog": "60s",
    },
    "hangs": {
        "command": client("send('READY=1'); time.sleep(1); send('WATCHDOG=1'); time.sleep(1000)"),
        "watchdog": "4s",
        "restart": "on-failure",
        "restart-delay": 0,
    },
    "trigger": {
        "command": client(
            "import signal; signal.signal(signal.SIGABRT, lambda *_: os._exit(0))\n"
            "send('READY=1'); wait('pull'); send('WATCHDOG=trigger'); time.sleep(1000)"
        ),
        "watchdog": "1h",
    },
    "missed": {
        "command": client("wait('down'); send('READY=1'); done('missed.sent'); time.sleep(1000)"),
        "ready-timeout": "3s",
    },
    "pinging": {
        "command": client(
            "wait('down'); send('READY=1'); done('pinging.sent'); wait('up')\n"
            "while True: send('WATCHDOG=1'); time.sleep(0.1)"
        ),
        "watchdog": "60s",
    },
    "flood": {"command": client("for n in range(150): send(f'STATUS={n}')\nsend('READY=1'); time.sleep(1000)")},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    processes = {name: {"type": "notify", **spec} for name, spec in PROCESSES.items()}
    server = Server(tmp_path_factory.mktemp("notify"), {"supervisor": {"processes": processes}}, {}, [])
    yield server.start()
    server.close()


def details(server: Server, name: str) -> dict[str, Any]:
    (found,) = server.get(f"/api/v1/processes/details?select={name}").json
    return dict(found)


def start_in_background(server: Server, name: str) -> list[Answer]:
    """Starts a process in a thread and waits for the status `starting`; the response is added to the list."""
    answers: list[Answer] = []

    def start() -> None:
        with contextlib.suppress(OSError):  # the server may be killed meanwhile
            answers.append(server.do("start", name))

    threading.Thread(target=start, daemon=True).start()
    server.until(name, "starting")
    return answers


@pytest.mark.needs("systemd-notify")
def test_systemd_notify_makes_a_process_running(server: Server) -> None:
    assert server.do("start", "shell").status == 200
    found = details(server, "shell")
    assert (found["status"], found["type"]) == ("running", "notify")
    wait_for(lambda: details(server, "shell")["statusText"] == "all is well")


def test_start_waits_for_ready_also_across_a_kill_9_of_the_server(server: Server) -> None:
    answers = start_in_background(server, "gated")
    wait_for(lambda: details(server, "gated")["waitingFor"] == "ready")
    pid = server.info("gated")["pid"]
    server.do("start", "dog")
    dog = server.info("dog")["pid"]
    server.kill()
    server.start()
    assert (server.status("gated"), details(server, "gated")["waitingFor"], answers) == ("starting", "ready", [])
    (server.folder / "gate").touch()
    server.until("gated", "running")
    assert (server.info("gated")["pid"], details(server, "gated")["statusText"]) == (pid, "open")
    assert (server.status("dog"), server.info("dog")["pid"]) == ("running", dog)


def test_a_process_that_was_ready_while_no_server_ran_counts_as_running(server: Server) -> None:
    for name in ("missed", "pinging"):
        start_in_background(server, name)
        server.until(name, "starting")
    wait_for(lambda: [details(server, name)["waitingFor"] for name in ("missed", "pinging")] == ["ready"] * 2)
    pids = [server.info(name)["pid"] for name in ("missed", "pinging")]
    wait_for(
        lambda: {*pids} <= {*children_of(server.data)}, about="their commands: before that they end with the server"
    )
    server.kill()
    (server.folder / "down").touch()
    for name in ("missed", "pinging"):  # under load they notice late, and would find the next server
        wait_for((server.folder / f"{name}.sent").exists)
    server.start()
    (server.folder / "up").touch()
    for name in ("missed", "pinging"):
        server.until(name, "running")
    assert [server.info(name)["pid"] for name in ("missed", "pinging")] == pids

    def noticed() -> list[dict[str, Any]]:
        return list(server.get("/api/v1/processes/notices?name=process.ready_assumed").json["content"])

    found = wait_for(lambda: len(notices := noticed()) == 2 and notices, about="both notices")
    assert {(notice["message"].split()[0], notice["message"].split(" and ")[-1]) for notice in found} == {
        ("missed", "did not send READY=1 within 3 s of its adoption: it counts as running"),
        ("pinging", "has sent WATCHDOG=1: it counts as running"),
    }


def test_stop_before_ready_ends_the_process(server: Server) -> None:
    (server.folder / "gate").unlink(missing_ok=True)
    server.do("stop", "gated")
    start_in_background(server, "gated")
    pid = wait_for(lambda: server.info("gated")["pid"])
    assert server.do("stop", "gated").status == 200
    assert (server.status("gated"), is_alive(pid)) == ("stopped", False)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("silent", "it did not send READY=1 within 0.1 s"),
        ("quitter", "it ended with exit code 5 before it sent READY=1"),
        ("hooked", "it did not send READY=1 within 0.05 s"),
    ],
)
def test_a_process_that_does_not_become_ready_has_failed_to_start(server: Server, name: str, reason: str) -> None:
    answer = server.do("start", name)
    assert (answer.status, server.status(name)) == (500, "failed_to_start")
    assert reason in server.info(name)["failedErrorLog"]
    assert server.new_statuses(name) == ["starting", "failed_to_start"]


def test_process_may_extend_its_ready_timeout(server: Server) -> None:
    answers = start_in_background(server, "extended")
    begun = time.monotonic()
    while time.monotonic() < begun + 3:  # the ready timeout passes
        assert server.do("start", "silent").status == 500
    assert (server.status("extended"), answers) == ("starting", [])
    (server.folder / "late").touch()
    server.until("extended", "running")


def test_ready_just_before_the_exit_counts(server: Server) -> None:
    server.do("start", "parting")
    server.until("parting", "failed")
    assert server.new_statuses("parting") == ["starting", "running", "failed"]


@pytest.mark.needs(ROOT_USER)
def test_ready_of_another_user_is_refused(server: Server) -> None:
    start_in_background(server, "forged")
    wait_for(lambda: "notify: forged: notifications of user 65534 are ignored" in server.log.read_text())
    assert server.status("forged") == "starting"
    server.do("stop", "forged")


def test_messages_beyond_a_hundred_a_second_wait_and_descriptors_are_closed(server: Server) -> None:
    answers = start_in_background(server, "flood")
    wait_for(lambda: answers)
    assert (answers[0].status, details(server, "flood")["statusText"]) == (200, "149")
    own = server.folder / "passed"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one, own.open("w") as file:
        one.connect("\0" + socket_of(server, "flood")[1:])
        for _ in range(5):
            socket.send_fds(one, [b"FDSTORE=1"], [file.fileno()] * 3)
        one.send(b"STATUS=" + b"x" * 5000)
        one.send(b"STATUS=last")
    wait_for(lambda: details(server, "flood")["statusText"] == "last")
    for descriptor in Path(f"/proc/{server.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a connection that has just been closed
            assert os.readlink(descriptor) != str(own)


def socket_of(server: Server, name: str) -> str:
    variables = environment(server.info(name)["pid"]).split(b"\0")
    return next(one.partition(b"=")[2].decode() for one in variables if one.startswith(b"NOTIFY_SOCKET="))


@pytest.mark.needs("systemd-notify")
def test_each_start_has_a_socket_with_another_name(server: Server) -> None:
    """Nobody can bind it before: the name is not known before the start."""
    names = set()
    for _ in range(2):
        assert server.do("start", "shell").status == 200
        names.add(socket_of(server, "shell"))
        assert server.do("stop", "shell").status == 200
    assert len(names) == 2
    assert address(b"k" * 32, "shell", 1) not in names


def test_a_socket_in_use_is_named(server: Server) -> None:
    key = bytes.fromhex(key_of(server))
    name = address(key, "squatted", 1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as squatter:
        squatter.bind("\0" + name[1:])
        assert server.do("start", "squatted").status == 500
        assert f"Address already in use (notification socket {name})" in server.info("squatted")["failedErrorLog"]
        assert server.do("start", "squatted").status == 200  # the next start has another name


def key_of(server: Server) -> str:
    with contextlib.closing(sqlite3.connect(server.data / "pilothouse.db")) as store:
        return str(store.execute("SELECT value FROM house WHERE key = 'child-key'").fetchone()[0])


def test_a_missed_watchdog_aborts_the_process_and_its_policy_restarts_it(server: Server) -> None:
    server.do("start", "hangs")
    wait_for(lambda: server.new_statuses("hangs")[:4] == ["starting", "running", "aborted", "starting"])
    server.do("stop", "hangs")
    aborted = server.events("hangs")[2]
    assert aborted["exitCode"] == 134
    found = server.get("/api/v1/processes/notices?process=hangs&name=process.watchdog_missed").json["content"]
    assert len(found) == 1
    lifetime = datetime.fromisoformat(aborted["endTime"]) - datetime.fromisoformat(aborted["startTime"])
    assert lifetime.total_seconds() > 4.9  # the one WATCHDOG=1 counted


def test_a_triggered_watchdog_aborts_a_process_that_catches_the_signal(server: Server) -> None:
    assert server.do("start", "trigger").status == 200
    (server.folder / "pull").touch()
    assert server.until("trigger", "aborted")["exitCode"] == 0
