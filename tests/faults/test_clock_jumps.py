"""The wall clock jumps while the server runs: durations stay correct, and nothing is deleted by age."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import changed_constants
import pytest
from conftest import Server, wait_for
from fault_injection import API, SLEEPER, check_no_traceback
from uploads import junit, query_store, upload
from users import bearer, cookie, create_session, create_token, log_in

from supervisor.clock import Clock

HOUR = 3600
DAY = 24 * HOUR
YEAR = 365 * DAY
CRASHER = {
    "command": ["sh", "-c", "sleep 0.05; exit 3"], "restart": "always", "restart-delay": "50ms",
    "restart-max-delay": "50ms", "restart-limit": 0,
}  # fmt: skip


class JumpingServer:
    """A server with a wall clock that the test sets and a retention that runs all the time."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "offset"
        self.jump(0)
        config: dict[str, Any] = {
            "supervisor": {"processes": {"web": SLEEPER, "crasher": CRASHER}, "events": {"retain-days": 30}},
            "tracker": {
                "retain-days": 30, "retain-runs": 3, "security": {"session-lifetime": "1d"},
                "attachments": {"retain-days": 10**17},
            },
        }  # fmt: skip
        command = changed_constants.server_command(
            clock=str(self._file), supervisor__services___PRUNE_SECONDS=0.2,
            supervisor__tracker__retention___PERIOD_SECONDS=0.2,
            supervisor__tracker__retention___DELAY_SECONDS=0.01,
        )  # fmt: skip
        self.server = Server(folder, config, {}, command)

    def jump(self, seconds: float) -> None:
        """Sets the clock this many seconds from the correct time."""
        draft = self._file.with_suffix(".draft")
        draft.write_text(str(seconds))
        draft.rename(self._file)

    def wait_for_retention(self) -> None:
        """Waits until the retention has run: it has deleted one of four runs of another branch."""
        number = random.randrange(10**9)
        for _ in range(4):
            upload(
                self.server,
                ("project", "clockwork"),
                ("branch", f"b{number}"),
                ("junit", junit(1, prefix=f"{number}")),
            )
        query = "SELECT count(*) FROM run WHERE branch = ?"
        wait_for(lambda: query_store(self.server, query, f"b{number}") == [(3,)], about="the retention")


@pytest.fixture
def jumping(tmp_path: Path) -> Iterator[JumpingServer]:
    one = JumpingServer(tmp_path)
    try:
        one.server.start()
        yield one
        check_no_traceback(one.server)
    finally:
        one.server.close()


def runs(server: Server) -> list[int]:
    return [
        id
        for (id,) in query_store(
            server, "SELECT r.id FROM run r JOIN project p ON p.id = project_id WHERE name = 'kept'"
        )
    ]


def post(server: Server, number: int) -> int:
    return int(upload(server, ("project", "kept"), ("branch", "b"), ("junit", junit(1, prefix=f"n{number}")))["runId"])


@pytest.mark.parametrize("jump", [3 * HOUR, YEAR, -3 * HOUR, -20 * YEAR], ids=["hours", "year", "back", "years-back"])
def test_clock_that_jumps_and_returns_deletes_nothing(jumping: JumpingServer, jump: int) -> None:
    server = jumping.server
    server.do("start", "web")
    pid = server.info("web")["pid"]
    session, token = create_session(server.data, "ann"), create_token(server.data, "bob")
    kept = [post(server, number) for number in range(2)]
    events = server.get(f"{API}/events/count").json["totalEvents"]
    jumping.jump(jump)
    assert re.fullmatch(r"PT[0-9.]+S|PT1M[0-9.]*S?", server.info("web")["processRuntime"]), server.info("web")
    server.do("start", "crasher")
    seen = set[int | None]()
    while len(seen) < 5:  # it is restarted as often as before the jump
        seen.add(server.info("crasher")["pid"])
    server.do("stop", "crasher")
    log_in(server, "ann")  # it ends no session that has expired by this clock only
    jumping.wait_for_retention()
    assert server.info("web")["pid"] == pid
    assert runs(server) == kept
    assert server.ask("GET", f"{API}/me", headers=bearer(token)).status == 200
    assert server.get(f"{API}/events/count").json["totalEvents"] > events
    jumping.jump(0)
    jumping.wait_for_retention()
    assert runs(server) == kept
    assert server.ask("GET", f"{API}/me", headers=cookie(server, session)).status == 200
    history = server.events("web")
    assert [event["newStatus"] for event in history] == ["starting", "running"]
    assert "hours ahead" in server.log.read_text()  # at the jump or at the return


def test_last_stored_runs_are_kept_after_the_clock_went_back(jumping: JumpingServer) -> None:
    server = jumping.server
    jumping.jump(30 * 60)
    before = [post(server, number) for number in range(3)]
    jumping.jump(-30 * 60)
    after = [post(server, number) for number in range(3, 6)]
    jumping.wait_for_retention()
    assert set(after) <= set(runs(server))
    assert set(before) <= set(runs(server))  # runs with a later date are kept, too


class SetClock(Clock):
    """A clock whose wall time and boot time the test sets."""

    wall, boot = 1_800_000_000.0, 1000.0

    def now(self) -> int:
        return int(self.wall * 1_000_000)

    def since_boot(self) -> float:
        return self.boot

    def advance(self, seconds: float) -> None:
        self.wall, self.boot = self.wall + seconds, self.boot + seconds


def test_settled_time_follows_a_jump_ahead_after_a_day(caplog: pytest.LogCaptureFixture) -> None:
    clock = SetClock()
    clock.advance(100 * DAY)  # a long time without a reading, or a suspended machine, is not a jump
    assert clock.settled() == clock.now()
    clock.wall += 90 * DAY
    correct = clock.wall - 90 * DAY
    with caplog.at_level(logging.WARNING):
        for _ in range(23):
            clock.advance(HOUR)
            correct += HOUR
            assert clock.settled() == pytest.approx(correct * 1_000_000, abs=2)
    assert [record.message for record in caplog.records] == [
        "the clock jumped 2160.0 hours ahead: nothing is deleted by age for a day"
    ]
    clock.advance(2 * HOUR)
    assert clock.settled() == clock.now()


def test_nothing_expires_before_1970() -> None:
    clock = SetClock()
    assert clock.expired_before(30) == clock.now() - 30 * DAY * 1_000_000
    assert clock.expired_before(10**17) == 0


@pytest.mark.parametrize("jump", [-90 * DAY, -1.0, 10.0, 0.9 * HOUR])
def test_settled_time_follows_other_jumps_at_once(jump: float) -> None:
    clock = SetClock()
    clock.settled()
    clock.wall += jump
    assert clock.settled() == clock.now()


def test_settled_time_ignores_a_jump_that_was_reverted() -> None:
    clock = SetClock()
    for _ in range(3):
        clock.wall += 90 * DAY
        assert clock.settled() < clock.now()
        clock.advance(23 * HOUR)
        assert clock.settled() < clock.now()
        clock.wall -= 90 * DAY
        assert clock.settled() == clock.now()
