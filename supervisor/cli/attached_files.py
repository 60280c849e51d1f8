"""The files that the reports of a CI job name: screenshots, traces, logs.

A report may name any file of the machine, so only regular files inside the work tree are sent, symbolic links resolved,
and never one of `.git`. Only the standard library is used: this is a part of the stand-alone uploader.
"""

from __future__ import annotations

import atexit
import gzip
import html
import io
import json
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from supervisor.cli.changed_lines import work_tree

_REFERENCES = (
    re.compile(r"\[\[ATTACHMENT\|([^\]\r\n]{1,1024})\]\]"),
    re.compile(r"<property\b(?=[^>]*\bname=[\"']attachment[\"'])[^>]*\bvalue=[\"']([^\"'<>]{1,1024})[\"']"),
    re.compile(r"<property\b(?=[^>]*\bname=[\"']attachment[\"'])[^>/]*>\s*([^<>]{1,1024}?)\s*</property>"),
    re.compile(r"<(?:\w+:)?filePath>\s*(?:<!\[CDATA\[)?\s*([^<>\]]{1,1024}?)\s*(?:\]\]>)?\s*</"),
    re.compile(r"<(?:\w+:)?ResultFile\b[^>]*\bpath=[\"']([^\"'<>]{1,1024})[\"']"),
)
_MAX_REPORT_BYTES = 256 * 1024 * 1024
_MAX_SENT_BYTES = 64 * 1024 * 1024
_MAX_FILES = 5000
_MAX_SOURCE_BYTES = 1024 * 1024
_MAX_ARCHIVE_BYTES = 20 * 1024 * 1024


def attached_files(reports: Sequence[Path]) -> dict[str, Path]:
    """The files by the paths that these reports name. What is not sent is a warning on standard error."""
    root, found, size = work_tree(), dict[str, Path](), 0
    for report in reports:
        for name in dict.fromkeys(_names(report)):
            if name in found or len(found) >= _MAX_FILES:
                continue
            file = _file(root, report, name)
            if isinstance(file, str):
                _warn(f"{name} is not sent: {file}")
                continue
            size += file.stat().st_size
            if size > _MAX_SENT_BYTES:
                _warn(f"more than {_MAX_SENT_BYTES} bytes of attachments: the rest is not sent")
                return found
            found[name] = file
    return found


def source_archive(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    """A tar.gz of those text files that lie in the work tree, as a part of the upload; it goes with the process.

    Nothing is sent where it is too large.
    """
    root, added = work_tree(), set[str]()
    folder = tempfile.mkdtemp(prefix="pilothouse-upload-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    archive = Path(folder) / "source.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=6) as tar:
        for path in paths:
            file = path.resolve()
            name = file.relative_to(root).as_posix() if file.is_relative_to(root) else ""
            if not name or ".git" in name.split("/") or name in added:
                continue
            content = file.read_bytes() if file.stat().st_size <= _MAX_SOURCE_BYTES else b"\0"
            if b"\0" not in content:
                added.add(name)
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    size = archive.stat().st_size
    if size > _MAX_ARCHIVE_BYTES:
        print(f"pilothouse upload: warning: no source is sent: {size} bytes are too many", file=sys.stderr)
        return []
    return [("source", archive)]


def _warn(text: str) -> None:
    print(f"pilothouse upload: warning: attachment {text}", file=sys.stderr)


def _names(report: Path) -> Iterator[str]:
    with report.open("rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(report) if is_packed else report.open("rb") as source:
            text = source.read(_MAX_REPORT_BYTES).decode("utf-8", "replace")
    except (OSError, EOFError):
        return  # the server reports what is wrong with it
    if text.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
        yield from _names_of_json(text)
    for pattern in _REFERENCES:
        for name in pattern.findall(text):
            yield html.unescape(name).strip()


def _names_of_json(text: str) -> Iterator[str]:
    """The attachments of CTRF and Playwright (`path`), and of Allure (`source`)."""
    try:
        values: list[Any] = [json.loads(text)]
    except (ValueError, RecursionError):
        return
    while values:
        value = values.pop()
        if isinstance(value, dict):
            attached = value.get("attachments")
            for file in attached if isinstance(attached, list) else ():
                name = file.get("path", file.get("source")) if isinstance(file, dict) else None
                if isinstance(name, str):
                    yield name
            values += value.values()
        elif isinstance(value, list):
            values += value


def _file(root: Path, report: Path, name: str) -> Path | str:
    """The file of a name: below the working directory, the report's folder or one around it. Else why there is none."""
    wanted, problem = name.replace("\\", "/"), "there is no such file"
    places = [Path.cwd(), *(folder for folder in report.resolve().parents if folder.is_relative_to(root))]
    try:
        candidates = [place / wanted for place in places]
        if not Path(wanted).is_absolute():
            candidates += sorted(report.parent.glob(f"*/In/*/{wanted}"))  # where `dotnet test` puts them
        for candidate in candidates:
            file = candidate.resolve()
            if not file.is_file():
                continue
            if file.is_relative_to(root) and ".git" not in file.relative_to(root).parts:
                return file
            problem = "it is not in the work tree"
    except (OSError, ValueError, NotImplementedError, RuntimeError):
        pass  # no name of a file
    return problem
