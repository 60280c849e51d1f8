"""The processes that an entry of `supervisor.processes` stands for: one, or the replicas that `numprocs` counts.

Variables in its texts, `${{ name }}`, are expanded for each.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from attrs import frozen

from models.config.parsers import Raw, ValidationError, between, group_name, shown, whole
from models.config.yaml_text import Mapped

NUMPROCS, START, NAME = "numprocs", "numprocs-start", "process-name"
PROPERTIES = (NUMPROCS, START, NAME)
"""The properties that make an entry a template; replicas do not have them."""

DEFAULT_NAME = "${{ name }}-${{ num }}"
MAX_REPLICAS, MAX_START = 1000, 65_535

_VARIABLE = re.compile(r"\$?\$\{\{(.*?)\}\}", re.DOTALL)
_NUMBER = re.compile(r"(num|numprocs)\s*(?:([+-])\s*([0-9]{1,9}))?\s*(?::(0?[0-9]{1,2}d))?")
_ENVIRONMENT = re.compile(r"env\.([^\s|]+)\s*(?:\|(.*))?", re.DOTALL)


@frozen
class VariableScope:
    """The values of the variables of one process."""

    texts: Mapping[str, str]
    """`name`, `process`, `node`, `here`, `data-dir`."""
    numbers: Mapping[str, int]
    """`num` and `numprocs`; none outside a template."""
    environment: Callable[[str], str | None]
    """The value of an environment variable; `None` where it is unset. Raises `ValidationError` where it may not be
    read."""

    def value(self, expression: str) -> str:
        """The text that stands for `${{ expression }}`. Raises `ValidationError`."""
        expression = expression.strip()
        if expression in self.texts:
            return self.texts[expression]
        if number := _NUMBER.fullmatch(expression):
            return self._number(*number.groups())
        if variable := _ENVIRONMENT.fullmatch(expression):
            name, default = variable.groups()
            value = self.environment(name)
            if value is None and default is None:
                raise ValidationError(f"${{{{ env.{name} }}}}: the variable {name} is not set")
            return default.strip() if value is None else value
        known = ", ".join([*self.texts, "num", "numprocs", "env.X"])
        raise ValidationError(f"${{{{ {expression} }}}} is not a variable; there are {known}")

    def _number(self, name: str, sign: str | None, addend: str | None, form: str | None) -> str:
        if name not in self.numbers:
            raise ValidationError(f"${{{{ {name} }}}} needs numprocs")
        number = self.numbers[name] + int(f"{sign}{addend}" if addend else 0)
        return format(number, form or "d")


def expand(raw: Raw, scope: VariableScope) -> Raw:
    """A tree with the variables of all its texts expanded, once. Raises `ValidationError`."""
    if isinstance(raw, str):
        return _VARIABLE.sub(lambda found: _one(found, scope), raw) if "${{" in raw else raw
    if isinstance(raw, list):
        return [expand(item, scope) for item in raw]
    if isinstance(raw, dict):
        return _like(raw, {key: expand(value, scope) for key, value in raw.items()})
    return None


def _like(raw: dict[str, Raw], content: dict[str, Raw]) -> dict[str, Raw]:
    """Another content of the same place in a file."""
    return raw.like(content) if isinstance(raw, Mapped) else content


def _one(found: re.Match[str], scope: VariableScope) -> str:
    return found[0][1:] if found[0].startswith("$$") else scope.value(found[1])


@frozen
class ProcessTemplate:
    """An entry with `numprocs`: how many replicas it stands for, their first number, and how they are called."""

    count: int
    start: int = 0
    name: str = DEFAULT_NAME

    @property
    def numbers(self) -> range:
        return range(self.start, self.start + self.count)


def template_of(raws: Sequence[Raw], scope: VariableScope) -> ProcessTemplate | None:
    """The template that an entry is; `None` for a single process. Its numbers may be variables of `scope`.

    Raises `ValidationError`.
    """
    given = {key: raw for part in raws if isinstance(part, dict) for key, raw in part.items() if raw is not None}
    if NUMPROCS not in given:
        if lacking := [name for name in (START, NAME) if name in given]:
            raise ValidationError(f"{lacking[0]} needs numprocs")
        return None
    count = _whole(expand(given[NUMPROCS], scope), NUMPROCS, 1, MAX_REPLICAS)
    start = _whole(expand(given.get(START, "0"), scope), START, 0, MAX_START)
    name = given.get(NAME, DEFAULT_NAME)
    if not isinstance(name, str):
        raise ValidationError(f"{NAME}: one value is expected")
    return ProcessTemplate(count, start, name)


def _whole(raw: Raw, name: str, low: int, high: int) -> int:
    if not isinstance(raw, str):
        raise ValidationError(f"{name}: one value is expected")
    try:
        return between(low, high)(whole(raw))
    except ValidationError as why:
        raise ValidationError(f"{name}: {why}") from None


def without_template(raws: Sequence[Raw]) -> list[Raw]:
    """The properties of an entry that are each replica's."""
    return [
        _like(part, {key: raw for key, raw in part.items() if key not in PROPERTIES})
        if isinstance(part, dict)
        else part
        for part in raws
    ]


def replica_names(template: ProcessTemplate, scope_of: Callable[[int], VariableScope]) -> dict[int, str]:
    """The name of each replica by its number. Raises `ValidationError` for equal names."""
    names: dict[int, str] = {}
    for number in template.numbers:
        name = str(expand(template.name, scope_of(number)))
        if name in names.values():
            raise ValidationError(f"{NAME}: two replicas are called {shown(name)}")
        names[number] = name
    return names


@frozen
class ProcessEntry:
    """One process: its name, its properties, and the template that it is a replica of."""

    name: str
    raws: Sequence[Raw]
    template: str | None = None


class Expansion:
    def __init__(
        self,
        parts: Sequence[Raw],
        environ: Mapping[str, str],
        overrides: Mapping[str, str],
        private: frozenset[str],
    ) -> None:
        """`overrides` are the property paths that the command line sets.

        `private` are variables of the environment that set properties of Pilothouse, which may be secrets: `env.X` may
        not read them.
        """
        self._environ = environ
        self._private = private
        self._texts = {
            "node": _setting("supervisor.node-name", parts, environ, overrides) or platform.node(),
            "data-dir": _setting("server.data-dir", parts, environ, overrides) or "data",
        }

    def entries(self, name: str, raws: Sequence[Raw], folder: Path) -> list[ProcessEntry]:
        """The processes that an entry stands for; `folder` is that of its file. Raises `ValidationError`."""
        scope = self._scope(name, name, folder)
        template = template_of(raws, scope)
        if template is None:
            return [ProcessEntry(name, [expand(raw, scope) for raw in raws])]
        try:
            group_name(name)
        except ValidationError as why:
            raise ValidationError(f"numprocs: the name of a template is that of a group: {why}") from None
        names = replica_names(template, lambda number: self._scope(name, name, folder, template, number))
        plain = without_template(raws)
        entries = []
        for number, replica in names.items():
            scope = self._scope(name, replica, folder, template, number)
            entries.append(ProcessEntry(replica, [expand(raw, scope) for raw in plain], name))
        return entries

    def _scope(
        self, name: str, process: str, folder: Path, template: ProcessTemplate | None = None, number: int = 0
    ) -> VariableScope:
        texts = {"name": name, "process": process, "here": str(folder.absolute()), **self._texts}
        numbers = {} if template is None else {"num": number, "numprocs": template.count}
        return VariableScope(texts, numbers, self._variable)

    def _variable(self, name: str) -> str | None:
        if name in self._private:
            raise ValidationError(f"${{{{ env.{name} }}}}: {name} sets a property of pilothouse and may not be read")
        return self._environ.get(name)


def _setting(path: str, parts: Sequence[Raw], environ: Mapping[str, str], overrides: Mapping[str, str]) -> str | None:
    """A property as the command line, the environment or the file has it."""
    section, _, name = path.partition(".")
    given = overrides.get(path) or environ.get(path.upper().replace(".", "_").replace("-", "_"))
    for part in parts[:1] if not given else []:
        if isinstance(part, dict):
            inner = part.get(section)
            found = part.get(path) or (inner.get(name) if isinstance(inner, dict) else None)
            given = found if isinstance(found, str) else None
    return given
