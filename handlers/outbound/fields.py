"""Fields of JSON bodies of channels and rules: texts, lists, numbers and secrets, read with the checks of the
configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from models.config.parsers import ValidationError
from models.errors import Invalid
from models.inputs import UNSET, InputKind, body
from models.supervision.process import Seconds

MAX_NAME_CHARACTERS = 64
MAX_ITEMS = 100
MAX_ITEM_CHARACTERS = 255
MAX_URL_CHARACTERS = 2048


def text(about: str, required: bool = False, **schema: Any) -> Any:
    """A text of one line."""

    def read(name: str, value: Any) -> str:
        most = schema.get("maxLength", MAX_ITEM_CHARACTERS)
        if not isinstance(value, str) or not value.strip() or len(value) > most or not value.isprintable():
            raise Invalid(f"{name} must be a text of 1 to {most} printable characters")
        return value.strip()

    kind = InputKind({"type": "string", "minLength": 1, "maxLength": MAX_ITEM_CHARACTERS, **schema}, read)
    return body(about, None, required=required, kind=kind)


def one_of(about: str, *choices: str, default: str | None = None) -> Any:
    def read(name: str, value: Any) -> str:
        if value not in choices:
            raise Invalid(f"{name} must be one of {', '.join(choices)}")
        return str(value)

    return body(
        about, default, required=default is None, kind=InputKind({"type": "string", "enum": list(choices)}, read)
    )


def texts(
    about: str, default: tuple[str, ...] | None = (), required: bool = False,
    check: Callable[[str], object] | None = None, most: int = MAX_ITEMS,
) -> Any:  # fmt: skip
    """A list of texts."""

    def read(name: str, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or len(value) > most or (required and not value):
            raise Invalid(f"{name} must be a list of {int(required)} to {most} texts")
        for item in value:
            if not isinstance(item, str) or not 0 < len(item) <= MAX_ITEM_CHARACTERS or not item.isprintable():
                raise Invalid(f"{name} has an item that is no text of 1 to {MAX_ITEM_CHARACTERS} characters")
            if check is not None:
                checked(name, check, item)
        return tuple(value)

    items = {"type": "string", "minLength": 1, "maxLength": MAX_ITEM_CHARACTERS}
    kind = InputKind({"type": "array", "items": items, "minItems": int(required), "maxItems": most}, read)
    return body(about, default, required=required, kind=kind)


def flag(about: str, default: bool) -> Any:
    def read(name: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise Invalid(f"{name} must be true or false")
        return value

    return body(about, default, kind=InputKind({"type": "boolean"}, read))


def seconds(about: str, default: float) -> Any:
    """A length of time in seconds, at most thirty days."""
    most = 30 * 86_400

    def read(name: str, value: Any) -> Seconds:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
            raise Invalid(f"{name} must be a number of seconds from 0 to {most}")
        return Seconds(value)

    return body(about, Seconds(default), kind=InputKind({"type": "number", "minimum": 0, "maximum": most}, read))


def number(about: str, default: int | None, low: int, high: int) -> Any:
    def read(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Invalid(f"{name} must be a whole number from {low} to {high}")
        return value

    return body(about, default, kind=InputKind({"type": "integer", "minimum": low, "maximum": high}, read))


def secret(about: str, most: int, check: Callable[[str], object]) -> Any:
    """A secret: left out it stays, null removes it. No message shows it."""

    def read(name: str, value: Any) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str) or not 0 < len(value) <= most:
            raise Invalid(f"{name} must be a text of 1 to {most} characters, or null")
        checked(name, check, value)
        return value

    schema = {"type": ["string", "null"], "writeOnly": True, "maxLength": most}
    return body(about, UNSET, kind=InputKind(schema, read, reads_null=True))


def checked(name: str, check: Callable[[str], object], value: str) -> None:
    """Raises `Invalid`, which names the field."""
    try:
        check(value)
    except ValidationError as why:
        raise Invalid(f"{name} {why}") from None


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that a request has."""
    return {name: value for name, value in values.items() if value is not UNSET}
