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
def filter_case(_: Any, case: Any) -> bool:
    """Leaves out bodies with a null: it counts as absent."""
    return not isinstance(case.body, dict) or None not in case.body.values()
