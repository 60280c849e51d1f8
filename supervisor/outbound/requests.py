"""Sends the requests of the outbox, and reads what their responses say about the next try."""

from __future__ import annotations

import time
from collections.abc import Sequence
from email.utils import parsedate_to_datetime

from tornado.httputil import HTTPHeaders

from models.errors import Problem
from models.outbound.formats import HttpMessage, plain
from models.outbound.outbox import MAX_ERROR_CHARACTERS, DeliveryOutcome, outcome_of
from supervisor.http import urls
from supervisor.http.client import GuardedClient, Request, Response
from supervisor.http.urls import Url

HIDDEN = "(hidden)"
_MAX_RETRY_AFTER_SECONDS = 86_400.0
_MIN_SECRET_CHARACTERS = 4


def retry_after(headers: HTTPHeaders, now: float) -> float | None:
    """The seconds that a response asks to wait: `Retry-After`, else the reset of a rate limit that is used up."""
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), _MAX_RETRY_AFTER_SECONDS)
    if text:
        try:
            return min(max(0.0, parsedate_to_datetime(text).timestamp() - now), _MAX_RETRY_AFTER_SECONDS)
        except (ValueError, OverflowError):
            return None
    reset = next((headers[name] for name in ("X-RateLimit-Reset", "RateLimit-Reset") if name in headers), "")
    remaining = next(
        (headers[name] for name in ("X-RateLimit-Remaining", "RateLimit-Remaining") if name in headers), ""
    )
    if remaining.strip() == "0" and reset.isascii() and reset.isdigit():
        at = float(reset[:12])
        return min(max(0.0, at - now if at > now / 2 else at), _MAX_RETRY_AFTER_SECONDS)
    return None


def without_secrets(text: str, url: Url | None, secrets: Sequence[str | None]) -> str:
    """`text` with the path of `url` and the secrets hidden, on one line, cut."""
    if url is not None:
        text = text.replace(str(url), f"{url.scheme}://{url.authority}")
        secrets = [*secrets, url.target if len(url.target) > _MIN_SECRET_CHARACTERS else None]
        secrets += [url.login.password] if url.login else []
        secrets += [part for part in url.path.split("/") if len(part) > 2 * _MIN_SECRET_CHARACTERS]
    for secret in secrets:
        if secret and len(secret) >= _MIN_SECRET_CHARACTERS:
            text = text.replace(secret, HIDDEN)
    return plain(text)[:MAX_ERROR_CHARACTERS]


async def send(
    client: GuardedClient, message: HttpMessage, secrets: Sequence[str | None], max_answer: int
) -> tuple[DeliveryOutcome, Response | None]:
    """Sends a message. An address that is refused, or that is no URL, is final; a failure of the network is not."""
    url: Url | None = None
    secrets = [message.token, *secrets]
    try:
        url = urls.parse(message.url, "the url to send to")
        client.check(url)
    except Problem as problem:
        return DeliveryOutcome(False, None, without_secrets(problem.message, url, secrets), is_final=True), None
    request = Request(
        url,
        max_bytes=max_answer,
        method=message.method,
        headers=message.headers,
        body=message.body or None,
        token=message.token,
        token_header=message.token_header,
        auth_scheme=message.auth_scheme,
    )
    try:
        response = await client.fetch(request)
    except Problem as problem:
        return DeliveryOutcome(False, None, without_secrets(problem.message, url, secrets)), None
    body = response.body[: 4 * MAX_ERROR_CHARACTERS].decode("utf-8", "replace")
    error = None if response.is_good else without_secrets(body or f"status {response.status}", url, secrets)
    return outcome_of(response.status, error, retry_after(response.headers, time.time())), response
