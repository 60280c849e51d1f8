"""Checks between the properties of logins by others."""

from __future__ import annotations

from collections.abc import Iterator

from models.config import secret_files
from models.config.settings import Config

_OIDC = "tracker.security.oidc"
_PROXY = "tracker.security.proxy-login"


def faults(config: Config) -> Iterator[tuple[str, object]]:
    """Each fault with the path of its property."""
    yield from _of_oidc(config)
    yield from _of_proxy(config)


def _of_oidc(config: Config) -> Iterator[tuple[str, object]]:
    oidc = config.tracker.security.oidc
    yield from secret_files.faults(_OIDC, "client-secret", oidc.client_secret, oidc.client_secret_file)
    if (oidc.issuer is None) != (oidc.client_id is None):
        yield _OIDC, "issuer and client-id must be given together"
    if oidc.issuer is not None and config.server.public_url is None:
        yield f"{_OIDC}.issuer", "needs server.public-url: the provider leads people back to it"
    if "openid" not in oidc.scopes.split():
        yield f"{_OIDC}.scopes", "must have openid"


def _of_proxy(config: Config) -> Iterator[tuple[str, object]]:
    proxy = config.tracker.security.proxy_login
    if proxy.header is None:
        if proxy.groups_header is not None or proxy.admin_groups:
            yield _PROXY, "needs header"
        return
    if not config.server.trusted_proxies:
        yield f"{_PROXY}.header", "needs server.trusted-proxies: nobody else could report who a caller is"
    if proxy.admin_groups and proxy.groups_header is None:
        yield f"{_PROXY}.admin-groups", "needs groups-header"
    if proxy.groups_header is not None and proxy.groups_header.lower() == proxy.header.lower():
        yield f"{_PROXY}.groups-header", "must not be the header of the name"
