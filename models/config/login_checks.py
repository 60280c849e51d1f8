"""Checks between the properties of logins by others."""

from __future__ import annotations

from collections.abc import Iterator

from models.config.settings import Config

_PROXY = "tracker.security.proxy-login"


def faults(config: Config) -> Iterator[tuple[str, object]]:
    """Each fault with the path of its property."""
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
