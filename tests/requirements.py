"""Parts of the machine that some tests need. A test without its part is skipped with a reason; with CI=true it fails.

`@pytest.mark.needs("curl", MOUNTING)` names them for a test; `need("curl")` does so in a fixture or a helper.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import pytest

HELM, MOUNTING, NAMESPACES, POSTGRESQL, ROOT_USER = (
    "helm", "mount -t tmpfs", "unshare --mount", "PostgreSQL", "root's rights",
)  # fmt: skip


def missing_part(part: str) -> NoReturn:
    """Skips the current test. With CI=true fails it: CI installs everything."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"missing: {part}", pytrace=False)
    pytest.skip(f"missing: {part}")


def require(*parts: str | Path) -> None:
    """Requires parts: each is one of the names above, a program on PATH, or a path that must exist."""
    for part in parts:
        if not is_available(part):
            missing_part(str(part))


def is_available(part: str | Path) -> bool:
    if isinstance(part, Path):
        return part.exists()
    return _CHECKS[part]() if part in _CHECKS else shutil.which(part) is not None


def _succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


@functools.cache
def can_mount() -> bool:
    """Whether a file system can be mounted here."""
    probe = Path("/tmp") / f"mount-{os.getpid()}"
    probe.mkdir()
    try:
        mounted = _succeeds("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(probe))
        return mounted and _succeeds("umount", str(probe))
    finally:
        probe.rmdir()


@functools.cache
def has_mount_namespaces() -> bool:
    """Whether a mount namespace can be made. It needs root's rights, and a root directory that is a mount point."""
    return _succeeds("unshare", "--mount", "sh", "-c", "mount -t tmpfs tmpfs /mnt")


def has_postgresql() -> bool:
    """Debian keeps the server's programs off the path."""
    return any(Path("/usr/lib/postgresql").glob("*/bin/initdb")) and shutil.which("setpriv") is not None


def has_helm() -> bool:
    tools = Path(__file__).parent.parent / ".tools"
    return (tools / "helm").exists() or shutil.which("helm") is not None


_CHECKS: Mapping[str, Callable[[], bool]] = {
    HELM: has_helm,
    MOUNTING: can_mount,
    NAMESPACES: has_mount_namespaces,
    POSTGRESQL: has_postgresql,
    ROOT_USER: lambda: os.geteuid() == 0,
}
