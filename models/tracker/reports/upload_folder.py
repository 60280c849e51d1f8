"""The folder of an upload between the server and the worker process that reads it.

It has the files of the request, `files`, which lists them, and `rows`, the staging database that is made of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from attrs import frozen

LISTING, ROWS = "files", "rows"

FileKind = Literal["junit", "jacoco", "attachment", "source", "perf", "diff", "paths"]
"""The names of the parts that are read as files."""


@frozen
class Received:
    """A file of an upload: the name of its part, its display name, and its name in the folder of the request."""

    kind: FileKind
    name: str
    file: str
    size: int = 0


@frozen
class ReadOptions:
    """How an upload is read. Sizes in bytes; `attachments` None: they are not stored."""

    inflated: int
    inflated_request: int
    depth: int
    output: int
    source: int
    attachments: int | None
    reruns: Literal["worst", "last"] = "worst"
    module: str | None = None


@frozen
class ReadUpload:
    """What was left out of an upload: warnings about its reports, about its list of files, about missing files."""

    warnings: Sequence[str]
    ignored: Sequence[str]
    missing: Sequence[str]


def list_files(folder: Path, files: Sequence[Received]) -> None:
    """Writes the list of the files of a request into its folder. Raises `OSError`."""
    with (folder / LISTING).open("w", encoding="utf-8", errors="replace") as listing:
        for file in files:
            listing.write(json.dumps([file.kind, file.name, file.file, file.size]) + "\n")


def listed(folder: Path) -> Iterator[Received]:
    """The files of a request, in order."""
    with (folder / LISTING).open(encoding="utf-8") as listing:
        for line in listing:
            yield Received(*json.loads(line))


def from_answer(value: Any) -> ReadUpload:
    """The result of `read_upload` from the answer of a worker process. Raises `ValueError`."""
    if not isinstance(value, dict) or set(value) != {"warnings", "ignored", "missing"}:
        raise ValueError("not the fields of an upload")
    if not all(isinstance(texts, list) and all(isinstance(text, str) for text in texts) for texts in value.values()):
        raise ValueError("not lists of texts")
    return ReadUpload(**value)


def reason(error: Exception) -> str:
    """Why something could not be stored."""
    return str(error.strerror) if isinstance(error, OSError) else str(error)
