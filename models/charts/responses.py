"""What the chart service answers with. Names as the seed and helm have them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from attrs import field, frozen

VERBATIM = {"verbatim": True}
"""A field that leaves with the name it has here; `handlers/http/serializers.py` makes the others camelCase."""


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

    __test__ = False  # not one of pytest's


@frozen
class Lint:
    chart_ref: str
    ok: bool
    errors: tuple[str, ...]
    warnings: tuple[str, ...]


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
class Locked:
    name: str
    repository: str
    version: str


@frozen
class LockDocument:
    """Chart.lock, as helm would write it."""

    dependencies: Sequence[Locked]
    digest: str
    generated: str


@frozen
class Download:
    """A file to be sent: where it lies (in the request's own folder), and the name that the client is to give it."""

    file: Path
    name: str
