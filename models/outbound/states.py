"""The state of each rule for each subject, and the messages that follow from it. For worker threads.

A subject becomes bad with one message, and good with another one after it was good for `resolve-after`. What happens
within `quiet` after a message is counted and reported once after it, but a subject that becomes bad is reported at
once, unless the last message reported that too: then it flaps. `group-wait` collects what happens at about the same
time, and what is beyond `max-per-hour` follows in the next hour. Everything is stored, so a restart neither loses nor
repeats a message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

from models.json_format import rfc3339
from models.outbound import account_mails
from models.outbound.events import SubjectEvent
from models.outbound.outbox import Message
from models.outbound.rules import SERVER, Rule
from models.outbound.tables import RULES_CHANNEL, store
from models.times import HOUR, SECOND

MAX_LINES = 50
MAX_TITLE_CHARACTERS = 300
MAX_SUBJECTS = 10_000
"""Subjects of one rule that are remembered; a new one beyond them replaces the one that was quiet for longest."""

_NAMES = "rule, subject, is_bad, reported, count, last_at, sent_at, due_at, good_at, last, good"
_GET = f"SELECT {_NAMES} FROM notify_state WHERE rule = ? AND subject = ?"  # noqa: S608 (our own column names)
_PUT = f"""
    INSERT INTO notify_state ({_NAMES}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (rule, subject) DO UPDATE SET is_bad = excluded.is_bad, reported = excluded.reported,
    count = excluded.count, last_at = excluded.last_at, sent_at = excluded.sent_at,
    due_at = excluded.due_at, good_at = excluded.good_at, last = excluded.last, good = excluded.good"""  # noqa: S608 (our own column names)
_RECOVERED = f"SELECT {_NAMES} FROM notify_state WHERE is_bad = 1 AND good_at <= ?"  # noqa: S608
_DUE_RULES = "SELECT DISTINCT rule FROM notify_state WHERE due_at <= ?"
_DUE = f"SELECT {_NAMES} FROM notify_state WHERE rule = ? AND due_at <= ? ORDER BY subject"  # noqa: S608
_NEXT = "SELECT min(due_at), min(CASE WHEN is_bad = 1 THEN good_at END) FROM notify_state"
_SUBJECTS = "SELECT count(*) FROM notify_state WHERE rule = ?"
_FORGET_ONE = """
    DELETE FROM notify_state WHERE rule = :rule AND subject = (SELECT subject FROM notify_state
        WHERE rule = :rule AND is_bad = 0 AND due_at IS NULL ORDER BY last_at LIMIT 1)"""
_FORGET = "DELETE FROM notify_state WHERE is_bad = 0 AND due_at IS NULL AND last_at < ?"
_HOUR_OF = "SELECT hour, sent FROM notify_hour WHERE rule = ?"
_SET_HOUR = (
    "INSERT INTO notify_hour (rule, hour, sent) VALUES (?, ?, ?) ON CONFLICT (rule) DO UPDATE SET"
    " hour = excluded.hour, sent = excluded.sent"
)


@define
class State:
    """The row of a rule and a subject. `reported`: 0 no message, 1 one since it became bad, 2 a second one."""

    rule: str
    subject: str
    is_bad: int
    reported: int
    count: int
    last_at: int
    sent_at: int | None
    due_at: int | None
    good_at: int | None
    last: str
    """What happened last that is not good, as JSON; `good` is the last event by which it became good."""
    good: str

    def keep(self) -> None:
        values = [getattr(self, name) for name in _NAMES.split(", ")]
        store.execute_sql(_PUT, values)


def apply(rules: Iterable[Rule], event: SubjectEvent, now: int) -> None:
    """Notes an event for all rules that are about it, in the caller's transaction."""
    shared = () if event.is_for_accounts else rules
    for rule in (*shared, *account_mails.rules_of(event)):
        if rule.selects(event) and (event.trend == "good" or rule.reports(event)):
            _apply(rule, event, now)


def _apply(rule: Rule, event: SubjectEvent, now: int) -> None:
    is_info = event.trend == "info"
    subject = f"{event.subject}|{event.type}" if is_info else event.subject
    row = store.execute_sql(_GET, (rule.id, subject)).fetchone()
    if row is None:
        if event.trend == "good" and not rule.reports(event):
            return
        is_full = store.execute_sql(_SUBJECTS, (rule.id,)).fetchone()[0] >= MAX_SUBJECTS
        if is_full and not store.execute_sql(_FORGET_ONE, {"rule": rule.id}).rowcount:
            return  # all others are bad, or about to be reported
        row = (rule.id, subject, 0, 0, 0, now, None, None, None, "", "")
    state = State(*row)
    if event.is_once and state.last:
        state.last_at = now  # it is remembered for as long as it is repeated
        state.keep()
        return
    if event.trend == "bad":
        _on_bad(state, rule, event, now)
    elif event.trend == "good" and state.is_bad:
        state.good_at = state.good_at or now + int(rule.settings.resolve_after * SECOND)
        state.good = _line_of(event)
    elif is_info or _is_reported_alone(rule, event):
        state.count, state.last_at, state.last, state.good = state.count + 1, now, _line_of(event), ""
        state.due_at = state.due_at or _due(state, rule, now)
    else:
        return
    state.keep()
    store.notify(RULES_CHANNEL)


def _is_reported_alone(rule: Rule, event: SubjectEvent) -> bool:
    """Whether a good event is reported of a subject that was good before."""
    is_repeated = event.type in ("gate.passed", "process.recovered")
    return rule.reports(event) and not (is_repeated and rule.settings.only_on_change)


def _on_bad(state: State, rule: Rule, event: SubjectEvent, now: int) -> None:
    is_new = not state.is_bad
    is_flapping = is_new and state.reported > 0
    if is_new:
        state.is_bad, state.reported, state.count = 1, 0, 0
    state.count, state.last_at, state.good_at, state.good = state.count + 1, now, None, ""
    is_worse = event.type == "process.gave-up" and _type_of(state.last) != event.type
    state.last = _line_of(event)
    if is_worse or (is_new and not is_flapping):
        soon = now + int(rule.settings.group_wait * SECOND)
        state.due_at = min(soon, state.due_at or soon)
    elif state.due_at is None and _is_repeated_soon(state, rule, now):
        state.due_at = _due(state, rule, now)


def _is_repeated_soon(state: State, rule: Rule, now: int) -> bool:
    """Whether a subject that stays bad is reported again: once within `quiet`; each time without `only-on-change`."""
    if not state.reported or not rule.settings.only_on_change:
        return True
    return state.reported == 1 and now < (state.sent_at or 0) + int(rule.settings.quiet * SECOND)


def _due(state: State, rule: Rule, now: int) -> int:
    quiet_end = 0 if state.sent_at is None else state.sent_at + int(rule.settings.quiet * SECOND)
    return max(now + int(rule.settings.group_wait * SECOND), quiet_end)


def _line_of(event: SubjectEvent) -> str:
    facts = {"type": event.type, "title": event.title[:MAX_TITLE_CHARACTERS], "link": event.link, "at": event.at}
    return json.dumps(facts, ensure_ascii=False)


def _type_of(line: str) -> str:
    return str(json.loads(line)["type"]) if line else ""


@frozen
class _Report:
    """A message of a rule: its lines, and how many did not fit."""

    lines: Sequence[Mapping[str, Any]] = field(repr=False)
    more: int = 0
    notice: str = ""


def due_messages(rules: Mapping[str, Rule], now: int) -> list[tuple[Rule, Mapping[str, Any]]]:
    """The payloads that are due, with their rules; marks them as sent, in the caller's transaction."""
    for row in store.execute_sql(_RECOVERED, (now,)).fetchall():
        _on_recovered(State(*row), rules, now)
    found = []
    for (id,) in store.execute_sql(_DUE_RULES, (now,)).fetchall():
        rule = account_mails.find(rules, id)
        until = now + (int(rule.settings.group_wait * SECOND) if rule else 0)
        states = [State(*row) for row in store.execute_sql(_DUE, (id, until)).fetchall()]
        if rule is not None:
            sent = _sent_in_hour(id, now)
            if sent >= rule.settings.max_per_hour:
                found += _postpone(rule, states, sent, now)
                continue
            found.append((rule, _payload(rule, _report(states), now)))
            store.execute_sql(_SET_HOUR, (id, now // HOUR, sent + 1))
        for state in states:
            state.sent_at, state.due_at, state.count = now, None, 0
            state.reported = state.reported + 1 if state.is_bad else 0
            state.good = state.good if state.is_bad else ""
            state.keep()
    return found


def _sent_in_hour(rule: str, now: int) -> int:
    row = store.execute_sql(_HOUR_OF, (rule,)).fetchone()
    return int(row[1]) if row and row[0] == now // HOUR else 0


def _postpone(rule: Rule, states: Sequence[State], sent: int, now: int) -> list[tuple[Rule, Mapping[str, Any]]]:
    """Makes due in the next hour what is beyond `max-per-hour`; returns the message about it, once in an hour."""
    next_hour, limit = (now // HOUR + 1) * HOUR, rule.settings.max_per_hour
    for state in states:
        state.due_at = next_hour
        state.keep()
    if sent > limit:
        return []
    store.execute_sql(_SET_HOUR, (rule.id, now // HOUR, sent + 1))
    until = rfc3339(next_hour)[11:16]
    notice = _Report([], notice=f"{limit} messages were sent within this hour: no more until {until} UTC")
    return [(rule, _payload(rule, notice, now))]


def _on_recovered(state: State, rules: Mapping[str, Rule], now: int) -> None:
    rule = account_mails.find(rules, state.rule)
    state.is_bad, state.good_at = 0, None
    if rule is not None and rule.settings.resolve and state.reported:
        state.due_at = now + int(rule.settings.group_wait * SECOND)
    elif state.due_at is None:
        state.count = 0
    state.keep()


def _report(states: Sequence[State]) -> _Report:
    return _Report([_line(state) for state in states[:MAX_LINES]], max(0, len(states) - MAX_LINES))


def _line(state: State) -> Mapping[str, Any]:
    is_recovery = not state.is_bad and bool(state.good)
    facts = json.loads(state.good if is_recovery and state.reported else state.last)
    title, times = facts["title"], f" ({state.count} times)" if state.count > 1 else ""
    if not is_recovery:
        title += times
    elif state.reported:
        title += f"; it failed {state.count} more times" if state.count else ""
    else:
        title += f"{times}; now {json.loads(state.good)['title']}"
    is_bad = state.is_bad or facts["type"] == "test.failing"
    trend = "bad" if is_bad else "good" if is_recovery or facts["type"] == "gate.passed" else "info"
    return {
        "event": facts["type"],
        "subject": state.subject.partition("|")[0],
        "state": trend,
        "title": title,
        "count": state.count,
        "at": rfc3339(facts["at"]),
        "link": facts["link"],
    }


def _payload(rule: Rule, report: _Report, now: int) -> Mapping[str, Any]:
    types = {line["event"] for line in report.lines}
    return {
        "type": types.pop() if len(types) == 1 else "notification",
        "timestamp": rfc3339(now),
        "data": {
            "rule": rule.settings.name,
            "title": report.notice or _title(report),
            "lines": list(report.lines),
            "more": report.more,
        },
    }


def _title(report: _Report) -> str:
    if len(report.lines) == 1 and not report.more:
        return str(report.lines[0]["title"])
    states = [line["state"] for line in report.lines]
    counted = {"problems": states.count("bad"), "good again": states.count("good"), "other": states.count("info")}
    text = ", ".join(f"{number} {what}" for what, number in counted.items() if number)
    return f"{text}, and {report.more} more" if report.more else text


def messages(due: Sequence[tuple[Rule, Mapping[str, Any]]], channels: Mapping[str, str]) -> list[Message]:
    """One message for each channel of a rule that exists. `channels`: by project and name or id, the id."""
    found = []
    for rule, payload in due:
        if rule.id.startswith(account_mails.PREFIX):
            found.append(Message("notify", rule.id, payload))
            continue
        ids = dict.fromkeys(channels.get(f"{rule.project_id}/{name}") for name in rule.settings.channels)
        project_id = None if rule.project_id == SERVER else rule.project_id
        found += [Message("notify", f"channel:{id}", payload, None, project_id) for id in ids if id]
    return found


def next_at() -> int | None:
    """When the next message is due or the next subject counts as good again."""
    times = [at for at in store.execute_sql(_NEXT).fetchone() if at is not None]
    return min(times) if times else None


def forget(before: int) -> None:
    """Forgets subjects that are good and of which nothing was heard since."""
    store.execute_sql(_FORGET, (before,))
