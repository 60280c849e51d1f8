"""Failure clusters, triage rules, owners and the search of a project."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import evolve

from handlers.base import Base
from handlers.http.permissions import READ, SIGNED_IN
from handlers.http.serializers import copied
from handlers.operations import SENT, JsonBody, Operation, is_plain_text, operation_routes
from handlers.routing import Route
from handlers.tracker import lists, serializers
from handlers.tracker.base import answer
from handlers.tracker.lists import EXPORTS, ItemList, ListRequest, answer_items, answer_object, list_operation
from handlers.tracker.responses import (
    FoundItem,
    FoundTestInfo,
    OwnersInfo,
    ProjectSearchResult,
)
from models.accounts import permissions
from models.errors import Invalid
from models.inputs import ID, ID_TEXT, InputKind, body, choice, free_text, instant, path, query
from models.json_format import Instant, http_message
from models.paging import INT64, cut, decode_cursor, page_after
from models.tracker import search, visibility
from models.tracker.failures import clusters, quarantine, triage
from models.tracker.failures.clusters import ClusterInfo
from models.tracker.failures.flaky import Triage
from models.tracker.failures.quarantine import TestChange
from models.tracker.failures.triage import NewTriageRule, TriageRuleInfo
from models.tracker.forges import owners
from models.tracker.forges.owners import OwnerInfo, OwnerRuleInfo
from models.tracker.gate import quality_gate
from models.tracker.runs.kept_answers import state_of_project
from models.tracker.tables import reports

MAX_QUERY_CHARACTERS = 500
_MAX_OWNERS_BODY_BYTES = 1024 * 1024
"""A CODEOWNERS file of 256 KiB, as JSON, and rules."""


@http_message
class ProjectList(ListRequest):
    id: str = path("The project", kind=ID_TEXT)


@http_message
class LongProjectList(ProjectList):
    limit: int | None = lists.limit(lists.MAX_LIMIT)


@http_message
class ClusterFilter(ListRequest):
    branch: str | None = query("Only failures on this branch", kind=free_text("main"))
    since: int | None = query(
        "Only failures of runs since this time", kind=instant("2026-11-20T19:00:00Z", zone_needed=False)
    )


@http_message
class ClusterList(ClusterFilter):
    id: str = path("The project", kind=ID_TEXT)


async def list_clusters(handler: Base, request: ClusterList) -> object:
    user, id = handler.caller.user, request.id

    def page(cursor: str | None, limit: int) -> lists.Page:
        project = visibility.project(user, id)
        after = decode_cursor(cursor, int, int) if cursor else None
        rules = triage.rules_of(project.id)
        found = clusters.listing(project.id, rules, limit + 1, after, request.branch, request.since)
        return cut(found, limit, clusters.place)

    return await answer_items(handler, request, page, ClusterInfo, f"project-{id}-clusters")


async def list_rules(handler: Base, request: ProjectList) -> object:
    user, id = handler.caller.user, request.id

    def page(cursor: str | None, limit: int) -> lists.Page:
        rules = triage.rules_of(visibility.project(user, id).id)
        return page_after(cursor, rules, limit, lambda rule: (rule.priority, rule.id), int, int)

    return await answer_items(handler, request, page, TriageRuleInfo, f"project-{id}-triage-rules")


@http_message
class NewRuleOfProject(NewTriageRule):
    id: str = path("The project", kind=ID_TEXT)


async def add_rule(handler: Base, request: NewRuleOfProject) -> TriageRuleInfo:
    now = handler.clock.now()

    def add() -> TriageRuleInfo:
        with reports.atomic():
            return triage.add(visibility.project(handler.caller.user, request.id, "WRITE").id, request, now)

    return await handler.tracker.run(add)


@http_message
class RuleOfProject:
    id: str = path("The project", kind=ID_TEXT)
    rule_id: int = path("The rule", kind=evolve(ID, read=lambda _, text: ID.read("the id of a rule", text)))


async def delete_rule(handler: Base, request: RuleOfProject) -> None:
    def remove() -> None:
        with reports.atomic():
            triage.delete(visibility.project(handler.caller.user, request.id, "WRITE").id, request.rule_id)

    await handler.tracker.run_deletion(remove)


_RULES_SCHEMA = {
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
}


def _read_codeowners(name: str, value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    if not isinstance(value, bytes):
        raise Invalid(f"{name} must be text or null")
    return value


@http_message
class NewOwners:
    id: str = path("The project", kind=ID_TEXT)
    codeowners: bytes | None = body(
        "A CODEOWNERS file of at most 256 KiB; null: none",
        kind=InputKind({"type": ["string", "null"]}, _read_codeowners),
    )
    rules: Sequence[OwnerRuleInfo] = body(
        "Tests without an owner by CODEOWNERS belong to that of the first rule whose pattern their class name contains",
        (),
        kind=InputKind(_RULES_SCHEMA, lambda _, value: owners.read_rules(value), reads_null=True),
    )


async def owners_info(handler: Base, request: LongProjectList) -> object:
    id, user = request.id, handler.caller.user

    def info(cursor: str | None, limit: int) -> OwnersInfo:
        return _owners_of(handler, id, cursor, limit)

    kept = ("owners", id), lambda: state_of_project(user, id)
    return await answer_object(handler, request, info, lambda info: info.items, OwnerInfo, f"project-{id}-owners", kept)


def _owners_of(handler: Base, id: str, cursor: str | None = None, limit: int = lists.MAX_LIMIT) -> OwnersInfo:
    project = visibility.project(handler.caller.user, id)
    known = owners.of_project(project.id)
    base = quality_gate.thresholds(project, handler.config.tracker.quality_gate).base_branch
    counts = owners.counts(project, known, base)
    return serializers.owners_info(known, *page_after(cursor, counts, limit, owners.place, int, int, int, str))


async def set_owners(handler: Base, request: NewOwners) -> object:
    """Takes JSON, or a CODEOWNERS file as `text/plain`, which leaves the rules as they are."""
    text = owners.read_codeowners(request.codeowners) or None if request.codeowners is not None else None
    now, keeps_rules = handler.clock.now(), is_plain_text(handler.request)

    def store() -> None:
        with reports.atomic():
            project = visibility.project(handler.caller.user, request.id, "WRITE")
            kept = owners.of_project(project.id).rules if keeps_rules else request.rules
            owners.store(project.id, text, kept, now)

    await handler.tracker.run(store)
    return await answer(handler, lambda: _owners_of(handler, request.id))


def _read_words(name: str, text: str) -> str:
    if not text or len(text) > MAX_QUERY_CHARACTERS:
        raise Invalid(f"{name} is required, and has at most {MAX_QUERY_CHARACTERS} characters")
    return text


@http_message
class TestSearchRequest(ProjectList):
    q: str = query(
        "Words that must all occur, in any case",
        required=True,
        kind=evolve(free_text("checkout"), read=_read_words, reads_absent=True),
    )
    place: str = query(
        "Names of tests, or the texts of failure clusters",
        "tests",
        kind=choice("tests", "failures", shown="one of tests, failures"),
        json_name="in",
    )


async def search_project(handler: Base, request: TestSearchRequest) -> object:
    user, id, q, place = handler.caller.user, request.id, request.q, request.place

    def found(cursor: str | None, limit: int) -> ProjectSearchResult:
        project = visibility.project(user, id)
        if place == "tests":
            tests, by = search.project_tests(project.id, q, cursor, limit), owners.of_project(project.id)
            items: list[FoundItem] = [serializers.found_test(test, by) for test in tests.items]
            return ProjectSearchResult(items, tests.next_cursor, tests.is_partial)
        failures = search.project_failures(project.id, q, triage.rules_of(project.id), cursor, limit)
        return ProjectSearchResult(failures.items, failures.next_cursor, failures.is_partial)

    kind = FoundTestInfo if place == "tests" else ClusterInfo
    return await answer_object(handler, request, found, lambda result: result.items, kind, f"project-{id}-search")


@http_message
class QuarantineInfo:
    """A quarantined test; it counts again at `expiresAt`, null for never.

    `by` is an account, which is named to members only, or `(policy)`.
    """

    class_name: str
    name: str
    reason: str | None
    expires_at: Instant | None
    issue_url: str | None
    owner: str | None
    by: str | None
    since: Instant


@http_message
class QuarantineList(LongProjectList):
    format: str = lists.format_input(
        "`csv` and `ndjson`: the whole list; `names`: plain text, a class and a name in each line", "names"
    )


def _place_of(info: QuarantineInfo) -> tuple[str, str]:
    return info.class_name, info.name


async def list_quarantine(handler: Base, request: QuarantineList) -> object:
    user, id = handler.caller.user, request.id

    def rows() -> list[QuarantineInfo]:
        project = visibility.project(user, id)
        known, is_member = owners.of_project(project.id), permissions.role_in(user, project) is not None
        found = quarantine.listing(project.id, is_member)
        return [copied(QuarantineInfo, one, owner=known.of(one.file, one.class_name)) for one in found]

    def names() -> str:
        lines = (" ".join(f"{one.class_name} {one.name}".split()) for one in rows())
        return "".join(f"{line}\n" for line in lines)

    if request.format == "names":
        text = await handler.tracker.run(names)  # in the worker: they may be many
        handler.set_header("Content-Type", "text/plain; charset=utf-8")
        handler.write(text)
        return SENT

    def page(cursor: str | None, limit: int) -> lists.Page:
        return page_after(cursor, rows(), limit, _place_of, str, str)

    return await answer_items(handler, request, page, QuarantineInfo, f"project-{id}-quarantine")


@http_message
class QuarantineChange:
    """A change of the status of a test; `by` is an account (for members), `(policy)` or `(expiry)`."""

    class_name: str
    name: str
    status: Triage
    reason: str | None
    expires_at: Instant | None
    issue_url: str | None
    by: str | None
    at: Instant


async def list_changes(handler: Base, request: ProjectList) -> object:
    user, id = handler.caller.user, request.id

    def page(cursor: str | None, limit: int) -> lists.Page:
        before = decode_cursor(cursor, int)[0] if cursor else INT64
        project = visibility.project(user, id)
        is_member = permissions.role_in(user, project) is not None
        found = quarantine.changes_of_project(project.id, before, limit + 1, is_member)
        shown, next_cursor = cut(found, limit, lambda one: (one.id,))
        return [_change(one) for one in shown], next_cursor

    return await answer_items(handler, request, page, QuarantineChange, f"project-{id}-quarantine-changes")


def _change(one: TestChange) -> QuarantineChange:
    change = one.change
    return copied(QuarantineChange, change, class_name=one.class_name, name=one.name, status=Triage(change.status))


OPERATIONS = [
    list_operation(
        None, "/projects/{id}/quarantine/changes", "List who changed the status of a project's tests, newest first",
        ProjectList, list_changes, ItemList[QuarantineChange], name="quarantine_changes",
    ),
    Operation(
        None, "GET", "/projects/{id}/quarantine", "List the quarantined tests of a project, with reason and end",
        QuarantineList, list_quarantine, ItemList[QuarantineInfo], name="quarantine_list", permission=READ,
        also=EXPORTS | {"text/plain": str}, error_statuses=[404],
    ),
    list_operation(
        "failure_clusters", "/projects/{id}/clusters", "List the failure clusters of a project, most occurrences first",
        ClusterList, list_clusters, ItemList[ClusterInfo],
    ),
    list_operation(
        None, "/projects/{id}/triage-rules", "List the triage rules of a project, in the order in which they are tried",
        ProjectList, list_rules, ItemList[TriageRuleInfo], name="triage_rule_list",
    ),
    Operation(
        None, "POST", "/projects/{id}/triage-rules", "Add a triage rule", NewRuleOfProject, add_rule, TriageRuleInfo,
        201, error_statuses=[404, 409], name="triage_rule_add", permission=SIGNED_IN,
        body=JsonBody(if_unknown=triage.NOT_A_FIELD),
    ),
    Operation(
        None, "DELETE", "/projects/{id}/triage-rules/{ruleId}", "Delete a triage rule", RuleOfProject, delete_rule,
        None, 204, error_statuses=[404], name="triage_rule_delete", permission=SIGNED_IN,
    ),
    list_operation(
        None, "/projects/{id}/owners",
        "Get the owners of tests, with the number of failing and flaky tests of each", LongProjectList, owners_info,
        OwnersInfo, name="owners",
    ),
    Operation(
        None, "PUT", "/projects/{id}/owners", "Set the owners of tests; a CODEOWNERS file may be sent as text/plain",
        NewOwners, set_owners, OwnersInfo, error_statuses=[404], name="owners_set", permission=SIGNED_IN,
        body=JsonBody(
            "a CODEOWNERS file or a JSON object is required", "is not a field of the owners", plain_input="codeowners"
        ),
        max_body=_MAX_OWNERS_BODY_BYTES,
    ),
    list_operation(
        "project_search", "/projects/{id}/search",
        "Search the tests of a project by name, or its failures by text", TestSearchRequest, search_project,
        ProjectSearchResult,
    ),
]  # fmt: skip
routes: list[Route] = operation_routes(OPERATIONS)
