"""Reports changes of helm releases. A change is stored before helm starts, so that a restart reports it too."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import peewee

from models.errors import Problem
from models.outbound import states
from models.outbound.events import of_release
from models.outbound.rules import Rule
from models.outbound.tables import store
from supervisor.clock import Clock
from supervisor.outbound.dispatcher import Run
from supervisor.outbound.notifier import Notifier

log = logging.getLogger("outbox")

_TYPES = {
    "install": "release.installed",
    "upgrade": "release.upgraded",
    "rollback": "release.rolled-back",
    "uninstall": "release.uninstalled",
}
_FAILED = "release.failed"
_ADD = "INSERT INTO release_change (id, owner, subject, verb, created_at) VALUES (?, ?, ?, ?, ?)"
_OWN = "SELECT id, subject, verb FROM release_change WHERE owner = ?"
_DELETE = "DELETE FROM release_change WHERE id = ?"


class ReleaseChanges:
    def __init__(self, clock: Clock, instance: str, run: Run, notifier: Notifier, wake: Callable[[], None]) -> None:
        """`wake` is called when there is something to report."""
        self._clock = clock
        self._instance = instance
        self._run = run
        self._notifier = notifier
        self._wake = wake

    @property
    def _rules(self) -> Sequence[Rule]:
        types = (*_TYPES.values(), _FAILED)
        return [
            rule
            for rule in self._notifier.rules.values()
            if any(rule.reports(of_release(type, None, "", 0, "")) for type in types)
        ]

    @asynccontextmanager
    async def change(self, namespace: str, name: str, verb: str) -> AsyncIterator[None]:
        """The time of a change, which fails if it raises an `Exception`."""
        if not self._rules:
            yield
            return
        id, subject = secrets.token_hex(16), f"{namespace}/{name}"
        await self._stored(lambda: self._add(id, subject, verb))
        try:
            yield
        except Exception:
            await self._stored(lambda: self._end(id, subject, verb, f"{verb} failed", _FAILED))
            raise
        await self._stored(lambda: self._end(id, subject, verb, f"{verb} is done"))

    async def _stored(self, work: Callable[[], Any]) -> None:
        """A store that cannot be used stops no change of a release."""
        try:
            await self._run(work)
        except (peewee.PeeweeException, Problem) as error:
            log.warning("a change of a release cannot be reported: %s", error)
        self._wake()

    def _add(self, id: str, subject: str, verb: str) -> None:
        with store.atomic():
            store.execute_sql(_ADD, (id, self._instance, subject, verb, self._clock.now()))

    def _end(self, id: str, subject: str, verb: str, what: str, type: str | None = None) -> None:
        now, (namespace, _, name) = self._clock.now(), subject.rpartition("/")
        event = of_release(type or _TYPES.get(verb, _FAILED), namespace, name, now, f"release {subject}: {what}")
        with store.atomic():
            states.apply(self._rules, event, now)
            store.execute_sql(_DELETE, (id,))

    def recover(self) -> None:
        """Reports the changes that an earlier process of this node did not see the end of; in a thread."""
        for id, subject, verb in store.execute_sql(_OWN, (self._instance,)).fetchall():
            what = f"the outcome of {verb} is unknown: the server ended meanwhile"
            self._end(id, subject, verb, what, _FAILED)
