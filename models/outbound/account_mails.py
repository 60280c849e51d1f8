"""Mails to accounts, by their profiles. Each account has a rule for each kind and project, which is not stored.

The id of the rule is the target of its messages too: `account:ACCOUNT:KIND:PROJECT`. Whether the account still wants
the mail and may read the project is checked when the mail is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from models.accounts import mail_settings
from models.accounts.accounts import User
from models.accounts.mail_settings import KINDS, Kind
from models.config.settings import NotifyRuleSettings
from models.outbound.events import SubjectEvent
from models.outbound.rules import SERVER, Rule
from models.outbound.tables import store

PREFIX = "account:"
_EVENTS: Mapping[Kind, tuple[str, ...]] = {
    "gate": ("gate.failed", "gate.passed", "run.incomplete"),
    "tests": ("test.failing",),
    "tokens": ("token.expiring",),
}
_FORGET = (
    "DELETE FROM notify_state WHERE rule LIKE ?",
    "DELETE FROM notify_hour WHERE rule LIKE ?",
    "DELETE FROM outbox WHERE target LIKE ? AND state = 'PENDING' AND lease_until IS NULL",
)


def rules_of(event: SubjectEvent) -> list[Rule]:
    """The rules of the accounts that get a mail about an event."""
    kind = next((kind for kind in KINDS if event.type in _EVENTS[kind]), None)
    if kind is None:
        return []
    return [_rule(f"{PREFIX}{account}:{kind}:{event.project_id or 0}", kind) for account in event.accounts]


def find(rules: Mapping[str, Rule], id: str) -> Rule | None:
    """The rule of an id: one of `rules`, or that of an account."""
    parsed = _parsed(id)
    return rules.get(id) if parsed is None else _rule(id, parsed[1])


def _rule(id: str, kind: Kind) -> Rule:
    events = tuple(type for type in _EVENTS[kind] if type != "gate.passed")  # it only ends a failure
    return Rule(id, SERVER, NotifyRuleSettings("", (id,), events, resolve=False))


def _parsed(id: str) -> tuple[int, Kind, int] | None:
    """The account, kind and project of the id of a rule; None for a rule that is no account's."""
    if not id.startswith(PREFIX):
        return None
    account, kind, project = id.removeprefix(PREFIX).split(":")
    return int(account), cast("Kind", kind), int(project)


def recipient(target: str) -> User | None:
    """The account that a message is for; None if it does not get the mail any more. For a worker."""
    parsed = _parsed(target)
    return None if parsed is None else mail_settings.recipient(parsed[1], parsed[2], parsed[0])


def forget(account: int, kinds: Iterable[Kind]) -> None:
    """Forgets what is to be mailed to an account, and the states of its rules."""
    with store.atomic():
        for kind in kinds:
            for statement in _FORGET:
                store.execute_sql(statement, (f"{PREFIX}{account}:{kind}:%",))
