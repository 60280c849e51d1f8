"""SIGTERM and SIGINT at random moments while processes are starting: no process is left running."""

from __future__ import annotations

import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from conftest import IS_PROOF, Serve, Server, instance_of, tags_by_pid, wait_for

ROUNDS = 1000 if IS_PROOF else 28
"""Of each signal."""
SERVERS = 4
CRASHER = {"command": ["sh", "-c", "exit 1"], "restart": "always", "restart-delay": "1ms", "restart-limit": 0}


def processes() -> dict[str, Any]:
    """Processes of every way to start: plain, through a chain, slow, dependent, one that keeps crashing."""
    kinds: list[dict[str, Any]] = [
        {"command": "sleep 1000"},
        {"command": "sleep 1000", "limits": {"core": 0}},
        {"command": "sleep 1000", "start-seconds": "200ms"},
        {"command": "sleep 1000", "depends-on": ["p2"]},
        CRASHER,
    ]
    return {f"p{number}": {**kinds[number % len(kinds)], "auto-start": True} for number in range(20)}


def tagged(server: Server, instance: str) -> dict[int, str]:
    return {pid: tag for pid, tag in tags_by_pid().items() if tag.startswith(f"{instance}:")}


def stop_at_random_moments(server: Server, seed: str, rounds: int, number: signal.Signals) -> None:
    chance = random.Random(seed)
    server.start()
    instance = instance_of(server.data)
    assert instance is not None
    for _ in range(rounds):
        time.sleep(chance.random() * chance.choice((0.02, 0.1, 0.4)))
        assert server.stop(number) == 0
        assert tagged(server, instance) == {}
        server.start()
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_at_any_moment_of_the_starts_leaves_no_process_running(serve: Serve, number: signal.Signals) -> None:
    """Several servers run at a time, so that they also delay each other."""
    servers = [serve(processes(), wait=False) for _ in range(SERVERS)]
    with ThreadPoolExecutor(SERVERS) as threads:
        rounds = [
            threads.submit(stop_at_random_moments, server, f"{number.name} {index}", ROUNDS // SERVERS, number)
            for index, server in enumerate(servers)
        ]
        for each in rounds:
            each.result()


def test_a_signal_while_a_process_waits_for_its_dependency_ends_its_start(serve: Serve) -> None:
    """The dependency comes up while the server is stopping; the dependent must not be started then."""
    server = serve({
        "base": {"command": "sleep 1000", "start-seconds": "8s"},
        "web": {"command": "sleep 1000", "depends-on": ["base"], "auto-start": True},
        "mule": {
            "command": ["sh", "-c", "trap '' TERM; : > ready; while :; do sleep 0.02; done"], "auto-start": True,
            "stop-timeout": "10s",
        },
    })  # fmt: skip
    instance = instance_of(server.data)
    assert instance is not None
    wait_for((server.folder / "ready").exists)
    server.until("base", "starting")
    assert server.stop() == 0
    assert tagged(server, instance) == {}
    assert "web: not_started -> starting" not in server.log.read_text()
