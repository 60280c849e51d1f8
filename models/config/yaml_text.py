"""Reads the YAML files of a configuration, the main one and those that its `include` names, as trees of texts.

No scalar is converted, so `022`, `on` and `12345` stay as they are written.
"""

from __future__ import annotations

import contextlib
import pickle
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from glob import glob, has_magic
from pathlib import Path

import yaml

from models.config.parsers import Raw, shown

_YAML = "tag:yaml.org,2002:"
_NULL, _MERGE = f"{_YAML}null", f"{_YAML}merge"
_TAGS = {_YAML + name for name in ("null", "bool", "int", "float", "str", "timestamp", "value", "seq", "map")}
MAX_FILES = 1000
_ALLOWED = ("supervisor.processes", "supervisor.groups")

Fault = Callable[[str, str], object]


def _composed(text: str) -> yaml.Node | None:
    """Parses with libyaml, which is ten times as fast; on a fault with PyYAML, whose messages are better."""
    with contextlib.suppress(AttributeError, yaml.YAMLError, RecursionError):
        return yaml.compose(text, yaml.CSafeLoader)
    return yaml.compose(text, yaml.SafeLoader)


class Mapped(dict[str, Raw]):
    """A mapping with its file and the lines of its keys."""

    def __init__(self, content: dict[str, Raw], file: Path, lines: dict[str, int], included_as: str | None) -> None:
        """`included_as` is what faults call the file; `None` for the main one."""
        super().__init__(content)
        self.file = file
        self.lines = lines
        self.included_as = included_as

    def like(self, content: dict[str, Raw]) -> Mapped:
        """Another mapping of the same place."""
        return Mapped(content, self.file, self.lines, self.included_as)


class Yaml:
    """One file as a tree. Calls `fault(where, why)` for each fault; `where` is the file, with line and column."""

    def __init__(self, path: Path, fault: Fault, included_as: str | None = None) -> None:
        self._path, self._fault = path, fault
        self._done: dict[yaml.Node, Raw] = {}  # an alias is converted once, however often it is used
        self._included_as = included_as
        self._open: set[yaml.Node] = set()

    def read(self) -> Raw:
        """The mapping at the top; `{}` for an empty file and for one that cannot be read."""
        try:
            tree: Raw = pickle.loads(self._packed())  # noqa: S301 (what `_packed` made)
        except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
            self._fault(*_explained(self._path, error))
            return {}
        if tree is not None and not isinstance(tree, dict):
            self._fault(str(self._path), "a mapping of properties is expected")
        return tree if isinstance(tree, dict) else {}

    def _packed(self) -> bytes:
        """The tree as one block of memory.

        Its texts lie between the nodes, which take ten times as much: unpacked after those are freed, they lie
        together, and the memory of the nodes goes back to the system.
        """
        node = _composed(self._path.read_bytes().decode())
        try:
            return pickle.dumps(self._plain(node) if node else None)
        finally:
            self._done.clear()

    def _at(self, node: yaml.Node, why: str) -> None:
        self._fault(f"{self._path}:{node.start_mark.line + 1}:{node.start_mark.column + 1}", why)

    def _plain(self, node: yaml.Node) -> Raw:
        if node in self._open:
            self._at(node, "contains itself")
            return None
        if node not in self._done:
            self._open.add(node)
            self._done[node] = self._converted(node)
            self._open.remove(node)
        return self._done[node]

    def _converted(self, node: yaml.Node) -> Raw:
        if node.tag not in _TAGS:
            self._at(node, "tags such as !this are not supported")
        if isinstance(node, yaml.MappingNode):
            lines = {str(key.value): key.start_mark.line + 1 for key, _ in node.value}
            return Mapped(self._merged(node) | self._own(node), self._path, lines, self._included_as)
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(item) for item in node.value]
        return None if node.tag == _NULL else sys.intern(str(node.value))

    def _own(self, node: yaml.MappingNode) -> dict[str, Raw]:
        lines: dict[str, int] = {}
        own: dict[str, Raw] = {}
        for key, value in self._pairs(node):
            if key.value in lines:
                self._at(key, f"the key {shown(key.value)} is repeated, after line {lines[key.value]}")
            lines[key.value] = key.start_mark.line + 1
            own.setdefault(key.value, self._plain(value))
        return own

    def _pairs(self, node: yaml.MappingNode) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._at(key, "a key must be a text")
            elif key.tag != _MERGE:
                yield key, value

    def _merged(self, node: yaml.MappingNode) -> dict[str, Raw]:
        """The keys merged by `<<`; of several mappings the first that has a key wins."""
        merged: dict[str, Raw] = {}
        for value in (value for key, value in node.value if key.tag == _MERGE):
            plain = self._plain(value)
            for part in plain if isinstance(plain, list) else [plain]:
                if isinstance(part, dict):
                    merged = part | merged
                else:
                    self._at(value, "<< takes a mapping or a list of mappings")
        return merged


def _explained(path: Path, error: Exception) -> tuple[str, str]:
    """Where and why a file cannot be read. Quotes none of its text, which may hold a password."""
    match error:
        case FileNotFoundError():
            return str(path), "there is no such file"
        case IsADirectoryError():
            return str(path), "is a directory, not a file"
        case OSError():
            return str(path), f"cannot be read: {error.strerror}"
        case UnicodeDecodeError():
            return f"{path}:{error.object.count(10, 0, error.start) + 1}", "is not UTF-8"
        case yaml.MarkedYAMLError(problem_mark=yaml.Mark() as mark):
            why = ", ".join(words for words in (error.context, error.problem) if words)
            return f"{path}:{mark.line + 1}:{mark.column + 1}", re.sub(r"(alias|anchor|handle) '[^']*'", r"\1", why)
        case yaml.reader.ReaderError():
            return str(path), f"the character number {error.position + 1} is not allowed in YAML"
    return str(path), "is nested too deeply"


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
    place = str(file.relative_to(folder)) if file.is_relative_to(folder) else str(file)
    tree = Yaml(file, lambda where, why: fault(where.replace(str(file), place, 1), why), included_as=place).read()
    if not isinstance(tree, Mapped):
        return tree
    for key, line in _others(tree):
        fault(f"{place}:{line}", f"{key}: an included file may hold only {' and '.join(_ALLOWED)}")
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
