"""gzip for text responses from 1 KiB on. Bodies above 64 KiB are compressed off the loop; streams never are."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

from tornado.web import RequestHandler

MIN_BYTES = 1024
_MAX_BYTES_ON_LOOP = 64 * 1024
_LEVEL = 5
_TYPES = ("text/", "application/json", "application/problem+json", "application/yaml", "image/svg+xml")


def accepts_gzip(handler: RequestHandler) -> bool:
    """Whether `Accept-Encoding` names gzip without refusing it (`gzip;q=0`)."""
    for part in handler.request.headers.get("Accept-Encoding", "").lower().split(","):
        name, _, weight = part.partition(";")
        if name.strip() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def compress(body: bytes) -> bytes:
    return gzip.compress(body, _LEVEL, mtime=0)


class CompressingHandler(RequestHandler):
    """Compresses what `finish` sends, if the client accepts gzip."""

    def finish(self, chunk: str | bytes | dict[Any, Any] | None = None) -> asyncio.Future[None]:
        if chunk is not None:
            self.write(chunk)
        is_text = self._headers.get("Content-Type", "").startswith(_TYPES)
        if self._headers_written or not is_text or "Content-Encoding" in self._headers:
            return super().finish()
        self._vary()
        size = sum(map(len, self._write_buffer))
        if size < MIN_BYTES or not accepts_gzip(self):
            return super().finish()
        body = b"".join(self._write_buffer)
        if size <= _MAX_BYTES_ON_LOOP:
            return self._finish_compressed(compress(body))
        return asyncio.ensure_future(self._compress_in_worker(body))

    async def _compress_in_worker(self, body: bytes) -> None:
        compressed = await asyncio.to_thread(compress, body)
        if not self._finished:
            await self._finish_compressed(compressed)

    def _finish_compressed(self, body: bytes) -> asyncio.Future[None]:
        self.set_header("Content-Encoding", "gzip")
        self._write_buffer = [body]
        return super().finish()

    def send_compressed(self, body: bytes) -> None:
        """Sends a body that is gzipped already, to a client that accepts it."""
        self._vary()
        self.set_header("Content-Encoding", "gzip")
        self.write(body)

    def _vary(self) -> None:
        vary = self._headers.get("Vary", "")
        if "accept-encoding" not in vary.lower():
            self.set_header("Vary", f"{vary}, Accept-Encoding" if vary else "Accept-Encoding")
