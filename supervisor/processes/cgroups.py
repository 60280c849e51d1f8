"""Control groups, where one can be written: the one way to end everything that a child has started, whatever it did.

cgroup v2 with `cgroup.kill` (Linux 5.14). Elsewhere process groups and marks do the work
(`supervisor/processes/orphans.py`).
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
    """The cgroup v2 folder that we are in ourselves."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            inside = next(
                (g[3:] for g in Path("/proc/self/cgroup").read_text().splitlines() if g.startswith("0::")), "/"
            )
            return Path(before.split()[4]) / inside.strip().lstrip("/")
    return None


class Cgroups:
    """One group for each process, below one of ours below the one we are in. All of it does nothing where it cannot."""

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._mover = ThreadPoolExecutor(1, "cgroup")

    @classmethod
    def open(cls, instance: str) -> Cgroups:
        try:
            own = _own()
            if own is None:
                return cls(None)
            root = own / f"pilothouse-{instance}"
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
        """Has a child moved into its group soon. In a thread of its own: the kernel takes time, and nobody waits."""
        if self._root is not None and not child.is_adopted:
            self._mover.submit(self._move, self._group(name), child)

    def _move(self, group: str, child: Child) -> None:
        with contextlib.suppress(OSError):  # it ended meanwhile, or the folder is not ours any more
            if not child.exited.done():
                with contextlib.suppress(FileExistsError):
                    os.mkdir(group)  # noqa: PTH102 (a fifth of the time: each start)
                _write(group, "cgroup.procs", str(child.pid))
                child.is_grouped = True

    def populated(self, name: str) -> bool:
        """Whether anything that the process started still lives, as far as the group knows."""
        return b"populated 1" in self._told(name, "cgroup.events")

    def members(self, name: str) -> list[int]:
        return [int(pid) for pid in self._told(name, "cgroup.procs").split()]

    def _told(self, name: str, file: str) -> bytes:
        """What a file of its group says; nothing where there is none."""
        if self._root is None:
            return b""
        try:
            with open(f"{self._group(name)}/{file}", "rb", buffering=0) as told:  # noqa: PTH123 (each stop reads one)
                return told.readall()
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


def _write(group: str, file: str, word: str) -> None:
    with open(f"{group}/{file}", "wb", buffering=0) as there:  # noqa: PTH123 (as above)
        there.write(word.encode())
