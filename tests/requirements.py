"""Parts of the machine that some tests need. A test without its part is skipped with a reason; with CI=true it fails.

`@pytest.mark.needs("curl", MOUNTING)` names them for a test; `require("curl")` does so in a fixture or a helper. The
reason says how to get the part: its Debian package, or what to do where Debian has none.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import pytest

from supervisor.children.orphans import Cgroups

HELM, MOUNTING, NAMESPACES, POSTGRESQL, ROOT_USER, LOW_PORTS, CONTROL_GROUPS, OIDC_PROVIDER = (
    "helm", "mount -t tmpfs", "unshare --mount", "PostgreSQL", "root's rights", "the right to listen on port 53",
    "control groups", "oidc-provider",
)  # fmt: skip
OIDC_PROVIDER_FOLDER = Path(__file__).parent.parent / ".tools" / "oidc_provider" / "node_modules" / "oidc-provider"
PACKAGES: Mapping[str, str] = {
    **{name: name for name in ("chromium", "curl", "docker-registry", "fish", "git", "openssl", "tmux", "zsh")},
    "e2fsck": "e2fsprogs", "gpg": "gnupg", "gpgconf": "gnupg", "losetup": "mount", "mkfs.ext4": "e2fsprogs",
    "groff": "groff-base", "nginx": "nginx-light", POSTGRESQL: "postgresql", "ps": "procps", "setpriv": "util-linux",
    "node": "nodejs", "npm": "npm", "sqlite3": "sqlite3", "systemd-analyze": "systemd", "systemd-notify": "systemd",
}  # fmt: skip
"""Part -> its Debian package. A part without one needs other words (`how` of `missing_part`)."""
_AS_ROOT = "not in Debian: run the tests as root, where a container may mount"
_OTHERWISE: Mapping[str, str] = {
    HELM: "not in Debian: `make test` fetches it",
    OIDC_PROVIDER: "not in Debian: `make test` installs it by npm",
    MOUNTING: _AS_ROOT, NAMESPACES: _AS_ROOT, ROOT_USER: _AS_ROOT, LOW_PORTS: _AS_ROOT,
    CONTROL_GROUPS: "not in Debian: a control group (version 2) that the server may write, as a unit with Delegate=yes",
}  # fmt: skip


def missing_part(part: str, how: str = "") -> NoReturn:
    """Skips the current test, with a reason that says how to get the part. With CI=true it fails: CI has everything
    but control groups, which a container may have or not.

    `how`: "Debian: apt install NAME", or "not in Debian: what to do", for a part without an entry in `PACKAGES`.
    """
    how = how or _OTHERWISE.get(part) or f"Debian: apt install {PACKAGES[part]}"
    reason = f"missing: {part} ({how})"
    if os.environ.get("CI") == "true" and part != CONTROL_GROUPS:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def require(*parts: str | Path) -> None:
    """Requires parts: each is one of the names above, a program on PATH, or a path that must exist."""
    for part in parts:
        if not is_available(part):
            missing_part(str(part), "not in Debian: it lies beside the checkout" if isinstance(part, Path) else "")


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


def can_listen_on_low_ports() -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("127.0.0.53", 53))
        except PermissionError:
            return False
        except OSError:
            return True  # in use there, and free elsewhere
    return True


def has_postgresql() -> bool:
    """Debian keeps the server's programs off the path."""
    return any(Path("/usr/lib/postgresql").glob("*/bin/initdb")) and shutil.which("setpriv") is not None


@functools.cache
def has_control_groups() -> bool:
    groups = Cgroups.open(f"probe-{os.getpid()}")  # another process of the tests may probe too
    groups.close()
    return groups.is_available


def has_helm() -> bool:
    tools = Path(__file__).parent.parent / ".tools"
    return (tools / "helm").exists() or shutil.which("helm") is not None


_CHECKS: Mapping[str, Callable[[], bool]] = {
    HELM: has_helm,
    OIDC_PROVIDER: OIDC_PROVIDER_FOLDER.is_dir,
    MOUNTING: can_mount,
    LOW_PORTS: can_listen_on_low_ports,
    NAMESPACES: has_mount_namespaces,
    POSTGRESQL: has_postgresql,
    CONTROL_GROUPS: has_control_groups,
    ROOT_USER: lambda: os.geteuid() == 0,
}
