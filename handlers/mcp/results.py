"""Results of tool calls: a REST response as text, a file, or the message of a failure."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Collection
from typing import Any

from attrs import evolve, frozen

from handlers.charts.operations import GZIP, ChartOperation, Warned
from handlers.http import serializers
from models.charts.responses import Download
from models.errors import TooLarge

MAX_RESULT_BYTES = 8 * 1024 * 1024
"""Of a response, before a page of it is cut: the server holds it whole in memory."""
MAX_EVENT_BYTES = 1_000_000
"""Of a result as an event of the stream. The SDK's client ends a conversation at a line of 1 MiB."""
_ENVELOPE_BYTES = 4_000
"""What surrounds the text in an event, its id included."""
_SLICE_CHARACTERS = 64 * 1024
_SPACE = re.compile(r"[\s,]*")
_NARROWING = ("lines", "limit", "size", "maxResults")
"""Arguments that make a result smaller."""


@frozen
class Blob:
    name: str
    media_type: str
    content: bytes


@frozen
class ToolResult:
    text: str = ""
    blob: Blob | None = None
    warnings: tuple[str, ...] = ()
    is_error: bool = False


DONE = ToolResult("done")
"""The result of a response without a body."""


async def of_value(operation: ChartOperation, value: Any) -> ToolResult:
    """Returns the result of a chart operation's value. Raises `TooLarge`."""
    if isinstance(value, Warned):
        return evolve(await of_value(operation, value.value), warnings=value.warnings)
    if isinstance(value, Download):
        return await _of_file(value)
    if operation.response_type is None:
        return DONE
    if isinstance(operation.response_type, str) or isinstance(value, bytes):
        return _text(value if isinstance(value, bytes) else value.encode("utf-8", "replace"))
    return of_json(serializers.encoded(value))


def of_json(body: bytes) -> ToolResult:
    """Raises `TooLarge`."""
    return _text(body)


def of_response(status: int, media_type: str, body: bytes) -> ToolResult:
    """Returns the result of a REST response. Raises `TooLarge`."""
    is_json = media_type.partition(";")[0].endswith("json")
    if status >= 400:
        error = json.loads(body) if is_json else {}
        return failed(error.get("detail") or error.get("message") or body.decode("utf-8", "replace"))
    if not body:
        return DONE
    return of_json(body) if is_json else _text(body)


PAGE_ROWS = 20


async def page(result: ToolResult, cursor: int, rows: int | None) -> ToolResult:
    """The rows of a list from `cursor` on, 20 unless the caller asked for more, with the cursor of the next page.

    A list that fits stays a list; results that are no list are returned as they are. The loop runs between the rows.
    """
    if result.is_error or not result.text.startswith("["):
        return result
    items, size = [row async for row in _rows(result.text)], rows or PAGE_ROWS
    if cursor == 0 and len(items) <= size:
        return result
    end = cursor + size
    following = f',"nextCursor":"{end}"' if end < len(items) else ""
    return evolve(result, text=f'{{"items":[{",".join(items[cursor:end])}],"total":{len(items)}{following}}}')


async def _rows(text: str) -> AsyncIterator[str]:
    """The items of a list of JSON, each as JSON."""
    decoder, at, pause = json.JSONDecoder(), 1, _SLICE_CHARACTERS
    while (begin := _SPACE.match(text, at).end()) < len(text) and text[begin] != "]":  # type: ignore[union-attr]
        _, at = decoder.raw_decode(text, begin)
        yield text[begin:at]
        if at >= pause:
            await asyncio.sleep(0)
            pause = at + _SLICE_CHARACTERS


async def bounded(result: ToolResult, arguments: Collection[str], other: str) -> ToolResult:
    """The result, or an error that names a narrower call where its event would be too large.

    `arguments` are those that the tool has; `other` is another way to get all.
    """
    size = await _encoded_bytes(result)
    if size < MAX_EVENT_BYTES:
        return result
    narrower = next((name for name in _NARROWING if name in arguments), None)
    advice = f"call it with smaller {narrower}" if narrower is not None else other
    return failed(f"the result has {size} bytes, and a tool returns less than {MAX_EVENT_BYTES}; {advice}")


async def _encoded_bytes(result: ToolResult) -> int:
    """The size of a result in its event, at most; a character of its text takes up to six bytes.

    A large text is measured in slices, and the loop runs between them.
    """
    texts = (result.text, *result.warnings)
    size = _ENVELOPE_BYTES + (len(result.blob.content) * 4 // 3 if result.blob is not None else 0)
    if size + 6 * sum(map(len, texts)) < MAX_EVENT_BYTES:
        return size + 6 * sum(map(len, texts))
    for text in texts:
        for start in range(0, len(text), _SLICE_CHARACTERS):
            part = json.dumps(text[start : start + _SLICE_CHARACTERS], ensure_ascii=False)
            size += len(part.encode("utf-8", "replace")) - len('""')
            await asyncio.sleep(0)
    return size


def failed(message: str) -> ToolResult:
    return ToolResult(message, is_error=True)


def _text(body: bytes) -> ToolResult:
    _check(len(body))
    return ToolResult(body.decode("utf-8", "replace"))


async def _of_file(download: Download) -> ToolResult:
    _check((await asyncio.to_thread(download.file.stat)).st_size)
    content = await asyncio.to_thread(download.file.read_bytes)
    return ToolResult(f"{download.name}, {len(content)} bytes", blob=Blob(download.name, GZIP, content))


def _check(size: int) -> None:
    if size > MAX_RESULT_BYTES:
        raise TooLarge(
            f"the response has {size} bytes, and a tool returns at most {MAX_RESULT_BYTES}: REST returns all of it"
        )
