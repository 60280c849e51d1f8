"""Receivers of messages on loopback, and servers that send to them."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import users
from chart_servers import WebServer
from conftest import Answer, Server, wait_for

SECRET = "whsec_" + "c2VjcmV0LW9mLXRoZS13ZWJob29rLW9mLXRlc3Rz"
FAST_RULE = {
    "name": "all",
    "channels": ["team"],
    "events": ["process.crashed", "gate.*"],
    "group-wait": "0s",
    "resolve-after": "100ms",
}


def allowing(*receivers: WebServer | int, **more: Any) -> dict[str, Any]:
    """The section `server` of a server that may send to these receivers, or ports of loopback."""
    hosts = [f"127.0.0.1:{one if isinstance(one, int) else one.port}" for one in receivers]
    return {"outbound": {"allowed-hosts": hosts}, "public-url": "https://pilothouse.example", **more}


def webhook(url: str) -> dict[str, Any]:
    return {"type": "webhook", "url": url, "secret": SECRET}


class Admin:
    """Requests of an ADMIN to a server."""

    def __init__(self, server: Server, name: str = "boss", role: Any = "ADMIN") -> None:
        self._server = server
        self.headers = {"Authorization": f"Bearer {users.create_token(server.data, name, role=role)}"}

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        data = None if body is None else json.dumps(body).encode()
        return self._server.ask(method, f"/api/v1{path}", data, self.headers)

    def outbox(self, query: str = "") -> list[dict[str, Any]]:
        answer = self.ask("GET", f"/outbox{query}")
        assert answer.status == 200, answer
        return list(answer.json["items"])

    def until_outbox(self, *states: str) -> list[dict[str, Any]]:
        """Waits until the messages of the outbox, newest first, have these states."""
        return until_states(self.outbox, *states)


def until_states(outbox: Callable[[], list[dict[str, Any]]], *states: str) -> list[dict[str, Any]]:
    """Waits until the messages that `outbox` reads, newest first, have these states; returns them."""

    def found() -> list[dict[str, Any]] | None:
        items = outbox()
        return items if [item["state"] for item in items] == list(states) else None

    return list(wait_for(found, about=f"states {states}"))


def titles(receiver: WebServer) -> list[str]:
    """The titles of the webhook messages that a receiver has got."""
    return [json.loads(body)["data"]["title"] for body in receiver.bodies]


def ids(receiver: WebServer) -> list[str]:
    return [headers["webhook-id"] for _, _, headers in receiver.seen]


@contextlib.contextmanager
def flooding_port() -> Iterator[tuple[int, list[int]]]:
    """A port of loopback whose responses have no end; with the bytes that each connection was sent."""
    sent: list[int] = []

    def flood(one: socket.socket) -> None:
        number = len(sent)
        sent.append(0)
        with contextlib.suppress(OSError), one:
            one.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while True:
                one.sendall(b"10000\r\n%b\r\n" % (b"x" * 0x10000))
                sent[number] += 0x10000

    with listening(flood) as port:
        yield port, sent


@contextlib.contextmanager
def hanging_port() -> Iterator[tuple[int, list[socket.socket]]]:
    """A port of loopback that accepts connections and never answers; with the connections."""
    held: list[socket.socket] = []
    with listening(held.append) as port:
        try:
            yield port, held
        finally:
            for one in held:
                one.close()


@contextlib.contextmanager
def listening(on_connection: Callable[[socket.socket], object]) -> Iterator[int]:
    """A port of loopback; calls `on_connection` for one connection after the other.

    The thread that accepts closes the listener: closed elsewhere, its descriptor could become that of another listener
    just before this thread accepts, and it would take a connection away.
    """
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with listener, contextlib.suppress(OSError):
            while True:
                on_connection(listener.accept()[0])

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
