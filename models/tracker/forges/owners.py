"""The owners of tests: by the CODEOWNERS file and the source file of a test, else by rules on class names."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from attrs import frozen

from models.errors import Invalid, TooLarge
from models.tracker import queries
from models.tracker.failures import flaky
from models.tracker.failures.triage import matches, pieces
from models.tracker.forges import codeowners
from models.tracker.forges.codeowners import Codeowners
from models.tracker.reports.base import FAILING
from models.tracker.tables import Project, reports

MAX_RULES = 200
MAX_PATTERN_CHARACTERS = 500
MAX_OWNER_CHARACTERS = 255

_SELECT = "SELECT codeowners, rules, updated_at FROM owners WHERE project_id = ?"
_STORE = """
    INSERT INTO owners (project_id, codeowners, rules, updated_at) VALUES (?, ?, ?, ?)
    ON CONFLICT (project_id) DO UPDATE SET codeowners = excluded.codeowners, rules = excluded.rules,
    updated_at = excluded.updated_at"""
_FAILING_NOW = f"""
    SELECT DISTINCT t.id, t.class_name, t.file FROM result r JOIN test t ON t.id = r.test_id
    WHERE r.run_id IN (SELECT value FROM json_each(?)) AND r.status IN {FAILING}"""  # noqa: S608 (constants)
_BY_ID = "SELECT id, class_name, file FROM test WHERE id IN (SELECT value FROM json_each(?))"


@frozen
class OwnerRuleInfo:
    pattern: str
    """Tests belong to `owner` whose class name contains it; `*` is any text."""
    owner: str


@frozen
class Owners:
    """The owners of the tests of a project."""

    codeowners: str | None
    rules: Sequence[OwnerRuleInfo]
    updated_at: int | None

    def of(self, file: str | None, class_name: str) -> str | None:
        """The owners of a test with spaces between them; None without one."""
        if self.codeowners and file and (owners := _parsed(self.codeowners).of(file.lstrip("/"))):
            return " ".join(owners)
        text = class_name.casefold()
        return next((rule.owner for rule in self.rules if matches(pieces(rule.pattern), text)), None)


@frozen
class OwnerInfo:
    """The tests of an owner that fail on the base branch, and those that are flaky; null: tests without an owner."""

    owner: str | None
    failing: int
    flaky: int


NO_OWNERS = Owners(None, (), None)


@lru_cache(8)
def _parsed(text: str) -> Codeowners:
    return codeowners.parse(text)


def of_project(project_id: int) -> Owners:
    row = reports.execute_sql(_SELECT, (project_id,)).fetchone()
    if row is None:
        return NO_OWNERS
    return Owners(row[0], [OwnerRuleInfo(*rule) for rule in json.loads(row[1])], row[2])


def of_tests(project_id: int, ids: Iterable[int]) -> dict[int, str | None]:
    """The owners of tests by their ids."""
    owners = of_project(project_id)
    rows = reports.execute_sql(_BY_ID, (json.dumps(list(ids)),))
    return {id: owners.of(file, class_name) for id, class_name, file in rows}


def store(project_id: int, text: str | None, rules: Sequence[OwnerRuleInfo], now: int) -> None:
    """Replaces the owners of a project."""
    values = json.dumps([(rule.pattern, rule.owner) for rule in rules])
    reports.execute_sql(_STORE, (project_id, text, values, now))


def read_codeowners(data: bytes) -> str:
    """The text of a CODEOWNERS file. Raises `TooLarge`."""
    if len(data) > codeowners.MAX_BYTES:
        raise TooLarge(f"codeowners has more than {codeowners.MAX_BYTES // 1024} KiB")
    return data.decode("utf-8-sig", "replace").replace("\0", "\ufffd")


def read_rules(values: Any) -> list[OwnerRuleInfo]:
    """Rules from JSON: `[{"pattern","owner"}]`. Raises `Invalid`."""
    if not isinstance(values, list) or len(values) > MAX_RULES:
        raise Invalid(f"rules must be a list of at most {MAX_RULES} objects with pattern and owner")
    return [_read_rule(value) for value in values]


def _read_rule(value: Any) -> OwnerRuleInfo:
    if not isinstance(value, dict) or set(value) != {"pattern", "owner"}:
        raise Invalid("rules: each must be an object with pattern and owner")
    for name, most in (("pattern", MAX_PATTERN_CHARACTERS), ("owner", MAX_OWNER_CHARACTERS)):
        text = value[name]
        if not isinstance(text, str) or not text.strip() or len(text) > most or not text.isprintable():
            raise Invalid(f"rules: {name} must be text of 1 to {most} printable characters")
    return OwnerRuleInfo(value["pattern"].strip(), value["owner"].strip())


def counts(project: Project, owners: Owners, base_branch: str) -> list[OwnerInfo]:
    """By owner, the tests that fail in the newest run of each flag of the base branch, and the flaky tests.

    A test with several owners counts for each. Most failing first.
    """
    failing, flakies = defaultdict[str | None, int](int), defaultdict[str | None, int](int)
    newest = [queries.newest(project.id, branch=base_branch, flag=flag) for flag in queries.flags(project.id)]
    runs = [run.id for run in newest if run is not None]
    for _, class_name, file in reports.execute_sql(_FAILING_NOW, (json.dumps(runs),)):
        for owner in _each(owners.of(file, class_name)):
            failing[owner] += 1
    for test in flaky.tests(project.id):
        if test.commits is not None:
            for owner in _each(owners.of(test.file, test.class_name)):
                flakies[owner] += 1
    listed = [OwnerInfo(owner, failing[owner], flakies[owner]) for owner in {*failing, *flakies}]
    return sorted(listed, key=place)


def place(row: OwnerInfo) -> tuple[int, int, int, str]:
    """Where an owner stands in the list."""
    return -row.failing, -row.flaky, int(row.owner is None), row.owner or ""


def _each(owner: str | None) -> Sequence[str | None]:
    return owner.split() if owner else (None,)


def is_one_of(owner: str | None, wanted: str) -> bool:
    """Whether `wanted` is one of the owners of a test, in any case."""
    return owner is not None and wanted.casefold() in (owner.casefold(), *owner.casefold().split())
