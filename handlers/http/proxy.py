"""The client's address and scheme, behind trusted proxies or without one, and whether the client may be remote."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache

from tornado.httputil import HTTPServerRequest

from models.config.settings import Config

_FORWARDED = re.compile("^(forwarded|x-forwarded-|x-real-ip|via$)", re.IGNORECASE | re.MULTILINE)
"""Matches names of headers."""


def client_address(request: HTTPServerRequest, config: Config) -> tuple[str, bool]:
    """Returns the client's address and whether its own connection uses TLS.

    `X-Forwarded-For` and `X-Forwarded-Proto` count only where the peer is one of `server.trusted-proxies`.
    """
    address, is_secure = request.remote_ip or "", request.protocol == "https"
    if not config.server.trusted_proxies or not _is_trusted(address, config):
        return address, is_secure
    scheme = request.headers.get("X-Forwarded-Proto", "").rpartition(",")[2].strip().lower()
    for hop in reversed(request.headers.get("X-Forwarded-For", "").split(",")):
        if not is_ip_address(hop.strip()):
            break
        address = hop.strip()
        if not _is_trusted(address, config):
            break
    return address, scheme == "https" if scheme else is_secure


def is_remote(request: HTTPServerRequest, config: Config) -> bool:
    """Whether the request may come from another machine: by a proxy, or to an address other than loopback."""
    return listens_beyond_loopback(config) or is_forwarded(request)


def is_forwarded(request: HTTPServerRequest) -> bool:
    """Whether a proxy has passed the request on."""
    return _FORWARDED.search("\n".join(request.headers)) is not None


def listens_beyond_loopback(config: Config) -> bool:
    return _are_beyond_loopback(tuple(config.server.address))


@lru_cache(maxsize=16)
def _are_beyond_loopback(addresses: tuple[str, ...]) -> bool:
    return not all(_is_loopback(address) for address in addresses)


@lru_cache(maxsize=1024)
def is_ip_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_trusted(text: str, config: Config) -> bool:
    if not is_ip_address(text):
        return False
    address = ipaddress.ip_address(text)
    address = getattr(address, "ipv4_mapped", None) or address  # how a dual-stack socket reports an IPv4 peer
    return any(address in ipaddress.ip_network(network, strict=False) for network in config.server.trusted_proxies)


def _is_loopback(address: str) -> bool:
    return address == "localhost" or (is_ip_address(address) and ipaddress.ip_address(address).is_loopback)
