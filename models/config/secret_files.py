"""Secrets that the configuration names by a file. No message has any of a secret."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from models.config import parsers
from models.config.parsers import ValidationError

MAX_TOKEN_CHARACTERS = 4096
KEY_BYTES = 32
SIGNING_PREFIX = "whsec_"
_SIGNING_BYTES = (24, 64)
_MAX_FILE_BYTES = 64 * 1024
MAX_KEY_CHARACTERS = 3500
"""Of the PEM of an RSA key of 4096 bits: what a larger one signs takes long."""
_PRIVATE_KEY = re.compile(
    r"-----BEGIN (RSA )?PRIVATE KEY-----\s+([A-Za-z0-9+/=]{1,100}\s+)+-----END (RSA )?PRIVATE KEY-----"
)


def check_token(text: str) -> str:
    """A token that a header can hold. Raises `ValidationError`."""
    if not 0 < len(text) <= MAX_TOKEN_CHARACTERS or not text.isascii() or not text.isprintable() or " " in text:
        raise ValidationError(f"must have 1 to {MAX_TOKEN_CHARACTERS} printable ASCII characters without spaces")
    return text


def check_private_key(text: str) -> str:
    """A private RSA key in PEM of 4096 bits at most, PKCS#1 or PKCS#8, without a password. Raises `ValidationError`."""
    text = text.strip()
    if _PRIVATE_KEY.fullmatch(text) is None:
        raise ValidationError("must be a private RSA key in PEM without a password (BEGIN RSA PRIVATE KEY)")
    if len(text) > MAX_KEY_CHARACTERS:
        raise ValidationError("must be a private RSA key of at most 4096 bits")
    return text + "\n"


def check_url(text: str) -> str:
    """An http or https URL that is a secret. Raises `ValidationError`, which does not show it."""
    try:
        return check_token(parsers.url(text))
    except ValidationError:
        raise ValidationError("is not an http or https URL with a host") from None


def token_of(path: Path) -> str:
    """The token in a file, without white space around it. Raises `ValidationError`."""
    return check_token(_content(path).decode("utf-8", "replace").strip())


def private_key_of(path: Path) -> str:
    """The private key in a file. Raises `ValidationError`."""
    return check_private_key(_content(path).decode("utf-8", "replace"))


def faults(
    at: str, name: str, text: str | None, file: Path | None, read: Callable[[Path], str] = token_of
) -> Iterator[tuple[str, object]]:
    """What is wrong with a secret that is given as text or in a file, with the path of the property below `at`.

    `read` reads it from a file, and raises `ValidationError`.
    """
    if text is not None and file is not None:
        yield at, f"{name} and {name}-file cannot be given together"
    elif file is not None:
        try:
            read(file)
        except ValidationError as why:
            yield f"{at}.{name}-file", why


def signing_key(secret: str) -> bytes:
    """The key of a secret of Standard Webhooks. Raises `ValidationError`."""
    try:
        key = base64.b64decode(secret.removeprefix(SIGNING_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    low, high = _SIGNING_BYTES
    if not secret.startswith(SIGNING_PREFIX) or not low <= len(key) <= high:
        raise ValidationError(f"must be {SIGNING_PREFIX} and {low} to {high} bytes in base64")
    return key


def key_of(path: Path) -> bytes:
    """The key of 32 bytes in a file, which has it in base64. Raises `ValidationError`."""
    try:
        key = base64.b64decode(_content(path).strip(), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise ValidationError(f"must hold {KEY_BYTES} random bytes in base64")
    return key


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE_BYTES)
    except OSError as error:
        raise ValidationError(f"cannot be read: {error.strerror}", path) from None
