"""Which generated requests Schemathesis sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import schemathesis


@schemathesis.hook
def filter_query(_: Any, query: Mapping[str, Any] | None) -> bool:
    """Leaves out empty values, objects and lists too: they are sent as an empty text, which stands for no value."""
    return not any(value in ({}, [], "") for value in (query or {}).values())


@schemathesis.hook
def filter_body(_: Any, body: object) -> bool:
    """Leaves out objects with a null: it counts as absent."""
    return not isinstance(body, dict) or None not in body.values()
