"""Response types of the chart service. Names are those of the interface and of helm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from attrs import field, frozen

from models.json_format import http_message

VERBATIM = {"verbatim": True}
"""Metadata of a field whose JSON name is the attribute's name; other names become camelCase."""


@http_message
class ReleaseInfo:
    first_deployed: str | None = field(metadata=VERBATIM)
    last_deployed: str | None = field(metadata=VERBATIM)
    deleted: str | None = field(metadata=VERBATIM)
    description: str
    status: str
    notes: str


@http_message
class Release:
    name: str
    namespace: str
    version: int
    info: ReleaseInfo
    manifest: str


@http_message
class ListRow:
    name: str
    namespace: str
    revision: int
    updated: str | None
    status: str
    chart: str
    app_version: str = field(metadata=VERBATIM)


@http_message
class HistoryRow:
    revision: int
    updated: str | None
    status: str
    chart: str
    app_version: str = field(metadata=VERBATIM)
    description: str


@http_message
class Hook:
    kind: str
    name: str
    phases: tuple[str, ...]
    weight: int
    delete_policy: tuple[str, ...]


@http_message
class Resource:
    kind: str
    name: str
    namespace: str | None
    ready: bool
    message: str


@frozen  # for the types of `evolve`
class TestResult:
    kind: str
    name: str
    status: Literal["PASSED", "FAILED", "RUNNING"]
    message: str | None

    __test__ = False  # not a pytest class


@http_message
class Lint:
    chart_ref: str | None
    """`None` for an uploaded chart."""
    ok: bool
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    infos: tuple[str, ...]


@http_message
class Repository:
    name: str
    url: str


@http_message
class ChartItem:
    name: str
    chart_version: str
    app_version: str | None
    description: str | None


@http_message
class HubItem:
    name: str
    version: str
    app_version: str
    repo_name: str
    repo_url: str
    description: str
    url: str


@http_message
class LockedDependency:
    name: str
    repository: str
    version: str


@http_message
class LockDocument:
    """Chart.lock, as helm writes it."""

    dependencies: Sequence[LockedDependency]
    digest: str
    generated: str


@http_message
class Download:
    """A file to send: its path in the request's folder, and the name offered to the client."""

    file: Path
    name: str
