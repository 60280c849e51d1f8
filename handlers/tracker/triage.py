"""Failure clusters, triage rules, owners and the search of a project."""

from __future__ import annotations

from typing import Any, ClassVar

from handlers.http.permissions import READ, SIGNED_IN
from handlers.openapi.describe import Body, Endpoint, Field, Parameter, choice, free_text, number
from handlers.routing import Route
from handlers.tracker import lists, serializers
from handlers.tracker.base import Tracked
from handlers.tracker.lists import ItemList, ListHandler
from handlers.tracker.responses import (
    FoundItem,
    FoundTestInfo,
    OwnersInfo,
    ProjectSearchResult,
)
from models.errors import Invalid
from models.json_format import read_rfc3339
from models.paging import INT32, cut, decode_cursor, page_after
from models.paging import whole as read_whole
from models.tracker import search, visibility
from models.tracker.failures import clusters, triage
from models.tracker.failures.clusters import ClusterInfo
from models.tracker.failures.triage import TriageRuleInfo
from models.tracker.forges import owners
from models.tracker.forges.owners import OwnerInfo
from models.tracker.gate import quality_gate
from models.tracker.runs.kept_answers import state_of_project
from models.tracker.tables import reports

ID = number("id", "The project")
MAX_QUERY_CHARACTERS = 500


def since(text: str | None) -> int | None:
    """Microseconds since 1970 of the parameter `since`; without a zone it is UTC. Raises `Invalid`."""
    return None if text is None else read_rfc3339("since", text, zone_needed=False)


class Clusters(ListHandler):
    permission = READ
    endpoints: ClassVar = {
        "GET": lists.list_endpoint(
            "List the failure clusters of a project, most occurrences first",
            ItemList[ClusterInfo],
            ID,
            free_text("branch", "Only failures on this branch", "main"),
            free_text("since", "Only failures of runs since this time", "2026-11-20T19:00:00Z"),
            tool="failure_clusters",
        )
    }

    async def get(self, id: str) -> None:
        arguments = self.arguments("branch", "since")
        branch, start = arguments["branch"], since(arguments["since"])

        def page(cursor: str | None, limit: int) -> lists.Page:
            project = visibility.project(self.user, id)
            after = decode_cursor(cursor, int, int) if cursor else None
            rules = triage.rules_of(project.id)
            return cut(clusters.listing(project.id, rules, limit + 1, after, branch, start), limit, clusters.place)

        await self.answer_items(page, ClusterInfo, f"project-{id}-clusters")


_RULE_FIELDS = (
    Field("name", "What the rule is for", {"type": "string", "maxLength": triage.MAX_NAME_CHARACTERS}, True),
    Field(
        "category",
        "The category of the failures that match",
        {"type": "string", "maxLength": triage.MAX_CATEGORY_CHARACTERS},
        True,
    ),
    Field(
        "pattern",
        "Text that is found anywhere, in any case; `*` is any text",
        {"type": "string", "maxLength": triage.MAX_PATTERN_CHARACTERS},
        True,
    ),
    Field("field", "Where it is searched", {"type": "string", "enum": list(triage.FIELDS), "default": "any"}),
    Field(
        "priority",
        "Rules are tried in this order, then by id",
        {"type": "integer", "minimum": -INT32, "maximum": INT32, "default": triage.DEFAULT_PRIORITY},
    ),
)


class TriageRules(ListHandler):
    permission = READ
    permission_to_change = SIGNED_IN
    endpoints: ClassVar = {
        "GET": lists.list_endpoint(
            "List the triage rules of a project, in the order in which they are tried",
            ItemList[TriageRuleInfo],
            ID,
            name="triage_rule_list",
        ),
        "POST": Endpoint(
            "Add a triage rule",
            TriageRuleInfo,
            201,
            path=[ID],
            body=Body("application/json", _RULE_FIELDS),
            fails=[404, 409],
            name="triage_rule_add",
        ),
    }

    async def get(self, id: str) -> None:
        def page(cursor: str | None, limit: int) -> lists.Page:
            rules = triage.rules_of(visibility.project(self.user, id).id)
            return page_after(cursor, rules, limit, lambda rule: (rule.priority, rule.id), int, int)

        await self.answer_items(page, TriageRuleInfo, f"project-{id}-triage-rules")

    async def post(self, id: str) -> None:
        values, now = triage.read(self.body_object()), self.clock.now()

        def add() -> TriageRuleInfo:
            with reports.atomic():
                return triage.add(visibility.project(self.user, id, "WRITE").id, values, now)

        rule = await self.tracker.run(add)
        self.set_status(201)
        self.reply(rule)


class TriageRule(Tracked):
    permission = SIGNED_IN
    endpoints: ClassVar = {
        "DELETE": Endpoint(
            "Delete a triage rule",
            None,
            204,
            path=[ID, number("ruleId", "The rule")],
            fails=[404],
            name="triage_rule_delete",
        )
    }

    async def delete(self, id: str, rule_id: str) -> None:
        number = read_whole("the id of a rule", rule_id, -(2**63) + 1, 2**63 - 1)

        def remove() -> None:
            with reports.atomic():
                triage.delete(visibility.project(self.user, id, "WRITE").id, number)

        await self.tracker.run(remove)
        self.set_status(204)


_OWNERS_FIELDS = (
    Field("codeowners", "A CODEOWNERS file of at most 256 KiB; null: none", {"type": ["string", "null"]}),
    Field(
        "rules",
        "Tests without an owner by CODEOWNERS belong to that of the first rule whose pattern their class name contains",
        {
            "type": "array",
            "maxItems": owners.MAX_RULES,
            "items": {
                "type": "object",
                "properties": {
                    "pattern": {"type": "string", "minLength": 1, "maxLength": owners.MAX_PATTERN_CHARACTERS},
                    "owner": {"type": "string", "minLength": 1, "maxLength": owners.MAX_OWNER_CHARACTERS},
                },
                "required": ["pattern", "owner"],
                "additionalProperties": False,
            },
        },
    ),
)


class Owners(ListHandler):
    """`PUT` takes JSON, or a CODEOWNERS file as `text/plain`, which leaves the rules as they are."""

    permission = READ
    permission_to_change = SIGNED_IN
    default_limit = lists.MAX_LIMIT
    endpoints: ClassVar = {
        "GET": lists.list_endpoint(
            "Get the owners of tests, with the number of failing and flaky tests of each",
            OwnersInfo,
            ID,
            limit=lists.MAX_LIMIT,
            name="owners",
        ),
        "PUT": Endpoint(
            "Set the owners of tests; a CODEOWNERS file may be sent as text/plain",
            OwnersInfo,
            path=[ID],
            body=Body("application/json", _OWNERS_FIELDS),
            fails=[404],
            name="owners_set",
        ),
    }

    async def get(self, id: str) -> None:
        await self.answer_object(
            lambda cursor, limit: self.info(id, cursor, limit), lambda info: info.items, OwnerInfo,
            f"project-{id}-owners", (("owners", id), lambda: state_of_project(self.user, id)),
        )  # fmt: skip

    def info(self, id: str, cursor: str | None = None, limit: int = lists.MAX_LIMIT) -> OwnersInfo:
        project = visibility.project(self.user, id)
        settings = self.config.tracker.quality_gate
        known = owners.of_project(project.id)
        base = quality_gate.thresholds(project, settings).base_branch
        counts = owners.counts(project, known, base)
        return serializers.owners_info(known, *page_after(cursor, counts, limit, owners.place, int, int, int, str))

    async def put(self, id: str) -> None:
        if not self.request.body:
            raise Invalid("a CODEOWNERS file or a JSON object is required")
        media_type = self.request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        body = None if media_type == "text/plain" else self.body_object()
        if body is not None and (unknown := sorted(set(body) - {"codeowners", "rules"})):
            raise Invalid(f"{unknown[0]} is not a field of the owners")
        text = self._codeowners(body)
        rules = owners.read_rules(body.get("rules", [])) if body is not None else None
        now = self.clock.now()

        def store() -> None:
            with reports.atomic():
                project = visibility.project(self.user, id, "WRITE")
                kept = owners.of_project(project.id).rules if rules is None else rules
                owners.store(project.id, text, kept, now)

        await self.tracker.run(store)
        await self.answer(lambda: self.info(id))

    def _codeowners(self, body: dict[str, Any] | None) -> str | None:
        value = self.request.body if body is None else body.get("codeowners")
        if value is None:
            return None
        if isinstance(value, str):
            value = value.encode("utf-8", "replace")
        elif not isinstance(value, bytes):
            raise Invalid("codeowners must be text or null")
        return owners.read_codeowners(value) or None


class Search(ListHandler):
    permission = READ
    endpoints: ClassVar = {
        "GET": lists.list_endpoint(
            "Search the tests of a project by name, or its failures by text",
            ProjectSearchResult,
            ID,
            Parameter(
                "q",
                "Words that must all occur, in any case",
                {"type": "string", "examples": ["checkout"]},
                required=True,
            ),
            choice("in", "Names of tests, or the texts of failure clusters", ["tests", "failures"], "tests"),
            tool="project_search",
        )
    }

    async def get(self, id: str) -> None:
        arguments = self.arguments("q", "in")
        q, place = arguments["q"], arguments["in"] or "tests"
        if q is None or len(q) > MAX_QUERY_CHARACTERS:
            raise Invalid(f"q is required, and has at most {MAX_QUERY_CHARACTERS} characters")
        if place not in ("tests", "failures"):
            raise Invalid("in must be one of tests, failures")

        def found(cursor: str | None, limit: int) -> ProjectSearchResult:
            project = visibility.project(self.user, id)
            if place == "tests":
                tests, by = search.project_tests(project.id, q, cursor, limit), owners.of_project(project.id)
                items: list[FoundItem] = [serializers.found_test(test, by) for test in tests.items]
                return ProjectSearchResult(items, tests.next_cursor, tests.is_partial)
            failures = search.project_failures(project.id, q, triage.rules_of(project.id), cursor, limit)
            return ProjectSearchResult(failures.items, failures.next_cursor, failures.is_partial)

        kind = FoundTestInfo if place == "tests" else ClusterInfo
        await self.answer_object(found, lambda result: result.items, kind, f"project-{id}-search")


routes: list[Route] = [
    (r"/projects/([^/]+)/clusters", Clusters),
    (r"/projects/([^/]+)/triage-rules", TriageRules),
    (r"/projects/([^/]+)/triage-rules/([^/]+)", TriageRule),
    (r"/projects/([^/]+)/owners", Owners),
    (r"/projects/([^/]+)/search", Search),
]
