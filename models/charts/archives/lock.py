"""The lock file of a chart: the versions that its dependencies were resolved to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from models.charts.archives import metadata
from models.charts.archives.archive import ChartDependency, lock_facts
from models.charts.archives.metadata import ResolvedDependency
from models.errors import Invalid
from models.json_format import list_of, text_of

CHART_LOCK, REQUIREMENTS_LOCK = "Chart.lock", "requirements.lock"


@frozen
class Lock:
    """A lock file: name, version and repository of each dependency, and the digest of what they were resolved from."""

    entries: Sequence[tuple[str, str, str]]
    digest: str


def read(path: Path) -> Lock | None:
    """The lock in an archive; `None` without one. CPU-bound: call it in a worker. Raises `Invalid`."""
    facts = lock_facts(path)
    if facts is None:
        return None
    listed = [entry for entry in list_of(facts, "dependencies") if isinstance(entry, dict)]
    return Lock([tuple(text_of(entry, key) for key in _KEYS) for entry in listed], text_of(facts, "digest"))  # type: ignore[misc]


_KEYS = ("name", "version", "repository")


def agreed(lock: Lock, wanted: Sequence[tuple[ChartDependency, str]], api_version: str) -> list[ResolvedDependency]:
    """The locked versions of these dependencies, each with its repository as a URL.

    Raises `Invalid` if the lock was made for other dependencies, as helm does.
    """
    locked = [
        ResolvedDependency(dependency, version, repository)
        for (dependency, repository), (name, version, locked_repository) in zip(wanted, lock.entries, strict=False)
        if (dependency.name, repository) == (name, locked_repository)
    ]
    digests = [metadata.lock_digest(locked)]
    if api_version == "v1":
        digests.append(_digest_of_helm2([dependency.facts for dependency, _ in wanted]))
    if not len(locked) == len(wanted) == len(lock.entries) or lock.digest not in digests:
        raise Invalid("the lock file is out of sync with the chart's dependencies: update them")
    return locked


def _digest_of_helm2(requested: Sequence[Mapping[str, Any]]) -> str:
    content = json.dumps({"dependencies": [metadata.dependency(facts) for facts in requested]}, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"
