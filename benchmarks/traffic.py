"""Mixed traffic on all three services, at a moderate rate: the requests, their durations and errors."""

import http.client
import json
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

API = "/api/v1"
KEY = {"X-API-Key": "open sesame"}
JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "multipart/form-data; boundary=b"}
PROJECTS = ("shop", "web", "tools")
RELEASES = ("first", "second")
PROCESSES = tuple(f"p{number}" for number in range(6))
SHARDS = 4
CASES = 200
CHARTS_SLOWER = 3
"""A helm process takes half a second of processor time."""

Weighted = Sequence[tuple[int, Callable[[], object]]]


@dataclass
class Tally:
    """The measurements of all clients: seconds of each kind of request, and errors."""

    took: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    errors: list[str] = field(default_factory=list)
    events: int = 0

    @property
    def count(self) -> int:
        return sum(map(len, self.took.values()))


class Client:
    """A client that sends requests one after another on a persistent connection, with pauses."""

    def __init__(self, port: int, tally: Tally, pause: float, seed: int) -> None:
        self.port = port
        self.tally = tally
        self.pause = pause
        self.chance = random.Random(seed)
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def work(self) -> Weighted:
        """Returns the operations with their weights."""
        raise NotImplementedError

    def run(self, over: threading.Event) -> None:
        work = self.work()
        weights = [weight for weight, _ in work]
        while not over.wait(self.chance.uniform(0.5, 1.5) * self.pause):
            try:
                self.chance.choices(work, weights)[0][1]()
            except Exception as error:  # whatever it is, it is an error of the run
                self.tally.errors.append(f"{type(self).__name__}: {error!r}")
                self._connection.close()
        self._connection.close()

    def request(
        self, name: str, method: str, path: str, body: bytes | None = None, may: tuple[int, ...] = (200,), **more: str
    ) -> bytes:
        begun = time.perf_counter()
        headers = {**(KEY if method != "GET" else {}), **{key.replace("_", "-"): value for key, value in more.items()}}
        self._connection.request(method, path, body, headers)
        response = self._connection.getresponse()
        content = response.read()
        self.tally.took[name].append(time.perf_counter() - begun)
        if response.status not in may:
            self.tally.errors.append(f"{name}: {method} {path} {response.status} {content[:200]!r}")
        return content

    def say(self, name: str, method: str, path: str, what: Any, may: tuple[int, ...] = (200,)) -> bytes:
        return self.request(name, method, path, json.dumps(what).encode(), may, Content_Type="application/json")


class Reader(Client):
    """Reads supervision, the server's state and the pages."""

    def work(self) -> Weighted:
        plain = {
            "processes": f"{API}/processes", "process": f"{API}/processes/info/p0", "events": f"{API}/events?size=20",
            "events of one": f"{API}/events/by-process/p1?size=20", "count": f"{API}/events/count",
            "machine": f"{API}/supervisor/info", "ready": "/readyz", "metrics": "/metrics", "page: home": "/",
            "page: process": "/processes/p0", "page: history": "/history", "page: projects": "/projects",
            "page: releases": "/releases", "page: repositories": "/repositories", "log": f"{API}/processes/logs/p0",
        }  # fmt: skip
        heavy = {"metrics", "log"}
        return [
            (1 if name in heavy or name.startswith("page") else 3, lambda name=name, path=path: self.get(name, path))  # type: ignore[misc]
            for name, path in plain.items()
        ]

    def get(self, name: str, path: str) -> None:
        self.request(name, "GET", path)


class Operator(Client):
    """Starts, stops and restarts processes; a call may conflict with that of another client."""

    def work(self) -> Weighted:
        return [
            (2, lambda: self.move("start")), (2, lambda: self.move("stop")), (1, lambda: self.move("restart")),
            (1, lambda: self.request("group start", "POST", f"{API}/processes/group/start", may=(200, 404, 409))),
        ]  # fmt: skip

    def move(self, verb: str) -> None:
        self.request(verb, "POST", f"{API}/processes/{verb}/{self.chance.choice(PROCESSES)}", may=(200, 400, 404, 409))


class Builder(Client):
    """A CI system: posts shards of runs, requests the verdict, and reads results."""

    sent = 0
    last = ""
    project = PROJECTS[0]

    def work(self) -> Weighted:
        return [
            (4, self.upload), (2, self.again), (4, self.gate), (4, self.badge), (3, self.runs), (2, self.run_page),
            (1, self.flaky), (1, self.board),
        ]  # fmt: skip

    def upload(self) -> None:
        self.sent += 1
        cases = "".join(
            f"<testcase classname='c{n % 9}' name='t{n}' time='0.01'>{'<failure/>' if n == self.sent % 700 else ''}"
            f"</testcase>"
            for n in range(CASES)
        )
        key = f"{id(self)}-{self.sent // SHARDS}"
        self._post(f"<testsuite name='s{self.sent}'>{cases}</testsuite>", "" if self.sent % 10 == 0 else key)

    def _post(self, report: str, key: str) -> None:
        self.project = self.chance.choice(PROJECTS) if self.sent % SHARDS == 0 or not self.last else self.project
        fields = {
            "project": self.project,
            "branch": "main",
            "commit": f"c{self.sent}",
            **({"runKey": key} if key else {}),
        }
        parts = [f'--b\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in fields.items()]
        parts += [f'--b\r\nContent-Disposition: form-data; name="junit"; filename="r.xml"\r\n\r\n{report}\r\n--b--\r\n']
        self.body = "".join(parts).encode()
        self.last = self._sent("upload")

    def _sent(self, name: str) -> str:
        content = self.request(name, "POST", f"{API}/ingest", self.body, (201,), Content_Type=FORM["Content-Type"])
        return str(json.loads(content)["runId"])

    def again(self) -> None:
        """Repeats the last upload, as a client does after a broken connection."""
        if self.last:
            self.last = self._sent("upload again")

    def gate(self) -> None:
        if self.last:
            self.request("gate", "GET", f"{API}/runs/{self.last}/quality-gate", may=(200, 404))

    def badge(self) -> None:
        name = self.chance.choice(["coverage", "pass", "flaky"])
        self.request("badge", "GET", f"/badge/{self.chance.randint(1, len(PROJECTS))}/{name}.svg", may=(200, 404))

    def runs(self) -> None:
        self.request("projects", "GET", f"{API}/projects")

    def run_page(self) -> None:
        if self.last:
            self.request("page: run", "GET", f"/runs/{self.last}", may=(200, 404))

    def flaky(self) -> None:
        if self.last:
            self.request("run", "GET", f"{API}/runs/{self.last}", may=(200, 404))

    def board(self) -> None:
        self.request("page: project", "GET", "/projects/1", may=(200, 404))


class Charter(Client):
    """Renders, shows and fetches charts, and keeps repositories up to date."""

    def work(self) -> Weighted:
        chart = {"chartRef": "lab/tint"}
        return [
            (3, lambda: self.say("template", "POST", f"{API}/charts/template", chart)),
            (6, lambda: self._got("show", f"{API}/charts/show/values?chartRef=lab/tint")),
            (4, lambda: self.say("pull", "POST", f"{API}/repos/pull", {"chart": "lab/tint"})),
            (6, lambda: self._got("chart list", f"{API}/repos/lab/charts")),
            (3, lambda: self._got("repositories", f"{API}/repos")),
            (2, lambda: self.request("repository update", "POST", f"{API}/repos/lab/update")),
        ]

    def _got(self, name: str, path: str) -> None:
        self.request(name, "GET", path)


class Releaser(Client):
    """Has two releases in a namespace: installs, upgrades, reads and removes them."""

    namespace = "soak"

    def work(self) -> Weighted:
        where = f"?namespace={self.namespace}"
        return [
            (3, self.upgrade), (1, self.uninstall),
            (8, lambda: self._read("release list", f"{API}/releases{where}")),
            (8, lambda: self._read("release", f"{API}/releases/{self._one()}{where}")),
            (4, lambda: self._read("release history", f"{API}/releases/{self._one()}/history{where}")),
            (4, lambda: self._read("release values", f"{API}/releases/{self._one()}/values{where}")),
        ]  # fmt: skip

    def _one(self) -> str:
        return quote(self.chance.choice(RELEASES))

    def upgrade(self) -> None:
        fields = {"chartRef": "lab/tint", "install": True, "values": {"colour": f"c{self.chance.randrange(99)}"}}
        self.say("upgrade", "PUT", f"{API}/releases/{self._one()}?namespace={self.namespace}", fields, (200, 201))

    def uninstall(self) -> None:
        self.request("uninstall", "DELETE", f"{API}/releases/{self._one()}?namespace={self.namespace}", may=(204, 404))

    def _read(self, name: str, path: str) -> None:
        self.request(name, "GET", path, may=(200, 404))


class Listener(Client):
    """Opens a stream, reads it for a while and closes it; some clients close it without reading."""

    def work(self) -> Weighted:
        return [
            (1, lambda: self.listen(f"{API}/processes/stream")), (1, lambda: self.listen("/tracker/api/v1/events")),
        ]  # fmt: skip

    def listen(self, path: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        begun = time.perf_counter()
        try:
            connection.request("GET", path, headers={"Accept": "text/event-stream"})
            wire = connection.sock  # the connection lets go of it when the answer has no end
            response = connection.getresponse()
            self.tally.took["stream opened"].append(time.perf_counter() - begun)
            if response.status != 200:
                self.tally.errors.append(f"stream: {path} {response.status}")
            wire.settimeout(0.5)
            end = time.monotonic() + self.chance.uniform(0, 5)
            with suppress(TimeoutError):
                while time.monotonic() < end and (line := response.fp.readline()):
                    self.tally.events += line.startswith(b"data:")
        finally:
            connection.close()


def clients(port: int, tally: Tally, has_cluster: bool) -> list[Client]:
    """Returns all clients, each with its own seed."""
    crowd: list[Client] = [Reader(port, tally, 0.05, seed) for seed in range(3)]
    crowd += [Operator(port, tally, 0.3, seed) for seed in range(2)]
    crowd += [Builder(port, tally, 0.15, seed) for seed in range(2)]
    crowd += [Listener(port, tally, 0.2, seed) for seed in range(4)]
    crowd += [Charter(port, tally, CHARTS_SLOWER * 0.2, seed) for seed in range(1)]
    return [*crowd, *([Releaser(port, tally, CHARTS_SLOWER * 0.3, 1)] if has_cluster else [])]
