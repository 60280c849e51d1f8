"""The tracker's stream: `connected`, then a `run` event for each stored upload, to callers that may read its project.

Permissions are checked when an event is delivered, once for each credential and not for each stream.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import ClassVar

import peewee
from tornado.iostream import StreamClosedError

from handlers.http.sse import RETRY_MILLISECONDS, block
from handlers.http.sse_connection import Stream
from handlers.http.stream_credentials import CREDENTIALS_PER_QUERY, StreamGroup, StreamGroups
from handlers.http.stream_handler import LAST_EVENT_ID, Streaming
from handlers.operations import EVENT_STREAM, Operation, read_request
from handlers.routing import Route
from models.accounts import accounts, permissions
from models.accounts.accounts import Credential
from models.errors import Problem
from models.inputs import free_text, query
from models.json_format import http_message
from models.tracker.runs import run_events
from models.tracker.runs.run_events import RunUpdate
from models.tracker.tables import Project
from supervisor.clock import Clock
from supervisor.tracker.service import Tracker

log = logging.getLogger("http")

CONNECTED = block("connected", "{}", retry=RETRY_MILLISECONDS)
_REPLAY_EVENTS = 100
_BATCH_EVENTS = 100
_MAX_ID_DIGITS = 18
_SLICE_SECONDS = 0.002


@http_message
class RunStreamRequest:
    last_event_id: str | None = LAST_EVENT_ID()
    last: str | None = query(
        "As the header Last-Event-ID, for clients that cannot send it", kind=free_text("17"), json_name="lastEventId"
    )


def run_block(update: RunUpdate) -> bytes:
    return block("run", update.data, update.id)


class Pace:
    """Yields to the event loop after each slice of time."""

    def __init__(self) -> None:
        self._end = time.monotonic() + _SLICE_SECONDS

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self._end

    async def pause(self) -> None:
        await asyncio.sleep(0)
        self._end = time.monotonic() + _SLICE_SECONDS


class Readable:
    """Which projects of some events a credential may read now."""

    def __init__(self, clock: Clock, updates: Iterable[RunUpdate]) -> None:
        ids = {update.project_id for update in updates}
        found = {project.id: project for project in Project.select().where(Project.id.in_(ids))} if ids else {}
        self._clock = clock
        self._public = frozenset(id for id, project in found.items() if project.visibility == "PUBLIC")
        self._others = {id: project for id, project in found.items() if id not in self._public}

    def by(self, credential: Credential | None) -> frozenset[int] | None:
        """Ids of projects; None where the credential has ended. Public projects need no query."""
        if credential is None or not self._others:
            return self._public
        now = accounts.refresh(credential, self._clock.now())
        if now is None:
            return None
        return self._public | {id for id, project in self._others.items() if permissions.may_read(now.user, project)}


class RunFeed:
    """Sends every run to every stream that may read it: checked once per credential, encoded once for all."""

    def __init__(self, tracker: Tracker, clock: Clock) -> None:
        self._tracker = tracker
        self._clock = clock
        self._groups = StreamGroups()
        self._waiting: dict[int, RunUpdate] = {}
        self._last_sent: int | None = None
        self._sending: asyncio.Task[None] | None = None

    def publish(self, update: RunUpdate) -> None:
        """Queues an event. Never waits and never fails."""
        if not self._groups:
            self._last_sent = max(self._last_sent or 0, update.id)
        elif update.id > (self._last_sent or 0):
            self._waiting[update.id] = update
            if self._sending is None:
                self._sending = asyncio.get_running_loop().create_task(self._send(), name="runs")

    @property
    def last_sent(self) -> int:
        """The last id that was sent to open streams."""
        if self._last_sent is None:
            self._last_sent = self._tracker.last_update
        return self._last_sent

    def add(self, stream: Stream, credential: Credential | None, after: int) -> None:
        """Sends the stream every readable run from now on whose id is above `after`."""
        self._groups.add(stream, credential, max(after, self.last_sent))

    async def _send(self) -> None:
        try:
            while self._waiting:
                try:
                    await self._deliver(await self._in_order())
                except (peewee.PeeweeException, Problem) as error:
                    log.error("run events could not be sent, so their streams end: %s", error)
                    for group in tuple(self._groups.values()):  # clients reconnect and get the missed events
                        group.close()
                await asyncio.sleep(0)  # a client that reads fast enough has an empty buffer at the next batch
        finally:
            self._sending = None

    async def _in_order(self) -> Sequence[RunUpdate]:
        """Takes the queued events in commit order, with those committed between them and not published yet."""
        newest, sent, waiting, self._waiting = max(self._waiting), self.last_sent, self._waiting, {}
        self._last_sent = newest
        if newest - sent > len(waiting):
            stored = await self._tracker.read_fast(lambda: run_events.since(sent, newest - sent))
            waiting = {update.id: update for update in stored if update.id <= newest} | waiting
        return [waiting[id] for id in sorted(waiting)]

    async def _deliver(self, updates: Sequence[RunUpdate]) -> None:
        pace = Pace()
        for start in range(0, len(updates), _BATCH_EVENTS):
            batch = updates[start : start + _BATCH_EVENTS]
            readable, joined = await self._readable(batch), Joined(batch)
            groups = tuple(self._groups.values())
            for first in range(0, len(groups), CREDENTIALS_PER_QUERY):
                some = groups[first : first + CREDENTIALS_PER_QUERY]
                for group, ids in zip(some, await self._may(readable, some), strict=True):
                    if ids is None:
                        group.close()
                    elif ids:
                        await self._to_group(group, joined, ids, pace)
                if pace.is_over:
                    await pace.pause()

    async def _readable(self, batch: Sequence[RunUpdate]) -> Readable:
        return await self._tracker.read_fast(lambda: Readable(self._clock, batch))

    async def _may(self, readable: Readable, groups: Sequence[StreamGroup]) -> Sequence[frozenset[int] | None]:
        """`Readable.by` for each group."""
        return await self._tracker.read_fast(lambda: [readable.by(group.credential) for group in groups])

    async def _to_group(self, group: StreamGroup, joined: Joined, ids: frozenset[int], pace: Pace) -> None:
        whole, first = joined.of(ids), joined.first
        if not whole:
            return
        for stream, after in tuple(group.streams.items()):
            if data := whole if after < first else joined.of(ids, after):
                stream.send(data)
            if pace.is_over:
                await pace.pause()


class Joined:
    """The encoded events of a batch, joined once for each set of projects."""

    def __init__(self, batch: Sequence[RunUpdate]) -> None:
        self.first = batch[0].id
        self._blocks = [(update.id, update.project_id, run_block(update)) for update in batch]
        self._made: dict[tuple[frozenset[int], int], bytes] = {}

    def of(self, projects: frozenset[int], after: int = 0) -> bytes:
        """The events of these projects with ids above `after`."""
        data = self._made.get((projects, after))
        if data is None:
            wanted = (block for id, project, block in self._blocks if id > after and project in projects)
            data = self._made[projects, after] = b"".join(wanted)
        return data


class RunStream(Streaming):
    """`connected` once the stream is subscribed; `Last-Event-ID` replays the missed events that the caller may read."""

    operations: ClassVar = {
        "GET": Operation(
            None, "GET", "/events", "Stream runs as they are stored", RunStreamRequest, None, EVENT_STREAM,
            name="run_stream",
        )
    }  # fmt: skip
    kind = "runs"

    async def get(self) -> None:
        last = self.request.headers.get("Last-Event-ID") or read_request(self, self.operations["GET"]).last or ""
        runs: RunFeed = self.settings["runs"]
        stream = self.open()
        stream.send(CONNECTED)
        try:
            seen = runs.last_sent
            if last.isascii() and last.isdigit() and len(last) <= _MAX_ID_DIGITS:
                seen = await self._catch_up(runs, stream, int(last))
            runs.add(stream, self.caller.credential, seen)
        except StreamClosedError:
            stream.close()
        except (peewee.PeeweeException, Problem) as error:
            log.error("a stream ends because the store cannot be read: %s", error)
            stream.close()

    async def _catch_up(self, runs: RunFeed, stream: Stream, seen: int) -> int:
        """Sends all events after `seen`, as fast as the client reads; returns the last id sent.

        The loop does not run between the last comparison with `last_sent` and the subscription.
        """
        while True:
            oldest, newest = await self.tracker.read_fast(run_events.bounds)
            if not max(oldest, newest + 1 - self.config.server.stream_replay) - 1 <= seen <= newest:
                seen = newest
                await stream.send_slowly(block("reset", "{}", newest))
                continue
            if seen == newest:
                if seen >= runs.last_sent:
                    return seen
                continue
            some, ids = await self.tracker.read_fast(partial(self._missed, seen))
            if ids is None:
                raise StreamClosedError
            seen = some[-1].id
            await stream.send_slowly(Joined(some).of(ids))
            await asyncio.sleep(0)

    def _missed(self, seen: int) -> tuple[Sequence[RunUpdate], frozenset[int] | None]:
        """The next events after `seen`, and the projects among them that the caller may read."""
        some = run_events.since(seen, _REPLAY_EVENTS)
        return some, Readable(self.clock, some).by(self.caller.credential)


routes: list[Route] = [(r"/events", RunStream)]
