"""Pages of a project's failure clusters, triage rules, owners and search, and of all tests of a run."""

from __future__ import annotations

from typing import Any

from handlers.base import shown_again
from handlers.http.permissions import READ, SIGNED_IN
from handlers.routing import Route
from handlers.tracker.pages.forms import Form
from handlers.tracker.pages.tracker_pages import ReadPage
from handlers.tracker.triage import MAX_QUERY_CHARACTERS, ClusterFilter
from models.accounts import permissions
from models.inputs import inputs, read
from models.paging import INT32, cut, decode_cursor, whole
from models.tracker import search, visibility
from models.tracker.failures import clusters, triage
from models.tracker.forges import owners
from models.tracker.gate import quality_gate
from models.tracker.runs import run_tests
from models.tracker.runs.run_tests import TestFilter

_ROWS = 100


class FailurePage(ReadPage):
    def filters(self, *names: str) -> tuple[dict[str, str | None], str | None]:
        """The query parameters of these names, and the cursor; None for those that are absent or blank."""
        query = self.query()
        return {name: query.get(name) or None for name in names}, query.get("cursor") or None


class ClustersPage(FailurePage):
    async def get(self, id: str) -> None:
        filters, cursor = self.filters("branch", "since")
        start = read(ClusterFilter, {}, {**self.query(), "limit": "", "format": ""}, {}).since

        def values() -> dict[str, Any]:
            project = visibility.project(self.caller.user, id)
            after = decode_cursor(cursor, int, int) if cursor else None
            rules = triage.rules_of(project.id)
            found = clusters.listing(project.id, rules, _ROWS + 1, after, filters["branch"], start)
            shown, next_cursor = cut(found, _ROWS, clusters.place)
            return {"project": project, "clusters": shown, "next_cursor": next_cursor}

        await self.show("tracker/clusters.html", filters=filters, **await self.read(values))


class TestSearchPage(FailurePage):
    async def get(self, id: str) -> None:
        filters, cursor = self.filters("q", "in")
        filters["in"] = "failures" if filters["in"] == "failures" else "tests"
        q = (filters["q"] or "")[:MAX_QUERY_CHARACTERS]

        def values() -> dict[str, Any]:
            project = visibility.project(self.caller.user, id)
            shown: dict[str, Any] = {"tests": (), "clusters": (), "next_cursor": None, "partial": False}
            if q and filters["in"] == "tests":
                tests = search.project_tests(project.id, q, cursor, _ROWS)
                shown |= {"tests": tests.items, "next_cursor": tests.next_cursor, "partial": tests.is_partial}
            elif q:
                rules = triage.rules_of(project.id)
                failures = search.project_failures(project.id, q, rules, cursor, _ROWS)
                shown |= {
                    "clusters": failures.items, "next_cursor": failures.next_cursor, "partial": failures.is_partial,
                }  # fmt: skip
            return {"project": project, **shown}

        await self.show("tracker/search.html", filters=filters, **await self.read(values))


class RunTestsPage(FailurePage):
    async def get(self, id: str) -> None:
        filters, cursor = self.filters(*(declared.json_name for declared in inputs(TestFilter)))
        wanted = read(TestFilter, {}, self.query(), {})

        def values() -> dict[str, Any]:
            run, project = visibility.run(self.caller.user, id)
            by, rules = owners.of_project(project.id), triage.rules_of(project.id)
            tests, next_cursor = run_tests.page(run, wanted, by, rules, cursor, _ROWS)
            return {"project": project, "run": run, "tests": tests, "next_cursor": next_cursor}

        await self.show("tracker/run_tests.html", filters=filters, **await self.read(values))


class FailureForm(Form, FailurePage):
    """A page that everybody who can read the project sees, with a form for members with WRITE."""

    permission = READ
    permission_to_change = SIGNED_IN

    async def get(self, id: str) -> None:
        raise NotImplementedError

    async def again(self, *arguments: str) -> None:
        await self.get(arguments[0])


class TriagePage(FailureForm):
    async def get(self, id: str) -> None:
        def values() -> dict[str, Any]:
            project = visibility.project(self.caller.user, id)
            writes = permissions.may_write(self.caller.user, project)
            return {"project": project, "rules": triage.rules_of(project.id), "writes": writes}

        await self.show("tracker/triage.html", fields=triage.FIELDS, **await self.read(values))

    @shown_again
    async def post(self, id: str) -> None:
        form: dict[str, Any] = {name: text for name, text in self.form().items() if name != "_xsrf"}
        if form.get("priority", "").strip():
            form["priority"] = whole("priority", form["priority"].strip(), -INT32, INT32)
        values, now = triage.read(form), self.clock.now()
        await self.change(id, "WRITE", lambda project: triage.add(project.id, values, now), "/triage")


class TriageDeletion(Form):
    async def post(self, id: str, rule: str) -> None:
        await self.change(id, "WRITE", lambda project: triage.delete(project.id, int(rule)), "/triage", deletes=True)


class OwnersPage(FailureForm):
    async def get(self, id: str) -> None:
        def values() -> dict[str, Any]:
            project = visibility.project(self.caller.user, id)
            known = owners.of_project(project.id)
            base = quality_gate.thresholds(project, self.config.tracker.quality_gate).base_branch
            writes = permissions.may_write(self.caller.user, project)
            counts = owners.counts(project, known, base)
            return {"project": project, "known": known, "counts": counts, "writes": writes}

        await self.show("tracker/owners.html", **await self.read(values))

    @shown_again
    async def post(self, id: str) -> None:
        text, now = (
            owners.read_codeowners(self.form().get("codeowners", "").encode()) or None,
            self.clock.now(),
        )
        await self.change(
            id, "WRITE", lambda project: owners.store(project.id, text, owners.of_project(project.id).rules, now),
            "/owners",
        )  # fmt: skip


routes: list[Route] = [
    (r"/projects/([0-9]{1,18})/clusters", ClustersPage),
    (r"/projects/([0-9]{1,18})/triage", TriagePage),
    (r"/projects/([0-9]{1,18})/triage/([0-9]{1,18})/delete", TriageDeletion),
    (r"/projects/([0-9]{1,18})/owners", OwnersPage),
    (r"/projects/([0-9]{1,18})/search", TestSearchPage),
    (r"/runs/([0-9]{1,18})/tests", RunTestsPage),
]
