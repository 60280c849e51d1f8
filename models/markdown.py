"""Markdown as HTML of a safe subset: no HTML of its own, no images, and links to http, https, mailto and near pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markdown_it.token import Token

Link = Callable[[str], str | None]
"""Returns the address that a link leads to; None: its text stands without a link."""

_EXTERNAL = re.compile(r"(?i)(https?://|mailto:)")
_WIDE = '<div class="wide" role="group" aria-label="Table" tabindex="0">'  # keys scroll it where it is too wide
_SCHEME = re.compile(r"(?i)[a-z][a-z0-9+.-]*:")


def external_only(address: str) -> str | None:
    """Links of a text whose neighbours are not served here: external ones, and places in the text itself."""
    return address if _EXTERNAL.match(address) or address.startswith("#") else None


def to_html(text: str, link: Link = external_only) -> str:
    """The HTML of a text. Headings have the ids that GitHub gives them; they begin at h2 and leave no level out."""
    from markdown_it import MarkdownIt  # loaded with the first text

    markdown = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    tokens = markdown.parse(text)
    _prepare(tokens, link)
    html = str(markdown.renderer.render(tokens, markdown.options, {}))
    html = html.replace("<table>", f"{_WIDE}<table>").replace("</table>", "</table></div>")
    return html.replace("<th></th>", "<td></td>")  # an empty cell is the head of nothing


def _prepare(tokens: Sequence[Token], link: Link) -> None:
    ids: dict[str, int] = {}
    level, highest = 1, min((int(token.tag[1]) for token in tokens if token.type == "heading_open"), default=1)
    for number, token in enumerate(tokens):
        if token.type == "heading_open":
            token.attrSet("id", _id(tokens[number + 1].content, ids))
            level = min(int(token.tag[1]) - highest + 2, level + 1, 6)
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{level}"
        if token.children:
            token.children = _inline(token.children, link)


def _inline(tokens: Sequence[Token], link: Link) -> list[Token]:
    """The tokens with checked links and without images, whose descriptions stay."""
    kept: list[Token] = []
    open_links: list[bool] = []
    for token in tokens:
        if token.type == "image":
            token.type, token.tag, token.attrs, token.children = "text", "", {}, None
            kept.append(token)
        elif token.type == "link_open":
            address = _address(str(token.attrGet("href") or ""), link)
            open_links.append(address is not None)
            if address is not None:
                token.attrs = _attributes(address)
                kept.append(token)
        elif token.type == "link_close":
            if open_links.pop():
                kept.append(token)
        else:
            kept.append(token)
    return kept


def _address(href: str, link: Link) -> str | None:
    found = link(href)
    return None if found is None or (_SCHEME.match(found) and not _EXTERNAL.match(found)) else found


def _attributes(address: str) -> dict[str, Any]:
    return {"href": address, **({"rel": "noopener noreferrer nofollow"} if _EXTERNAL.match(address) else {})}


def _id(title: str, ids: dict[str, int]) -> str:
    """The id of a heading as GitHub makes it, with a number where an earlier heading has it."""
    name = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    ids[name] = ids.get(name, -1) + 1
    return f"{name}-{ids[name]}" if ids[name] else name
