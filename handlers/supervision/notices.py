"""Notices in pages."""

from __future__ import annotations

from typing import ClassVar

from handlers.base import Base
from handlers.http import serializers
from handlers.http.permissions import READ
from handlers.http.serializers import PageOf, ProcessNotice
from handlers.openapi.describe import Endpoint, Parameter, free_text
from handlers.openapi.describe import whole as whole_number
from handlers.routing import Route
from models.paging import MAX_PAGE_SIZE, paging

_DIRECTION = {"type": "string", "pattern": "^([Aa][Ss][Cc]|[Dd][Ee][Ss][Cc])?$", "default": "desc"}


class Notices(Base):
    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint(
            "List notices, newest first, in pages",
            PageOf[ProcessNotice],
            query=[
                whole_number("page", "The page number, from 0", 0),
                whole_number("size", "The page size", 20, 1, MAX_PAGE_SIZE),
                Parameter("sortDirection", "asc or desc, in any case", _DIRECTION),
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
        self.reply(serializers.notice_page(await self.supervision.notices.page(requested, name, process)))


routes: list[Route] = [(r"/processes/notices", Notices)]
