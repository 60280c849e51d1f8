"""Resident memory of a real server: what half-sent requests hold is limited, and given back once their clients left."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Server, wait_for
from fault_injection import resident_mib
from http_checks import running_server

MULTIPART = "Content-Type: multipart/form-data; boundary=b\r\n"
TEXT_PART = b'--b\r\nContent-Disposition: form-data; name="project"\r\n\r\n'
FILE_PART = b'--b\r\nContent-Disposition: form-data; name="%s"; filename="x"\r\n\r\n'
BODIES = {
    "a JSON body": ("/api/v1/processes/stop/idle", "", b""),
    "a JSON body of the charts": ("/api/v1/charts/template", "", b""),
    "the text parts of an upload": ("/api/v1/ingest", MULTIPART, TEXT_PART),
    "the files of an upload": ("/api/v1/ingest", MULTIPART, FILE_PART % b"junit"),
    "a chart": ("/api/v1/charts/show/upload", MULTIPART, FILE_PART % b"chart"),
    "a body that is refused": ("/nowhere", "", b""),
    "a call of a tool": ("/mcp", "Content-Type: application/json\r\n", b""),
}
CLIENTS = 300
KEPT_MIB = 5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("memory"), {"idle": {"command": "true"}}) as server:
        for kind in BODIES:
            send_half(server, kind, 20)
        yield server


@contextlib.contextmanager
def half_sent(server: Server, kind: str, count: int, size: int) -> Iterator[None]:
    """`count` connections on which `size` bytes of a larger body were sent; all are closed at the end."""
    path, lines, begin = BODIES[kind]
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{lines}Content-Length: {10 * size}\r\n\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            with contextlib.suppress(OSError):  # the server answers a refused request in the middle of its body
                one.sendall(head.encode() + begin + b"x" * size)
        server.get("/healthz")  # the server has read what came before
        yield


def send_half(server: Server, kind: str, count: int) -> None:
    with half_sent(server, kind, count, 200_000):
        pass
    server.get("/healthz")


@pytest.mark.parametrize("kind", BODIES)
def test_memory_is_given_back_when_clients_leave_in_the_middle_of_a_body(server: Server, kind: str) -> None:
    before = resident_mib(server)
    send_half(server, kind, CLIENTS)
    wait_for(lambda: resident_mib(server) < before + KEPT_MIB, about=f"less than {before + KEPT_MIB} MiB")


def test_the_files_of_half_sent_uploads_stay_within_the_limit(tmp_path: Path) -> None:
    limit_mib, clients = 8, 500
    with running_server(tmp_path, server={"max-unfinished": f"{limit_mib}M"}) as server:
        send_half(server, "the files of an upload", 20)
        before = resident_mib(server)
        with half_sent(server, "the files of an upload", clients, 300_000):
            peak = resident_mib(server)
            # While the clients are still there: a second after they sent 150 MB, freed buffers are returned.
            wait_for(lambda: resident_mib(server) < before + limit_mib + clients * 0.02, about="freed buffers")
        assert peak < before + limit_mib + clients * 0.15
