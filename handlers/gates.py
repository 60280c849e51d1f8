"""Who may. Every handler names its gate; one that names none is closed. A request is let in, or refused, here alone.

The order is: the Host, the path, the method, the other site, the credential, the gate; then the body.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from urllib.parse import urlsplit

from attrs import frozen
from tornado.httputil import HTTPServerRequest

from models.config import Config
from models.errors import Denied, Misdirected, Unauthenticated

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_FORWARDED = ("forwarded", "x-forwarded-", "x-real-ip")


@frozen
class Caller:
    """Who asks, from where. Accounts come with the tracker: until then nobody is known."""

    is_beyond: bool
    """The request may come from beyond this machine: we listen elsewhere than on loopback, or a proxy passed it on."""
    is_known: bool = False
    is_admin: bool = False


Gate = Callable[[Caller, Config], None]


def closed(caller: Caller, config: Config) -> None:
    """What a handler that names no gate has."""
    raise Denied("this is closed")


def open_to_all(caller: Caller, config: Config) -> None:
    """Health, static files, and what says no by itself."""


def readers(caller: Caller, config: Config) -> None:
    """Anybody; in closed mode those with an account."""
    if not config.tracker.security.open_mode:
        account_holders(caller, config)


def account_holders(caller: Caller, config: Config) -> None:
    if not caller.is_known:
        raise Unauthenticated("an account is needed here")


def log_readers(caller: Caller, config: Config) -> None:
    """Readers; beyond loopback those with an account, for logs say more than anybody meant to say."""
    readers(caller, config)
    if caller.is_beyond:
        account_holders(caller, config)


def operators(caller: Caller, config: Config) -> None:
    """What changes processes: readers on loopback, an ADMIN beyond, unless the configuration allows anybody."""
    readers(caller, config)
    if not caller.is_beyond or config.supervisor.security.allow_anonymous_control:
        return
    if not caller.is_known:
        raise Unauthenticated(
            "an account is needed to change processes beyond loopback (see supervisor.security.allow-anonymous-control)"
        )
    if not caller.is_admin:
        raise Denied("only an ADMIN may change processes beyond loopback")


def listens_beyond_loopback(config: Config) -> bool:
    return not all(_is_loopback(address) for address in config.server.address)


def caller(request: HTTPServerRequest, config: Config) -> Caller:
    """Who asks. Raises `Unauthenticated` for a bad token: it is never taken for no token."""
    if _token(request):
        raise Unauthenticated("this token is not known")
    forwarded = any(name.lower().startswith(_FORWARDED) for name in request.headers)
    return Caller(is_beyond=forwarded or listens_beyond_loopback(config))


def _token(request: HTTPServerRequest) -> str:
    """The token that came with the request: `X-Tracker-Token` wins over the scheme Bearer; others are ignored."""
    scheme, _, credential = request.headers.get("Authorization", "").strip().partition(" ")
    bearer = credential.strip() if scheme.lower() == "bearer" else ""
    return request.headers.get("X-Tracker-Token", "").strip() or bearer


def check_host(request: HTTPServerRequest, config: Config) -> None:
    """Refuses a name that is not ours: a page elsewhere may have made its own name lead here. Raises `Misdirected`."""
    allowed = {name.lower() for name in config.server.allowed_hosts}
    if listens_beyond_loopback(config) and not allowed:
        return
    hosts = request.headers.get_list("Host")
    name = _name(hosts[0]) if len(hosts) == 1 else ""
    if hosts and not (name == "localhost" or name in allowed or hosts[0].lower() in allowed or _is_address(name)):
        raise Misdirected("this Host is not served here; server.allowed-hosts names those that are")


def check_site(request: HTTPServerRequest, config: Config) -> None:
    """Refuses a change that a page of another site asks a browser for. Raises `Denied`."""
    if request.method in SAFE:
        return
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site is not None:
        if site not in ("same-origin", "none"):
            raise Denied("a page of another site may not change anything here")
    elif origin is not None and not _is_ours(origin, request, config):
        raise Denied("a page of another origin may not change anything here")


def _is_ours(origin: str, request: HTTPServerRequest, config: Config) -> bool:
    try:
        parts = urlsplit(origin)
        default = 443 if parts.scheme == "https" else 80
        mine = urlsplit(f"{parts.scheme}://{request.headers.get('Host', '')}")
        same = (parts.hostname, parts.port or default) == (mine.hostname, mine.port or default)
    except ValueError:
        return False
    allowed = {name.lower() for name in config.server.allowed_hosts}
    named = parts.hostname in allowed or parts.netloc.lower() in allowed
    return parts.scheme in ("http", "https") and bool(parts.hostname) and (same or named)


def _name(host: str) -> str:
    """A Host header without its port, an IPv6 address without its brackets."""
    host = host.strip().lower()
    if host.startswith("["):
        address, _, port = host[1:].partition("]")
        return address if ":" in address and (not port or port.startswith(":")) else ""
    return host.partition(":")[0].removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(address: str) -> bool:
    return address == "localhost" or (_is_address(address) and ipaddress.ip_address(address).is_loopback)
