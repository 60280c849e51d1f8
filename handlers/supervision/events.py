"""The history of status changes, and notices, in pages."""

from __future__ import annotations

from functools import partial

from handlers.base import Base
from handlers.http import serializers
from handlers.http.permissions import READ
from handlers.http.serializers import PageOf, ProcessEventEntry, ProcessNotice
from handlers.operations import NoInputs, Operation, operation_routes
from handlers.routing import Route
from models.errors import NotFound
from models.inputs import ID, NAME, PageRequest, choice, free_text, path, query, whole
from models.json_format import http_message
from models.paging import INT32
from models.supervision.events import Filter
from models.supervision.process import STATUSES, Status

_STREAM = '</tracker/api/v1/events>; rel="alternate"; type="text/event-stream"'


_LINK = {"Link": "Where the stream is that a browser gets at this path."}
_SORT_BY = "The sort key"


@http_message
class EventPage(PageRequest):
    sort_by: str = query(_SORT_BY, "eventTime", kind=choice(*serializers.COMMON_EVENT_SORTS), place=3)


@http_message
class AnyEventPage(PageRequest):
    size: int = query("The page size", 20, kind=whole(1, INT32), place=2)  # lowered to 100 (supervision.md, Paging)
    sort_by: str = query(_SORT_BY, "eventTime", kind=choice(*serializers.EVENT_SORTS), place=3)


@http_message
class EventsByStatus(AnyEventPage):
    status: str = path("The new status", kind=choice(*(status.value for status in STATUSES)))


@http_message
class EventsByProcess(AnyEventPage):
    process_name: str = path(kind=NAME)


@http_message
class EventRequest:
    id: int = path("The event", kind=ID)


@http_message
class NoticePage(PageRequest):
    sort_by: str = query(_SORT_BY, "time", kind=choice("time"), place=3)
    name: str | None = query("Only notices of this name", kind=free_text("process.gave_up"))
    process: str | None = query("Only notices about this process", kind=free_text("web"))


async def _page(
    handler: Base, request: EventPage | AnyEventPage, which: Filter | None = None
) -> PageOf[ProcessEventEntry]:
    requested = request.paging(serializers.EVENT_SORTS[request.sort_by])
    return serializers.page_of(await handler.supervision.history.page(requested, which), serializers.event_entry)


async def list_events(handler: Base, request: EventPage) -> PageOf[ProcessEventEntry]:
    handler.set_header("Link", _STREAM)
    handler.set_header("Vary", "Accept")
    return await _page(handler, request)


async def list_by_status(handler: Base, request: EventsByStatus) -> PageOf[ProcessEventEntry]:
    return await _page(handler, request, Filter(status=Status(request.status)))


async def list_by_process(handler: Base, request: EventsByProcess) -> PageOf[ProcessEventEntry]:
    name, supervision = request.process_name, handler.supervision
    which = Filter(process=name)
    if name not in supervision.fleet and not await supervision.history.count(which):
        raise NotFound(f"there is no process {name}, neither configured nor in the history", "PROCESS_NOT_FOUND")
    return await _page(handler, request, which)


async def count_events(handler: Base, _: NoInputs) -> dict[str, int]:
    return await handler.supervision.history.counts()


async def event_info(handler: Base, request: EventRequest) -> ProcessEventEntry:
    return serializers.event_entry(await handler.supervision.history.get(request.id))


async def list_notices(handler: Base, request: NoticePage) -> PageOf[ProcessNotice]:
    page = await handler.supervision.notices.page(request.paging(request.sort_by), request.name, request.process)
    return serializers.page_of(page, serializers.notice)


_read = partial(Operation, permission=READ)
OPERATIONS = [
    _read(
        "process_notices", "GET", "/processes/notices", "List notices, newest first, in pages", NoticePage,
        list_notices, PageOf[ProcessNotice], error_statuses=[504],
    ),
    _read(
        "event_list", "GET", "/events", "List status changes, in pages", EventPage, list_events,
        PageOf[ProcessEventEntry], error_statuses=[504], headers=_LINK,
    ),
    _read(
        None, "GET", "/events/count", "Count status changes by status", NoInputs, count_events, dict[str, int],
        name="event_count",
    ),
    _read(
        None, "GET", "/events/by-status/{status}", "List changes to one status", EventsByStatus, list_by_status,
        PageOf[ProcessEventEntry], error_statuses=[504], name="event_list_by_status",
    ),
    _read(
        None, "GET", "/events/by-process/{processName}", "List status changes of one process", EventsByProcess,
        list_by_process, PageOf[ProcessEventEntry], error_statuses=[404, 504], name="event_list_by_process",
    ),
    _read(
        None, "GET", "/events/{id}", "Get one status change", EventRequest, event_info, ProcessEventEntry,
        error_statuses=[404], name="event_info",
    ),
]  # fmt: skip
routes: list[Route] = operation_routes(OPERATIONS)
