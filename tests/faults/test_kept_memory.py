"""What hostile and large requests leave in the memory of the server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Server, wait_for
from fault_injection import resident_mib
from hostile_requests import REQUESTS, Hostile, as_json, packed, upload
from test_hostile_requests import send
from uploads import junit

KEPT_MIB = 5
SETTLE_SECONDS = 60
"""Memory is returned some seconds after the last request."""
QUICK = (
    "gzip within gzip", "XML of one name of 4 MB", "a coverage line of 5 MB", "a preamble of 5 MB",
    "a multipart body of 9,000 parts", "a part with a header of 1 MB", "a file name of 1 MB",
    "dashes and line breaks that are almost a boundary", "CODEOWNERS of stars", "multipart within multipart",
    "1 MB of JSON to /charts/create", "nested JSON", "a cookie of octal escapes", "a search of 60 KB",
)  # fmt: skip
"""Requests that are answered at once."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    one = Server(tmp_path, {}, {}, ["env"])  # a process of its own: a forked one shares pages with its parent
    try:
        one.start()
        for path in ("/", "/projects", "/api/v1/processes", "/search?q=a", "/login"):
            one.get(path)
        yield one
    finally:
        one.close()


def large_upload() -> Hostile:
    return upload(("junit", junit(passed=20_000)))


def check_kept(server: Server, before: float, most: float = KEPT_MIB) -> None:
    wait_for(
        lambda: resident_mib(server) < before + most, SETTLE_SECONDS, f"at most {before + most:.1f} MiB are resident"
    )


def test_what_short_uploads_inflate_to_leaves_no_memory(server: Server) -> None:
    before = resident_mib(server)
    for number in range(4):
        assert send(server, upload(("junit", packed(junit(passed=20_000, prefix=f"n{number}"))))) == 201
    check_kept(server, before, 3)


@pytest.mark.parametrize("header", ["", "Origin", "Host"])
def test_long_names_are_not_kept(server: Server, header: str) -> None:
    """Of a header, an origin, a host: 150 of each have 9 MB, and were kept more than once in caches."""
    before = resident_mib(server)
    for number in range(150):
        name = f"x{number}-{'y' * 60_000}"
        headers = {header or name: f"http://{name}" if header == "Origin" else name if header else "1"}
        send(server, as_json("/api/v1/runs/finish", "{}", **headers))
    check_kept(server, before)


def test_hostile_and_large_requests_leave_little_memory(server: Server) -> None:
    before = resident_mib(server)
    requests = [*(REQUESTS[name]() for name in QUICK), large_upload(), large_upload()]
    for _ in range(2):
        assert 500 not in [send(server, request) for request in requests]
    check_kept(server, before)


@pytest.mark.proof
def test_memory_does_not_grow_with_the_number_of_requests(server: Server) -> None:
    before = resident_mib(server)
    requests = [*(make() for make in REQUESTS.values()), *[large_upload()] * 10]
    for _ in range(20):
        for request in requests:
            send(server, request)
    check_kept(server, before)
    middle = resident_mib(server)
    for _ in range(20):
        for request in requests:
            send(server, request)
    check_kept(server, middle, 2)
