"""Pages: HTML made here, readable without script."""

from __future__ import annotations

from typing import Any

from tornado.web import StaticFileHandler

from handlers.base import Base
from handlers.charts import pages as chart_pages
from handlers.http.permissions import PUBLIC
from handlers.openapi import pages as openapi_pages
from handlers.routing import Route
from handlers.supervision import pages as process_pages
from handlers.web import overview


class Static(StaticFileHandler, Base):  # type: ignore[misc]
    """The files of `static/`, which are public."""

    permission = PUBLIC
    max_body = 0

    def initialize(self, path: str, **arguments: Any) -> None:  # type: ignore[override]
        StaticFileHandler.initialize(self, path)
        Base.initialize(self, **arguments)


routes: list[Route] = [*overview.routes, *process_pages.routes, *chart_pages.routes, *openapi_pages.routes]
