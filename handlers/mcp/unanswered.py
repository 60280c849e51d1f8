"""Who closes standard input has asked all there is to ask; the answers are still theirs.

The SDK ends a conversation with its input, and drops what is in work then. So its input ends, for it, when nothing is
left unanswered: `printf … | run.py mcp` gets all its answers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any


class Unanswered:
    """The requests that have no answer yet, by their ids."""

    def __init__(self) -> None:
        self._ids: set[int | str] = set()
        self._changed = asyncio.Event()

    def heard(self, line: str) -> None:
        """A line of input: what is no message of the protocol, the SDK will say."""
        try:
            message = json.loads(line)
        except ValueError:
            return
        if not isinstance(message, dict) or "method" not in message:
            return
        params = message.get("params")
        if isinstance(id := message.get("id"), int | str):
            self._ids.add(id)
        elif message["method"] == "notifications/cancelled" and isinstance(params, dict):
            self._said(params.get("requestId"))  # it gets no answer

    def _said(self, id: Any) -> None:
        if isinstance(id, int | str):
            self._ids.discard(id)
        self._changed.set()

    async def until_over(self, lines: AsyncIterator[str]) -> AsyncIterator[str]:
        """`lines`, which end when the last of what they asked is answered."""
        async for line in lines:
            self.heard(line)
            yield line
        while self._ids:
            self._changed.clear()
            await self._changed.wait()

    def noting(self, write: Any) -> Any:
        """The SDK's stream of answers; each is noted when it is on its way."""
        return _Noting(write, self._said)


class _Noting:
    """Passes everything on."""

    def __init__(self, write: Any, said: Any) -> None:
        self._write = write
        self._said = said

    async def send(self, item: Any) -> None:
        await self._write.send(item)
        self._said(getattr(item.message, "id", None))

    async def aclose(self) -> None:
        await self._write.aclose()

    async def __aenter__(self) -> Any:
        await self._write.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._write.__aexit__(*error)
