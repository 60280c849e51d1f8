"""Opens the tracker's store. The server and the command line may do so at the same moment."""

from __future__ import annotations

import time
from pathlib import Path

import peewee

from models.config.settings import ServerSettings
from models.tracker.tables import reports

_TIMEOUT_SECONDS = 10.0
_RETRY_SECONDS = 0.05
_RETRIED_ERRORS = ("locked", "already exists")


def open_store(path: Path, url: str | None = None) -> None:
    """Opens or creates the file, or connects to the database at `url`. Waits while another process creates it.

    Raises `CannotUse`, `peewee.PeeweeException` or `OSError`.
    """
    end = time.monotonic() + _TIMEOUT_SECONDS
    while True:
        try:
            reports.open(path, url)
        except peewee.OperationalError as error:
            if not reports.is_closed():
                reports.close()
            if time.monotonic() > end or not any(text in str(error) for text in _RETRIED_ERRORS):
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return


def store_location(settings: ServerSettings) -> str:
    """The location for messages, without a password."""
    return "server.database-url" if settings.database_url else str(settings.data_dir / "tracker.db")
