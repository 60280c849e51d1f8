"""The static files of the pages: compressed, and cacheable for ever under a path that holds a digest of all of them."""

from __future__ import annotations

import asyncio
import hashlib
import re
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from tornado.web import HTTPError, StaticFileHandler

from handlers.base import Base
from handlers.http.compression import accepts_gzip, compress
from handlers.http.permissions import PUBLIC
from handlers.routing import Route
from models.errors import NotFound

_COMPRESSED = (".js", ".css", ".svg")
_DIGEST = re.compile(r"[0-9a-f]{16}/")


@cache
def digest(folder: str) -> str:
    """A digest of all files of a folder. Modules import each other by relative paths, so all share one digest."""
    found = hashlib.blake2b(digest_size=8)
    for file in sorted(Path(folder).iterdir()):
        found.update(file.name.encode() + b"\0" + file.read_bytes())
    return found.hexdigest()


@cache
def _compressed(path: str, modified: datetime | None) -> bytes:
    return compress(Path(path).read_bytes())


class StaticFiles(StaticFileHandler, Base):  # type: ignore[misc]
    """Serves `static/` to everybody."""

    permission = PUBLIC
    max_body = 0

    def initialize(self, path: str, **arguments: Any) -> None:  # type: ignore[override]
        StaticFileHandler.initialize(self, path)
        Base.initialize(self, **arguments)

    @classmethod
    def make_static_url(cls, settings: dict[str, Any], path: str, include_version: bool = True) -> str:
        return f"/static/{digest(settings['static_path'])}/{path}"

    def parse_url_path(self, url_path: str) -> str:
        return _DIGEST.sub("", url_path, count=1) if _DIGEST.match(url_path) else url_path

    def set_extra_headers(self, path: str) -> None:
        if f"/{digest(self.root)}/" in self.request.path:
            self.set_header("Cache-Control", "public, max-age=31536000, immutable")
        else:
            self.set_header("Cache-Control", "no-cache")
        if path.endswith(_COMPRESSED):
            self.set_header("Vary", "Accept-Encoding")

    async def get(self, path: str, include_body: bool = True) -> None:
        try:
            await self._send_file(path, include_body)
        except HTTPError as error:
            if error.status_code != 403:
                raise
            raise NotFound("no such file") from None  # a folder, or outside of `static/`

    async def _send_file(self, path: str, include_body: bool) -> None:
        if not path.endswith(_COMPRESSED) or "Range" in self.request.headers or not accepts_gzip(self):
            await super().get(path, include_body)
            return
        self.path = self.parse_url_path(path)
        absolute = self.validate_absolute_path(self.root, self.get_absolute_path(self.root, self.path))
        if absolute is None:
            return
        self.absolute_path = absolute
        self.modified = self.get_modified_time()
        self.set_headers()
        if self.should_return_304():
            self.set_status(304)
            return
        body = await asyncio.to_thread(_compressed, absolute, self.modified)
        self.set_header("Content-Encoding", "gzip")
        self.set_header("Content-Length", len(body))
        if include_body:
            self.write(body)


class Favicon(StaticFiles):
    """`/favicon.ico`, which browsers request without a link."""

    def initialize(self, **arguments: Any) -> None:  # type: ignore[override]
        StaticFiles.initialize(self, self.settings["static_path"], **arguments)

    async def get(self, path: str = "", include_body: bool = True) -> None:
        await super().get("favicon.ico", include_body)

    async def head(self, *arguments: str) -> None:
        await self.get(include_body=False)


routes: list[Route] = [(r"/favicon\.ico", Favicon)]
