"""Opening the store of the tracker, by the server and by the command line, perhaps at the same moment."""

from __future__ import annotations

import time
from pathlib import Path

import peewee

from models.config.settings import Server
from models.tracker.tables import reports

_PATIENCE = 10.0
_AGAIN = 0.05
_OTHERS_WORK = ("locked", "already exists")


def open_store(path: Path, url: str | None = None) -> None:
    """Opens (and makes) the file, or connects to the database at `url`; waits a while for another that makes it too.

    Raises `CannotUse`, `peewee.PeeweeException` or `OSError` where that is in vain.
    """
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            reports.open(path, url)
        except peewee.OperationalError as error:
            if not reports.is_closed():
                reports.close()
            if time.monotonic() > end or not any(word in str(error) for word in _OTHERS_WORK):
                raise
            time.sleep(_AGAIN)
        else:
            return


def place_of_store(settings: Server) -> str:
    """Where it is, in words for people, without a password."""
    return "server.database-url" if settings.database_url else str(settings.data_dir / "tracker.db")
