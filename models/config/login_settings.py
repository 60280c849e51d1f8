"""The settings of logins by others: an identity provider (`tracker.security.oidc`), a proxy that authenticates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from attrs import field, frozen

from models.config import parsers, secret_files
from models.config.parsers import Filled, Span, ValidationError
from models.supervision.process import Seconds

_OWN_HEADERS = frozenset({"authorization", "cookie", "host", "origin", "x-tracker-token"})


def identity_header(raw: str) -> str:
    """The name of a header that reports who a caller is. Raises `ValidationError`."""
    name = parsers.token(raw)
    if name.lower() in _OWN_HEADERS or name.lower().startswith("sec-"):
        raise ValidationError("is a header with a meaning of its own", raw)
    return name


def issuer(raw: str) -> str:
    """The identifier of an OpenID provider, which its ID tokens have letter by letter. Raises `ValidationError`."""
    parts = urlsplit(parsers.url(raw))
    if parts.username is not None or parts.query or parts.fragment:
        raise ValidationError("must have no username, query or fragment")
    return raw


@frozen
class Oidc:
    """An OpenID provider by which people log in. Without `issuer` it is off."""

    issuer: Annotated[str, issuer] | None = None
    client_id: Filled | None = None
    client_secret: Annotated[str, secret_files.check_token] | None = field(default=None, repr=False)
    client_secret_file: Path | None = None
    scopes: Filled = "openid profile email"
    username_claim: Filled = "preferred_username"
    groups_claim: Filled = "groups"
    admin_groups: tuple[Filled, ...] = ()
    user_groups: tuple[Filled, ...] = ()
    auto_create: bool = True
    session: Span = Seconds(12 * 3600)


@frozen
class ProxyLogin:
    """A proxy in `server.trusted-proxies` reports the account of a caller. Without `header` it is off."""

    header: Annotated[str, identity_header] | None = None
    groups_header: Annotated[str, identity_header] | None = None
    admin_groups: tuple[Filled, ...] = ()
    auto_create: bool = True
