"""Values that somebody has typed as YAML (or JSON, which is YAML too), read as helm reads them."""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

from models.charts import yaml_values
from models.charts.parameters import check_text
from models.errors import Invalid

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MOST = 512 * 1024
_DEEP = 100

_NUMBERS = {
    "int": (r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|0|[1-9][0-9_]*)\Z", "-+0123456789"),
    "float": (
        r"[-+]?(?:(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))\Z"
        r"|\.(?:nan|NaN|NAN)\Z",
        "-+0123456789.",
    ),
}


class _Values(_Loader):  # type: ignore[misc]
    """Numbers as helm's YAML has them (1e3 is one, 1:30 is none); a date is text."""


_OTHERS = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp"}
_Values.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag not in _OTHERS]
    for first, found in _Loader.yaml_implicit_resolvers.items()
}
for _name, (_pattern, _first) in _NUMBERS.items():
    _Values.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(_pattern), list(_first))


def parse(text: str) -> dict[str, Any] | None:
    """The values; `None` where nothing was typed. Raises `Invalid`."""
    if not text.strip():
        return None
    if len(text) > _MOST:
        raise Invalid(f"values: more than {_MOST} characters")
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml_values.events(text, _Values)):
            raise Invalid("values: aliases (*name) are not taken here; write it out")
        value = yaml.load(text, _Values)  # noqa: S506 (a safe loader)
    except yaml.YAMLError as fault:
        mark = getattr(fault, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise Invalid(f"values: not YAML: {getattr(fault, 'problem', None) or 'it cannot be read'}{where}") from None
    except (RecursionError, ValueError):
        raise Invalid("values: nested too deeply, or a number that cannot be held") from None
    if value is not None and not isinstance(value, dict):
        raise Invalid("values: a mapping is expected (name: value)")
    plain = _plain(value or {}, 0)
    check_text(plain)
    return dict(plain)


def _plain(value: Any, depth: int) -> Any:
    """What JSON knows."""
    if depth > _DEEP:
        raise Invalid("values: nested too deeply")
    if isinstance(value, dict):
        return {_key(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise Invalid("values: a number that is none, or not finite")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise Invalid(f"values: {type(value).__name__} is not a kind of value that helm takes")


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, bool):
        return "true" if key else "false"
    if key is None or not isinstance(key, int | float):
        raise Invalid("values: a name must be text")
    return str(key)
