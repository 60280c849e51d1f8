"""One request to a forge, and what its answer means for the next try."""

from __future__ import annotations

import re

from attrs import evolve

from models.outbound.formats import HttpMessage
from models.outbound.outbox import DeliveryOutcome
from supervisor.http.client import GuardedClient
from supervisor.outbound.requests import send

REFUSED = (401, 403)
_RATE_LIMIT_SECONDS = 60.0
"""The wait where a forge names none."""
_MAX_ERROR_CHARACTERS = 64 * 1024
"""Of an answer that is an error, so much is searched for its reason."""
_IS_RATE_LIMIT = re.compile(r"rate limit|abuse detection", re.IGNORECASE)


async def exchange(
    client: GuardedClient, name: str, message: HttpMessage, max_answer: int, holds_target: bool
) -> tuple[DeliveryOutcome, str]:
    """Sends a request to the forge `name` once; returns the body of the answer too. A rate limit is waited for.

    `holds_target`: whether a rate limit is that of all projects of the forge.
    """
    outcome, response = await send(client, message, (message.token,), max_answer)
    body = response.body.decode("utf-8", "replace") if response else ""
    if outcome.is_delivered or outcome.status is None:
        return outcome, body
    body = body[:_MAX_ERROR_CHARACTERS]
    outcome = evolve(outcome, error=f"the forge {name} answered {outcome.status}: {outcome.error}")
    is_limited = outcome.retry_after is not None or _IS_RATE_LIMIT.search(body) is not None
    if outcome.status == 429 or (outcome.status == 403 and is_limited):
        seconds = outcome.retry_after if outcome.retry_after is not None else _RATE_LIMIT_SECONDS
        outcome = evolve(outcome, is_final=False, retry_after=seconds, holds_target=holds_target)
    return outcome, body


def is_refused(outcome: DeliveryOutcome) -> bool:
    return outcome.status in REFUSED and outcome.is_final
