"""Jobs: success, dependents that wait for completion, and what a restart of the server repeats."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, TIMEOUT_SECONDS, Server, wait_for

from models.children import Exit
from models.supervision.process import ProcessSpec, Status, forbids_restart, status_after_exit

RUN = "echo run >> runs; "


@pytest.mark.parametrize(
    ("exit", "listed", "status"),
    [
        (Exit(0), (), Status.FINISHED),
        (Exit(3), (), Status.FAILED),
        (Exit(3), ("3",), Status.FINISHED),
        (Exit(0), ("3",), Status.FINISHED),
        (Exit(signal=signal.SIGHUP), ("HUP",), Status.FINISHED),
        (Exit(signal=signal.SIGKILL), ("HUP", "137"), Status.ABORTED),
        (Exit(129), ("HUP",), Status.FAILED),
        (Exit(signal=signal.SIGTERM), ("TERM",), Status.STOPPED),
        (Exit(signal=signal.SIGINT), ("INT",), Status.STOPPED),
        (Exit(signal=40), ("40",), Status.FINISHED),
        (None, ("3",), Status.UNKNOWN),
    ],
)
def test_exit_listed_in_success_exit_codes_is_finished(
    exit: Exit | None, listed: tuple[str, ...], status: Status
) -> None:
    assert status_after_exit(exit, listed) is status


@pytest.mark.parametrize(
    ("status", "code", "listed", "forbidden"),
    [
        (Status.FAILED, 3, ("3",), True),
        (Status.FAILED, 3, ("4",), False),
        (Status.FINISHED, 0, ("0",), True),
        (Status.ABORTED, 137, ("KILL",), True),
        (Status.FAILED, 137, ("KILL",), False),
        (Status.FAILED_TO_START, 3, ("3",), True),
        (Status.UNKNOWN, None, ("0",), False),
    ],
)
def test_exit_listed_in_no_restart_exit_codes_forbids_a_restart(
    status: Status, code: int | None, listed: tuple[str, ...], forbidden: bool
) -> None:
    assert forbids_restart(ProcessSpec("p", ("x",), no_restart_exit_codes=listed), status, code) is forbidden


def shell(code: str, **properties: Any) -> dict[str, Any]:
    return {"command": ["sh", "-c", code], **{name.replace("_", "-"): value for name, value in properties.items()}}


def depending_on(*jobs: str, **properties: Any) -> dict[str, Any]:
    conditions = [{"process": job, "condition": "completed"} for job in jobs]
    return {"command": "sleep 1000", "depends-on": conditions, **properties}


PROCESSES: dict[str, dict[str, Any]] = {
    "migrate": shell(f"{RUN} until test -e go; do sleep 0.02; done; exit 3", type="oneshot", success_exit_codes=[3]),
    "web": depending_on("migrate"),
    "also": depending_on("migrate"),
    "broken": shell("exit 7", type="oneshot"),
    "never": depending_on("broken"),
    "slow": shell("exec sleep 1000", type="oneshot"),
    "hasty": depending_on("slow", **{"start-timeout": "50ms"}),
    "second-time": shell(
        "test -e tried && exit 0; touch tried; exit 1", type="oneshot", restart="on-failure", restart_delay=0
    ),
    "patient": depending_on("second-time"),
    "quick": shell("exit 0", type="oneshot", start_seconds=60),
    "beside": {"command": "sleep 1000", "depends-on": ["quick"]},
    "final": shell("exit 9", restart="always", restart_delay=0, no_restart_exit_codes=[9]),
    "long": shell("sleep 0.5", type="oneshot"),
    "boot-job": shell("echo run >> boots", type="oneshot", auto_start=True),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("jobs"), {"supervisor": {"processes": PROCESSES}}, {}, [])
    yield server.start()
    server.close()


def lines(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


def test_job_runs_once_for_all_dependents_until_a_clean_restart_of_the_server(server: Server) -> None:
    server.until("boot-job", "finished")
    status_code = wait_in_background(server, "web")
    server.until("migrate", "running")
    assert server.status("web") == "not_started"
    (server.folder / "go").touch()
    assert status_code() == 200
    assert server.info("migrate")["exitCode"] == 3
    assert server.do("start", "also").status == 200
    assert lines(server.folder / "runs") == 1
    assert server.do("stop", "migrate").status == 200
    assert server.status("web") == "running"
    (details,) = server.get("/api/v1/processes/details?select=migrate").json
    assert details["type"] == "oneshot"

    server.do("stop", "also")
    server.kill()
    server.start()
    assert server.status("web") == "running"
    assert server.do("start", "also").status == 200
    assert (lines(server.folder / "runs"), lines(server.folder / "boots")) == (1, 1)

    assert server.stop() == 0
    server.start()
    assert server.do("start", "also").status == 200
    wait_for(lambda: lines(server.folder / "boots") == 2)
    assert lines(server.folder / "runs") == 2


def wait_in_background(server: Server, name: str) -> Any:
    """Starts a process in a thread; the returned function waits for the status code of the response."""
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(server.do("start", name).status), daemon=True)
    thread.start()

    def answer() -> int:
        thread.join(30)
        return answers[0]

    return answer


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("never", "never was not started: broken is failed (exit code 7)"),
        ("hasty", "hasty was not started: slow did not come up within 0.05 s"),
    ],
)
def test_dependent_of_an_incomplete_job_fails_to_start_with_the_reason(server: Server, name: str, reason: str) -> None:
    answer = server.do("start", name)
    assert answer.status == 500
    assert answer.json["message"] == reason
    assert server.info(name)["failedErrorLog"] == reason
    assert server.status(name) == "failed_to_start"


def test_start_waits_for_a_job_that_is_restarted_by_policy(server: Server) -> None:
    assert server.do("start", "patient").status == 200
    assert server.new_statuses("second-time") == ["starting", "running", "failed", "starting", "running", "finished"]


def test_dependency_without_condition_starts_the_job_and_does_not_wait_for_its_end(server: Server) -> None:
    assert server.do("start", "beside").status == 200
    wait_for(lambda: server.new_statuses("quick")[-2:] == ["running", "finished"], about="the end of the job")
    assert server.info("beside")["status"] == "running"


def test_process_with_a_no_restart_exit_code_is_not_restarted(server: Server) -> None:
    server.do("start", "final")
    server.until("final", "failed")
    (details,) = server.get("/api/v1/processes/details?select=final").json
    assert (details["waitingFor"], details["restarts"]) == (None, 0)


def ctl(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "run.py"), "ctl", "--data-dir", str(server.data), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)


@pytest.mark.parametrize(("selector", "code", "reported"), [("long", 0, ""), ("long,broken", 1, "broken is failed")])
def test_ctl_start_wait_returns_when_the_jobs_have_ended(
    server: Server, selector: str, code: int, reported: str
) -> None:
    done = ctl(server, "start", "--wait", selector)
    assert (done.returncode, reported in done.stderr) == (code, True)
    assert server.status("long") == "finished"


def test_one_group_start_runs_a_job_once_whatever_its_order(tmp_path: Path) -> None:
    job = shell("echo run >> runs", type="oneshot", order=5)
    server = Server(tmp_path, {"supervisor": {"processes": {"web": depending_on("job"), "job": job}}}, {}, []).start()
    try:
        assert server.post("/api/v1/processes/group/start").status == 200
        assert lines(tmp_path / "runs") == 1
        assert server.post("/api/v1/processes/start?select=job").json["results"][0]["outcome"] == "started"
        wait_for(lambda: lines(tmp_path / "runs") == 2)
    finally:
        server.close()
