"""The state of a chart's dependencies in its charts/ folder, in the words of `helm dependency list`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path

from attrs import frozen

from models.charts.archives.archive import ChartDependency, identity
from models.charts.archives.tar_reader import ArchiveLimits, Budget, Tarball
from models.charts.repositories import semver
from models.errors import Invalid

_ARCHIVE = re.compile(r"charts/([^/_.][^/]*)\.tgz")
_FOLDER = re.compile(r"charts/([^/_.][^/]*)/Chart\.yaml")
_STRICT_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+([-+][0-9A-Za-z.+-]+)?")


@frozen
class Vendored:
    """A chart in charts/: its own name and version; both empty if it cannot be read."""

    name: str
    version: str


def statuses(path: Path, dependencies: tuple[ChartDependency, ...]) -> list[str]:
    """The status of each dependency of a checked archive, as helm reports it for the unpacked folder.

    CPU-bound: call it in a worker.
    """
    archives, folders = dict[str, Vendored](), list[Vendored]()
    with path.open("rb") as file:
        for member in Tarball(file, Budget(ArchiveLimits())).members():
            if match := _ARCHIVE.fullmatch(member.path):
                archives[match[1]] = _archived(member.data)
            elif _FOLDER.fullmatch(member.path):
                folders.append(Vendored(*identity(member.data)))
    return [_status(dependency, archives, [*archives.values(), *folders]) for dependency in dependencies]


def _archived(data: bytes) -> Vendored:
    try:
        for member in Tarball(BytesIO(data), Budget(ArchiveLimits())).members():
            if member.path == "Chart.yaml":
                return Vendored(*identity(member.data))
    except Invalid:
        pass
    return Vendored("", "")


def _status(dependency: ChartDependency, archives: Mapping[str, Vendored], charts: list[Vendored]) -> str:
    """helm looks for archives named `<name>-*.tgz` first, then for any chart of that name."""
    found = list(_named(dependency.name, archives))
    if len(found) > 1:
        strict = [(stem, one) for stem, one in found if _STRICT_VERSION.fullmatch(stem[len(dependency.name) + 1 :])]
        if len(strict) > 1:
            return "too many matches"
        found = strict
    if found:
        return _status_of_archive(dependency, found[0][1])
    match = next((chart for chart in reversed(charts) if chart.name == dependency.name), None)
    if match is None:
        return "missing"
    return _fault_of_version(dependency, match) or "unpacked"


def _named(name: str, archives: Mapping[str, Vendored]) -> Iterator[tuple[str, Vendored]]:
    return ((stem, one) for stem, one in sorted(archives.items()) if stem.startswith(f"{name}-"))


def _status_of_archive(dependency: ChartDependency, found: Vendored) -> str:
    if not found.name:
        return "corrupt"
    if found.name != dependency.name:
        return "misnamed"
    return _fault_of_version(dependency, found) or "ok"


def _fault_of_version(dependency: ChartDependency, found: Vendored) -> str:
    if found.version == dependency.version:
        return ""
    version = semver.version(found.version)
    try:
        allowed = semver.range_of(dependency.version)
    except Invalid:
        return "invalid version"
    if version is None:
        return "invalid version"
    return "" if allowed.allows(version) else "wrong version"
