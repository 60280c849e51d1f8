"""Schedules and the runs of jobs: runs in pages, pausing and resuming."""

from __future__ import annotations

from typing import ClassVar

from attrs import evolve

from handlers.base import Base
from handlers.http.permissions import CONTROL_PROCESSES, READ
from handlers.http.serializers import PageOf, ResponseMessage, page_of
from handlers.openapi.describe import Endpoint, choice, paged
from handlers.routing import Route
from handlers.supervision import details
from handlers.supervision.details import ProcessRun
from models.paging import paging

_PAUSED = evolve(choice("paused", "true pauses the schedule, false resumes it", ["true", "false"]), required=True)


class Runs(Base):
    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint(
            "List the runs of a job, newest first, in pages",
            PageOf[ProcessRun],
            path=["name"],
            query=paged(),
            fails=[404, 504],
            tool="process_runs",
        )
    }

    async def get(self, name: str) -> None:
        requested = paging({"sortBy": "id", **self.query()}, {"id": "id"})
        page = await self.supervision.context.runs.page(name, requested)
        if not page.total:
            self.supervision.fleet.get(name)  # raises NotFound
        self.reply(page_of(page, details.process_run))


class ScheduleState(Base):
    """Pauses and resumes the schedule of one process; its run, if any, continues."""

    permission = CONTROL_PROCESSES
    endpoints: ClassVar = {
        "POST": Endpoint(
            "Pause or resume the schedule of one process",
            ResponseMessage,
            path=["name"],
            query=[_PAUSED],
            fails=[400, 404, 500],
            tool="process_schedule",
        )
    }

    async def post(self, name: str) -> None:
        paused = self.flag("paused", default="")
        self.reply(ResponseMessage(await self.supervision.scheduler.pause(name, paused)))


routes: list[Route] = [
    (r"/processes/runs/([^/]+)", Runs),
    (r"/processes/schedule/([^/]+)", ScheduleState),
]
