"""The history of status changes, and notices, in pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from handlers.base import Base
from handlers.http import serializers
from handlers.http.permissions import READ
from handlers.http.serializers import PageOf, ProcessEventEntry, ProcessNotice
from handlers.openapi.describe import Endpoint, Parameter, choice, free_text, number, paged
from handlers.routing import Route
from models.errors import Invalid, NotFound
from models.paging import INT32, INT64, MAX_PAGE_SIZE, paging, whole
from models.supervision.events import Filter
from models.supervision.process import STATUSES, Status

_STREAM = '</tracker/api/v1/events>; rel="alternate"; type="text/event-stream"'


def _page_of(sorts: Mapping[str, str], most: int) -> list[Parameter]:
    return paged(choice("sortBy", "The sort key", list(sorts), "eventTime"), most=most)


_PAGE = PageOf[ProcessEventEntry]
_STATUSES = {"type": "string", "enum": [one.value for one in STATUSES]}
_ANY_FIELD = _page_of(serializers.EVENT_SORTS, INT32)
_STATUS = Parameter("status", "The new status", _STATUSES, "path", required=True)
_LINK = {"Link": "Where the stream is that a browser gets at this path."}


class Listing(Base):
    permission = READ

    async def answer(self, sorts: Mapping[str, str], which: Filter | None = None, clamp: bool = False) -> None:
        requested = paging(self.query(), sorts, clamp)
        page = await self.supervision.history.page(requested, which)
        self.reply(serializers.page_of(page, serializers.event_entry))


class Events(Listing):
    endpoints: ClassVar = {
        "GET": Endpoint(
            "List status changes, in pages",
            _PAGE,
            query=_page_of(serializers.COMMON_EVENT_SORTS, MAX_PAGE_SIZE),
            fails=[504],
            tool="event_list",
            headers=_LINK,
        )
    }

    async def get(self) -> None:
        self.set_header("Link", _STREAM)
        self.set_header("Vary", "Accept")
        await self.answer(serializers.COMMON_EVENT_SORTS)


class ByStatus(Listing):
    endpoints: ClassVar = {
        "GET": Endpoint(
            "List changes to one status",
            _PAGE,
            path=[_STATUS],
            query=_ANY_FIELD,
            fails=[504],
            name="event_list_by_status",
        )
    }

    async def get(self, name: str) -> None:
        if name not in {status.value for status in STATUSES}:
            raise Invalid(f"status must be one of {', '.join(status.value for status in STATUSES)}")
        await self.answer(serializers.EVENT_SORTS, Filter(status=Status(name)), clamp=True)


class ByProcess(Listing):
    endpoints: ClassVar = {
        "GET": Endpoint(
            "List status changes of one process",
            _PAGE,
            path=["processName"],
            query=_ANY_FIELD,
            fails=[404, 504],
            name="event_list_by_process",
        )
    }

    async def get(self, name: str) -> None:
        which = Filter(process=name)
        if name not in self.supervision.fleet and not await self.supervision.history.count(which):
            raise NotFound(f"there is no process {name}, neither configured nor in the history", "PROCESS_NOT_FOUND")
        await self.answer(serializers.EVENT_SORTS, which, clamp=True)


class Count(Base):
    permission = READ
    endpoints: ClassVar = {"GET": Endpoint("Count status changes by status", dict[str, int], name="event_count")}

    async def get(self) -> None:
        self.reply(await self.supervision.history.counts())


class Event(Base):
    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint(
            "Get one status change",
            ProcessEventEntry,
            path=[number("id", "The event")],
            fails=[404],
            name="event_info",
        )
    }

    async def get(self, id: str) -> None:
        self.reply(serializers.event_entry(await self.supervision.history.get(whole("id", id, -INT64, INT64))))


class Notices(Base):
    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint(
            "List notices, newest first, in pages",
            PageOf[ProcessNotice],
            query=[
                *paged(),
                free_text("name", "Only notices of this name", "process.gave_up"),
                free_text("process", "Only notices about this process", "web"),
            ],
            fails=[504],
            tool="process_notices",
        )
    }

    async def get(self) -> None:
        query = self.query()
        requested = paging({"sortBy": "time", **query}, {"time": "time"})
        name, process = query.get("name") or None, query.get("process") or None
        page = await self.supervision.notices.page(requested, name, process)
        self.reply(serializers.page_of(page, serializers.notice))


routes: list[Route] = [
    (r"/processes/notices", Notices),
    (r"/events", Events),
    (r"/events/count", Count),
    (r"/events/by-status/([^/]+)", ByStatus),
    (r"/events/by-process/([^/]+)", ByProcess),
    (r"/events/([^/]+)", Event),
]
