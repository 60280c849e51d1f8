"""Rules of notifications: which events go to which channels, of the server or of a project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import fields as attributes

from handlers.base import Base
from handlers.operations import operation_routes
from handlers.outbound import fields
from handlers.outbound.scopes import OutboundResource, check_stored, scope_of
from handlers.routing import Route
from models.config import parsers
from models.config.settings import NotifyRuleSettings
from models.errors import Invalid
from models.inputs import ID_TEXT, NAME, path
from models.json_format import Instant, http_message
from models.outbound import rules
from models.outbound.rules import CONFIG, SERVER, Rule
from models.outbound.tables import store

if TYPE_CHECKING:
    from supervisor.outbound.core import Core

_ANY = ("*",)


@http_message
class NotifyRuleInfo:
    """A rule. Times are in seconds; `source` is `config` where it stands in the configuration."""

    id: str
    source: str
    project_id: int | None
    name: str
    channels: list[str]
    events: list[str]
    processes: list[str]
    labels: list[str]
    releases: list[str]
    projects: list[str]
    branches: list[str] | None
    flags: list[str]
    only_on_change: bool
    quiet: float
    group_wait: float
    resolve: bool
    resolve_after: float
    max_per_hour: int
    updated_at: Instant | None


def rule_info(one: Rule) -> NotifyRuleInfo:
    values = {each.name: getattr(one.settings, each.name) for each in attributes(NotifyRuleSettings)}
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return NotifyRuleInfo(
        id=one.id,
        source="config" if one.id.startswith(CONFIG) else "stored",
        project_id=None if one.project_id == SERVER else one.project_id,
        updated_at=None if one.updated_at is None else Instant(one.updated_at),
        **values,
    )


@http_message
class RuleFields:
    """What a rule is made of. In lists of names `*` is any text."""

    name: str = fields.text("Its name", required=True, maxLength=fields.MAX_NAME_CHARACTERS)
    channels: Any = fields.texts("The ids or names of its channels", required=True, most=20)
    events: Any = fields.texts("The events, such as `process.*`", required=True, check=parsers.event_pattern)
    processes: Any = fields.texts("Only these processes", _ANY)
    labels: Any = fields.texts("Only processes with one of these labels", ())
    releases: Any = fields.texts("Only these releases", _ANY)
    projects: Any = fields.texts("Only these projects", _ANY)
    branches: Any = fields.texts("Only these branches; left out, the base branch", None)
    flags: Any = fields.texts("Only these flags", _ANY)
    only_on_change: bool = fields.flag("Whether what stays bad is not reported again", default=True)
    quiet: Any = fields.seconds("What follows a message within this time is reported together after it", 900)
    group_wait: Any = fields.seconds("What happens within this time is reported in one message", 10)
    resolve: bool = fields.flag("Whether it is reported that something is good again", default=True)
    resolve_after: Any = fields.seconds("How long it must be good for that", 60)
    max_per_hour: Any = fields.number("The most messages in an hour", 60, 1, 10_000)


@http_message
class NewNotifyRule(RuleFields):
    """A rule of the server."""


@http_message
class NewProjectRule(RuleFields):
    project: str = path("The project", kind=ID_TEXT)


@http_message
class ChangedRule(RuleFields):
    id: str = path("The rule", kind=NAME)


@http_message
class ChangedProjectRule(RuleFields):
    project: str = path("The project", kind=ID_TEXT)
    id: str = path("The rule", kind=NAME)


async def list_rules(handler: Base, request: Any) -> list[NotifyRuleInfo]:
    core, project_id = await scope_of(handler, request)
    found = [*rules.of_config(handler.config.notify.rules), *await core.run(rules.stored)]
    return [rule_info(one) for one in found if one.project_id == project_id]


async def get_rule(handler: Base, request: Any) -> NotifyRuleInfo:
    core, project_id = await scope_of(handler, request)
    configured = {one.id: one for one in rules.of_config(handler.config.notify.rules)}
    if project_id == SERVER and request.id in configured:
        return rule_info(configured[request.id])
    return rule_info(await core.run(lambda: rules.get(request.id, project_id)))


async def keep_rule(handler: Base, request: Any) -> NotifyRuleInfo:
    """Makes a rule, or changes the one that the request names."""
    core, project_id = await scope_of(handler, request)
    id, now = getattr(request, "id", None), handler.clock.now()
    if id is not None:
        check_stored("rule", id, "change")
    await core.run(core.notifier.read)
    values = {each.name: getattr(request, each.name) for each in attributes(NotifyRuleSettings)}
    values["channels"] = _channels(core, request.channels, project_id)
    settings = NotifyRuleSettings(**values)

    def keep() -> Rule:
        with store.atomic():
            return rules.keep(id, project_id, settings, now)

    kept = await core.run(keep)
    await core.changed()
    return rule_info(kept)


def _channels(core: Core, names: tuple[str, ...], project_id: int) -> tuple[str, ...]:
    """The ids of channels of a project, or the server. Raises `Invalid`."""
    own = [one for one in core.notifier.channels.values() if one.project_id == project_id]
    own.sort(key=lambda one: one.is_configured)  # of two with one name that of the configuration counts
    known = {**{one.name: one.id for one in own}, **{one.id: one.id for one in own}}
    for name in names:
        if name not in known:
            raise Invalid(f"channels: there is no channel {name}")
    return tuple(known[name] for name in names)


async def delete_rule(handler: Base, request: Any) -> None:
    core, project_id = await scope_of(handler, request)
    check_stored("rule", request.id, "remove")
    await core.run_deletion(lambda: rules.delete(request.id, project_id))
    await core.changed()


RULES = OutboundResource(
    "rule",
    "notification rule",
    (NewNotifyRule, NewProjectRule),
    (ChangedRule, ChangedProjectRule),
    NotifyRuleInfo,
    list_rules,
    get_rule,
    keep_rule,
    delete_rule,
)
routes: list[Route] = operation_routes(RULES.operations())
