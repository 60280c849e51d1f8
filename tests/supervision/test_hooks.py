"""Hooks: order, environment, failures, and no remaining hook after a stop or kill -9."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Answer, Serve, Server, instance_of, is_alive, tags_by_pid, wait_for
from requirements import ROOT_USER

KINDS = ("start-pre", "start-post", "stop-pre", "stop-post")


def append_note(name: str, text: str, code: int = 0) -> list[str]:
    return ["sh", "-c", f'echo "{text}" >> {name}.notes; exit {code}']


LONG_TIMEOUTS = {"command": "sleep 1000", "hook-timeout": "1h", "stop-timeout": "1h"}


def endless(name: str) -> list[str]:
    """A hook that does not end and has a descendant in its own session."""
    return ["sh", "-c", f"echo $$ >> {name}.pids; setsid sleep 1000 & echo $! >> {name}.pids; wait"]


PROCESSES: dict[str, dict[str, Any]] = {
    "ordered": {
        "command": ["sh", "-c", "echo main >> ordered.notes; exec sleep 1000"],
        **{kind: append_note("ordered", f"{kind} $WHO $PILOTHOUSE_STATUS $PILOTHOUSE_EXIT_CODE") for kind in KINDS},
        "environment": {"WHO": "me"},
        "stdout-logfile": "ordered.log",
    },
    "crasher": {
        "command": ["sh", "-c", "echo main >> crasher.notes; exit 3"],
        "stop-post": append_note("crasher", "$PILOTHOUSE_STATUS $PILOTHOUSE_EXIT_CODE"),
        "restart": "on-failure",
        "restart-delay": 0,
        "restart-limit": 2,
    },
    "unready": {"command": "sleep 1000", "start-pre": ["sh", "-c", "exit 4"]},
    "missing": {"command": "sleep 1000", "start-pre": "./is-missing"},
    "late": {"command": "sleep 1000", "start-pre": "sleep 1000", "hook-timeout": "50ms"},
    "clumsy": {
        "command": "sleep 1000",
        "start-post": append_note("clumsy", "", 5),
        "stop-pre": append_note("clumsy", "", 6),
        "stop-post": append_note("clumsy", "", 7),
    },
    "hurried": {"command": "sleep 1000", "stop-pre": "sleep 1000", "stop-timeout": "50ms"},
    "logged": {"command": "sleep 1000", "start-pre": "echo from the hook", "stdout-logfile": "logged.log"},
    **{f"in-{kind}": {**LONG_TIMEOUTS, kind: endless(f"in-{kind}")} for kind in KINDS},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("hooks"), {"supervisor": {"processes": PROCESSES}}, {}, [])
    yield server.start()
    server.close()


def notes(server: Server, name: str) -> list[str]:
    file = server.folder / f"{name}.notes"
    return [line.strip() for line in file.read_text().splitlines()] if file.exists() else []


def notices(server: Server, name: str) -> list[dict[str, Any]]:
    return list(server.get(f"/api/v1/processes/notices?process={name}&sortDirection=asc").json["content"])


def test_hooks_run_in_their_order_with_the_environment_of_the_process(server: Server) -> None:
    assert server.do("start", "ordered").status == 200
    wait_for(lambda: len(notes(server, "ordered")) == 3)
    assert server.do("stop", "ordered").status == 200
    assert [line.split()[0] for line in notes(server, "ordered")[:1]] == ["start-pre"]
    assert sorted(line.split()[0] for line in notes(server, "ordered")[1:3]) == ["main", "start-post"]
    assert [line.split()[:2] for line in notes(server, "ordered")[3:]] == [["stop-pre", "me"], ["stop-post", "me"]]
    assert notes(server, "ordered")[-1] == "stop-post me stopped 143"


def test_stop_post_runs_after_each_exit_and_before_the_restart(server: Server) -> None:
    server.do("start", "crasher")
    wait_for(lambda: [notice["name"] for notice in notices(server, "crasher")] == ["process.gave_up"])
    wait_for(lambda: len(notes(server, "crasher")) == 6)
    assert notes(server, "crasher") == ["main", "failed 3"] * 3


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("unready", "start-pre 'sh -c exit 4' ended with exit code 4"),
        ("missing", "start-pre './is-missing' could not be started: No such file or directory"),
        ("late", "start-pre 'sleep 1000' did not end within 0.05 s"),
    ],
)
def test_a_process_whose_start_pre_fails_is_not_started(server: Server, name: str, reason: str) -> None:
    answer = server.do("start", name)
    assert answer.status == 500
    assert reason in answer.json["message"]
    info = server.info(name)
    assert (info["status"], info["pid"], info["failedErrorLog"]) == ("failed_to_start", None, reason)
    assert server.new_statuses(name) == ["starting", "failed_to_start"]


def test_failure_of_any_other_hook_is_only_a_notice(server: Server) -> None:
    assert server.do("start", "clumsy").status == 200
    wait_for(lambda: len(notices(server, "clumsy")) == 1)
    assert server.do("stop", "clumsy").status == 200
    assert server.new_statuses("clumsy") == ["starting", "running", "stopping", "stopped"]
    found = notices(server, "clumsy")
    assert [notice["name"] for notice in found] == ["process.hook_failed"] * 3
    assert [notice["facts"]["hook"] for notice in found] == ["start-post", "stop-pre", "stop-post"]
    assert all(f"exit code {code}" in notice["message"] for code, notice in zip((5, 6, 7), found, strict=True))


def test_hooks_do_not_wait_for_what_another_process_has_left(serve: Serve) -> None:
    """After a kill -9 of the server, one leftover ignores SIGTERM and lives for ten seconds more."""
    stubborn = ["sh", "-c", "(trap '' TERM; exec setsid sleep 1000) & echo $! > left; exec sleep 1000"]
    hooked = {"command": "sleep 1000", "stop-pre": "true", "stop-timeout": "2s"}
    server = serve({"stubborn": {"command": stubborn}, "hooked": hooked})
    for name in ("stubborn", "hooked"):
        assert server.do("start", name).status == 200
    left = int(wait_for(lambda: (server.folder / "left").exists() and (server.folder / "left").read_text()))
    pid = server.info("stubborn")["pid"]
    server.kill()
    os.kill(pid, signal.SIGKILL)
    server.start()
    assert server.do("stop", "hooked").status == 200
    assert is_alive(left)  # the stop did not wait for it
    assert server.new_statuses("hooked")[-2:] == ["stopping", "stopped"]


def test_stop_timeout_includes_stop_pre(server: Server) -> None:
    server.do("start", "hurried")
    assert server.do("stop", "hurried").status == 200
    assert "did not end within 0.05 s" in notices(server, "hurried")[0]["message"]


def test_a_hook_writes_to_the_log_of_the_process(server: Server) -> None:
    assert server.do("start", "logged").status == 200
    assert (server.folder / "logged.log").read_text() == "from the hook\n"


@pytest.mark.needs(ROOT_USER)
def test_a_hook_runs_as_the_user_of_the_process(tmp_path: Path) -> None:
    hook = ["sh", "-c", "id -un; pwd"]
    spec = {"command": "sleep 1000", "user": "nobody", "directory": "/", "start-pre": hook, "stdout-logfile": "log"}
    server = Server(tmp_path, {"supervisor": {"processes": {"web": spec}}}, {}, []).start()
    try:
        assert server.do("start", "web").status == 200
        assert (tmp_path / "log").read_text() == "nobody\n/\n"
    finally:
        server.close()


def pids_in_hook(server: Server, kind: str) -> list[int]:
    """Starts or stops a process until it runs this hook; returns the pids of the hook and its descendant."""
    name = f"in-{kind}"
    file = server.folder / f"{name}.pids"
    file.unlink(missing_ok=True)
    calls: list[Callable[[], Answer]] = [lambda: server.do("start", name)]
    if kind.startswith("stop"):
        assert server.do("start", name).status == 200
        calls = [lambda: server.do("stop", name)]
    for call in calls:
        threading.Thread(target=_call_ignoring_errors, args=(call,), daemon=True).start()
    return list(map(int, wait_for(lambda: file.exists() and len(found := file.read_text().split()) == 2 and found)))


def _call_ignoring_errors(call: Callable[[], Answer]) -> None:
    with contextlib.suppress(OSError):  # the server may be killed during the call
        call()


@pytest.mark.parametrize("kind", KINDS)
def test_stop_ends_a_hook_and_its_descendants(server: Server, kind: str) -> None:
    pids, name = pids_in_hook(server, kind), f"in-{kind}"
    if kind == "start-pre":
        (details,) = server.get(f"/api/v1/processes/details?select={name}").json
        assert (details["status"], details["waitingFor"]) == ("starting", "start-pre")
    assert server.do("stop", name).status == 200
    wait_for(lambda: not any(map(is_alive, pids)))
    assert server.status(name) == "stopped"
    assert notices(server, name) == []


def test_no_hook_remains_after_kill_9_of_the_server(server: Server) -> None:
    pids = {kind: pids_in_hook(server, kind) for kind in KINDS}
    server.until("in-stop-post", "stopped")  # before its exit is stored, the status would be unknown
    server.kill()
    server.start()
    wait_for(lambda: not any(is_alive(pid) for found in pids.values() for pid in found))
    server.until("in-start-pre", "unknown")
    server.until("in-start-post", "running")
    server.until("in-stop-pre", "stopping", "stopped")
    server.until("in-stop-post", "stopped")
    for kind in KINDS:
        server.do("stop", f"in-{kind}")
    of_hooks = f"{instance_of(server.data)}:0:in-"
    wait_for(
        lambda: not [tag for tag in tags_by_pid().values() if tag.startswith(of_hooks)], about="the end of all hooks"
    )


def test_sigterm_of_the_server_ends_all_hooks(server: Server) -> None:
    pids = [pid for kind in KINDS for pid in pids_in_hook(server, kind)]
    assert server.stop() == 0
    assert not any(map(is_alive, pids))
