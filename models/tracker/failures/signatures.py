"""The signature of a failure: what failures of one cause have in common, whichever test they are of.

It consists of the type, the first line of the message and the top frame of the stack. Values that differ from run to
run are replaced: paths, quoted values, times, UUIDs, addresses and numbers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import lru_cache

MAX_CHARACTERS = 500
MAX_SAMPLE_CHARACTERS = 16 * 1024
"""The part of a stack that is kept for a cluster."""

_MAX_TEXT_CHARACTERS = 4096
"""The beginning of a text that is searched for its line or frame."""
_MAX_LINE_CHARACTERS = 2000
_CACHED_SIGNATURES = 2048

# Each alternative begins where a word begins and ends before its own first character, so that no text is scanned twice.
_VARIABLE = re.compile(
    r"""(?P<uuid>(?<![\w-])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![\w-]))
    |(?P<value>(?<!\w)(?:"[^"\n]*"|'[^'\n]*'(?!\w)|`[^`\n]*`|\u201c[^\u201c\u201d\n]*\u201d|\u2018[^\u2018\u2019\n]*\u2019)
        |(?<=[:\s])<[^<>\n]*>)
    |(?P<time>(?<![\w.])(?:
        \d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?(?:Z|\s?[+-]\d\d:?\d\d)?
        |\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?(?:\s?[ap]m)?
        |\d+(?:[.,]\d+)*\s?(?:ns|us|\u00b5s|ms|s|secs?|seconds?|milliseconds?|m|mins?|minutes?|h|hours?|days?)
        )(?!\w))
    |(?P<address>(?<!\w)0[xX][0-9a-fA-F]+)
    |(?P<object>@[0-9a-fA-F]+\b)
    |(?P<path>(?<![\w/])(?:[a-zA-Z][\w+.-]{0,30}://[^\s"'<>()]+|(?:[a-zA-Z]:[\\/]|\\\\|~?/|\.{1,2}[\\/])[\w.@%+~$-]+(?:[\\/][\w.@%+~$-]+)*)
        |(?<![\w./\\@+~-])[\w.@+~-]+(?:[\\/][\w.@+~-]+)*[\\/][\w@+~-]+\.[a-zA-Z]\w*)
    |(?P<number>\d+(?:[.,]\d+)*)
    |(?P<space>\s+)""",
    re.VERBOSE,
)  # fmt: skip
_REPLACED = {
    "uuid": "<uuid>", "value": "<value>", "time": "<time>", "address": "0x#", "object": "@#", "path": "<path>",
    "number": "#", "space": " ",
}  # fmt: skip


def _replace(match: re.Match[str]) -> str:
    return _REPLACED[match.lastgroup or "space"]


def _first_line(text: str | None, fits: Callable[[str], bool] = bool) -> str:
    """The first line, without the space around it, that fits; empty without one."""
    for line in (text or "")[:_MAX_TEXT_CHARACTERS].splitlines():
        if fits(line := line.strip()):
            return line[:_MAX_LINE_CHARACTERS]
    return ""


def _is_frame(line: str) -> bool:
    return line.startswith("at ")


@lru_cache(_CACHED_SIGNATURES)
def _normalised(type: str, message: str, frame: str) -> str:
    parts = (_VARIABLE.sub(_replace, part).strip() for part in (type, message, frame))
    return " | ".join(parts)[:MAX_CHARACTERS]


def signature(type: str | None, message: str | None, stack: str | None) -> str:
    """`TYPE | MESSAGE | FRAME`, at most `MAX_CHARACTERS`."""
    return _normalised(_first_line(type), _first_line(message), _first_line(stack, _is_frame) or _first_line(stack))


def digest(signature: str) -> str:
    """The hash by which a project's failures of this signature are found."""
    return hashlib.blake2b(signature.encode("utf-8", "replace"), digest_size=16).hexdigest()
