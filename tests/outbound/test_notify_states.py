"""The state of a rule for each subject: when a message is sent, what it counts, and when something is good again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from outbound_stores import LIMITS, NOW, SECOND, in_store, open_outbox, written

from models.config import settings as config
from models.config.settings import NotifyRuleSettings
from models.outbound import following, outbox, states
from models.outbound.channels import Channel, StoredSettings, by_name, of_config
from models.outbound.events import SubjectEvent, of_run
from models.outbound.rules import SERVER, Rule
from models.supervision.process import Seconds

RULE = NotifyRuleSettings("all", ("ch",), ("process.*", "gate.*"))
CHANNELS = [Channel("ch", SERVER, "team", StoredSettings("slack"))]
MINUTE = 60 * SECOND


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, database_url: str | None) -> Iterator[None]:
    with open_outbox(tmp_path / "outbox.db", database_url):
        yield


class Notified:
    """A rule over a time that the test sets."""

    def __init__(self, **changes: Any) -> None:
        self.rules = [Rule("r", SERVER, evolve(RULE, **changes))]
        self.now = NOW
        self.titles: list[str] = []

    def event(self, type: str, process: str = "web") -> None:
        self.at(SubjectEvent(f"process.{type}", f"process:{process}", self.now, f"{process} {type}", process=process))

    def at(self, event: SubjectEvent) -> None:
        written(lambda: states.apply(self.rules, event, self.now))

    def wait(self, seconds: float) -> list[str]:
        """Passes time, with a flush when one is due; returns the titles of the messages."""
        end, begun = self.now + int(seconds * SECOND), len(self.titles)
        while (due := in_store(states.next_at)) is not None and due <= end:
            self.now = max(self.now, due)
            self.flush()
        self.now = end
        return self.titles[begun:]

    def flush(self) -> None:
        in_store(lambda: following.flush(self.rules, CHANNELS, self.now, LIMITS))
        rows = in_store(lambda: outbox.listing(1000, 2**62))
        self.titles = [row.content["data"]["title"] for row in reversed(rows)]


def test_one_message_when_it_becomes_bad_and_one_when_it_is_good() -> None:
    notified = Notified()
    notified.event("crashed")
    assert notified.wait(9) == []
    assert notified.wait(2) == ["web crashed"]
    notified.event("started")
    assert notified.wait(55) == []
    assert notified.wait(20) == ["web started"]
    assert notified.wait(3600) == []


def test_a_hundred_crashes_in_a_minute_are_one_message_and_one_when_it_is_good() -> None:
    notified = Notified()
    for _ in range(100):
        notified.event("crashed")
        notified.wait(0.3)
        notified.event("started")
        notified.wait(0.3)
    assert notified.titles == ["web crashed (17 times)"]
    assert notified.wait(100) == ["web started; it failed 83 more times"]


def test_fifty_processes_at_once_are_one_message() -> None:
    notified = Notified()
    for number in range(62):
        notified.event("crashed", f"web{number:02}")
        notified.wait(0.05)
    assert notified.wait(30) == ["50 problems, and 12 more"]
    (row,) = in_store(lambda: outbox.listing(10, 2**62))
    assert (len(row.content["data"]["lines"]), row.content["data"]["more"]) == (50, 12)
    for number in range(62):
        notified.event("started", f"web{number:02}")
        notified.wait(0.05)
    assert notified.wait(100) == ["50 good again, and 12 more"]


def test_what_comes_within_the_quiet_time_is_reported_once_after_it() -> None:
    notified = Notified()
    notified.event("crashed")
    notified.wait(60)
    for _ in range(3):
        notified.event("crashed")
        notified.wait(60)
    assert notified.titles == ["web crashed"]
    assert notified.wait(900) == ["web crashed (3 times)"]
    notified.event("crashed")
    assert notified.wait(7200) == [], "it stays bad"


def test_a_new_subject_replaces_the_one_that_was_quiet_for_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "MAX_SUBJECTS", 2)
    notified = Notified()
    for process in ("bad", "quiet"):
        notified.event("crashed", process)
        notified.wait(20)
    notified.event("started", "quiet")
    notified.wait(100)
    notified.event("crashed", "new")
    notified.wait(20)
    notified.event("crashed", "beyond")
    notified.wait(20)
    assert notified.titles == ["bad crashed", "quiet crashed", "quiet started", "new crashed"], "both others are bad"


def test_without_only_on_change_each_quiet_time_has_a_message() -> None:
    notified = Notified(only_on_change=False, quiet=Seconds(60))
    for _ in range(4):
        notified.event("crashed")
        notified.wait(120)
    assert notified.titles == ["web crashed"] * 4


def test_a_short_recovery_is_none() -> None:
    notified = Notified()
    notified.event("crashed")
    notified.wait(20)
    notified.event("started")
    notified.wait(50)
    notified.event("crashed")
    notified.wait(500)
    assert notified.titles == ["web crashed"]


def test_no_message_for_what_is_good_again_where_the_rule_wants_none() -> None:
    notified = Notified(resolve=False)
    notified.event("crashed")
    notified.wait(20)
    notified.event("started")
    assert notified.wait(3600) == []
    notified.event("crashed")
    assert notified.wait(20) == ["web crashed"]


def test_that_a_process_is_given_up_is_reported_within_the_quiet_time() -> None:
    notified = Notified()
    notified.event("crashed")
    notified.wait(20)
    notified.event("crashed")
    notified.event("gave-up")
    assert notified.wait(11) == ["web gave-up (2 times)"]


@pytest.mark.parametrize("pause", [1, 30])
def test_a_crash_right_after_a_start_is_reported_at_once(pause: int) -> None:
    notified = Notified()
    notified.event("started")
    notified.wait(pause)
    notified.event("crashed")
    notified.wait(11)
    assert notified.titles[-1] == "web crashed"


def test_a_crash_right_after_good_again_is_reported_at_once() -> None:
    notified = Notified()
    notified.event("crashed")
    notified.wait(20)
    notified.event("started")
    assert notified.wait(100) == ["web started"]
    notified.event("stopped")  # due after the quiet time
    notified.event("crashed")
    assert notified.wait(11) == ["web crashed"]


def test_what_flaps_is_quiet_where_the_last_message_is_that_it_is_bad() -> None:
    notified = Notified(resolve=False)
    notified.event("crashed")
    notified.wait(20)
    notified.event("started")
    notified.wait(100)
    notified.event("crashed")
    assert notified.wait(700) == []
    assert notified.wait(200) == ["web crashed"]


def test_messages_beyond_max_per_hour_follow_in_the_next_hour_after_one_that_says_so() -> None:
    notified = Notified(max_per_hour=2, group_wait=Seconds(0))
    for number in range(5):
        notified.event("crashed", f"web{number}")
        notified.wait(1)
    notified.event("crashed", "web4")
    hour = NOW // (3600 * SECOND) + 1
    until = f"{hour % 24:02}:00"
    limit = f"2 messages were sent within this hour: no more until {until} UTC"
    assert notified.titles == ["web0 crashed", "web1 crashed", limit]
    notified.event("started", "web3")
    assert notified.wait(3600) == ["2 problems, 1 good again"]
    (row, *_) = in_store(lambda: outbox.listing(1, 2**62))
    assert [line["title"] for line in row.content["data"]["lines"]] == [
        "web2 crashed", "web3 crashed; now web3 started", "web4 crashed (2 times)",
    ]  # fmt: skip
    notified.event("crashed", "later")
    assert notified.wait(1) == ["later crashed"]


def test_a_restart_repeats_and_loses_nothing() -> None:
    notified = Notified()
    notified.event("crashed")
    again = Notified()
    again.now = notified.now
    again.wait(15)
    again.flush()
    assert again.titles == ["web crashed"]
    third = Notified()
    third.now = again.now
    third.event("started")
    third.wait(200)
    third.flush()
    assert third.titles == ["web crashed", "web started"]


def test_only_selected_processes_labels_and_events() -> None:
    notified = Notified(processes=("web*",), labels=("prod*",), events=("process.crashed",))
    notified.event("crashed")
    labelled = SubjectEvent("process.crashed", "process:web1", NOW, "web1", process="web1", labels=("production",))
    notified.at(labelled)
    notified.at(evolve(labelled, subject="process:db", process="db", title="db"))
    notified.at(evolve(labelled, type="process.unhealthy", subject="process:web2", title="web2"))
    notified.wait(60)
    assert notified.titles == ["web1"]


def run_event(type: str, **facts: Any) -> SubjectEvent:
    given = {"id": 1, "project_id": 7, "project": "shop", "branch": "main", "flag": "unit"}
    return of_run(type, {**given, "base_branch": "main", "pr_number": None, **facts}, NOW, f"{type} {facts or ''}")


def test_gates_of_the_base_branch_only_unless_branches_are_named() -> None:
    notified = Notified()
    notified.at(run_event("gate.failed"))
    notified.at(run_event("gate.failed", branch="topic"))
    notified.at(run_event("gate.failed", pr_number=4, flag="x"))
    notified.at(run_event("gate.passed", flag="green"))
    assert notified.wait(60) == ["gate.failed "]
    notified.rules = [Rule("other", SERVER, evolve(RULE, branches=("*",)))]
    notified.at(run_event("gate.failed", branch="topic"))
    assert notified.wait(60) == ["gate.failed {'branch': 'topic'}"]


def test_a_rule_of_a_project_is_about_events_of_that_project_only() -> None:
    notified = Notified()
    notified.rules = [Rule("r", 7, evolve(RULE, events=("*",)))]
    notified.event("crashed")
    assert not notified.rules[0].selects(run_event("gate.failed", project_id=8))
    assert notified.rules[0].selects(run_event("gate.failed"))
    assert notified.wait(60) == []


def test_of_two_channels_with_one_name_that_of_the_configuration_counts() -> None:
    (configured,) = of_config({"team": config.ChannelSettings("slack")})
    stored = Channel("ch_1", SERVER, "team", StoredSettings("slack"))  # the configuration has another one since
    for both in ([configured, stored], [stored, configured]):
        assert by_name(both) == {"0/team": configured.id, f"0/{configured.id}": configured.id, "0/ch_1": "ch_1"}


def test_positions_move_with_the_events_and_only_once() -> None:
    rules = [Rule("r", SERVER, RULE)]
    assert in_store(lambda: following.start("event a", 41)) == 41
    event = SubjectEvent("process.crashed", "process:web", NOW, "web crashed", process="web")
    assert in_store(lambda: following.apply("event a", 41, 42, [event], rules, NOW))
    assert not in_store(lambda: following.apply("event a", 41, 42, [event], rules, NOW)), "another node did it"
    in_store(lambda: following.flush(rules, CHANNELS, NOW + MINUTE, LIMITS))
    assert [row.content["data"]["lines"][0]["count"] for row in in_store(lambda: outbox.listing(9, 2**62))] == [1]
    assert in_store(lambda: following.start("event a", 50)) == 42
    assert in_store(lambda: following.start("event a", 3)) == 3, "the source was restored from a backup"


def test_what_is_not_followed_any_more_begins_anew_without_the_runs_that_were_awaited() -> None:
    in_store(lambda: following.start("run", 41))
    in_store(lambda: following.start("other node", 7))
    assert in_store(lambda: following.await_runs("run", 41, 42, [5]))
    in_store(lambda: following.stop(["run", "event a"]))
    assert in_store(following.awaited_runs) == []
    assert [in_store(lambda: following.start(name, 50)) for name in ("run", "other node")] == [50, 7]  # noqa: B023
