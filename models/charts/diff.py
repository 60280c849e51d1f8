"""The difference between two texts line by line, and of two manifests object by object, within bounds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import groupby, islice
from typing import Literal

from attrs import frozen

MAX_LINES = 20_000
"""Lines of both texts together, without their common start and end."""
MAX_SHOWN_LINES = 4000
_CONTEXT_LINES = 3


@frozen
class DiffLine:
    """A line of a difference; `kind` is add, del, hunk or empty."""

    kind: str
    text: str


@frozen
class Difference:
    lines: tuple[DiffLine, ...]
    added: int = 0
    removed: int = 0
    is_cut: bool = False
    """Whether lines are missing, or the texts were too large to compare."""

    @property
    def blocks(self) -> list[DiffLine]:
        """The lines, with those of one kind that follow each other as one text: fewer elements on a page."""
        return _blocks(self.lines)

    @property
    def sides(self) -> tuple[list[DiffLine], list[DiffLine]]:
        """Returns the old and the new text side by side; a line that only one text has is paired with an empty line."""
        left, right = list[DiffLine](), list[DiffLine]()
        for line in self.lines:
            if line.kind in ("", "hunk"):
                _level(left, right)
                left.append(line)
                right.append(line)
            else:
                (left if line.kind == "del" else right).append(line)
        _level(left, right)
        return _blocks(left), _blocks(right)


def _blocks(lines: Iterable[DiffLine]) -> list[DiffLine]:
    return [
        DiffLine(kind, "\n".join(line.text for line in group) + "\n")
        for kind, group in groupby(lines, key=lambda line: line.kind)
    ]


def _level(left: list[DiffLine], right: list[DiffLine]) -> None:
    """Makes both sides equally long."""
    shorter, missing = (left, len(right) - len(left)) if len(left) < len(right) else (right, len(left) - len(right))
    shorter.extend(DiffLine("gap", " ") for _ in range(missing))


@frozen
class ObjectDifference:
    """What changed in one object of a manifest."""

    title: str
    change: Literal["added", "removed", "changed"]
    difference: Difference


@frozen
class ManifestDifference:
    objects: tuple[ObjectDifference, ...]
    added: int
    removed: int
    is_cut: bool
    """Whether lines or objects are missing."""


_SEPARATOR = re.compile(r"^---.*$", re.MULTILINE)
_KIND = re.compile(r"^kind:\s*[\"']?([\w.-]+)", re.MULTILINE)
_METADATA = re.compile(r"^metadata:[ \t]*(\{.*\}|(?:\n(?:[ \t#].*)?)*)", re.MULTILINE)
_VALUE = r"[\"']?([^\s\"',}]+)"


def _metadata(text: str, key: str) -> str:
    """A value of the metadata of an object, or an empty text."""
    block = _METADATA.search(text)
    if block is None:
        return ""
    if block[1].startswith("{"):
        found = re.search(rf"[{{,]\s*{key}:\s*{_VALUE}", block[1])
    else:
        indents = [len(line) - len(line.lstrip()) for line in block[1].splitlines() if line.strip(" \t")]
        found = re.search(rf"^ {{{min(indents, default=1)}}}{key}:\s*{_VALUE}", block[1], re.MULTILINE)
    return found[1] if found else ""


@frozen
class DocumentIdentity:
    """What a document of a manifest is called; parts that it lacks are empty."""

    kind: str
    name: str
    namespace: str


def identified(manifest: str) -> list[tuple[DocumentIdentity, str]]:
    """The documents of a manifest with their identities. Texts without YAML are left out."""
    found = list[tuple[DocumentIdentity, str]]()
    for text in _SEPARATOR.split(manifest):
        text = text.strip("\n")
        if not any(line.strip() and not line.lstrip().startswith("#") for line in text.splitlines()):
            continue
        kind = found_kind[1] if (found_kind := _KIND.search(text)) else ""
        found.append((DocumentIdentity(kind, _metadata(text, "name"), _metadata(text, "namespace")), text))
    return found


def documents(manifest: str) -> list[tuple[str, str]]:
    """The documents of a manifest, each with its title: kind, name and namespace. Texts without YAML are left out."""
    found = list[tuple[str, str]]()
    for identity, text in identified(manifest):
        title = " ".join(part for part in (identity.kind, identity.name) if part) or f"document {len(found) + 1}"
        found.append((f"{title} in {identity.namespace}" if identity.namespace else title, text))
    return found


def by_object(
    old: str, new: str, shown: Callable[[str, str], tuple[str, str]] = lambda old, new: (old, new)
) -> ManifestDifference:
    """The difference of two manifests, object by object in the order of the new one. CPU-bound: call it in a worker.

    `shown` returns what is shown of the two texts of an object.
    """
    before, after = _by_title(old), _by_title(new)
    changes, lines = list[ObjectDifference](), 0
    added = removed = 0
    is_cut = False
    for title in (*after, *(title for title in before if title not in after)):
        if before.get(title) == after.get(title):
            continue
        change: Literal["added", "removed", "changed"] = (
            "added" if title not in before else "removed" if title not in after else "changed"
        )
        found = difference(*shown(before.get(title, ""), after.get(title, "")))
        added, removed = added + found.added, removed + found.removed
        is_cut = is_cut or found.is_cut or lines >= MAX_SHOWN_LINES
        if lines < MAX_SHOWN_LINES and (found.lines or found.is_cut):
            changes.append(ObjectDifference(title, change, found))
        lines += len(found.lines)
    return ManifestDifference(tuple(changes), added, removed, is_cut)


def _by_title(manifest: str) -> dict[str, str]:
    """The documents by title; those with one title are one text."""
    found = dict[str, str]()
    for title, text in documents(manifest):
        found[title] = f"{found[title]}\n---\n{text}" if title in found else text
    return found


@frozen
class Unified:
    """The lines of `diff -u` without its two file names."""

    lines: tuple[str, ...] = ()
    added: int = 0
    removed: int = 0
    is_too_large: bool = False
    """Whether the texts were too large to compare."""
    compared: int = 0
    """Lines of both texts that were compared."""


def unified(old: str, new: str, context: int = _CONTEXT_LINES, most: int = MAX_LINES) -> Unified:
    """The difference as `diff -u` shows it, of at most `most` lines. CPU-bound: call it in a worker."""
    import difflib  # 0.4 MB, for this only

    before, after = old.splitlines(), new.splitlines()
    if before == after:
        return Unified()
    start, end = _shared(before, after)
    first, last = max(0, start - context), max(0, end - context)
    before, after = before[first : len(before) - last], after[first : len(after) - last]
    if len(before) + len(after) > most:
        return Unified(is_too_large=True)
    output = islice(difflib.unified_diff(before, after, n=context, lineterm=""), 2, None)
    lines = tuple(_moved(text, first) if text.startswith("@@") else text for text in output)
    added, removed = (sum(text.startswith(sign) for text in lines) for sign in "+-")
    return Unified(lines, added, removed, compared=len(before) + len(after))


def difference(old: str, new: str) -> Difference:
    """The difference for a page. CPU-bound: call it in a worker."""
    found = unified(old, new)
    lines = tuple(_line(text) for text in found.lines[:MAX_SHOWN_LINES])
    return Difference(lines, found.added, found.removed, found.is_too_large or len(found.lines) > MAX_SHOWN_LINES)


def _shared(before: list[str], after: list[str]) -> tuple[int, int]:
    """The number of common lines at the start and at the end."""
    limit, start = min(len(before), len(after)), 0
    while start < limit and before[start] == after[start]:
        start += 1
    end = 0
    while end < limit - start and before[-1 - end] == after[-1 - end]:
        end += 1
    return start, end


def _line(text: str) -> DiffLine:
    return DiffLine({"+": "add", "-": "del", "@": "hunk"}.get(text[:1], ""), text)


def _moved(text: str, first: int) -> str:
    """A hunk heading with its line numbers counted from the start of the whole texts."""
    parts = []
    for word in text.strip("@ ").split():
        number, comma, count = word[1:].partition(",")
        parts.append(f"{word[0]}{int(number) + first}{comma}{count}")
    return f"@@ {' '.join(parts)} @@"
