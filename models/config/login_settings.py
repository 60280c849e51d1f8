"""The settings of logins by others: a proxy that authenticates (`tracker.security.proxy-login`)."""

from __future__ import annotations

from typing import Annotated

from attrs import frozen

from models.config import parsers
from models.config.parsers import Filled, ValidationError

_OWN_HEADERS = frozenset({"authorization", "cookie", "host", "origin", "x-tracker-token"})


def identity_header(raw: str) -> str:
    """The name of a header that reports who a caller is. Raises `ValidationError`."""
    name = parsers.token(raw)
    if name.lower() in _OWN_HEADERS or name.lower().startswith("sec-"):
        raise ValidationError("is a header with a meaning of its own", raw)
    return name


@frozen
class ProxyLogin:
    """A proxy in `server.trusted-proxies` reports the account of a caller. Without `header` it is off."""

    header: Annotated[str, identity_header] | None = None
    groups_header: Annotated[str, identity_header] | None = None
    admin_groups: tuple[Filled, ...] = ()
    auto_create: bool = True
