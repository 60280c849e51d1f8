"""CODEOWNERS files of GitHub and GitLab: which owners a file has. The last matching line wins, in each section.

Patterns become regular expressions in which every `*` and `**` takes the leftmost match and never another one, so that
matching takes time linear to the path, whatever a pattern is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from attrs import field, frozen

MAX_BYTES = 256 * 1024
_MAX_CACHED_FILES = 20_000

_SECTION = re.compile(r"\^?\[([^\]]+)\](?:\[\d+\])?\s*(.*)")
_OWNER = re.compile(r"@@?[\w.][\w./-]*|[^\s@]+@[^\s@]+\.[^\s@]+")
_SIGN = re.compile(r"\\.|\*+|.", re.DOTALL)
"""A part of a pattern: an escaped character, a wildcard or another character."""


@frozen
class OwnerLine:
    """A line with a pattern. `is_excluded`: files that match have no owner in this section."""

    pattern: re.Pattern[str]
    owners: tuple[str, ...]
    is_excluded: bool


@frozen
class Codeowners:
    """The lines of each section: those that exclude files, then the others, the last first."""

    sections: Sequence[Sequence[OwnerLine]]
    _cached: dict[str, tuple[str, ...]] = field(factory=dict, eq=False, repr=False)

    def of(self, path: str) -> tuple[str, ...]:
        """The owners of a file, in the order of the sections; empty without one."""
        owners = self._cached.get(path)
        if owners is None:
            found = dict.fromkeys(owner for lines in self.sections for owner in _of_section(lines, path))
            owners = tuple(found)
            if len(self._cached) >= _MAX_CACHED_FILES:
                self._cached.clear()
            self._cached[path] = owners
        return owners


def _of_section(lines: Sequence[OwnerLine], path: str) -> Sequence[str]:
    """The owners by the lines of a section, of which those that exclude files come first."""
    for line in lines:
        if line.pattern.match(path):
            return () if line.is_excluded else line.owners
    return ()


def parse(text: str) -> Codeowners:
    """The rules of a file. Lines that have no meaning are ignored, as GitHub and GitLab do."""
    sections: dict[str, list[OwnerLine]] = {"": []}
    lines, defaults = sections[""], tuple[str, ...]()
    rows = [row for raw in text.splitlines() if (row := raw.strip()) and not row.startswith("#")]
    has_sections = any(_header(row) for row in rows)
    for row in rows:
        if header := _header(row):
            lines = sections.setdefault(header[1].strip().lower(), [])
            defaults = _owners(header[2]) or ()
            continue
        pattern, rest = _split(row)
        is_excluded = pattern.startswith("!")
        owners = _owners(rest)
        if owners is None or not (pattern := pattern.removeprefix("!")):
            continue
        if has_sections and not pattern.startswith("/"):
            pattern = f"**/{pattern}"  # of GitLab, where only a pattern with a slash before it begins at the root
        lines.append(OwnerLine(re.compile(_expression(pattern)), owners or defaults, is_excluded))
    for lines in sections.values():
        lines.reverse()
        lines.sort(key=lambda line: not line.is_excluded)
    return Codeowners([lines for lines in sections.values() if lines])


def _header(row: str) -> re.Match[str] | None:
    """The header of a section; None for another line."""
    header = _SECTION.fullmatch(row)
    return header if header and _owners(header[2]) is not None else None


def _split(row: str) -> tuple[str, str]:
    """The pattern, in which `\\ ` is a space, and the rest of the line."""
    match = re.match(r"((?:\\.|[^\s\\])+)\s*(.*)", row)
    return (match[1], match[2]) if match else (row, "")


def _owners(text: str) -> tuple[str, ...] | None:
    """The owners up to a comment; None if one is not valid: such a line is ignored."""
    names = text.partition("#")[0].split()
    return tuple(names) if all(map(_OWNER.fullmatch, names)) else None


def _expression(pattern: str) -> str:
    """The regular expression of the files that a pattern matches."""
    is_anchored = "/" in pattern.rstrip("/")
    is_folder = pattern.endswith("/")
    parts = [part for part in pattern.split("/") if part]
    if not parts:
        return r".*\Z" if pattern == "/" else r"(?!)"
    if not is_anchored:
        parts.insert(0, "**")
    end = r"/.+\Z" if is_folder else r"\Z" if parts[-1] == "*" else r"(?:/.*)?\Z"
    if set(parts) == {"**"}:
        return r".*\Z"
    if parts[-1] == "**":
        parts, end = parts[:-1], r"/.+\Z"
    groups: list[list[str]] = [[]]
    for part in parts:
        if part != "**":
            groups[-1].append(_segment(part))
        elif groups[-1] or len(groups) == 1:
            groups.append([])
    return _joined(groups, end)


def _joined(groups: Sequence[Sequence[str]], end: str) -> str:
    """Groups of segments, with any folders between two groups, and `end` after the last."""
    first, *others = groups
    expression = "/".join(first)
    for place, group in enumerate(others):
        start = "/" if expression else ""
        if not group:
            continue
        folders, segments = r"(?:[^/]+/)*", "/".join(group)
        is_last = place == len(others) - 1 or not any(others[place + 1 :])
        expression += f"{start}{folders}{segments}" if is_last else f"{start}(?>{folders}?{segments}(?=/))"
    return (expression or r"(?:[^/]+/)*[^/]+") + end


def _segment(part: str) -> str:
    """A part of a pattern between two slashes: `*` is any text, `?` any character, and `\\` escapes a character."""
    pieces = [""]
    for sign in _SIGN.findall(part):
        if sign[0] == "*":
            pieces.append("")
        else:
            pieces[-1] += "[^/]" if sign == "?" else re.escape(sign[-1])
    first, *rest = pieces
    if not rest:
        return first
    middle = "".join(f"(?>[^/]*?{piece})" for piece in rest[:-1])
    last = f"[^/]*{rest[-1]}(?=/|\\Z)" if rest[-1] else "[^/]*" if first or middle else "[^/]+"
    return f"{first}{middle}{last}"
