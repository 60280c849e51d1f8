"""Bursts of connections: each loop iteration accepts a few, and every connection gets a response."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from conftest import Serve

from handlers.listener import ListeningSocket

MANY = 60


@pytest.fixture
def listener() -> Iterator[ListeningSocket]:
    with ListeningSocket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen(MANY)
        one.setblocking(False)
        yield one


def accepted_in_one_iteration(listener: ListeningSocket) -> int:
    """The number of connections that one loop iteration accepts; Tornado accepts until none is offered."""
    for number in range(MANY + 1):
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return number
    raise AssertionError("the listener accepts without end")


def test_burst_is_accepted_in_small_batches(listener: ListeningSocket) -> None:
    with ExitStack() as clients:
        for _ in range(MANY):
            clients.enter_context(socket.create_connection(listener.getsockname()))
        iterations: list[int] = []
        while sum(iterations) < MANY:
            iterations.append(accepted_in_one_iteration(listener))
        assert max(iterations) <= 4
        assert min(iterations) > 0
        assert accepted_in_one_iteration(listener) == 0


def test_partial_batch_does_not_shrink_the_next_batch(listener: ListeningSocket) -> None:
    with socket.create_connection(listener.getsockname()):
        assert accepted_in_one_iteration(listener) == 1
    with ExitStack() as clients:
        for _ in range(4):
            clients.enter_context(socket.create_connection(listener.getsockname()))
        assert accepted_in_one_iteration(listener) == 4


def test_every_connection_of_a_burst_gets_a_response(serve: Serve) -> None:
    server = serve()
    with ExitStack() as stack:
        clients = [http.client.HTTPConnection("127.0.0.1", server.port, timeout=30) for _ in range(MANY)]
        for client in clients:
            stack.callback(client.close)
            client.request("GET", "/healthz")
        assert [client.getresponse().status for client in clients] == [200] * MANY
