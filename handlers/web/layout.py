"""The frame of every page (navigation, user), and the template helpers that render times, states, links and numbers."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from attrs import frozen
from tornado.escape import xhtml_escape

from handlers.http import serializers
from models import VERSION
from models.json_format import rfc3339
from models.percentages import rounded_down
from models.supervision.process import ENDED, TROUBLE, UP, Status

NOTHING = "\N{EN DASH}"

_NAVIGATION = (
    ("/", "Overview", "overview"),
    ("/processes", "Processes", "process"),
    ("/history", "History", "history"),
    ("/releases", "Releases", "release"),
    ("/repositories", "Charts", "chart"),
    ("/projects", "Projects", "project"),
)
"""The path, label and icon of each page in the navigation."""
_MAX_REASON_CHARACTERS = 160
_SYMBOLS = {"good": "\N{HEAVY CHECK MARK}", "bad": "\N{MULTIPLICATION X}", "warn": "\N{BLACK UP-POINTING TRIANGLE}"}
_RELATED_PATHS = {"/projects": ("/runs", "/compare")}
"""Pages that belong to an entry of the navigation without being below its path."""


@frozen
class Frame:
    """The frame of one page. `path` is below the service's prefix; `uri` is where a login returns to."""

    path: str
    uri: str
    user: str | None
    is_admin: bool
    is_failing: bool = False
    """Whether a process is in trouble: the icon of the page gets a dot."""
    address: str | None = None
    """The URL of the page, if that of the request is a form's, which has no GET."""
    version: str = VERSION

    @property
    def navigation(self) -> tuple[tuple[str, str, str], ...]:
        return (*_NAVIGATION, ("/users", "Users", "users")) if self.is_admin else _NAVIGATION

    def is_current(self, path: str) -> bool:
        """Whether the page belongs to this entry of the navigation."""
        roots = (path, *_RELATED_PATHS.get(path, ()))
        return self.path == path or (path != "/" and f"{self.path}/".startswith(tuple(f"{root}/" for root in roots)))


class FragmentCache:
    """Rendered fragments of pages, by all values that each shows. Thread-safe."""

    def __init__(self, max_fragments: int = 4096) -> None:
        self._max_fragments = max_fragments
        self._fragments: dict[tuple[object, ...], bytes] = {}

    def get(self, key: tuple[object, ...], render: Callable[[], bytes]) -> bytes:
        """Returns the fragment for `key`, rendered at the first request."""
        fragment = self._fragments.get(key)
        if fragment is None:
            if len(self._fragments) >= self._max_fragments:
                self._fragments.clear()
            fragment = self._fragments[key] = render()
        return fragment


def template_helpers() -> dict[str, Any]:
    """The functions that every template may call."""
    return {
        "when": when,
        "state": state,
        "link": link,
        "figure": figure,
        "grouped": grouped,
        "symbol": symbol,
        "reason_html": reason_html,
        "path_segment": path_segment,
        "duration": serializers.duration_text,
    }


def icon(icons_url: str, name: str) -> str:
    """Renders an icon of the sprite. Screen readers skip it: a text or a button's label accompanies it."""
    return f'<svg class="icon" aria-hidden="true"><use href="{icons_url}#{name}"/></svg>'


def when(at: int | None) -> str:
    """Renders a time, exact without script, relative with it. `at` is microseconds since 1970."""
    if at is None:
        return NOTHING
    text = rfc3339(at)
    return f'<time datetime="{text}">{text[:19].replace("T", " ")} UTC</time>'


def state(label: str, kind: str = "") -> str:
    """Renders a state with its symbol. `kind` is good, bad, warn, busy or empty."""
    return f'<span class="state {kind}">{xhtml_escape(label)}</span>'


def reason_html(text: str) -> str:
    """Renders a reason: short ones as text, longer ones as two lines with the rest behind a disclosure."""
    if len(text) <= _MAX_REASON_CHARACTERS and "\n" not in text:
        return f'<small class="reason">{xhtml_escape(text)}</small>'
    first = text.splitlines()[0][:_MAX_REASON_CHARACTERS]
    return (
        f'<details class="reason"><summary><small>{xhtml_escape(first)} …</small></summary>'
        f"<pre>{xhtml_escape(text)}</pre></details>"
    )


def link(url: str | None, text: str | None = None) -> str:
    """Renders an external link: only http and https, any other URL as plain text."""
    if not url:
        return xhtml_escape(text or "")
    label = xhtml_escape(text or url)
    if not url.lower().startswith(("http://", "https://")):
        return label
    return f'<a href="{xhtml_escape(url)}" rel="noopener noreferrer nofollow">{label}</a>'


def path_segment(text: str) -> str:
    """Returns a text as one segment of a path; Tornado's `url_escape` would leave a slash."""
    return quote(text, safe="")


def figure(value: float | None, unit: str = "", digits: int = 1) -> str:
    """Formats a number with separators, or a dash for `None`. Rounds down, so that 99.96 % does not read 100 %."""
    if value is None:
        return NOTHING
    return f"{Decimal(rounded_down(value, digits)):,f}{unit}"


def grouped(number: int) -> str:
    """Formats a count with separators."""
    return f"{number:,}"


def change(number: float | None) -> str:
    """Formats a difference with its sign."""
    return NOTHING if number is None else f"{number:+.1f}"


def status_of(status: Status) -> str:
    """Renders the status of a process."""
    return state(status.value.replace("_", " "), kind_of(status))


def kind_of(status: Status) -> str:
    """The kind of state that a process status is, for `state`."""
    if status in TROUBLE:
        return "bad" if status is not Status.UNKNOWN else "warn"
    if status in UP or status is Status.FINISHED:
        return "good"
    return "" if status in ENDED or status is Status.NOT_STARTED else "busy warn"


def symbol(status: Status) -> str:
    """The symbol of a process status, for the title of a page."""
    return _SYMBOLS.get(kind_of(status), "\N{WHITE CIRCLE}")
