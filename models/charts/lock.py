"""The lock document of a chart's dependencies, as helm itself would write it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from attrs import frozen

from models.charts import plainyaml
from models.charts.archive import Dependency
from models.charts.metadata import dependency


@frozen
class Locked:
    """One dependency with the version that was chosen; `repository` as a URL where it was a name."""

    wanted: Dependency
    version: str
    repository: str


def document(locked: Sequence[Locked], generated: str) -> str:
    """The lock. `generated` is its time as RFC 3339 has it."""
    facts = {
        "dependencies": [_entry(one) for one in locked],
        "digest": f"sha256:{hashlib.sha256(_hashed(locked)).hexdigest()}",
        "generated": generated,
    }
    return plainyaml.dump(facts)


def _entry(one: Locked) -> dict[str, str]:
    return {"name": one.wanted.name, "repository": one.repository, "version": one.version}


def _hashed(locked: Sequence[Locked]) -> bytes:
    """What helm hashes: what the chart asks for and what it gets, in Go's JSON; no list at all is null there."""
    asked = [dependency({**one.wanted.facts, "repository": one.repository}) for one in locked]
    given = [
        {"name": one.wanted.name, **({"version": one.version} if one.version else {}), "repository": one.repository}
        for one in locked
    ]
    return _as_go(json.dumps([asked or None, given], separators=(",", ":"), ensure_ascii=False)).encode()


def _as_go(text: str) -> str:
    """Go escapes what could end a script in a page, and names control characters otherwise than Python does."""
    escapes: dict[str, Any] = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
    return text.translate(str.maketrans(escapes))
