"""Installs the npm package `oidc-provider`, at the versions of its lock file, in `.tools/oidc_provider/` for the tests.

Exit code 75: not installed, try again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_TRY_AGAIN = 75
"""The exit code where the package could not be installed."""
_PINNED = Path(__file__).resolve().parent / "oidc_provider"
_FOLDER = Path(__file__).resolve().parent.parent / ".tools" / "oidc_provider"


def main() -> int:
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        print(
            "no node and npm (Debian: apt install nodejs npm): tests with an identity provider are skipped",
            file=sys.stderr,
        )
        return _TRY_AGAIN
    fresh = _FOLDER.with_suffix(f".{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(_PINNED / name, fresh)
        quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
        if subprocess.run([npm, "ci", *quiet], cwd=fresh).returncode != 0:
            print("oidc-provider cannot be installed now: the next run tries again", file=sys.stderr)
            return _TRY_AGAIN
        shutil.rmtree(_FOLDER, ignore_errors=True)
        fresh.rename(_FOLDER)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
