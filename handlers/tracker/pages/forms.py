"""The forms that change projects and runs; each redirects to a page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from handlers.base import HtmlPage, shown_again, write_page
from handlers.http.permissions import SIGNED_IN
from handlers.routing import Route
from handlers.tracker.pages.setting_fields import fields_of
from handlers.tracker.projects import TriageOfTest
from models.accounts import permissions
from models.accounts.accounts import User
from models.accounts.permissions import PROJECT_ROLES, ProjectRole
from models.config.secret_files import MAX_TOKEN_CHARACTERS
from models.errors import NotFound
from models.inputs import read
from models.tracker import settings
from models.tracker import visibility as visible
from models.tracker.forges import project_forge as forges
from models.tracker.forges.project_forge import TokenChange
from models.tracker.tables import Project, reports

Result = TypeVar("Result")


class TrackedPage(HtmlPage):
    """A page or form of the tracker. A project that the caller cannot read is reported as missing."""

    async def query_store(self, query: Callable[[], Result]) -> Result:
        """Runs `query` in the worker. `NotFound` redirects an anonymous caller to the login."""
        try:
            return await self.tracker.run(query)
        except NotFound as missing:
            raise self.unseen(missing.message) from None

    async def query_fast(self, query: Callable[[], Result]) -> Result:
        """Reads a few rows, as `query_store`, on the loop where the store is a file."""
        try:
            return await self.tracker.read_fast(query)
        except NotFound as missing:
            raise self.unseen(missing.message) from None

    def form(self) -> dict[str, str]:
        return {name: self.form_value(name, is_trimmed=False) for name in self.request.body_arguments}


class Form(TrackedPage):
    permission = SIGNED_IN
    back = "/projects"

    @property
    def user(self) -> User:
        user = self.caller.user
        assert user is not None, "the permission admits account holders only"
        return user

    async def change(
        self, id: str, role: ProjectRole, edit: Callable[[Project], object], then: str = "", *, deletes: bool = False
    ) -> None:
        """Runs `edit` on a project in which the caller has `role`; redirects to `then` below the project's page.

        An `edit` that `deletes` uses the reserve of a full disk.
        """

        def transaction() -> None:
            with reports.atomic():
                edit(visible.project(self.user, id, role))

        await (self.tracker.run_deletion(transaction) if deletes else self.query_store(transaction))
        self.redirect(f"{self.prefix}/projects/{id}{then}", status=303)


class SettingsForm(Form):
    """A form of the settings page."""

    @property
    def address(self) -> str:
        return f"{self.prefix}/projects/{self.path_args[0]}/settings"

    async def again(self, *arguments: str) -> None:
        values = await self.query_store(lambda: self._values(arguments[0]))
        if "forge" in values:
            id = values["project"].id
            refusal = await self.services.outbound.report_refusal(id)
            values["forge"] = self.tracker.forges.state(id, values["forge"], refusal)
        write_page(self, "tracker/project_settings.html", roles=PROJECT_ROLES, **values)

    def _values(self, id: str) -> dict[str, Any]:
        project = visible.project(self.user, id, "WRITE")
        owns = permissions.may_own(self.user, project)
        return {
            "project": project,
            "tracker": self.config.tracker,
            "fields_of": fields_of,
            "for_writers": settings.FOR_WRITERS,
            "for_owners": settings.FOR_OWNERS,
            "for_reports": [name for name in settings.FORGE if name.startswith("forge_reports_")],
            "owns": owns,
            "members": permissions.members_of(project.id) if owns else [],
            **(self._forge(project) if owns else {}),
        }

    def _forge(self, project: Project) -> dict[str, Any]:
        return {
            "forge": forges.link(project, self.config.tracker.forges),
            "offered": forges.offered(project),
            "token_limit": MAX_TOKEN_CHARACTERS,
        }


class OwnerSettingsForm(SettingsForm):
    """Stores the settings of one form."""

    columns: tuple[str, ...] = settings.FOR_OWNERS
    role: ProjectRole = "OWNER"

    @shown_again
    async def post(self, id: str) -> None:
        columns = settings.read_form(self.form(), self.columns)
        await self.change(id, self.role, lambda project: settings.change(project, columns), "/settings")
        await self.services.outbound.project_changed(int(id))


class ProjectSettingsPage(OwnerSettingsForm):
    """`GET` shows all forms of the page, `POST` stores those that WRITE suffices for."""

    columns = settings.FOR_WRITERS
    role = "WRITE"

    async def get(self, id: str) -> None:
        await self.again(id)


class ForgeForm(SettingsForm):
    """Where source lines come from. An empty token stays as it is.

    Only the box that names the repository confirms it for the forge's token, and only by an ADMIN.
    """

    @shown_again
    async def post(self, id: str) -> None:
        form, sources, now = self.form(), self.tracker.forges, self.clock.now()
        forge_settings = self.config.tracker.forges
        columns = {"source_mode": None, "forge_repo": None, **settings.read_form(form, settings.FORGE)}
        typed, token = columns.pop("forge_token", None), None
        if form.get("remove_token") or typed:
            token = TokenChange(None if form.get("remove_token") else typed)
        is_confirmed = self.user.is_admin and form.get("confirmed_repo", "") == (columns["forge_repo"] or "-")
        await self.change(
            id,
            "OWNER",
            lambda project: forges.change(project, columns, token, sources.secrets, forge_settings, now, is_confirmed),
            "/settings",
        )
        sources.forget_refusal(int(id))
        await self.services.outbound.project_changed(int(id))


class Visibility(SettingsForm):
    @shown_again
    async def post(self, id: str) -> None:
        visibility = self.form().get("visibility", "")
        await self.change(id, "OWNER", lambda project: settings.set_visibility(project, visibility), "/settings")


class Members(SettingsForm):
    @shown_again
    async def post(self, id: str) -> None:
        form, now = self.form(), self.clock.now()
        name, role = form.get("username", "").strip(), form.get("role", "READ")
        await self.change(id, "OWNER", lambda project: settings.grant(project, name, role, self.user, now), "/settings")


class Removal(SettingsForm):
    """Removes a member. One who removes himself is redirected to the project: the settings are closed to him."""

    @shown_again
    async def post(self, id: str, user_id: str) -> None:
        member = int(user_id)
        then = "" if member == self.user.id else "/settings"
        await self.change(id, "OWNER", lambda project: settings.remove(project, member, self.user), then, deletes=True)


class FlakyStatus(Form):
    async def post(self, id: str) -> None:
        triage, now = read(TriageOfTest, {}, {}, self.form()), self.clock.now()
        await self.change(id, "WRITE", lambda project: triage.store(project, self.user, now), "#flaky")
        self.tracker.retention.wake()
        await self.services.outbound.project_changed(int(id))


class RunDeletion(Form):
    async def post(self, id: str) -> None:
        run, project = await self.query_store(lambda: visible.run(self.user, id, "WRITE"))
        async with self.services.outbound.run_deletion(run.id):
            await self.tracker.retention.delete(run.id)
        self.redirect(f"{self.prefix}/projects/{project.id}", status=303)


routes: list[Route] = [
    (r"/projects/([0-9]{1,18})/settings", ProjectSettingsPage),
    (r"/projects/([0-9]{1,18})/rules", OwnerSettingsForm),
    (r"/projects/([0-9]{1,18})/visibility", Visibility),
    (r"/projects/([0-9]{1,18})/forge", ForgeForm),
    (r"/projects/([0-9]{1,18})/members", Members),
    (r"/projects/([0-9]{1,18})/members/([0-9]{1,18})/remove", Removal),
    (r"/projects/([0-9]{1,18})/flaky/status", FlakyStatus),
    (r"/runs/([0-9]{1,18})/delete", RunDeletion),
]
