"""`/runs/{id}/coverage?path=`: one file of a run, with the lines that are covered, missed and changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from handlers.base import Base
from handlers.http.permissions import READ
from handlers.openapi.describe import Endpoint, Parameter, number
from handlers.routing import Route
from handlers.tracker import serializers
from handlers.tracker.base import Tracked, in_snapshot
from handlers.tracker.detail_responses import CoveredFileInfo
from handlers.tracker.pages import coverage_strip
from handlers.tracker.pages.tracker_pages import ReadPage
from models.errors import Invalid
from models.tracker import visibility
from models.tracker.coverage.file_coverage import neighbours
from models.tracker.coverage.patch import within
from models.tracker.files import sources
from models.tracker.files.sources import MAX_LINES, CoveredFile
from models.tracker.forges import project_forge as forges
from models.tracker.forges.forge_links import line_url
from models.tracker.forges.project_forge import FileRequest
from models.tracker.runs.kept_answers import state_of_run
from models.tracker.tables import Project, Run

_PATH = Parameter(
    "path",
    "The path of the file in the coverage report",
    {"type": "string", "examples": ["shop/cart.py"]},
    required=True,
)


class CoveredLines(Tracked):
    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint(
            "Get the covered, missed and changed lines of one file of a run, with its source if it is stored",
            CoveredFileInfo, path=[number("id", "The run")], query=[_PATH], fails=[404], name="run_file",
        )
    }  # fmt: skip

    async def get(self, id: str) -> None:
        path = _path(self.query())
        if await self.tracker.read_fast(lambda: forges.shows_to(self.user, id, self.config.tracker.source)):
            _, _, file = await from_forge(self, id, path)
            self.set_header("Cache-Control", "private, no-store")
            self.reply(serializers.covered_file(int(id), file))
            return

        def measured() -> CoveredFileInfo:
            run, project = visibility.run(self.user, id)
            settings = self.config.tracker.source
            return serializers.covered_file(run.id, sources.covered_file(run, project, path, settings))

        await self.answer_kept(("file", id, path), lambda: state_of_run(self.user, id), measured)


class CoveragePage(ReadPage):
    """One file, line by line."""

    async def get(self, id: str) -> None:
        path, user, settings = _path(self.query()), self.caller.user, self.config.tracker.source
        if await self.query_fast(lambda: forges.shows_to(user, id, settings)):
            run, project, file = await from_forge(self, id, path)
            values = await self.tracker.run(lambda: self._values(run, project, file))
            await self.show("tracker/coverage.html", **values)
            return

        def measured() -> dict[str, Any]:
            run, project = visibility.run(user, id)
            return self._values(run, project, sources.covered_file(run, project, path, settings))

        await self.show_kept("tracker/coverage.html", lambda user: state_of_run(user, id), measured)

    def _values(self, run: Run, project: Project, file: CoveredFile) -> dict[str, Any]:
        return {
            "project": project,
            "run": run,
            "file": file,
            "lines": _lines(file) if file.text is not None else [],
            "max_lines": MAX_LINES,
            "strip": coverage_strip.strip(file),
            "missed": coverage_strip.ranges(file.missed),
            "neighbours": neighbours(run, file.path),
            "line_url": line_url,
        }


async def from_forge(handler: Base, id: str, path: str) -> tuple[Run, Project, CoveredFile]:
    """A covered file with the text that the forge has of it, for a member."""
    user, settings = handler.caller.user, handler.config.tracker

    def read() -> tuple[Run, Project, CoveredFile, FileRequest | str]:
        run, project = visibility.run(user, id)
        file = sources.covered_file(run, project, path, settings.source)
        return run, project, file, forges.request(run, project, file, settings.forges)

    run, project, file, request = await handler.tracker.run(lambda: in_snapshot(read))
    return run, project, await handler.tracker.forges.with_text(file, request)


def _lines(file: CoveredFile) -> list[tuple[int, str, bool, str]]:
    """Number, kind, whether it was changed, and text of the first lines of a file with its text."""
    kinds = {**dict.fromkeys(file.missed, "missed"), **dict.fromkeys(file.covered, "covered")}
    texts = file.text or ()
    numbers = range(1, min(len(texts), MAX_LINES) + 1)
    changed = within(list(numbers), file.changed)
    return [(line, kinds.get(line, ""), line in changed, texts[line - 1].rstrip("\r")) for line in numbers]


def _path(query: Mapping[str, str]) -> str:
    path = query.get("path", "").strip()
    if not path:
        raise Invalid("path is required: a file of the run's coverage reports")
    return path


routes: list[Route] = [(r"/runs/([^/]+)/coverage", CoveredLines)]
pages: list[Route] = [(r"/runs/([0-9]{1,18})/coverage", CoveragePage)]
