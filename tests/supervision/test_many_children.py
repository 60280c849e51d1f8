"""Two hundred children at once: requests are answered, no exit is lost, and no child needs a thread."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from conftest import TIMEOUT_SECONDS, Serve, is_alive, wait_for

MANY = 200


def descriptors(pid: int) -> list[str]:
    """What the files of a process are, without those that its samples of figures read: the next sample closes these."""
    found = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has been closed meanwhile
            found.append(os.readlink(file))
    return [target for target in found if not target.endswith("/schedstat")]


def test_two_hundred_crashed_children_restart_while_requests_are_answered(
    serve: Serve, record_property: Callable[[str, object], None]
) -> None:
    specs = {
        f"child{number}": {"command": "sleep 1000", "restart": "always", "restart-delay": 0} for number in range(MANY)
    }
    server = serve(specs)
    assert server.post("/api/v1/processes/group/start").status == 200
    before = {info["name"]: info["pid"] for info in server.get("/api/v1/processes").json}
    assert len(set(before.values())) == MANY
    assert len(os.listdir(f"/proc/{server.pid}/task")) < 12

    for pid in before.values():
        os.kill(pid, signal.SIGKILL)
    slowest, requested = 0.0, 0
    begun = time.monotonic()
    while True:
        sent = time.monotonic()
        listing = server.get("/api/v1/processes").json
        slowest, requested = max(slowest, time.monotonic() - sent), requested + 1
        after = {info["name"]: info["pid"] for info in listing if info["status"] == "running"}
        if len(after) == MANY and not set(after.values()) & set(before.values()):
            break
        assert time.monotonic() - begun < 4 * TIMEOUT_SECONDS, f"only {len(after)} are running again"
    record_property("slowest answer (s)", round(slowest, 4))
    record_property("all back after (s)", round(time.monotonic() - begun, 4))
    assert len(set(after.values())) == MANY
    assert all(is_alive(pid) for pid in after.values())
    assert not any(is_alive(pid) for pid in before.values())
    counts = server.get("/api/v1/events/count").json
    assert counts == {"totalEvents": 5 * MANY, "running": 2 * MANY, "aborted": MANY, "starting": 2 * MANY}
    assert len(os.listdir(f"/proc/{server.pid}/task")) < 12
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
    wait_for(lambda: {int(pid) for pid in children.read_text().split()} >= set(after.values()))

    assert server.post("/api/v1/processes/group/stop").status == 200
    assert not any(is_alive(pid) for pid in after.values())
    assert len(descriptors(server.pid)) < 50  # none is kept for an ended child
