"""Search of runs and tests of all projects that a caller may read, and of the tests and failures of one project.

No index serves a part of a name: each search reads rows, and the palette sends one for each key that is pressed. So the
search of all projects reads the newest rows only, and that of one project ends after a time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import peewee
from attrs import frozen

from models.accounts.accounts import User
from models.accounts.permissions import readable
from models.paging import INT64, decode_cursor, encode_cursor
from models.tracker.failures import clusters
from models.tracker.failures.clusters import ClusterInfo
from models.tracker.failures.triage import TriageRuleInfo
from models.tracker.tables import Project, Run, Test, reports

Item = TypeVar("Item")

MIN_TEST_CHARACTERS = 3
"""Shorter texts are not searched in the names of tests, of which there may be millions."""
MAX_RUNS, MAX_TESTS = 20_000, 100_000
"""Among how many of the newest runs and tests a name is searched."""
_MAX_WORDS = 8
MAX_SECONDS = 2.0
"""How long a search of one project reads before it returns what it has."""
_BATCH_ROWS = 2_000
_TESTS_OF_PROJECT = """
    SELECT id, class_name, name, file FROM test WHERE project_id = ? AND id > ? ORDER BY id LIMIT ?"""


@frozen
class FoundRun:
    id: int
    project: str
    branch: str | None
    commit: str | None
    status: str


@frozen
class FoundTest:
    project_id: int
    project: str
    class_name: str
    name: str


def find_runs(user: User | None, text: str, limit: int) -> list[FoundRun]:
    """The newest runs with this number, or whose commit begins with the text, or whose branch contains it."""
    matches = (Run.id > _newest(Run) - MAX_RUNS) & (Run.commit_sha.startswith(text) | Run.branch.contains(text))
    if text.isascii() and text.isdigit() and int(text) <= INT64:
        matches |= Run.id == int(text)
    query = (
        Run.select(Run.id, Project.name, Run.branch, Run.commit_sha, Run.status)
        .join(Project)
        .where(matches, readable(user, Project), Run.superseded_by.is_null())
        .order_by(Run.id.desc())
        .limit(limit)
    )
    return [FoundRun(*row) for row in query.tuples()]


@frozen
class DatedRun:
    """A run; `at` is the time of its first upload in microseconds since 1970."""

    id: int
    project: str
    status: str
    at: int


def runs_between(user: User | None, start: int, end: int, project: str, limit: int) -> list[DatedRun]:
    """The newest of the runs made in this time, in projects with this text in their name."""
    query = (
        Run.select(Run.id, Project.name, Run.status, Run.created_at)
        .join(Project)
        .where(
            Run.id > _newest(Run) - MAX_RUNS, Run.created_at.between(start, end), Project.name.contains(project),
            readable(user, Project), Run.superseded_by.is_null(),
        )
        .order_by(Run.id.desc())
        .limit(limit)
    )  # fmt: skip
    return [DatedRun(*row) for row in query.tuples()]


def find_tests(user: User | None, text: str, limit: int) -> list[FoundTest]:
    """The newest tests whose class or name contains each word of the text."""
    if len(text) < MIN_TEST_CHARACTERS:
        return []
    words = [Test.name.contains(word) | Test.class_name.contains(word) for word in text.split()[:_MAX_WORDS]]
    query = (
        Test.select(Project.id, Project.name, Test.class_name, Test.name)
        .join(Project)
        .where(Test.id > _newest(Test) - MAX_TESTS, *words, readable(user, Project))
        .order_by(Test.id.desc())
        .limit(limit)
    )
    return [FoundTest(*row) for row in query.tuples()]


def _newest(model: type[Run] | type[Test]) -> int:
    return model.select(peewee.fn.max(model.id)).scalar() or 0


@frozen
class ProjectTest:
    id: int
    class_name: str
    name: str
    file: str | None


@frozen
class Found(Generic[Item]):
    """`is_partial`: the time was over before the list was complete; the search goes on at `next_cursor`."""

    items: Sequence[Item]
    next_cursor: str | None
    is_partial: bool


def project_tests(project_id: int, q: str, cursor: str | None, limit: int) -> Found[ProjectTest]:
    """The tests whose class and name contain all words of `q`, in any case. Raises `Invalid`."""
    (after,) = decode_cursor(cursor, int) if cursor else (0,)
    words, end = q.casefold().split(), time.monotonic() + MAX_SECONDS
    found: list[ProjectTest] = []
    while True:
        rows: list[Any] = reports.execute_sql(_TESTS_OF_PROJECT, (project_id, after, _BATCH_ROWS)).fetchall()
        for row in rows:
            text = f"{row[1]} {row[2]}".casefold()
            if all(word in text for word in words):
                if len(found) == limit:
                    return Found(found, encode_cursor(after), False)
                found.append(ProjectTest(*row))
            after = row[0]
        if len(rows) < _BATCH_ROWS:
            return Found(found, None, False)
        if time.monotonic() > end:
            return Found(found, encode_cursor(after), True)


def project_failures(
    project_id: int, q: str, rules: Sequence[TriageRuleInfo], cursor: str | None, limit: int
) -> Found[ClusterInfo]:
    """The clusters whose texts contain all words of `q`, in any case, most occurrences first. Raises `Invalid`."""
    after = decode_cursor(cursor, int, int) if cursor else None
    words, end = q.casefold().split(), time.monotonic() + MAX_SECONDS
    found: list[ClusterInfo] = []
    while True:
        rows = clusters.listing(project_id, rules, _BATCH_ROWS, after)
        for row in rows:
            text = f"{row.signature} {row.type or ''} {row.message or ''}".casefold()
            if all(word in text for word in words):
                if len(found) == limit:
                    return Found(found, encode_cursor(*after) if after else None, False)
                found.append(row)
            after = clusters.place(row)
        if len(rows) < _BATCH_ROWS:
            return Found(found, None, False)
        if time.monotonic() > end:
            return Found(found, encode_cursor(*after) if after else None, True)
