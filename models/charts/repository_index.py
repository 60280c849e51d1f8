"""A repository's index, read as a stream of events, chart by chart: it may be hundreds of megabytes.

YAML or JSON; either becomes the same few events. What a version is described by beyond what we keep is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

from models.charts import semver
from models.charts.yaml_events import DEEPEST, PIECE, Event, Events, Json, Kind, Yaml
from models.errors import Invalid

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,249}")
_MERGED = "<<"


@frozen
class IndexVersion:
    """One version of a chart, as the index tells of it."""

    version: str
    app_version: str | None
    description: str | None
    url: str
    digest: str


@frozen
class IndexChart:
    """A chart of the index with its versions, newest first."""

    name: str
    versions: tuple[IndexVersion, ...]

    @property
    def stable(self) -> IndexVersion | None:
        """The newest that is no prerelease."""
        return next((one for one in self.versions if not (semver.version(one.version) or _ZERO).pre), None)


_ZERO = semver.Version(0, 0, 0, "0")


def charts(path: Path) -> Iterator[IndexChart]:
    """The charts of an index, as they come. Raises `Invalid` where it is none, at the latest at its end."""
    with path.open("rb") as file:
        start = file.read(PIECE).lstrip()
        file.seek(0)
        yield from _Index(Json(file) if start.startswith(b"{") else Yaml(file)).charts()


class _Index:
    """Makes charts of events. Where a method is called, the event that begins its node has been read."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._next = events.next

    def _skip(self, kind: Kind) -> None:
        """Passes over what is left of a node that began with `kind`."""
        if kind in ("map", "list"):
            self._events.skip()

    def _pairs(self) -> Iterator[tuple[str, Event]]:
        """The pairs of a mapping: its key, and the event with which the value begins, to be read on or skipped."""
        while True:
            kind, key = self._next()
            if kind == "end":
                return
            if kind in ("map", "list"):
                raise Invalid("the index has a key that is no text")
            yield key, self._next()

    def charts(self) -> Iterator[IndexChart]:
        if self._next()[0] != "map":
            raise Invalid("the index is none: a mapping is expected")
        has_version, seen = False, set[str]()
        for key, (kind, value) in self._pairs():
            if key == "entries" and kind == "map" and "entries" not in seen:
                yield from self._entries()
            elif key == "entries" and kind != "null":
                raise Invalid("the index is none: its entries are no mapping")
            else:
                has_version |= key == "apiVersion" and kind == "text" and bool(value)
                self._skip(kind)
            seen.add(key if len(seen) < DEEPEST else "")
        self._events.end()
        if not has_version:
            raise Invalid("the index is none: it has no apiVersion")

    def _entries(self) -> Iterator[IndexChart]:
        seen = set[str]()
        for name, (kind, _) in self._pairs():
            if kind not in ("list", "null"):
                raise Invalid("the index is none: a chart's versions are no list")
            if name in seen:
                raise Invalid("the index is none: it has a chart twice")
            seen.add(name)
            found = self._versions() if kind == "list" else {}
            if _NAME.fullmatch(name) and ".." not in name and found:
                yield IndexChart(name, tuple(found[text] for text in semver.newest_first(found)))

    def _versions(self) -> dict[str, IndexVersion]:
        """Of a version that is there twice the first counts; what is no version is left out, as helm does."""
        found: dict[str, IndexVersion] = {}
        while True:
            kind, _ = self._next()
            if kind == "end":
                return found
            if kind != "map":
                self._skip(kind)
                continue
            one = self._version()
            if semver.version(one.version):
                found.setdefault(one.version, one)

    def _version(self) -> IndexVersion:
        texts = self._texts()
        digest = texts.get("digest", "").removeprefix("sha256:").lower()
        described = texts.get("appVersion"), texts.get("description")
        return IndexVersion(texts.get("version", ""), *described, texts.get("url", ""), digest)

    def _texts(self) -> dict[str, str]:
        """What we keep of a version; what is merged into it counts where it says nothing itself."""
        own, merged = dict[str, str](), dict[str, str]()
        for key, (kind, value) in self._pairs():
            if key in ("version", "appVersion", "description", "digest") and kind != "null":
                if kind != "text":
                    raise Invalid(f"the index is none: {key} is no text")
                own.setdefault(key, value)
            elif key == "urls" and kind == "list":
                own.setdefault("url", self._first())
            elif key == _MERGED and kind == "map":
                merged = self._texts() | merged
            else:
                self._skip(kind)
        return merged | own

    def _first(self) -> str:
        """The first text of a list."""
        first = ""
        while True:
            kind, value = self._next()
            if kind == "end":
                return first
            if kind == "text":
                first = first or value
            else:
                self._skip(kind)
