"""A chart's metadata in helm's own form: what is pushed beside an archive, and what is hashed into a lock."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from models.charts import yaml_values
from models.charts.archive import Dependency

_TEXTS = (
    "name", "home", "version", "description", "icon", "apiVersion", "condition", "tags", "appVersion", "kubeVersion",
    "type",
)  # fmt: skip
_LISTS = ("sources", "keywords")
_NULLS = {"", "~", "null", "Null", "NULL"}
_YES = {"true", "yes", "on", "y"}


def config(metadata: Mapping[str, Any]) -> bytes:
    """Chart.yaml as the JSON that helm reads back; what it does not know, or cannot, is left out."""
    found: dict[str, Any] = {name: metadata[name] for name in _TEXTS if is_text(metadata.get(name))}
    for name in _LISTS:
        items = metadata.get(name)
        if isinstance(items, list) and items:
            found[name] = [item for item in items if isinstance(item, str)]
    people = metadata.get("maintainers")
    if isinstance(people, list):
        found["maintainers"] = [_texts(one, ("name", "email", "url")) for one in people if isinstance(one, dict)]
    if is_yes(metadata.get("deprecated")):
        found["deprecated"] = True
    notes = metadata.get("annotations")
    if isinstance(notes, dict):
        found["annotations"] = {key: value for key, value in notes.items() if isinstance(value, str)}
    needs = metadata.get("dependencies")
    if isinstance(needs, list):
        found["dependencies"] = [dependency(one) for one in needs if isinstance(one, dict)]
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False).encode()


def dependency(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A dependency in the order and with the fields in which helm has it; name and repository are always there."""
    found: dict[str, Any] = {"name": facts["name"]}
    if is_text(facts.get("version")):
        found["version"] = facts["version"]
    found["repository"] = facts["repository"] if is_text(facts.get("repository")) else ""
    if is_text(facts.get("condition")):
        found["condition"] = facts["condition"]
    tags = facts.get("tags")
    if isinstance(tags, list) and tags:
        found["tags"] = [tag for tag in tags if isinstance(tag, str)]
    if is_yes(facts.get("enabled")):
        found["enabled"] = True
    values = facts.get("import-values")
    if isinstance(values, list) and values:
        found["import-values"] = values
    if is_text(facts.get("alias")):
        found["alias"] = facts["alias"]
    return found


def is_text(value: object) -> bool:
    return isinstance(value, str) and value not in _NULLS


def is_yes(value: object) -> bool:
    return isinstance(value, str) and value.lower() in _YES


def _texts(facts: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, str]:
    return {name: facts[name] for name in names if is_text(facts.get(name))}


@frozen
class Locked:
    """One dependency with the version that was chosen; `repository` as a URL where it was a name."""

    wanted: Dependency
    version: str
    repository: str


def document(locked: Sequence[Locked], generated: str) -> str:
    """The lock. `generated` is its time as RFC 3339 has it."""
    facts = {
        "dependencies": [_entry(one) for one in locked],
        "digest": f"sha256:{hashlib.sha256(_hashed(locked)).hexdigest()}",
        "generated": generated,
    }
    return yaml_values.dump(facts)


def _entry(one: Locked) -> dict[str, str]:
    return {"name": one.wanted.name, "repository": one.repository, "version": one.version}


def _hashed(locked: Sequence[Locked]) -> bytes:
    """What helm hashes: what the chart asks for and what it gets, in Go's JSON; no list at all is null there."""
    asked = [dependency({**one.wanted.facts, "repository": one.repository}) for one in locked]
    given = [
        {"name": one.wanted.name, **({"version": one.version} if one.version else {}), "repository": one.repository}
        for one in locked
    ]
    return _as_go(json.dumps([asked or None, given], separators=(",", ":"), ensure_ascii=False)).encode()


def _as_go(text: str) -> str:
    """Go escapes what could end a script in a page, and names control characters otherwise than Python does."""
    escapes: dict[str, Any] = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
    return text.translate(str.maketrans(escapes))
