"""The certificates that a caller uploads for a repository or a registry, as files in PEM."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from models.errors import Invalid
from models.inputs import file
from supervisor.http import tls
from supervisor.http.tls import TlsCredentials

_MAX_BYTES = 64 * 1024
_pem = partial(file, required=False, is_rest_only=True, media_type="application/x-pem-file")
CA = _pem("the authority that signed the server's certificate, in PEM, at most 64 KiB")
CERTIFICATE = _pem("the client's certificate for this server, in PEM, at most 64 KiB; with key")
KEY = _pem("the unencrypted key of certificate, in PEM, at most 64 KiB; it is never shown")


async def read(ca: Path | None, certificate: Path | None, key: Path | None) -> TlsCredentials | None:
    """The uploaded files; None if there are none. Raises `Invalid` for files that are not PEM or do not match."""
    return await asyncio.to_thread(_read, ca, certificate, key)


def _read(ca: Path | None, certificate: Path | None, key: Path | None) -> TlsCredentials | None:
    found = TlsCredentials(_text("ca", ca), _text("certificate", certificate), _text("key", key))
    tls.check(found)
    return tls.credentials_of(found)


def _text(name: str, path: Path | None) -> str:
    """The text of a file; an empty file, such as that of an unused field of a form, counts as none."""
    if path is None:
        return ""
    if path.stat().st_size > _MAX_BYTES:
        raise Invalid(f"{name}: is larger than {_MAX_BYTES} bytes")
    try:
        return path.read_bytes().decode("ascii")
    except UnicodeDecodeError:
        raise Invalid(f"{name}: is not PEM") from None
