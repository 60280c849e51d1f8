"""One event stream for all tabs of a browser: a connection subscribes to topics by name.

Topics are `status`, `runs`, `releases`, `metrics/host`, `metrics/{process}` and `log/{process}/{stream}?lines=`. The
event of a topic bears its name. Permissions are checked when a topic is added, and runs again at every delivery.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, ClassVar
from urllib.parse import parse_qsl, unquote

from attrs import define, field
from tornado.httputil import HTTPServerRequest
from tornado.iostream import StreamClosedError

from handlers.base import Base
from handlers.http import serializers
from handlers.http.credentials import Caller
from handlers.http.permissions import READ, READ_LOGS, admit
from handlers.http.sse import RETRY_MILLISECONDS, Streams, block
from handlers.http.sse_connection import Stream
from handlers.http.stream_credentials import key_of
from handlers.http.stream_handler import Streaming
from handlers.operations import EVENT_STREAM, NoInputs, Operation, operation_routes
from handlers.routing import Route
from handlers.supervision.log_reads import part_of
from handlers.supervision.streams import log_file
from handlers.tracker.stream import RunFeed
from models.errors import Invalid, NotFound, Problem
from models.inputs import NAME, InputKind, body, path
from models.json_format import http_message
from models.paging import whole
from supervisor import host
from supervisor.processes.logs.follower import Beginning, Chunk, LogFollower
from supervisor.processes.logs.places import read_cursor
from supervisor.services import Services

MAX_TOPICS = 64
STREAM_NOT_FOUND = "STREAM_NOT_FOUND"
"""The code of an unknown id; a browser opens another stream then."""
_MAX_LOG_LINES = 10_000
_MAX_OFFSET = 2**53
_METRICS_SECONDS = 5.0
_AGAIN_SECONDS = 5.0
"""After which a log that cannot be read is tried again."""
_RUN_EVENT, _RUNS_EVENT = b"event: run\n", b"event: runs\n"


class Subscription(Stream):
    """The stream of a connection as one publisher sees it, so that the publisher can be left alone."""

    __slots__ = ("_stream",)

    def __init__(self, stream: Stream) -> None:
        super().__init__(0, lambda _: None)
        self._stream = stream

    def send(self, data: bytes) -> None:
        if not self.is_closed:
            self._stream.send(data.replace(_RUN_EVENT, _RUNS_EVENT) if data.startswith(_RUN_EVENT) else data)

    async def send_slowly(self, data: bytes) -> None:
        await self._stream.send_slowly(data)

    def cancel(self) -> None:
        """Leaves the publisher; the connection stays."""
        self._on_closed()

    def close(self) -> None:
        """Ends the connection: the credential has expired."""
        self._stream.close()


@define(eq=False)
class LiveConnection:
    """One live stream: the caller who opened it, and how to end each of its topics."""

    stream: Stream
    caller: Caller
    request: HTTPServerRequest
    topics: dict[str, Callable[[], object]] = field(factory=dict)
    sending: asyncio.Lock = field(factory=asyncio.Lock)
    followers: dict[str, LogFollower] = field(factory=dict)
    """Those of the topics that are logs."""

    def close(self, _: Stream | None = None) -> None:
        for end in self.topics.values():
            end()
        self.topics.clear()


class Live:
    """All live connections, by id."""

    def __init__(self, services: Services, streams: Streams, runs: RunFeed) -> None:
        self._services = services
        self._streams = streams
        self._runs = runs
        self._connections: dict[str, LiveConnection] = {}

    def open(self, stream: Stream, caller: Caller, request: HTTPServerRequest) -> str:
        """Registers a connection until its client leaves; returns its id."""
        id, connection = secrets.token_urlsafe(18), LiveConnection(stream, caller, request)
        self._connections[id] = connection
        stream.when_closed(connection.close)
        stream.when_closed(lambda _: self._connections.pop(id, None))
        return id

    def find(self, id: str, caller: Caller) -> LiveConnection:
        """The connection with this id that the same credential opened. Raises `NotFound`."""
        connection = self._connections.get(id)
        if connection is None or key_of(connection.caller.credential) != key_of(caller.credential):
            raise NotFound("there is no live stream with this id", STREAM_NOT_FOUND)
        return connection

    def change(self, connection: LiveConnection, caller: Caller, add: list[str], remove: list[str]) -> None:
        """Adds and removes topics. Raises `Invalid`, `NotFound`, `Denied` and adds nothing then."""
        starts = {topic.partition("?")[0]: self._start_of(topic, caller) for topic in add}
        if len((connection.topics.keys() - set(remove)) | starts.keys()) > MAX_TOPICS:
            raise Invalid(f"a live stream has at most {MAX_TOPICS} topics")
        repeated = {name for name in starts if not name.startswith("log/")}  # a log has one follower for all readers
        for name in {*(topic.partition("?")[0] for topic in remove), *repeated}:
            if end := connection.topics.pop(name, None):
                end()
            connection.followers.pop(name, None)
        for name, start in starts.items():
            start(connection, name)

    def _start_of(self, topic: str, caller: Caller) -> Callable[[LiveConnection, str], None]:
        """Checks a topic and the caller's permission; returns what subscribes a connection to it."""
        name, _, query = topic.partition("?")
        admit(caller, READ, self._services.config)
        match name.split("/"):
            case ["status"]:
                return self._follow_status
            case ["runs"]:
                return self._follow_runs
            case ["releases"]:
                return lambda connection, topic: self._run(connection, topic, self._follow_releases(connection))
            case ["metrics", "host"]:
                return lambda connection, topic: self._run(connection, topic, self._follow_host(connection))
            case ["metrics", process]:
                return self._process_metrics(unquote(process))
            case ["log", process, stream]:
                admit(caller, READ_LOGS, self._services.config)
                return self._log(unquote(process), stream, query)
        raise Invalid(f"unknown topic {topic[:100]}")

    def _run(self, connection: LiveConnection, topic: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"live {topic}")
        connection.topics[topic] = task.cancel

    def _follow_status(self, connection: LiveConnection, topic: str) -> None:
        subscription = Subscription(connection.stream)
        self._streams.statuses.add(subscription, self._services.supervision.history.last_published)
        connection.topics[topic] = subscription.cancel

    def _follow_runs(self, connection: LiveConnection, topic: str) -> None:
        subscription = Subscription(connection.stream)
        self._runs.add(subscription, connection.caller.credential, self._runs.last_sent)
        connection.topics[topic] = subscription.cancel

    async def _follow_releases(self, connection: LiveConnection) -> None:
        charts, last = self._services.charts, None
        while True:
            work = charts.work(connection.request)
            known = await charts.overview.lately(work.reads) if charts.has_cluster(work.target) else None
            if known is not None and known.problem is None:
                releases = [(row.namespace, row.name, row.status, row.revision) for row in known.releases]
                if releases != last:
                    connection.stream.send(block("releases", json.dumps({"releases": len(releases)})))
                last = releases
            await asyncio.sleep(_METRICS_SECONDS)

    async def _follow_host(self, connection: LiveConnection) -> None:
        while True:
            machine = await asyncio.to_thread(host.read)
            facts = {"memory": machine.memory, "available": machine.available, "load": os.getloadavg()[0]}
            connection.stream.send(block("metrics/host", json.dumps(facts)))
            await asyncio.sleep(_METRICS_SECONDS)

    def _process_metrics(self, name: str) -> Callable[[LiveConnection, str], None]:
        process = self._services.supervision.fleet.get(name)

        async def follow(connection: LiveConnection, topic: str) -> None:
            while True:
                usage = (await self._services.supervision.meter.read([process])).get(name)
                facts = {"cpu": usage and round(usage.cpu, 1), "memory": usage and usage.memory}
                connection.stream.send(block(topic, json.dumps(facts)))
                await asyncio.sleep(_METRICS_SECONDS)

        return lambda connection, topic: self._run(connection, topic, follow(connection, topic))

    def _log(self, name: str, stream: str, query: str) -> Callable[[LiveConnection, str], None]:
        file = log_file(self._services.supervision, name, stream)
        beginning = _beginning(query)

        async def follow(connection: LiveConnection, topic: str) -> None:
            with suppress(StreamClosedError):
                while (problem := await self._send_chunks(connection, topic)) is not None:
                    async with connection.sending:
                        await connection.stream.send_slowly(block(topic, json.dumps({"problem": problem})))
                    await asyncio.sleep(_AGAIN_SECONDS)
                    connection.followers[topic] = connection.followers[topic].again()

        def start(connection: LiveConnection, topic: str) -> None:
            if topic in connection.topics:
                connection.followers[topic].add(beginning)
            else:
                connection.followers[topic] = LogFollower(self._services.supervision.process_logs, file, beginning)
                self._run(connection, topic, follow(connection, topic))

        return start

    async def _send_chunks(self, connection: LiveConnection, topic: str) -> str | None:
        """Follows a log until it cannot be read; returns why. Raises `StreamClosedError`."""
        try:
            async for chunk in connection.followers[topic].chunks():
                event = block(topic, serializers.text(_log_facts(chunk)), str(chunk.cursor))
                async with connection.sending:
                    await connection.stream.send_slowly(event)
        except StreamClosedError:
            raise
        except OSError as error:
            return f"the log cannot be read: {error.strerror}"
        except Problem as problem:
            return problem.message
        return None


def _beginning(query: str) -> Beginning:
    """Where a reader of a log begins. Raises `Invalid`."""
    values = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := values.keys() - {"lines", "after", "at"}:
        raise Invalid(f"the topic of a log has no parameter {min(unknown)[:100]}")
    lines = whole("lines", values.get("lines") or "200", 0, _MAX_LOG_LINES)
    after = read_cursor(values["after"]) if values.get("after") else None
    at = whole("at", values["at"], 0, _MAX_OFFSET) if values.get("at") else None
    return Beginning(lines, after, at)


def _log_facts(chunk: Chunk) -> dict[str, object]:
    """A chunk of a log as JSON: a part of the log with the number of lines left out before it."""
    facts: dict[str, object] = serializers.plain(part_of(chunk))
    facts |= {"from": facts.pop("start"), "to": facts.pop("end"), "dropped": chunk.dropped}
    if chunk.is_beginning:
        facts |= {"beginning": True, "after": str(chunk.after) if chunk.after else None}
    return facts


class LiveStream(Streaming):
    """Sends `hello` with the id of the stream, then the events of its topics."""

    operations: ClassVar = {
        "GET": Operation(
            None, "GET", "/live", "Stream the events of subscribed topics", NoInputs, None, EVENT_STREAM,
            name="live_stream",
        )
    }  # fmt: skip
    kind = "live"

    def get(self) -> None:
        live: Live = self.settings["live"]
        stream = self.open()
        id = live.open(stream, self.caller, self.request)
        stream.send(block("hello", json.dumps({"id": id}), retry=RETRY_MILLISECONDS))


def _topics(*example: str) -> InputKind:
    def read(name: str, topics: Any) -> list[str]:
        if not isinstance(topics, list) or not all(isinstance(topic, str) for topic in topics):
            raise Invalid(f"{name} must be a list of topics")
        if len(topics) > MAX_TOPICS:
            raise Invalid(f"a live stream has at most {MAX_TOPICS} topics")
        return topics

    items = {"type": "string"}
    return InputKind({"type": "array", "items": items, "maxItems": MAX_TOPICS, "examples": [list(example)]}, read)


@http_message
class TopicChanges:
    id: str = path(kind=NAME)
    add: Sequence[str] | None = body("The topics to subscribe to", kind=_topics("status", "log/web/stdout"))
    remove: Sequence[str] | None = body("The topics to leave", kind=_topics("status"))


def change_topics(handler: Base, request: TopicChanges) -> None:
    """Changes the topics of a live stream of the same caller."""
    live: Live = handler.settings["live"]
    live.change(
        live.find(request.id, handler.caller), handler.caller, list(request.add or ()), list(request.remove or ())
    )


OPERATIONS = [
    Operation(
        None, "POST", "/live/{id}", "Change the topics of a live stream", TopicChanges, change_topics, None, status=204,
        error_statuses=(400, 403, 404), name="live_topics", permission=READ,
    )
]  # fmt: skip
routes: list[Route] = [(r"/live", LiveStream), *operation_routes(OPERATIONS)]
