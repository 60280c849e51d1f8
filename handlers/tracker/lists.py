"""Lists in pages by an opaque cursor: as JSON, or streamed whole as CSV or NDJSON."""

from __future__ import annotations

import io
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, Generic, TypeVar
from urllib.parse import urlencode

import attrs
from attrs import frozen
from tornado.iostream import StreamClosedError

from handlers.http import serializers
from handlers.http.serializers import name_of
from handlers.openapi.describe import Endpoint, Parameter, choice, free_text, whole
from handlers.tracker.base import Tracked, in_snapshot
from models.errors import Invalid
from models.paging import INT64
from models.paging import whole as read_whole
from models.tracker.runs.kept_answers import State

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


def limit_parameter(default: int = DEFAULT_LIMIT) -> Parameter:
    return whole("limit", f"The maximum number of items; clamped to 1 to {MAX_LIMIT}", default, -INT64, INT64)


CURSOR = free_text("cursor", "`nextCursor` of the page before", "WzQyXQ")
FORMAT = choice("format", "`csv` and `ndjson`: the whole list, at most 1,000,000 rows", ["json", *_MEDIA_TYPES], "json")
EXPORTS = {"text/csv": str, "application/x-ndjson": str}
NEXT_LINK = {"Link": '`<…>; rel="next"`: the next page, absent on the last'}


def list_endpoint(
    summary: str, answers: Any, of: Parameter, *filters: Parameter, limit: int = DEFAULT_LIMIT, **more: Any
) -> Endpoint:
    """A page of a list of the project or run whose id is `of`; `limit` is the default of that parameter."""
    query = (*filters, limit_parameter(limit), CURSOR, FORMAT)
    return Endpoint(summary, answers, path=[of], query=query, fails=[404], also=EXPORTS, **more)


def bounded(limit: str | None, default: int) -> int:
    """The parameter `limit`, clamped to 1 to 500. Raises `Invalid`."""
    return min(max(1, read_whole("limit", limit or str(default), -INT64, INT64)), MAX_LIMIT)


class ListHandler(Tracked):
    """Answers with a page of a list."""

    default_limit: ClassVar[int] = DEFAULT_LIMIT

    def page_arguments(self) -> tuple[str | None, int]:
        arguments = self.arguments("cursor", "limit")
        return arguments["cursor"], bounded(arguments["limit"], self.default_limit)

    async def answer_items(self, page: ReadPage, kind: type, name: str) -> None:
        """Sends `{items,nextCursor}`, or exports the list of items of `kind` as the file `name`.

        `page` reads the store, in a worker, for a cursor and a limit.
        """
        if not await self.is_exported(page, kind, name):
            cursor, limit = self.page_arguments()
            await self.answer(lambda: ItemList(*page(cursor, limit)))

    async def answer_array(self, page: ReadPage, kind: type, name: str) -> None:
        """As `answer_items`, but an array, with the address of the next page in the header `Link`."""
        if not await self.is_exported(page, kind, name):
            await self.answer_linked(page)

    async def answer_linked(self, read: Callable[[str | None, int], tuple[Any, str | None]]) -> None:
        """Sends what `read` returns for a cursor and a limit, and sets the header `Link` to the next cursor."""
        cursor, limit = self.page_arguments()

        def encoded() -> tuple[bytes, str | None]:
            response, next_cursor = in_snapshot(lambda: read(cursor, limit))
            return serializers.encoded(response), next_cursor

        body, next_cursor = await self.tracker.run(encoded)
        if next_cursor is not None:
            query = urlencode({**self.query(), "cursor": next_cursor})
            self.set_header("Link", f'<{self.request.path}?{query}>; rel="next"')
        self.send(body, "application/json")

    async def answer_object(
        self,
        read: Callable[[str | None, int], Any],
        rows: Callable[[Any], Sequence[Any]],
        kind: type,
        name: str,
        kept: tuple[tuple[Hashable, ...], Callable[[], State]] | None = None,
    ) -> None:
        """As `answer_items`, but an object with more fields than the list.

        `read` returns it, with its `next_cursor`, for a cursor and a limit; `rows` are the items of it that are
        exported. `kept`: the key and the state of an answer that is kept (`answer_kept`).
        """

        def page(cursor: str | None, limit: int) -> Page:
            made = read(cursor, limit)
            return rows(made), made.next_cursor

        if await self.is_exported(page, kind, name):
            return
        cursor, limit = self.page_arguments()
        if kept is None:
            await self.answer(lambda: read(cursor, limit))
        else:
            key, state = kept
            await self.answer_kept((*key, cursor, limit), state, lambda: read(cursor, limit))

    async def is_exported(self, page: ReadPage, kind: type, name: str) -> bool:
        """Sends the whole list where `format` is csv or ndjson; returns whether it did. Raises `Invalid`."""
        format = (self.arguments("format")["format"] or "json").lower()
        if format == "json":
            return False
        if format not in _MEDIA_TYPES:
            raise Invalid(f"format must be one of json, {', '.join(_MEDIA_TYPES)}")
        await self._stream(page, kind, name, format)
        return True

    async def _stream(self, page: ReadPage, kind: type, name: str, format: str) -> None:
        """Reads and sends the list piece by piece: a slow client slows the reading down."""
        columns = [name_of(field) for field in attrs.fields(kind)]

        def read(cursor: str | None, is_first: bool) -> tuple[bytes, int, str | None]:
            items, next_cursor = in_snapshot(lambda: page(cursor, _EXPORTED_AT_ONCE))
            rows = serializers.plain(items)
            text = csv_text(columns, rows, is_first) if format == "csv" else "".join(map(_line, rows))
            return text.encode("utf-8", "replace"), len(items), next_cursor

        cursor, _ = self.page_arguments()
        sent, is_first = 0, True
        while sent < MAX_EXPORTED_ROWS:
            body, count, cursor = await self.tracker.run(
                lambda after=cursor, is_first=is_first: read(after, is_first)  # type: ignore[misc]  # no defaults
            )
            if is_first:  # an error before this has its own headers
                self.set_header("Content-Disposition", f'attachment; filename="{name}.{format}"')
                self.set_header("Content-Type", _MEDIA_TYPES[format])
            self.write(body)
            sent, is_first = sent + count, False
            if cursor is None or self.request.method == "HEAD":
                return
            try:
                await self.flush()
            except StreamClosedError:
                return


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
