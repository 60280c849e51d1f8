"""Writes a chart's folder as an archive."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path
from typing import Any


def pack(folder: Path, file: Path) -> None:
    """Archives the folder as a chart, without names or times of this machine."""

    def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime, entry.mode = 0, 0o644
        return entry if entry.isfile() else None

    def names(path: Path) -> Any:
        return path != folder / "Chart.yaml", str(path)  # helm and other readers expect it first

    with gzip.GzipFile(file, "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted(folder.rglob("*"), key=names):
            archive.add(path, f"{folder.name}/{path.relative_to(folder)}", recursive=False, filter=anonymous)


def bundle(files: list[Path], file: Path) -> None:
    """Writes files as a tar archive that is not compressed."""
    with tarfile.open(file, "w") as archive:
        for path in files:
            entry = tarfile.TarInfo(path.name)
            entry.size = path.stat().st_size
            with path.open("rb") as content:
                archive.addfile(entry, content)
