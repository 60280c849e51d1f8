"""Checks that a chart's values.schema.json refers to nothing outside itself: helm would fetch or read it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from attrs import frozen

from models.errors import Invalid

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_IDENTIFIERS = ("$id", "id")
_VALUES = ("default", "const", "enum", "example", "examples")
"""Below these keywords is a value, in which `$schema`, `$id` and `id` mean nothing; a reference may point into it."""
_NAMED = ("properties", "patternProperties", "definitions", "$defs", "dependencies", "dependentSchemas")
"""The keys below these keywords are names, not keywords."""
_METASCHEMA = re.compile(r"https?://json-schema\.org/(draft-0[467]/schema|draft/20(19-09|20-12)/schema)#?")
_OLD_METASCHEMA = re.compile(r"http://json-schema\.org/draft-0[467]/schema#?")
"""Those that the validator of helm before 3.18 embeds."""
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:.*", re.DOTALL)
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
    is_value: bool
    is_named: bool


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
    own = {word.value.partition("#")[0] for word in keywords if word.name in _IDENTIFIERS and _is_identifier(word)}
    recent = []
    for word in keywords:
        if word.name in _REFERENCES:
            if not word.value or word.value.startswith("#"):
                continue
            is_own = word.value.partition("#")[0] in own
            if not is_own and not _METASCHEMA.fullmatch(word.value):
                raise _refused(path, word)
            if is_own or not _OLD_METASCHEMA.fullmatch(word.value):
                recent.append(Reference(path, word.pointer, word.name, word.value))
        elif word.is_value or word.is_named:
            continue
        elif word.name == "$schema":
            if word.value and not _METASCHEMA.fullmatch(word.value):
                raise _refused(path, word)
        elif word.value.lower().startswith("file:") or len(word.value) > _MAX_IDENTIFIER_CHARACTERS:
            raise _refused(path, word)
    return recent


def _is_identifier(word: _Keyword) -> bool:
    return not word.is_value and not word.is_named and _ABSOLUTE.fullmatch(word.value) is not None


def _keywords(schema: Any) -> Iterator[_Keyword]:
    """Every keyword with a text that may name something outside, with where it is."""
    waiting = [(schema, "", False, False)]
    while waiting:
        node, pointer, is_value, is_named = waiting.pop()
        if isinstance(node, _Pairs):
            for key, value in node:
                below = f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"
                if isinstance(value, str) and (key in _REFERENCES or key in _IDENTIFIERS or key == "$schema"):
                    yield _Keyword(below, key, value, is_value, is_named)
                begins_value = key in _VALUES and not is_named
                begins_names = key in _NAMED and not is_named and not is_value
                waiting.append((value, below, is_value or begins_value, begins_names))
        elif isinstance(node, list):
            waiting += [(item, f"{pointer}/{index}", is_value, False) for index, item in enumerate(node)]


def _refused(path: str, word: _Keyword) -> Invalid:
    return Invalid(f"{_described(path, word.pointer, word.name, word.value)} refers to something outside of the chart")


def _described(path: str, pointer: str, keyword: str, value: str) -> str:
    return f"the chart's {path}, {pointer[:500]}: {keyword} {json.dumps(value[:200])}"
