"""Which of the uploaded files the paths in reports mean."""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from models.tracker.files.path_suffixes import PathSuffixes

_MAX_NAMED = 5
_ESCAPED = re.compile(r"%(22|0A|0D)", re.IGNORECASE)
"""Characters that clients escape in the file name of a part."""
_OTHER_PLACES = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:")


def normalised(path: str) -> str:
    """A path for comparisons: slashes, no `.`, and `..` resolved where that is possible."""
    return posixpath.normpath(path.strip().replace("\\", "/")).lstrip("/") if path.strip() else ""


def owners(paths: Collection[str], names: Iterable[str]) -> dict[str, str]:
    """By the name of an uploaded file: the path of a report that it is. A shorter or longer path counts if unique.

    `paths` are normalised.
    """
    longer = PathSuffixes.of(paths)
    shorter: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        shorter[path.removeprefix("../")].append(path)
    found = {}
    for given in names:
        name = normalised(given)
        if name not in paths:
            name = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), name)
        if name in paths:
            found[given] = name
            continue
        similar = set(longer.ending_with(name)).union(*(shorter[end][:2] for end in _ends(name) if end in shorter))
        if len(similar) == 1:
            found[given] = similar.pop()
    return found


def _ends(name: str) -> Iterable[str]:
    """The name, and what is left of it without its first folders."""
    while name:
        yield name
        name = name.partition("/")[2]


def missing(paths: Mapping[str, str], present: Iterable[str]) -> list[str]:
    """A warning for the files that reports refer to and that were not uploaded.

    `paths` has the path as the report has it by the normalised one.
    """
    there = set(present)
    absent = [given for path, given in paths.items() if path not in there and not _OTHER_PLACES.match(path)]
    if not absent:
        return []
    more = f" and {len(absent) - _MAX_NAMED} more" if len(absent) > _MAX_NAMED else ""
    return [f"attachments that the reports name were not uploaded: {', '.join(absent[:_MAX_NAMED])}{more}"]
