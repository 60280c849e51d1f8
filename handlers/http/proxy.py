"""What trusted proxies report: the client's address and scheme, and with `proxy-login` the account and its groups."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache

from tornado.httputil import HTTPServerRequest

from models.accounts.accounts import PresentedCredential
from models.config.settings import Config
from models.errors import Invalid

_FORWARDED = re.compile("^(forwarded|x-forwarded-|x-real-ip|via$)", re.IGNORECASE | re.MULTILINE)
"""Matches names of headers."""
_MAX_ADDRESS_CHARACTERS = 100
_MAX_REPORTED_CHARACTERS = 8192


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
    return listens_beyond_loopback(config) or is_forwarded(request, config)


def is_forwarded(request: HTTPServerRequest, config: Config) -> bool:
    """Whether a proxy has passed the request on, or the request looks so."""
    header = config.tracker.security.proxy_login.header
    has_login = header is not None and header in request.headers
    return has_login or _FORWARDED.search("\n".join(request.headers)) is not None


def reported_account(request: HTTPServerRequest, config: Config) -> PresentedCredential | None:
    """Returns the account and the groups that a trusted proxy reports (`tracker.security.proxy-login`).

    Only the other end of the connection itself counts, and only by TCP; from anybody else the header is ignored.
    Raises `Invalid` for a header that is given twice or has characters that no name has.
    """
    settings = config.tracker.security.proxy_login
    if (
        settings.header is None
        or settings.header not in request.headers
        or not _is_direct_peer_trusted(request, config)
    ):
        return None
    name = _reported(request, settings.header)
    if not name:
        return None
    if "," in name:
        raise Invalid(f"{settings.header} has a comma: the proxy must replace the header of the client")
    groups = _reported(request, settings.groups_header) if settings.groups_header else ""
    return PresentedCredential("proxy", name, tuple(filter(None, (group.strip() for group in groups.split(",")))))


def _reported(request: HTTPServerRequest, header: str) -> str:
    """Returns the value of a header; empty where it is missing. Raises `Invalid`."""
    values = request.headers.get_list(header)
    if len(values) > 1:
        raise Invalid(f"{header} is given twice: the proxy must replace the header of the client")
    try:
        text = "".join(values).strip().encode("latin-1").decode()
    except UnicodeError:
        raise Invalid(f"{header} is not UTF-8") from None
    if not text.isprintable() or len(text) > _MAX_REPORTED_CHARACTERS:
        raise Invalid(f"{header} has characters that are not printable, or more than {_MAX_REPORTED_CHARACTERS}")
    return text


def _is_direct_peer_trusted(request: HTTPServerRequest, config: Config) -> bool:
    address = getattr(getattr(request.connection, "context", None), "address", None)
    return isinstance(address, tuple) and _is_trusted(str(address[0]), config)  # that of a Unix socket is no tuple


def listens_beyond_loopback(config: Config) -> bool:
    return _are_beyond_loopback(tuple(config.server.address))


@lru_cache(maxsize=16)
def _are_beyond_loopback(addresses: tuple[str, ...]) -> bool:
    return not all(_is_loopback(address) for address in addresses)


def is_ip_address(text: str) -> bool:
    return len(text) <= _MAX_ADDRESS_CHARACTERS and _is_ip_address(text)


@lru_cache(maxsize=1024)
def _is_ip_address(text: str) -> bool:
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
