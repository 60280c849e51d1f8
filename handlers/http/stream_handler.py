"""The base of handlers that respond with an event stream."""

from __future__ import annotations

from functools import partial

from handlers.base import Base
from handlers.http.credentials import session_cookie
from handlers.http.permissions import READ
from handlers.http.sse import STREAM_HEADERS
from handlers.http.sse_connection import Stream
from handlers.http.stream_credentials import StreamCredentials
from models.inputs import header

LAST_EVENT_ID = partial(header, "Last-Event-ID", "The id of the last received event: later events are sent first")


class Streaming(Base):
    """Responds with an event stream, or to HEAD with its head."""

    permission = READ
    kind = "processes"
    """The kind of the stream, for the metrics (`sse.KINDS`)."""

    async def head(self, *arguments: str) -> None:
        for name, value in STREAM_HEADERS.items():
            self.set_header(name, value)
        await self.flush()  # `finish` would add a Content-Length of 0, which a stream does not have

    def open(self) -> Stream:
        """Takes the connection over, until the caller's credential ends. Raises `Unavailable`."""
        self.streams.check(self.caller.is_authenticated)
        dead = f'{session_cookie(self.services)}=""; Max-Age=0; Path=/' if self.caller.has_expired_session else ""
        stream = self.streams.open(self.detach(), self.kind, dead)
        self.settings["answering"].discard(self)
        if self.caller.credential is not None:
            credentials: StreamCredentials = self.settings["stream_credentials"]
            credentials.add(stream, self.caller.credential)
        return stream
