"""Keeps the check run of a commit on GitHub up to date: the text of the comment, and annotations on changed lines."""

from __future__ import annotations

import asyncio

from models.config.settings import Config
from models.outbound.outbox import FORGE_CHECK, DeliveryOutcome
from models.storage.store import MAX_QUERY_SECONDS
from models.tracker.forge_reports import check_runs, comment_facts, comment_text, commit_reports
from models.tracker.forge_reports.check_runs import CheckRun, SentCheck
from models.tracker.forge_reports.commit_reports import CommitReport
from models.tracker.runs import attempts
from models.tracker.tables import reports
from supervisor.clock import Clock
from supervisor.outbound.dispatcher import Run
from supervisor.tracker.forge_reports.exchange import is_refused
from supervisor.tracker.forge_reports.forge_client import ForgeClient

_GONE = (404, 410)


class Checker:
    def __init__(self, config: Config, clock: Clock, run: Run, client: ForgeClient) -> None:
        """`run` runs work on the store of the outbox in a thread."""
        self._config = config
        self._clock = clock
        self._run = run
        self._client = client

    async def send(self, found: CommitReport, context: str) -> DeliveryOutcome:
        """Makes or changes the check run of a commit. Raises `Problem`."""
        if not found.is_trusted:
            return _unsent("an upload had no credential of WRITE")
        if not commit_reports.publishes_check(found):
            return _unsent("checks are not published (forge-reports.publish), or no App has the repository")
        rendered = await asyncio.to_thread(
            reports.run_with_timeout, lambda: self._rendered(found, context), MAX_QUERY_SECONDS
        )
        if rendered is None:
            return _unsent("the commit has no run any more")
        check, id, name = rendered, found.project.id, check_runs.name_of(found, context)
        known: SentCheck | None = await self._run(lambda: check_runs.sent(id, name))
        if known is not None and known.hash == check.hash:
            return _unsent("the forge has this check already")
        now, token = self._clock.now(), await self._client.token(found)
        if known is not None and check_runs.adds_annotations(check, known):
            uncertain = known.uncertain
            await self._run(lambda: check_runs.keep(id, name, uncertain, now))
        outcome, made = await self._written(found, check, known, token)
        is_rejected = outcome.status is not None and 400 <= outcome.status < 500
        kept = check.sent_as(made) if made is not None else known if is_rejected else None
        if kept is not None:
            await self._run(lambda: check_runs.keep(id, name, kept, now))
        if is_refused(outcome):
            await self._client.refuse(found, outcome, FORGE_CHECK)
        return outcome

    def _rendered(self, found: CommitReport, context: str) -> CheckRun | None:
        """The check run of a commit; None if it has no run any more."""
        status = commit_reports.status(found, context, None)
        if status is None:
            return None
        tracker, url = self._config.tracker, self._config.server.public_url
        late = attempts.late(tracker.runs, self._clock.now())
        limits = tracker.quality_gate, found.settings, tracker.forges, late
        facts = comment_facts.find(found.project, None, found.commit, found.link, *limits)
        if isinstance(facts, str) or status.state == "pending":
            return check_runs.render(found, status, None, None, url)
        return check_runs.render(found, status, comment_text.page(facts, url), facts.detail.patch, url)

    async def _written(
        self, found: CommitReport, check: CheckRun, known: SentCheck | None, token: str
    ) -> tuple[DeliveryOutcome, int | None]:
        """The outcome, and the id of the check run if the forge has it now. Raises `Problem`."""
        outcome, body = await self._client.send(found, check_runs.check_request(found, check, known, token))
        if outcome.status in _GONE and check_runs.updated(check, known) is not None:  # somebody deleted it
            outcome, body = await self._client.send(found, check_runs.check_request(found, check, None, token))
        if not outcome.is_delivered:
            return outcome, None
        made = await self._client.parsed(body)
        id = made.get("id") if isinstance(made, dict) else None
        if not isinstance(id, int) or isinstance(id, bool):
            return DeliveryOutcome(False, outcome.status, "the answer has no id of a check run"), None
        return outcome, id


def _unsent(reason: str) -> DeliveryOutcome:
    return DeliveryOutcome(True, None, f"not sent: {reason}")
