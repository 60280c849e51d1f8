"""Runs the server with changed constants (for timeouts of minutes) or with an offset of its wall clock.

    python changed_constants.py '{"run._BODY_TIMEOUT_SECONDS": 1, "clock": "FILE"}' PYTHON run.py options of run.py

`clock` names a file: the seconds in it are added to the wall clock at each reading. `hangs` names a folder: while it
has a pipe `hangs` that nobody writes to, the server's threads wait at each use of its log files.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))  # it is run as a program


def add_clock_offset(file: Path) -> None:
    """Adds the seconds in the file to the wall clock."""
    from supervisor.clock import Clock

    now = Clock.now

    def jumped(self: Clock) -> int:
        return now(self) + int(float(file.read_text()) * 1_000_000)

    Clock.now = jumped  # type: ignore[method-assign]


def hang_log_files(folder: Path) -> None:
    """Stands for a file system that may not answer."""
    from supervisor.processes.logs import access

    place_of = vars(access)["place_of"]

    def hanging(path: str, *arguments: Any) -> Any:
        if Path(path).parent == folder and (folder / "hangs").exists():
            os.close(os.open(folder / "hangs", os.O_RDONLY))
        return place_of(path, *arguments)

    vars(access)["place_of"] = hanging


def change_constants(changes: dict[str, Any]) -> None:
    for name, value in changes.items():
        if name == "clock":
            add_clock_offset(Path(value))
            continue
        if name == "hangs":
            hang_log_files(Path(value))
            continue
        module, _, constant = name.rpartition(".")
        found = importlib.import_module(module)
        assert hasattr(found, constant), f"there is no {name} any more"
        setattr(found, constant, value)


def server_command(**changes: Any) -> list[str]:
    """For `serve(command=...)`; two underscores in a name stand for a dot."""
    names = {name.replace("__", "."): value for name, value in changes.items()}
    return [sys.executable, str(Path(__file__).resolve()), json.dumps(names)]


if __name__ == "__main__":
    import run

    change_constants(json.loads(sys.argv[1]))
    sys.exit(run.main(sys.argv[4:]))
