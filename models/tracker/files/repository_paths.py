"""Finds the source files of tests among the files of a repository."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from models.tracker.files.path_suffixes import MAX_PATH_CHARACTERS, PathSuffixes

_MAX_KNOWN = 10_000
_MAX_NESTED_CLASSES = 64


class PathIndex:
    """Finds the source files of test classes among the files of a repository."""

    def __init__(self, paths: Iterable[str], module: str | None = None) -> None:
        """Chooses the file in the folder `module` if several files fit."""
        self._paths = frozenset(paths)
        self._suffixes = PathSuffixes.of(self._paths)
        self._classes = PathSuffixes(pair for path in self._paths for pair in _class_paths(path))
        self._in_module = (
            PathSuffixes.of(path for path in self._paths if path.startswith(f"{module}/")) if module else None
        )
        self._known: dict[tuple[str | None, str], str | None] = {}

    def file_of(self, file: str | None, class_name: str) -> str | None:
        """The source file of a test, by the file that its report names, else by its class."""
        key = (file, "" if file else class_name)
        if key not in self._known:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[key] = (self.file(file) or file) if file else self.of_class(class_name)
        return self._known[key]

    def file(self, name: str) -> str | None:
        """The file of the repository that a path in a report means; None where that is not known, or ambiguous."""
        for end in self._suffixes.ends(name.replace("\\", "/").lstrip("/")):
            if end in self._paths:
                return end
            fitting = self._suffixes.ending_with(end)
            if len(fitting) > 1 and self._in_module:
                fitting = self._in_module.ending_with(end)
            if fitting:
                return _only(fitting)
        return None

    def of_class(self, class_name: str) -> str | None:
        """The file of a class: `com.example.ShopTest`, `tests.test_shop.TestCart` or a path."""
        if "/" in class_name or class_name in self._paths:
            return self.file(class_name)
        if len(class_name) > MAX_PATH_CHARACTERS:
            return None
        parts = class_name.replace("::", ".").partition("$")[0].split(".")
        for _ in range(_MAX_NESTED_CLASSES):
            if not parts or not parts[-1]:
                break
            fitting = self._classes.ending_with("/".join(parts))
            if fitting:
                return _only(fitting)
            if not parts.pop()[0].isupper():  # the file of a Python class is the module
                break
        return None


def _class_paths(path: str) -> Iterable[tuple[str, str]]:
    """By which paths of classes a file is found: with its name up to the first dot, up to the last, and whole."""
    folder, _, name = path.rpartition("/")
    stems = {name.partition(".")[0], name.rpartition(".")[0], name}
    return [(f"{folder}/{stem}", path) for stem in stems if stem]


def _only(fitting: Sequence[str]) -> str | None:
    return fitting[0] if len(fitting) == 1 else None
