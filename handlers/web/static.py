"""The static files of the pages."""

from __future__ import annotations

from typing import Any

from tornado.web import StaticFileHandler

from handlers.base import Base
from handlers.http.permissions import PUBLIC


class StaticFiles(StaticFileHandler, Base):  # type: ignore[misc]
    """Serves `static/` to everybody."""

    permission = PUBLIC
    max_body = 0

    def initialize(self, path: str, **arguments: Any) -> None:  # type: ignore[override]
        StaticFileHandler.initialize(self, path)
        Base.initialize(self, **arguments)
