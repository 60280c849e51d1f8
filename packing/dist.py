"""Makes what is given to others, in `dist/`: sdist, wheel, and one executable that brings its own Python.

`make dist` calls it. It works on a copy of the sources: what lies in a folder where somebody works gets into nothing.
The executable holds what the wheel holds. It runs where the C library is as new as here, or newer.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from models import VERSION  # noqa: E402 (found by the line above)

TAKEN = (
    "setup.cfg", "setup.py", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE", "run.py",
    "models", "supervisor", "handlers", "static", "docs", "examples",
)  # fmt: skip
_MTIME = 0


def run(*command: str | Path, folder: Path = ROOT, **environ: str) -> None:
    subprocess.run([str(word) for word in command], cwd=folder, env={**os.environ, **environ}, check=True)


def packages(work: Path, out: Path) -> Path:
    """The sdist, and the wheel that is made of it; returns the wheel."""
    source = work / "source"
    source.mkdir()
    for name in TAKEN:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        else:
            shutil.copy2(ROOT / name, source)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source, folder=work)
    return out / f"pilothouse-{VERSION}-py3-none-any.whl"


def gathered(work: Path, wheel: Path) -> Path:
    """The folder with the program, its Python and its libraries."""
    site = work / "site"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    run(*pip, "--no-deps", "--no-compile", "--target", site, wheel)
    made = work / "made"
    options = ("--noconfirm", "--log-level", "WARN", "--workpath", work / "pyinstaller", "--distpath", made)
    run(sys.executable, "-m", "PyInstaller", *options, HERE / "pilothouse.spec", folder=work, PYTHONPATH=str(site))
    return made / "pilothouse"


def archive(folder: Path, file: Path) -> bytes:
    """All of a folder as a tar archive that is the same for the same content; returns its packed bytes."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime, member.uid, member.gid, member.uname, member.gname = _MTIME, 0, 0, "", ""
        return member

    with tarfile.open(file, "w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            tar.add(path, str(path.relative_to(folder)), recursive=False, filter=plain)
    return zlib.compress(file.read_bytes(), 9)


def executable(work: Path, folder: Path, out: Path) -> Path:
    """One file of the folder: the launcher, with the folder packed in it."""
    plain, packed = work / "payload.tar", work / "payload"
    packed.write_bytes(archive(folder, plain))
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    told = {
        "PAYLOAD": f'"{packed}"',
        "PLAIN": plain.stat().st_size,
        "FILES": len(files),
        "BYTES": sum(path.stat().st_size for path in files),
        "FOLDER": f'"{VERSION}-{hashlib.sha256(packed.read_bytes()).hexdigest()[:16]}"',
    }
    made = out / f"pilothouse-{VERSION}-linux-{platform.machine()}"
    flags = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-s")
    run("cc", *flags, *(f"-D{name}={text}" for name, text in told.items()), HERE / "launcher.c", "-lz", "-o", made)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description="Makes the sdist, the wheel and the executable.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--packages-only", action="store_true", help="no executable")
    asked = parser.parse_args()
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        wheel = packages(work, out)
        if not asked.packages_only:
            made = executable(work, gathered(work, wheel), out)
            print(f"{made}: {made.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
