"""Values as YAML that every reader reads alike: helm's (Go), YAML 1.1 and YAML 1.2; and which texts may be loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

_ELSEWHERE_NO_TEXT = re.compile(
    r"""(?:[-+]?[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?   # 1e3: a number in YAML 1.2, text to PyYAML
    |[-+]?\.[0-9_]+([eE][-+]?[0-9]+)?
    |0[oO][0-7_]+|0[xX][0-9a-fA-F_]+|0[bB][01_]+
    |[yYnN]|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?
    |[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)
    |[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*)\Z
    """,
    re.VERBOSE,
)
_DEEPEST = 100
_QUICK = 4000
"""Letters that are dumped in a fraction of a millisecond; each value counts as ten."""
_NO_TEXT = "tag:yaml.org,2002:some-number"


class _Plain(_Dumper):  # type: ignore[misc]
    """Quotes each text that some reader would take for something else; text of many lines is a block."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: Any, text: str) -> Any:
    lines = text.split("\n")
    is_block = len(lines) > 1 and text.strip() and not any(line != line.rstrip() for line in lines)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if is_block else None)


_Plain.add_implicit_resolver(_NO_TEXT, _ELSEWHERE_NO_TEXT, list("-+.0123456789yYnN"))
_Plain.add_representer(str, _text)


def dump(value: Any) -> str:
    """A JSON value as YAML, its keys sorted, as helm prints it; `{}` for an empty object."""
    try:
        return str(yaml.dump(value, Dumper=_Plain, default_flow_style=False, allow_unicode=True, width=2**20))
    except (RecursionError, UnicodeError):  # JSON, which is YAML, may be three times as deep, and have half letters
        return json.dumps(value, sort_keys=True, ensure_ascii=False) + "\n"


def is_quick(value: Any) -> bool:
    """Whether it is so small that a worker would cost more than the dumping of it."""
    left, waiting = _QUICK, [value]
    while waiting and left > 0:
        one = waiting.pop()
        left -= 10 + (len(one) if isinstance(one, str | dict | list) else 0)
        if left > 0 and isinstance(one, dict | list):
            waiting += one if isinstance(one, list) else [*one, *one.values()]
    return left > 0


class TooDeep(ValueError):
    """The text is nested too deeply."""


def events(text: str | bytes, loader: Any, deepest: int = _DEEPEST) -> Iterator[yaml.Event]:
    """The events of a text that is about to be loaded. Raises `yaml.YAMLError`, and `TooDeep`.

    Libyaml's loader crashes the process over what is nested too deeply; its events do not.
    """
    depth = 0
    for event in yaml.parse(text, loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > deepest:
            raise TooDeep
        yield event
