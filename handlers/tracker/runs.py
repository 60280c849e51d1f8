"""Runs as programs read them: one with what it holds, the gate's word on it, two beside each other; deleting one."""

from __future__ import annotations

from typing import ClassVar

from attrs import evolve

from handlers.http.permissions import READ, SIGNED_IN, Permission
from handlers.openapi.describe import Endpoint, Parameter, number
from handlers.routing import Route
from handlers.tracker import serializers
from handlers.tracker.base import Tracked
from handlers.tracker.responses import ComparisonInfo, RunDetail, RunVerdict
from models.errors import Invalid
from models.tracker import comparison, coverage, queries, visibility
from models.tracker.quality_gate import verdict

_ID = number("id", "The run")


class Run(Tracked):
    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint(
            "A run with what it holds", RunDetail, path=["id"], query=[_ID], fails=[404], tool="run_detail"
        ),
        "DELETE": Endpoint("Delete a run", None, 204, path=["id"], query=[_ID], fails=[404], name="run_delete"),
    }

    @classmethod
    def permission_of(cls, method: str) -> Permission:
        return SIGNED_IN if method == "DELETE" else READ

    async def get(self, id: str) -> None:
        await self.answer(lambda: self._detail(id))

    async def delete(self, id: str) -> None:
        run, _ = await self.services.run_in_tracker(lambda: visibility.run(self.user, id, "WRITE"))
        await self.services.retention.delete(run.id)
        self.set_status(204)
        self.clear_header("Content-Type")

    def _detail(self, id: str) -> RunDetail:
        run, project = visibility.run(self.user, id)
        judged = verdict(run, project, self.services.config.tracker.quality_gate)
        return serializers.run_detail(run, project, judged, queries.detail(run.id), coverage.files(run))


class QualityGate(Tracked):
    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint(
            "The quality gate's word on a run", RunVerdict, path=["id"], query=[_ID], fails=[404], name="run_verdict"
        )
    }

    async def get(self, id: str) -> None:
        def judged() -> RunVerdict:
            run, project = visibility.run(self.user, id)
            return serializers.run_verdict(run, verdict(run, project, self.services.config.tracker.quality_gate))

        await self.answer(judged)


def _run(name: str, about: str) -> Parameter:
    return evolve(number(name, about), where="query")


class Compare(Tracked):
    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint(
            "Two runs of one project beside each other",
            ComparisonInfo,
            query=[_run("base", "The run that is compared with"), _run("head", "The run that is compared")],
            fails=[404],
            name="run_compare",
        )
    }

    async def get(self) -> None:
        asked = self.asked("base", "head")
        base, head = asked["base"], asked["head"]
        if base is None or head is None:
            raise Invalid("base and head are required: the ids of two runs")
        await self.answer(lambda: self._compared(base, head))

    def _compared(self, base: str, head: str) -> ComparisonInfo:
        return serializers.comparison_info(comparison.compare(*visibility.pair(self.user, base, head)))


routes: list[Route] = [
    (r"/runs/([^/]+)", Run),
    (r"/runs/([^/]+)/quality-gate", QualityGate),
    (r"/compare", Compare),
]
