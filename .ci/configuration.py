"""Generates the tables of docs/configuration.md, except the last column (the meaning), which it keeps.

A new property gets an empty meaning, which a test refuses.
"""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from signal import Signals
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import attrs

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from models.config import loader, parsers  # noqa: E402 (found by the line above)
from models.config.settings import ChannelSettings, Config, ForgeSettings, NotifyRuleSettings  # noqa: E402
from models.supervision.process import Dependency, HealthCheck, ProcessSpec, Seconds, Size  # noqa: E402
from models.supervision.schedule import Schedule  # noqa: E402

FILE = ROOT / "docs" / "configuration.md"

SECTIONS: Mapping[str, tuple[type, str]] = {
    **{name: (section, name) for name, section in get_type_hints(Config).items()},
    "process": (ProcessSpec, ""),
    "health-check": (HealthCheck, ""),
    "schedule": (Schedule, ""),
    "forge": (ForgeSettings, ""),
    "channel": (ChannelSettings, ""),
    "rule": (NotifyRuleSettings, ""),
}
"""Name of a table -> the class whose properties it lists, and their prefix."""

_SEPARATE = (HealthCheck, Schedule)
"""Sections of a process with a separate table."""

_HEAD = "| Property | Type | Default | Variable | Meaning |\n|---|---|---|---|---|\n"
_TABLE = re.compile(r"(<!-- properties: ([a-z-]+) -->\n)(.*?)(?=\n\n|\Z)", re.DOTALL)
_ROW = re.compile(r"\| `([^`]+)` \|[^|]*\|[^|]*\|[^|]*\| ?(.*?) ?\|")

_KINDS: tuple[tuple[Any, str], ...] = (
    (parsers.Count, "number, 1 or more"),
    (parsers.Count0, "number, 0 or more"),
    (parsers.Port, "0 to 65535"),
    (parsers.Percent, "number, 0 to 100"),
    (parsers.Increase, "number, 0 to 10000"),
    (parsers.Span, "time, more than 0"),
    (parsers.Url, "URL"),
    (parsers.ForgeUrl, "URL"),
    (parsers.Host, "host"),
    (bool, "`true`, `false`"),
    (int, "number"),
    (Seconds, "time"),
    (Size, "size"),
    (Path, "path"),
    (parsers.Words, "words"),
    (str, "text"),
)
_LENGTHS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_SIZES = {"G": 1024**3, "M": 1024**2, "K": 1024, "": 1}


class Property(NamedTuple):
    path: str
    kind: str
    default: str
    variable: str


def properties(table: str) -> Iterator[Property]:
    """The properties of a table, those of sections within it in their place."""
    section, above = SECTIONS[table]
    return _of(section, f"{above}." if above else "", is_ours=bool(above))


def _of(section: Any, above: str, is_ours: bool) -> Iterator[Property]:
    defaults = {one.name: one.default for one in attrs.fields(section)}
    for name, field in loader.fields_of(section).items():
        path = above + name
        if attrs.has(field.base) and field.base not in _SEPARATE:
            yield from _of(field.base, f"{path}.", is_ours)
        else:
            variable = path.upper().replace(".", "_").replace("-", "_")
            named = f"`{variable}`" if is_ours and variable in loader.VARIABLES else "-"
            yield Property(path, _kind(field), _default(defaults[field.attribute], field.base), named)


def _kind(field: Any) -> str:
    if field.base in _SEPARATE:
        return "see below"
    if get_origin(field.base) is Literal:
        return ", ".join(f"`{word}`" for word in get_args(field.base))
    if isinstance(field.base, type) and issubclass(field.base, enum.Enum):
        return ", ".join(f"`{member.value}`" for member in field.base)
    if get_origin(field.base) is tuple:
        return "list" if get_args(field.base)[0] is not Dependency else "list, of names or mappings"
    if get_origin(field.base) is Mapping or getattr(field.base, "__origin__", None) is not None:
        return "mapping"
    special: dict[Callable[..., Any], str] = {parsers.octal: "octal number", parsers.signal_of: "signal"}
    for check in field.checks:
        if check in special:
            return special[check]
    found = [name for kind, name in _KINDS if loader.split_annotation(kind) == (field.base, field.checks)]
    return found[0] if found else next(name for kind, name in _KINDS if kind == field.base)


def _default(value: Any, base: Any) -> str:
    if value is attrs.NOTHING:
        return "required"
    value = value.factory() if hasattr(value, "factory") else value
    if value is None or value in ((), {}):
        return "none"
    text = _time(value) if base is Seconds else _size(value) if base is Size else _as_yaml(value)
    return f"`{text}`" if text else "empty"


def _as_yaml(value: Any) -> str:
    """Returns a default as YAML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Signals):
        return value.name.removeprefix("SIG")
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return ", ".join("-".join(map(str, one)) if isinstance(one, tuple) else str(one) for one in value)
    return str(value)


def with_tables(text: str) -> str:
    """Returns the document with generated tables."""
    return _TABLE.sub(lambda found: found[1] + _HEAD + _rows(found[2], found[3]), text)


def _rows(table: str, before: str) -> str:
    meanings = dict(_ROW.findall(before))
    rows = ((one, meanings.get(one.path, "")) for one in properties(table))
    return "\n".join(f"| `{one.path}` | {' | '.join(one[1:])} | {meaning} |" for one, meaning in rows)


def _time(seconds: float) -> str:
    """Returns a duration in the largest unit that divides it."""
    unit, length = next((unit, n) for unit, n in _LENGTHS.items() if (seconds >= n and seconds % n == 0) or unit == "s")
    return f"{seconds / length:g}{unit}"


def _size(number: int) -> str:
    unit, length = next((unit, n) for unit, n in _SIZES.items() if (number >= n and number % n == 0) or not unit)
    return f"{number // length}{unit}"


if __name__ == "__main__":
    FILE.write_text(with_tables(FILE.read_text()))
