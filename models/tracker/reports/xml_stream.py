"""XML as a stream of elements, within bounds. Nothing is fetched, no entity is declared, nothing is kept.

A format is a `Reader`: what it does at the start and at the end of the elements that it knows. The others pass by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from xml.parsers import expat

from models.tracker.reports.base import BadReport, Limits
from models.tracker.reports.text_cleaning import Text

TOKEN = 8 * 1024 * 1024
"""The longest tag or comment. Expat holds one whole, and reads it anew with each piece of it."""

NAMES = 20_000
"""As many different names of elements and attributes: expat keeps each of them."""

DEFAULTS = 100
"""As many default values of attributes in a DOCTYPE: each is applied to each of its elements."""

_CUT_SHORT = {
    expat.errors.codes[getattr(expat.errors, f"XML_ERROR_{name}")]
    for name in ("NO_ELEMENTS", "UNCLOSED_TOKEN", "PARTIAL_CHAR", "UNCLOSED_CDATA_SECTION")
}
_JUNK = {
    expat.errors.codes[getattr(expat.errors, f"XML_ERROR_{name}")]
    for name in ("JUNK_AFTER_DOC_ELEMENT", "MISPLACED_XML_PI")
}

Start = Callable[[str, dict[str, str]], None]
End = Callable[[str], None]


class Found(Exception):
    """Enough was read."""


class Reader:
    """What one format makes of its elements. `path` are the local names of the open ones, the innermost last.

    `starts` and `ends` are what to call for an element of that local name: at its start with its attributes, it being
    the last in `path`; at its end when it is no longer in `path`.
    """

    starts: dict[str, Callable[[dict[str, str]], None]]
    ends: dict[str, Callable[[], None]]

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.path: list[str] = []
        self.starts = {}
        self.ends = {}
        self._parser = expat.ParserCreate("utf-8", None, {})
        self._defaults = 0

    @property
    def parent(self) -> str:
        """The element around the one that starts."""
        return self.path[-2] if len(self.path) > 1 else ""

    def listen(self, text: Text) -> None:
        """Text goes there from now on."""
        self._parser.CharacterDataHandler = text.add

    def hush(self) -> None:
        self._parser.CharacterDataHandler = None

    def read(self, pieces: Iterable[bytes], final: bool = True) -> None:
        """Reads a document of UTF-8 that `content.xml` cleaned, all of it or its beginning. Raises BadReport."""
        self._prepare()
        try:
            self._feed(pieces, final)
        except BadReport as bad:
            if bad.line is None:
                parser = self._parser
                raise type(bad)(bad.why, parser.CurrentLineNumber, parser.CurrentColumnNumber + 1) from bad
            raise
        except expat.ExpatError as error:
            raise BadReport(self._words(error), error.lineno, error.offset + 1) from error
        finally:
            self._release()

    def _prepare(self) -> None:
        parser = self._parser
        parser.buffer_text = True
        parser.buffer_size = 64 * 1024
        parser.StartElementHandler, parser.EndElementHandler = self._tags()
        parser.EntityDeclHandler = self._entity
        parser.AttlistDeclHandler = self._default

    def _release(self) -> None:
        """The parser knows us and we know it: a circle that would wait for the collector."""
        parser = self._parser
        parser.StartElementHandler = parser.EndElementHandler = parser.CharacterDataHandler = None
        parser.EntityDeclHandler = parser.AttlistDeclHandler = None

    def _feed(self, pieces: Iterable[bytes], final: bool) -> None:
        parser = self._parser
        waiting: list[bytes] = []
        size = fed = pending = 0
        for piece in pieces:
            waiting.append(piece)
            size += len(piece)
            if size < pending <= TOKEN - size:  # a long token comes twice as long each time: it is not read often
                continue
            parser.Parse(b"".join(waiting))
            fed += size
            size = 0
            waiting.clear()
            pending = fed - parser.CurrentByteIndex
            if pending > TOKEN:
                raise BadReport(f"a tag or a comment is longer than {TOKEN} bytes")
            if len(parser.intern) > NAMES:
                raise BadReport(f"it has more than {NAMES} different names of elements and attributes")
        parser.Parse(b"".join(waiting), final)

    def _tags(self) -> tuple[Start, End]:
        """What expat calls at each tag: there are a million of them, so nothing is looked up that need not be."""
        path, most, starts, ends = self.path, self.limits.depth, self.starts, self.ends
        enter, leave = path.append, path.pop

        def start(name: str, attributes: dict[str, str]) -> None:
            if name not in starts and ":" in name:
                name = name.rpartition(":")[2]
            enter(name)
            if len(path) > most:
                raise BadReport(f"its elements are nested more than {most} deep")
            if name in starts:
                starts[name](attributes)

        def end(_name: str) -> None:
            name = leave()
            if name in ends:
                ends[name]()

        return start, end

    def _entity(self, name: str, *_more: object) -> None:
        raise BadReport(f"it declares an entity ({name[:50]}), which is not allowed")

    def _default(self, _element: str, _attribute: str, _type: str, default: str | None, _required: bool) -> None:
        self._defaults += default is not None
        if self._defaults > DEFAULTS or len(default or "") > 1000:
            raise BadReport("its DOCTYPE has too many default values of attributes")

    def _words(self, error: expat.ExpatError) -> str:
        within = f"within <{self.path[-1]}>" if self.path else "before its first element"
        if error.code in _CUT_SHORT:
            return f"the file ends {within}: it was cut short"
        if error.code in _JUNK:
            return "something follows after the end of the document"
        return f"this is not well-formed XML: {expat.ErrorString(error.code)}"


class _Root(Reader):
    """Reads no further than it takes to tell what a document is."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.name = ""
        self.attributes: dict[str, str] = {}
        self.first = ""

    def _tags(self) -> tuple[Start, End]:
        return self._start, self._end

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        name = name.rpartition(":")[2]
        if self.name:
            self.first = name
            raise Found
        self.name = name
        self.attributes = attributes
        self.path.append(name)

    def _end(self, _name: str) -> None:
        raise Found


def root_of(pieces: Iterable[bytes], limits: Limits, whole: bool) -> tuple[str, Mapping[str, str], str]:
    """The root of a document, its attributes, and the name of the first element in it ("" if there is none).

    `whole` says whether the pieces are all of it. Raises BadReport if they end or break before a root.
    """
    root = _Root(limits)
    try:
        root.read(pieces, whole)
    except Found:
        pass
    except BadReport:
        if not root.name:
            raise
    if not root.name:
        raise BadReport("its first element does not end within the bytes by which its format is told")
    return root.name, root.attributes, root.first
