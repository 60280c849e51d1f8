"""A mixed load on all three services, and a record of what was acknowledged, which a crash may not lose.

A request without a response may have been executed or not, but never in part.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from attrs import Factory, define
from chart_servers import WebServer, chart_archive
from conftest import Answer, Server, Stream
from small_charts import KEY, sample_chart, send_json
from uploads import form, jacoco, junit, send

CONNECTION_ERRORS = (OSError, http.client.HTTPException, EOFError, ValueError)
"""What a client of a killed server gets."""

API = "/api/v1"
NAMES = [f"p{number:02}" for number in range(12)]
BROKEN = "broken"
RELEASES = ("ra", "rb", "rc")
SHARDS = 6


@define
class Shard:
    """One upload. `key` is the key of its run; `mark` is in the names of its tests and its commit."""

    mark: str
    count: int
    key: str | None
    has_coverage: bool
    runs: list[int] = Factory(list)
    """The run of each acknowledged upload."""
    tried: int = 0

    def parts(self) -> list[tuple[str, str]]:
        parts = [("project", "load"), ("branch", "main"), ("commit", self.mark)]
        parts += [("runKey", self.key)] if self.key else []
        parts += [("junit", junit(passed=self.count - 1, failed=1, prefix=f"{self.mark}-"))]
        lines = {number: number % 3 > 0 for number in range(1, 31)}
        return parts + ([("jacoco", jacoco({f"{self.mark}.java": lines}))] if self.has_coverage else [])

    def deliver(self, server: Server) -> None:
        self.tried += 1
        answer = send(server, form(self.parts()))
        assert answer.status in (201, 503), answer
        if answer.status == 201:
            self.runs.append(answer.json["runId"])


@define
class Ledger:
    """What was acknowledged to all clients in all rounds."""

    calls: list[tuple[str, str, Answer]] = Factory(list)
    """Changes of processes in this round: verb, name, response."""
    events: dict[int, dict[str, Any]] = Factory(dict)
    """Status changes that were streamed in this round."""
    streamed_runs: dict[int, dict[str, Any]] = Factory(dict)
    """Runs that were streamed in this round, by the id of the event."""
    shards: list[Shard] = Factory(list)
    releases: dict[str, str | None] = Factory(dict)
    """The last acknowledged colour of each release; None if it is uninstalled; missing if unknown."""
    repositories: dict[str, bool] = Factory(dict)
    """Whether a repository exists; missing if unknown."""
    versions: int = 0
    """How many versions the repository had when its last update was acknowledged."""
    faults: list[str] = Factory(list)
    """Responses that violate the contract."""
    done: int = 0
    """Acknowledged requests of all kinds."""

    def begin(self) -> None:
        self.calls, self.events, self.streamed_runs = [], {}, {}


@define
class MixedLoad:
    """The clients. One round is `run`, a kill of the server, `join`."""

    server: Server
    repository: WebServer
    namespace: str
    ledger: Ledger = Factory(Ledger)
    _threads: list[threading.Thread] = Factory(list)
    _streams: list[Stream] = Factory(list)
    _published: int = 0
    _archives: list[tuple[str, str, bytes]] = Factory(lambda: [("tint", "0.1.0", sample_chart())])
    _colours: int = 0
    _stopped: threading.Event = Factory(threading.Event)

    def publish(self) -> None:
        """Adds a version of the chart to the repository."""
        self._published += 1
        self._archives.append(
            ("more", f"1.0.{self._published - 1}", chart_archive("more", f"1.0.{self._published - 1}"))
        )
        self.repository.serve(self._archives[0], *self._archives[1:][-30:])

    def run(self, chance: random.Random) -> None:
        """Starts all clients. Each has its own random generator, so that a seed repeats the load."""
        self.ledger.begin()
        self._stopped.clear()
        self.publish()
        self._listen("/api/v1/processes/stream", self._on_status)
        self._listen("/tracker/api/v1/events", self._on_run)
        clients: list[Callable[[random.Random], None]] = [
            self._supervise, self._supervise, self._upload, self._upload, self._read, self._update,
        ]  # fmt: skip
        seeds = [chance.random() for _ in range(len(clients) + len(RELEASES))]
        for seed, client in zip(seeds, clients, strict=False):
            self._begin(client, random.Random(seed))
        for seed, name in zip(seeds[len(clients) :], RELEASES, strict=True):
            self._begin(partial(self._change, name), random.Random(seed))

    def _begin(self, client: Callable[[random.Random], None], chance: random.Random) -> None:
        def work() -> None:
            with contextlib.suppress(*CONNECTION_ERRORS):
                while not self._stopped.is_set():
                    client(chance)

        self._threads.append(threading.Thread(target=work))
        self._threads[-1].start()

    def _listen(self, path: str, received: Callable[[dict[str, str]], None]) -> None:
        stream = self.server.stream(path)
        self._streams.append(stream)

        def work() -> None:
            with contextlib.suppress(*CONNECTION_ERRORS):
                while True:
                    received(stream.next())

        self._threads.append(threading.Thread(target=work))
        self._threads[-1].start()

    def join(self) -> None:
        """Ends the round, after the server was killed."""
        self._stopped.set()
        for stream in self._streams:
            with contextlib.suppress(OSError):
                stream.socket.shutdown(2)
        for thread in self._threads:
            thread.join()
        for stream in self._streams:
            stream.close()
        self._threads, self._streams = [], []

    # Supervision

    def _supervise(self, chance: random.Random) -> None:
        verb = chance.choice(["start", "stop", "restart"])
        name = chance.choice([*NAMES, *NAMES, BROKEN, "group"])
        path = f"{API}/processes/group/{verb}" if name == "group" else f"{API}/processes/{verb}/{name}"
        answer = self.server.post(path)
        self.ledger.calls.append((verb, name, answer))
        # a start that a later stop overtakes answers 500
        may_fail = name in (BROKEN, "group") or (verb != "stop" and "was stopped" in answer.text)
        self._count(answer, {200, 404, 409, *([500] if may_fail else [])}, path)

    def _on_status(self, event: dict[str, str]) -> None:
        self.ledger.events[int(event["id"])] = json.loads(event["data"])

    # The tracker

    def _upload(self, chance: random.Random) -> None:
        """A new shard, or one that was delivered before; the last few keys are shared by several shards."""
        known = self.ledger.shards
        keyed = [one for one in known[-20:] if one.key]
        if keyed and chance.random() < 0.3:
            shard = chance.choice(keyed)
        else:
            number = len(known)
            key = f"k{number // SHARDS}" if chance.random() < 0.7 else None
            shard = Shard(f"m{number}x{chance.randrange(10**9)}", chance.randint(2, 40), key, chance.random() < 0.5)
            known.append(shard)
        shard.deliver(self.server)
        self.ledger.done += 1

    def _on_run(self, event: dict[str, str]) -> None:
        if event["event"] == "run":
            self.ledger.streamed_runs[int(event["id"])] = json.loads(event["data"])

    # Charts

    def _change(self, name: str, chance: random.Random) -> None:
        """Changes one release. Each release has one client, so its last acknowledged state must be its state."""
        ledger, there = self.ledger, self.ledger.releases.get(name)
        verb = chance.choice(["upgrade", "upgrade", "rollback", "uninstall"] if there else ["upgrade"])
        ledger.releases.pop(name, None)
        self._colours += 1
        colour = f"c{self._colours}"
        query = f"?namespace={self.namespace}"
        fields = {"chartRef": "lab/tint:0.1.0", "values": {"colour": colour}}
        if verb == "upgrade" and name not in ledger.releases and chance.random() < 0.5:
            answer = self._send("PUT", f"/releases/{name}{query}", {**fields, "install": True})
        elif verb == "upgrade" and not there:
            whole = {**fields, "releaseName": name, "namespace": self.namespace}
            answer = self._send("POST", "/releases", whole)
        elif verb == "upgrade":
            answer = self._send("PUT", f"/releases/{name}{query}", fields)
        elif verb == "rollback":
            answer = self._send("POST", f"/releases/{name}/rollback{query}", {"revision": 1})
        else:
            answer = self._send("DELETE", f"/releases/{name}{query}")
        if answer.status in (200, 201):
            ledger.releases[name] = colour
        elif answer.status == 204:
            ledger.releases[name] = None if verb == "uninstall" else "*"
        # a rollback to a failed revision, or an install over the rest of a killed one, may be refused
        self._count(answer, {200, 201, 204, 404, 409, 400}, f"{verb} {name}")

    def _read(self, chance: random.Random) -> None:
        kind = chance.choice(["template", "pull", "list", "show", "status"])
        if kind == "template":
            answer = self._send("POST", "/charts/template", {"chartRef": "lab/tint", "values": {"colour": "x"}})
        elif kind == "pull":
            answer = self._send("POST", "/repos/pull", {"chart": "lab/tint"})
        elif kind == "list":
            answer = self._send("GET", f"/releases?namespace={self.namespace}")
        elif kind == "show":
            answer = self._send("GET", "/charts/show/values?chartRef=lab/tint")
        else:
            answer = self._send("GET", f"/releases/{chance.choice(RELEASES)}?namespace={self.namespace}")
        self._count(answer, {200, *([404] if kind == "status" else [])}, kind)

    def _update(self, chance: random.Random) -> None:
        kind = chance.choice(["update", "update", "add", "remove"])
        ledger, name = self.ledger, chance.choice(["one", "two"])
        if kind == "update":
            published = self._published
            answer = self._send("POST", "/repos/lab/update")
            if answer.status == 200:
                ledger.versions = max(ledger.versions, published)
            self._count(answer, {200}, kind)
            self.publish()
            return
        was = ledger.repositories.pop(name, None)
        if kind == "add":
            answer = self._send("POST", "/repos", {"name": name, "url": self.repository.url})
        else:
            answer = self._send("DELETE", f"/repos/{name}")
        self._count(answer, {201, 204, *([404] if was is not True else [])}, kind)
        ledger.repositories[name] = kind == "add"

    def _send(self, method: str, path: str, fields: Any = None) -> Answer:
        return send_json(self.server, method, f"{API}{path}", fields, **KEY)

    def _count(self, answer: Answer, may: set[int], what: str) -> None:
        self.ledger.done += 1
        if answer.status not in may:
            self.ledger.faults.append(f"{what}: {answer}")
