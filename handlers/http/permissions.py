"""Who may. Every handler names its gate; one that names none is closed. A request is let in, or refused, here alone.

The order is: the Host, the path, the method, the other site, the credential, the gate; then the body.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable
from urllib.parse import urlsplit

from attrs import frozen
from tornado.httputil import HTTPServerRequest

from models.accounts.accounts import Credential, PresentedCredential, Scope, User
from models.config.settings import Config
from models.errors import Denied, Misdirected, Unauthenticated
from supervisor.services import Services

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_FORWARDED = ("forwarded", "x-forwarded-", "x-real-ip")


@frozen
class Caller:
    """Who asks, from where."""

    is_beyond: bool
    """The request may come from beyond this machine: we listen elsewhere than on loopback, or a proxy passed it on."""
    credential: Credential | None = None
    address: str = ""
    """Of the client; a trusted proxy is believed."""
    is_secure: bool = False
    """The client's own connection is TLS; a trusted proxy is believed."""
    has_dead_cookie: bool = False
    has_chart_key: bool = False

    @property
    def user(self) -> User | None:
        return self.credential.user if self.credential else None

    @property
    def is_known(self) -> bool:
        return self.credential is not None

    @property
    def is_admin(self) -> bool:
        return self.credential is not None and self.credential.user.is_admin

    @property
    def scope(self) -> Scope | None:
        return self.credential.scope if self.credential else None


ANONYMOUS = Caller(is_beyond=True)
"""Of whom nothing is known."""

Permission = Callable[[Caller, Config], None]


def closed(caller: Caller, config: Config) -> None:
    """What a handler that names no gate has."""
    raise Denied("this is closed")


def open_to_all(caller: Caller, config: Config) -> None:
    """Health, static files, the login, and what says no by itself."""


def readers(caller: Caller, config: Config) -> None:
    """Anybody; in closed mode those with an account."""
    if not config.tracker.security.open_mode:
        account_holders(caller, config)


def chart_readers(caller: Caller, config: Config) -> None:
    """Anybody; in closed mode those with an account or the chart key."""
    if not caller.has_chart_key:
        readers(caller, config)


def check_charts_open(config: Config) -> None:
    """Raises `Denied` where charts may be changed by nobody, whatever key is shown."""
    if config.svc.rest.access_interceptor.enabled:
        check_changes_open(config)


def check_changes_open(config: Config) -> None:
    """What the mode and the key say, whether the interceptor is switched off or not. Raises `Denied`."""
    security = config.svc.security
    if security.mode != "FULL":
        raise Denied("changes are disabled (svc.security.mode is READ_ONLY)")
    if not (security.api_key or "").strip():
        raise Denied("changes are disabled while there is no key (svc.security.api-key)")


def chart_changers(caller: Caller, config: Config) -> None:
    """Who shows the chart key; where the interceptor is switched off readers on loopback, an ADMIN beyond."""
    if not config.svc.rest.access_interceptor.enabled:
        readers(caller, config)
        if caller.is_beyond:
            admins(caller, config)
    elif not caller.has_chart_key:
        raise Unauthenticated(f"the key of the charts is missing or wrong ({config.svc.security.api_key_header})")


def tool_users(caller: Caller, config: Config) -> None:
    """Where there is a chart key, who shows it; else anybody, or in closed mode who has a token."""
    if (config.svc.security.api_key or "").strip():
        if not caller.has_chart_key:
            raise Unauthenticated(f"the key of the charts is missing or wrong ({config.svc.security.api_key_header})")
    elif caller.credential is None or caller.credential.kind != "token":
        readers(ANONYMOUS, config)


def chart_forms(caller: Caller, config: Config) -> None:
    """Who may send a form of the charts. The key is in the form: `ChartPage` asks `chart_changers` when it is read."""
    chart_readers(caller, config)


def chart_posture(config: Config) -> str:
    """What the gate of the charts lets pass, in a line for the log."""
    if not config.svc.rest.access_interceptor.enabled:
        return "the gate of the charts is switched off (svc.rest.access-interceptor.enabled): anybody may change them"
    try:
        check_charts_open(config)
    except Denied as problem:
        return f"charts cannot be changed: {problem.message}"
    return f"charts may be changed with the key, in the header {config.svc.security.api_key_header}"


def account_holders(caller: Caller, config: Config) -> None:
    if not caller.is_known:
        raise Unauthenticated("an account is needed here")


def admins(caller: Caller, config: Config) -> None:
    account_holders(caller, config)
    if not caller.is_admin:
        raise Denied("only an ADMIN may do this")


def posters(caller: Caller, config: Config) -> None:
    """Who may post reports: readers, or holders of a token where `require-ingest-token` is set."""
    readers(caller, config)
    is_token = caller.credential is not None and caller.credential.kind == "token"
    if config.tracker.security.require_ingest_token and not is_token:
        raise Unauthenticated("a token is needed to post reports (tracker.security.require-ingest-token)")


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


def admit(caller: Caller, permission: Permission, config: Config) -> None:
    """Checks a permission; a token of scope INGEST passes only `posters`. Raises `Unauthenticated`, `Denied`."""
    if caller.scope == "INGEST" and permission is not posters:
        raise Denied("a token of scope INGEST may only post reports")
    permission(caller, config)


def listens_beyond_loopback(config: Config) -> bool:
    return not all(_is_loopback(address) for address in config.server.address)


FindCredential = Callable[[PresentedCredential], Credential | None]


def shown(request: HTTPServerRequest, services: Services) -> PresentedCredential | None:
    """What a request bears to tell who sent it."""
    if token := _token(request):
        return PresentedCredential("token", token)
    session = request.cookies.get(session_cookie(services))
    return (
        PresentedCredential("session", session.value)
        if session and not _is_embedded(request, services.config)
        else None
    )


def caller(request: HTTPServerRequest, services: Services, look: FindCredential) -> Caller:
    """Who asks; `look` tells whose something shown is. A dead session is nobody.

    Raises `Unauthenticated` for a bad token: it is never taken for no token. Raises what `look` raises.
    """
    config, said = services.config, shown(request, services)
    credential = look(said) if said else None
    if said and said.kind == "token" and credential is None:
        raise Unauthenticated("this token is not known, or has expired or been revoked")
    dead = said is not None and credential is None
    forwarded = any(name.lower().startswith(_FORWARDED) for name in request.headers)
    address, is_secure = _origin(request, config)
    return Caller(
        is_beyond=forwarded or listens_beyond_loopback(config),
        credential=credential,
        address=address,
        is_secure=is_secure,
        has_dead_cookie=dead,
        has_chart_key=_has_chart_key(request, config),
    )


def session_cookie(services: Services) -> str:
    """Its name. Cookies know no ports, so other programs on this host would overwrite one of a plain name.

    Nodes behind one address have ports of their own, and one name.
    """
    return "pilothouse_shared" if services.is_shared else f"pilothouse_{services.port}"


def xsrf_cookie(services: Services) -> str:
    return f"{session_cookie(services)}_xsrf"


def _token(request: HTTPServerRequest) -> str:
    """The token that came with the request: `X-Tracker-Token` wins over the scheme Bearer; others are ignored."""
    scheme, _, credential = request.headers.get("Authorization", "").strip().partition(" ")
    bearer = credential.strip() if scheme.lower() == "bearer" else ""
    return request.headers.get("X-Tracker-Token", "").strip() or bearer


def _has_chart_key(request: HTTPServerRequest, config: Config) -> bool:
    shown = request.headers.get(config.svc.security.api_key_header) or ""
    return is_chart_key(shown.encode("latin-1", "replace"), config)


def is_chart_key(shown: bytes, config: Config) -> bool:
    key = config.svc.security.api_key
    return key is not None and bool(key.strip()) and hmac.compare_digest(shown, key.encode())


def _origin(request: HTTPServerRequest, config: Config) -> tuple[str, bool]:
    """The client's address, and whether it came by TLS, as far as proxies that we trust tell."""
    address, is_secure = request.remote_ip or "", request.protocol == "https"
    if not config.server.trusted_proxies or not _is_trusted(address, config):
        return address, is_secure
    proto = request.headers.get("X-Forwarded-Proto", "").rpartition(",")[2].strip().lower()
    for hop in reversed(request.headers.get("X-Forwarded-For", "").split(",")):
        if not _is_address(hop.strip()):
            break
        address = hop.strip()
        if not _is_trusted(address, config):
            break
    return address, proto == "https" if proto else is_secure


def _is_trusted(address: str, config: Config) -> bool:
    if not _is_address(address):
        return False
    one = ipaddress.ip_address(address)
    one = getattr(one, "ipv4_mapped", None) or one  # as a socket of both kinds tells an IPv4 address
    return any(one in ipaddress.ip_network(network, strict=False) for network in config.server.trusted_proxies)


def check_host(request: HTTPServerRequest, config: Config) -> None:
    """Refuses a name that is not ours: a page elsewhere may have made its own name lead here. Raises `Misdirected`."""
    allowed = {name.lower() for name in config.server.allowed_hosts}
    if listens_beyond_loopback(config) and not allowed:
        return
    hosts = request.headers.get_list("Host")
    name = _name(hosts[0]) if len(hosts) == 1 else ""
    if hosts and not (name == "localhost" or name in allowed or hosts[0].lower() in allowed or _is_address(name)):
        raise Misdirected("this Host is not served here; server.allowed-hosts names those that are")


def check_site(request: HTTPServerRequest, config: Config, minds_reads: bool = False) -> None:
    """Refuses a change, or a reading too, that a page of another site asks a browser for. Raises `Denied`."""
    if request.method in SAFE and not minds_reads:
        return
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site is not None:
        if site not in ("same-origin", "none"):
            raise Denied("a page of another site may not change anything here")
    elif origin is not None and not _is_ours(origin, request, config):
        raise Denied("a page of another origin may not change anything here")


def _is_embedded(request: HTTPServerRequest, config: Config) -> bool:
    """Whether a page of another origin asks, for a part of itself: our cookie does not speak for it.

    It could not read the answer, but would learn from the size of a picture, or from what fails. To another port of
    this host a browser sends our cookie. Who follows a link from there is himself.
    """
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site is None:
        return origin is not None and not _is_ours(origin, request, config)
    mode, goes_to = request.headers.get("Sec-Fetch-Mode"), request.headers.get("Sec-Fetch-Dest", "document")
    return site not in ("same-origin", "none") and not (mode == "navigate" and goes_to == "document")


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
