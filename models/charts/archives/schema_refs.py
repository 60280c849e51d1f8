"""Checks that a chart's values.schema.json refers to nothing outside itself: helm would fetch or read it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urljoin

from attrs import field, frozen

from models.errors import Invalid

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_IDENTIFIERS = ("$id", "id")
_VALUES = ("default", "const", "enum", "example", "examples")
"""Below these keywords is a value, in which `$schema`, `$id` and `id` mean nothing; a reference may point into it."""
_NAMED = ("properties", "patternProperties", "definitions", "$defs", "dependencies", "dependentSchemas")
"""The keys below these keywords are names, not keywords."""
_METASCHEMA = re.compile(r"https?://json-schema\.org/(draft-0[467]/schema|draft/20(19-09|20-12)/schema)#?")
_LATEST = re.compile(r"https?://json-schema\.org/schema#?")
"""As `$schema` no helm fetches it, and 3.18 and later validate by it; as `$ref` an earlier helm would fetch it."""
_RECENT_DRAFT = re.compile(r"https?://json-schema\.org/(?:draft/20(?:19-09|20-12)/)?schema#?")
_DRAFT_04 = re.compile(r"https?://json-schema\.org/draft-04/schema#?")
_OLD_METASCHEMA = re.compile(r"http://json-schema\.org/draft-0[467]/schema#?")
"""Those that the validator of helm before 3.18 embeds."""
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9/?&=._~@+,;()*'!$:-]*#?")
_RELATIVE = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*(?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*")
"""A path without dot segments: it is resolved alike everywhere."""
_SUBSCHEMAS, _SUBSCHEMA_LISTS = ("additionalProperties", "items", "not"), ("allOf", "anyOf", "oneOf")
_SUBSCHEMA_MAPS = ("definitions", "properties", "patternProperties")
"""Where every draft has schemas, so that helm knows an `$id` there. Elsewhere it may fetch what has that `$id`."""
_MAX_IDENTIFIER_CHARACTERS = 2048


class _Pairs(list[tuple[str, Any]]):
    """An object of JSON with every key that is written, even twice."""


@frozen
class Reference:
    """A reference that helm before 3.18 would fetch, and later versions do not."""

    path: str
    pointer: str
    keyword: str
    value: str

    def problem(self) -> Invalid:
        where = _described(self.path, self.pointer, self.keyword, self.value)
        return Invalid(f"{where}: this helm version would fetch it; helm 3.18 or later does not")


@frozen
class _Keyword:
    pointer: str
    name: str
    value: str
    value_at: str
    """The pointer of the keyword with a value that it is below, or an empty text."""
    is_named: bool

    @property
    def is_value(self) -> bool:
        return bool(self.value_at)


def check_schema(text: bytes, path: str) -> list[Reference]:
    """Checks the schema at `path` of a chart; returns the references that only helm 3.18 or later resolves locally.

    Raises `Invalid` if it refers to anything outside, or is not JSON.
    """
    if not text.strip():
        return []
    try:
        schema = json.loads(text.decode("utf-8-sig"), object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        raise Invalid(f"the chart's {path} is not JSON") from None
    keywords = list(_keywords(schema))
    own = _own_identifiers(schema, sum(word.name in _IDENTIFIERS for word in keywords))
    unused = _unused([word for word in keywords if word.name in _REFERENCES])
    recent = []
    for word in keywords:
        if word.name in _REFERENCES:
            if not word.value or word.value.startswith("#"):
                continue
            is_own = own.has(word.value) or word == unused
            if not is_own and not _METASCHEMA.fullmatch(word.value) and not _LATEST.fullmatch(word.value):
                raise _refused(path, word)
            if is_own or not _OLD_METASCHEMA.fullmatch(word.value):
                recent.append(Reference(path, word.pointer, word.name, word.value))
        elif word.is_value or word.is_named:
            continue
        elif word.name == "$schema":
            if word.value and not _METASCHEMA.fullmatch(word.value) and not _LATEST.fullmatch(word.value):
                raise _refused(path, word)
        elif word.value.lower().startswith("file:") or len(word.value) > _MAX_IDENTIFIER_CHARACTERS:
            raise _refused(path, word)
    return recent


def _unused(references: Sequence[_Keyword]) -> _Keyword | None:
    """The only reference to something outside, if it is a part of a value into which no reference points.

    Nothing follows it.
    """
    outside = {word for word in references if not re.fullmatch(r"#(/.*)?", word.value, re.DOTALL)}
    word = next(iter(outside), None)
    if word is None or len(outside) > 1 or not word.is_value:
        return None
    targets = (unquote(one.value[1:]) for one in references if one != word)
    return None if any(f"{target}/".startswith(f"{word.value_at}/") for target in targets) else word


@frozen
class _OwnIdentifiers:
    """The absolute form of each `$id` that every helm knows, and from which bases a relative reference may start."""

    known: frozenset[str]
    bases: frozenset[str]
    """The folders of the bases. Empty where the file has another `$id`: then no relative reference is known."""
    _found: dict[str, bool] = field(factory=dict)
    """The relative references that were looked up."""

    def has(self, reference: str) -> bool:
        """Whether helm finds a reference in the file, whatever its base is.

        All look-ups together take linear time: each that succeeds at a base has an identifier of its own.
        """
        name = reference.partition("#")[0]
        if _ABSOLUTE.fullmatch(name):
            return name in self.known
        if name not in self._found:
            is_plain = _RELATIVE.fullmatch(name) is not None and bool(self.bases)
            self._found[name] = is_plain and all(base + name in self.known for base in self.bases)
        return self._found[name]


def _own_identifiers(schema: Any, count: int) -> _OwnIdentifiers:
    """`count` is the number of all identifiers of the file, also those that helm may not know."""
    root = dict(schema) if isinstance(schema, _Pairs) else {}  # of a key that is written twice the last one counts
    draft = str(root.get("$schema") or "")
    is_recent = not draft or _RECENT_DRAFT.fullmatch(draft) is not None
    keyword = "id" if _DRAFT_04.fullmatch(draft) else "$id"
    maps = (*_SUBSCHEMA_MAPS, "$defs") if is_recent else _SUBSCHEMA_MAPS
    known, named, waiting = set[str](), 0, [(root, "")]
    while waiting:
        node, base = waiting.pop()
        if (not is_recent and "$ref" in node) or (node is not root and "$schema" in node):
            continue  # beside a reference old drafts ignore everything; another draft has other rules
        own = node.get(keyword)
        if isinstance(own, str) and (_ABSOLUTE.fullmatch(own) or _RELATIVE.fullmatch(own)):
            base = urljoin(base, own).removesuffix("#")
            known.add(base)
            named += 1
        waiting += [(dict(child), base) for child in _subschemas(node, maps) if isinstance(child, _Pairs)]
    has_base = isinstance(root.get(keyword), str)
    bases = known | (set() if has_base else {""}) if named == count else set[str]()
    return _OwnIdentifiers(frozenset(known), frozenset(urljoin(base, "x")[:-1] for base in bases))


def _subschemas(node: Mapping[str, Any], maps: Sequence[str]) -> Iterator[Any]:
    for name in _SUBSCHEMAS:
        yield node.get(name)
    for name in _SUBSCHEMA_LISTS:
        if type(node.get(name)) is list:
            yield from node[name]
    for name in maps:
        if isinstance(node.get(name), _Pairs):
            yield from dict(node[name]).values()


def _keywords(schema: Any) -> Iterator[_Keyword]:
    """Every keyword with a text that may name something outside, with where it is."""
    waiting = [(schema, "", "", False)]
    while waiting:
        node, pointer, value_at, is_named = waiting.pop()
        if isinstance(node, _Pairs):
            for key, value in node:
                below = f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"
                if isinstance(value, str) and (key in _REFERENCES or key in _IDENTIFIERS or key == "$schema"):
                    yield _Keyword(below, key, value, value_at, is_named)
                begins_value = key in _VALUES and not is_named
                begins_names = key in _NAMED and not is_named and not value_at
                waiting.append((value, below, value_at or (below if begins_value else ""), begins_names))
        elif isinstance(node, list):
            waiting += [(item, f"{pointer}/{index}", value_at, False) for index, item in enumerate(node)]


def _refused(path: str, word: _Keyword) -> Invalid:
    return Invalid(f"{_described(path, word.pointer, word.name, word.value)} refers to something outside of the chart")


def _described(path: str, pointer: str, keyword: str, value: str) -> str:
    return f"the chart's {path}, {pointer[:500]}: {keyword} {json.dumps(value[:200])}"
