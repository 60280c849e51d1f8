"""The processes that an entry of `supervisor.processes` stands for: one, or the replicas of a template."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import frozen

from models.config.parsers import Raw, ValidationError, group_name
from models.config.templates import Scope, Template, expand, replica_names, template_of, without_template


@frozen
class Entry:
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

    def entries(self, name: str, raws: Sequence[Raw], folder: Path) -> list[Entry]:
        """The processes that an entry stands for; `folder` is that of its file. Raises `ValidationError`."""
        template = template_of(raws)
        if template is None:
            scope = self._scope(name, name, folder)
            return [Entry(name, [expand(raw, scope) for raw in raws])]
        try:
            group_name(name)
        except ValidationError as why:
            raise ValidationError(f"numprocs: the name of a template is that of a group: {why}") from None
        names = replica_names(template, lambda number: self._scope(name, name, folder, template, number))
        plain = without_template(raws)
        entries = []
        for number, replica in names.items():
            scope = self._scope(name, replica, folder, template, number)
            entries.append(Entry(replica, [expand(raw, scope) for raw in plain], name))
        return entries

    def _scope(self, name: str, process: str, folder: Path, template: Template | None = None, number: int = 0) -> Scope:
        texts = {"name": name, "process": process, "here": str(folder.absolute()), **self._texts}
        numbers = {} if template is None else {"num": number, "numprocs": template.count}
        return Scope(texts, numbers, self._variable)

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
