"""`GET /gate`: the verdict on the newest run of a commit or a branch."""

from __future__ import annotations

from typing import ClassVar

from handlers.http.permissions import READ
from handlers.openapi.describe import Endpoint, Parameter, word
from handlers.routing import Route
from handlers.tracker import serializers
from handlers.tracker.base import Tracked
from handlers.tracker.responses import GateVerdict
from models.errors import Invalid, NotFound
from models.tracker import queries, visibility
from models.tracker.quality_gate import verdict

_ASKED = (
    Parameter("project", "The name of the project", {"type": "string", "examples": ["shop"]}, required=True),
    word("commit", "The newest run of this commit; it wins over `branch`", "9fceb02d0ae598e95dc970b74767f19372d61af8"),
    word("branch", "The newest run on this branch; one of `commit` and `branch` is required", "main"),
    word("flag", "Only runs with this flag", "default"),
)


class GateVerdictHandler(Tracked):
    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint(
            "The verdict on the newest run of a commit or a branch",
            GateVerdict,
            query=_ASKED,
            fails=[404],
            tool="gate_verdict",
        )
    }

    async def get(self) -> None:
        asked = self.asked("project", "commit", "branch", "flag")
        name, commit, branch = asked["project"], asked["commit"], asked["branch"]
        if name is None:
            raise Invalid("project is required")
        if commit is None and branch is None:
            raise Invalid("one of commit and branch is required")
        if commit is not None:
            branch = None  # the commit wins
        await self.answer(lambda: self._judged(name, commit, branch, asked["flag"]))

    def _judged(self, name: str, commit: str | None, branch: str | None, flag: str | None) -> GateVerdict:
        project = visibility.named(self.user, name)
        run = queries.newest(project.id, commit, branch, flag)
        if run is None:
            which = f"of commit {commit}" if commit is not None else f"on branch {branch}"
            raise NotFound(f"{name} has no run {which}" + (f" with the flag {flag}" if flag else ""), "RUN_NOT_FOUND")
        return serializers.gate_verdict(project, run, verdict(run, project, self.services.config.tracker.quality_gate))


routes: list[Route] = [(r"/gate", GateVerdictHandler)]
