"""Search of runs and tests by a part of their names, within what a caller may read, and among the newest only.

No index serves a part of a name: each search reads rows, and the palette sends one for each key that is pressed.
"""

from __future__ import annotations

from typing import Any

import peewee
from attrs import frozen

from models.accounts.accounts import User
from models.accounts.permissions import readable
from models.paging import INT64
from models.tracker.tables import Project, Run, Test

MIN_TEST_CHARACTERS = 3
"""Shorter texts are not searched in the names of tests, of which there may be millions."""
MAX_RUNS, MAX_TESTS = 20_000, 100_000
"""Among how many of the newest runs and tests a name is searched."""
_MAX_WORDS = 8


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
        .where(matches, _readable(user), Run.superseded_by.is_null())
        .order_by(Run.id.desc())
        .limit(limit)
    )
    return [FoundRun(*row) for row in query.tuples()]


def find_tests(user: User | None, text: str, limit: int) -> list[FoundTest]:
    """Tests whose class or name contains each word of the text."""
    if len(text) < MIN_TEST_CHARACTERS:
        return []
    words = [Test.name.contains(word) | Test.class_name.contains(word) for word in text.split()[:_MAX_WORDS]]
    query = (
        Test.select(Project.id, Project.name, Test.class_name, Test.name)
        .join(Project)
        .where(Test.id > _newest(Test) - MAX_TESTS, *words, _readable(user))
        .limit(limit)
    )
    return [FoundTest(*row) for row in query.tuples()]


def _newest(model: type[Run] | type[Test]) -> int:
    return model.select(peewee.fn.max(model.id)).scalar() or 0


def _readable(user: User | None) -> Any:
    """The condition on the joined project: `readable` names columns of the table `project` alone."""
    if user is not None and user.is_admin:
        return peewee.SQL("1 = 1")
    allowed = Project.alias("allowed")
    return Project.id.in_(allowed.select(allowed.id).where(readable(user)))
