"""Large calls of tools: the values and the archive of a chart are taken out of a message, so that the rest is small."""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import Mapping
from typing import Any, Literal

from attrs import frozen

from models.charts import helm_args
from models.errors import Invalid, TooLarge
from models.json_format import SMALL_BODY_BYTES, check_structure, check_text, part_of, text_of

MAX_ARGUMENTS_BYTES = 1024 * 1024
"""Of the arguments of a call as JSON, without files."""

Kind = Literal["file", "values"]


@frozen
class Moved:
    """An argument that was taken out: the file, or the values encoded for helm; or why it cannot be used."""

    kind: Kind
    data: bytes
    fault: str = ""


@frozen
class SmallMessage:
    """A message in whose arguments `mark` stands for what was taken out, by the argument's name."""

    body: bytes
    mark: str
    moved: dict[str, Moved]
    refusal: str = ""
    """Why the call fails: its other arguments are too large, and none is left."""


def shortened(body: bytes, kinds: Mapping[str, Mapping[str, Kind]]) -> SmallMessage:
    """Takes the arguments out that may be large; `kinds` has them by tool and name. CPU-bound: call it in a worker.

    A message that is no JSON stays one. A call that is still larger than `SMALL_BODY_BYTES` fails by `refusal`, which
    an agent understands; for any other message this raises `TooLarge`.
    """
    check_structure(body)
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return SmallMessage(b"{", "", {})
    parameters = part_of(message, "params") if isinstance(message, dict) else {}
    arguments: Any = part_of(parameters, "arguments")
    wanted, mark, moved = kinds.get(text_of(parameters, "name"), {}), secrets.token_hex(16), dict[str, Moved]()
    for name, kind in wanted.items():
        given = arguments.get(name)
        if kind == "file" and isinstance(given, str):
            moved[name], arguments[name] = _file(name, given), mark
    for name, kind in wanted.items():
        given = arguments.get(name)
        if kind == "values" and isinstance(given, dict):
            moved[name], arguments[name] = _values(given, arguments), {mark: True}
    small, refusal = json.dumps(message).encode(), ""
    if len(small) > SMALL_BODY_BYTES and arguments:
        refusal, moved = _refusal(arguments), {}
        small = json.dumps({**message, "params": {**parameters, "arguments": {}}}).encode()
    if len(small) > SMALL_BODY_BYTES:
        raise TooLarge(f"the message has more than {SMALL_BODY_BYTES} bytes besides the values and archive of a chart")
    return SmallMessage(small, mark, moved, refusal)


def decoded_file(name: str, value: Any) -> bytes:
    """The file in an argument. Raises `Invalid`."""
    try:
        if isinstance(value, str):
            return base64.b64decode("".join(value.split()), validate=True)
    except (binascii.Error, ValueError):
        pass
    raise Invalid(f"{name}: must be a file as base64")


def check_size(arguments: Mapping[str, Any]) -> None:
    """Applies the limits of a REST body to arguments. Raises `Invalid`, `TooLarge`."""
    try:
        size = len(json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode("utf-8", "replace"))
    except RecursionError:
        raise Invalid("the body is nested too deeply") from None
    except ValueError:
        raise Invalid("the body has a number that is not finite or too large") from None
    if size > MAX_ARGUMENTS_BYTES:
        raise TooLarge(f"the body is larger than {MAX_ARGUMENTS_BYTES} bytes")


def _refusal(arguments: Mapping[str, Any]) -> str:
    try:
        check_size(arguments)
    except (Invalid, TooLarge) as problem:
        return problem.message
    return f"the body is larger than {SMALL_BODY_BYTES} bytes besides the values and archive of a chart"


def _file(name: str, given: str) -> Moved:
    try:
        return Moved("file", decoded_file(name, given))
    except Invalid as problem:
        return Moved("file", b"", problem.message)


def _values(given: dict[str, Any], arguments: Mapping[str, Any]) -> Moved:
    try:
        check_size(arguments)
        check_text(arguments)
        return Moved("values", helm_args.values(given))
    except (Invalid, TooLarge) as problem:
        return Moved("values", b"", problem.message)
