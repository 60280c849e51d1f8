"""Sends the reports of the outbox to forges. A report is rendered when it is sent, from what is known then."""

from __future__ import annotations

import asyncio
import logging
import re

from attrs import evolve

from models.config.settings import Config
from models.errors import Problem
from models.outbound.outbox import Delivery, Outcome
from models.storage.store import MAX_QUERY_SECONDS
from models.tracker.forge_reports import commit_reports, forge_requests, waits
from models.tracker.forge_reports.commit_reports import CommitReport
from models.tracker.forges.project_forge import ForgeLink
from models.tracker.project_secrets import ProjectSecrets
from models.tracker.tables import reports
from supervisor.clock import Clock
from supervisor.http.client import GuardedClient, Lookup
from supervisor.outbound.dispatcher import Run
from supervisor.outbound.requests import send
from supervisor.tracker.forge_reports.report_follower import find_report
from supervisor.tracker.forge_sources import rules, token_of

log = logging.getLogger("outbox")

_REFUSED = (401, 403)
_RATE_LIMIT_SECONDS = 60.0
"""The wait where a forge names none."""
_IS_RATE_LIMIT = re.compile(r"rate limit|abuse detection", re.IGNORECASE)
_IS_KNOWN_STATE = re.compile(r"cannot transition", re.IGNORECASE)


class Reporter:
    def __init__(
        self, config: Config, clock: Clock, run: Run, secrets: ProjectSecrets, lookup: Lookup | None = None
    ) -> None:
        """`run` runs work on the store of the outbox in a thread. `lookup` resolves names."""
        self._config = config
        self._clock = clock
        self._run = run
        self._secrets = secrets
        self._client = GuardedClient(rules(config), lookup)

    async def send(self, delivery: Delivery) -> Outcome:
        """Sends a report once. What need not be sent any more is done."""
        project_id, content = int(delivery.project_id or 0), delivery.content
        refusal = await self._run(lambda: waits.refusal(project_id))
        if refusal is not None and not delivery.attempts:
            return Outcome(False, None, refusal, is_final=True)
        found = await asyncio.to_thread(self._find, project_id, content["commit"])
        if isinstance(found, str):
            return Outcome(True, None, f"not sent: {found}")
        try:
            outcome = await self._send_status(found, content["context"], content["flag"])
        except Problem as problem:
            return Outcome(False, None, problem.message)
        if outcome.is_delivered and outcome.status is not None and refusal is not None:
            await self._run(lambda: waits.resume(project_id))
        return outcome

    def _find(self, project_id: int, commit: str) -> CommitReport | str:
        now = self._clock.now()
        return reports.run_with_timeout(lambda: find_report(self._config, project_id, commit, now), MAX_QUERY_SECONDS)

    async def _send_status(self, found: CommitReport, context: str, flag: str | None) -> Outcome:
        """Raises `Problem`."""
        status = commit_reports.status(found, context, flag)
        if status is None:
            return Outcome(True, None, f"not sent: the commit has no run of the flag {flag} any more")
        token = await asyncio.to_thread(self._token, found)
        message = forge_requests.status_request(found, status, token, self._config.server.public_url)
        name, hash = f"{found.commit} {context}", forge_requests.digest(message)
        if await self._run(lambda: waits.sent(found.project.id, name)) == hash:
            return Outcome(True, None, "not sent: the forge has this status already")
        outcome, response = await send(self._client, message, (token,), self._config.server.outbound.max_answer)
        outcome = await self._judged(found, outcome, response.body.decode("utf-8", "replace") if response else "")
        if outcome.is_delivered:
            now = self._clock.now()
            await self._run(lambda: waits.record(found.project.id, name, hash, now))
        return outcome

    def _token(self, found: CommitReport) -> str:
        return token_of(self._secrets, found.project.id, has_own_token(found), found.link.name or "", found.forge)

    async def _judged(self, found: CommitReport, outcome: Outcome, body: str) -> Outcome:
        """What the answer of a forge means: rate limits, what is done already, and tokens that are refused."""
        if outcome.is_delivered or outcome.status is None:
            return outcome
        outcome = evolve(outcome, error=f"{_name(found.link)} answered {outcome.status}: {outcome.error}")
        is_gitlab = found.forge.type == "gitlab"
        if is_gitlab and outcome.status == 400 and _IS_KNOWN_STATE.search(body):
            return Outcome(True, outcome.status, outcome.error)
        if is_gitlab and outcome.status == 404 and any(flag.run.head_repo for flag in found.own):
            return Outcome(True, outcome.status, "a commit of a fork has no status in GitLab")
        if outcome.status == 429 or (outcome.status == 403 and is_rate_limit(outcome, body)):
            seconds = outcome.retry_after if outcome.retry_after is not None else _RATE_LIMIT_SECONDS
            return evolve(outcome, is_final=False, retry_after=seconds, holds_target=not has_own_token(found))
        if outcome.status in _REFUSED:
            await self._refuse(found, str(outcome.error))
        return outcome

    async def _refuse(self, found: CommitReport, error: str) -> None:
        """Reports of the project rest until its settings change or one is tried again by hand."""
        id, reason, now = found.project.id, f"the token was refused: {error}", self._clock.now()
        log.warning("reports of the project %d are paused: %s", id, reason)
        await self._run(lambda: waits.refuse(id, reason, now))


def has_own_token(found: CommitReport) -> bool:
    return found.project.forge_token_at is not None


def is_rate_limit(outcome: Outcome, body: str) -> bool:
    return outcome.retry_after is not None or _IS_RATE_LIMIT.search(body) is not None


def _name(link: ForgeLink) -> str:
    return f"the forge {link.name}"
