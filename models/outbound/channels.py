"""Channels: where notifications go. From the configuration, or stored; their secrets are kept apart."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import asdict, evolve, field, frozen

from models.config import secret_files
from models.config import settings as config
from models.errors import Conflict, NotFound
from models.outbound.rules import CONFIG, SERVER
from models.outbound.tables import OUTBOX_CHANNEL, RULES_CHANNEL, store
from models.times import SECOND
from models.tracker.project_secrets import ProjectSecrets

MAX_CHANNELS = 50
MAX_RECIPIENTS = 50
SECRETS = ("url", "secret", "token")
OLD_SECRET_SECONDS = 86_400
"""How long both secrets of a webhook sign after a rotation."""
_OLD = "oldSecret"

_COLUMNS = "id, project_id, name, settings, enabled, reason, updated_at"
_LIST = f"SELECT {_COLUMNS} FROM channel ORDER BY project_id, name"  # noqa: S608 (our own column names)
_GET = f"SELECT {_COLUMNS} FROM channel WHERE id = ?"  # noqa: S608
_COUNT = "SELECT count(*) FROM channel WHERE project_id = ?"
_NAMED = "SELECT id FROM channel WHERE project_id = ? AND name = ? AND id <> ?"
_PUT = (
    "INSERT INTO channel (id, project_id, name, settings, enabled, reason, created_at, updated_at)"
    " VALUES (?, ?, ?, ?, ?, NULL, ?, ?) ON CONFLICT (id) DO UPDATE SET name = excluded.name,"
    " settings = excluded.settings, enabled = excluded.enabled, reason = NULL, updated_at = excluded.updated_at"
)
_DROP_PENDING = "DELETE FROM outbox WHERE target = ? AND state = 'PENDING'"
_DROP_SOME = "DELETE FROM outbox WHERE id IN (SELECT id FROM outbox WHERE target = ? AND state = 'PENDING' LIMIT 50)"
_DISABLE = "UPDATE channel SET enabled = 0, reason = ? WHERE id = ?"


@frozen
class StoredSettings:
    """What is not secret of a channel; `set_at` has when each secret was set, by name."""

    type: str
    to: tuple[str, ...] = ()
    preset: str = "json"
    priority: int | None = None
    host: str | None = None
    """The scheme and host of its URL."""
    set_at: Mapping[str, int] = field(factory=dict)


@frozen
class Channel:
    """A channel with its id, and the project that it belongs to; `SERVER`: the server."""

    id: str
    project_id: int
    name: str
    settings: StoredSettings
    is_enabled: bool = True
    reason: str | None = None
    updated_at: int | None = None
    spec: config.ChannelSettings | None = field(default=None, repr=False)
    """The section of the configuration that it stands in."""

    @property
    def is_configured(self) -> bool:
        return self.spec is not None


@frozen
class Credentials:
    """The secrets of a channel. `old_secret` signs too, for a day after a rotation."""

    url: str | None = field(default=None, repr=False)
    secret: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    old_secret: str | None = field(default=None, repr=False)


def of_config(channels: Mapping[str, config.ChannelSettings]) -> list[Channel]:
    found = []
    for name, spec in channels.items():
        settings = StoredSettings(spec.type, spec.to, spec.preset, spec.priority)
        found.append(Channel(CONFIG + name, SERVER, name, settings, spec=spec))
    return found


def stored() -> list[Channel]:
    """All stored channels. For a worker."""
    return [_channel(row) for row in store.execute_sql(_LIST)]


def _channel(row: Sequence[Any]) -> Channel:
    id, project_id, name, text, enabled, reason, updated_at = row
    values: dict[str, Any] = json.loads(text)
    values["to"] = tuple(values["to"])
    return Channel(id, project_id, name, StoredSettings(**values), bool(enabled), reason, updated_at)


def get(id: str, project_id: int | None = None) -> Channel:
    """A stored channel. Raises `NotFound`."""
    row = store.execute_sql(_GET, (id,)).fetchone()
    if row is None or (project_id is not None and row[1] != project_id):
        raise NotFound(f"there is no channel {id}")
    return _channel(row)


def keep(
    id: str | None,
    project_id: int,
    name: str,
    settings: StoredSettings,
    changes: Mapping[str, str | None],
    vault: ProjectSecrets,
    now: int,
    is_enabled: bool = True,
) -> Channel:
    """Stores a new channel or changes one, in the caller's transaction. Raises `Conflict`, `NotFound`.

    `changes` are the secrets that are set, or removed (None); others stay.
    """
    old = get(id, project_id) if id is not None else None
    if old is None and store.execute_sql(_COUNT, (project_id,)).fetchone()[0] >= MAX_CHANNELS:
        raise Conflict(f"there are {MAX_CHANNELS} channels already")
    id = id or f"ch_{secrets.token_hex(8)}"
    if store.execute_sql(_NAMED, (project_id, name, id)).fetchone():
        raise Conflict(f"there is another channel named {name}")
    set_at = dict(old.settings.set_at) if old else {}
    if old is not None and "secret" in set_at and "secret" in changes:
        vault.set(project_id, _place(id, _OLD), vault.get(project_id, _place(id, "secret")), now)
        set_at[_OLD] = now
    for secret, value in changes.items():
        vault.set(project_id, _place(id, secret), value, now)
        set_at.pop(secret, None)
        if value is not None:
            set_at[secret] = now
    host = settings.host if "url" in changes else old.settings.host if old else None
    kept = evolve(settings, host=host, set_at=set_at)
    text = json.dumps(asdict(kept), ensure_ascii=False)
    store.execute_sql(_PUT, (id, project_id, name, text, int(is_enabled), now, now))
    store.notify(RULES_CHANNEL)
    return Channel(id, project_id, name, kept, is_enabled, None, now)


def delete(id: str, project_id: int, vault: ProjectSecrets, now: int) -> None:
    """Deletes what waits for a channel, in transactions that are small on a full disk, then it and its secrets.

    Raises `NotFound`.
    """
    get(id, project_id)
    while _drop_some(id):
        pass
    with store.atomic():
        get(id, project_id)
        store.execute_sql("DELETE FROM channel WHERE id = ?", (id,))
        store.execute_sql(_DROP_PENDING, (f"channel:{id}",))
        for channel in (RULES_CHANNEL, OUTBOX_CHANNEL):
            store.notify(channel)
        for secret in (*SECRETS, _OLD):
            vault.set(project_id, _place(id, secret), None, now)


def _drop_some(id: str) -> int:
    """Deletes some of the messages that wait for a channel; returns how many."""
    with store.atomic():
        return int(store.execute_sql(_DROP_SOME, (f"channel:{id}",)).rowcount)


def disable(id: str, reason: str) -> None:
    """Switches a stored channel off; messages to it die."""
    with store.atomic():
        store.execute_sql(_DISABLE, (reason, id))
        store.notify(RULES_CHANNEL)


def credentials(channel: Channel, vault: ProjectSecrets, now: int) -> Credentials:
    """The secrets of a channel, for a worker. Raises `Conflict`, `ValidationError`."""
    if channel.spec is not None:
        spec = channel.spec
        values = {name: getattr(spec, name) or _in_file(getattr(spec, f"{name}_file")) for name in SECRETS}
        return Credentials(**values)
    found = {name: vault.get(channel.project_id, _place(channel.id, name)) for name in SECRETS}
    rotated = channel.settings.set_at.get(_OLD)
    if rotated is not None and now < rotated + OLD_SECRET_SECONDS * SECOND:
        found["old_secret"] = vault.get(channel.project_id, _place(channel.id, _OLD))
    return Credentials(**found)


def _in_file(path: Any) -> str | None:
    return None if path is None else secret_files.token_of(path)


def _place(id: str, name: str) -> str:
    return f"channel {id} {name}"


def name_of(target: str, channels: Mapping[str, Channel]) -> str:
    """The name of the target of a message: that of its channel, where it is one. `channels` are by id."""
    channel = channels.get(target.partition(":")[2])
    return channel.name if channel else target


def by_name(channels: Sequence[Channel]) -> dict[str, str]:
    """By project and id, and by project and name, the id of each channel that is enabled."""
    found = {}
    enabled = sorted((one for one in channels if one.is_enabled), key=lambda one: one.is_configured)
    for channel in enabled:  # of two with one name that of the configuration counts
        found[f"{channel.project_id}/{channel.name}"] = channel.id
    for channel in enabled:
        found[f"{channel.project_id}/{channel.id}"] = channel.id
    return found


def check_complete(channel: Channel, found: Credentials) -> str | None:
    """What a channel lacks to be sent to; None if nothing."""
    if channel.settings.type == "email":
        return None if channel.settings.to else "it has no recipients (to)"
    if not found.url:
        return "it has no url"
    return "it has no secret" if channel.settings.type == "webhook" and not found.secret else None
