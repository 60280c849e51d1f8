"""The server with some of its constants altered, for what would take minutes to see, and with a clock that jumps.

    python altered.py '{"run._BODY_TIMEOUT_SECONDS": 1, "clock": "FILE"}' PYTHON run.py options of run.py

`clock` names a file: the seconds in it are added to the wall clock whenever somebody asks what time it is.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))  # it is run as a program


def jumping(file: Path) -> None:
    """Makes the wall clock jump by what the file says."""
    from supervisor.clock import Clock

    now = Clock.now

    def jumped(self: Clock) -> int:
        return now(self) + int(float(file.read_text()) * 1_000_000)

    Clock.now = jumped  # type: ignore[method-assign]


def alter(changes: dict[str, Any]) -> None:
    for name, value in changes.items():
        if name == "clock":
            jumping(Path(value))
            continue
        module, _, constant = name.rpartition(".")
        found = importlib.import_module(module)
        assert hasattr(found, constant), f"there is no {name} any more"
        setattr(found, constant, value)


def command(**changes: Any) -> list[str]:
    """For `serve(command=...)`; two underscores in a name stand for a dot."""
    names = {name.replace("__", "."): value for name, value in changes.items()}
    return [sys.executable, str(Path(__file__).resolve()), json.dumps(names)]


if __name__ == "__main__":
    import run

    alter(json.loads(sys.argv[1]))
    sys.exit(run.main(sys.argv[4:]))
