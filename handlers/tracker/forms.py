"""What people change of projects and runs by the forms of the pages; each leads back to a page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from handlers.base import Page, shown_again, write_page
from handlers.http.permissions import SIGNED_IN
from handlers.routing import Route
from handlers.tracker.projects import read_triage
from models.accounts import permissions
from models.accounts.accounts import User
from models.accounts.permissions import PROJECT_ROLES, ProjectRole
from models.errors import NotFound
from models.tracker import flaky, quality_gate, settings
from models.tracker import visibility as visible
from models.tracker.tables import Project, reports

Result = TypeVar("Result")


class TrackedPage(Page):
    """A page of the tracker, or a form of one. Whoever may not read a project sees what he sees of one that is not."""

    async def seen(self, query: Callable[[], Result]) -> Result:
        """Runs `query` in the worker; what it does not find may be there for somebody who logs in."""
        try:
            return await self.services.run_in_tracker(query)
        except NotFound as missing:
            raise self.unseen(missing.message) from None

    def form(self) -> dict[str, str]:
        return {name: self.get_body_argument(name, strip=False) for name in self.request.body_arguments}


class Form(TrackedPage):
    permission = SIGNED_IN
    back = "/projects"

    @property
    def user(self) -> User:
        user = self.caller.user
        assert user is not None, "the gate lets in account holders only"
        return user

    async def change(self, id: str, role: ProjectRole, work: Callable[[Project], None], then: str = "") -> None:
        """Does `work` on a project in which the caller has `role`, and leads on to a page below the project's."""

        def changed() -> None:
            with reports.atomic():
                work(visible.project(self.user, id, role))

        await self.seen(changed)
        self.redirect(f"{self.prefix}/projects/{id}{then}", status=303)


class SettingsForm(Form):
    """A form of the page of settings."""

    async def again(self, *arguments: str) -> None:
        facts = await self.seen(lambda: self._facts(arguments[0]))
        write_page(self, "tracker/project_settings.html", roles=PROJECT_ROLES, **facts)

    def _facts(self, id: str) -> dict[str, Any]:
        project = visible.project(self.user, id, "WRITE")
        owns = permissions.may_own(self.user, project)
        return {
            "project": project,
            "house": quality_gate.thresholds(Project(), self.services.config.tracker.quality_gate),
            "owns": owns,
            "members": permissions.members_of(project.id) if owns else [],
        }


class Settings(SettingsForm):
    """`GET` shows the forms, `POST` takes the thresholds."""

    async def get(self, id: str) -> None:
        await self.again(id)

    @shown_again
    async def post(self, id: str) -> None:
        columns = settings.read(self.form())
        await self.change(id, "WRITE", lambda project: settings.change(project, columns), "/settings")


class Visibility(SettingsForm):
    @shown_again
    async def post(self, id: str) -> None:
        visibility = self.form().get("visibility", "")
        await self.change(id, "OWNER", lambda project: settings.set_visibility(project, visibility), "/settings")


class Members(SettingsForm):
    @shown_again
    async def post(self, id: str) -> None:
        form, now = self.form(), self.services.clock.now()
        name, role = form.get("username", "").strip(), form.get("role", "READ")
        await self.change(id, "OWNER", lambda project: settings.grant(project, name, role, self.user, now), "/settings")


class Removal(SettingsForm):
    """Ends a membership. Who ends his own may not see the settings any more."""

    @shown_again
    async def post(self, id: str, user_id: str) -> None:
        then = "" if int(user_id) == self.user.id else "/settings"
        await self.change(id, "OWNER", lambda project: settings.remove(project, int(user_id), self.user), then)


class FlakyStatus(Form):
    async def post(self, id: str) -> None:
        said, now = read_triage(self.form()), self.services.clock.now()
        await self.change(id, "WRITE", lambda project: flaky.set_triage(project.id, *said, self.user.id, now), "#flaky")


class RunDeletion(Form):
    async def post(self, id: str) -> None:
        run, project = await self.seen(lambda: visible.run(self.user, id, "WRITE"))
        await self.services.retention.delete(run.id)
        self.redirect(f"{self.prefix}/projects/{project.id}", status=303)


routes: list[Route] = [
    (r"/projects/([0-9]{1,18})/settings", Settings),
    (r"/projects/([0-9]{1,18})/visibility", Visibility),
    (r"/projects/([0-9]{1,18})/members", Members),
    (r"/projects/([0-9]{1,18})/members/([0-9]{1,18})/remove", Removal),
    (r"/projects/([0-9]{1,18})/flaky/status", FlakyStatus),
    (r"/runs/([0-9]{1,18})/delete", RunDeletion),
]
