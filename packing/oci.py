"""The container image (OCI layout in a tar archive), made without a daemon: the program, the C library, a user."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from models import VERSION
from packing.archives import Entry, folders, packed, tar, timestamp
from packing.debian import ARCHITECTURES

USER = 10001
PROGRAM = "usr/lib/pilothouse/pilothouse"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
C_LIBRARY = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1", "libresolv.so.2")


def libraries(program: Path) -> list[Entry]:
    """The loader and the C library that the program needs, by the paths that this machine has for them."""
    printed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    needed = [Path(path) for path in re.findall(r"(/\S+) \(0x", printed)]
    c_library = next(path for path in needed if path.name == "libc.so.6")
    whole = {*needed, *(c_library.with_name(name) for name in C_LIBRARY)}
    return [Entry(str(path).lstrip("/"), path.read_bytes(), 0o755) for path in sorted(whole) if path.exists()]


def root(folder: Path) -> list[Entry]:
    """The files of the image: `folder` has the program with its Python."""
    entries = [
        Entry("etc/passwd", f"root:x:0:0:root:/:\npilothouse:x:{USER}:{USER}::/data:\n".encode()),
        Entry("etc/group", f"root:x:0:\npilothouse:x:{USER}:\n".encode()),
        Entry("data", mode=0o700, owner=USER),
        Entry("tmp", mode=0o1777),
        *(Entry(name, mode=0o755) for name in ("dev", "proc", "sys")),
        Entry("usr/bin/pilothouse", link="../lib/pilothouse/pilothouse"),
        *libraries(folder / "pilothouse"),
    ]
    if CERTIFICATES.exists():
        entries.append(Entry(str(CERTIFICATES).lstrip("/"), CERTIFICATES.read_bytes()))
    for path in sorted(folder.rglob("*")):
        at = f"usr/lib/pilothouse/{path.relative_to(folder)}"
        if path.is_symlink():
            entries.append(Entry(at, link=str(path.readlink())))
        elif path.is_file():
            entries.append(Entry(at, path.read_bytes(), 0o755 if os.access(path, os.X_OK) else 0o644))
    return folders(entries)


def configuration(layer: bytes, machine: str) -> dict[str, Any]:
    """The image configuration. Docker's engine reads `Healthcheck`, which the OCI specification does not know."""
    created = datetime.fromtimestamp(timestamp(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "created": created,
        "architecture": ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "Env": ["PATH=/usr/bin:/bin", "SERVER_ADDRESS=0.0.0.0", "SERVER_DATA_DIR=/data"],
            "Entrypoint": ["/usr/bin/pilothouse"],
            "Cmd": ["serve"],
            "WorkingDir": "/data",
            "Volumes": {"/data": {}},
            "ExposedPorts": {"8080/tcp": {}},
            "StopSignal": "SIGTERM",
            "Healthcheck": {"Test": ["CMD", "/usr/bin/pilothouse", "ctl", "--data-dir", "/data", "status"]},
            "Labels": {"org.opencontainers.image.title": "pilothouse", "org.opencontainers.image.version": VERSION},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        "history": [{"created": created, "created_by": "packing/oci.py"}],
    }


def build(folder: Path, out: Path, machine: str = platform.machine()) -> Path:
    """Writes the image of the program in `folder`; returns its path."""
    layer = tar(root(folder))
    blobs: dict[str, bytes] = {}

    def blob(media_type: str, content: bytes, **more: Any) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        media = f"application/vnd.oci.image.{media_type}"
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(content), **more}

    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob("config.v1+json", _json(configuration(layer, machine))),
        "layers": [blob("layer.v1.tar+gzip", packed(layer, 6))],
    }
    names = {"org.opencontainers.image.ref.name": VERSION, "io.containerd.image.name": f"pilothouse:{VERSION}"}
    index = {"schemaVersion": 2, "manifests": [blob("manifest.v1+json", _json(manifest), annotations=names)]}
    entries = [
        Entry("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'),
        Entry("index.json", _json(index)),
        *(Entry(f"blobs/sha256/{digest}", content) for digest, content in blobs.items()),
    ]
    image = out / f"pilothouse-{VERSION}-oci.tar"
    image.write_bytes(tar(folders(entries)))
    return image


def _json(tree: Any) -> bytes:
    return json.dumps(tree, separators=(",", ":")).encode()
