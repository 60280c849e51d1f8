"""Pages: HTML made here, readable without script."""

from __future__ import annotations

from typing import Any

from tornado.web import StaticFileHandler

from handlers import apidocs, dashboard, home
from handlers.base import Base
from handlers.charts import pages as charts
from handlers.gates import open_to_all
from handlers.routing import Route


class Static(StaticFileHandler, Base):  # type: ignore[misc]
    """The files of `static/`, which are public."""

    gate = staticmethod(open_to_all)
    max_body = 0

    def initialize(self, path: str, **arguments: Any) -> None:  # type: ignore[override]
        StaticFileHandler.initialize(self, path)
        Base.initialize(self, **arguments)


routes: list[Route] = [*home.routes, *dashboard.routes, *charts.routes, *apidocs.routes]
