"""Looking names up, however long nobody answers: no worker of ours waits for it, nor does our end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any

Addresses = list[tuple[int, Any]]

_AT_ONCE = 16


class Names:
    """Each name is looked up once at a time; an address is no name, and waits for nobody."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, int], asyncio.Task[Addresses]] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def __call__(self, host: str, port: int) -> Addresses:
        """Raises `OSError` where there is no such host."""
        with contextlib.suppress(socket.gaierror):
            return _found(host, port, socket.AI_NUMERICHOST)
        key = host, port
        task = self._asked.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._look(host, port), name=f"lookup {host}")
            self._asked[key] = task
            task.add_done_callback(lambda done: self._is_over(key, done))
        return await asyncio.shield(task)

    def _is_over(self, key: tuple[str, int], task: asyncio.Task[Addresses]) -> None:
        """Its failure is told to those who wait; where all have left, nobody has to be warned of it."""
        del self._asked[key]
        if not task.cancelled():
            task.exception()

    async def _look(self, host: str, port: int) -> Addresses:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Addresses] = loop.create_future()

        def tell(found: Addresses | OSError) -> None:
            if answer.done():
                return
            if isinstance(found, OSError):
                answer.set_exception(found)
            else:
                answer.set_result(found)

        def work() -> None:
            try:
                found: Addresses | OSError = _found(host, port)
            except OSError as error:
                found = error
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(tell, found)

        async with self._turns:
            # not a worker: the end of a program waits for those
            threading.Thread(target=work, name="lookup", daemon=True).start()
            return await answer


def _found(host: str, port: int, flags: int = 0) -> Addresses:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, address) for family, _, _, _, address in found]
