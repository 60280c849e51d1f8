"""The fields of the forms of a project's settings, from their one declaration (`models.tracker.settings`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import frozen

from models.config.settings import TrackerSettings
from models.inputs import Input, inputs
from models.tracker.settings import TIMES, ProjectSettings
from models.tracker.tables import Project

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"))
_DECLARED = {declared.name: declared for declared in inputs(ProjectSettings)}


@frozen
class FormField:
    name: str
    label: str
    value: str
    """Empty where the project has no value of its own."""
    default: str
    """That of the server, as text."""
    choices: Sequence[tuple[str, str]] = ()
    """Value and text of each option; a field without choices is typed."""
    most: int | None = None
    """Characters."""
    mode: str = "text"
    """For the keyboard of a phone."""


def fields_of(names: Sequence[str], project: Project, settings: TrackerSettings) -> list[FormField]:
    """The fields of these settings, with the values of the project."""
    return [_field(_DECLARED[name], getattr(project, name), _default(name, settings)) for name in names]


def _default(name: str, settings: TrackerSettings) -> Any:
    for prefix, section in (("quarantine_", settings.quarantine), ("forge_reports_", settings.forge_reports)):
        if name.startswith(prefix):
            return getattr(section, name.removeprefix(prefix))
    return settings.source.mode if name == "source_mode" else getattr(settings.quality_gate, name, None)


def _field(declared: Input, value: Any, default: Any) -> FormField:
    assert declared.kind is not None
    name, schema = declared.name, declared.kind.schema
    kind, label = schema["type"][0], schema["title"]
    if kind == "boolean":
        stored = "" if value is None else "true" if value else "false"
        return FormField(name, label, stored, "yes" if default else "no", [("true", "yes"), ("false", "no")])
    if "enum" in schema:
        choices = [(choice, choice) for choice in schema["enum"] if choice is not None]
        return FormField(name, label, value or "", default, choices)
    return FormField(
        name,
        f"{label}, with commas between them" if kind == "array" else label,
        _text(name, value),
        _text(name, default) or "none",
        most=schema.get("maxLength"),
        mode="text" if kind in ("string", "array") or name in TIMES else "decimal",
    )


def _text(name: str, value: Any) -> str:
    """A value as one types it; empty for none."""
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return ", ".join(value)
    if name in TIMES:
        unit, letter = next((pair for pair in _UNITS if value and value % pair[0] == 0), (1, "s"))
        return f"{value / unit:g}{letter}"
    return f"{value:g}" if isinstance(value, float) else str(value)
