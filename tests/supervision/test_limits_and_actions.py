"""`max-memory`, `on-failure`, `stdin` and `start-delay`."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock, call

import changed_constants
import pytest
from conftest import IS_PROOF, Serve, Server, is_alive, wait_for

from models.supervision.process import ProcessKind, ProcessSpec, Size
from supervisor.processes.process.instance import Fault, ProcessInstance
from supervisor.processes.usage import tree_bytes

"""Then `max-memory` is checked as often as in a real server, every ten seconds."""
MEMORY_SECONDS = 180 if IS_PROOF else 30
BLOCK = "block = bytearray(40 * 1024 * 1024)"
FORKS = f"import os, time\nif not os.fork():\n    os.setsid()\n    {BLOCK}\ntime.sleep(1000)"


def append_status(name: str) -> dict[str, Any]:
    return {"command": ["sh", "-c", f'echo "$PILOTHOUSE_STATUS $PILOTHOUSE_EXIT_CODE" >> {name}.notes']}


PROCESSES: dict[str, dict[str, Any]] = {
    "big": {
        "command": [sys.executable, "-S", "-c", FORKS],
        "max-memory": "30M",
        "restart-limit": 1,
        "restart-delay": 0,
    },
    "job": {
        "command": [sys.executable, "-S", "-c", f"import time\n{BLOCK}\ntime.sleep(1000)"],
        "type": "oneshot",
        "max-memory": "30M",
        "on-failure": append_status("job"),
    },
    "final": {
        "command": ["sh", "-c", "exit 3"],
        "restart": "on-failure",
        "restart-limit": 2,
        "restart-delay": 0,
        "on-failure": append_status("final"),
    },
    "each": {
        "command": ["sh", "-c", "sleep 0.1; exit 4"],
        "restart": "on-failure",
        "restart-limit": 1,
        "restart-delay": "1s",
        "on-failure": {**append_status("each"), "when": "each"},
    },
    "unstartable": {"command": "./is-missing", "on-failure": append_status("unstartable")},
    "fine": {"command": "sleep 1000", "on-failure": {**append_status("fine"), "when": "each"}},
    "clumsy": {"command": ["sh", "-c", "exit 3"], "on-failure.command": "./is-missing"},
    "endless": {
        "command": ["sh", "-c", "exit 3"],
        "on-failure.command": ["sh", "-c", "echo $$ > endless.pid; sleep 1000"],
    },
    "reader": {"command": "cat", "stdin": "input", "stdout-logfile": "reader.log"},
    "fifo": {"command": "cat", "stdin": "fifo", "stdout-logfile": "fifo.log"},
    "inputless": {"command": "cat", "stdin": "is-missing"},
    "delayed": {"command": "sleep 1000", "start-delay": "1h", "auto-start": True},
    "needs-delayed": {"command": "sleep 1000", "depends-on": ["delayed"]},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("limits")
    (folder / "input").write_text("from a file\n")
    os.mkfifo(folder / "fifo")
    command = [] if IS_PROOF else changed_constants.server_command(supervisor__maintenance__INTERVAL_SECONDS=0.05)
    server = Server(folder, {"supervisor": {"processes": PROCESSES}}, {}, command)
    yield server.start()
    server.close()


def notes(server: Server, name: str) -> list[str]:
    file = server.folder / f"{name}.notes"
    return [line.strip() for line in file.read_text().splitlines()] if file.exists() else []


def notices(server: Server, name: str) -> list[str]:
    page = server.get(f"/api/v1/processes/notices?process={name}&sortDirection=asc").json
    return [notice["name"] for notice in page["content"]]


def details(server: Server, name: str) -> dict[str, Any]:
    (found,) = server.get(f"/api/v1/processes/details?select={name}").json
    return dict(found)


def test_service_whose_process_tree_exceeds_max_memory_is_restarted(server: Server) -> None:
    assert server.do("start", "big").status == 200
    wait_for(
        lambda: notices(server, "big") == ["process.memory_exceeded", "process.memory_exceeded", "process.gave_up"],
        MEMORY_SECONDS,
    )
    assert server.new_statuses("big") == ["starting", "running", "stopping", "stopped"] * 2


def test_job_that_exceeds_max_memory_is_aborted_and_its_action_runs(server: Server) -> None:
    server.do("start", "job")
    wait_for(lambda: server.status("job") == "aborted", MEMORY_SECONDS)
    wait_for(lambda: notes(server, "job"))
    assert notes(server, "job") == ["aborted 143"]
    assert notices(server, "job") == ["process.memory_exceeded", "process.failed"]


def test_tree_bytes_is_positive_for_a_live_process_and_0_for_a_missing_one() -> None:
    assert tree_bytes(os.getpid()) > 1024 * 1024
    assert tree_bytes(2**22 + 1) == 0


@pytest.mark.parametrize(
    ("sizes", "is_ended"),
    [([9, 9, 9], False), ([11, 9, 11, 9, 11], False), ([11, 11], True), ([9, 11, 11], True), ([10, 10], False)],
)
def test_only_consecutive_samples_above_max_memory_end_a_process(sizes: list[int], is_ended: bool) -> None:
    listener, spec = Mock(), ProcessSpec("p", ("x",), type=ProcessKind.SERVICE, max_memory=Size(10))
    instance = ProcessInstance(Mock(), listener, spec, Mock(), Mock(), None, 0.0)
    instance.is_running = True
    for size in sizes:
        instance.on_memory(size)
    assert listener.on_fault.mock_calls == ([call(instance, Fault.MEMORY)] if is_ended else [])


@pytest.mark.parametrize(
    ("name", "expected", "noticed"),
    [
        ("final", ["failed 3"], ["process.gave_up"]),
        ("each", ["failed 4"] * 2, ["process.gave_up"]),
        ("unstartable", ["failed_to_start"], ["process.start_failed"]),
    ],
)
def test_the_action_on_failure_runs(server: Server, name: str, expected: list[str], noticed: list[str]) -> None:
    server.do("start", name)
    wait_for(lambda: notices(server, name) == noticed)
    wait_for(lambda: notes(server, name) == expected)


def test_stop_is_not_a_failure(server: Server) -> None:
    server.do("start", "fine")
    server.do("stop", "fine")
    assert (notes(server, "fine"), notices(server, "fine")) == ([], [])


def test_an_action_that_cannot_be_started_is_a_notice(server: Server) -> None:
    server.do("start", "clumsy")
    wait_for(lambda: notices(server, "clumsy") == ["process.failed", "process.hook_failed"])


def test_an_action_is_ended_by_a_stop(server: Server) -> None:
    server.do("start", "endless")
    file = server.folder / "endless.pid"
    pid = int(wait_for(lambda: file.exists() and file.read_text()))
    server.do("stop", "endless")
    wait_for(lambda: not is_alive(pid))


def test_a_process_reads_its_input_from_a_file_or_a_fifo(server: Server) -> None:
    server.do("start", "reader")
    server.until("reader", "finished")
    assert (server.folder / "reader.log").read_text() == "from a file\n"
    server.do("start", "fifo")
    for text in ("one\n", "two\n"):  # it continues after a writer closed the fifo
        (server.folder / "fifo").write_text(text)
    wait_for(lambda: (server.folder / "fifo.log").read_text() == "one\ntwo\n")
    assert server.status("fifo") == "running"
    assert "No such file or directory (is-missing)" in server.do("start", "inputless").json["message"]


def test_delayed_start_is_cancelled_by_a_stop_and_start_by_name_is_not_delayed(server: Server) -> None:
    wait_for(lambda: details(server, "delayed")["waitingFor"] == "start-delay")
    assert server.status("delayed") == "not_started"
    assert server.do("stop", "delayed").status == 200
    assert details(server, "delayed")["waitingFor"] is None
    assert server.do("start", "delayed").status == 200
    assert server.do("restart", "delayed").status == 200
    assert server.status("delayed") == "running"


def test_a_group_start_and_a_reload_wait_for_the_delay(serve: Serve) -> None:
    """The long delay never ends, so the test does not depend on the speed of the machine."""
    sleeper = {"command": "sleep 1000"}
    server = serve(
        {"slow": {**sleeper, "start-delay": "1h"}, "brief": {**sleeper, "start-delay": "20ms"}, "web": sleeper}
    )
    started = threading.Thread(target=lambda: server.post("/api/v1/processes/group/start"))
    started.start()
    wait_for(lambda: details(server, "slow")["waitingFor"] == "start-delay")
    wait_for(lambda: [server.status(name) for name in ("brief", "web")] == ["running"] * 2)
    assert server.do("start", "slow").status == 200  # by name it is not delayed
    started.join(60)
    assert server.status("slow") == "running"
    new = {**sleeper, "auto-start": True}
    added = {"added": {**new, "start-delay": "1h"}, "above": {**new, "depends-on": ["added"]}, "at-once": new}
    server.configure({"supervisor": {"processes": {"brief": sleeper, **added}}})
    answer = server.post("/api/v1/supervisor/reload")  # responds although two of them wait
    assert (answer.status, answer.json["started"], answer.json["failed"]) == (200, ["at-once"], [])
    wait_for(lambda: details(server, "added")["waitingFor"] == "start-delay")
    assert [server.status(name) for name in added] == ["not_started", "not_started", "running"]
    server.configure({"supervisor": {"processes": {"brief": sleeper}}})
    assert server.post("/api/v1/supervisor/reload").json["removed"] == ["added", "above", "at-once"]
