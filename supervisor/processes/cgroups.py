"""Control groups: where cgroup v2 with `cgroup.kill` (Linux 5.14) is writable, they end everything a child started.

Elsewhere process groups, tags and the process tree serve instead (`supervisor/processes/orphans.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from supervisor.processes.child import Child

log = logging.getLogger("cgroup")


def _own() -> Path | None:
    """The cgroup v2 folder of the server itself."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            inside = next(
                (g[3:] for g in Path("/proc/self/cgroup").read_text().splitlines() if g.startswith("0::")), "/"
            )
            return Path(before.split()[4]) / inside.strip().lstrip("/")
    return None


class Cgroups:
    """One group for each process, below the group of the server. Without cgroup v2 all methods do nothing."""

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._mover = ThreadPoolExecutor(1, "cgroup")

    @classmethod
    def open(cls, server_id: str) -> Cgroups:
        try:
            own = _own()
            if own is None:
                return cls(None)
            root = own / f"pilothouse-{server_id}"
            root.mkdir(exist_ok=True)
            if not (root / "cgroup.kill").exists():
                root.rmdir()
                return cls(None)
        except OSError as error:
            log.debug("no control groups: %s", error)
            return cls(None)
        return cls(root)

    def _group(self, name: str) -> str:
        return f"{self._root}/{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"

    def join(self, name: str, child: Child) -> None:
        """Moves a child into its group, in a thread of its own because the kernel takes time."""
        if self._root is not None and not child.is_adopted:
            self._mover.submit(self._move, self._group(name), child)

    def _move(self, group: str, child: Child) -> None:
        with contextlib.suppress(OSError):  # it ended meanwhile, or the folder is no longer writable
            if not child.exited.done():
                with contextlib.suppress(FileExistsError):
                    os.mkdir(group)  # noqa: PTH102 (a fifth of the time: each start)
                _write(group, "cgroup.procs", str(child.pid))
                child.is_grouped = True

    def populated(self, name: str) -> bool:
        """Whether its group has a live member."""
        return b"populated 1" in self._read(name, "cgroup.events")

    def members(self, name: str) -> list[int]:
        return [int(pid) for pid in self._read(name, "cgroup.procs").split()]

    def _read(self, name: str, file: str) -> bytes:
        """The content of a file of its group; empty where there is none."""
        if self._root is None:
            return b""
        try:
            with open(f"{self._group(name)}/{file}", "rb", buffering=0) as stream:  # noqa: PTH123 (each stop reads one)
                return stream.readall()
        except OSError:
            return b""

    def kill(self, name: str) -> None:
        if self._root is not None:
            with contextlib.suppress(OSError):
                _write(self._group(name), "cgroup.kill", "1")

    def close(self) -> None:
        """Removes the groups that are empty."""
        self._mover.shutdown()
        if self._root is not None:
            for group in [*self._root.glob("*/"), self._root]:
                with contextlib.suppress(OSError):
                    group.rmdir()


def _write(group: str, file: str, text: str) -> None:
    with open(f"{group}/{file}", "wb", buffering=0) as stream:  # noqa: PTH123 (as above)
        stream.write(text.encode())
