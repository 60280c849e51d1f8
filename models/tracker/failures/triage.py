"""Triage rules: text patterns that put failures into categories such as `infrastructure`.

A pattern is text in which `*` stands for anything; it is found anywhere, in any case. It is no regular expression, so
that matching takes time linear to the text, whatever a pattern is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, get_args

from attrs import frozen

from models.errors import Conflict, Invalid, NotFound
from models.inputs import InputKind, body, inputs
from models.inputs import read as read_inputs
from models.json_format import Instant, http_message
from models.paging import INT32
from models.storage.sqlite import storable
from models.tracker.tables import reports

TriageField = Literal["any", "type", "message", "stack"]

UNTRIAGED = "untriaged"
FIELDS: tuple[TriageField, ...] = get_args(TriageField)
MAX_RULES = 200
MAX_NAME_CHARACTERS, MAX_CATEGORY_CHARACTERS, MAX_PATTERN_CHARACTERS = 255, 64, 500
MAX_TEXT_CHARACTERS = 16 * 1024
"""The part of a text in which patterns are searched."""

DEFAULT_PRIORITY = 100

_COLUMNS = "id, name, category, pattern, field, priority, created_at"
_LIST = f"SELECT {_COLUMNS} FROM triage_rule WHERE project_id = ? ORDER BY priority, id"  # noqa: S608 (constants)
_ADD = """
    INSERT INTO triage_rule (project_id, name, category, pattern, field, priority, created_at)
    VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id"""


@frozen
class TriageRuleInfo:
    id: int
    name: str
    category: str
    pattern: str
    field: TriageField
    priority: int
    created_at: Instant


def rules_of(project_id: int) -> list[TriageRuleInfo]:
    """The rules of a project, in the order in which they are tried."""
    return [TriageRuleInfo(*row) for row in reports.execute_sql(_LIST, (project_id,))]


def _text(about: str, most: int) -> Any:
    """A text of at most so many characters."""

    def read(name: str, value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            raise Invalid(f"{name} is required, and must be text")
        if len(value) > most:
            raise Invalid(f"{name} must have at most {most} characters")
        if "\0" in value:
            raise Invalid(f"{name} must not contain NUL")
        return storable(value.strip())

    return body(about, required=True, kind=InputKind({"type": "string", "maxLength": most}, read, reads_absent=True))


def _read_field(name: str, value: Any) -> Any:
    if value and value not in FIELDS:
        raise Invalid(f"{name} must be one of {', '.join(FIELDS)}")
    return value or "any"


def _read_priority(name: str, value: Any) -> int:
    if value == "":
        return DEFAULT_PRIORITY
    if type(value) is not int or not -INT32 <= value <= INT32:
        raise Invalid(f"{name} must be a whole number from {-INT32} to {INT32}")
    return value


@http_message
class NewTriageRule:
    name: str = _text("What the rule is for", MAX_NAME_CHARACTERS)
    category: str = _text("The category of the failures that match", MAX_CATEGORY_CHARACTERS)
    pattern: str = _text("Text that is found anywhere, in any case; `*` is any text", MAX_PATTERN_CHARACTERS)
    field: TriageField = body(
        "Where it is searched", "any", kind=InputKind({"type": "string", "enum": list(FIELDS)}, _read_field)
    )
    priority: int = body(
        "Rules are tried in this order, then by id",
        DEFAULT_PRIORITY,
        kind=InputKind({"type": "integer", "minimum": -INT32, "maximum": INT32}, _read_priority),
    )


NOT_A_FIELD = "is not a field of a triage rule"


def read(fields: Mapping[str, Any]) -> NewTriageRule:
    """A new rule from the fields of a form. Raises `Invalid`, which names the field."""
    if unknown := sorted(set(fields) - {declared.json_name for declared in inputs(NewTriageRule)}):
        raise Invalid(f"{unknown[0]} {NOT_A_FIELD}")
    return read_inputs(NewTriageRule, {}, {}, fields)


def add(project_id: int, rule: NewTriageRule, now: int) -> TriageRuleInfo:
    """Adds a rule. Raises `Conflict`. Within a transaction."""
    count = reports.execute_sql("SELECT count(*) FROM triage_rule WHERE project_id = ?", (project_id,)).fetchone()[0]
    if count >= MAX_RULES:
        raise Conflict(f"a project has at most {MAX_RULES} triage rules")
    values = rule.name, rule.category, rule.pattern, rule.field, rule.priority
    id = int(reports.execute_sql(_ADD, (project_id, *values, now)).fetchone()[0])
    return TriageRuleInfo(id, *values, created_at=Instant(now))


def delete(project_id: int, id: int) -> None:
    """Deletes a rule of this project. Raises `NotFound`."""
    gone = reports.execute_sql("DELETE FROM triage_rule WHERE project_id = ? AND id = ?", (project_id, id))
    if not gone.rowcount:
        raise NotFound(f"this project has no triage rule {id}", "RULE_NOT_FOUND")


def category(rules: Sequence[TriageRuleInfo], type: str | None, message: str | None, stack: str | None) -> str:
    """The category of the first rule that matches a failure."""
    if not rules:
        return UNTRIAGED
    texts: dict[str, str] = {}
    values = {"type": type, "message": message, "stack": stack}
    for rule in rules:
        if rule.field not in texts:
            text = values[rule.field] if rule.field != "any" else "\n".join(filter(None, values.values()))
            texts[rule.field] = (text or "")[:MAX_TEXT_CHARACTERS].casefold()
        if matches(pieces(rule.pattern), texts[rule.field]):
            return rule.category
    return UNTRIAGED


@lru_cache(1024)
def pieces(pattern: str) -> tuple[str, ...]:
    """The texts between the `*` of a pattern, for `matches`."""
    return tuple(piece for piece in pattern.casefold().split("*") if piece)


def matches(pieces: Sequence[str], text: str) -> bool:
    """Whether the pieces occur in this order in a text, which is in lower case. The leftmost places are the best."""
    place = 0
    for piece in pieces:
        place = text.find(piece, place)
        if place < 0:
            return False
        place += len(piece)
    return True
