"""`/attachments/{id}`: one file, in part or whole; `/runs/{id}/attachments`: those of a run.

Uploaded contents are never trusted: only types without script are shown, in a sandbox; other types are downloaded.
"""

from __future__ import annotations

import asyncio
import re
from typing import ClassVar
from urllib.parse import quote

from attrs import evolve
from tornado.iostream import StreamClosedError

from handlers.base import Base
from handlers.http.permissions import READ
from handlers.operations import Operation, operation_routes, read_request
from handlers.routing import Route
from handlers.tracker import serializers
from handlers.tracker.base import in_snapshot
from handlers.tracker.detail_responses import AttachmentList, TestAttachment
from handlers.tracker.lists import answer_object, list_operation
from handlers.tracker.runs import LongRunList
from models.inputs import ID, path
from models.json_format import http_message
from models.paging import decode_cursor
from models.tracker import visibility
from models.tracker.files import attachments
from models.tracker.files.attachment_files import INLINE
from models.tracker.files.attachments import Attachment
from models.tracker.runs.kept_answers import state_of_run

_PIECE_BYTES = 256 * 1024
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_MAX_ASCII_NAME = 100


@http_message
class AttachmentRequest:
    id: int = path("The attachment", kind=evolve(ID, read=lambda _, text: ID.read("the id of an attachment", text)))


class AttachmentFile(Base):
    permission = READ
    operations: ClassVar = {
        "GET": Operation(
            None, "GET", "/attachments/{id}", "Get the content of an attachment; supports `Range`", AttachmentRequest,
            None, "application/octet-stream", error_statuses=[404], name="attachment",
        )
    }  # fmt: skip

    async def get(self, id: str) -> None:
        request, user = read_request(self, self.operations["GET"], [id]), self.caller.user
        found = await self.tracker.run(lambda: in_snapshot(lambda: visibility.attachment(user, request.id)))
        self._set_headers(found)
        if self.check_etag_header():
            self.set_status(304)
            return
        span = _span(self.request.headers.get("Range"), found.size, self._may_resume(found))
        if span is None:
            self.set_status(416)
            self.set_header("Content-Range", f"bytes */{found.size}")
            self.set_header("Content-Length", "0")
            return
        first, last = span
        if (first, last) != (0, found.size - 1):
            self.set_status(206)
            self.set_header("Content-Range", f"bytes {first}-{last}/{found.size}")
        self.set_header("Content-Length", str(last - first + 1))
        await self._send_file(found, first, last)

    def _set_headers(self, found: Attachment) -> None:
        self.version = f'"{found.hash}"'
        self.set_header("Etag", self.version)
        self.set_header("Content-Type", found.type)
        self.set_header("Content-Security-Policy", "sandbox; default-src 'none'")
        self.set_header("Cross-Origin-Resource-Policy", "same-origin")
        self.set_header("Cache-Control", "private, no-cache")
        self.set_header("Accept-Ranges", "bytes")
        self.set_header("Content-Disposition", _disposition(found))

    def _may_resume(self, found: Attachment) -> bool:
        return self.request.headers.get("If-Range", f'"{found.hash}"') == f'"{found.hash}"'

    async def _send_file(self, found: Attachment, first: int, last: int) -> None:
        place = self.tracker.attachments.folder.place(found.hash)
        try:
            file = await asyncio.to_thread(place.open, "rb")
        except FileNotFoundError:
            self.clear()
            raise attachments.no_attachment(found.id) from None
        try:
            if self.request.method == "HEAD":
                return
            await asyncio.to_thread(file.seek, first)
            left = last - first + 1
            while left and (piece := await asyncio.to_thread(file.read, min(left, _PIECE_BYTES))):
                left -= len(piece)
                self.write(piece)
                await self.flush()
        except StreamClosedError:
            pass  # the client has left
        finally:
            file.close()


def _span(header: str | None, size: int, may_resume: bool) -> tuple[int, int] | None:
    """The first and the last byte to send; None where the range is beyond the file. Several ranges: the whole file."""
    whole_file = 0, size - 1
    match = _RANGE.fullmatch(header.replace(" ", "")) if header and may_resume else None
    if match is None or match[0] == "bytes=-":
        return whole_file
    first, last = match.groups()
    if not first:
        return (max(0, size - int(last)), size - 1) if int(last) else None
    end = min(int(last), size - 1) if last else size - 1
    if last and int(last) < int(first):
        return whole_file
    return (int(first), end) if int(first) < size else None


def _disposition(found: Attachment) -> str:
    """The type decides, never the name. The name is that of the file, without its folders."""
    name = found.name.replace("\\", "/").rpartition("/")[2] or "attachment"
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)[-_MAX_ASCII_NAME:]
    way = "inline" if found.type in INLINE else "attachment"
    return f"{way}; filename=\"{plain}\"; filename*=UTF-8''{quote(name.encode('utf-8', 'replace'), safe='')}"


async def run_attachments(handler: Base, request: LongRunList) -> object:
    user, id = handler.caller.user, request.id

    def listed(cursor: str | None, limit: int) -> AttachmentList:
        run, _ = visibility.run(user, id)
        after = decode_cursor(cursor, int)[0] if cursor else 0
        return serializers.attachment_list(attachments.listing(run.id, after, limit + 1), limit)

    kept, name = (("attachments", id), lambda: state_of_run(user, id)), f"run-{id}-attachments"
    return await answer_object(handler, request, listed, lambda info: info.items, TestAttachment, name, kept)


OPERATIONS = [
    list_operation(
        None, "/runs/{id}/attachments", "List the attachments of a run, with their tests", LongRunList,
        run_attachments, AttachmentList, name="run_attachments",
    )
]  # fmt: skip
routes: list[Route] = [(r"/attachments/([^/]+)", AttachmentFile), *operation_routes(OPERATIONS)]
