"""Projects and runs with the caller's permissions. One that the caller cannot read is reported as not found."""

from __future__ import annotations

from models.accounts.accounts import User
from models.accounts.permissions import ProjectRole, may_own, may_read, may_write, readable, role_in
from models.errors import Denied, Invalid
from models.paging import INT64, whole
from models.tracker import queries
from models.tracker.files import attachments
from models.tracker.files.attachments import Attachment
from models.tracker.queries import Listed
from models.tracker.tables import Project, Run

MAX_PROJECTS = 1000


def project(user: User | None, id: str, role: ProjectRole = "READ") -> Project:
    """The project of this id, in which `user` has `role`. Raises `Invalid`, `NotFound`, `Denied`."""
    number = whole("the id of a project", id, -INT64, INT64)
    found = queries.project(number)
    if not may_read(user, found):
        raise queries.no_project(number)
    check(user, found, role)
    return found


def run(user: User | None, id: str, role: ProjectRole = "READ") -> tuple[Run, Project]:
    """The run of this id and its project, in which `user` has `role`. Raises `Invalid`, `NotFound`, `Denied`."""
    number = whole("the id of a run", id, -INT64, INT64)
    found, owner = queries.run(number)
    if not may_read(user, owner):
        raise queries.no_run(number)
    check(user, owner, role)
    return found, owner


def attachment(user: User | None, id: int) -> Attachment:
    """The attachment of this id, whose run `user` may read. Raises `NotFound`."""
    found = attachments.attachment(id)
    _, owner = queries.run(found.run_id)
    if not may_read(user, owner):
        raise attachments.no_attachment(id)
    return found


def named(user: User | None, name: str) -> Project:
    """The project of this name. Raises `NotFound`."""
    found: Project | None = Project.get_or_none(Project.name == name)
    if found is None or not may_read(user, found):
        raise queries.no_project(name)
    return found


def listed(
    user: User | None, name: str | None = None, limit: int = MAX_PROJECTS, after: str | None = None
) -> list[Listed]:
    """The projects that `user` may read, sorted by name, after the name `after`; with `name` only that project."""
    query = Project.select().where(readable(user, Project))
    if name is not None:
        query = query.where(Project.name == name)
    if after is not None:
        query = query.where(Project.name > after)
    return queries.listed(query.order_by(Project.name).limit(limit))


def pair(user: User | None, base: str, head: str) -> tuple[Run, Run]:
    """Two runs of one project. Raises `Invalid`, `NotFound`."""
    (base_run, project), (head_run, _) = run(user, base), run(user, head)
    if base_run.project_id != head_run.project_id:
        raise Invalid(f"base and head must be runs of one project; only run {base_run.id} is one of {project.name}")
    return base_run, head_run


def newest_runs(user: User | None, project: Project | None, limit: int) -> list[tuple[Run, str]]:
    """The runs that `user` may read, newest first, of one project or all, each with the name of its project."""
    query = Run.select(Run, Project.name.alias("project_name")).join(Project).where(Run.superseded_by.is_null())
    query = query.where(readable(user, Project) if project is None else Run.project == project.id)
    return [(run, run.project_name) for run in query.order_by(Run.id.desc()).limit(limit).objects()]


def check(user: User | None, project: Project, role: ProjectRole) -> None:
    """Raises `Denied` where `user`, who may read `project`, does not have `role` in it."""
    if role == "WRITE" and not may_write(user, project):
        raise Denied("this needs WRITE in the project")
    if role == "OWNER" and not may_own(user, project):
        raise Denied("this needs OWNER in the project")


def check_member(user: User | None, project: Project) -> None:
    """Raises `Denied` where `user` is no member of a public project."""
    if role_in(user, project) is None:
        raise Denied("this needs a membership in the project")
