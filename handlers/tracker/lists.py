"""Lists in pages by an opaque cursor: as JSON, or streamed whole as CSV or NDJSON."""

from __future__ import annotations

import io
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

import attrs
from attrs import evolve, frozen
from tornado.iostream import StreamClosedError

from handlers.base import Base
from handlers.http import serializers
from handlers.http.permissions import READ
from handlers.http.serializers import name_of
from handlers.operations import SENT, Operation
from handlers.tracker.base import answer, answer_kept, in_snapshot
from models.inputs import choice, free_text, query, whole
from models.json_format import http_message
from models.paging import INT64
from models.tracker.runs.kept_answers import State
from models.tracker.visibility import MAX_PROJECTS

Item = TypeVar("Item")

MAX_LIMIT = 500
DEFAULT_LIMIT = 100
MAX_EXPORTED_ROWS = 1_000_000
_EXPORTED_AT_ONCE = 1000
_MEDIA_TYPES = {"csv": "text/csv; charset=utf-8", "ndjson": "application/x-ndjson"}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a cell begins that a spreadsheet would run."""

Page = tuple[Sequence[Any], str | None]
"""The items of a page, and the cursor of the next one."""
ReadPage = Callable[[str | None, int], Page]


@frozen
class ItemList(Generic[Item]):
    """A page of a list; `nextCursor` selects the next one, and is null on the last."""

    items: Sequence[Item]
    next_cursor: str | None


EXPORTS = {"text/csv": str, "application/x-ndjson": str}
NEXT_LINK = {"Link": '`<…>; rel="next"`: the next page, absent on the last'}
_LIMIT = whole(-INT64, INT64)
_FORMATS = ("json", *_MEDIA_TYPES)


def format_input(about: str, *others: str) -> Any:
    """The input `format`, in any case; `others`: formats beside those of every list."""
    known = choice(*_FORMATS, *others)
    return query(about, "json", kind=evolve(known, read=lambda name, text: known.read(name, text.lower())), place=3)


def limit(default: int | None = DEFAULT_LIMIT, about: str = "The maximum number of items; clamped to 1 to 500") -> Any:
    """The input `limit`."""
    return query(about, default, kind=_LIMIT, place=1)


@http_message
class ListRequest:
    """A page of a list, or the whole list."""

    limit: int | None = limit()
    cursor: str | None = query("`nextCursor` of the page before", kind=free_text("WzQyXQ"), place=2)
    format: str = format_input("`csv` and `ndjson`: the whole list, at most 1,000,000 rows")

    @property
    def bounded_limit(self) -> int:
        """The limit, clamped to 1 to 500; 1,000 without one."""
        return MAX_PROJECTS if self.limit is None else min(max(1, self.limit), MAX_LIMIT)


def list_operation(
    tool: str | None, path: str, summary: str, request_type: type[Any], call: Callable[[Base, Any], Any], kind: Any,
    **more: Any,
) -> Operation:  # fmt: skip
    """An operation that returns a page of a list of a project or run."""
    return Operation(
        tool, "GET", path, summary, request_type, call, kind, also=EXPORTS, permission=READ,
        **{"error_statuses": [404]} | more,
    )  # fmt: skip


async def answer_items(handler: Base, request: ListRequest, page: ReadPage, kind: type, name: str) -> object:
    """Answers `{items,nextCursor}`, or exports the list of items of `kind` as the file `name`.

    `page` reads the store, in a worker, for a cursor and a limit.
    """
    if await is_exported(handler, request, page, kind, name):
        return SENT
    return await answer(handler, lambda: ItemList(*page(request.cursor, request.bounded_limit)))


async def answer_array(handler: Base, request: ListRequest, page: ReadPage, kind: type, name: str) -> object:
    """As `answer_items`, but an array, with the address of the next page in the header `Link`."""
    if await is_exported(handler, request, page, kind, name):
        return SENT
    return await answer_linked(handler, request, page)


async def answer_linked(
    handler: Base, request: ListRequest, read: Callable[[str | None, int], tuple[Any, str | None]]
) -> bytes:
    """Answers what `read` returns for a cursor and a limit, and sets the header `Link` to the next cursor."""

    def encoded() -> tuple[bytes, str | None]:
        response, next_cursor = in_snapshot(lambda: read(request.cursor, request.bounded_limit))
        return serializers.encoded(response), next_cursor

    body, next_cursor = await handler.tracker.run(encoded)
    if next_cursor is not None:
        text = urlencode({**handler.query(), "cursor": next_cursor})
        handler.set_header("Link", f'<{handler.request.path}?{text}>; rel="next"')
    return body


async def answer_object(
    handler: Base,
    request: ListRequest,
    read: Callable[[str | None, int], Any],
    rows: Callable[[Any], Sequence[Any]],
    kind: type,
    name: str,
    kept: tuple[tuple[Hashable, ...], Callable[[], State]] | None = None,
) -> object:
    """As `answer_items`, but an object with more fields than the list.

    `read` returns it, with its `next_cursor`, for a cursor and a limit; `rows` are the items of it that are
    exported. `kept`: the key and the state of an answer that is kept (`answer_kept`).
    """

    def page(cursor: str | None, limit: int) -> Page:
        made = read(cursor, limit)
        return rows(made), made.next_cursor

    if await is_exported(handler, request, page, kind, name):
        return SENT
    cursor, limit = request.cursor, request.bounded_limit
    if kept is None:
        return await answer(handler, lambda: read(cursor, limit))
    key, state = kept
    return await answer_kept(handler, (*key, cursor, limit), state, lambda: read(cursor, limit))


async def is_exported(handler: Base, request: ListRequest, page: ReadPage, kind: type, name: str) -> bool:
    """Sends the whole list where `format` is csv or ndjson; returns whether it did.

    The list is read and sent piece by piece: a slow client slows the reading down.
    """
    if request.format == "json":
        return False
    columns = [name_of(field) for field in attrs.fields(kind)]

    def read(cursor: str | None, is_first: bool) -> tuple[bytes, int, str | None]:
        items, next_cursor = in_snapshot(lambda: page(cursor, _EXPORTED_AT_ONCE))
        rows = serializers.plain(items)
        text = csv_text(columns, rows, is_first) if request.format == "csv" else "".join(map(_line, rows))
        return text.encode("utf-8", "replace"), len(items), next_cursor

    cursor, sent, is_first = request.cursor, 0, True
    while sent < MAX_EXPORTED_ROWS:
        body, count, cursor = await handler.tracker.run(
            lambda after=cursor, is_first=is_first: read(after, is_first)  # type: ignore[misc]  # no defaults
        )
        if is_first:  # an error before this has its own headers
            handler.set_header("Content-Disposition", f'attachment; filename="{name}.{request.format}"')
            handler.set_header("Content-Type", _MEDIA_TYPES[request.format])
        handler.write(body)
        sent, is_first = sent + count, False
        if cursor is None or handler.request.method == "HEAD":
            break
        try:
            await handler.flush()
        except StreamClosedError:
            break
    return True


def _line(row: Any) -> str:
    return serializers.text(row) + "\n"


def csv_text(columns: Sequence[str], rows: Sequence[dict[str, Any]], with_head: bool) -> str:
    """Rows as CSV. A text that a spreadsheet would take for a formula begins with an apostrophe."""
    import csv  # for exports only

    text = io.StringIO()
    writer = csv.writer(text)
    if with_head:
        writer.writerow(columns)
    writer.writerows([_cell(row[column]) for column in columns] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return serializers.text(value)
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
