"""Channels: where notifications go, of the server or of a project, and a test of each."""

from __future__ import annotations

import secrets
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from handlers.base import Base
from handlers.operations import Operation, operation_routes
from handlers.outbound import fields
from handlers.outbound.scopes import SCOPES, OutboundResource, check_stored, scope_of
from handlers.routing import Route
from handlers.tracker.responses import SecretInfo
from models.config import parsers, secret_files
from models.config.secret_files import MAX_TOKEN_CHARACTERS
from models.errors import Conflict, Invalid, NotFound, Throttled
from models.inputs import ID_TEXT, NAME, path
from models.json_format import Instant, http_message
from models.outbound import channels, rules
from models.outbound.channels import MAX_RECIPIENTS, Channel, StoredSettings
from models.outbound.rules import SERVER
from models.outbound.tables import store
from supervisor.http import urls

if TYPE_CHECKING:
    from supervisor.outbound.core import Core

TYPES = ("webhook", "slack", "teams", "email", "post")
PRESETS = ("ntfy", "gotify", "text", "json")
_TESTS_PER_MINUTE = 5
_MINUTE_SECONDS = 60
_SIGNING_KEY_BYTES = 32


@http_message
class ChannelInfo:
    """A channel. `source` is `config` where it stands in the configuration: then it is read-only."""

    id: str
    name: str
    type: str
    source: str
    project_id: int | None
    enabled: bool
    reason: str | None
    host: str | None
    url: SecretInfo
    secret: SecretInfo
    token: SecretInfo
    to: list[str]
    preset: str
    priority: int | None
    updated_at: Instant | None
    generated_secret: str | None = None


def channel_info(one: Channel, generated: str | None = None) -> ChannelInfo:
    return ChannelInfo(
        one.id,
        one.name,
        one.settings.type,
        "config" if one.is_configured else "stored",
        None if one.project_id == SERVER else one.project_id,
        one.is_enabled,
        one.reason,
        one.settings.host,
        _secret_info(one, "url"),
        _secret_info(one, "secret"),
        _secret_info(one, "token"),
        list(one.settings.to),
        one.settings.preset,
        one.settings.priority,
        None if one.updated_at is None else Instant(one.updated_at),
        generated,
    )


def _secret_info(one: Channel, name: str) -> SecretInfo:
    if one.spec is not None:
        is_set = getattr(one.spec, name) is not None or getattr(one.spec, f"{name}_file") is not None
        return SecretInfo(is_set, None)
    at = one.settings.set_at.get(name)
    return SecretInfo(at is not None, None if at is None else Instant(at))


@http_message
class ChannelFields:
    """What a channel is made of."""

    name: str = fields.text("Its name", required=True, maxLength=fields.MAX_NAME_CHARACTERS)
    type: str = fields.one_of("What is at the other end", *TYPES)
    enabled: bool = fields.flag("Whether it is sent to", default=True)
    url: Any = fields.secret("Its address; not for email", fields.MAX_URL_CHARACTERS, secret_files.check_url)
    secret: Any = fields.secret(
        "webhook: signs the messages (`whsec_…`); made if there is none",
        MAX_TOKEN_CHARACTERS,
        secret_files.signing_key,
    )
    token: Any = fields.secret("post: authenticates", MAX_TOKEN_CHARACTERS, secret_files.check_token)
    to: Any = fields.texts("email: the recipients", check=parsers.mail_address, most=MAX_RECIPIENTS)
    preset: str = fields.one_of("post: the form of the message", *PRESETS, default="json")
    priority: Any = fields.number("post: the priority", None, 0, 10)


@http_message
class NewChannel(ChannelFields):
    """A channel of the server."""


@http_message
class NewProjectChannel(ChannelFields):
    project: str = path("The project", kind=ID_TEXT)


@http_message
class ChangedChannel(ChannelFields):
    id: str = path("The channel", kind=NAME)


@http_message
class ChangedProjectChannel(ChannelFields):
    project: str = path("The project", kind=ID_TEXT)
    id: str = path("The channel", kind=NAME)


@http_message
class ChannelTest:
    """What came of a test message. `status` is that of the target's answer."""

    delivered: bool
    status: int | None
    duration_ms: int
    error: str | None


def found_in(core: Core, id: str, project_id: int) -> Channel:
    """Raises `NotFound`."""
    channel = core.notifier.channels.get(id)
    if channel is None or channel.project_id != project_id:
        raise NotFound(f"there is no channel {id}")
    return channel


async def list_channels(handler: Base, request: Any) -> list[ChannelInfo]:
    core, project_id = await scope_of(handler, request)
    await core.run(core.notifier.read)
    return [channel_info(one) for one in core.notifier.channels.values() if one.project_id == project_id]


async def get_channel(handler: Base, request: Any) -> ChannelInfo:
    core, project_id = await scope_of(handler, request)
    await core.run(core.notifier.read)
    return channel_info(found_in(core, request.id, project_id))


async def keep_channel(handler: Base, request: Any) -> ChannelInfo:
    """Makes a channel, or changes the one that the request names."""
    core, project_id = await scope_of(handler, request)
    id, now = getattr(request, "id", None), handler.clock.now()
    if id is not None:
        check_stored("channel", id, "change")
    if project_id == SERVER and request.name in handler.config.notify.channels:
        raise Conflict(f"there is another channel named {request.name}, in the configuration")
    changes = fields.given({name: getattr(request, name) for name in channels.SECRETS})
    settings = StoredSettings(request.type, request.to, request.preset, request.priority, _host(changes.get("url")))

    def keep() -> tuple[Channel, str | None]:
        with store.atomic():
            generated = _complete(id, project_id, settings, changes)
            vault = core.notifier.secrets
            kept = channels.keep(id, project_id, request.name, settings, changes, vault, now, request.enabled)
            return kept, generated

    kept, generated = await core.run(keep)
    await core.changed()
    return channel_info(kept, generated)


def _complete(id: str | None, project_id: int, settings: StoredSettings, changes: dict[str, str | None]) -> str | None:
    """Adds a secret to the changes of a webhook that would have none, and returns it.

    Raises `Invalid` for a channel that could not be sent to.
    """
    if settings.type == "email":
        if not settings.to:
            raise Invalid("to must have at least one address")
        return None
    set_at = {} if id is None else channels.get(id, project_id).settings.set_at
    present = {name for name in channels.SECRETS if changes.get(name, set_at.get(name)) is not None}
    if "url" not in present:
        raise Invalid("url is required")
    if settings.type != "webhook" or "secret" in present:
        return None
    from models.outbound.formats import generated_secret

    changes["secret"] = generated_secret(secrets.token_bytes(_SIGNING_KEY_BYTES))
    return changes["secret"]


def _host(url: str | None) -> str | None:
    """The scheme, host and port of an address, which may be shown. Raises `Invalid`."""
    if url is None:
        return None
    parsed = urls.parse(url, "url")
    return f"{parsed.scheme}://{parsed.authority}"


async def delete_channel(handler: Base, request: Any) -> None:
    core, project_id = await scope_of(handler, request)
    check_stored("channel", request.id, "remove")
    now = handler.clock.now()

    def delete() -> None:
        used = [rule.settings.name for rule in rules.stored(project_id) if request.id in rule.settings.channels]
        if used:
            raise Conflict(f"the channel is used by the rule {used[0]}")
        channels.delete(request.id, project_id, core.notifier.secrets, now)

    await core.run_deletion(delete)
    await core.changed()


async def test_channel(handler: Base, request: Any) -> ChannelTest:
    """Sends a message at once: five in a minute for each channel."""
    core, project_id = await scope_of(handler, request)
    await core.run(core.notifier.read)
    channel = found_in(core, request.id, project_id)
    _check_test(handler, core, channel)
    begun = time.monotonic()
    outcome = await core.test(channel)
    took = round((time.monotonic() - begun) * 1000)
    return ChannelTest(outcome.is_delivered, outcome.status, took, outcome.error)


def _check_test(handler: Base, core: Core, channel: Channel) -> None:
    """Counts a test of a channel. Raises `Throttled`."""
    tests = core.tested.setdefault(channel.id, deque(maxlen=_TESTS_PER_MINUTE))
    now = handler.clock.since_boot()
    if len(tests) == tests.maxlen and now - tests[0] < _MINUTE_SECONDS:
        raise Throttled("a channel is tested five times in a minute at most", int(_MINUTE_SECONDS - now + tests[0]) + 1)
    tests.append(now)


CHANNELS = OutboundResource(
    "channel",
    "channel",
    (NewChannel, NewProjectChannel),
    (ChangedChannel, ChangedProjectChannel),
    ChannelInfo,
    list_channels,
    get_channel,
    keep_channel,
    delete_channel,
    "; a secret that is left out stays, null removes it",
)
OPERATIONS = [
    *CHANNELS.operations(),
    *(
        Operation(
            None, "POST", f"{scope.base}/channels/{{id}}/test", f"Send a test message to a channel of the {scope.name}",
            scope.one, test_channel, ChannelTest, error_statuses=[404, 429], name=f"{scope.name}_channel_test",
            permission=scope.permission,
        )
        for scope in SCOPES
    ),
]  # fmt: skip
routes: list[Route] = operation_routes(OPERATIONS)
