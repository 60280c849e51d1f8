"""The messages between the server and a worker process: JSON with its length before it, on one socket.

A request names a function and its arguments. An answer has exactly one of these members:

    {"result": ANY}                 what the function returned
    {"problem": [KIND, MESSAGE, CODE]}    it raised one of `PROBLEMS`; CODE may be null
    {"limit": NAME}                 it met a limit of the kernel: `memory` or `file size`
    {"error": TEXT}                 it raised something else: a fault of the product
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

from models.errors import Failed, Invalid, NotFound, Problem, TooLarge, Unavailable, Unprocessable, Upstream

MAX_MESSAGE_BYTES = 64 * 1024
LENGTH_BYTES = 4
PROBLEMS: Mapping[str, type[Problem]] = {
    kind.__name__: kind for kind in (Failed, Invalid, NotFound, TooLarge, Unavailable, Unprocessable, Upstream)
}
"""The failures that a function may report to the caller."""


class Encoded(str):
    """The result of a function that is JSON already."""

    __slots__ = ()


class BadMessage(Exception):
    """A message that is too long or no JSON object."""


def encode(message: Mapping[str, Any]) -> bytes:
    """A message as bytes. Raises `BadMessage` where it is longer than `MAX_MESSAGE_BYTES`."""
    result = message.get("result")
    text = f'{{"result": {result}}}' if isinstance(result, Encoded) else json.dumps(message)
    body = text.encode()
    if len(body) > MAX_MESSAGE_BYTES:
        raise BadMessage(f"a message of {len(body)} bytes")
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def length(head: bytes) -> int:
    """The length of the message after `head`. Raises `BadMessage`."""
    size = int.from_bytes(head, "big")
    if size > MAX_MESSAGE_BYTES:
        raise BadMessage(f"a message of {size} bytes")
    return size


def decode(body: bytes) -> dict[str, Any]:
    """Raises `BadMessage`."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        raise BadMessage("a message that is no JSON") from None
    if not isinstance(message, dict):
        raise BadMessage("a message that is no object")
    return message


def receive(channel: socket.socket) -> dict[str, Any] | None:
    """The next message on a blocking socket; None at its end. Raises `BadMessage`."""
    head = _read(channel, LENGTH_BYTES)
    return decode(_read(channel, length(head))) if head else None


def _read(channel: socket.socket, size: int) -> bytes:
    """The next `size` bytes; fewer at the end."""
    data = b""
    while len(data) < size and (piece := channel.recv(size - len(data))):
        data += piece
    return data
