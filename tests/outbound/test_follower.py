"""Runs that cannot be judged, and errors that nobody expects, stop no other notification."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import records
from attrs import evolve
from outbound_stores import LIMITS, NOW, SECOND, FixedClock, in_store, open_outbox, run_in_thread, written

from models.config.settings import Config, NotifyRuleSettings
from models.errors import TimedOut
from models.outbound import dropped, following, outbox, run_verdicts
from models.outbound.channels import Channel, StoredSettings
from models.outbound.events import SubjectEvent
from models.outbound.outbox import Message
from models.outbound.rules import SERVER, Rule
from models.supervision.process import Seconds
from models.tracker.tables import Run
from supervisor import scheduling
from supervisor.outbound import dispatcher, follower
from supervisor.outbound.dispatcher import Dispatcher
from supervisor.outbound.follower import RUNS, EventFollower


@pytest.fixture(autouse=True)
def _store(tmp_path: Path) -> Iterator[None]:
    with open_outbox(tmp_path / "outbox.db"):
        yield


class Notifier:
    rules = {"r": Rule("r", SERVER, NotifyRuleSettings("all", ("ch",), ("*",), group_wait=Seconds(0)))}
    channels = {"ch": Channel("ch", SERVER, "team", StoredSettings("slack"))}
    is_used, has_mail = True, False


class Reports:
    """The store of runs, which a test replaces."""

    @staticmethod
    def run_with_timeout(work: Callable[[], Any], _: float) -> Any:
        return work()


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> EventFollower:
    notifier: Any = Notifier()
    made = EventFollower(Config(), FixedClock(), "node", run_in_thread, notifier, dict, lambda: None)
    monkeypatch.setattr(made, "_follow_some", lambda: False)
    monkeypatch.setattr(made, "_note_tokens", lambda: None)
    monkeypatch.setattr(follower, "reports", Reports)
    return made


def titles() -> list[str]:
    return [row.content["data"]["title"] for row in in_store(lambda: outbox.listing(10, 2**62))]


def await_runs(*ids: int) -> None:
    in_store(lambda: following.start(RUNS, 0))
    assert in_store(lambda: following.await_runs(RUNS, 0, 1, ids))


def test_a_run_that_cannot_be_judged_delays_no_other(one: EventFollower, monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(id: int, *_: object) -> Sequence[SubjectEvent]:
        if id == 1:
            raise TimedOut("the query took longer than 20 s")
        return [SubjectEvent("gate.failed", f"run:{id}", NOW, f"run {id} failed")]

    await_runs(1, 2, 3)
    monkeypatch.setattr(run_verdicts, "complete", lambda ids: [id for id in ids if id != 2])
    monkeypatch.setattr(run_verdicts, "judge", judge)
    assert asyncio.run(one._round()) == follower._AWAITED_SECONDS
    assert titles() == ["run 3 failed"]
    assert in_store(following.awaited_runs) == [1, 2]


def test_runs_are_judged_for_a_moment_and_then_further(one: EventFollower, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[int] = []

    def judge(id: int, *_: object) -> Sequence[SubjectEvent]:
        judged.append(id)
        return []

    await_runs(*range(1, 6))
    monkeypatch.setattr(follower, "_JUDGING_SECONDS", -1.0)
    monkeypatch.setattr(run_verdicts, "complete", lambda ids: ids)
    monkeypatch.setattr(run_verdicts, "judge", judge)
    assert asyncio.run(one._round()) == 0.0
    assert judged == []
    monkeypatch.setattr(follower, "_JUDGING_SECONDS", 60.0)
    asyncio.run(one._round())
    assert (judged, in_store(following.awaited_runs)) == ([1, 2, 3, 4, 5], [])


def test_a_run_whose_project_was_deleted_has_no_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(id=1, project_id=99, state="COMPLETE", branch="main", flag="unit")
    monkeypatch.setattr(run_verdicts, "runs_by_id", lambda ids: dict.fromkeys(ids, run))
    monkeypatch.setattr(run_verdicts, "_is_newest", lambda _: True)
    with records.open_store(tmp_path / "tracker.db"):
        assert run_verdicts.judge(1, Config().tracker.quality_gate, NOW) == []


@pytest.mark.parametrize("unreadable", ["runs", "events"])
def test_what_is_due_is_sent_though_others_cannot_be_read(
    one: EventFollower, monkeypatch: pytest.MonkeyPatch, unreadable: str
) -> None:
    def fail(*_: object) -> Any:
        raise TimedOut("the query took longer than 20 s")

    await_runs(1)
    owner, name = (run_verdicts, "complete") if unreadable == "runs" else (one, "_follow_some")
    monkeypatch.setattr(owner, name, fail)
    event = SubjectEvent("process.crashed", "process:web", NOW, "web crashed", process="web")
    in_store(lambda: following.note(event, list(Notifier.rules.values()), NOW))
    with pytest.raises(TimedOut):
        asyncio.run(one._round())
    assert titles() == ["web crashed"]


def fill(target: str, count: int, type: str = "process.crashed", now: int = NOW) -> None:
    """Adds messages to an outbox that has room for three."""
    payload = {"type": type, "data": {"title": f"to {target}"}}
    for _ in range(count):
        written(lambda: outbox.add([Message("notify", target, payload)], now, evolve(LIMITS, max_rows=3)))


def test_what_a_full_outbox_drops_is_reported_once_in_a_window_for_each_target(one: EventFollower) -> None:
    clock = FixedClock()
    one._clock = clock
    fill("channel:ch", 5)
    assert asyncio.run(one._round()) is None
    (report,) = (title for title in titles() if "outbox" in title)
    assert report == "2 messages to team could not be delivered: the outbox was full"
    fill("channel:ch", 4)
    assert asyncio.run(one._round()) == dropped.WINDOW_SECONDS
    assert [title for title in titles() if "outbox" in title] in ([], [report])  # it may be dropped too
    clock.time += dropped.WINDOW_SECONDS * SECOND
    assert asyncio.run(one._round()) is None
    (again,) = (title for title in titles() if "outbox" in title and title != report)
    assert again.endswith("messages to team could not be delivered: the outbox was full")


def test_a_dropped_report_of_what_was_dropped_is_not_reported(one: EventFollower) -> None:
    fill("channel:ch", 9, "delivery.dead")
    assert in_store(dropped.next_at) is None
    fill("channel:ch", 1)
    assert in_store(dropped.next_at) is None, "the oldest was dropped"


def test_what_was_dropped_while_no_rule_reported_it_is_forgotten(one: EventFollower) -> None:
    fill("channel:ch", 5, now=NOW - 2 * 3600 * SECOND)
    assert asyncio.run(one._round()) is None
    assert [title for title in titles() if "outbox" in title] == []


def test_an_idle_node_of_several_sleeps(one: EventFollower, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one, "_is_shared", True)
    monkeypatch.setattr(one, "_read", lambda: None)
    assert asyncio.run(one._round()) is None
    unused: Any = None
    sender = Dispatcher(run_in_thread, FixedClock(), "node", LIMITS, unused, unused, unused)
    assert asyncio.run(sender._round()) is None


async def survives(watch: Callable[[], Any], rounds: list[int]) -> None:
    watching = asyncio.create_task(watch())
    async with asyncio.timeout(30):
        while len(rounds) < 2:
            await asyncio.sleep(0.01)
    watching.cancel()


def test_the_loops_survive_any_error(one: EventFollower, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []

    async def fail() -> None:
        rounds.append(1)
        raise LookupError("not expected")

    monkeypatch.setattr(scheduling, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(dispatcher, "_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(one, "_round", fail)
    asyncio.run(survives(one.watch, rounds))
    rounds.clear()
    unused: Any = None
    sender = Dispatcher(run_in_thread, FixedClock(), "node", LIMITS, unused, unused, unused)
    monkeypatch.setattr(sender, "_round", fail)
    asyncio.run(survives(sender.watch, rounds))
