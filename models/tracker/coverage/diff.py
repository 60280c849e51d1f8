"""Reads the parts of an upload that describe the repository: the diff of changed lines and the list of files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import evolve, field, frozen

from models.errors import Invalid, TooLarge
from models.json_format import check_text

MAX_DIFF_BYTES = 5 * 1024 * 1024
MAX_DIFF_FILES = 10_000
MAX_DIFF_RANGES = 200_000
MAX_PATHS = 50_000
MAX_PATHS_BYTES = 16 * 1024 * 1024
_MAX_LINE = 2**31
_MAX_COMMIT_CHARACTERS = 2000

MAX_BASE_COMMITS = 50
"""First parents of the base that an upload names with it."""

TOO_LARGE = "the diff is too large"
COMBINED = "the diff is a combined diff of a merge; compare two commits with git diff BASE HEAD"
SEVERAL = (
    "the diff changes a file more than once, as patches of several commits do; compare two with git diff BASE HEAD"
)
_WITHOUT = "; make it with git diff, without --word-diff"
_NO_DIFF = 'diff is neither a unified diff nor {"base","head","files":{PATH:[[FIRST,LAST]]}}'
_UNIFIED = re.compile(rb"^(?:diff |--- |\+\+\+ |Index: |Binary files |Only in )", re.MULTILINE)
"""How a line of a unified diff begins, also of one without a changed line."""
_COMBINED = re.compile(rb"^diff --(?:cc|combined) ", re.MULTILINE)
"""How a file begins in a diff of a merge and all its parents. Its lines are not those that the merge adds to one."""


Ranges = list[tuple[int, int]]

_GIT_HEADER = re.compile(rb'diff --git "?([a-z0-9]/)?')
_OLD_FILE = re.compile(rb'--- "?([a-z0-9]/)?')
_COLOURED = re.compile(rb"^\x1b\[[0-9;]*m(?:diff |--- )", re.MULTILINE)
"""How a file begins in a diff that git has coloured (`color.ui=always`)."""
_COLOUR = re.compile(rb"\x1b\[[0-9;]*[mK]")
_LINE_KINDS = (b" ", b"+", b"-", b"\\", b"", b"\r")
"""How a line of a hunk begins. Some programs remove the space of an empty line."""
_PREFIXES: Mapping[bytes, tuple[bytes, ...]] = {
    b"a/": (b"b/",),
    b"b/": (b"a/",),
    b"c/": (b"i/", b"w/"),
    b"i/": (b"w/", b"c/"),
    b"o/": (b"w/",),
    b"w/": (b"i/", b"c/", b"o/"),
    b"1/": (b"2/",),
}
"""The prefix of a new path by that of the old one. Those beyond `a/` and `b/` are of `diff.mnemonicPrefix`."""
_HUNK = re.compile(rb"^@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_ESCAPE = re.compile(rb'\\([0-7]{3}|[abtnvfr"\\])')
_ESCAPED = {b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}


@frozen
class Hunks:
    """The changed lines of files, as ranges whose ends are included."""

    files: Mapping[str, Ranges]
    base: str | None = None
    head: str | None = None
    paths: Sequence[str] = ()
    """The files of the repository that have the name of a changed file."""
    problem: str | None = None
    base_commits: Sequence[str] = ()
    """First parents of the base, newest first: candidates for the baseline where the base has no run."""
    renames: Mapping[str, str] = field(factory=dict)
    """The new paths of renamed files by their old ones."""


def read_diff(data: bytes) -> Hunks:
    """A unified diff, or `{"base","head","files":{PATH:[[FIRST,LAST]]}}`. Raises `Invalid`."""
    if len(data) > MAX_DIFF_BYTES:
        return Hunks({}, problem=TOO_LARGE)
    data = _utf8(data)
    if _COLOURED.search(data):
        data = _COLOUR.sub(b"", data)
    if data.lstrip()[:1] == b"{":
        diff = _from_json(data)
    elif _COMBINED.search(data):
        diff = Hunks({}, problem=COMBINED)
    elif not data.strip() or _UNIFIED.search(data):
        diff = _from_unified(data)
    else:
        raise Invalid(_NO_DIFF)
    if len(diff.files) > MAX_DIFF_FILES or sum(map(len, diff.files.values())) > MAX_DIFF_RANGES:
        return Hunks({}, diff.base, diff.head, problem=TOO_LARGE, base_commits=diff.base_commits)
    return diff


def _utf8(data: bytes) -> bytes:
    """A text in UTF-8 without a byte order mark. PowerShell writes UTF-16."""
    for mark, encoding in ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")):
        if data.startswith(mark):
            return data[2:].decode(encoding, "replace").encode("utf-8", "replace")
    return data.removeprefix(b"\xef\xbb\xbf")


def _from_json(data: bytes) -> Hunks:
    try:
        values = json.loads(data)
        files = {str(path): _ranges(ranges) for path, ranges in values.get("files", {}).items()}
        base, head = (values.get(name) for name in ("base", "head"))
        parents = _commits(values.get("baseCommits", []))
        renames = {str(old): _path_text(new) for old, new in values.get("renames", {}).items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise Invalid(_NO_DIFF) from None
    if any(not isinstance(commit, str | None) or len(commit or "") > _MAX_COMMIT_CHARACTERS for commit in (base, head)):
        raise Invalid(f"diff: base and head must be text of at most {_MAX_COMMIT_CHARACTERS} characters")
    try:
        check_text({"base": base, "head": head, "files": list(files), "baseCommits": parents, "renames": renames})
    except Invalid as problem:
        raise Invalid(f"diff: {problem.message}") from None
    return Hunks(files, base, head, base_commits=parents, renames=dict(list(renames.items())[:MAX_DIFF_FILES]))


def _path_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a path is not a text")
    return value


def _commits(values: Any) -> list[str]:
    if not isinstance(values, list) or any(type(one) is not str or len(one) > _MAX_COMMIT_CHARACTERS for one in values):
        raise TypeError("the commits are not a list of texts")
    return values[:MAX_BASE_COMMITS]


def _ranges(values: Any) -> Ranges:
    ranges = [(first, last) for first, last in values]
    if any(type(line) is not int or not 0 < line < _MAX_LINE for range in ranges for line in range):
        raise ValueError("a line number is not valid")
    return [range for range in ranges if range[0] <= range[1]]


def _from_unified(data: bytes) -> Hunks:
    files: dict[str, Ranges] = {}
    renames: dict[str, str] = {}
    path: str | None = None
    renamed = ""
    is_in_file = is_changed = False
    prefixes: tuple[bytes, ...] | None = None
    old = new = line = 0
    for number, text in enumerate(data.split(b"\n"), 1):
        if old > 0 or new > 0:  # within a hunk, a line may begin like a header
            kind = text[:1]
            if kind not in _LINE_KINDS:
                return Hunks({}, problem=f"line {number} of the diff begins with neither a space, + nor -{_WITHOUT}")
            if kind == b"+" and path is not None:
                _extend(files[path], line)
            old -= kind not in (b"+", b"\\")
            new -= kind not in (b"-", b"\\")
            line += kind not in (b"-", b"\\")
            is_changed |= kind in (b"+", b"-")
            if not (is_changed or old > 0 or new > 0):
                return Hunks({}, problem=f"the hunk that ends in line {number} of the diff changes no line{_WITHOUT}")
        elif match := _GIT_HEADER.match(text):
            prefixes = _PREFIXES.get(match[1] or b"", ())  # none with `diff.noprefix`
        elif prefixes is None and (match := _OLD_FILE.match(text)):
            prefixes = (b"b/",) if text.startswith(b"--- /dev/null") else _PREFIXES.get(match[1] or b"", ())
        elif text.startswith(b"+++ "):
            path, is_in_file, prefixes = _path(text[4:], (b"b/",) if prefixes is None else prefixes), True, None
            if path in files:
                return Hunks({}, problem=SEVERAL)
            if path is not None:
                files[path] = []
        elif prefixes is not None and text.startswith(b"rename from "):
            renamed = _name(text[12:])
        elif prefixes is not None and text.startswith(b"rename to ") and renamed:
            renames[renamed], renamed = _name(text[10:]), ""
        elif is_in_file and (hunk := _HUNK.match(text)):
            old, line, new = int(hunk[1] or 1), int(hunk[2]), int(hunk[3] or 1)
            is_changed = False
    changed = {path: ranges for path, ranges in files.items() if ranges}
    return Hunks(changed, renames=dict(list(renames.items())[:MAX_DIFF_FILES]))


def ranges_of(lines: Iterable[int]) -> Ranges:
    """Ascending line numbers as ranges whose ends are included."""
    ranges: Ranges = []
    for line in lines:
        _extend(ranges, line)
    return ranges


def _extend(ranges: Ranges, line: int) -> None:
    if ranges and ranges[-1][1] == line - 1:
        ranges[-1] = (ranges[-1][0], line)
    else:
        ranges.append((line, line))


def _path(name: bytes, prefixes: tuple[bytes, ...]) -> str | None:
    """The path of a `+++` line; None for a deleted file."""
    name = name.rstrip(b"\r").partition(b"\t")[0]
    if name == b"/dev/null":
        return None
    path = _unquoted(name)
    return (path[2:] if path.startswith(prefixes) else path).decode("utf-8", "replace")


def _name(text: bytes) -> str:
    """The path of a `rename` line, which has no prefix."""
    return _unquoted(text.rstrip(b"\r")).decode("utf-8", "replace")


def _unquoted(name: bytes) -> bytes:
    """A path as git writes it: in quotes and with escapes where it has special characters."""
    is_quoted = len(name) > 1 and name.startswith(b'"') and name.endswith(b'"')
    return _ESCAPE.sub(_unescape, name[1:-1]) if is_quoted else name


def _unescape(match: re.Match[bytes]) -> bytes:
    code = match[1]
    return bytes([int(code, 8) & 255]) if len(code) == 3 else _ESCAPED.get(code, code)


def read_paths(listing: bytes) -> list[str]:
    """The files of a repository: one a line, or with a NUL behind each (`git ls-files -z`).

    Raises `TooLarge`, because a part of them would match wrongly.
    """
    text = _utf8(listing)
    lines = text.split(b"\0") if b"\0" in text else [_unquoted(line.rstrip(b"\r")) for line in text.split(b"\n")]
    paths = [line.decode("utf-8", "replace") for line in lines if line]
    if len(paths) > MAX_PATHS or len(listing) > MAX_PATHS_BYTES:
        raise TooLarge(f"it has more than {MAX_PATHS} lines or {MAX_PATHS_BYTES} bytes")
    return paths


def with_paths(diff: Hunks, paths: Sequence[str]) -> Hunks:
    """The diff with those files of the repository that share a name with a changed file."""
    names = {file_name(path) for path in diff.files}
    return evolve(diff, paths=[path for path in paths if file_name(path) in names])


def file_name(path: str) -> str:
    return path.rpartition("/")[2]
