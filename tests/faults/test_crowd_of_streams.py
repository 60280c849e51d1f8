"""Thousands of streams and an upload at once: all of them hear of it, and nobody else waits.

`PILOTHOUSE_STREAMS` sets how many; by hand 10,000.
"""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path

from conftest import wait_for
from run_streams import junit, post
from talk import running_server
from trouble import API, SLEEPER, descriptors, memory, no_trace

from benchmarks.listeners import Listeners

STREAMS = int(os.environ.get("PILOTHOUSE_STREAMS", "1000"))
CASES = 3000
EACH = 0.01
"""MiB that a stream may cost; it is about a twentieth of that."""


def test_streams_and_an_upload_at_once(tmp_path: Path) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert most > STREAMS + 500, f"{STREAMS} streams need descriptors: {most} are allowed here (PILOTHOUSE_STREAMS)"
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with running_server(tmp_path, {"web": SLEEPER}, server={"max-streams": STREAMS + 10}) as server:
        post(server, "before", ("junit", junit(CASES)))
        before, had = descriptors(server), memory(server)
        with Listeners(server.port, "/tracker/api/v1/events", STREAMS) as listeners:
            assert descriptors(server) >= before + STREAMS
            listeners.expect()
            outcome = []
            uploading = threading.Thread(
                target=lambda: outcome.append(post(server, "crowd", ("junit", junit(CASES, mark="c"))))
            )
            uploading.start()
            requested = 0
            while uploading.is_alive():
                assert server.get(f"{API}/processes").status == 200
                requested += 1
            uploading.join()
            received = listeners.heard()
            assert received.last >= received.first > 0
            assert outcome[0]["tests"] == CASES
            assert requested > 0
            assert server.do("start", "web").status == 200
            assert memory(server) - had < 10 + EACH * STREAMS
        wait_for(lambda: descriptors(server) <= before + 3, about="the streams to be forgotten")
        wait_for(lambda: "pilothouse_streams_open 0.0" in server.get("/metrics").text)
        post(server, "after", ("junit", junit(1)))
        no_trace(server)
