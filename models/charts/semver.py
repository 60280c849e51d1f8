"""Versions and ranges as helm reads them: the rules of Masterminds/semver 3, which no library for Python has.

A version may lack its minor or patch and may begin with v. A range is groups joined by `||`, each of comparisons
that all must hold; a prerelease is matched only where its group names a prerelease.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import total_ordering

from attrs import frozen

from models.errors import Invalid

_IDENTIFIERS = r"[0-9A-Za-z\-]+(?:\.[0-9A-Za-z\-]+)*"
_VERSION = re.compile(rf"v?([0-9]+)(?:\.([0-9]+))?(?:\.([0-9]+))?(?:-({_IDENTIFIERS}))?(?:\+({_IDENTIFIERS}))?")
_LONGEST = 256
_MOST_DIGITS = 20


@total_ordering
@frozen(order=False, eq=False)
class Version:
    """A semantic version; its build part counts for nothing when versions are compared."""

    major: int
    minor: int
    patch: int
    pre: str = ""

    @property
    def key(self) -> tuple[int, int, int, bool, list[tuple[bool, int, str]]]:
        return (self.major, self.minor, self.patch, not self.pre, [_rank(part) for part in self.pre.split(".")])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self.key == other.key

    def __lt__(self, other: Version) -> bool:
        return self.key < other.key

    def __hash__(self) -> int:
        return hash((self.major, self.minor, self.patch, self.pre))


def _rank(identifier: str) -> tuple[bool, int, str]:
    """Numbers come before words, and are compared as numbers."""
    return (False, int(identifier), "") if identifier.isdigit() else (True, 0, identifier)


def version(text: str) -> Version | None:
    """The version that `text` is; None where it is none."""
    found = _VERSION.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None or any(len(part or "") > _MOST_DIGITS for part in found.groups()[:3]):
        return None
    pre = found[4] or ""
    if any(
        part.isdigit() and (len(part) > _MOST_DIGITS or (part[0] == "0" and part != "0")) for part in pre.split(".")
    ):
        return None
    return Version(int(found[1]), int(found[2] or 0), int(found[3] or 0), pre)


_PART = r"[0-9xX*]+"
_PARTIAL = rf"v?({_PART})(\.{_PART})?(\.{_PART})?(-(?:{_IDENTIFIERS}))?(\+(?:{_IDENTIFIERS}))?"
_PARTIAL_PLAIN = rf"v?{_PART}(?:\.{_PART})?(?:\.{_PART})?(?:-{_IDENTIFIERS})?(?:\+{_IDENTIFIERS})?"
_OPERATOR = r"=|!=|>=|=>|<=|=<|~>|>|<|~|\^|"
_ONE = re.compile(rf"\s*({_OPERATOR})\s*({_PARTIAL})\s*")
_FIND = re.compile(rf"(?:{_OPERATOR})\s*{_PARTIAL_PLAIN}")
_HYPHEN = re.compile(rf"\s*({_PARTIAL_PLAIN})\s+-\s+({_PARTIAL_PLAIN})\s*")
_COMPARISON = rf"(?:{_OPERATOR})\s*+{_PARTIAL_PLAIN}"
_GROUP = re.compile(rf"\s*+{_COMPARISON}(?:(?:\s*+,\s*+|\s++){_COMPARISON})*\s*", re.ASCII)
"""Spaces are taken one way only (`++`): else a few dozen of them would be looked at in more ways than there is time."""


@frozen
class Comparison:
    """One comparison of a range. What the text left open is 0 in `bound`; `no_minor`, `no_patch` tell that it was."""

    operator: str
    bound: Version
    no_minor: bool = False
    no_patch: bool = False
    is_open: bool = False
    """Any part is left open, be it all of it (`*`)."""

    def allows(self, version: Version) -> bool:
        return _CHECKS[self.operator](version, self)


@frozen
class Range:
    """Which versions will do."""

    text: str
    groups: tuple[tuple[Comparison, ...], ...]

    def allows(self, version: Version) -> bool:
        return any(self._allowed(group, version) for group in self.groups)

    @staticmethod
    def _allowed(group: tuple[Comparison, ...], version: Version) -> bool:
        if version.pre and not any(comparison.bound.pre for comparison in group):
            return False
        return all(comparison.allows(version) for comparison in group)


def range_of(text: str) -> Range:
    """The range that `text` is; an empty one is `*`. Raises `Invalid`."""
    if len(text) > _LONGEST:
        raise Invalid(f"version: longer than {_LONGEST} characters")
    plain = _HYPHEN.sub(r">= \1, <= \2 ", text) if text.strip() else "*"
    return Range(text, tuple(_group(group) for group in plain.split("||")))


def _group(text: str) -> tuple[Comparison, ...]:
    if not _GROUP.fullmatch(text):
        raise Invalid(f"version: improper constraint: {text.strip()}")
    return tuple(_comparison(part) for part in _FIND.findall(text))


def _comparison(text: str) -> Comparison:
    found = _ONE.fullmatch(text)
    operator, bound, no_minor, no_patch, is_open = "", None, False, False, True
    if found:
        operator, major, minor, patch, pre = found[1], found[3], found[4] or "", found[5] or "", found[6] or ""
        if _is_any(major):
            bound = version(f"0.0.0{pre}")
        elif _is_any(minor[1:]):
            bound, no_minor = version(f"{major}.0.0{pre}"), True
        elif _is_any(patch[1:]):
            bound, no_patch = version(f"{major}{minor}.0{pre}"), True
        else:
            bound, is_open = version(f"{major}{minor}{patch}{pre}"), False
    if bound is None:
        raise Invalid(f"version: improper constraint: {text.strip()}")
    return Comparison(operator, bound, no_minor, no_patch, is_open)


def _is_any(part: str) -> bool:
    return part in ("", "x", "X", "*")


def _differs(v: Version, c: Comparison) -> bool:
    if not c.is_open or v.major != c.bound.major:
        return v != c.bound
    if c.no_minor:
        return False
    if v.minor != c.bound.minor:
        return True
    return v.pre != c.bound.pre if c.no_patch else v != c.bound


def _greater(v: Version, c: Comparison) -> bool:
    """`>11` begins at 12: what was left open is as high as it goes."""
    if not c.is_open or v.major != c.bound.major:
        return v > c.bound
    if c.no_minor:
        return False
    return v.minor > c.bound.minor if c.no_patch else v > c.bound


def _at_most(v: Version, c: Comparison) -> bool:
    if not c.is_open:
        return v <= c.bound
    return v.major < c.bound.major or (v.major == c.bound.major and (v.minor <= c.bound.minor or c.no_minor))


def _tilde(v: Version, c: Comparison) -> bool:
    if v < c.bound:
        return False
    if not (c.bound.major or c.bound.minor or c.bound.patch or c.no_minor or c.no_patch):
        return True  # ~0.0.0 and * are anything
    return v.major == c.bound.major and (v.minor == c.bound.minor or c.no_minor)


def _caret(v: Version, c: Comparison) -> bool:
    if v < c.bound or v.major != c.bound.major:
        return False
    if c.bound.major or c.no_minor:
        return True
    if v.minor != c.bound.minor:
        return False
    return bool(c.bound.minor or c.no_patch or v.patch == c.bound.patch)


def _equal(v: Version, c: Comparison) -> bool:
    return _tilde(v, c) if c.is_open else v == c.bound


_CHECKS: dict[str, Callable[[Version, Comparison], bool]] = {
    "": _equal,
    "=": _equal,
    "!=": _differs,
    ">": _greater,
    "<": lambda v, c: v < c.bound,
    ">=": lambda v, c: v >= c.bound,
    "=>": lambda v, c: v >= c.bound,
    "<=": _at_most,
    "=<": _at_most,
    "~": _tilde,
    "~>": _tilde,
    "^": _caret,
}


def newest_first(texts: Iterable[str]) -> list[str]:
    """Those of `texts` that are versions, newest first; equal ones keep their order."""
    known = [(parsed, text) for text in texts if (parsed := version(text))]
    return [text for _, text in sorted(known, key=lambda pair: pair[0].key, reverse=True)]


def chosen(wanted: str, texts: Iterable[str]) -> str | None:
    """Which of `texts`, newest first, helm would take for `wanted`: the same text, else the first that is in range.

    Raises `Invalid` where `wanted` is no range.
    """
    allowed, known = range_of(wanted), list(texts)
    if wanted in known:
        return wanted
    return next((text for text in known if (parsed := version(text)) and allowed.allows(parsed)), None)
