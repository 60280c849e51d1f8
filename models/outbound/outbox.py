"""The outbox: a row for each message to a target, kept until it is delivered or given up. For worker threads.

A row is leased before it is sent, in one transaction of the store, so two nodes never send at once, and no target gets
two requests at a time. Times are microseconds since 1970.
"""

from __future__ import annotations

import json
import random
import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from attrs import field, frozen

from models.config import settings
from models.errors import Conflict, NotFound
from models.outbound import dropped, queries
from models.outbound.tables import OUTBOX_CHANNEL, store
from models.times import DAY, SECOND

State = Literal["PENDING", "DONE", "DEAD", "SUPERSEDED"]
STATES: tuple[State, ...] = ("PENDING", "DONE", "DEAD", "SUPERSEDED")

FORGE_STATUS = "forge-status"
"""The kind of a message that sets the status of a commit on a forge."""
FORGE_COMMENT = "forge-comment"
"""That of a comment on a pull request."""
FORGE_CHECK = "forge-check"
"""That of a check run of a GitHub App."""
FORGE_KINDS = (FORGE_STATUS, FORGE_COMMENT, FORGE_CHECK)
MAX_ERROR_CHARACTERS = 500
MAX_TARGETS_AT_ONCE = 4
LEASE_SECONDS = 60
_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 5, 3600
_JITTER = 0.2
_TARGET_PAUSE_SECONDS = 60
"""The longest time that the failure of one message delays the others of its target."""
_RETRIED = (408, 425, 429)
_NAMES = queries.COLUMNS.split(", ")


@frozen
class Message:
    """A message to store. A newer one of the same `key` supersedes those that were not sent."""

    kind: str
    target: str
    payload: Mapping[str, Any] = field(repr=False)
    key: str | None = None
    project_id: int | None = None


@frozen
class Delivery:
    """A row of the outbox."""

    id: int
    kind: str
    target: str
    key: str | None
    project_id: int | None
    message_id: str
    payload: str = field(repr=False)
    state: State
    attempts: int
    next_at: int
    expires_at: int
    lease_until: int | None
    lease_owner: str | None
    status: int | None
    error: str | None
    created_at: int
    done_at: int | None

    @property
    def content(self) -> Any:
        return json.loads(self.payload)


@frozen
class DeliveryOutcome:
    """What came of one try. `status` is that of the HTTP response or the SMTP reply."""

    is_delivered: bool
    status: int | None = None
    error: str | None = None
    is_final: bool = False
    """Whether another try cannot help."""
    retry_after: float | None = None
    """Seconds of the `Retry-After` of the target."""
    holds_target: bool = True
    """Whether a failure postpones the other messages to the target too."""
    remaining: tuple[str, ...] = field(default=(), repr=False)
    """The recipients of a mail that another try is for; empty: all."""


def outcome_of(status: int, error: str | None, retry_after: float | None = None) -> DeliveryOutcome:
    """The outcome of an HTTP response: 408, 425, 429 and 5xx are tried again, other failures are final."""
    if 200 <= status < 300:
        return DeliveryOutcome(True, status)
    is_final = status < 500 and status not in _RETRIED
    return DeliveryOutcome(False, status, (error or "")[:MAX_ERROR_CHARACTERS], is_final, retry_after)


def add(messages: Sequence[Message], now: int, limits: settings.OutboxSettings) -> list[int]:
    """Stores messages, in the caller's transaction; returns their ids. A full outbox drops others (`_make_room`)."""
    ids = []
    for message in messages:
        payload = json.dumps(message.payload, ensure_ascii=False, separators=(",", ":"))
        values = {
            "kind": message.kind,
            "target": message.target,
            "key": message.key,
            "project_id": message.project_id,
            "message_id": f"msg_{secrets.token_hex(16)}",
            "payload": payload,
            "next_at": now,
            "expires_at": now + int(limits.max_age * SECOND),
            "now": now,
        }
        ids.append(int(store.execute_sql(queries.ADD, values).fetchone()[0]))
        if message.key is not None:
            store.execute_sql(queries.SUPERSEDE, {"key": message.key, "id": ids[-1], "now": now})
    _make_room(now, limits.max_rows)
    if ids:
        store.notify(OUTBOX_CHANNEL)
    return ids


def _make_room(now: int, most: int) -> None:
    """Deletes the oldest rows that are done; where all are pending, the oldest of the largest target dies."""
    surplus = int(store.execute_sql(queries.COUNT).fetchone()[0]) - most
    if surplus <= 0:
        return
    deleted = store.execute_sql(queries.DROP_DONE, {"surplus": surplus, "now": now}).rowcount
    for _ in range(surplus - deleted):
        row = store.execute_sql(queries.LARGEST_TARGET, {"now": now}).fetchone()
        if row is None:
            return  # the others are being sent
        values = {"target": row[0], "now": now, "error": "the outbox was full (server.outbox.max-rows)"}
        kind, project_id, payload = store.execute_sql(queries.KILL_OLDEST, values).fetchone()  # stays, to be seen
        if not is_dead_report(kind, json.loads(payload)):
            dropped.record(row[0], project_id, now)


def is_dead_report(kind: str, content: Mapping[str, Any]) -> bool:
    """Whether a message reports others that were given up: it is not reported itself."""
    return kind == "notify" and content.get("type") == "delivery.dead"


def claim(now: int, owner: str, most: int, busy: Collection[str] = ()) -> list[Delivery]:
    """Leases the oldest due message of at most `most` targets, none of which has a lease or is `busy`."""
    besides, names = _besides(busy)
    with store.atomic():
        query = queries.DUE_TARGETS.format(besides=besides)
        targets = store.execute_sql(query, {"now": now, "most": most, **names}).fetchall()
        claimed = []
        for (target,) in targets:
            row = store.execute_sql(queries.OLDEST_DUE, {"target": target, "now": now}).fetchone()
            until = now + LEASE_SECONDS * SECOND
            store.execute_sql(queries.LEASE, {"id": row[0], "until": until, "owner": owner})
            claimed.append(_delivery(row))
    return claimed


def _besides(busy: Collection[str]) -> tuple[str, dict[str, str]]:
    """The condition that a target is not `busy`, and its values."""
    names = {f"busy{number}": target for number, target in enumerate(busy)}
    return (f"AND target NOT IN ({', '.join(f':{name}' for name in names)})" if names else ""), names


def _delivery(row: Sequence[Any]) -> Delivery:
    return Delivery(**dict(zip(_NAMES, row, strict=True)))


def finish(delivery: Delivery, outcome: DeliveryOutcome, owner: str, now: int) -> State | None:
    """Stores the outcome of a try and ends the lease. `delivery` is as it was claimed.

    Returns its state, which stays SUPERSEDED; None, and stores nothing, if the lease has ended and another has begun.
    """
    state: State = "DONE" if outcome.is_delivered else "PENDING"
    wait = max(retry_seconds(delivery.attempts + 1), outcome.retry_after or 0)
    next_at = now + int(wait * SECOND)
    if not outcome.is_delivered and (outcome.is_final or next_at >= delivery.expires_at):
        state = "DEAD"
    values = {"id": delivery.id, "owner": owner, "now": now, "state": state, "next_at": next_at}
    values["attempts"] = delivery.attempts + 1  # the lease of this try, not one that the node took later
    values |= {"status": outcome.status, "error": (outcome.error or "")[:MAX_ERROR_CHARACTERS] or None}
    with store.atomic():
        row = store.execute_sql(queries.FINISH, values).fetchone()
        if row is None:
            return None
        if not outcome.is_delivered and not outcome.is_final and outcome.holds_target:
            pause = outcome.retry_after or min(wait, _TARGET_PAUSE_SECONDS)
            postponed = {"target": delivery.target, "next_at": now + int(pause * SECOND)}
            store.execute_sql(queries.POSTPONE, postponed)
        store.notify(OUTBOX_CHANNEL)
    stored: State = row[0]
    return stored


def retry_seconds(attempts: int) -> float:
    """The time after a failed attempt until the next: 5 s, doubled up to an hour, within 20 %."""
    wait: float = min(_FIRST_RETRY_SECONDS * 2 ** min(attempts - 1, 20), _LAST_RETRY_SECONDS)
    return wait * random.uniform(1 - _JITTER, 1 + _JITTER)


def next_at(now: int, busy: Collection[str] = ()) -> int | None:
    """When the next message of a target that is not `busy` is due, or a lease ends; None without messages that wait."""
    besides, names = _besides(busy)
    times = store.execute_sql(queries.NEXT_AT.format(besides=besides), {"now": now, **names}).fetchone()
    return min((int(at) for at in times if at is not None), default=None)


def release_own(owner: str) -> None:
    """Ends the leases that an earlier process of this node left."""
    with store.atomic():
        store.execute_sql(queries.RELEASE_OWN, {"owner": owner})


def prune(now: int, limits: settings.OutboxSettings) -> list[Delivery]:
    """Gives up what is too old and deletes what was done long ago; returns what was given up."""
    error = "not delivered within server.outbox.max-age"
    with store.atomic():
        rows = store.execute_sql(queries.EXPIRE, {"now": now, "error": error}).fetchall()
        store.execute_sql(queries.PRUNE, {"before": now - limits.retain_days * DAY})
        if rows:
            store.notify(OUTBOX_CHANNEL)
    return [get(id) for (id,) in rows]


def get(id: int) -> Delivery:
    """Raises `NotFound`."""
    row = store.execute_sql(queries.GET, {"id": id}).fetchone()
    if row is None:
        raise NotFound(f"there is no message {id} in the outbox")
    return _delivery(row)


def retry(id: int, now: int, limits: settings.OutboxSettings) -> None:
    """Makes a dead message due, with the same message id. Raises `NotFound`, `Conflict`."""
    with store.atomic():
        values = {"id": id, "now": now, "expires_at": now + int(limits.max_age * SECOND)}
        if not store.execute_sql(queries.RETRY, values).rowcount:
            raise Conflict(f"the message {id} is {get(id).state}: only a DEAD one can be retried")
        store.notify(OUTBOX_CHANNEL)


def delete(id: int, now: int) -> None:
    """Raises `NotFound`, and `Conflict` while the message is sent."""
    with store.atomic():
        if not store.execute_sql(queries.DELETE, {"id": id, "now": now}).rowcount:
            raise Conflict(f"the message {get(id).id} is being sent: delete it afterwards")
        store.notify(OUTBOX_CHANNEL)


def counts() -> dict[str, int]:
    """The number of messages that are PENDING and DEAD."""
    found = dict(store.execute_sql(queries.COUNTS).fetchall())
    return {"PENDING": int(found.get("PENDING", 0)), "DEAD": int(found.get("DEAD", 0))}


def listing(
    most: int,
    before: int,
    state: str | None = None,
    kind: str | None = None,
    project_id: int | None = None,
    target: str | None = None,
) -> list[Delivery]:
    """Messages with ids below `before`, newest first."""
    filters = {"state": state, "kind": kind, "project_id": project_id, "target": target}
    values = {name: value for name, value in filters.items() if value is not None}
    only = "".join(f" AND {name} = :{name}" for name in values)
    rows = store.execute_sql(queries.LIST.format(only=only), {**values, "before": before, "most": most})
    return [_delivery(row) for row in rows]
