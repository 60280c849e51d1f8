"""Builds the sdist, the wheel, and one executable that brings its own Python, in `dist/`; from the executable a package
for Debian and a container image; a list of components and SHA256SUMS. `make dist` calls it. The same commit on the same
machine has the same bytes: all times are SOURCE_DATE_EPOCH, which is that of the commit if it is not given.

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
from packing import archives, debian, oci, sbom  # noqa: E402

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
    sdist = out / f"pilothouse-{VERSION}.tar.gz"
    sdist.write_bytes(archives.repack(sdist.read_bytes()))
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


def set_time() -> None:
    """Sets SOURCE_DATE_EPOCH to the time of the commit, and a fixed hash seed, for this process and its children."""
    if "SOURCE_DATE_EPOCH" not in os.environ:
        command = ["git", "log", "-1", "--format=%ct"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        os.environ["SOURCE_DATE_EPOCH"] = done.stdout.strip() or "315532800"  # 1980: zip archives begin there
    os.environ["PYTHONHASHSEED"] = "0"


def write_sums(out: Path) -> None:
    """Writes SHA256SUMS of the files of this version."""
    files = sorted(path for path in out.glob(f"pilothouse[-_]{VERSION}*") if path.is_file())
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (out / "SHA256SUMS").write_text("".join(lines))


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds the sdist, the wheel, the executable and its packages.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--packages-only", action="store_true", help="no executable")
    arguments = parser.parse_args()
    if not arguments.packages_only and (lacking := missing()):
        print(f"the executable cannot be built here; missing: {', '.join(lacking)}", file=sys.stderr)
        return 1
    set_time()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        wheel = build_packages(work, out)
        if not arguments.packages_only:
            folder = gather(work, wheel)
            program = build_executable(work, folder, out)
            for file in (program, debian.build(program, out), oci.build(folder, out), sbom.build(out)):
                print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")
    write_sums(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
