"""`/open-projects`: the projects that anonymous callers created, for an ADMIN to read and delete, and their page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from handlers.base import Base, shown_again, write_long_page
from handlers.http.permissions import ADMINISTER
from handlers.operations import Operation, operation_routes
from handlers.routing import Route
from handlers.tracker import lists
from handlers.tracker.lists import ListRequest, answer_array
from handlers.tracker.pages.forms import TrackedPage
from models.errors import Invalid
from models.inputs import InputKind, body
from models.json_format import Instant, http_message
from models.paging import INT64, cut, decode_cursor
from models.tracker import open_projects
from models.tracker.open_projects import OpenProject

_MAX_DELETED = _MAX_SHOWN = 500


@http_message
class OpenProjectInfo:
    id: int
    name: str
    created_at: Instant
    created_from: str | None
    """The address of the caller that created it."""
    run_count: int


@http_message
class DeletedProjects:
    deleted: Sequence[int]
    kept: Sequence[int]
    """Those that have a member, that were uploaded to meanwhile, or that do not exist."""


@http_message
class OpenProjectList(ListRequest):
    limit: int | None = lists.limit()


async def list_open(handler: Base, request: OpenProjectList) -> object:
    def page(cursor: str | None, limit: int) -> lists.Page:
        after = decode_cursor(cursor, int)[0] if cursor else 0
        shown, next_cursor = cut(open_projects.listed(after, limit + 1), limit, lambda project: (project.id,))
        return [_info(project) for project in shown], next_cursor

    return await answer_array(handler, request, page, OpenProjectInfo, "open-projects")


def _info(project: OpenProject) -> OpenProjectInfo:
    return OpenProjectInfo(project.id, project.name, Instant(project.created_at), project.created_from, project.runs)


def _read_ids(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= _MAX_DELETED:
        raise Invalid(f"{name} must be a list of 1 to {_MAX_DELETED} ids")
    if not all(type(id) is int and -INT64 <= id <= INT64 for id in value):
        raise Invalid(f"{name} must be ids of projects")
    return tuple(dict.fromkeys(value))


_ID = {"type": "integer", "format": "int64"}


@http_message
class ProjectsToDelete:
    ids: tuple[int, ...] = body(
        "The ids of open projects",
        required=True,
        kind=InputKind(
            {"type": "array", "items": _ID, "minItems": 1, "maxItems": _MAX_DELETED}, _read_ids, reads_absent=True
        ),
    )


async def delete_open(handler: Base, request: ProjectsToDelete) -> DeletedProjects:
    deleted = await handler.tracker.retention.delete_open_projects(request.ids)
    return DeletedProjects(deleted, [id for id in request.ids if id not in deleted])


class OpenProjects(TrackedPage):
    """The open projects, with a form that deletes the selected ones; those without a run are selected."""

    permission = ADMINISTER
    back = "/projects/open"

    async def get(self) -> None:
        await self.again()

    async def again(self, *arguments: str) -> None:
        found = await self.query_store(lambda: open_projects.listed(0, _MAX_SHOWN + 1))
        await write_long_page(
            self, "tracker/open_projects.html", found=found[:_MAX_SHOWN], is_cut=len(found) > _MAX_SHOWN
        )

    @shown_again
    async def post(self) -> None:
        ids = self.form_values("id")
        if not ids:
            raise Invalid("no project is selected")
        if not all(id.isascii() and id.isdigit() and len(id) <= 18 for id in ids):
            raise Invalid("a project is selected by its id")
        await self.tracker.retention.delete_open_projects(dict.fromkeys(map(int, ids)))
        self.redirect(self.prefix + self.back, status=303)


OPERATIONS = [
    Operation(
        None, "GET", "/open-projects", "List the projects that were created without an account", OpenProjectList,
        list_open, list[OpenProjectInfo], also=lists.EXPORTS, name="open_project_list", permission=ADMINISTER,
        headers=lists.NEXT_LINK,
    ),
    Operation(
        None, "POST", "/open-projects/delete", "Delete projects that were created without an account, and their runs",
        ProjectsToDelete, delete_open, DeletedProjects, name="open_project_deletion", permission=ADMINISTER,
    ),
]  # fmt: skip
routes: list[Route] = operation_routes(OPERATIONS)
page_routes: list[Route] = [(r"/projects/open", OpenProjects)]
