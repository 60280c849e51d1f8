"""A chart's metadata in helm's form: the config of a pushed chart, and the text that is hashed into Chart.lock."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from models.charts import yaml_values
from models.charts.archives import archive
from models.charts.archives.archive import ChartDependency

_CONFIG_ORDER = (
    "name", "home", "sources", "version", "description", "keywords", "maintainers", "icon", "apiVersion", "condition",
    "tags", "appVersion", "deprecated", "annotations", "kubeVersion", "dependencies", "type",
)  # fmt: skip
_LISTS = ("sources", "keywords")
_TRUE_WORDS = {"true", "yes", "on", "y"}


def config_json(metadata: Mapping[str, Any]) -> bytes:
    """Chart.yaml as the bytes that helm pushes: its fields in helm's order, without those that are empty or unknown."""
    metadata = _sanitized(metadata)
    config = {name: value for name in _CONFIG_ORDER if (value := _config_field(name, metadata.get(name)))}
    return _as_go_json(config)


_SANITIZED = (
    "name", "home", "sources", "description", "keywords", "maintainers", "icon", "condition", "tags", "appVersion",
    "kubeVersion", "dependencies",
)  # fmt: skip
"""The fields in which helm replaces each kind of space by a space, and removes what cannot be printed."""


def _sanitized(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {name: archive.clean(value) if name in _SANITIZED else value for name, value in metadata.items()}


def show_chart_json(path: Path) -> bytes:
    """Chart.yaml as JSON, in its own order; fields that helm does not know have every scalar as its text."""
    fields = archive.metadata(path)
    return _as_go_json(
        {name: _config_field(name, value) if name in _CONFIG_ORDER else value for name, value in fields.items()}
    )


def show_values_json(path: Path) -> bytes:
    """values.yaml as JSON. Raises `Invalid`."""
    return json.dumps(yaml_values.load(archive.show_values(path), "the chart's values.yaml")).encode()


def _config_field(name: str, value: Any) -> Any:
    """A field as helm writes it; an empty value if it is missing or has another type."""
    if name in _LISTS:
        return [_text(item) for item in value] if isinstance(value, list) else None
    if name == "maintainers":
        entries = value if isinstance(value, list) else []
        return [_texts(entry, ("name", "email", "url")) for entry in entries if isinstance(entry, dict)]
    if name == "deprecated":
        return is_yes(value)
    if name == "annotations":
        return own_annotations(value)
    if name == "dependencies":
        return [dependency(entry) for entry in value if isinstance(entry, dict)] if isinstance(value, list) else None
    return value if is_text(value) else None


def own_annotations(value: Any) -> dict[str, str]:
    """The chart's own annotations, sorted as Go sorts maps."""
    texts = value.items() if isinstance(value, dict) else ()
    return {key: _text(text) for key, text in sorted(texts)}


def manifest_json(metadata: Mapping[str, Any], config: Any, layer: Any, created: str) -> bytes:
    """The manifest of a pushed chart as helm writes it. `created` is an RFC 3339 time."""
    metadata = _sanitized(metadata)
    people = [entry for entry in metadata.get("maintainers") or () if isinstance(entry, dict)]
    sources = metadata.get("sources")
    derived = {
        "title": metadata.get("name"),
        "version": metadata.get("version"),
        "description": metadata.get("description"),
        "url": metadata.get("home"),
        "source": sources[0] if isinstance(sources, list) and sources else None,
        "authors": ", ".join(map(_author, people)),
        "created": created,
    }
    known = {f"org.opencontainers.image.{name}": text for name, text in derived.items() if _text(text).strip()}
    kept = {name: known[name] for name in _OWN_ANNOTATIONS_NEVER_REPLACE if name in known}
    merged = sorted((known | own_annotations(metadata.get("annotations")) | kept).items())
    return _as_go_json({"schemaVersion": 2, "config": config, "layers": [layer], "annotations": dict(merged)})


_OWN_ANNOTATIONS_NEVER_REPLACE = ("org.opencontainers.image.title", "org.opencontainers.image.version")


def _author(entry: Mapping[str, Any]) -> str:
    name, email = _text(entry.get("name")), _text(entry.get("email"))
    return f"{name} ({email})" if email else name


def dependency(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A dependency with helm's fields in helm's order; name and repository are always present."""
    entry: dict[str, Any] = {"name": fields["name"]}
    if is_text(fields.get("version")):
        entry["version"] = fields["version"]
    entry["repository"] = fields["repository"] if is_text(fields.get("repository")) else ""
    if is_text(fields.get("condition")):
        entry["condition"] = fields["condition"]
    tags = fields.get("tags")
    if isinstance(tags, list) and tags:
        entry["tags"] = [_text(tag) for tag in tags]
    if is_yes(fields.get("enabled")):
        entry["enabled"] = True
    values = fields.get("import-values")
    if isinstance(values, list) and values:
        entry["import-values"] = _sorted(values)
    if is_text(fields.get("alias")):
        entry["alias"] = fields["alias"]
    return entry


def _sorted(value: Any) -> Any:
    """Lists and mappings with sorted keys: the structure of `import-values` is free, and Go sorts the keys of maps."""
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    return {name: _sorted(item) for name, item in sorted(value.items())} if isinstance(value, dict) else value


def is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _text(value: object) -> str:
    """A text; empty for a null."""
    return value if isinstance(value, str) else ""


def is_yes(value: object) -> bool:
    return isinstance(value, str) and value.lower() in _TRUE_WORDS


def _texts(facts: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, str]:
    return {name: facts[name] for name in names if is_text(facts.get(name))}


@frozen
class ResolvedDependency:
    """A dependency with the chosen version; `repository` is a URL even if the chart names a repository."""

    wanted: ChartDependency
    version: str
    repository: str


def lock_document(locked: Sequence[ResolvedDependency], generated: str) -> str:
    """Chart.lock. `generated` is an RFC 3339 time."""
    document = {
        "dependencies": [_entry(lock) for lock in locked],
        "digest": lock_digest(locked),
        "generated": generated,
    }
    return yaml_values.dump(document)


def lock_digest(locked: Sequence[ResolvedDependency]) -> str:
    """The digest of a lock as helm computes it."""
    return f"sha256:{hashlib.sha256(_hashed(locked)).hexdigest()}"


def _entry(dependency: ResolvedDependency) -> dict[str, str]:
    return {"name": dependency.wanted.name, "repository": dependency.repository, "version": dependency.version}


def _hashed(locked: Sequence[ResolvedDependency]) -> bytes:
    """The text whose digest helm stores: requested and locked dependencies in Go's JSON."""
    requested = [dependency({**lock.wanted.facts, "repository": lock.repository}) for lock in locked]
    chosen = [
        {
            "name": lock.wanted.name,
            **({"version": lock.version} if lock.version else {}),
            "repository": lock.repository,
        }
        for lock in locked
    ]
    return _as_go_json([requested, chosen])


def _as_go_json(value: Any) -> bytes:
    """JSON as Go writes it: it escapes what could end a script element, and line separators."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    escapes: dict[str, Any] = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
    return text.translate(str.maketrans(escapes)).encode()
