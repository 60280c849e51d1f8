"""The query of a table: search, status, sort and page as URL parameters, so that a filtered table is a link."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlencode

from attrs import Factory, evolve, frozen

from models.errors import Invalid
from models.paging import whole

Item = TypeVar("Item")

PAGE_SIZES = (25, 50, 100, 200)
DEFAULT_SIZE = 50
_MAX_PAGE = 100_000


@frozen
class TableQuery:
    """The requested part of a table. `ignored` describes the parameters that were not understood."""

    path: str
    q: str = ""
    status: str = ""
    sort: str = ""
    page: int = 0
    size: int = DEFAULT_SIZE
    ignored: tuple[str, ...] = ()
    extra: Mapping[str, str] = Factory(dict)
    """Further parameters of the page, which its links keep."""
    status_name: str = "status"
    """The name of the parameter that holds `status`."""
    status_label: str = "Status"
    """The label of its field."""
    total: int = 0
    """The number of matching rows, set by `page_of`."""

    @property
    def sort_key(self) -> str:
        return self.sort.removeprefix("-")

    @property
    def descending(self) -> bool:
        return self.sort.startswith("-")

    @property
    def pages(self) -> int:
        return max(1, -(-self.total // self.size))

    @property
    def is_filtered(self) -> bool:
        return bool(self.q or self.status or any(self.extra.values()))

    def url(self, **changes: Any) -> str:
        """The URL of this table with changes; every change except of the page leads to the first page."""
        values: dict[str, Any] = {
            "q": self.q,
            self.status_name: self.status,
            "sort": self.sort,
            "page": 0,
            "size": self.size,
        }
        values |= {**self.extra, **changes}
        defaults = {"page": 0, "size": DEFAULT_SIZE}
        shown = {name: value for name, value in values.items() if value != defaults.get(name, "")}
        return f"{self.path}?{urlencode(shown)}" if shown else self.path

    def sort_url(self, key: str) -> str:
        """The URL that sorts by a column; a second time in the other direction."""
        return self.url(sort=f"-{key}" if self.sort == key else key)

    def aria_sort(self, key: str) -> str:
        return "" if key != self.sort_key else "descending" if self.descending else "ascending"


def read_table(
    path: str,
    query: Mapping[str, str],
    sorts: Collection[str],
    statuses: Collection[str],
    extra: Collection[str] = (),
    status_name: str = "status",
    status_label: str = "Status",
) -> TableQuery:
    """Reads the query of a page. Values that are not understood are ignored and named in `ignored`."""
    ignored = []
    status, sort = query.get(status_name, ""), query.get("sort", "")
    if status and status not in statuses:
        ignored.append(f"{status_name} {status}")
        status = ""
    if sort and sort.removeprefix("-") not in sorts:
        ignored.append(f"sort {sort}")
        sort = ""
    page, size = read_number("page", query, 0, ignored), read_number("size", query, DEFAULT_SIZE, ignored)
    if size not in PAGE_SIZES:
        ignored.append(f"size {size}")
        size = DEFAULT_SIZE
    kept = {name: query.get(name, "").strip() for name in extra}
    text = query.get("q", "").strip()
    return TableQuery(path, text, status, sort, page, size, tuple(ignored), kept, status_name, status_label)


def read_number(name: str, query: Mapping[str, str], default: int, ignored: list[str]) -> int:
    """A number of the query, or the default; one that is not understood is added to `ignored`."""
    try:
        return whole(name, query.get(name) or str(default), 0, _MAX_PAGE)
    except Invalid:
        ignored.append(f"{name} {query[name]}")
        return default


def page_of(
    table: TableQuery, items: Sequence[Item], keys: Mapping[str, Callable[[Item], Any]]
) -> tuple[TableQuery, list[Item]]:
    """Sorts the matching items and returns the page that the query names, or the last one, with its table."""
    if table.sort:
        items = sorted(items, key=keys[table.sort_key], reverse=table.descending)
    counted = evolve(table, total=len(items))
    shown = evolve(counted, page=min(table.page, counted.pages - 1))
    return shown, list(items[shown.page * shown.size : (shown.page + 1) * shown.size])
