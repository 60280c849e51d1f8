"""Ends event streams when their token is revoked or expires, their session ends, or their account is deleted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from attrs import define, field

from handlers.http.sse_connection import Stream
from models.accounts.accounts import Credential
from models.errors import Problem
from supervisor.accounts.logins import Accounts

log = logging.getLogger("http")

_MIN_CHECK_SECONDS = 2.0
_MAX_CHECK_SECONDS = 10.0
_CHECK_TIME_RATIO = 10.0
"""Credentials are checked every two seconds, or less often so that the checks take at most a tenth of the time."""
_CREDENTIALS_PER_QUERY = 50


def key_of(credential: Credential | None) -> tuple[str, int] | None:
    """The identity of a credential, whatever else of it changes."""
    return None if credential is None else (credential.kind, credential.id)


@define(eq=False)
class _Opened:
    """The streams that were opened with one credential."""

    credential: Credential
    left: Callable[[_Opened], None]
    streams: set[Stream] = field(factory=set)
    leave: Callable[[Stream], None] = field(init=False)
    """One bound method for all streams: each access would create another object."""

    def __attrs_post_init__(self) -> None:
        self.leave = self._leave

    def _leave(self, stream: Stream) -> None:
        self.streams.discard(stream)
        if not self.streams:
            self.left(self)


class StreamCredentials:
    """Checks the credentials of all open streams, once for each credential and not for each stream."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._opened: dict[tuple[str, int] | None, _Opened] = {}
        self._checking: asyncio.Task[None] | None = None

    def add(self, stream: Stream, credential: Credential) -> None:
        """Watches a stream until it is closed."""
        opened = self._opened.setdefault(key_of(credential), _Opened(credential, self._forget))
        opened.streams.add(stream)
        stream.when_closed(opened.leave)
        if self._checking is None and self._opened:
            self._checking = asyncio.get_running_loop().create_task(self._check(), name="credentials of streams")

    def _forget(self, opened: _Opened) -> None:
        key = key_of(opened.credential)
        if self._opened.get(key) is opened:
            del self._opened[key]

    async def _check(self) -> None:
        spent = 0.0
        try:
            while self._opened:
                await asyncio.sleep(min(max(_MIN_CHECK_SECONDS, spent * _CHECK_TIME_RATIO), _MAX_CHECK_SECONDS))
                begin = time.monotonic()
                try:
                    await self._end_expired()
                except Problem as problem:
                    log.error("the credentials of streams could not be checked: %s", problem.message)
                spent = time.monotonic() - begin
        finally:
            self._checking = None

    async def _end_expired(self) -> None:
        all_opened = list(self._opened.values())
        for first in range(0, len(all_opened), _CREDENTIALS_PER_QUERY):
            some = all_opened[first : first + _CREDENTIALS_PER_QUERY]
            valid = await self._accounts.are_valid([opened.credential for opened in some])
            for opened, is_valid in zip(some, valid, strict=True):
                if not is_valid:
                    for stream in tuple(opened.streams):
                        stream.close()
            await asyncio.sleep(0)
