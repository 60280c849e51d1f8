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
class Upgrade:
    """A newer version of a release's chart; `appVersion` is null if it is not known (registries)."""

    chart_ref: str
    version: str
    app_version: str | None


@http_message
class UpgradableRow(ListRow):
    upgrade: Upgrade | None


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


@http_message
class Image:
    image: str
    kind: str
    name: str
    container: str
    init: bool


@http_message
class TreeNode:
    """An object of a release, or one that such an object owns; `owner` is its kind and name."""

    kind: str
    name: str
    namespace: str | None
    ready: bool
    message: str
    owner: str | None
    created: str | None
    warnings: int


@http_message
class Event:
    type: str
    reason: str
    message: str
    count: int
    first: str | None
    last: str | None
    kind: str
    name: str


@http_message
class Context:
    """A context of the kubeconfig; `allowed`: whether requests may name it."""

    name: str
    namespace: str
    current: bool
    allowed: bool


@http_message
class ObjectDiff:
    kind: str
    name: str
    namespace: str | None
    change: Literal["ADDED", "REMOVED", "CHANGED"]
    diff: str


@http_message
class Diff:
    """The difference of two revisions as unified text, and of a manifest or hooks object by object.

    `from` is null without an earlier revision, `to` for an upgrade that is not stored.
    """

    from_: int | None
    to: int | None
    what: Literal["manifest", "values", "notes", "hooks"]
    added: int
    removed: int
    truncated: bool
    diff: str
    objects: Sequence[ObjectDiff]


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
class RepositoryDetails(Repository):
    """A repository with the state of its index: when it was fetched, what it has, and why its last update failed."""

    has_login: bool
    has_ca: bool
    has_certificate: bool
    fetched: str | None
    charts: int
    versions: int
    problem: str | None


@http_message
class RegistryInfo:
    """A registry with a login: one that this server stores (API), or one of `helm registry login` (FILE)."""

    host: str
    source: Literal["API", "FILE"]


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
class DependencyStatus:
    """A dependency of a chart; `status` is a word of `helm dependency list`: ok, unpacked, missing, wrong version."""

    name: str
    version: str
    repository: str
    status: str


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
    media_type: str | None = None
    """Another type than that of the operation."""
