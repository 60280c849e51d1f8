"""TLS contexts of clients: the certificates that a caller uploaded for one server, and the server's own."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Protocol

from attrs import field, frozen

from models.config.secret_files import MAX_KEY_CHARACTERS
from models.errors import Invalid

_MAX_CONTEXTS = 32
"""Kept: each reads the system's authorities, which takes long."""


@frozen
class TlsCredentials:
    """What a client needs for one origin, as PEM: the authority that signed the server's certificate, and the client's
    own certificate with its key. An empty text: none.
    """

    authority: str = ""
    certificate: str = field(default="", repr=False)
    private_key: str = field(default="", repr=False)


class StoredCredentials(Protocol):
    """A row with the credentials of an origin."""

    @property
    def authority(self) -> str: ...

    @property
    def certificate(self) -> str: ...

    @property
    def private_key(self) -> str: ...


def credentials_of(stored: StoredCredentials) -> TlsCredentials | None:
    """The credentials in a row, or in others; None if there are none."""
    found = TlsCredentials(stored.authority, stored.certificate, stored.private_key)
    return None if found == TlsCredentials() else found


@cache
def system_context(verify: bool, ca_file: Path | None) -> ssl.SSLContext:
    """A context that trusts the system's authorities and those of a file."""
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context if verify else _unverified(context)


@lru_cache(_MAX_CONTEXTS)
def context_of(credentials: TlsCredentials, verify: bool, ca_file: Path | None) -> ssl.SSLContext:
    """A context with the credentials of an origin; as with helm, it trusts their authority only, if they have one.

    Raises `ValueError` or `ssl.SSLError` for unusable ones.
    """
    context = ssl.create_default_context(cadata=credentials.authority or None)
    if credentials.authority:  # private authorities often lack what RFC 5280 requires; helm accepts them
        context.verify_flags = context.verify_flags & ~ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    elif ca_file is not None:
        context.load_verify_locations(ca_file)
    if credentials.certificate:
        load_certificate(context, credentials.certificate.encode(), credentials.private_key.encode())
    return context if verify else _unverified(context)


def check(credentials: TlsCredentials) -> None:
    """Raises `Invalid` for an authority that is none, or a certificate and a key that do not belong together."""
    if bool(credentials.certificate) != bool(credentials.private_key):
        raise Invalid("certificate and key are needed together")
    if credentials.authority:
        _try("ca", "has no certificate in PEM", TlsCredentials(credentials.authority))
    if credentials.certificate:
        both = "are not a certificate in PEM and its unencrypted key"
        if any(len(key) > MAX_KEY_CHARACTERS for key in _keys(credentials.certificate + credentials.private_key)):
            raise Invalid("certificate and key: the key has more than 4096 bits")  # it signs on the event loop
        _try("certificate and key", both, TlsCredentials("", credentials.certificate, credentials.private_key))


def _keys(text: str) -> Iterator[str]:
    """What PEM has between the lines that begin and end each private key."""
    for part in text.split("-----BEGIN ")[1:]:
        label, _, rest = part.partition("-----")
        if label.endswith("PRIVATE KEY"):
            yield rest.partition("-----END")[0]


def _try(what: str, fault: str, credentials: TlsCredentials) -> None:
    try:
        context_of(credentials, True, None)
    except (ssl.SSLError, ValueError):  # their messages have source locations
        raise Invalid(f"{what}: {fault}") from None


def load_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Loads a client's certificate and key in PEM. Raises `ValueError` for an encrypted key, and `ssl.SSLError`.

    OpenSSL reads certificates only from files, so this uses a memory file.
    """
    handle = os.memfd_create("client", os.MFD_CLOEXEC)
    try:
        with open(handle, "wb", closefd=False) as file:
            file.write(certificate + b"\n" + key)
        context.load_cert_chain(f"/proc/self/fd/{handle}", password=_no_password)
    finally:
        os.close(handle)


def _no_password() -> str:
    raise ValueError("an encrypted key")


def _unverified(context: ssl.SSLContext) -> ssl.SSLContext:
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
