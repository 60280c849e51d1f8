"""Finds the paths that end with given segments: `b/c.py` is the end of `a/b/c.py`, and not of `ab/c.py`.

Paths are kept sorted by their reversed segments, so that those with one end lie side by side: a question costs two
binary searches, however many paths there are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

MAX_PATH_CHARACTERS = 4096
"""What Linux allows. Of a longer path only the end counts."""


class PathSuffixes:
    """An index of paths by their last segments."""

    def __init__(self, paths: Iterable[tuple[str, str]]) -> None:
        """`paths`: pairs of the path by which one is found, and what is found."""
        pairs = sorted((_reversed(path), found) for path, found in paths)
        self._keys = [key for key, _ in pairs]
        self._found = [found for _, found in pairs]

    @classmethod
    def of(cls, paths: Iterable[str]) -> PathSuffixes:
        """An index of the paths of files, which are found by themselves."""
        return cls((path, path) for path in paths if not path.endswith("/"))

    def ending_with(self, end: str, most: int = 2) -> Sequence[str]:
        """What is found by paths that are `end` or end with `/` and `end`; at most `most` of them."""
        key = _reversed(end)
        low = bisect_left(self._keys, key)
        high = bisect_left(self._keys, f"{key[:-1]}0", low)  # the character after the slash
        return self._found[low : min(high, low + most)]

    def ends(self, path: str) -> Iterator[str]:
        """The ends of `path` that some path of the index has, the longest first."""
        path = path[-MAX_PATH_CHARACTERS:]
        key = _reversed(path)
        place = bisect_left(self._keys, key)
        shared = max((_shared(key, other) for other in self._keys[max(0, place - 1) : place + 1]), default=0)
        segments = key[:shared].count("/")
        end = path.rsplit("/", segments)
        for first in range(1 if len(end) > segments else 0, len(end)):
            if part := "/".join(end[first:]):
                yield part


def _reversed(path: str) -> str:
    """The segments of a path from the last to the first, each with a slash behind it."""
    return "/".join(reversed(path[-MAX_PATH_CHARACTERS:].split("/"))) + "/"


def _shared(key: str, other: str) -> int:
    """The length of what two keys begin with."""
    low, high = 0, min(len(key), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if key.startswith(other[:middle]):
            low = middle
        else:
            high = middle - 1
    return low
