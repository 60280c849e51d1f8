"""The base of the tracker's handlers: runs a query in a worker and sends its JSON, which is encoded there too.

Answers about finished runs are kept until their project changes (`models/tracker/runs/kept_answers.py`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from attrs import evolve, frozen

from handlers.base import Base, etag
from handlers.http import serializers
from handlers.http.compression import MIN_BYTES, accepts_gzip, compress
from handlers.operations import SENT
from models.inputs import free_text, query
from models.tracker.runs.kept_answers import Answer, KeptAnswers, State
from models.tracker.tables import reports
from supervisor.single_flight import SingleFlight

Result = TypeVar("Result")

_TOKEN = secrets.token_hex(16).encode()
"""Stands in kept pages where the token of a form was."""


@frozen(slots=False)  # a base beside another one
class NamedTest:
    """A test by its class and name, which are not trimmed."""

    class_name: str = query(
        "Its class; empty where it has none", "", kind=evolve(free_text("com.example.ShopTest"), is_trimmed=False)
    )
    name: str = query("The name of a test", required=True, kind=evolve(free_text("adds"), is_trimmed=False))


@frozen(slots=False)  # a base beside another one
class HistoryOfTest(NamedTest):
    """A test, and the runs that its history is about."""

    branch: str | None = query("Only outcomes on this branch", kind=free_text("main"))
    flag: str | None = query("Only outcomes in runs of this flag", kind=free_text("unit"))


def in_snapshot(query: Callable[[], Result]) -> Result:
    """Runs `query`, whose reads all see the same snapshot of the store."""
    with reports.atomic("DEFERRED"):
        return query()


async def send_kept(
    handler: Base, key: Hashable, state: Callable[[], State], make: Callable[[], bytes], media_type: str
) -> None:
    """Sends the answer that is kept for `key`, or the one that `make` returns in a worker.

    `state` reads the project and checks that the caller may read it; it runs on the loop where the store is a file.
    """
    kept: KeptAnswers = handler.settings["kept_answers"]
    answer = kept.get(key, await handler.tracker.read_fast(state))
    if answer is None:
        flights: SingleFlight[Answer] = handler.settings["kept_answers_flights"]
        answer = await flights.run(key, lambda: _made(handler, kept, key, state, make))
    handler.version = answer.etag
    handler.set_header("Content-Type", media_type)
    handler.set_header("Cache-Control", "private, no-cache")  # caches must revalidate it
    if _TOKEN in answer.body:
        handler.write(answer.body.replace(_TOKEN, handler.xsrf_token))
    elif len(answer.body) >= MIN_BYTES and accepts_gzip(handler):
        compressed = answer.compressed
        if compressed is None:
            compressed = await asyncio.to_thread(compress, answer.body)
            kept.compress(key, answer, compressed)
        handler.send_compressed(compressed)
    else:
        handler.write(answer.body)


async def _made(
    handler: Base, kept: KeptAnswers, key: Hashable, state: Callable[[], State], make: Callable[[], bytes]
) -> Answer:
    def read() -> tuple[State, Answer]:
        now, body = state(), make()
        if b'name="_xsrf"' in body:
            body = body.replace(handler.xsrf_token, _TOKEN)
        return now, Answer(body, etag(body))

    now, answer = await handler.tracker.run(lambda: in_snapshot(read))
    kept.keep(key, now, answer)
    return answer


async def answer(handler: Base, query: Callable[[], Any]) -> bytes:
    """Runs `query` in a worker; returns its result as JSON, which is encoded there too."""
    return await handler.tracker.run(lambda: serializers.encoded(in_snapshot(query)))


async def answer_kept(handler: Base, key: Hashable, state: Callable[[], State], query: Callable[[], Any]) -> object:
    """As `answer`, with an ETag; the JSON is kept for `key` until the project changes (`send_kept`). It is sent."""
    await send_kept(handler, key, state, lambda: serializers.encoded(query()), "application/json")
    return SENT
