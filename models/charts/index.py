"""A repository's index, read as a stream of events, chart by chart: it may be hundreds of megabytes.

YAML or JSON; either becomes the same few events. What a version is described by beyond what we keep is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Literal, Protocol

import yaml
from attrs import frozen

from models.charts import versions
from models.errors import Invalid

Kind = Literal["map", "list", "end", "text", "null", "alias"]
Event = tuple[Kind, str]

_DEEPEST = 100
_LONGEST = 8 * 1024**2
"""Bytes that one event may take: a text of hundreds of megabytes would be held in memory."""
_ANCHORS = 10_000
_PIECE = 16 * 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,249}")
_NULLS = {"", "~", "null", "Null", "NULL"}
_KINDS: dict[type, Kind] = {
    yaml.MappingStartEvent: "map",
    yaml.SequenceStartEvent: "list",
    yaml.MappingEndEvent: "end",
    yaml.SequenceEndEvent: "end",
}

_JSON_KINDS: dict[str, Kind] = {
    "start_map": "map",
    "start_array": "list",
    "end_map": "end",
    "end_array": "end",
    "null": "null",
}


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
        return next((one for one in self.versions if not (versions.version(one.version) or _ZERO).pre), None)


_ZERO = versions.Version(0, 0, 0, "0")


def charts(path: Path) -> Iterator[IndexChart]:
    """The charts of an index, as they come. Raises `Invalid` where it is none, at the latest at its end."""
    with path.open("rb") as file:
        start = file.read(_PIECE).lstrip()
        file.seek(0)
        yield from _Index(_Json(file) if start.startswith(b"{") else _Yaml(file)).charts()


class _Measured:
    """A file, read in pieces, that notes how much was read since the last event."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.since = 0

    def read(self, size: int = _PIECE) -> bytes:
        piece = self._file.read(min(size, _PIECE))
        self.since += len(piece)
        if self.since > _LONGEST:
            raise Invalid("the index has a text that is too long")
        return piece


class _Events(Protocol):
    """The events of a file; raises `Invalid` where it is at fault."""

    def next(self) -> Event: ...

    def skip(self) -> None:
        """Passes over the rest of the mapping or list that has just begun."""

    def end(self) -> None:
        """Looks at what comes after the last event that was wanted."""


class _Yaml:
    """By libyaml. Most of an index is passed over, so that costs as little as can be."""

    def __init__(self, file: IO[bytes]) -> None:
        self._measured = _Measured(file)
        self._get = yaml.CBaseLoader(self._measured).get_event
        self._known: dict[str, str] = {}

    def next(self) -> Event:
        while True:
            self._measured.since = 0
            event = self._event()
            kind = _KINDS.get(type(event))
            if kind:
                return kind, ""
            if isinstance(event, yaml.AliasEvent):
                text = self._known.get(event.anchor or "")
                return ("alias", "") if text is None else ("text", text)
            if isinstance(event, yaml.ScalarEvent):
                if event.anchor and len(self._known) < _ANCHORS:
                    self._known[event.anchor] = event.value
                return ("null", "") if event.implicit[0] and event.value in _NULLS else ("text", event.value)
            if isinstance(event, yaml.StreamEndEvent):
                raise Invalid("the index is empty, or ends too early")

    def skip(self) -> None:
        depth, get, kinds, measured = 1, self._event, _KINDS, self._measured
        while depth:
            measured.since = 0
            kind = kinds.get(type(get()))
            if kind == "end":
                depth -= 1
            elif kind:
                depth += 1
                if depth > _DEEPEST:
                    raise Invalid("the index is nested too deeply")

    def end(self) -> None:
        self._event()  # other documents may follow, and are none of ours

    def _event(self) -> yaml.Event | None:
        try:
            return self._get()
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            mark = getattr(error, "problem_mark", None)
            raise Invalid(f"the index is neither YAML nor JSON{f' (line {mark.line + 1})' if mark else ''}") from None


class _Json:
    """By ijson, for YAML's libraries do not take all that JSON may have in a text."""

    def __init__(self, file: IO[bytes]) -> None:
        import ijson  # type: ignore[import-untyped]  # only where a repository has such an index

        self._measured = _Measured(file)
        self._events = iter(ijson.basic_parse(self._measured, buf_size=_PIECE, use_float=True))
        self._error: type[Exception] = ijson.JSONError

    def next(self) -> Event:
        self._measured.since = 0
        try:
            name, value = next(self._events, ("", None))
        except (self._error, UnicodeDecodeError):
            raise Invalid("the index is neither YAML nor JSON") from None
        if not name:
            raise Invalid("the index is empty, or ends too early")
        return _JSON_KINDS.get(name, "text"), "" if value is None else str(value)

    def skip(self) -> None:
        depth = 1
        while depth:
            kind, _ = self.next()
            depth += (kind in ("map", "list")) - (kind == "end")
            if depth > _DEEPEST:
                raise Invalid("the index is nested too deeply")

    def end(self) -> None:
        try:
            next(self._events, None)
        except (self._error, UnicodeDecodeError):
            raise Invalid("the index has something after its end") from None


class _Index:
    """Makes charts of events. Where a method is called, the event that begins its node has been read."""

    def __init__(self, events: _Events) -> None:
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
            if kind in ("map", "list", "alias"):
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
            seen.add(key if len(seen) < _DEEPEST else "")
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
                yield IndexChart(name, tuple(found[text] for text in versions.newest_first(found)))

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
            if versions.version(one.version):
                found.setdefault(one.version, one)

    def _version(self) -> IndexVersion:
        texts: dict[str, str] = {}
        url = ""
        for key, (kind, value) in self._pairs():
            if key in ("version", "appVersion", "description", "digest") and kind != "null":
                if kind != "text":
                    raise Invalid(f"the index is none: {key} is no text")
                texts.setdefault(key, value)
            elif key == "urls" and kind == "list":
                url = url or self._first()
            else:
                self._skip(kind)
        digest = texts.get("digest", "").removeprefix("sha256:").lower()
        return IndexVersion(texts.get("version", ""), texts.get("appVersion"), texts.get("description"), url, digest)

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
