"""When schedules run: cron expressions, intervals, time zones and the two days a year on which clocks change."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest

from models.supervision.schedule import Due, Missed, Schedule, check_cron, check_timezone, usable, zone, zone_name

BERLIN = "Europe/Berlin"


def at(text: str, zone: str = "UTC") -> int:
    """An instant in microseconds; `fold` of a doubled hour is written with a trailing `*`."""
    fold = int(text.endswith("*"))
    moment = datetime.fromisoformat(text.rstrip("*")).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return round(moment.timestamp()) * 1_000_000


def utc(instant: int) -> str:
    return datetime.fromtimestamp(instant / 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        ("*/5 * * * *", "2026-03-01T10:00:00", ["2026-03-01T10:05:00", "2026-03-01T10:10:00"]),
        ("0 0 31 * *", "2026-01-31T00:00:00", ["2026-03-31T00:00:00", "2026-05-31T00:00:00"]),
        ("0 0 29 2 *", "2026-03-01T00:00:00", ["2028-02-29T00:00:00", "2032-02-29T00:00:00"]),
        ("15 10 * * MON-FRI", "2026-03-06T10:15:00", ["2026-03-09T10:15:00", "2026-03-10T10:15:00"]),
        ("0 0 13 * 5", "2026-03-01T00:00:00", ["2026-03-06T00:00:00", "2026-03-13T00:00:00"]),
        ("0 0 L * *", "2026-02-01T00:00:00", ["2026-02-28T00:00:00", "2026-03-31T00:00:00"]),
        ("@hourly", "2026-03-01T10:00:00", ["2026-03-01T11:00:00", "2026-03-01T12:00:00"]),
        ("@weekly", "2026-03-01T00:00:00", ["2026-03-08T00:00:00", "2026-03-15T00:00:00"]),
        ("@yearly", "2026-03-01T10:00:00", ["2027-01-01T00:00:00", "2028-01-01T00:00:00"]),
    ],
)
def test_cron_expression_has_the_expected_instants(cron: str, after: str, expected: list[str]) -> None:
    assert [utc(one) for one in islice(Schedule(check_cron(cron), timezone="UTC").after(at(after)), 2)] == expected


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        # the clock goes from 02:00 to 03:00 on 2026-03-29
        ("30 2 * * *", "2026-03-28T12:00:00", ["2026-03-29T01:00:00", "2026-03-30T00:30:00"]),
        ("*/30 * * * *", "2026-03-29T01:30:00", ["2026-03-29T01:00:00", "2026-03-29T01:30:00"]),
        ("0 4 * * *", "2026-03-28T12:00:00", ["2026-03-29T02:00:00", "2026-03-30T02:00:00"]),
        # the clock goes back from 03:00 to 02:00 on 2026-10-25
        ("30 2 * * *", "2026-10-24T12:00:00", ["2026-10-25T00:30:00", "2026-10-26T01:30:00"]),
        ("*/30 * * * *", "2026-10-25T02:00:00",
         ["2026-10-25T00:30:00", "2026-10-25T01:00:00", "2026-10-25T01:30:00", "2026-10-25T02:00:00"]),
    ],
)  # fmt: skip
def test_cron_at_clock_changes_runs_as_on_debian(cron: str, after: str, expected: list[str]) -> None:
    schedule = Schedule(cron, timezone=BERLIN)
    assert [utc(one) for one in islice(schedule.after(at(after, BERLIN)), len(expected))] == expected


@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
@pytest.mark.parametrize("cron", ["30 2 * * *", "0 2,3 * * *", "*/20 * * * *", "5 * * * *", "0 */2 * * *"])
def test_continuing_from_each_instant_gives_the_same_list_without_duplicates(cron: str, day: str) -> None:
    schedule, start = Schedule(cron, timezone=BERLIN), at(f"{day}T00:00:00", BERLIN)
    whole = list(islice(schedule.after(start), 40))
    assert whole == sorted(set(whole))
    stepped = [start]
    for _ in whole:
        following = schedule.next_after(stepped[-1])
        assert following is not None
        stepped.append(following)
    assert stepped[1:] == whole


def test_intervals_are_counted_from_1970() -> None:
    schedule = Schedule(every=90)
    assert list(islice(schedule.after(at("2026-03-01T00:00:01")), 2)) == [
        at("2026-03-01T00:01:30"),
        at("2026-03-01T00:03:00"),
    ]
    assert schedule.next_after(at("2026-03-01T00:01:30")) == at("2026-03-01T00:03:00")


@pytest.mark.parametrize(
    ("seconds", "expression"),
    [(90, "every 90s"), (900, "every 15m"), (7200, "every 2h"), (86_400, "every 1d"), (10.5, "every 10.5s")],
)
def test_an_interval_is_shown_in_its_largest_unit(seconds: float, expression: str) -> None:
    assert Schedule(every=seconds).expression == expression


@pytest.mark.parametrize("schedule", [Schedule("*/5 * * * *", timezone="UTC"), Schedule(every=300)])
def test_count_between_excludes_the_start_and_includes_the_end(schedule: Schedule) -> None:
    start = at("2026-03-01T00:00:00")
    assert schedule.count_between(start, start) == 0
    assert schedule.count_between(start, start - 1) == 0
    assert schedule.count_between(start, at("2026-03-01T00:05:00")) == 1
    assert schedule.count_between(start, at("2026-03-02T00:00:00")) == 288
    assert schedule.count_between(start, at("2027-03-01T00:00:00")) == 365 * 288


@pytest.mark.parametrize(
    "place", ["UTC", BERLIN, "Australia/Lord_Howe", "Africa/Cairo", "America/Havana", "America/Nuuk"]
)
@pytest.mark.parametrize(
    "cron",
    [
        "30 2 * * *",
        "*/20 * * * *",
        "15 0,3 1-7 * MON",
        "0 12 L * *",
        "*/45 1 * 3,4,10 *",
        "59 23 * * 5L",
        "45 23 * * 6",
    ],
)
def test_count_between_is_the_number_of_instants(cron: str, place: str) -> None:
    schedule = Schedule(cron, timezone=place)
    start = at("2026-03-20T13:07:11", place)
    for end in ("2026-03-20T13:07:12", "2026-03-21T00:00:00", "2026-03-30T02:30:00", "2026-04-26T03:10:00"):
        until = at(end, place)
        assert schedule.count_between(start, until) == len(list(takewhile(until.__ge__, schedule.after(start))))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("61 * * * *", "bad minute"), ("* 24 * * *", "bad hour"), ("* * 32 * *", "bad day-of-month"),
        ("* * * 13 *", "bad month"), ("* * * * 8", "bad day-of-week"), ("* * * *", "five fields"),
        ("0 * * * * *", "five fields"), ("@often", "not one of"), ("@reboot", "not one of"), ("", "five fields"),
        ("0 0 31 2 *", "bad day-of-month"), ("*/0 * * * *", "bad minute"), ("5-1 * * * *", "bad minute"),
    ],
)  # fmt: skip
def test_invalid_cron_expression_is_refused_and_its_field_is_named(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_cron(text)


@pytest.mark.parametrize(
    "name", ["Mars/Olympus", "", "../../etc/passwd", "Europe/Berlin\0", "/etc/localtime", "a" * 5000]
)
def test_an_unknown_time_zone_is_refused_and_the_package_is_named(name: str) -> None:
    with pytest.raises(ValueError, match="tzdata"):
        check_timezone(name)


def test_a_known_time_zone_is_accepted() -> None:
    assert check_timezone(BERLIN) == BERLIN


@pytest.mark.parametrize("zone", ["UTC", BERLIN, "Australia/Lord_Howe"])
@pytest.mark.parametrize("cron", ["30 2 * * *", "*/20 * * * *", "15 2,3 * * *", "0 0 1 * *"])
@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25", "2026-04-05", "2026-10-04"])
def test_latest_at_is_the_last_instant_of_a_forward_iteration(cron: str, zone: str, day: str) -> None:
    schedule = Schedule(cron, timezone=zone)
    start, end = at(f"{day}T00:00:00", zone), at(f"{day}T09:00:00", zone)
    forward = []
    for instant in schedule.after(start - (40 if cron.endswith("1 * *") else 2) * 86_400 * 1_000_000):
        forward.append(instant)
        if instant > end:
            break
    for now in range(start, end, 13 * 60 * 1_000_000):
        assert schedule.latest_at(now) == max((one for one in forward if one <= now), default=None), utc(now)


EVERY_FIVE = Schedule("*/5 * * * *", timezone="UTC")
RUN_ONCE = Schedule("*/5 * * * *", timezone="UTC", missed=Missed.RUN_ONCE)


JITTERED = Schedule("*/5 * * * *", timezone="UTC", jitter=120)


@pytest.mark.parametrize(
    ("schedule", "handled", "now", "expected"),
    [
        (EVERY_FIVE, "10:00:00", "10:04:59", ("10:00:00", None, 0)),
        (EVERY_FIVE, "10:00:00", "10:05:00", ("10:05:00", "10:05:00", 0)),
        (EVERY_FIVE, "10:00:00", "10:06:00", ("10:05:00", "10:05:00", 0)),
        (EVERY_FIVE, "10:00:00", "10:06:01", ("10:05:00", None, 1)),
        (EVERY_FIVE, "10:00:00", "11:00:30", ("11:00:00", "11:00:00", 11)),
        (EVERY_FIVE, "10:00:00", "11:02:30", ("11:00:00", None, 12)),
        (RUN_ONCE, "10:00:00", "11:02:30", ("11:00:00", "11:00:00", 12)),
        (JITTERED, "10:00:00", "10:08:00", ("10:05:00", "10:05:00", 0)),
        (JITTERED, "10:00:00", "10:08:01", ("10:05:00", None, 1)),
        (EVERY_FIVE, "10:05:00", "10:05:00", ("10:05:00", None, 0)),
        (EVERY_FIVE, "10:05:00", "09:40:00", ("10:05:00", None, 0)),  # the clock was set back: nothing runs twice
    ],
)
def test_due_returns_the_run_and_the_number_of_missed_runs(
    schedule: Schedule, handled: str, now: str, expected: tuple[str, str | None, int]
) -> None:
    (last_handled, run, missed), day = expected, "2026-03-01T"
    due = schedule.due(at(day + handled), at(day + now))
    assert due == Due(at(day + last_handled), at(day + run) if run else None, missed, schedule is RUN_ONCE)


def test_a_stored_instant_more_than_a_day_ahead_is_dropped() -> None:
    now = at("2026-03-01T10:05:00")
    for kept in (at("2026-03-02T10:04:00"), at("2026-03-02T10:05:00")):
        assert EVERY_FIVE.due(kept, now) == Due(kept)
        assert usable(kept, now) == kept
    assert usable(at("2026-03-02T10:05:01"), now) == now


@pytest.mark.parametrize(("jitter", "longest"), [(0, 0), (120, 120), (86_400, 300)])
def test_jitter_delays_a_run_but_never_beyond_the_next_one(jitter: float, longest: int) -> None:
    schedule, instant = Schedule("*/5 * * * *", timezone="UTC", jitter=jitter), at("2026-03-01T10:05:00")
    assert schedule.delayed(instant, 0.0) == instant
    assert instant + 0.49 * longest * 1e6 <= schedule.delayed(instant, 0.5) <= instant + 0.5 * longest * 1e6
    assert schedule.delayed(instant, 1.0) <= instant + longest * 1e6
    following = schedule.next_after(instant)
    assert following is not None
    assert schedule.delayed(instant, 1.0) < following


@pytest.mark.parametrize(
    ("variable", "expected"), [("Europe/Berlin", BERLIN), (":Asia/Tokyo", "Asia/Tokyo"), ("CET-1CEST", None)]
)
def test_host_time_zone_is_that_of_tz_or_of_etc_localtime(
    variable: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        zone.cache_clear()
        monkeypatch.delenv("TZ", raising=False)
        of_host = zone_name(None)
        assert of_host
        zone.cache_clear()
        monkeypatch.setenv("TZ", variable)
        assert zone_name(None) == (expected or of_host)
    finally:
        zone.cache_clear()
