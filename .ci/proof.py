"""`make proof`: what takes too long for `make test`. Each part is run, and the exit code is 1 if any of them fails.

    python .ci/proof.py [rounds] [mutants] [log] [pythons] [bare] [debian] [minimal] [packages]

rounds: the tests with their long rounds (PILOTHOUSE_PROOF=1).
mutants: the modules with rules, changed at one place at a time: their tests must notice 85 % (`mutants.py`).
log: the write-ahead log of the tracker's store during a quarter of an hour of uploads.
pythons: the tests on every Python from 3.11 to 3.14 that is found.
bare: `make run`, then `make test`, as an ordinary user of a fresh Debian 12 with what the README names (`bare.py`).
debian: the README in a fresh Debian 12.
minimal: the server in a Debian 12 without any optional program.
packages: `make dist` twice, with equal bytes; its package in a Debian 12 and 13; its container image (`packages.py`).

The last four need root's rights and debootstrap; apt and pip use the settings of this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
PYTEST = ("-m", "pytest", "--numprocesses", "auto", "--dist", "loadfile", "--no-loadscope-reorder")
NEEDED = "make,python3-venv,git,ca-certificates"
OPTIONAL = "curl,procps,util-linux"


def succeeds(*command: str | Path, folder: Path = ROOT, **environ: str) -> bool:
    print("+", *command, flush=True)
    return subprocess.run([str(word) for word in command], cwd=folder, env={**os.environ, **environ}).returncode == 0


def find_python(version: str) -> str | None:
    """A Python of this version on PATH or of pyenv. A shim of pyenv that cannot run does not count."""
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    for path in (shutil.which(f"python{version}"), *map(str, pyenv)):
        if path and subprocess.run([path, "--version"], capture_output=True).returncode == 0:
            return path
    return None


def rounds() -> bool:
    return succeeds(sys.executable, *PYTEST, PILOTHOUSE_PROOF="1")


def mutants() -> bool:
    return succeeds(sys.executable, ROOT / ".ci" / "mutants.py")


def log() -> bool:
    return succeeds(sys.executable, "benchmarks/wal.py")


def pythons() -> bool:
    good = True
    for version in VERSIONS:
        found = find_python(version)
        if found is None:
            print(f"Python {version}: not found")
            continue
        with tempfile.TemporaryDirectory(prefix=f"python{version}-") as folder:
            python = Path(folder) / "bin" / "python"
            good &= (
                succeeds(found, "-m", "venv", folder)
                and succeeds(python, "-m", "pip", "install", "--quiet", "--editable", f"{ROOT}[test,dist]")
                and succeeds(python, *PYTEST)
            )
    return good


def in_debian(include: str, *commands: str) -> bool:
    """Runs shell commands in a fresh Debian 12, in a clone of this checkout."""
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        print("debootstrap, and root's rights to run it, are missing")
        return False
    with tempfile.TemporaryDirectory(prefix="debian-") as folder:
        root = Path(folder)
        options = ("--variant=minbase", f"--include={include}", "bookworm")
        if not succeeds("debootstrap", *options, root, os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")):
            return False
        for file in ("/etc/resolv.conf", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt"):
            if Path(file).exists():
                shutil.copy(file, root / file.lstrip("/"))
        good = succeeds("git", "clone", "--quiet", ROOT, root / "pilothouse")
        if (ROOT / ".tools").exists():
            shutil.copytree(ROOT / ".tools", root / "pilothouse" / ".tools", dirs_exist_ok=True)
        script = " && ".join(("mount -t proc proc /proc", "cd /pilothouse", *commands))
        return good and succeeds("unshare", "--mount", "--pid", "--fork", "chroot", root, "sh", "-euxc", script)


def bare() -> bool:
    return succeeds(sys.executable, ROOT / ".ci" / "bare.py")


def debian() -> bool:
    readme = ".venv/bin/python -m pytest -q tests/project/test_documents.py -k README"
    return in_debian(f"{NEEDED},{OPTIONAL}", "make .venv/test", readme)


def minimal() -> bool:
    python = "/pilothouse/.venv/bin/python"  # absolute: the server runs in a folder of its own
    smoke = f"{python} packing/smoke.py {python} /pilothouse/run.py"
    return in_debian(NEEDED, "make .venv/run", smoke)


def packages() -> bool:
    return succeeds(sys.executable, ROOT / ".ci" / "packages.py")


PARTS: Mapping[str, Callable[[], bool]] = {
    part.__name__: part for part in (rounds, mutants, log, pythons, bare, debian, minimal, packages)
}


def main() -> int:
    names = sys.argv[1:] or list(PARTS)
    results = {}
    for name in names:
        begin = time.monotonic()
        results[name] = PARTS[name](), time.monotonic() - begin
    for name, (good, seconds) in results.items():
        print(f"{name}: {'passed' if good else 'FAILED'} in {seconds:.0f} s")
    return 0 if all(good for good, _ in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
