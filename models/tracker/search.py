"""Search of projects, runs and tests by a part of their names, within what a caller may read."""

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
    matches = (Run.commit_sha.startswith(text)) | (Run.branch.contains(text))
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
        .where(*words, _readable(user))
        .limit(limit)
    )
    return [FoundTest(*row) for row in query.tuples()]


def _readable(user: User | None) -> Any:
    """The condition on the joined project: `readable` names columns of the table `project` alone."""
    if user is not None and user.is_admin:
        return peewee.SQL("1 = 1")
    allowed = Project.alias("allowed")
    return Project.id.in_(allowed.select(allowed.id).where(readable(user)))
