"""The difference of two revisions of a release: unified text, object by object, with the data of Secrets masked."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from attrs import Factory, define, frozen

from models.charts import yaml_values
from models.charts.diff import MAX_LINES, DocumentIdentity, ManifestDifference, Unified, by_object, identified, unified
from models.charts.responses import Diff, ObjectDiff
from models.errors import Invalid
from models.json_format import list_of, part_of, text_of

What = Literal["manifest", "values", "notes", "hooks"]
MAX_DIFF_CHARACTERS = 1024**2
"""The length of a difference; what is beyond is left out."""
_SECRET_FIELDS = ("data", "stringData")

Values = dict[tuple[str, ...], bytes]
"""The values of Secrets by name, namespace, field and key."""


@frozen
class DiffSide:
    """One of two texts, and the revision that it is of."""

    revision: int | None
    text: str


def compare(
    old: DiffSide, new: DiffSide, what: What, context: int, namespace: str, shows_secrets: bool = False
) -> Diff:
    """The difference of two sides. CPU-bound: call it in a worker.

    `namespace` is the release's. Raises `Invalid` for a Secret whose YAML is beyond its bounds.
    """
    writer = _Writer(context)
    names = tuple(f"{what} {side.revision or '(none)'}" for side in (old, new))
    objects = []
    if what in ("manifest", "hooks"):
        objects = list(_objects(old, new, writer, namespace, shows_secrets))
    else:
        writer.write(names[0], names[1], old.text, new.text)
    return Diff(
        from_=old.revision,
        to=new.revision,
        what=what,
        added=writer.added,
        removed=writer.removed,
        truncated=writer.is_truncated,
        diff="".join(writer.parts),
        objects=tuple(objects),
    )


@define
class _Writer:
    """Writes the differences of several texts one after another, within the bounds of all of them."""

    context: int
    parts: list[str] = Factory(list)
    added: int = 0
    removed: int = 0
    is_truncated: bool = False
    lines: int = MAX_LINES
    characters: int = MAX_DIFF_CHARACTERS

    def write(self, old_name: str, new_name: str, old: str, new: str) -> str | None:
        """Writes a difference; returns its text, `None` if the texts are equal."""
        found = unified(old, new, self.context, self.lines)
        if not found.lines and not found.is_too_large:
            return None
        self.lines -= found.compared
        self.added, self.removed = self.added + found.added, self.removed + found.removed
        text = self._fitting(found)
        if text:
            self.parts.append(f"--- {old_name}\n+++ {new_name}\n{text}")
        return text

    def _fitting(self, found: Unified) -> str:
        self.is_truncated |= found.is_too_large
        kept = []
        for line in found.lines:
            if self.characters <= len(line):
                self.is_truncated = True
                break
            self.characters -= len(line) + 1
            kept.append(f"{line}\n")
        return "".join(kept)


def _objects(
    old: DiffSide, new: DiffSide, writer: _Writer, namespace: str, shows_secrets: bool
) -> Iterator[ObjectDiff]:
    """The objects that differ, paired by kind, namespace and name, in the order of the new text."""
    before, after = _by_identity(old.text, namespace), _by_identity(new.text, namespace)
    for place in (*after, *(place for place in before if place not in after)):
        was, is_ = before.get(place, ""), after.get(place, "")
        if was == is_:
            continue
        if not shows_secrets:
            was, is_ = masked_pair(was, is_)
        title = "/".join(filter(None, (place.kind, place.namespace, place.name))) or "(no name)"
        names = [title if each in side else "/dev/null" for side, each in ((before, place), (after, place))]
        text = writer.write(names[0], names[1], was, is_)
        if text is not None:
            change: Literal["ADDED", "REMOVED", "CHANGED"] = (
                "ADDED" if place not in before else "REMOVED" if place not in after else "CHANGED"
            )
            yield ObjectDiff(place.kind, place.name, place.namespace or None, change, text)


def _by_identity(manifest: str, namespace: str) -> dict[DocumentIdentity, str]:
    """The documents by identity; those with one identity are one text. Without a namespace it is the release's."""
    found = dict[DocumentIdentity, str]()
    for identity, text in identified(manifest):
        place = DocumentIdentity(identity.kind, identity.name, identity.namespace or namespace)
        found[place] = f"{found[place]}\n---\n{text}" if place in found else text
    return found


# Secrets


def masked(manifest: str) -> tuple[str, bool]:
    """A manifest without the values of its Secrets, and whether it has any. CPU-bound: call it in a worker."""
    parts = yaml_values.split_documents(manifest)
    shown = [_masked(part, {}) if "Secret" in part else part for part in parts]
    return ("---\n".join(shown), True) if shown != parts else (manifest, False)


def masked_by_object(old: str, new: str) -> tuple[ManifestDifference, bool]:
    """As `by_object` without the values of Secrets, and whether any of what differs has them."""
    is_masked = False

    def shown(was: str, is_: str) -> tuple[str, str]:
        nonlocal is_masked
        pair = masked_pair(was, is_)
        is_masked |= pair != (was, is_)
        return pair

    return by_object(old, new, shown), is_masked


def masked_pair(old: str, new: str) -> tuple[str, str]:
    """Two texts of one object without the values of its Secrets; the new one notes which have changed."""
    return _masked(old, {}), _masked(new, _values_of(old))


def _masked(text: str, before: Values) -> str:
    """A document without the values of its Secrets: their lengths, and whether they differ from those before."""
    if "Secret" not in text:
        return text
    parts = []
    for part in yaml_values.split_documents(text):
        tree = _tree(part)
        if tree is None:
            parts.append(f"(a document with a Secret that is not YAML, {len(part.encode())} bytes)\n")
            continue
        is_masked = False
        for secret in _secrets(tree):
            is_masked = True
            mask_secret(secret, before)
        parts.append(yaml_values.dump(tree) if is_masked else part)
    return "---\n".join(parts)


def mask_secret(secret: dict[str, Any], before: Values | None = None) -> None:
    """Replaces the values of a Secret in place."""
    for field, key, value in list(_entries(secret)):
        earlier = (before or {}).get(_place(secret, field, key))
        note = ", changed" if earlier not in (None, value) else ""
        secret[field][key] = f"({len(value)} bytes{note})"


def _values_of(text: str) -> Values:
    found: Values = {}
    if "Secret" in text:
        for part in yaml_values.split_documents(text):
            for secret in _secrets(_tree(part)):
                for field, key, value in _entries(secret):
                    found[_place(secret, field, key)] = value
    return found


def _tree(text: str) -> dict[str, Any] | None:
    """The document; `None` if it is no mapping. Raises `Invalid` beyond the bounds of YAML."""
    try:
        return yaml_values.load(text, "the manifest")
    except Invalid:
        return None


def _secrets(tree: Any) -> Iterator[dict[str, Any]]:
    """The Secrets of a document, those of a list too."""
    if not isinstance(tree, dict):
        return
    if tree.get("kind") == "Secret":
        yield tree
    for item in list_of(tree, "items"):
        yield from _secrets(item)


def _entries(secret: Mapping[str, Any]) -> Iterator[tuple[str, str, bytes]]:
    """Yields field, key and value; values of `data` are decoded."""
    for field in _SECRET_FIELDS:
        for key, value in part_of(secret, field).items():
            text = value if isinstance(value, str) else "" if value is None else str(value)
            yield field, key, _decoded(text) if field == "data" else text.encode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return text.encode()


def _place(secret: Mapping[str, Any], field: str, key: str) -> tuple[str, ...]:
    metadata = part_of(secret, "metadata")
    return text_of(metadata, "name"), text_of(metadata, "namespace"), field, key
