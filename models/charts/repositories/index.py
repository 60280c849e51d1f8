"""Reads a repository's index as a stream of events, chart by chart; it may have hundreds of megabytes.

YAML and JSON become the same few events. Fields that are not kept are skipped. YAML aliases are expanded in place
within bounds, because a few lines can stand for gigabytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Literal, Protocol

import yaml
from attrs import frozen

from models.charts.archives.archive import clean
from models.charts.repositories import semver
from models.errors import Invalid
from models.json_format import read_rfc3339

Kind = Literal["map", "list", "end", "text", "null"]
Event = tuple[Kind, str]

MAX_DEPTH = 100
READ_BYTES = 16 * 1024
_MAX_EVENT_BYTES = 8 * 1024**2
"""Limit of one event: a scalar of hundreds of megabytes would be held in memory."""
_MAX_KEPT_EVENTS, _MAX_EXPANDED_EVENTS = 200_000, 1_000_000
"""Events that are kept because aliases may stand for them, and those that all aliases may stand for."""
_NULL_TEXTS = {"", "~", "null", "Null", "NULL"}
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


class _CountingReader:
    """Reads a file in pieces and counts the bytes since the last event."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.since = 0

    def read(self, size: int = READ_BYTES) -> bytes:
        piece = self._file.read(min(size, READ_BYTES))
        self.since += len(piece)
        if self.since > _MAX_EVENT_BYTES:
            raise Invalid("the index has a text that is too long")
        return piece


class EventReader(Protocol):
    """The events of a file. Raises `Invalid` if the file is malformed."""

    def next(self) -> Event: ...

    def skip(self) -> None:
        """Skips the rest of the mapping or list that has just begun."""

    def end(self) -> None:
        """Checks what follows the last wanted event."""


class YamlEvents:
    """Uses libyaml. Most of an index is skipped, so skipping is kept cheap."""

    def __init__(self, file: IO[bytes]) -> None:
        self._reader = _CountingReader(file)
        self._get = yaml.CBaseLoader(self._reader).get_event
        self._anchored: dict[str, list[yaml.Event]] = {}
        self._open: list[tuple[str, list[yaml.Event], int]] = []
        """The anchored nodes that have begun: name, events so far, current depth in each."""
        self._kept = self._repeated = 0
        self._sources: list[Iterator[yaml.Event]] = []
        """Aliases being expanded, innermost last."""

    def next(self) -> Event:
        while True:
            self._reader.since = 0
            event = self._event()
            kind = _KINDS.get(type(event))
            if kind:
                return kind, ""
            if isinstance(event, yaml.AliasEvent):
                self._repeat(event.anchor)
            elif isinstance(event, yaml.ScalarEvent):
                return ("null", "") if event.implicit[0] and event.value in _NULL_TEXTS else ("text", event.value)
            elif isinstance(event, yaml.StreamEndEvent):
                raise Invalid("the index is empty or truncated")

    def skip(self) -> None:
        depth, get, kinds, measured = 1, self._event, _KINDS, self._reader
        while depth:
            measured.since = 0
            kind = kinds.get(type(get()))
            if kind == "end":
                depth -= 1
            elif kind:
                depth += 1
                if depth > MAX_DEPTH:
                    raise Invalid("the index is nested too deeply")

    def end(self) -> None:
        self._event()  # further documents are ignored

    def _event(self) -> yaml.Event | None:
        while self._sources:
            event = next(self._sources[-1], None)
            if event is not None:
                return event
            self._sources.pop()
        try:
            event = self._get()
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            mark = getattr(error, "problem_mark", None)
            raise Invalid(f"the index is neither YAML nor JSON{f' (line {mark.line + 1})' if mark else ''}") from None
        if event is not None and (self._open or getattr(event, "anchor", None)):
            self._keep(event)
        return event

    def _keep(self, event: yaml.Event) -> None:
        """Records the events of anchored nodes."""
        kind = _KINDS.get(type(event))
        anchor = None if isinstance(event, yaml.AliasEvent) else getattr(event, "anchor", None)
        if anchor:
            self._open.append((anchor, [], 0))
        step = 0 if kind is None else -1 if kind == "end" else 1
        still = []
        for name, events, depth in self._open:
            events.append(event)
            if depth + step:
                still.append((name, events, depth + step))
            else:
                self._anchored[name] = events
        self._kept += len(self._open)
        self._open = still
        if self._kept > _MAX_KEPT_EVENTS:
            raise Invalid("the index has too many anchored nodes")

    def _repeat(self, anchor: str | None) -> None:
        events = self._anchored.get(anchor or "", [])
        self._repeated += len(events)
        if self._repeated > _MAX_EXPANDED_EVENTS or len(self._sources) > MAX_DEPTH:
            raise Invalid("the aliases of the index expand to too much")
        if not events:
            raise Invalid("the index has an alias without an anchor, or inside its own anchor")
        self._sources.append(iter(events))


class JsonEvents:
    """Uses ijson, because YAML parsers reject some JSON strings."""

    def __init__(self, file: IO[bytes]) -> None:
        import ijson  # type: ignore[import-untyped]  # loaded only for indexes in JSON

        self._reader = _CountingReader(file)
        self._events = iter(ijson.basic_parse(self._reader, buf_size=READ_BYTES, use_float=True))
        self._error: type[Exception] = ijson.JSONError

    def next(self) -> Event:
        self._reader.since = 0
        try:
            name, value = next(self._events, ("", None))
        except (self._error, UnicodeDecodeError):
            raise Invalid("the index is neither YAML nor JSON") from None
        if not name:
            raise Invalid("the index is empty or truncated")
        return _JSON_KINDS.get(name, "text"), "" if value is None else str(value)

    def skip(self) -> None:
        depth = 1
        while depth:
            kind, _ = self.next()
            depth += (kind in ("map", "list")) - (kind == "end")
            if depth > MAX_DEPTH:
                raise Invalid("the index is nested too deeply")

    def end(self) -> None:
        try:
            next(self._events, None)
        except (self._error, UnicodeDecodeError):
            raise Invalid("the index has data after its end") from None


_MAX_KEYWORDS_CHARACTERS = 10_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,249}")
_MERGED = "<<"
_JSON_START = re.compile(rb"\{\s*(?:[\"}]|\Z)")
"""Of an object; a mapping in YAML's flow style has keys without quotes."""


@frozen
class IndexVersion:
    """One version of a chart in the index."""

    version: str
    app_version: str | None
    description: str | None
    url: str
    digest: str
    keywords: str = ""
    """Separated by spaces."""
    created: int = 0
    """Microseconds since 1970; 0 where it is not known."""


@frozen
class IndexChart:
    """A chart of the index with its versions, newest first."""

    name: str
    versions: tuple[IndexVersion, ...]

    @property
    def stable(self) -> IndexVersion | None:
        """The newest version that is not a prerelease."""
        return next((version for version in self.versions if not (semver.version(version.version) or _ZERO).pre), None)


_ZERO = semver.Version(0, 0, 0, "0")


def charts(path: Path) -> Iterator[IndexChart]:
    """Yields the charts of an index. Raises `Invalid`, at the latest at the end of the file."""
    with path.open("rb") as file:
        start = file.read(READ_BYTES).lstrip()
        file.seek(0)
        yield from _IndexParser(JsonEvents(file) if _JSON_START.match(start) else YamlEvents(file)).charts()


def _created(text: str) -> int:
    """The time of a version; 0 where there is none that is valid, and for Go's zero time."""
    try:
        return max(0, read_rfc3339("created", text, zone_needed=False)) if text else 0
    except Invalid:
        return 0


class _IndexParser:
    """Builds charts from events. The event that begins a node is read before its method is called."""

    def __init__(self, events: EventReader) -> None:
        self._events = events
        self._next = events.next

    def _skip(self, kind: Kind) -> None:
        """Skips the rest of a node that began with `kind`."""
        if kind in ("map", "list"):
            self._events.skip()

    def _pairs(self) -> Iterator[tuple[str, Event]]:
        """Yields a mapping's keys, each with the first event of its value, which the caller reads or skips."""
        while True:
            kind, key = self._next()
            if kind == "end":
                return
            if kind in ("map", "list"):
                raise Invalid("the index has a key that is not text")
            yield key, self._next()

    def charts(self) -> Iterator[IndexChart]:
        if self._next()[0] != "map":
            raise Invalid("this is not an index: a mapping is expected")
        has_version, seen = False, set[str]()
        for key, (kind, value) in self._pairs():
            if key == "entries" and kind == "map" and "entries" not in seen:
                yield from self._entries()
            elif key == "entries" and kind != "null":
                raise Invalid("this is not an index: its entries are not a mapping")
            else:
                has_version |= key == "apiVersion" and kind == "text" and bool(value)
                self._skip(kind)
            seen.add(key if len(seen) < MAX_DEPTH else "")
        self._events.end()
        if not has_version:
            raise Invalid("this is not an index: it has no apiVersion")

    def _entries(self) -> Iterator[IndexChart]:
        seen = set[str]()
        for name, (kind, _) in self._pairs():
            if kind not in ("list", "null"):
                raise Invalid("this is not an index: a chart's versions are not a list")
            if name in seen:
                raise Invalid("this is not an index: it has a chart twice")
            seen.add(name)
            versions = self._versions() if kind == "list" else {}
            if _NAME.fullmatch(name) and ".." not in name and versions:
                yield IndexChart(name, tuple(versions[text] for text in semver.newest_first(versions)))

    def _versions(self) -> dict[str, IndexVersion]:
        """The first of duplicate versions counts; entries without a valid version are skipped, as in helm."""
        versions: dict[str, IndexVersion] = {}
        while True:
            kind, _ = self._next()
            if kind == "end":
                return versions
            if kind != "map":
                self._skip(kind)
                continue
            version = self._version()
            if semver.version(version.version):
                versions.setdefault(version.version, version)

    def _version(self) -> IndexVersion:
        texts = self._texts()
        digest = texts.get("digest", "").removeprefix("sha256:").lower()
        described = clean(texts.get("appVersion")), clean(texts.get("description"))
        keywords = texts.get("keywords", "")
        created = _created(texts.get("created", ""))
        return IndexVersion(texts.get("version", ""), *described, texts.get("url", ""), digest, keywords, created)

    def _texts(self) -> dict[str, str]:
        """The fields that are kept of a version; merged (`<<`) fields count if the version lacks its own."""
        own, merged = dict[str, str](), dict[str, str]()
        for key, (kind, value) in self._pairs():
            if key in ("version", "appVersion", "description", "digest") and kind != "null":
                if kind != "text":
                    raise Invalid(f"this is not an index: {key} is not text")
                own.setdefault(key, value)
            elif key == "created" and kind == "text":
                own.setdefault(key, value)
            elif key == "urls" and kind == "list":
                own.setdefault("url", self._first())
            elif key == "keywords" and kind == "list":
                own.setdefault("keywords", " ".join(self._items())[:_MAX_KEYWORDS_CHARACTERS])
            elif key == _MERGED and kind == "map":
                merged = self._texts() | merged
            else:
                self._skip(kind)
        return merged | own

    def _first(self) -> str:
        """The first text of a list that is not empty."""
        first = ""
        for text in self._items():
            first = first or text
        return first

    def _items(self) -> Iterator[str]:
        """Yields the texts of a list."""
        while True:
            kind, value = self._next()
            if kind == "end":
                return
            if kind == "text":
                yield value
            else:
                self._skip(kind)
