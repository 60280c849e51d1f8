"""Many connections at one moment: the loop takes a few at each of its turns, and forgets none."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from conftest import Serve

from handlers.listener import Listener

MANY = 60


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener() as one:
        one.bind(("127.0.0.1", 0))
        one.listen(MANY)
        one.setblocking(False)
        yield one


def taken(listener: Listener) -> int:
    """How many connections one turn takes: Tornado goes on until there is none."""
    for number in range(MANY + 1):
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return number
    raise AssertionError("it does not end")


def test_a_burst_is_taken_in_small_parts(listener: Listener) -> None:
    with ExitStack() as clients:
        for _ in range(MANY):
            clients.enter_context(socket.create_connection(listener.getsockname()))
        iterations: list[int] = []
        while sum(iterations) < MANY:
            iterations.append(taken(listener))
        assert max(iterations) <= 4
        assert min(iterations) > 0
        assert taken(listener) == 0


def test_a_part_that_was_not_full_leaves_the_next_one_whole(listener: Listener) -> None:
    with socket.create_connection(listener.getsockname()):
        assert taken(listener) == 1
    with ExitStack() as clients:
        for _ in range(4):
            clients.enter_context(socket.create_connection(listener.getsockname()))
        assert taken(listener) == 4


def test_all_of_a_burst_are_answered(serve: Serve) -> None:
    server = serve()
    with ExitStack() as open_ones:
        clients = [http.client.HTTPConnection("127.0.0.1", server.port, timeout=30) for _ in range(MANY)]
        for client in clients:
            open_ones.callback(client.close)
            client.request("GET", "/healthz")
        assert [client.getresponse().status for client in clients] == [200] * MANY
