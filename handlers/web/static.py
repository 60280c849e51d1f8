"""The static files of the pages."""

from __future__ import annotations

from typing import Any

from tornado.web import StaticFileHandler

from handlers.base import Base
from handlers.http.permissions import PUBLIC
from handlers.routing import Route


class StaticFiles(StaticFileHandler, Base):  # type: ignore[misc]
    """Serves `static/` to everybody."""

    permission = PUBLIC
    max_body = 0

    def initialize(self, path: str, **arguments: Any) -> None:  # type: ignore[override]
        StaticFileHandler.initialize(self, path)
        Base.initialize(self, **arguments)


class Favicon(StaticFiles):
    """`/favicon.ico`, which browsers request without a link."""

    def initialize(self, **arguments: Any) -> None:  # type: ignore[override]
        StaticFiles.initialize(self, self.settings["static_path"], **arguments)

    async def get(self, path: str = "", include_body: bool = True) -> None:
        await super().get("favicon.ico", include_body)


routes: list[Route] = [(r"/favicon\.ico", Favicon)]
