"""The installed program. All of it lies in this folder, so that it takes no other project's top-level name."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> int:
    """Puts the program's folder first on the module path, then runs `run.main`. Returns the exit code."""
    here = Path(__file__).resolve().parent
    root = here if (here / "run.py").is_file() else here.parents[1]  # an editable install: the checkout
    sys.path.insert(0, str(root))
    from supervisor.cli.ctl import run_ctl

    if (code := run_ctl(sys.argv[1:])) is not None:  # without the server's modules
        return code
    from run import main as run_main

    return run_main()
