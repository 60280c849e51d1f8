"""`/runs/{id}/coverage?path=`: one file of a run, with the lines that are covered, missed and changed."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from handlers.base import Base
from handlers.http.permissions import READ
from handlers.operations import Operation, operation_routes
from handlers.routing import Route
from handlers.tracker import serializers
from handlers.tracker.base import answer_kept, in_snapshot
from handlers.tracker.detail_responses import CoveredFileInfo
from handlers.tracker.pages import coverage_strip
from handlers.tracker.pages.run_coverage import run_coverage
from handlers.tracker.pages.tracker_pages import ReadPage
from handlers.tracker.runs import RunRequest
from models.errors import Invalid
from models.inputs import free_text, query, read
from models.json_format import http_message
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


def _read_path(name: str, text: str) -> str:
    if not text:
        raise Invalid(f"{name} is required: a file of the run's coverage reports")
    return text


@http_message
class CoveredFileRequest(RunRequest):
    path: str = query(
        "The path of the file in the coverage report",
        required=True,
        kind=evolve(free_text("shop/cart.py"), read=_read_path, reads_absent=True),
    )


async def run_file(handler: Base, request: CoveredFileRequest) -> object:
    user, id, path, settings = handler.caller.user, request.id, request.path, handler.config.tracker.source
    if await handler.tracker.read_fast(lambda: forges.shows_to(user, id, settings)):
        _, _, file = await from_forge(handler, id, path)
        handler.set_header("Cache-Control", "private, no-store")
        return serializers.covered_file(int(id), file)

    def measured() -> CoveredFileInfo:
        run, project = visibility.run(user, id)
        return serializers.covered_file(run.id, sources.covered_file(run, project, path, settings))

    return await answer_kept(handler, ("file", id, path), lambda: state_of_run(user, id), measured)


class CoveragePage(ReadPage):
    """One file, line by line; without a path the coverage of the run."""

    async def get(self, id: str) -> None:
        query = self.query()
        if not query.get("path"):
            gate = self.config.tracker.quality_gate
            await self.show_kept(
                "tracker/run_coverage.html",
                lambda user: state_of_run(user, id),
                lambda: run_coverage(self.caller.user, id, gate, query),
            )
            return
        path = read(CoveredFileRequest, {"id": id}, query, {}).path
        user, settings = self.caller.user, self.config.tracker.source
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


OPERATIONS = [
    Operation(
        None, "GET", "/runs/{id}/coverage",
        "Get the covered, missed and changed lines of one file of a run, with its source if it is stored",
        CoveredFileRequest, run_file, CoveredFileInfo, error_statuses=[404], name="run_file", permission=READ,
    )
]  # fmt: skip
routes: list[Route] = operation_routes(OPERATIONS)
pages: list[Route] = [(r"/runs/([0-9]{1,18})/coverage", CoveragePage)]
