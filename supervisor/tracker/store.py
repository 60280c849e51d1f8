"""Opening `tracker.db`, by the server and by the command line, perhaps at the same moment."""

from __future__ import annotations

import time
from pathlib import Path

import peewee

from models.tracker.schema import reports

_PATIENCE = 10.0
_AGAIN = 0.05
_OTHERS_WORK = ("locked", "already exists")


def open_store(path: Path) -> None:
    """Opens (and makes) it; waits a while for another process that makes it too.

    Raises `peewee.PeeweeException` or `OSError` where that is in vain.
    """
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            reports.open(path)
        except peewee.OperationalError as error:
            reports.close()
            if time.monotonic() > end or not any(word in str(error) for word in _OTHERS_WORK):
                raise
            time.sleep(_AGAIN)
        else:
            return
