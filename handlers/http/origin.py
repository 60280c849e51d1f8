"""Protection against other sites: the Host header (DNS rebinding), Origin and Sec-Fetch-Site (CSRF, embedding)."""

from __future__ import annotations

from urllib.parse import urlsplit

from tornado.httputil import HTTPServerRequest

from handlers.control_socket import peer_of
from handlers.http.proxy import is_ip_address, listens_beyond_loopback
from models.config.settings import Config
from models.errors import Denied, Misdirected

_MAX_CHARACTERS = 1000
"""Of an origin and a host together. What `urlsplit` reads is cached."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def check_host(request: HTTPServerRequest, config: Config) -> None:
    """Refuses a host name that is not served here. Raises `Misdirected`.

    Without this check a page of another site could point its own host name at this address and read the answers.
    """
    if not config.server.allowed_hosts and listens_beyond_loopback(config) and peer_of(request) is None:
        return
    hosts = request.headers.get_list("Host")
    name = _host_name(hosts[0]) if len(hosts) == 1 else ""
    if not hosts or name == "localhost" or is_ip_address(name):
        return
    allowed = {name.lower() for name in config.server.allowed_hosts}
    if not (name in allowed or hosts[0].lower() in allowed):
        raise Misdirected("this Host is not served here; server.allowed-hosts names those that are")


def check_origin(request: HTTPServerRequest, config: Config, rejects_reads: bool = False) -> None:
    """Refuses a change, or with `rejects_reads` also a read, requested by a page of another site. Raises `Denied`."""
    if request.method in SAFE_METHODS and not rejects_reads:
        return
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site is not None:
        if site not in ("same-origin", "none"):
            raise Denied("a page of another site may not change anything here")
    elif origin is not None and not _is_same_origin(origin, request, config):
        raise Denied("a page of another origin may not change anything here")


def is_embedded(request: HTTPServerRequest, config: Config) -> bool:
    """Whether a page of another origin loads this as a part of itself; the session cookie does not count then.

    That page could not read the response, but would learn from an image's size or from a failure. Browsers send cookies
    to every port of a host. A link followed from another site is no embedding.
    """
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site is None:
        return origin is not None and not _is_same_origin(origin, request, config)
    mode, destination = request.headers.get("Sec-Fetch-Mode"), request.headers.get("Sec-Fetch-Dest", "document")
    return site not in ("same-origin", "none") and not (mode == "navigate" and destination == "document")


def _is_same_origin(origin: str, request: HTTPServerRequest, config: Config) -> bool:
    """Whether an Origin is that of this request, or of one of `server.allowed-hosts`."""
    if len(origin) + len(request.headers.get("Host", "")) > _MAX_CHARACTERS:
        return False
    try:
        parts = urlsplit(origin)
        default_port = 443 if parts.scheme == "https" else 80
        own = urlsplit(f"{parts.scheme}://{request.headers.get('Host', '')}")
        is_same = (parts.hostname, parts.port or default_port) == (own.hostname, own.port or default_port)
    except ValueError:
        return False
    allowed = {name.lower() for name in config.server.allowed_hosts}
    is_allowed = parts.hostname in allowed or parts.netloc.lower() in allowed
    return parts.scheme in ("http", "https") and bool(parts.hostname) and (is_same or is_allowed)


def _host_name(host: str) -> str:
    """Returns a Host header without its port, an IPv6 address without its brackets; empty where it is malformed."""
    host = host.strip().lower()
    if host.startswith("["):
        address, _, port = host[1:].partition("]")
        return address if ":" in address and (not port or port.startswith(":")) else ""
    return host.partition(":")[0].removesuffix(".")
