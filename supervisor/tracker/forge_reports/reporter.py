"""Sends the reports of the outbox to forges. A report is rendered when it is sent, from what is known then."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from attrs import evolve

from models.config.settings import Config
from models.errors import Problem
from models.json_format import ParseJson
from models.outbound.outbox import FORGE_CHECK, FORGE_COMMENT, FORGE_STATUS, Delivery, DeliveryOutcome
from models.storage.store import MAX_QUERY_SECONDS
from models.tracker.forge_reports import commit_reports, forge_requests, waits
from models.tracker.forge_reports.commit_reports import CommitReport
from models.tracker.project_secrets import ProjectSecrets
from models.tracker.tables import reports
from supervisor.clock import Clock
from supervisor.http.client import Lookup
from supervisor.outbound.dispatcher import Run
from supervisor.tracker.forge_reports.app_tokens import TokenRefused
from supervisor.tracker.forge_reports.checker import Checker
from supervisor.tracker.forge_reports.commenter import Commenter
from supervisor.tracker.forge_reports.exchange import is_refused
from supervisor.tracker.forge_reports.forge_client import ForgeClient
from supervisor.tracker.forge_reports.report_follower import find_report

MAX_SECONDS = 45
"""For all requests of a report: less than the lease of its message, so that no other node sends it meanwhile."""
_IS_KNOWN_STATE = re.compile(r"cannot transition", re.IGNORECASE)


class Reporter:
    def __init__(
        self,
        config: Config,
        clock: Clock,
        run: Run,
        secrets: ProjectSecrets,
        parse_json: ParseJson,
        on_resumed: Callable[[], None],
        lookup: Lookup | None = None,
    ) -> None:
        """`run` runs work on the store of the outbox in a thread. `on_resumed` is called when a forge takes reports of
        a project again. `parse_json` parses answers, `lookup` resolves names."""
        self._config = config
        self._clock = clock
        self._run = run
        self._on_resumed = on_resumed
        self._client = ForgeClient(config, clock, run, secrets, parse_json, lookup)
        self._commenter = Commenter(config, clock, run, self._client)
        self._checker = Checker(config, clock, run, self._client)

    async def send(self, delivery: Delivery) -> DeliveryOutcome:
        """Sends a report once. What need not be sent any more is done."""
        project_id, content, kind = int(delivery.project_id or 0), delivery.content, delivery.kind
        refusal = await self._run(lambda: waits.refusal(project_id, kind))
        if refusal is not None and not delivery.attempts:
            return DeliveryOutcome(kind != FORGE_STATUS, None, f"not sent: {refusal}", is_final=True)
        found = await asyncio.to_thread(self._find, project_id, content["commit"])
        if isinstance(found, str):
            return DeliveryOutcome(True, None, f"not sent: {found}")
        try:
            async with asyncio.timeout(MAX_SECONDS):
                if kind == FORGE_COMMENT:
                    outcome = await self._commenter.send(found, content["pull"])
                elif kind == FORGE_CHECK:
                    outcome = await self._checker.send(found, content["context"])
                else:
                    outcome = await self._send_status(found, content["context"], content["flag"])
        except TokenRefused as refused:
            outcome = refused.outcome
            if is_refused(outcome):
                await self._client.refuse(found, outcome, kind)
        except Problem as problem:
            return DeliveryOutcome(False, None, problem.message)
        except TimeoutError:
            return DeliveryOutcome(False, None, f"the requests to the forge took longer than {MAX_SECONDS} s")
        if outcome.is_delivered and outcome.status is not None and refusal is not None:
            await self._run(lambda: waits.resume(project_id, kind))
            self._on_resumed()
        return outcome

    def _find(self, project_id: int, commit: str) -> CommitReport | str:
        now = self._clock.now()
        return reports.run_with_timeout(lambda: find_report(self._config, project_id, commit, now), MAX_QUERY_SECONDS)

    async def _send_status(self, found: CommitReport, context: str, flag: str | None) -> DeliveryOutcome:
        """Raises `Problem`."""
        if not found.is_trusted:
            return DeliveryOutcome(True, None, "not sent: an upload had no credential of WRITE")
        status = commit_reports.status(found, context, flag)
        if status is None:
            return DeliveryOutcome(True, None, f"not sent: the commit has no run of the flag {flag} any more")
        token, public_url = await self._client.token(found), self._config.server.public_url
        message = forge_requests.status_request(found, status, token, public_url)
        name, hash = f"{found.commit} {context}", forge_requests.digest(message)
        if await self._run(lambda: waits.sent(found.project.id, name)) == hash:
            return DeliveryOutcome(True, None, "not sent: the forge has this status already")
        outcome, body = await self._client.send(found, message)
        outcome = _judged(found, outcome, body)
        if outcome.is_delivered:
            now = self._clock.now()
            await self._run(lambda: waits.record(found.project.id, name, hash, now))
        elif is_refused(outcome):
            await self._client.refuse(found, outcome)
        return outcome


def _judged(found: CommitReport, outcome: DeliveryOutcome, body: str) -> DeliveryOutcome:
    """GitLab refuses a state that a commit has already, and knows no commits of forks."""
    if found.forge.type == "gitlab" and outcome.status == 409:
        return evolve(outcome, is_final=False)  # another update of the status is in progress
    if found.forge.type == "gitlab" and outcome.status == 400 and _IS_KNOWN_STATE.search(body):
        return DeliveryOutcome(True, outcome.status, outcome.error)
    if found.forge.type == "gitlab" and outcome.status == 404 and any(flag.run.head_repo for flag in found.own):
        return DeliveryOutcome(True, outcome.status, "a commit of a fork has no status in GitLab")
    return outcome
