"""The package for Debian 12 and later: the executable, its unit, configuration, man pages and completions."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from pathlib import Path

from models import VERSION
from packing import manpages
from packing.archives import Entry, ar, folders, packed, tar
from supervisor.cli.ctl.completion import script

ROOT = Path(__file__).resolve().parent.parent
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
CONFIGURATION = "etc/pilothouse/pilothouse.yaml"
UNIT = "usr/lib/systemd/system/pilothouse.service"
EXAMPLES = ("pilothouse.yaml", "pilothouse.socket")
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/pilothouse",
    "zsh": "usr/share/zsh/vendor-completions/_pilothouse",
    "fish": "usr/share/fish/vendor_completions.d/pilothouse.fish",
}

POSTINST = """#!/bin/sh
set -e
[ "$1" = configure ] || exit 0
if ! getent passwd pilothouse >/dev/null; then
    useradd --system --user-group --no-create-home --home-dir /var/lib/pilothouse --shell /usr/sbin/nologin pilothouse
fi
install -d -m 0700 -o pilothouse -g pilothouse /var/lib/pilothouse
command -v systemctl >/dev/null || exit 0
[ -n "$2" ] || systemctl enable --quiet pilothouse.service
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
if [ -z "$2" ]; then
    systemctl start pilothouse.service || true
elif systemctl --quiet is-active pilothouse.service; then
    # Not a stop, which would stop the processes too: systemd starts the new version, and that adopts them.
    systemctl kill --kill-whom=main --signal=KILL pilothouse.service
fi
"""
PRERM = """#!/bin/sh
set -e
[ "$1" = remove ] || exit 0
command -v systemctl >/dev/null || exit 0
if [ -d /run/systemd/system ]; then
    systemctl stop pilothouse.service || true
fi
systemctl disable --quiet pilothouse.service || true
"""
POSTRM = """#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
fi
[ "$1" = purge ] || exit 0
rm -rf /var/lib/pilothouse /var/cache/pilothouse /etc/pilothouse
if getent passwd pilothouse >/dev/null; then
    userdel pilothouse
fi
if getent group pilothouse >/dev/null; then
    groupdel pilothouse
fi
"""


def unit() -> str:
    """The unit of the examples, without the instructions to install it by hand."""
    text = (ROOT / "examples" / "pilothouse.service").read_text()
    head, _, rest = text.partition("[Unit]")
    kept = head[head.index("# The restrictions below") :]
    return f"{kept}[Unit]{rest}".replace("/usr/local/bin/pilothouse", "/usr/bin/pilothouse")


def configuration() -> str:
    """The starting configuration; the unit gives the data directory."""
    text = (ROOT / "examples" / "init.yaml").read_text()
    changed = re.sub(
        r"^  data-dir: data .*\n", "  # data-dir is /var/lib/pilothouse, given by the unit\n", text, flags=re.M
    )
    return changed.replace("docs/configuration.md lists all of them", "man pilothouse.yaml describes all of them")


def files(program: bytes) -> list[Entry]:
    """The files of the package, without their folders."""
    document = "usr/share/doc/pilothouse"
    return [
        Entry("usr/bin/pilothouse", program, 0o755),
        Entry(UNIT, unit().encode()),
        Entry(CONFIGURATION, configuration().encode()),
        Entry(f"{document}/copyright", (ROOT / "LICENSE").read_bytes()),
        Entry(f"{document}/changelog.gz", packed((ROOT / "CHANGELOG.md").read_bytes())),
        *(Entry(f"{document}/examples/{name}", (ROOT / "examples" / name).read_bytes()) for name in EXAMPLES),
        *(
            Entry(f"usr/share/man/man{name[-1]}/{name}.gz", packed(page.encode()))
            for name, page in manpages.pages().items()
        ),
        *(Entry(path, script(shell).encode()) for shell, path in COMPLETIONS.items()),
    ]


def control(size: int, architecture: str) -> str:
    """The control file; `size` is that of the installed files in bytes."""
    glibc = (os.confstr("CS_GNU_LIBC_VERSION") or "glibc 2.36").split()[1]
    return f"""Package: pilothouse
Version: {VERSION}
Architecture: {architecture}
Maintainer: Pilothouse <pilothouse@localhost>
Installed-Size: {size // 1024 + 1}
Depends: libc6 (>= {glibc}), passwd, procps
Recommends: systemd, ca-certificates
Section: admin
Priority: optional
Description: supervises processes, fronts helm, tracks test reports
 One server for a small host: it starts, watches and restarts processes, manages
 Helm releases over REST, pages and tools for agents, and stores test and
 coverage reports with a quality gate.
"""


def build(program: Path, out: Path, machine: str = platform.machine()) -> Path:
    """Writes the package of an executable; returns its path."""
    architecture = ARCHITECTURES.get(machine, machine)
    entries = files(program.read_bytes())
    sums = [f"{hashlib.md5(one.content or b'', usedforsecurity=False).hexdigest()}  {one.path}\n" for one in entries]
    scripts = {"postinst": POSTINST, "prerm": PRERM, "postrm": POSTRM}
    about = [
        Entry("control", control(sum(len(one.content or b"") for one in entries), architecture).encode()),
        Entry("conffiles", f"/{CONFIGURATION}\n".encode()),
        Entry("md5sums", "".join(sorted(sums)).encode()),
        *(Entry(name, text.encode(), 0o755) for name, text in scripts.items()),
    ]
    package = out / f"pilothouse_{VERSION}_{architecture}.deb"
    package.write_bytes(
        ar(
            {
                "debian-binary": b"2.0\n",
                "control.tar.gz": packed(tar(about, "./")),
                "data.tar.gz": packed(tar(folders(entries), "./"), 1),
            }
        )
    )
    return package
