"""Thousands of streams during an upload: every stream gets the event, and no other request waits.

`PILOTHOUSE_STREAMS` sets the number, such as 10,000.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

from conftest import wait_for
from fault_injection import API, SLEEPER, check_no_traceback, open_descriptors, resident_mib
from http_checks import running_server
from run_streams import junit, upload_files

from benchmarks.listeners import Listeners

STREAMS = int(os.environ.get("PILOTHOUSE_STREAMS", "1000"))
CASES = 3000
MIB_PER_STREAM = 0.01
"""The limit; the measured value is about a twentieth of it."""


@contextlib.contextmanager
def descriptors(most: int) -> Iterator[None]:
    """Raises the soft limit of this process; other tests compare it with that of a server."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_streams_and_an_upload_at_once(tmp_path: Path) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert most > STREAMS + 500, f"{STREAMS} streams need descriptors: {most} are allowed here (PILOTHOUSE_STREAMS)"
    with descriptors(most), running_server(tmp_path, {"web": SLEEPER}, server={"max-streams": STREAMS + 10}) as server:
        upload_files(server, "before", ("junit", junit(CASES)))
        before, had = open_descriptors(server), resident_mib(server)
        with Listeners(server.port, "/tracker/api/v1/events", STREAMS) as listeners:
            assert open_descriptors(server) >= STREAMS
            listeners.expect()
            outcome = []
            uploading = threading.Thread(
                target=lambda: outcome.append(upload_files(server, "meanwhile", ("junit", junit(CASES, mark="c"))))
            )
            uploading.start()
            requested = 0
            while uploading.is_alive():
                assert server.get(f"{API}/processes").status == 200
                requested += 1
            uploading.join()
            received = listeners.received()
            assert received.last >= received.first > 0
            assert outcome[0]["tests"] == CASES
            assert requested > 0
            assert server.do("start", "web").status == 200
            assert resident_mib(server) - had < 10 + MIB_PER_STREAM * STREAMS
        wait_for(lambda: open_descriptors(server) <= before + 3, about="the streams to be closed")
        wait_for(lambda: "pilothouse_streams_open 0.0" in server.get("/metrics").text)
        upload_files(server, "after", ("junit", junit(1)))
        check_no_traceback(server)
