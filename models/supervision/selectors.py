"""Selectors: texts that name processes by name, glob, group or label (operator.md, section 2)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import translate
from functools import lru_cache

from attrs import frozen

from models.errors import Invalid, NotFound
from models.supervision.process import ProcessSpec

MAX_TERMS = 100
MAX_TERM_CHARACTERS = 256
MAX_SELECT_BYTES = 4096
"""The length of all values: a glob becomes a pattern, which the loop compiles."""

ALL = "all"

_GLOB = re.compile(r"[*?\[\]]")


@frozen
class Group:
    """A named set of processes, in the order of the configuration."""

    name: str
    members: tuple[str, ...]


@lru_cache(maxsize=1024)
def _pattern(glob: str) -> re.Pattern[str]:
    return re.compile(translate(glob))


def is_glob(text: str) -> bool:
    return _GLOB.search(text) is not None


def groups_of(specs: Iterable[ProcessSpec], configured: Mapping[str, Sequence[str]]) -> dict[str, Group]:
    """The groups by name: those of `supervisor.groups` first, then those that only processes name.

    A member of a configured group is the name of a process or a glob.
    """
    members: dict[str, dict[str, None]] = {name: {} for name in configured}
    for spec in specs:
        for name, patterns in configured.items():
            if any(pattern in (spec.name, spec.template) or _matches(pattern, spec.name) for pattern in patterns):
                members[name][spec.name] = None
        for name in spec.groups:
            members.setdefault(name, {})[spec.name] = None
    return {name: Group(name, tuple(names)) for name, names in members.items()}


def _matches(pattern: str, name: str) -> bool:
    return is_glob(pattern) and _pattern(pattern).match(name) is not None


def select(values: Sequence[str], specs: Iterable[ProcessSpec], groups: Mapping[str, Group]) -> list[str]:
    """The names of the selected processes, in the order of `specs`.

    `values` are the values of a repeated parameter; each is the exact name of a process, or terms with commas between
    them. Raises `Invalid` for what is no selector, `NotFound` for a term that matches nothing.
    """
    if sum(len(value.encode("utf-8", "replace")) for value in values) > MAX_SELECT_BYTES:
        raise Invalid(f"select is longer than {MAX_SELECT_BYTES} bytes", "INVALID_SELECTOR")
    selection = _Selection({spec.name: spec for spec in specs}, groups)
    terms = [term for value in values for term in selection.terms(value)]
    if not terms:
        raise Invalid("select must name at least one process, group or label", "INVALID_SELECTOR")
    if len(terms) > MAX_TERMS:
        raise Invalid(f"select has {len(terms)} terms; at most {MAX_TERMS} are allowed", "INVALID_SELECTOR")
    if any(len(term) > MAX_TERM_CHARACTERS for term in terms):
        raise Invalid(f"a term of select is longer than {MAX_TERM_CHARACTERS} characters", "INVALID_SELECTOR")
    if all(selection.is_excluding(term) for term in terms):
        raise Invalid(f"select only excludes; write {ALL},{terms[0]} to select the others", "INVALID_SELECTOR")
    chosen: set[str] = set()
    excluded: set[str] = set()
    for term in terms:
        if selection.is_excluding(term):
            excluded |= selection.matching(term[1:], term)
        else:
            chosen |= selection.matching(term, term)
    return [name for name in selection.specs if name in chosen - excluded]


class _Selection:
    def __init__(self, specs: Mapping[str, ProcessSpec], groups: Mapping[str, Group]) -> None:
        self.specs = specs
        self._groups = groups

    def terms(self, value: str) -> list[str]:
        """The terms of one value; a value that is a process's whole name is one term, whatever it contains."""
        if value in self.specs:
            return [value]
        return [term for term in map(str.strip, value.split(",")) if term]

    def is_excluding(self, term: str) -> bool:
        return term.startswith("!") and term not in self.specs

    def matching(self, term: str, written: str) -> set[str]:
        """The names that a term matches. Raises `Invalid`, `NotFound`, which show the term as it was `written`."""
        if not term:
            raise Invalid(f"{written!r} is not a selector", "INVALID_SELECTOR")
        names = self._exact(term)
        if names is None and is_glob(term) and "=" not in term:
            names = {name for name in self.specs if _matches(term, name)}
        if names is None and "=" in term:
            names = {name for name, spec in self.specs.items() if _has_label(spec, term)}
        if not names and term != ALL:
            raise NotFound(f"no process matches {written!r}", "PROCESS_NOT_FOUND")
        return names or set()

    def _exact(self, term: str) -> set[str] | None:
        """The names that a term means without a pattern; `None` where it is a pattern or unknown."""
        if term in self.specs:
            return {term}
        if term == ALL:
            return set(self.specs)
        group = term[1:] if term.startswith("@") else term[:-2] if term.endswith(":*") else None
        if group is not None and group in self._groups:
            return set(self._groups[group].members)
        return {name for name, spec in self.specs.items() if spec.template == term} or None


def _has_label(spec: ProcessSpec, term: str) -> bool:
    """Whether a label of the process fits `key=value`; both may be globs, and a bare label has an empty value."""
    key, _, value = term.partition("=")
    keys, values = _pattern(key), _pattern(value)
    pairs = (label.partition("=") for label in spec.labels)
    return any(keys.match(name) and values.match(text) for name, _, text in pairs)
