"""The rules of notifications: which events go to which channels. From the configuration, or stored."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

from attrs import asdict, frozen

from models import globs
from models.config.settings import NotifyRuleSettings
from models.errors import Conflict, NotFound
from models.outbound.events import SubjectEvent
from models.outbound.tables import RULES_CHANNEL, store
from models.supervision.process import Seconds

MAX_RULES = 100
CONFIG = "config:"
"""How the id of a rule or channel begins that stands in the configuration."""
SERVER = 0
"""The project of rules and channels that belong to the server."""

_LIST = "SELECT id, project_id, settings, updated_at FROM notify_rule ORDER BY project_id, name"
_GET = "SELECT id, project_id, settings, updated_at FROM notify_rule WHERE id = ? AND project_id = ?"
_COUNT = "SELECT count(*) FROM notify_rule WHERE project_id = ?"
_NAMED = "SELECT id FROM notify_rule WHERE project_id = ? AND name = ? AND id <> ?"
_ADD = (
    "INSERT INTO notify_rule (id, project_id, name, settings, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (id) DO UPDATE SET name = excluded.name, settings = excluded.settings,"
    " updated_at = excluded.updated_at"
)
_TIMES = ("quiet", "group_wait", "resolve_after")


@frozen
class Rule:
    """A rule with its id, and the project whose events it is about; `SERVER`: all events."""

    id: str
    project_id: int
    settings: NotifyRuleSettings
    updated_at: int | None = None

    def selects(self, event: SubjectEvent) -> bool:
        """Whether the rule is about the subject of an event, whatever the event's type."""
        one = self.settings
        if self.project_id != SERVER and event.project_id != self.project_id:
            return False
        if event.process is not None:
            has_label = not one.labels or any(matches(one.labels, label) for label in event.labels)
            return has_label and matches(one.processes, event.process)
        if event.release is not None:
            short = event.release.rpartition("/")[2]
            return matches(one.releases, event.release) or matches(one.releases, short)
        if event.project is not None and event.branch is None:
            return matches(one.projects, event.project)  # about a test, on all branches
        if event.project is not None:
            fits = event.is_base_branch if one.branches is None else matches(one.branches, event.branch or "")
            return fits and matches(one.projects, event.project) and matches(one.flags, event.flag or "")
        return True

    def reports(self, event: SubjectEvent) -> bool:
        return matches(self.settings.events, event.type)


def matches(patterns: Sequence[str], text: str) -> bool:
    """Whether one of the patterns, in which `*` is any text, fits all of a text."""
    return any(globs.matches(pattern, text) for pattern in patterns)


def of_config(rules: Sequence[NotifyRuleSettings]) -> list[Rule]:
    return [Rule(CONFIG + rule.name, SERVER, rule) for rule in rules]


def stored(project_id: int | None = None) -> list[Rule]:
    """The stored rules, those of one project only if one is given. For a worker."""
    rules = [_rule(row) for row in store.execute_sql(_LIST)]
    return [rule for rule in rules if project_id is None or rule.project_id == project_id]


def _rule(row: Sequence[Any]) -> Rule:
    id, project_id, settings, updated_at = row
    values: dict[str, Any] = json.loads(settings)
    for name, value in values.items():
        values[name] = tuple(value) if isinstance(value, list) else Seconds(value) if name in _TIMES else value
    return Rule(id, project_id, NotifyRuleSettings(**values), updated_at)


def get(id: str, project_id: int) -> Rule:
    """Raises `NotFound`."""
    row = store.execute_sql(_GET, (id, project_id)).fetchone()
    if row is None:
        raise NotFound(f"there is no rule {id}")
    return _rule(row)


def keep(id: str | None, project_id: int, settings: NotifyRuleSettings, now: int) -> Rule:
    """Stores a new rule or changes rule `id`, in the caller's transaction. Raises `Conflict`, `NotFound`."""
    if id is not None:
        get(id, project_id)
    elif store.execute_sql(_COUNT, (project_id,)).fetchone()[0] >= MAX_RULES:
        raise Conflict(f"there are {MAX_RULES} rules already")
    id = id or f"rule_{secrets.token_hex(8)}"
    if store.execute_sql(_NAMED, (project_id, settings.name, id)).fetchone():
        raise Conflict(f"there is another rule named {settings.name}")
    text = json.dumps(asdict(settings), ensure_ascii=False)
    store.execute_sql(_ADD, (id, project_id, settings.name, text, now, now))
    store.notify(RULES_CHANNEL)
    return Rule(id, project_id, settings, now)


def delete(id: str, project_id: int) -> None:
    """Deletes a rule and its state. Raises `NotFound`."""
    with store.atomic():
        get(id, project_id)
        store.execute_sql("DELETE FROM notify_rule WHERE id = ?", (id,))
        store.execute_sql("DELETE FROM notify_state WHERE rule = ?", (id,))
        store.execute_sql("DELETE FROM notify_hour WHERE rule = ?", (id,))
        store.notify(RULES_CHANNEL)
