"""Versions and ranges by the rules of Masterminds/semver 3, as helm reads them; no Python library implements these.

A version may lack its minor or patch and may begin with v. A range is groups joined by `||`, each of comparisons
that must all hold; a prerelease matches only if its group names a prerelease.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import total_ordering

from attrs import frozen

from models.errors import Invalid

_IDENTIFIERS = r"[0-9A-Za-z\-]+(?:\.[0-9A-Za-z\-]+)*"
_VERSION = re.compile(rf"v?([0-9]+)(?:\.([0-9]+))?(?:\.([0-9]+))?(?:-({_IDENTIFIERS}))?(?:\+({_IDENTIFIERS}))?")
_NUMBER = "(?:0|[1-9][0-9]*)"
_COMPLETE = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:[-+].*)?")
_MAX_CHARACTERS = 256
_MAX_DIGITS = 20


@total_ordering
@frozen(order=False, eq=False)
class Version:
    """A semantic version; build metadata is ignored."""

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
    """Numeric identifiers sort before words, and by number."""
    return (False, int(identifier), "") if identifier.isdigit() else (True, 0, identifier)


def version(text: str) -> Version | None:
    """Parses a version; None if `text` is not one."""
    match = _VERSION.fullmatch(text) if len(text) <= _MAX_CHARACTERS else None
    if match is None or any(len(part or "") > _MAX_DIGITS for part in match.groups()[:3]):
        return None
    pre = match[4] or ""
    if any(part.isdigit() and (len(part) > _MAX_DIGITS or (part[0] == "0" and part != "0")) for part in pre.split(".")):
        return None
    return Version(int(match[1]), int(match[2] or 0), int(match[3] or 0), pre)


_PART = r"[0-9xX*]+"
_PARTIAL = rf"v?({_PART})(\.{_PART})?(\.{_PART})?(-(?:{_IDENTIFIERS}))?(\+(?:{_IDENTIFIERS}))?"
_PARTIAL_PLAIN = rf"v?{_PART}(?:\.{_PART})?(?:\.{_PART})?(?:-{_IDENTIFIERS})?(?:\+{_IDENTIFIERS})?"
_OPERATOR = r"=|!=|>=|=>|<=|=<|~>|>|<|~|\^|"
_COMPARISON_PARTS = re.compile(rf"\s*({_OPERATOR})\s*({_PARTIAL})\s*")
_COMPARISONS = re.compile(rf"(?:{_OPERATOR})\s*{_PARTIAL_PLAIN}")
_HYPHEN = re.compile(rf"\s*({_PARTIAL_PLAIN})\s+-\s+({_PARTIAL_PLAIN})\s*")
_COMPARISON = rf"(?:{_OPERATOR})\s*+{_PARTIAL_PLAIN}"
_GROUP = re.compile(rf"\s*+{_COMPARISON}(?:(?:\s*+,\s*+|\s++){_COMPARISON})*\s*", re.ASCII)
"""Spaces match in one way only (`++`), so that a row of spaces cannot cause catastrophic backtracking."""


@frozen
class Comparator:
    """One comparison of a range. Missing parts are 0 in `bound`; `no_minor` and `no_patch` record which are missing."""

    operator: str
    bound: Version
    no_minor: bool = False
    no_patch: bool = False
    is_open: bool = False
    """Whether any part is missing or a wildcard."""

    def allows(self, version: Version) -> bool:
        return _CHECKS[self.operator](version, self)


@frozen
class Range:
    """The set of allowed versions."""

    groups: tuple[tuple[Comparator, ...], ...]

    def allows(self, version: Version) -> bool:
        return any(self._allowed(group, version) for group in self.groups)

    @staticmethod
    def _allowed(group: tuple[Comparator, ...], version: Version) -> bool:
        if version.pre and not any(comparison.bound.pre for comparison in group):
            return False
        return all(comparison.allows(version) for comparison in group)


def range_of(text: str) -> Range:
    """Parses a range; an empty text is `*`. Raises `Invalid`."""
    if len(text) > _MAX_CHARACTERS:
        raise Invalid(f"version: longer than {_MAX_CHARACTERS} characters")
    plain = _HYPHEN.sub(r">= \1, <= \2 ", text) if text.strip() else "*"
    return Range(tuple(_group(group) for group in plain.split("||")))


def _group(text: str) -> tuple[Comparator, ...]:
    if not _GROUP.fullmatch(text):
        raise Invalid(f"version: improper constraint: {text.strip()}")
    return tuple(_comparison(part) for part in _COMPARISONS.findall(text))


def _comparison(text: str) -> Comparator:
    match = _COMPARISON_PARTS.fullmatch(text)
    operator, bound, no_minor, no_patch, is_open = "", None, False, False, True
    if match:
        operator, major, minor, patch, pre = match[1], match[3], match[4] or "", match[5] or "", match[6] or ""
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
    return Comparator(operator, bound, no_minor, no_patch, is_open)


def _is_any(part: str) -> bool:
    return part in ("", "x", "X", "*")


def _differs(v: Version, c: Comparator) -> bool:
    if not c.is_open or v.major != c.bound.major:
        return v != c.bound
    if c.no_minor:
        return False
    if v.minor != c.bound.minor:
        return True
    return v.pre != c.bound.pre if c.no_patch else v != c.bound


def _greater(v: Version, c: Comparator) -> bool:
    """`>11` begins at 12: a missing part means the highest one."""
    if not c.is_open or v.major != c.bound.major:
        return v > c.bound
    if c.no_minor:
        return False
    return v.minor > c.bound.minor if c.no_patch else v > c.bound


def _at_most(v: Version, c: Comparator) -> bool:
    if not c.is_open:
        return v <= c.bound
    return v.major < c.bound.major or (v.major == c.bound.major and (v.minor <= c.bound.minor or c.no_minor))


def _tilde(v: Version, c: Comparator) -> bool:
    if v < c.bound:
        return False
    if not (c.bound.major or c.bound.minor or c.bound.patch or c.no_minor or c.no_patch):
        return True  # ~0.0.0 and * allow any version
    return v.major == c.bound.major and (v.minor == c.bound.minor or c.no_minor)


def _caret(v: Version, c: Comparator) -> bool:
    if v < c.bound or v.major != c.bound.major:
        return False
    if c.bound.major or c.no_minor:
        return True
    if v.minor != c.bound.minor:
        return False
    return bool(c.bound.minor or c.no_patch or v.patch == c.bound.patch)


def _equal(v: Version, c: Comparator) -> bool:
    return _tilde(v, c) if c.is_open else v == c.bound


_CHECKS: dict[str, Callable[[Version, Comparator], bool]] = {
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
    """The texts that are versions, newest first; equal versions keep their order."""
    versions = [(parsed, text) for text in texts if (parsed := version(text))]
    return [text for _, text in sorted(versions, key=lambda pair: pair[0].key, reverse=True)]


def chosen(wanted: str, texts: Iterable[str]) -> str | None:
    """The version of `texts` (newest first) that helm would choose: the text `wanted` itself, else the first in range.

    Raises `Invalid` if `wanted` is not a range.
    """
    versions = list(texts)
    found = first_allowed(wanted, versions)
    return wanted if wanted in versions else found


def chosen_tag(wanted: str, tags: Iterable[str]) -> str | None:
    """The tag of a registry that helm would choose: `wanted` itself, else the newest complete version without a `v`.

    The others (`v1.2.0`, `1.2`) count if none of those is in range. Raises `Invalid` if `wanted` is not a range.
    """
    versions = newest_first(tags)
    if wanted in versions:
        return wanted
    found = first_allowed(wanted, (text for text in versions if _COMPLETE.fullmatch(text)))
    return found if found is not None else first_allowed(wanted, versions)


def first_allowed(wanted: str, texts: Iterable[str]) -> str | None:
    """The first of `texts` that is in range. Raises `Invalid` if `wanted` is not a range."""
    allowed = range_of(wanted)
    return next((text for text in texts if (parsed := version(text)) and allowed.allows(parsed)), None)
