"""The events of a file of YAML or JSON, as they come: the same few for either. It may be hundreds of megabytes.

What an alias of YAML stands for is told in its place, within bounds: a few lines may stand for more than there is room.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Literal, Protocol

import yaml

from models.errors import Invalid

Kind = Literal["map", "list", "end", "text", "null"]
Event = tuple[Kind, str]

DEEPEST = 100
PIECE = 16 * 1024
_LONGEST = 8 * 1024**2
"""Bytes that one event may take: a text of hundreds of megabytes would be held in memory."""
_KEPT, _REPEATED = 200_000, 1_000_000
"""Events that are kept because aliases may stand for them, and those that all aliases may stand for."""
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


class _Measured:
    """A file, read in pieces, that notes how much was read since the last event."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.since = 0

    def read(self, size: int = PIECE) -> bytes:
        piece = self._file.read(min(size, PIECE))
        self.since += len(piece)
        if self.since > _LONGEST:
            raise Invalid("the index has a text that is too long")
        return piece


class Events(Protocol):
    """The events of a file; raises `Invalid` where it is at fault."""

    def next(self) -> Event: ...

    def skip(self) -> None:
        """Passes over the rest of the mapping or list that has just begun."""

    def end(self) -> None:
        """Looks at what comes after the last event that was wanted."""


class Yaml:
    """By libyaml. Most of an index is passed over, so that costs as little as can be."""

    def __init__(self, file: IO[bytes]) -> None:
        self._measured = _Measured(file)
        self._get = yaml.CBaseLoader(self._measured).get_event
        self._known: dict[str, list[yaml.Event]] = {}
        self._open: list[tuple[str, list[yaml.Event], int]] = []
        """The anchored nodes that have begun: name, what was in them so far, how deep we are in each."""
        self._kept = self._repeated = 0
        self._sources: list[Iterator[yaml.Event]] = []
        """What aliases stand for, being told in their place; the last one first."""

    def next(self) -> Event:
        while True:
            self._measured.since = 0
            event = self._event()
            kind = _KINDS.get(type(event))
            if kind:
                return kind, ""
            if isinstance(event, yaml.AliasEvent):
                self._repeat(event.anchor)
            elif isinstance(event, yaml.ScalarEvent):
                return ("null", "") if event.implicit[0] and event.value in _NULLS else ("text", event.value)
            elif isinstance(event, yaml.StreamEndEvent):
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
                if depth > DEEPEST:
                    raise Invalid("the index is nested too deeply")

    def end(self) -> None:
        self._event()  # other documents may follow, and are none of ours

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
        """Notes what anchored nodes are made of."""
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
                self._known[name] = events
        self._kept += len(self._open)
        self._open = still
        if self._kept > _KEPT:
            raise Invalid("the index has too much that its aliases might stand for")

    def _repeat(self, anchor: str | None) -> None:
        events = self._known.get(anchor or "", [])
        self._repeated += len(events)
        if self._repeated > _REPEATED or len(self._sources) > DEEPEST:
            raise Invalid("the aliases of the index stand for too much")
        if not events:
            raise Invalid("the index has an alias that stands for nothing, or for itself")
        self._sources.append(iter(events))


class Json:
    """By ijson, for YAML's libraries do not take all that JSON may have in a text."""

    def __init__(self, file: IO[bytes]) -> None:
        import ijson  # type: ignore[import-untyped]  # only where a repository has such an index

        self._measured = _Measured(file)
        self._events = iter(ijson.basic_parse(self._measured, buf_size=PIECE, use_float=True))
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
            if depth > DEEPEST:
                raise Invalid("the index is nested too deeply")

    def end(self) -> None:
        try:
            next(self._events, None)
        except (self._error, UnicodeDecodeError):
            raise Invalid("the index has something after its end") from None
