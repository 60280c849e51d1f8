"""The files of a configuration: the main one, and those that its `include` names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from glob import glob, has_magic
from pathlib import Path

from models.config.parsers import Raw
from models.config.yaml_text import Mapped, Yaml

MAX_FILES = 1000
_ALLOWED = ("supervisor.processes", "supervisor.groups")

Fault = Callable[[str, str], object]


def read_files(path: Path, fault: Fault) -> list[Raw]:
    """The trees of the main file and of the files that it includes; `fault(where, why)` is called for each error."""
    tree = Yaml(path, fault).read()
    if not isinstance(tree, dict) or "include" not in tree:
        return [tree]
    included = tree.pop("include")
    patterns = [included] if isinstance(included, str) else included
    if patterns is None:
        return [tree]
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        fault("include", "a list of paths is expected")
        return [tree]
    files = list(_found([str(pattern) for pattern in patterns], path.parent, fault))
    if len(files) > MAX_FILES:
        fault("include", f"{len(files)} files are included; at most {MAX_FILES} are allowed")
        return [tree]
    return [tree, *(_included(file, path.parent, fault) for file in files)]


def _found(patterns: Sequence[str], folder: Path, fault: Fault) -> Iterator[Path]:
    seen: set[Path] = set()
    for pattern in patterns:
        files = sorted(Path(found) for found in glob(str(folder / pattern)))  # noqa: PTH207 (absolute patterns too)
        if not files and not has_magic(pattern):
            fault("include", f"{pattern}: there is no such file")
        yield from (file for file in files if file not in seen)
        seen.update(files)


def _included(file: Path, folder: Path, fault: Fault) -> Raw:
    shown = str(file.relative_to(folder)) if file.is_relative_to(folder) else str(file)
    tree = Yaml(file, lambda where, why: fault(where.replace(str(file), shown, 1), why), included_as=shown).read()
    if not isinstance(tree, Mapped):
        return tree
    for key, line in _others(tree):
        fault(f"{shown}:{line}", f"{key}: an included file may hold only {' and '.join(_ALLOWED)}")
    kept = {key: value for key, value in tree.items() if key == "supervisor" or key.startswith(_ALLOWED)}
    return tree.like(kept)


def _others(tree: Mapped) -> Iterator[tuple[str, int]]:
    """The properties that an included file may not hold, with their lines."""
    for key, value in tree.items():
        if key == "supervisor" and isinstance(value, Mapped):
            for inner in value:
                if not f"supervisor.{inner}".startswith(_ALLOWED):
                    yield f"supervisor.{inner}", value.lines.get(inner, 1)
        elif not key.startswith(_ALLOWED):
            yield key, tree.lines.get(key, 1)


class Origins:
    """Where properties stand: file and line by path. A property that is not known has the place of the one above it."""

    def __init__(self) -> None:
        self._parts: dict[str, tuple[Mapped, str]] = {}

    def note(self, path: str, part: Raw, key: str) -> None:
        """The property at `path` is the `key` of this mapping."""
        if isinstance(part, Mapped):
            self._parts[path] = (part, key)

    def copy(self, path: str, other: str) -> None:
        """The property at `other` stands where the one at `path` does."""
        if found := self._find(path):
            self._parts[other] = found

    def _find(self, path: str) -> tuple[Mapped, str] | None:
        while path and path not in self._parts:
            path = path.rpartition(".")[0]
        return self._parts.get(path)

    def prefix(self, path: str) -> str:
        """`conf.d/web.yaml:12: ` for a property of an included file; empty for others."""
        found = self._find(path)
        return f"{_place(*found)}: " if found and found[0].included_as else ""

    def folder(self, path: str) -> Path:
        """The folder of the property's file."""
        found = self._find(path)
        return found[0].file.parent if found else Path()

    def two_files(self, path: str, part: Raw, key: str) -> str:
        """Both places of a property that another file has too; empty where it is the same file."""
        found = self._parts.get(path)
        if found is None or not isinstance(part, Mapped) or found[0].file == part.file:
            return ""
        return f"{_place(*found)} and {_place(part, key)}"


def _place(part: Mapped, key: str) -> str:
    return f"{part.included_as or part.file}:{part.lines.get(key, 1)}"
