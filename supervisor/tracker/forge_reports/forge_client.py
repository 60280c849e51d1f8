"""Requests to the forge of a project, with its token, and what their answers mean for the next try."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from typing import Any

from attrs import evolve

from models.config.settings import Config
from models.outbound.formats import HttpMessage
from models.outbound.outbox import FORGE_STATUS, Outcome
from models.tracker.forge_reports import waits
from models.tracker.forge_reports.commit_reports import CommitReport
from models.tracker.project_secrets import ProjectSecrets
from supervisor.clock import Clock
from supervisor.http.client import GuardedClient, Lookup
from supervisor.outbound.dispatcher import Run
from supervisor.outbound.requests import send
from supervisor.tracker.forge_sources import rules, token_of

log = logging.getLogger("outbox")

REFUSED = (401, 403)
_RATE_LIMIT_SECONDS = 60.0
"""The wait where a forge names none."""
_IS_RATE_LIMIT = re.compile(r"rate limit|abuse detection", re.IGNORECASE)


class ForgeClient:
    def __init__(
        self, config: Config, clock: Clock, run: Run, secrets: ProjectSecrets, lookup: Lookup | None = None
    ) -> None:
        """`run` runs work on the store of the outbox in a thread. `lookup` resolves names."""
        self._clock = clock
        self._run = run
        self._secrets = secrets
        self._max_answer = config.server.outbound.max_answer
        self._client = GuardedClient(rules(config), lookup)

    async def token(self, found: CommitReport) -> str:
        """The token that is used for a project. Raises `Problem`."""
        facts = found.project.id, _has_own_token(found), found.link.name or "", found.forge
        return await asyncio.to_thread(token_of, self._secrets, *facts)

    async def send(self, found: CommitReport, message: HttpMessage) -> tuple[Outcome, str]:
        """Sends a request once; returns the body of the answer too. A rate limit is waited for."""
        outcome, response = await send(self._client, message, (message.token,), self._max_answer)
        body = response.body.decode("utf-8", "replace") if response else ""
        if outcome.is_delivered or outcome.status is None:
            return outcome, body
        outcome = evolve(outcome, error=f"the forge {found.link.name} answered {outcome.status}: {outcome.error}")
        is_limited = outcome.retry_after is not None or _IS_RATE_LIMIT.search(body) is not None
        if outcome.status == 429 or (outcome.status == 403 and is_limited):
            seconds = outcome.retry_after if outcome.retry_after is not None else _RATE_LIMIT_SECONDS
            outcome = evolve(outcome, is_final=False, retry_after=seconds, holds_target=not _has_own_token(found))
        return outcome, body

    async def refuse(self, found: CommitReport, outcome: Outcome, kind: str = FORGE_STATUS) -> None:
        """After a refused token: reports rest until the project's settings change or one is tried again by hand."""
        id, reason, now = found.project.id, f"the token was refused: {outcome.error}", self._clock.now()
        log.warning("reports of the project %d are paused: %s", id, reason)
        await self._run(lambda: waits.refuse(id, reason, now, kind))


def is_refused(outcome: Outcome) -> bool:
    return outcome.status in REFUSED and outcome.is_final


async def parsed(body: str) -> Any:
    """The JSON of an answer, parsed off the loop; None if it is none."""
    try:
        return await asyncio.to_thread(json.loads, body)
    except (ValueError, RecursionError):
        return None


def _has_own_token(found: CommitReport) -> bool:
    return found.project.forge_token_at is not None
