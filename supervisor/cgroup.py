"""Control groups, where one can be written: the one way to end everything that a child has started, whatever it did.

cgroup v2 with `cgroup.kill` (Linux 5.14). Elsewhere process groups and marks do the work (`supervisor/strays.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from pathlib import Path

from supervisor.child import Child

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
        self._joining: list[tuple[str, Child]] = []
        self._work: asyncio.Task[None] | None = None

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

    def _group(self, name: str) -> Path | None:
        return self._root and self._root / hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:24]

    def join(self, name: str, child: Child) -> None:
        """Has a child moved into its group soon, with all who ask meanwhile. In the worker: the kernel takes time."""
        if self._root is not None and not child.is_adopted:
            self._joining.append((name, child))
            if self._work is None:
                self._work = asyncio.get_running_loop().create_task(self._join(), name="cgroups")

    async def _join(self) -> None:
        while self._joining:
            some, self._joining = self._joining, []
            await asyncio.to_thread(self._move, some)
            for _, child in some:
                child.is_grouped = not child.exited.done()
        self._work = None

    def _move(self, some: list[tuple[str, Child]]) -> None:
        for name, child in some:
            group = self._group(name)
            with contextlib.suppress(OSError):  # it ended meanwhile, or the folder is not ours any more
                if group is not None and not child.exited.done():
                    group.mkdir(exist_ok=True)
                    (group / "cgroup.procs").write_text(str(child.pid))

    def populated(self, name: str) -> bool:
        """Whether anything that the process started still lives, as far as the group knows."""
        group = self._group(name)
        try:
            return group is not None and "populated 1" in (group / "cgroup.events").read_text()
        except OSError:
            return False

    def members(self, name: str) -> list[int]:
        group = self._group(name)
        try:
            return [int(pid) for pid in (group / "cgroup.procs").read_text().split()] if group else []
        except OSError:
            return []

    def kill(self, name: str) -> None:
        if group := self._group(name):
            with contextlib.suppress(OSError):
                (group / "cgroup.kill").write_text("1")

    def close(self) -> None:
        """Removes the groups that are empty."""
        if self._root is not None:
            for group in [*self._root.glob("*/"), self._root]:
                with contextlib.suppress(OSError):
                    group.rmdir()
