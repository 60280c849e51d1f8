"""Pages: HTML made here, readable without script."""

from __future__ import annotations

from typing import Any

from tornado.web import StaticFileHandler

from handlers import wire
from handlers.base import Page, write_page
from handlers.gates import open_to_all, readers
from handlers.routing import Route


class Home(Page):
    gate = staticmethod(readers)

    def get(self) -> None:
        write_page(self, "home.html", processes=list(self.services.fleet), status=wire.process_status)


class Static(StaticFileHandler):
    """The files of `static/`, which are public."""

    gate = staticmethod(open_to_all)

    def set_extra_headers(self, path: str) -> None:
        self.clear_header("Server")
        self.set_header("X-Content-Type-Options", "nosniff")

    def write_error(self, status_code: int, **facts: Any) -> None:
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"{status_code}\n")


routes: list[Route] = [(r"/?", Home)]
