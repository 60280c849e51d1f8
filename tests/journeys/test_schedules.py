"""A server that is killed around the spawn of a scheduled job: each instant runs once and has one run."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Serve, Server, is_alive, python_command, wait_for

PROGRAM = """
import os, signal, sys
sys.path[:0] = [os.environ["PLACE"], os.environ["PLACE"] + "/tests/faults"]
import changed_constants
changed_constants.change_constants({"clock": os.environ["CLOCK"], "supervisor.maintenance.INTERVAL_SECONDS": 0.05})
from supervisor.children.tags import TAG_VARIABLE
from supervisor.children.child import Children
spawn = Children.spawn

def killed(self, launch):
    moment = os.environ["KILLED"] if launch.environment.get(TAG_VARIABLE, "").endswith(":job") else ""
    if moment == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    child = spawn(self, launch)
    if moment == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    return child

Children.spawn = killed
import run
sys.exit(run.main(sys.argv[3:]))
"""
"""The server with the clock of a file, which kills itself before or after the spawn of the job."""


class ScheduledServer:
    """A server with an hourly job and a clock that the test sets."""

    def __init__(self, serve: Serve, folder: Path, killed: str, **job: Any) -> None:
        self._clock = folder / "offset"
        self.set("2026-03-01T09:59:00")
        environ = {"CLOCK": str(self._clock), "KILLED": killed, "PLACE": str(ROOT)}
        command = ["sh", "-c", "echo $$ >> ran; exec sleep 1000"]
        schedule = {"cron": "0 * * * *", "timezone": "UTC"}
        self.server: Server = serve(
            {"job": {"command": command, "schedule": schedule, **job}}, environ=environ, command=python_command(PROGRAM)
        )

    def set(self, moment: str) -> None:
        draft = self._clock.with_suffix(".draft")
        draft.write_text(str(datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp() - time.time()))
        draft.rename(self._clock)

    def wait_for_kill(self) -> None:
        assert self.server.process is not None
        self.server.process.wait(60)

    def restart(self) -> None:
        self.server.environ = {**self.server.environ, "KILLED": ""}
        self.server.start()

    def runs(self) -> list[dict[str, Any]]:
        """The runs of the job, oldest first."""
        answer = self.server.get("/api/v1/processes/runs/job?sortDirection=asc")
        assert answer.status == 200, answer
        return list(answer.json["content"])

    def run_with(self, outcome: str | None, number: int) -> dict[str, Any]:
        """Waits until the run with this number has this outcome, and returns it."""
        return dict(
            wait_for(lambda: len(runs := self.runs()) >= number and runs[-1]["outcome"] == outcome and runs[-1])
        )

    def details(self) -> dict[str, Any]:
        (details,) = self.server.get("/api/v1/processes/details?select=job").json
        return dict(details)

    def started(self) -> list[int]:
        file = self.server.folder / "ran"
        return [int(pid) for pid in file.read_text().split()] if file.exists() else []


def test_instant_is_neither_repeated_nor_missed_after_a_kill_before_its_spawn(serve: Serve, tmp_path: Path) -> None:
    scheduled = ScheduledServer(serve, tmp_path, "before")
    scheduled.set("2026-03-01T10:00:00")
    scheduled.wait_for_kill()
    scheduled.restart()
    (run,) = scheduled.runs()
    assert (run["trigger"], run["scheduledFor"], run["outcome"]) == (
        "schedule",
        "2026-03-01T10:00:00.000000Z",
        "unknown",
    )
    assert scheduled.started() == []
    scheduled.set("2026-03-01T11:00:00")
    run = scheduled.run_with(None, 2)
    assert run["scheduledFor"] == "2026-03-01T11:00:00.000000Z"
    wait_for(lambda: len(scheduled.started()) == 1)
    assert scheduled.details()["schedule"]["missed"] == 0


@pytest.mark.parametrize("moment", ["after", "later"])
def test_child_spawned_before_a_kill_is_adopted_with_its_run(serve: Serve, tmp_path: Path, moment: str) -> None:
    scheduled = ScheduledServer(serve, tmp_path, moment)
    scheduled.set("2026-03-01T10:00:00")
    if moment == "later":
        wait_for(lambda: scheduled.server.status("job") == "running")
        scheduled.server.kill()
    scheduled.wait_for_kill()
    scheduled.set("2026-03-01T10:00:30")
    scheduled.restart()
    (pid,) = wait_for(scheduled.started)
    assert is_alive(pid)
    assert scheduled.server.until("job", "running")["pid"] == pid
    (run,) = scheduled.runs()
    assert (run["id"], run["scheduledFor"], run["outcome"]) == (1, "2026-03-01T10:00:00.000000Z", None)
    assert scheduled.details()["lastRun"] == run
    scheduled.set("2026-03-01T11:00:00")
    wait_for(lambda: scheduled.details()["schedule"]["skipped"] == 1)
    os.kill(pid, 9)
    assert scheduled.run_with("failure", 1)["exitCode"] == 137
    assert scheduled.started() == [pid]
    scheduled.set("2026-03-01T12:00:00")
    assert scheduled.run_with(None, 2)["scheduledFor"] == "2026-03-01T12:00:00.000000Z"


def test_run_that_ended_without_a_server_is_unknown_and_later_instants_are_missed(serve: Serve, tmp_path: Path) -> None:
    scheduled = ScheduledServer(serve, tmp_path, "after", schedule={"cron": "0 * * * *", "timezone": "UTC"})
    scheduled.set("2026-03-01T10:00:00")
    scheduled.wait_for_kill()
    (pid,) = wait_for(scheduled.started)
    os.kill(pid, 9)
    wait_for(lambda: not is_alive(pid))
    scheduled.set("2026-03-01T13:30:00")
    scheduled.restart()
    (run,) = scheduled.runs()
    assert (run["trigger"], run["outcome"]) == ("schedule", "unknown")
    schedule = scheduled.details()["schedule"]
    assert (schedule["missed"], schedule["nextRun"], schedule["lastOutcome"]) == (
        3, "2026-03-01T14:00:00.000000Z", "unknown",
    )  # fmt: skip
    notices = scheduled.server.get("/api/v1/processes/notices?name=schedule.missed").json["content"]
    assert [notice["facts"]["count"] for notice in notices] == [3]


@pytest.mark.parametrize("is_adopted", [True, False])
def test_a_queued_run_survives_kill_9_and_runs_once(serve: Serve, tmp_path: Path, is_adopted: bool) -> None:
    schedule = {"cron": "0 * * * *", "timezone": "UTC", "overlap": "queue"}
    scheduled = ScheduledServer(serve, tmp_path, "", schedule=schedule)
    scheduled.set("2026-03-01T10:00:00")
    (first,) = wait_for(scheduled.started)
    scheduled.set("2026-03-01T11:00:00")
    wait_for(lambda: scheduled.details()["schedule"]["nextRun"] == "2026-03-01T12:00:00.000000Z")
    scheduled.server.get("/api/v1/processes/runs/job")  # returns once all changes are stored
    scheduled.server.kill()
    if not is_adopted:
        os.kill(first, 9)
        wait_for(lambda: not is_alive(first))
    scheduled.restart()
    if is_adopted:
        assert scheduled.started() == [first]
        os.kill(first, 9)
    run = scheduled.run_with(None, 2)
    assert (run["trigger"], run["scheduledFor"]) == ("schedule", "2026-03-01T11:00:00.000000Z")
    (_, second) = wait_for(lambda: len(pids := scheduled.started()) == 2 and pids)
    scheduled.server.kill()
    scheduled.restart()
    os.kill(second, 9)
    assert scheduled.run_with("failure", 2)["exitCode"] == 137
    assert scheduled.details()["waitingFor"] is None
    assert scheduled.started() == [first, second]
