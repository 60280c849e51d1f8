"""The server is killed at random moments of group and single commands: nothing acknowledged is lost or runs twice.

`PILOTHOUSE_ROUNDS` sets the number of rounds, `PILOTHOUSE_SEED` the seed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import threading
import time
from typing import Any

from attrs import define, field
from conftest import Answer, Serve, Server, Stream, children_of, session_leaders, wait_for

ROUNDS = int(os.environ.get("PILOTHOUSE_ROUNDS", "25"))
SEED = int(os.environ.get("PILOTHOUSE_SEED", "1"))
NAMES = [f"p{number:02}" for number in range(30)]
BROKEN = "broken"
DISCONNECTED = (OSError, http.client.HTTPException, EOFError)


@define
class Received:
    """What the clients of one round received: responses, and events of the stream."""

    acknowledged: list[tuple[str, str, Answer]] = field(factory=list)
    events: dict[int, dict[str, Any]] = field(factory=dict)

    def call(self, server: Server, calls: list[tuple[str, str]]) -> None:
        with contextlib.suppress(*DISCONNECTED):
            for verb, name in calls:
                path = f"/api/v1/processes/group/{verb}" if name == "group" else f"/api/v1/processes/{verb}/{name}"
                self.acknowledged.append((verb, name, server.post(path)))

    def listen(self, stream: Stream) -> None:
        with contextlib.suppress(*DISCONNECTED, ValueError):
            while True:
                event = stream.next()
                self.events[int(event["id"])] = json.loads(event["data"])


def client_calls(chance: random.Random) -> list[list[tuple[str, str]]]:
    """The calls of one round, for each client a list."""
    if chance.random() < 0.5:
        return [[(chance.choice(["start", "start", "restart", "stop"]), "group")]]
    return [
        [(chance.choice(["start", "stop", "restart"]), chance.choice([*NAMES, BROKEN])) for _ in range(8)]
        for _ in range(4)
    ]


def one_round(server: Server, chance: random.Random, is_answered: bool) -> Received:
    """Kills the server while clients send commands and one client reads the event stream.

    With `is_answered` not before the first response.
    """
    seen = Received()
    stream = server.stream("/api/v1/processes/stream")
    threads = [threading.Thread(target=seen.listen, args=(stream,))]
    threads += [threading.Thread(target=seen.call, args=(server, calls)) for calls in client_calls(chance)]
    for thread in threads:
        thread.start()
    time.sleep(chance.uniform(0, 0.15))  # the server is killed at a random moment
    if is_answered:
        wait_for(lambda: seen.acknowledged, about="the first response")
    server.kill()
    for thread in threads:
        thread.join()
    stream.close()
    return seen


def listed_pids(server: Server) -> set[int]:
    return {one["pid"] for one in server.get("/api/v1/processes").json if one["pid"] is not None}


def check(server: Server, seen: Received) -> None:
    for id, event in seen.events.items():
        assert server.get(f"/api/v1/events/{id}").json == event
    for verb, name, answer in seen.acknowledged:
        assert answer.status == (500 if name == BROKEN and verb != "stop" else answer.status), (verb, name, answer)
        assert answer.status in (200, 404, 409, 500), (verb, name, answer)
        outcome = re.fullmatch(r".* has been (?:re)?started \(pid (\d+).*\)", answer.json.get("message", ""))
        if outcome and verb in ("start", "restart"):
            assert any(
                event["pid"] == int(outcome[1]) and event["newStatus"] == "running" for event in history(server, name)
            ), (verb, name, answer)


def history(server: Server, name: str) -> list[dict[str, Any]]:
    """The newest hundred events of a process."""
    path = f"/api/v1/events/by-process/{name}?size=100&sortBy=id&sortDirection=desc"
    return list(server.get(path).json["content"])


def test_killed_server_loses_nothing_acknowledged_and_runs_nothing_twice(serve: Serve) -> None:
    processes: dict[str, Any] = {name: {"command": "sleep 1000", "order": int(name[1:]) % 3} for name in NAMES}
    processes[BROKEN] = {"command": "/nonexistent/program"}
    processes[NAMES[0]]["auto-start"] = True
    processes[NAMES[1]]["restart"] = "always"
    server = serve(processes)
    highest, acknowledged = 0, 0
    for number in range(ROUNDS):
        chance = random.Random(SEED * 10_000 + number)
        result = f"round {number} of seed {SEED}; the log is {server.log}"
        seen = one_round(server, chance, is_answered=number % 3 == 0)
        acknowledged += len(seen.acknowledged)
        before_restart = session_leaders(server.data)
        assert max(before_restart.values(), default=0) <= 1, (result, before_restart)
        server.start()
        check(server, seen)
        wait_for(lambda: set(children_of(server.data)) == listed_pids(server), 60, f"no unknown process in {result}")
        after_restart = session_leaders(server.data)
        assert max(after_restart.values(), default=0) <= 1, (result, after_restart)
        assert set(before_restart) <= {one["name"] for one in server.get("/api/v1/processes").json}
        assert min(seen.events, default=highest + 1) > highest, result
        highest = max(seen.events, default=highest)
        if number % 3 == 2 or number == ROUNDS - 1:
            assert server.post("/api/v1/processes/group/stop").status in (200, 404), result
            wait_for(lambda: not children_of(server.data), 60, f"no remaining process after {result}")
    assert highest > ROUNDS
    assert acknowledged > ROUNDS / 4
    events = server.get("/api/v1/events/count").json["totalEvents"]
    newest = server.get("/api/v1/events?size=1").json["content"][0]["id"]
    assert newest == events  # no id is missing or used twice
    assert "Traceback" not in server.log.read_text()
