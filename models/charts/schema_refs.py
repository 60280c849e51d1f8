"""Whether a chart's values.schema.json refers to anything outside of itself: helm would fetch it, or read it here."""

from __future__ import annotations

import json
import re
from typing import Any

from models.errors import Invalid

_REFERENCES = {"$ref", "$dynamicRef", "$recursiveRef", "$id", "$schema", "id"}
_VALUES = {"default", "const", "enum", "example", "examples"}
"""What is below these is no schema but a value, in which `id` (draft 4's `$id`) means nothing."""
_NAMED = {"properties", "patternProperties", "definitions", "$defs", "dependencies", "dependentSchemas"}
"""The keys of what is below these are names, not words of a schema."""
_STANDARD = re.compile(
    r"https?://json-schema\.org/(schema|draft-0[467]/(hyper-)?schema"
    r"|draft/(2019-09|2020-12)/(schema|hyper-schema|meta/[a-z-]+))#?"
)


class _Pairs(list[tuple[str, Any]]):
    """An object of JSON with every key that is written, even twice."""


def check_schema(text: bytes, path: str) -> None:
    """Raises `Invalid` where the schema at `path` of a chart refers to anything outside, or is no JSON."""
    if not text.strip():
        return
    try:
        schema = json.loads(text.decode("utf-8-sig"), object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        raise Invalid(f"the chart's {path} is not JSON") from None
    waiting = [(schema, False, False)]
    while waiting:
        node, is_value, is_named = waiting.pop()
        if isinstance(node, _Pairs):
            for key, value in node:
                if key in _REFERENCES and isinstance(value, str) and not (key == "id" and is_value):
                    _check_reference(key, value, path)
                begins_value = key in _VALUES and not is_named
                waiting.append((value, is_value or begins_value, key in _NAMED and not is_named))
        elif isinstance(node, list):
            waiting += [(item, is_value, False) for item in node]


def _check_reference(key: str, value: str, path: str) -> None:
    if value and not value.startswith("#") and not _STANDARD.fullmatch(value):
        raise Invalid(f"the chart's {path} refers to something outside of it: {key} {json.dumps(value[:200])}")
