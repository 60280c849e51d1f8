"""The documentation of this version, as pages below `/help`."""

from __future__ import annotations

import asyncio
import re
from functools import cache
from pathlib import Path

from attrs import frozen

from handlers.base import HtmlPage, write_page
from handlers.http.permissions import READ
from handlers.routing import Route
from models import markdown
from models.errors import NotFound

FOLDER = Path(__file__).resolve().parents[2] / "docs"
_LOCAL = re.compile(r"([a-z0-9-]+)\.md(#.*)?")


@frozen
class Document:
    """`name` is that of its file; `html` is safe."""

    name: str
    title: str
    html: str


@cache
def read(name: str) -> Document:
    """A document. Raises `NotFound`."""
    file = FOLDER / f"{name}.md"
    if not re.fullmatch(r"[a-z0-9-]+", name) or not file.is_file():
        raise NotFound(f"there is no document {name[:100]}")
    title, _, text = file.read_text().partition("\n")
    return Document(name, title.removeprefix("# "), markdown.to_html(text, _link))


def _link(address: str) -> str | None:
    """Other documents are pages here; files of the repository are not served."""
    if local := _LOCAL.fullmatch(address):
        return f"{local[1]}{local[2] or ''}" if (FOLDER / f"{local[1]}.md").is_file() else None
    return markdown.external_only(address)


@cache
def titles() -> list[tuple[str, str]]:
    """Name and title of each document, sorted by title."""
    found = [(file.stem, file.read_text().partition("\n")[0].removeprefix("# ")) for file in FOLDER.glob("*.md")]
    return sorted(found, key=lambda row: row[1].lower())


class DocumentList(HtmlPage):
    permission = READ

    async def get(self) -> None:
        write_page(self, "web/documents.html", titles=await asyncio.to_thread(titles), document=None)


class DocumentPage(HtmlPage):
    permission = READ

    async def get(self, name: str) -> None:
        document = await asyncio.to_thread(read, name)
        write_page(self, "web/documents.html", titles=await asyncio.to_thread(titles), document=document)


routes: list[Route] = [(r"/help/?", DocumentList), (r"/help/([^/]+)", DocumentPage)]
