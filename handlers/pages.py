"""Pages: HTML made here, readable without script."""

from __future__ import annotations

from typing import Any

from tornado.web import StaticFileHandler

from handlers import wire
from handlers.base import Base, Page, write_page
from handlers.gates import open_to_all, readers
from handlers.routing import Route


class Home(Page):
    gate = staticmethod(readers)

    def get(self) -> None:
        write_page(self, "home.html", processes=list(self.services.fleet), status=wire.process_status)


class Static(StaticFileHandler, Base):  # type: ignore[misc]
    """The files of `static/`, which are public."""

    gate = staticmethod(open_to_all)
    max_body = 0

    def initialize(self, path: str, **arguments: Any) -> None:  # type: ignore[override]
        StaticFileHandler.initialize(self, path)
        Base.initialize(self, **arguments)


routes: list[Route] = [(r"/?", Home)]
