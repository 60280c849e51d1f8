"""Captured logs: the files in the data directory that processes without log files of their own append to."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any
from urllib.parse import quote

from attrs import evolve

from models.supervision.process import LogMode, ProcessSpec

KEPT_SECONDS = 7 * 86400
"""How long the files of a process are kept after it was removed from the configuration."""

_MAX_NAME_BYTES = 200


def folder_of(data_dir: Path) -> Path:
    return data_dir / "logs"


def with_log(spec: ProcessSpec, default: LogMode, data_dir: Path) -> ProcessSpec:
    """The spec with its mode, that of all processes where it has none, and the files that it captures to."""
    mode = spec.log or default
    if mode is not LogMode.CAPTURE:
        return spec if mode is LogMode.INHERIT else evolve(spec, log=mode)
    stem = f"{folder_of(data_dir)}/{_escaped(spec.name)}"
    files: dict[str, Any] = {}
    if spec.stdout_logfile is None:
        files["stdout_logfile"] = f"{stem}.out"
    if spec.stderr_logfile is None and not spec.redirect_stderr:
        files["stderr_logfile"] = f"{stem}.err"
    return evolve(spec, log=mode, captured_files=tuple(files.values()), **files)


def _escaped(name: str) -> str:
    """A name as that of a file: percent-encoded, and shortened with a hash where it is too long."""
    escaped = quote(name, safe=" ")
    if len(escaped) <= _MAX_NAME_BYTES:
        return escaped
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{escaped[: _MAX_NAME_BYTES - len(digest) - 1]}-{digest}"


def keep_for_now(data_dir: Path, name: str) -> None:
    """A process is no longer configured, or no longer captured: `remove_old` keeps its files for some time from now."""
    stem = _escaped(name)
    for path in folder_of(data_dir).glob("*"):
        if path.name.startswith((f"{stem}.out", f"{stem}.err")):
            with contextlib.suppress(OSError):  # it is another user's
                os.utime(path, follow_symlinks=False)


def remove_old(data_dir: Path, kept: Collection[str], now: float) -> list[Path]:
    """Deletes the files of processes that are no longer configured, a while after the last change; returns them.

    `kept` are the captured files of the configured processes, `now` is in seconds since 1970. Raises `OSError`.
    """
    removed: list[Path] = []
    kept_names = {Path(path).name for path in kept}
    for file in folder_of(data_dir).glob("*"):
        stem = file.name if file.suffix in (".out", ".err") else file.stem  # a backup has a number behind it
        is_log = Path(stem).suffix in (".out", ".err") and file.is_file() and not file.is_symlink()
        if is_log and stem not in kept_names and file.stat().st_mtime < now - KEPT_SECONDS:
            file.unlink(missing_ok=True)
            removed.append(file)
    return removed
