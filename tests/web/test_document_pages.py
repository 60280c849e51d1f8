"""The documentation as pages, and the HTML of Markdown that others have written."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from browser_pages import Browser, faults_in_all_views, url_of
from conftest import Serve

from handlers.base import HELP
from handlers.web import documents
from models.markdown import external_only, to_html


class Elements(HTMLParser):
    """The elements of a text, with their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_every_document_is_a_page_and_its_links_lead_somewhere(serve: Serve) -> None:
    server = serve({"web": {"command": "true"}})
    names = {file.stem for file in documents.FOLDER.glob("*.md")}
    listed = server.get("/help").text
    assert names
    assert all(f'href="/help/{name}"' in listed for name in names)
    pages = {name: server.get(f"/help/{name}").text for name in names}
    ids = {name: {facts.get("id") for _, facts in Elements(page).found} for name, page in pages.items()}
    broken = []
    for name, page in pages.items():
        for tag, facts in Elements(page).found:
            href = facts.get("href") or ""
            if tag != "a" or not re.match(r"[a-z0-9-]*(#|$)", href):
                continue
            place, _, fragment = href.partition("#")
            if fragment and fragment not in ids[place or name]:
                broken.append((name, href))
    assert broken == []
    for _, place in HELP.values():
        name, _, fragment = place.partition("#")
        assert fragment in ids[name], place
    assert '<a href="/help">Documentation</a>' in server.get("/").text


def test_a_page_of_an_error_names_the_part_of_the_documentation(serve: Serve) -> None:
    server = serve({"web": {"command": "true"}})
    headers = {"Accept": "text/html", "Origin": "https://other.example"}
    refused = server.ask("POST", "/profile", headers=headers)
    assert (refused.status, 'In the documentation: <a href="/help/operations#permissions">' in refused.text) == (
        403,
        True,
    )
    assert "In the documentation" not in server.get("/absent", Accept="text/html").text


def test_document_pages_are_accessible_in_all_views(serve: Serve, chromium: Browser) -> None:
    server = serve({"web": {"command": "true"}})
    faults = {}
    with chromium.page(url_of(server)) as one:
        for path in ("/help", "/help/operations"):
            one.goto(path)
            if found := faults_in_all_views(one):
                faults[path] = found
    assert faults == {}


def test_other_files_are_not_served_as_documents(serve: Serve) -> None:
    server = serve({"web": {"command": "true"}})
    for name in ("none", "..%2FREADME", "%2Fetc%2Fpasswd", "images", "tracker.md", "%00"):
        assert server.get(f"/help/{name}").status in (400, 404), name


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("<script>alert(1)</script>", "<p>&lt;script&gt;alert(1)&lt;/script&gt;</p>"),
        ("a <b onclick=x>b</b>", "<p>a &lt;b onclick=x&gt;b&lt;/b&gt;</p>"),
        ("[a](javascript:alert(1))", "<p>[a](javascript:alert(1))</p>"),
        ("[a](JaVaScRiPt&#58;alert(1))", "<p>[a](JaVaScRiPt:alert(1))</p>"),
        ("[a](data:text/html,x)", "<p>[a](data:text/html,x)</p>"),
        ("[a](x.md)", "<p>a</p>"),
        ("[a](//evil.example)", "<p>a</p>"),
        ("![logo](https://evil.example/pixel.png)", "<p>logo</p>"),
        ("[![badge](https://a.example/b.svg)](https://a.example)",
         '<p><a href="https://a.example" rel="noopener noreferrer nofollow">badge</a></p>'),
        ("## A\n#### B", '<h2 id="a">A</h2>\n<h3 id="b">B</h3>'),
        ("[a](#part)", '<p><a href="#part">a</a></p>'),
        ("<https://a.example>", '<p><a href="https://a.example" rel="noopener noreferrer nofollow">https://a.example</a></p>'),
        ("# A `b` c!", '<h2 id="a-b-c">A <code>b</code> c!</h2>'),
        ("# A\n# A", '<h2 id="a">A</h2>\n<h2 id="a-1">A</h2>'),
        ("|a|\n|-|\n|<i>|", '<div class="wide" role="group" aria-label="Table" tabindex="0">'
            '<table>\n<thead>\n<tr>\n<th>a</th>\n</tr>\n</thead>\n<tbody>\n<tr>\n'
         "<td>&lt;i&gt;</td>\n</tr>\n</tbody>\n</table></div>"),
    ],
)  # fmt: skip
def test_html_of_markdown_is_a_safe_subset(text: str, html: str) -> None:
    assert to_html(text).strip() == html


def test_a_link_function_cannot_return_a_dangerous_address() -> None:
    assert to_html("[a](x)", lambda _: "javascript:alert(1)") == "<p>a</p>\n"
    assert external_only("mailto:a@example.org") == "mailto:a@example.org"
