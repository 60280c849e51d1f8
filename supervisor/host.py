"""Memory, processors and system of this machine."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

import psutil
from attrs import frozen

_UNITS = ("bytes", "KB", "MB", "GB", "TB", "PB", "EB")
_NO_LIMIT = 2**60


@frozen
class Host:
    """Memory in bytes, or the limit of the server's control group where that is lower. `cpus` are physical cores."""

    memory: int
    available: int
    cpus: int
    system: str


def read() -> Host:
    memory = psutil.virtual_memory()
    limit, used = _limit(), _used()
    if limit < memory.total:
        return Host(limit, max(0, min(memory.available, limit - used)), _cpus(), _system())
    return Host(memory.total, memory.available, _cpus(), _system())


@functools.cache
def _cpus() -> int:
    return psutil.cpu_count(logical=False) or psutil.cpu_count() or 1


@functools.cache
def _system() -> str:
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        name = "Linux"
    kernel = platform.uname()
    return f"{name}, {kernel.system} {kernel.release} {kernel.machine}"


@functools.cache
def _groups() -> list[Path]:
    """The memory control groups that this process is in, v2 or v1, the innermost first."""
    groups: list[Path] = []
    for line in _lines(Path("/proc/self/cgroup")):
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            root = Path("/sys/fs/cgroup") / controllers
            own = root / path.strip().lstrip("/")
            groups += [own, *(parent for parent in own.parents if parent.is_relative_to(root))]
    return [*groups, Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")]


def _limit() -> int:
    """The lowest memory limit of these groups, in bytes."""
    names = ("memory.max", "memory.limit_in_bytes")
    return min(
        (number for group in _groups() for name in names if (number := _number(group / name))), default=_NO_LIMIT
    )


def _used() -> int:
    names = ("memory.current", "memory.usage_in_bytes")
    return next((number for group in _groups() for name in names if (number := _number(group / name))), 0)


def _number(path: Path) -> int | None:
    text = next(iter(_lines(path)), "")
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def size(count: int) -> str:
    """`15.6 GB`: base 1024, one decimal unless whole (supervision.md, Wire)."""
    number, unit = float(count), 0
    while round(number, 1) >= 1024 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:.1f}".removesuffix(".0") + f" {_UNITS[unit]}"
