"""When a scheduled process runs: cron expressions and intervals, as pure functions of an instant.

Instants are microseconds since 1970 (UTC). Cron expressions follow Debian's cron, by `cronsim`: where the clock is set
forward, a job of the missing hour runs right after it; where the clock is set back, a job of the doubled hour runs
once; expressions with `*` in the minute or hour follow real time.
"""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import takewhile
from pathlib import Path

from attrs import frozen

from models.times import SECOND

MIN_INTERVAL_SECONDS, MAX_INTERVAL_SECONDS = 10.0, 366 * 86_400.0
MAX_JITTER_SECONDS = 86_400.0
LATE_SECONDS = 60
"""An instant that is noticed later than this was missed: the server was down or the host asleep."""
MAX_STORED_AHEAD_SECONDS = 86_400
MAX_COUNTED_DAYS = 3660
"""Missed instants of a cron expression are counted over so many days at most."""

_DAY_SECONDS, _MAX_FIXUP_SECONDS = 86_400, 3 * 3600
_LOCALTIME = Path("/etc/localtime")
_UNITS = {"d": 86_400, "h": 3600, "m": 60}
_NAMED = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}  # fmt: skip


class Overlap(enum.Enum):
    """What happens to an instant while the previous run is in progress."""

    SKIP = "skip"
    QUEUE = "queue"
    REPLACE = "replace"


class Missed(enum.Enum):
    """What happens to the instants that passed while the server was down or the host asleep."""

    SKIP = "skip"
    RUN_ONCE = "run-once"


@frozen
class Due:
    """The actions that are due at an instant."""

    handled: int
    """The newest handled instant: it is stored and never runs again."""
    run: int | None = None
    """The instant that runs now."""
    missed: int = 0
    """How many instants passed without a run in time."""
    is_made_up: bool = False
    """Whether the run is for an instant that was missed."""


@frozen
class Schedule:
    """Exactly one of `cron` and `every`, and what to do about overlapping and missed runs."""

    cron: str | None = None
    every: float | None = None
    """Seconds, counted from 1970."""
    timezone: str | None = None
    """An IANA name; `None` is the time zone of the host."""
    overlap: Overlap = Overlap.SKIP
    missed: Missed = Missed.SKIP
    jitter: float = 0
    """Seconds, of which a random part delays each run."""

    @property
    def expression(self) -> str:
        """As it is shown: the cron expression, or `every 15m`."""
        if self.cron is not None:
            return self.cron
        seconds = self.every or 0.0
        unit, length = next(((unit, n) for unit, n in _UNITS.items() if seconds % n == 0), ("s", 1))
        return f"every {seconds / length:.10g}{unit}"

    @property
    def times(self) -> str:
        """Equal for schedules that have the same instants."""
        return sys.intern(f"{self.expression} {self.timezone or ''}".rstrip())

    def after(self, instant: int) -> Iterator[int]:
        """The instants later than `instant`, in order, without jitter. Ends if a cron expression has no more."""
        if self.every is None:
            yield from _cron_instants(_five_fields(self.cron or ""), zone(self.timezone), instant)
            return
        step = round(self.every * SECOND)
        following = instant - instant % step + step
        while True:
            yield following
            following += step

    def next_after(self, instant: int) -> int | None:
        """The first instant later than `instant`; `None` if there is none."""
        return next(self.after(instant), None)

    def latest_at(self, now: int) -> int | None:
        """The last instant that is not later than `now`."""
        if self.every is not None:
            return now - now % round(self.every * SECOND)
        return _latest(_five_fields(self.cron or ""), zone(self.timezone), now)

    def delayed(self, instant: int, chance: float) -> int:
        """When `instant` runs: later by a part (`chance`, 0 to 1) of the jitter, but before the next instant."""
        if not self.jitter:
            return instant
        following = self.next_after(instant)
        span = self.jitter * SECOND
        return instant + int(chance * (span if following is None else min(span, following - instant - 1)))

    def due(self, handled: int, now: int) -> Due:
        """What is due at `now`, where `handled` is the newest instant that was dealt with before."""
        first = self.next_after(handled)
        if first is None or first > now:
            return Due(handled)
        second = self.next_after(first)
        latest = first if second is None or second > now else self.latest_at(now) or first
        passed = 1 if latest == first else self.count_between(handled, latest)
        if now - latest <= (LATE_SECONDS + self.jitter) * SECOND:
            return Due(latest, latest, passed - 1)
        makes_up = self.missed is Missed.RUN_ONCE
        return Due(latest, latest if makes_up else None, passed, makes_up)

    def count_between(self, after: int, until: int) -> int:
        """How many instants lie in (after, until]."""
        if until <= after:
            return 0
        if self.every is not None:
            step = round(self.every * SECOND)
            return until // step - after // step
        after = max(after, until - MAX_COUNTED_DAYS * _DAY_SECONDS * SECOND)
        return _count(_five_fields(self.cron or ""), zone(self.timezone), after, until)


def usable(handled: int, now: int) -> int:
    """A stored instant; `now` in place of one more than a day ahead: the clock was wrong when it was stored."""
    return now if handled > now + MAX_STORED_AHEAD_SECONDS * SECOND else handled


def check_cron(text: str) -> str:
    """The expression, if it has five fields that `cronsim` accepts or is one of `@hourly` to `@yearly`.

    Raises `ValueError`, which names the field.
    """
    from cronsim import CronSim, CronSimError  # imported with the first schedule

    fields = _five_fields(text)
    if fields.startswith("@"):
        raise ValueError(f"is not one of {', '.join(_NAMED)}")
    if len(fields.split()) != 5:
        raise ValueError("must have five fields: minute, hour, day of month, month, day of week")
    try:
        next(CronSim(fields, datetime(2000, 1, 1, tzinfo=UTC)))
    except (CronSimError, AssertionError) as error:
        raise ValueError(f"is not a cron expression: {str(error).lower() or 'bad step'}") from None
    except StopIteration:
        raise ValueError("has no instant within fifty years") from None
    return " ".join(text.split())


def check_timezone(name: str) -> str:
    """The name, if the time zone database has it. Raises `ValueError`."""
    try:
        zone(name)
    except (LookupError, OSError, ValueError):  # ZoneInfoNotFoundError is a KeyError
        raise ValueError("is not a time zone of this host's database (package tzdata)") from None
    return name


@lru_cache(maxsize=64)
def zone(name: str | None) -> tzinfo:
    """The time zone of that IANA name, or the host's. Raises `LookupError` or `ValueError` for an unknown name."""
    from zoneinfo import ZoneInfo  # imported with the first schedule

    if name is not None:
        return ZoneInfo(name)
    try:
        if variable := os.environ.get("TZ", "").removeprefix(":"):
            return ZoneInfo(variable)
    except (LookupError, OSError, ValueError):
        pass
    try:
        with _LOCALTIME.open("rb") as file:  # its rules, not only its offset of today: it is a TZif file
            return ZoneInfo.from_file(file, _localtime_name())
    except (OSError, ValueError):
        return UTC


def zone_name(name: str | None) -> str:
    """The name to show for a time zone; `None` is the host's."""
    return name or getattr(zone(None), "key", None) or "UTC"


def _localtime_name() -> str:
    """The IANA name that /etc/localtime links to; `localtime` where it is a copy."""
    _, found, name = str(_LOCALTIME.resolve()).partition("/zoneinfo/")
    return name.removeprefix("Etc/") if found else "localtime"


def _five_fields(text: str) -> str:
    return _NAMED.get(text.strip().lower(), text.strip())


def _cron_instants(fields: str, place: tzinfo, instant: int) -> Iterator[int]:
    from cronsim import CronSim

    last = instant
    for moment in CronSim(fields, datetime.fromtimestamp(instant // SECOND, place)):
        found = int(moment.timestamp()) * SECOND
        if found > last:  # an hour that comes twice must not run a job twice
            last = found
            yield found


def _latest(fields: str, place: tzinfo, now: int) -> int | None:
    """The last instant up to `now`: found from a moment before it, since only forward steps know Debian's rules."""
    from cronsim import CronSim

    moment = datetime.fromtimestamp(now // SECOND + 1, place)
    before = next(CronSim(fields, moment, reverse=True), None)
    if before is None:
        return None
    latest = None
    for instant in _cron_instants(fields, place, (int(before.timestamp()) - _MAX_FIXUP_SECONDS) * SECOND):
        if instant > now:
            break
        latest = instant
    return latest


def _count(fields: str, place: tzinfo, after: int, until: int) -> int:
    """The instants in (after, until]: by multiplication for days on which the clock is not changed, else one by one."""
    from cronsim import CronSim

    cron = CronSim(fields, datetime.fromtimestamp(after // SECOND, place))
    a_day, total, day = len(cron.hours) * len(cron.minutes), 0, datetime.fromtimestamp(after // SECOND, place).date()
    while (start := _midnight(day, place)) <= until:
        days = _even_days(day, place, until) if after < start else 0
        for _ in range(days):
            total += a_day if day.month in cron.months and cron.match_day(day) else 0
            day += timedelta(days=1)
        if not days:
            day += timedelta(days=1)
            last = min(until, _midnight(day, place) - 1)
            total += sum(1 for _ in takewhile(last.__ge__, _cron_instants(fields, place, max(after, start - 1))))
    return total


def _even_days(day: date, place: tzinfo, until: int) -> int:
    """How many days from `day` on end before `until` without a change of the clock: 14, 1 or 0."""
    start = _midnight(day, place)
    first = datetime.fromtimestamp(start // SECOND - _MAX_FIXUP_SECONDS, place)  # a run of the day before may come late
    for days in (14, 1):
        end = _midnight(day + timedelta(days=days), place)
        last = datetime.fromtimestamp(end // SECOND - 1, place)
        is_even = end - start == days * _DAY_SECONDS * SECOND and first.utcoffset() == last.utcoffset()
        if end - 1 <= until and is_even:
            return days
    return 0


def _midnight(day: date, place: tzinfo) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=place).timestamp()) * SECOND
