"""The side of the server that clients see, when it stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from handlers.app import Application
from handlers.listener import ListeningServer

_POLL_SECONDS = 0.01


class HttpFront:
    """The listening servers and what they have open."""

    def __init__(self, application: Application, servers: Sequence[ListeningServer]) -> None:
        self._application = application
        self._servers = servers

    async def refuse(self) -> None:
        """Accepts no connection any more, and ends streams and the sessions of agents."""
        for server in self._servers:
            server.stop()
        self._application.streams.close()
        await self._application.tools.close()

    async def answer(self, seconds: float) -> None:
        """Waits until the requests that have been received are answered, at most so long."""
        end = time.monotonic() + seconds
        while any(handler.is_answering for handler in self._application.answering):
            if time.monotonic() > end:
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def close(self) -> None:
        """Closes all connections."""
        for server in self._servers:
            await server.close_all_connections()
