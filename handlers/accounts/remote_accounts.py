"""The door of a house whose accounts are on another machine: who asks is looked up before the request is let in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tornado.httputil import HTTPHeaders, HTTPMessageDelegate, RequestStartLine, ResponseStartLine

from handlers.http.permissions import FindCredential
from models.accounts.accounts import Credential, PresentedCredential
from models.errors import Problem


class AccountLookup(HTTPMessageDelegate):
    """Waits for `asked`, then the request is for whom `let_in` gives; its body is not read before."""

    def __init__(
        self, asked: Awaitable[Credential | None], let_in: Callable[[FindCredential], HTTPMessageDelegate]
    ) -> None:
        self._asked = asked
        self._let_in = let_in
        self._inner: HTTPMessageDelegate | None = None
        self._has_left = False

    async def headers_received(self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders) -> None:
        look = await self._answer()
        if self._has_left:
            return
        self._inner = self._let_in(look)
        entering = self._inner.headers_received(start_line, headers)
        if entering is not None:
            await entering

    async def _answer(self) -> FindCredential:
        """What is told of it when it is asked for: who is refused for another reason is told that one."""
        try:
            credential = await self._asked
        except Problem as problem:
            failed = problem

            def look(_: PresentedCredential) -> Credential | None:
                raise failed

            return look
        return lambda _: credential

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        return self._inner.data_received(chunk) if self._inner else None

    def finish(self) -> None:
        if self._inner:
            self._inner.finish()

    def on_connection_close(self) -> None:
        self._has_left = True
        if self._inner:
            self._inner.on_connection_close()
