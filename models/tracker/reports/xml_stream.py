"""XML read as a stream, within limits. Nothing is fetched, entities are refused, and memory does not grow.

A format is an `XmlReader`. It names the elements that it handles itself (`starts`, `ends`) and the elements that
xmltodict turns into values (`items`). All other elements are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from xml.parsers import expat

import xmltodict

from models.tracker.reports.base import BadReport, Limits
from models.tracker.reports.text_cleaning import Text

MAX_TOKEN_BYTES = 8 * 1024 * 1024
"""The longest tag or comment. Expat buffers the whole token and scans it again with each chunk."""

MAX_XML_NAMES = 20_000
"""Different names of elements and attributes: expat keeps each of them."""

MAX_ATTRIBUTE_DEFAULTS = 100
"""Default values of attributes in a DOCTYPE: expat applies each to every such element."""

MAX_SAME_PARTS = 1000
"""Parts of one name in an item. googletest writes a `failure` for each failed check; the rest is skipped."""

_CUT_SHORT = {
    expat.errors.codes[getattr(expat.errors, f"XML_ERROR_{name}")]
    for name in ("NO_ELEMENTS", "UNCLOSED_TOKEN", "PARTIAL_CHAR", "UNCLOSED_CDATA_SECTION")
}
_TRAILING_CONTENT = {
    expat.errors.codes[getattr(expat.errors, f"XML_ERROR_{name}")]
    for name in ("JUNK_AFTER_DOC_ELEMENT", "MISPLACED_XML_PI")
}

_WRAPPER, DROPPED = "#item", "#dropped"
"""Names of no XML element: the one around an item with text, and the number of characters that its text lost."""

Attributes = dict[str, str]
Item = dict[str, Any]
"""An element as xmltodict's value: attributes as `@name`, text as `#text`, parts as lists by their names."""

Start = Callable[[str, Attributes], None]
End = Callable[[str], None]


class _EnoughRead(Exception):
    """The root and its first child are known."""


class _ItemBuilder:
    """Builds the value of an item by xmltodict, driven by `XmlReader` instead of expat. It is used again and again.

    `xmltodict.parse` sets its handlers on the parser that `expat.ParserCreate` returns. Here that is this object.
    `part_depth` is the depth of the innermost open part; `texts` are those of the open parts.
    """

    StartElementHandler: Start
    EndElementHandler: End
    CharacterDataHandler: Callable[[str], None]

    def __init__(self, part_names: frozenset[str]) -> None:
        self.value: Item | None = None
        self.depth = self.part_depth = 0
        self.counts: dict[str, int] = {}
        self.rooms: dict[str, int] = {}
        self.texts: list[Text | None] = [None]
        xmltodict.parse(
            b"",
            expat=self,
            item_depth=1,
            item_callback=self._keep,
            strip_whitespace=False,
            force_cdata=True,
            force_list=part_names,
        )

    def ParserCreate(self, *_arguments: object) -> _ItemBuilder:  # noqa: N802 (expat's name)
        return self

    def Parse(self, *_arguments: object) -> None:  # noqa: N802 (expat's name)
        """There is nothing to parse yet."""

    def _keep(self, _path: object, value: Any) -> bool:
        self.value = value
        return True

    def add_text(self, text: Text) -> None:
        """Adds a text to the open element."""
        self.CharacterDataHandler(text.joined)
        if text.dropped:
            self.StartElementHandler(DROPPED, {})
            self.CharacterDataHandler(str(text.dropped))
            self.EndElementHandler(DROPPED)


class XmlReader:
    """Reads one XML format. `path` holds the local names of the open elements, the innermost last.

    `starts` and `ends` map a local name to the function called at its start (with its attributes, when it is the last
    in `path`) and at its end (when it is no longer in `path`). `items` maps a name to the function that gets the
    element's value at its end. `parts` has the children of elements that belong to the value, and `texts` which of
    them have text; all texts of one name in an item share `limits.output` bytes. An item inside another is an item
    of its own and ends before it.
    """

    parts: Mapping[str, frozenset[str]] = {}
    texts: frozenset[str] = frozenset()
    markers: frozenset[str] = frozenset()
    """Other elements by which a document of the format is known, although they are not read."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.path: list[str] = []
        self.starts: dict[str, Callable[[Attributes], None]] = {}
        self.ends: dict[str, Callable[[], None]] = {}
        self.items: dict[str, Callable[[Item], None]] = {}
        self.has_parts = False
        """Whether the item that has just ended has parts."""
        self._parser = expat.ParserCreate("utf-8", None, {})
        self._defaults = 0
        self._open: list[_ItemBuilder] = []
        self._builders: list[_ItemBuilder] = []

    @property
    def parent(self) -> str:
        """The element around the one that starts."""
        return self.path[-2] if len(self.path) > 1 else ""

    def read(self, pieces: Iterable[bytes], final: bool = True) -> None:
        """Reads a document of UTF-8 that `byte_stream.xml` cleaned, all of it or its beginning. Raises BadReport."""
        self._prepare()
        try:
            self._feed(pieces, final)
        except BadReport as bad:
            if bad.line is None:
                parser = self._parser
                raise type(bad)(bad.why, parser.CurrentLineNumber, parser.CurrentColumnNumber + 1) from bad
            raise
        except expat.ExpatError as error:
            raise BadReport(self._reason(error), error.lineno, error.offset + 1) from error
        finally:
            self._release()

    def join(self, elements: Iterable[Item]) -> str | None:
        """The texts of parts, joined and cut to `limits.output`; None where they are blank."""
        text = Text(self.limits.output)
        for element in elements:
            text.add(element.get("#text", ""))
            if DROPPED in element:
                text.dropped += int(element[DROPPED]["#text"])
        return text.value

    def is_format(self, root: str, first: str) -> bool:
        """Whether the document that was read is empty, or has elements of the format inside its root.

        `first` is the first element in the root. Expat interns the names of all elements.
        """
        known = self.markers.union(self.starts, self.items)
        names = {name.rpartition(":")[2] for name in self._parser.intern}
        return not first or first in known or not names.isdisjoint(known - {root})

    def _prepare(self) -> None:
        parser = self._parser
        parser.buffer_text = True
        parser.buffer_size = 64 * 1024
        parser.StartElementHandler, parser.EndElementHandler = self._handlers()
        parser.EntityDeclHandler = self._refuse_entity
        parser.AttlistDeclHandler = self._count_default

    def _release(self) -> None:
        """Breaks the reference cycles between the parser, the builders and this reader."""
        parser = self._parser
        parser.StartElementHandler = parser.EndElementHandler = parser.CharacterDataHandler = None
        parser.EntityDeclHandler = parser.AttlistDeclHandler = None
        for builder in self._builders:
            vars(builder).clear()

    def _feed(self, pieces: Iterable[bytes], final: bool) -> None:
        parser = self._parser
        waiting: list[bytes] = []
        size = fed = pending = 0
        for piece in pieces:
            waiting.append(piece)
            size += len(piece)
            if size < pending <= MAX_TOKEN_BYTES - size:  # feed a long token in doubling sizes: expat scans it anew
                continue
            parser.Parse(b"".join(waiting))
            fed += size
            size = 0
            waiting.clear()
            pending = fed - parser.CurrentByteIndex
            if pending > MAX_TOKEN_BYTES:
                raise BadReport(f"a tag or a comment is longer than {MAX_TOKEN_BYTES} bytes")
            if len(parser.intern) > MAX_XML_NAMES:
                raise BadReport(f"it has more than {MAX_XML_NAMES} different names of elements and attributes")
        parser.Parse(b"".join(waiting), final)

    def _handlers(self) -> tuple[Start, End]:
        """The handlers of tags. Expat calls them a million times: nothing is looked up that need not be."""
        return self._start_handler(), self._end_handler()

    def _start_handler(self) -> Start:
        path, max_depth, starts, items, texts = self.path, self.limits.depth, self.starts, self.items, self.texts
        enter, open_items, outer = path.append, self._open, self._builder(0)
        start_outer = outer.StartElementHandler

        def start(name: str, attributes: Attributes) -> None:
            if ":" in name:
                name = name.rpartition(":")[2]
            enter(name)
            depth = len(path)
            if depth > max_depth:
                raise BadReport(f"its elements are nested more than {max_depth} deep")
            if open_items and self._start_part(name, attributes):
                return
            if name in items:
                if open_items or name in texts:
                    self._start_item(name, attributes)
                else:
                    outer.depth = outer.part_depth = depth
                    open_items.append(outer)
                    start_outer(name, attributes)
            if name in starts:
                starts[name](attributes)

        return start

    def _end_handler(self) -> End:
        path, ends, items, texts = self.path, self.ends, self.items, self.texts
        leave, open_items, outer = path.pop, self._open, self._builder(0)
        end_outer = outer.EndElementHandler

        def end(_name: str) -> None:
            depth = len(path)
            name = leave()
            if open_items:
                item = open_items[-1]
                if depth > item.depth:
                    self._end_part(name, depth, item)
                elif item is outer and not item.counts and name not in texts:  # nearly all
                    open_items.pop()
                    end_outer(name)
                    items[name](outer.value or {})
                else:
                    self._end_item(name, item)
            if name in ends:
                ends[name]()

        return end

    def _builder(self, level: int) -> _ItemBuilder:
        if level == len(self._builders):
            self._builders.append(_ItemBuilder(self.texts.union(*self.parts.values())))
        return self._builders[level]

    def _start_item(self, name: str, attributes: Attributes) -> None:
        item = self._builder(len(self._open))
        item.depth = item.part_depth = len(self.path)
        self._open.append(item)
        text = item.texts[0] = Text(self.limits.output) if name in self.texts else None
        self._listen(text)
        if text:  # xmltodict 1.0 drops the text of the streamed element itself: it gets one around it
            item.StartElementHandler(_WRAPPER, {})
        item.StartElementHandler(name, attributes)

    def _listen(self, text: Text | None) -> None:
        self._parser.CharacterDataHandler = text.add if text else None

    def _start_part(self, name: str, attributes: Attributes) -> bool:
        """Adds an element to the open item, if it belongs to it."""
        item = self._open[-1]
        if item.part_depth != len(self.path) - 1:
            return False
        wanted = self.parts.get(self.path[-2])
        if wanted is None:
            return False
        count = item.counts[name] = item.counts.get(name, 0) + 1 if name in wanted else MAX_SAME_PARTS + 1
        text = Text(item.rooms.get(name, self.limits.output)) if name in self.texts else None
        if count > MAX_SAME_PARTS:
            self._listen(None)
            return False
        item.part_depth += 1
        item.texts.append(text)
        self._listen(text)
        item.StartElementHandler(name, attributes)
        return True

    def _end_part(self, name: str, depth: int, item: _ItemBuilder) -> None:
        """Ends a part, or an element that was skipped."""
        if depth > item.part_depth + 1:
            return
        if depth == item.part_depth:
            item.part_depth -= 1
            if text := item.texts.pop():
                item.rooms[name] = item.rooms.get(name, self.limits.output) - text.size
                item.add_text(text)
            item.EndElementHandler(name)
        self._listen(item.texts[-1])

    def _end_item(self, name: str, item: _ItemBuilder) -> None:
        self._open.pop()
        text, item.texts[0] = item.texts[0], None
        if text:
            item.add_text(text)
        item.EndElementHandler(name)
        value = item.value or {}
        if text:
            item.EndElementHandler(_WRAPPER)
            (value,) = parts(item.value or {}, name) or ({},)
        self._listen(self._open[-1].texts[-1] if self._open else None)
        self.has_parts = bool(item.counts)
        item.counts, item.rooms = {}, {}
        self.items[name](value)
        self.has_parts = False

    def _refuse_entity(self, name: str, *_more: object) -> None:
        raise BadReport(f"it declares an entity ({name[:50]}), which is not allowed")

    def _count_default(self, _element: str, _attribute: str, _type: str, default: str | None, _required: bool) -> None:
        self._defaults += default is not None
        if self._defaults > MAX_ATTRIBUTE_DEFAULTS or len(default or "") > 1000:
            raise BadReport("its DOCTYPE has too many default values of attributes")

    def _reason(self, error: expat.ExpatError) -> str:
        where = f"within <{self.path[-1]}>" if self.path else "before its first element"
        if error.code in _CUT_SHORT:
            return f"the file ends {where}: it was cut short"
        if error.code in _TRAILING_CONTENT:
            return "something follows after the end of the document"
        return f"this is not well-formed XML: {expat.ErrorString(error.code)}"


def parts(item: Item, *names: str) -> list[Item]:
    """The parts of an item by the path of their names: `parts(result, "Output", "ErrorInfo")`."""
    found = [item]
    for name in names:
        found = [part or {} for parent in found for part in parent.get(name) or ()]
    return found


class _RootReader(XmlReader):
    """Reads the root and the name of the first element inside."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.name = ""
        self.attributes: Attributes = {}
        self.first = ""

    def _handlers(self) -> tuple[Start, End]:
        return self._start, self._end

    def _start(self, name: str, attributes: Attributes) -> None:
        name = name.rpartition(":")[2]
        if self.name:
            self.first = name
            raise _EnoughRead
        self.name = name
        self.attributes = attributes
        self.path.append(name)

    def _end(self, _name: str) -> None:
        raise _EnoughRead


def root_of(pieces: Iterable[bytes], limits: Limits, whole: bool) -> tuple[str, Mapping[str, str], str]:
    """Returns the root of a document, its attributes, and the name of the first element in it ("" if there is none).

    `whole` is whether the pieces are the complete document. Raises BadReport if they end or break before a root.
    """
    root = _RootReader(limits)
    try:
        root.read(pieces, whole)
    except _EnoughRead:
        pass
    except BadReport:
        if not root.name:
            raise
    if not root.name:
        raise BadReport("its first element does not end within the bytes that are read to detect its format")
    return root.name, root.attributes, root.first
