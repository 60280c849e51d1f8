"""Ends event streams when their token is revoked or expires, their session ends, or their account is deleted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import peewee
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
CREDENTIALS_PER_QUERY = 50


def key_of(credential: Credential | None) -> tuple[str, int] | None:
    """The identity of a credential, whatever else of it changes."""
    return None if credential is None else (credential.kind, credential.id)


@define(eq=False)
class StreamGroup:
    """All streams opened with one credential (None: anonymous), and the last id sent to each."""

    credential: Credential | None
    left: Callable[[StreamGroup], None]
    streams: dict[Stream, int] = field(factory=dict)
    leave: Callable[[Stream], None] = field(init=False)
    """One bound method for all streams: each access would create another object."""

    def __attrs_post_init__(self) -> None:
        self.leave = self._leave

    def _leave(self, stream: Stream) -> None:
        self.streams.pop(stream, None)
        if not self.streams:
            self.left(self)

    def close(self) -> None:
        for stream in tuple(self.streams):
            stream.close()


class StreamGroups(dict[tuple[str, int] | None, StreamGroup]):
    """Open streams by the identity of their credential."""

    def add(self, stream: Stream, credential: Credential | None, last_id: int = 0) -> None:
        """Adds a stream until it is closed."""
        group = self.setdefault(key_of(credential), StreamGroup(credential, self._forget))
        group.streams[stream] = last_id
        stream.when_closed(group.leave)

    def _forget(self, group: StreamGroup) -> None:
        key = key_of(group.credential)
        if self.get(key) is group:
            del self[key]


class StreamCredentials:
    """Checks the credentials of all open streams, once for each credential and not for each stream."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._groups = StreamGroups()
        self._checking: asyncio.Task[None] | None = None

    def add(self, stream: Stream, credential: Credential) -> None:
        """Watches a stream until it is closed."""
        self._groups.add(stream, credential)
        if self._checking is None and self._groups:
            self._checking = asyncio.get_running_loop().create_task(self._check(), name="credentials of streams")

    async def _check(self) -> None:
        spent = 0.0
        try:
            while self._groups:
                await asyncio.sleep(min(max(_MIN_CHECK_SECONDS, spent * _CHECK_TIME_RATIO), _MAX_CHECK_SECONDS))
                begin = time.monotonic()
                try:
                    await self._end_expired()
                except (peewee.PeeweeException, Problem) as error:
                    log.error("the credentials of streams could not be checked: %s", error)
                spent = time.monotonic() - begin
        finally:
            self._checking = None

    async def _end_expired(self) -> None:
        groups = [(group, credential) for group in self._groups.values() if (credential := group.credential)]
        for first in range(0, len(groups), CREDENTIALS_PER_QUERY):
            some = groups[first : first + CREDENTIALS_PER_QUERY]
            valid = await self._accounts.are_valid([credential for _, credential in some])
            for (group, _), is_valid in zip(some, valid, strict=True):
                if not is_valid:
                    group.close()
            await asyncio.sleep(0)
