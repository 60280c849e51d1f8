"""Builds the sdist, the wheel, and one executable that brings its own Python, in `dist/`. `make dist` calls it.

It works on a copy of the sources, so that stray files of a working folder are left out. The executable holds what the
wheel holds. It runs where the C library is at least as new as on the machine that built it.
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
    "models", "supervisor", "handlers", "static", "docs", "examples", "packing",
)  # fmt: skip
_MTIME = 0


def run(*command: str | Path, folder: Path = ROOT, **environ: str) -> None:
    subprocess.run([str(word) for word in command], cwd=folder, env={**os.environ, **environ}, check=True)


def missing() -> list[str]:
    """What the executable needs and this machine lacks, with the names of Debian's packages."""
    found = [
        f"{program} (package {package})"
        for program, package in (("cc", "gcc"), ("objdump", "binutils"))
        if shutil.which(program) is None
    ]
    if shutil.which("cc") is not None:
        libraries = (("libc.a", "libc6-dev"), ("libz.a", "zlib1g-dev"))
        found += [f"{name} (package {package})" for name, package in libraries if not _is_linkable(name)]
    try:
        from PyInstaller.depend.bindepend import get_python_library_path
        from PyInstaller.exceptions import PythonLibraryNotFoundError
    except ImportError:
        return [*found, "PyInstaller (pip install '.[dist]')"]
    try:
        get_python_library_path()
    except PythonLibraryNotFoundError:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        found.append(f"libpython{version}.so (package libpython{version}, or a Python built with --enable-shared)")
    return found


def _is_linkable(library: str) -> bool:
    """Whether the C compiler finds this static library: it prints the bare name of one that it does not find."""
    done = subprocess.run(["cc", f"-print-file-name={library}"], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip()).is_absolute()


def build_packages(work: Path, out: Path) -> Path:
    """Builds the sdist, and from it the wheel; returns the wheel."""
    source = work / "source"
    source.mkdir()
    for name in TAKEN:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        else:
            shutil.copy2(ROOT / name, source)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source, folder=work)
    return out / f"pilothouse-{VERSION}-py3-none-any.whl"


def gather(work: Path, wheel: Path) -> Path:
    """Returns the folder with the program, its Python and its libraries."""
    site = work / "site"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    run(*pip, "--no-deps", "--no-compile", "--target", site, wheel)
    built = work / "built"
    options = ("--noconfirm", "--log-level", "WARN", "--workpath", work / "pyinstaller", "--distpath", built)
    pyinstaller = (sys.executable, "-m", "PyInstaller", *options, HERE / "pilothouse.spec")
    run(*pyinstaller, folder=work, PYTHONPATH=str(site / "pilothouse"))
    return built / "pilothouse"


def archive(folder: Path, file: Path) -> bytes:
    """Writes a folder as a tar archive, the same for the same content; returns it compressed."""

    def reproducible(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime, member.uid, member.gid, member.uname, member.gname = _MTIME, 0, 0, "", ""
        return member

    with tarfile.open(file, "w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            tar.add(path, str(path.relative_to(folder)), recursive=False, filter=reproducible)
    return zlib.compress(file.read_bytes(), 9)


def build_executable(work: Path, folder: Path, out: Path) -> Path:
    """Builds one file: the launcher, with the packed folder in it."""
    plain, packed = work / "payload.tar", work / "payload"
    packed.write_bytes(archive(folder, plain))
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    definitions = {
        "PAYLOAD": f'"{packed}"',
        "PLAIN": plain.stat().st_size,
        "FILES": len(files),
        "BYTES": sum(path.stat().st_size for path in files),
        "FOLDER": f'"{VERSION}-{hashlib.sha256(packed.read_bytes()).hexdigest()[:16]}"',
    }
    program = out / f"pilothouse-{VERSION}-linux-{platform.machine()}"
    flags = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-s")
    macros = [f"-D{name}={text}" for name, text in definitions.items()]
    run("cc", *flags, *macros, HERE / "launcher.c", "-lz", "-o", program)
    return program


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds the sdist, the wheel and the executable.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--packages-only", action="store_true", help="no executable")
    arguments = parser.parse_args()
    if not arguments.packages_only and (lacking := missing()):
        print(f"the executable cannot be built here; missing: {', '.join(lacking)}", file=sys.stderr)
        return 1
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        wheel = build_packages(work, out)
        if not arguments.packages_only:
            program = build_executable(work, gather(work, wheel), out)
            print(f"{program}: {program.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
