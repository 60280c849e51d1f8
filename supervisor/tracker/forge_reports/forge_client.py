"""Requests to the forge of a project, with its token, and what their answers mean for the next try."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from attrs import evolve

from models.config.settings import Config
from models.errors import Invalid, Unprocessable
from models.json_format import ParseJson
from models.outbound.formats import HttpMessage
from models.outbound.outbox import FORGE_STATUS, DeliveryOutcome
from models.tracker.forge_reports import waits
from models.tracker.forge_reports.commit_reports import CommitReport, has_app
from models.tracker.project_secrets import ProjectSecrets
from supervisor.clock import Clock
from supervisor.http.client import GuardedClient, Lookup
from supervisor.outbound.dispatcher import Run
from supervisor.tracker.forge_reports.app_tokens import AppTokens
from supervisor.tracker.forge_reports.exchange import exchange
from supervisor.tracker.forge_sources import rules, token_of

log = logging.getLogger("outbox")


class ForgeClient:
    def __init__(
        self,
        config: Config,
        clock: Clock,
        run: Run,
        secrets: ProjectSecrets,
        parse_json: ParseJson,
        lookup: Lookup | None = None,
    ) -> None:
        """`run` runs work on the store of the outbox in a thread. `parse_json` parses answers.

        `lookup` resolves names.
        """
        self._clock = clock
        self._run = run
        self._secrets = secrets
        self._parse_json = parse_json
        self._max_answer = config.server.outbound.max_answer
        self._client = GuardedClient(rules(config), lookup)
        self._apps = AppTokens(self._client, self._max_answer)

    async def token(self, found: CommitReport) -> str:
        """The token that is used for a project. Raises `Problem`; of an App, `TokenRefused`."""
        name, forge = found.link.name or "", found.forge
        if has_app(found):
            return await self._apps.token(name, forge, found.link.path or "")
        return await asyncio.to_thread(token_of, self._secrets, found.project.id, _has_own_token(found), name, forge)

    async def send(self, found: CommitReport, message: HttpMessage) -> tuple[DeliveryOutcome, str]:
        """Sends a request once; returns the body of the answer too. A rate limit is waited for.

        A token of an App that ended early is forgotten: the next try gets another one.
        """
        name, is_own = found.link.name or "", _has_own_token(found)
        outcome, body = await exchange(self._client, name, message, self._max_answer, holds_target=not is_own)
        if outcome.status == 401 and self._apps.forget(message.token):
            outcome = evolve(outcome, is_final=False, holds_target=False)
        return outcome, body

    async def parsed(self, body: str) -> Any:
        """The JSON of an answer; None if it is none. Raises `Problem` where it cannot be parsed now."""
        try:
            return await self._parse_json(body)
        except (Invalid, Unprocessable):
            return None

    async def refuse(self, found: CommitReport, outcome: DeliveryOutcome, kind: str = FORGE_STATUS) -> None:
        """After a refused token: reports rest until the project's settings change or one is tried again by hand."""
        id, reason, now = found.project.id, f"the token was refused: {outcome.error}", self._clock.now()
        log.warning("reports of the project %d are paused: %s", id, reason)
        await self._run(lambda: waits.refuse(id, reason, now, kind))


def _has_own_token(found: CommitReport) -> bool:
    return found.project.forge_token_at is not None
