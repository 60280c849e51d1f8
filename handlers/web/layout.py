"""What stands around every page: where one is, who one is, and the words of times and states that all pages share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import frozen
from tornado.escape import xhtml_escape

from handlers.http import serializers
from models import VERSION
from models.json_format import rfc3339
from models.supervision.process import ENDED, TROUBLE, UP, Status

NOTHING = "\N{EN DASH}"

_PLACES = (
    ("/", "Overview"),
    ("/processes", "Processes"),
    ("/history", "History"),
    ("/releases", "Releases"),
    ("/repositories", "Charts"),
    ("/projects", "Tests"),
)
_ALSO = {"/projects": ("/runs", "/compare")}
"""Pages of a place that are not below its path."""


@frozen
class Frame:
    """The frame of one page. `path` is below the service's prefix; `uri` is what a login leads back to."""

    path: str
    uri: str
    user: str | None
    is_admin: bool
    version: str = VERSION

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        return (*_PLACES, ("/users", "Users")) if self.is_admin else _PLACES

    def is_here(self, path: str) -> bool:
        below = (path, *_ALSO.get(path, ()))
        return self.path == path or (path != "/" and f"{self.path}/".startswith(tuple(f"{one}/" for one in below)))


class Kept:
    """Pieces of pages, by all that each shows: of a page that is drawn anew most are what they were. For any thread."""

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._pieces: dict[tuple[object, ...], bytes] = {}

    def piece(self, shows: tuple[object, ...], draw: Callable[[], bytes]) -> bytes:
        """That which shows just this."""
        found = self._pieces.get(shows)
        if found is None:
            if len(self._pieces) >= self._most:
                self._pieces.clear()
            found = self._pieces[shows] = draw()
        return found


def words() -> dict[str, Any]:
    """What templates may say beside their own values."""
    return {"when": when, "state": state, "link": link, "figure": figure, "spoken": serializers.spoken}


def when(at: int | None) -> str:
    """A time as HTML: exact without script, relative with it. `at` is microseconds since 1970."""
    if at is None:
        return NOTHING
    text = rfc3339(at)
    return f'<time datetime="{text}">{text[:19].replace("T", " ")} UTC</time>'


def state(word: str, kind: str = "") -> str:
    """A state as HTML, with its sign: `kind` is good, bad, warn, busy or nothing."""
    return f'<span class="state {kind}">{xhtml_escape(word)}</span>'


def link(url: str | None, text: str | None = None) -> str:
    """A link to elsewhere as HTML: only to http and https, the rest is shown as text."""
    if not url:
        return xhtml_escape(text or "")
    shown = xhtml_escape(text or url)
    if not url.lower().startswith(("http://", "https://")):
        return shown
    return f'<a href="{xhtml_escape(url)}" rel="noopener noreferrer nofollow">{shown}</a>'


def figure(value: float | None, unit: str = "", digits: int = 1) -> str:
    """A number for people: a dash where there is none. Rounded down, for 99.96 % must not read 100."""
    if value is None:
        return NOTHING
    scale = 10**digits
    return f"{int(value * scale) / scale:.{digits}f}{unit}"


def change(number: float | None) -> str:
    """A difference with its sign."""
    return NOTHING if number is None else f"{number:+.1f}"


def status_of(status: Status) -> str:
    """A process's status as HTML."""
    return state(status.value.replace("_", " "), kind_of(status))


def kind_of(status: Status) -> str:
    if status in TROUBLE:
        return "bad" if status is not Status.UNKNOWN else "warn"
    if status in UP or status is Status.FINISHED:
        return "good"
    return "" if status in ENDED or status is Status.NOT_STARTED else "busy warn"
