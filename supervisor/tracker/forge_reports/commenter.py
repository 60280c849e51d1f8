"""Keeps one comment up to date on each pull or merge request. Made by us, found by our marker, never made twice."""

from __future__ import annotations

import asyncio
import hashlib
import re

from models.config.settings import Config
from models.outbound.outbox import FORGE_COMMENT, DeliveryOutcome
from models.storage.store import MAX_QUERY_SECONDS
from models.tracker.forge_reports import comment_facts, comment_text, commit_reports, forge_requests, waits
from models.tracker.forge_reports.comment_facts import CommitFacts
from models.tracker.forge_reports.commit_reports import CommitReport
from models.tracker.forge_reports.forge_requests import COMMENTS_A_PAGE, CommentRequests
from models.tracker.forge_reports.waits import Comment
from models.tracker.runs import attempts
from models.tracker.tables import reports
from supervisor.clock import Clock
from supervisor.outbound.dispatcher import Run
from supervisor.tracker.forge_reports.exchange import is_refused
from supervisor.tracker.forge_reports.forge_client import ForgeClient

_MAX_PAGES = 10
_GONE = (404, 410)
_IS_LOCKED = re.compile(r"\block(ed)?\b", re.IGNORECASE)


class _Ended(Exception):
    """The report ends with an outcome."""

    def __init__(self, outcome: DeliveryOutcome) -> None:
        super().__init__(outcome.error)
        self.outcome = outcome


class Commenter:
    def __init__(self, config: Config, clock: Clock, run: Run, client: ForgeClient) -> None:
        """`run` runs work on the store of the outbox in a thread."""
        self._config = config
        self._clock = clock
        self._run = run
        self._client = client

    async def send(self, found: CommitReport, number: int | None) -> DeliveryOutcome:
        """Makes or changes the comment on a pull request; without a number on the open one whose head is the commit.

        Raises `Problem`.
        """
        requests = CommentRequests(found.forge, found.link.path or "", await self._client.token(found))
        try:
            if number is None:
                number = await self._open_request(found, requests)
            return await self._keep(found, requests, number, *await self._facts(found, number))
        except _Ended as ended:
            outcome = ended.outcome
        if is_refused(outcome) and not _IS_LOCKED.search(outcome.error or ""):
            await self._client.refuse(found, outcome, FORGE_COMMENT)
        return outcome

    async def _facts(self, found: CommitReport, number: int) -> tuple[CommitFacts, str]:
        """The facts of a pull request, and the text of its comment. Raises `_Ended`."""
        tracker = self._config.tracker
        late = attempts.late(tracker.runs, self._clock.now())
        place = found.project, number, found.commit, found.link
        limits = tracker.quality_gate, found.settings, tracker.forges, late

        def rendered() -> tuple[CommitFacts, str] | str:
            facts = comment_facts.find(*place, *limits)
            return facts if isinstance(facts, str) else (facts, comment_text.render(facts, public_url))

        public_url = self._config.server.public_url
        result = await asyncio.to_thread(reports.run_with_timeout, rendered, MAX_QUERY_SECONDS)
        if isinstance(result, str):
            raise _Ended(_unsent(result))
        return result

    async def _keep(
        self, found: CommitReport, requests: CommentRequests, number: int, facts: CommitFacts, text: str
    ) -> DeliveryOutcome:
        """Makes the comment, or changes it. Raises `_Ended`."""
        hash = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        id, place = found.project.id, requests.repository
        kept: Comment | None = await self._run(lambda: waits.comment(id, place, number))
        if kept is not None and (kept.is_deleted or kept.hash == hash):
            return _unsent("somebody deleted the comment" if kept.is_deleted else "the comment is the same already")
        if kept is None:
            if not is_wanted(found.settings.comment, facts):
                return _unsent(f"there is nothing to say (comment: {found.settings.comment})")
            known = await self._own_comment(found, requests, number)
            kept = None if known is None else Comment(known, "")
        outcome, made = await self._written(found, requests, number, kept, text)
        now, new = self._clock.now(), Comment(made, hash, is_deleted=not outcome.is_delivered)
        await self._run(lambda: waits.keep_comment(id, place, number, new, now))
        return outcome if outcome.is_delivered else _unsent("somebody deleted the comment")

    async def _written(
        self, found: CommitReport, requests: CommentRequests, number: int, kept: Comment | None, text: str
    ) -> tuple[DeliveryOutcome, int]:
        """The outcome and the id of the comment; not delivered if the comment is gone. Raises `_Ended`."""
        message = requests.create(number, text) if kept is None else requests.edit(number, kept.id, text)
        outcome, body = await self._client.send(found, message)
        if kept is not None:
            if outcome.status in _GONE and await self._is_readable(found, requests, number):
                return outcome, kept.id
            return _ended_unless_delivered(outcome), kept.id
        made = await self._client.parsed(body) if _ended_unless_delivered(outcome) else None
        made_id = made.get("id") if isinstance(made, dict) else None
        if not isinstance(made_id, int):
            raise _Ended(DeliveryOutcome(False, outcome.status, "the answer has no id of a comment"))
        return outcome, made_id

    async def _is_readable(self, found: CommitReport, requests: CommentRequests, number: int) -> bool:
        """Whether the comments of a pull request can be read: else 404 does not mean that the comment was deleted."""
        message = requests.listing(number, 1)
        assert message is not None
        outcome, _ = await self._client.send(found, message)
        return outcome.is_delivered

    async def _author(self, found: CommitReport, requests: CommentRequests) -> int | None:
        """The id of the user that our token belongs to; None if it is nobody's. Raises `_Ended`."""
        outcome, body = await self._client.send(found, requests.user())
        user = await self._client.parsed(body) if outcome.is_delivered else None
        own = user.get("id") if isinstance(user, dict) else None
        if isinstance(own, int):
            return own
        if outcome.status not in (403, 404) or not outcome.is_final:  # a token of a CI job is nobody's
            _ended_unless_delivered(outcome)
        return None

    async def _own_comment(self, found: CommitReport, requests: CommentRequests, number: int) -> int | None:
        """The id of a comment with our marker, by the owner of our token or by our App. Raises `_Ended`."""
        app = found.forge.app if commit_reports.has_app(found) else None
        own = app.id if app else await self._author(found, requests)
        if own is None:
            return None
        author = forge_requests.app_of if app else forge_requests.author_of
        marker = comment_text.marker(found.project.id, self._config.server.public_url)
        for page in range(1, _MAX_PAGES + 1):
            if (message := requests.listing(number, page)) is None:
                break
            outcome, body = await self._client.send(found, message)
            _ended_unless_delivered(outcome)
            comments = await self._client.parsed(body)
            for one in comments if isinstance(comments, list) else ():
                text = one.get("body") if isinstance(one, dict) else None
                is_ours = isinstance(text, str) and text.startswith(marker)
                if is_ours and author(one) == own and isinstance(one.get("id"), int):
                    return int(one["id"])
            if not isinstance(comments, list) or len(comments) < COMMENTS_A_PAGE:
                break
        return None

    async def _open_request(self, found: CommitReport, requests: CommentRequests) -> int:
        """The number of the open pull request whose head is a commit. Raises `_Ended`."""
        outcome, body = await self._client.send(found, requests.open_requests(found.commit))
        if outcome.status not in (404, 409, 422):  # the forge does not know the commit
            _ended_unless_delivered(outcome)
        number = forge_requests.open_with_head(await self._client.parsed(body), found.commit)
        if number is None:
            raise _Ended(_unsent("no open pull request has the commit as its head"))
        return number


def is_wanted(mode: str, facts: CommitFacts) -> bool:
    """Whether a comment is made. One that was made is kept up to date, whatever there is to say."""
    return mode == "always" or (facts.has_news if mode == "changes" else facts.has_failed)


def _unsent(reason: str) -> DeliveryOutcome:
    return DeliveryOutcome(True, None, f"not sent: {reason}")


def _ended_unless_delivered(outcome: DeliveryOutcome) -> DeliveryOutcome:
    if not outcome.is_delivered:
        raise _Ended(outcome)
    return outcome
