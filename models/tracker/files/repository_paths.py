"""Finds the source files of tests among the files of a repository."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

_MAX_KNOWN = 10_000


class PathIndex:
    """Finds the source files of test classes among the files of a repository."""

    def __init__(self, paths: Iterable[str], module: str | None = None) -> None:
        """Chooses the file in the folder `module` if several files fit."""
        self._module = module
        self._paths = frozenset(paths)
        self._known: dict[tuple[str | None, str], str | None] = {}
        self._by_stem: Mapping[str, list[str]] = defaultdict(list)
        for path in self._paths:
            name = path.rpartition("/")[2]
            for stem in {name.partition(".")[0], name.rpartition(".")[0], name}:
                if stem:
                    self._by_stem[stem].append(path)

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
        name = name.replace("\\", "/").lstrip("/")
        while name:
            if name in self._paths:
                return name
            fitting = [path for path in self._by_stem.get(name.rpartition("/")[2], ()) if path.endswith(f"/{name}")]
            if len(fitting) > 1 and self._module:
                fitting = [path for path in fitting if path.startswith(f"{self._module}/")]
            if fitting:
                return fitting[0] if len(fitting) == 1 else None
            name = name.partition("/")[2]
        return None

    def of_class(self, class_name: str) -> str | None:
        """The file of a class: `com.example.ShopTest`, `tests.test_shop.TestCart` or a path."""
        if "/" in class_name or class_name in self._paths:
            return self.file(class_name)
        parts = class_name.replace("::", ".").partition("$")[0].split(".")
        while parts and parts[-1]:
            tail = "/".join(parts)
            fitting = [
                path
                for path in self._by_stem.get(parts[-1], ())
                if f"/{path.rpartition('/')[0]}/{parts[-1]}".endswith(f"/{tail}")
            ]
            if fitting:
                return fitting[0] if len(fitting) == 1 else None
            if not parts.pop()[0].isupper():  # the file of a Python class is the module
                break
        return None
