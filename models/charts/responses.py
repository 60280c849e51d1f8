"""Response types of the chart service. Names are those of the interface and of helm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from attrs import field, frozen

VERBATIM = {"verbatim": True}
"""Metadata of a field whose JSON name is the attribute's name; other names become camelCase."""


@frozen
class ReleaseInfo:
    first_deployed: str | None = field(metadata=VERBATIM)
    last_deployed: str | None = field(metadata=VERBATIM)
    deleted: str | None = field(metadata=VERBATIM)
    description: str
    status: str
    notes: str


@frozen
class Release:
    name: str
    namespace: str
    version: int
    info: ReleaseInfo
    manifest: str


@frozen
class ListRow:
    name: str
    namespace: str
    revision: int
    updated: str | None
    status: str
    chart: str
    app_version: str = field(metadata=VERBATIM)


@frozen
class HistoryRow:
    revision: int
    updated: str | None
    status: str
    chart: str
    app_version: str = field(metadata=VERBATIM)
    description: str


@frozen
class Hook:
    kind: str
    name: str
    phases: tuple[str, ...]
    weight: int
    delete_policy: tuple[str, ...]


@frozen
class Resource:
    kind: str
    name: str
    namespace: str | None
    ready: bool
    message: str


@frozen
class TestResult:
    kind: str
    name: str
    status: Literal["PASSED", "FAILED", "RUNNING"]
    message: str | None

    __test__ = False  # not a pytest class


@frozen
class Lint:
    chart_ref: str | None
    """`None` for an uploaded chart."""
    ok: bool
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    infos: tuple[str, ...]


@frozen
class Repository:
    name: str
    url: str


@frozen
class ChartItem:
    name: str
    chart_version: str
    app_version: str | None
    description: str | None


@frozen
class HubItem:
    name: str
    version: str
    app_version: str
    repo_name: str
    repo_url: str
    description: str
    url: str


@frozen
class LockedDependency:
    name: str
    repository: str
    version: str


@frozen
class LockDocument:
    """Chart.lock, as helm writes it."""

    dependencies: Sequence[LockedDependency]
    digest: str
    generated: str


@frozen
class Download:
    """A file to send: its path in the request's folder, and the name offered to the client."""

    file: Path
    name: str
