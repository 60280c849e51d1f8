"""Authentication: the credential a request presents, the account it belongs to, and the caller they make."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable

from attrs import frozen
from tornado.httputil import HTTPHeaders, HTTPMessageDelegate, HTTPServerRequest, RequestStartLine, ResponseStartLine

from handlers.control_socket import Peer, peer_of
from handlers.http.origin import is_embedded
from handlers.http.proxy import client_address, is_forwarded, is_remote, reported_account
from models.accounts.accounts import Credential, PresentedCredential, Scope, User
from models.config.settings import Config
from models.errors import Problem, Unauthenticated
from supervisor.services import Services


@frozen
class Caller:
    """Who sent a request, and from where."""

    is_remote: bool
    """The request may come from another machine: by a proxy, or because the server listens beyond loopback."""
    credential: Credential | None = None
    address: str = ""
    """The client's address; as reported by a trusted proxy."""
    is_secure: bool = False
    """The client's own connection uses TLS; as reported by a trusted proxy."""
    has_expired_session: bool = False
    peer: Peer | None = None
    """The process that sent it, where it came by the control socket."""
    is_operator: bool = False
    """It came by the control socket, with neither a token nor a forwarding header: its sender may control processes."""
    has_chart_key: bool = False

    @property
    def user(self) -> User | None:
        return self.credential.user if self.credential else None

    @property
    def is_authenticated(self) -> bool:
        return self.credential is not None

    @property
    def is_admin(self) -> bool:
        return self.credential is not None and self.credential.user.is_admin

    @property
    def account_or_address(self) -> str:
        """Whom shared work is counted for: the account, else the address (IPv6 by /64)."""
        if self.user is not None:
            return f"account {self.user.username}"
        try:
            address = ipaddress.ip_address(self.address)
        except ValueError:
            return f"address {self.address}"
        if address.version == 6:
            return f"address {ipaddress.ip_network((address, 64), strict=False)}"
        return f"address {address}"

    @property
    def scope(self) -> Scope | None:
        return self.credential.scope if self.credential else None


ANONYMOUS = Caller(is_remote=True)

FindCredential = Callable[[PresentedCredential], Credential | None]


def presented_credential(request: HTTPServerRequest, services: Services) -> PresentedCredential | None:
    """Returns the token, the report of a trusted proxy, or the session cookie of a request, in this order.

    Raises `Invalid` for a report that cannot be read.
    """
    if token := _token(request):
        return PresentedCredential("token", token)
    if (reported := reported_account(request, services.config)) is not None:
        return None if is_embedded(request, services.config) else reported
    if not request.cookies:
        return None
    session = request.cookies.get(session_cookie(services))
    if session is None or is_embedded(request, services.config):
        return None
    return PresentedCredential("session", session.value)


def identify_caller(request: HTTPServerRequest, services: Services, find_credential: FindCredential) -> Caller:
    """Returns the caller. A session that has ended makes the caller anonymous.

    Raises `Unauthenticated` for an invalid token, which is never treated as anonymous; `Invalid` for a report of a
    proxy that cannot be read; and the errors of `find_credential`.
    """
    config, presented = services.config, presented_credential(request, services)
    credential = find_credential(presented) if presented else None
    if presented and presented.kind == "token" and credential is None:
        raise Unauthenticated("this token is not known, or has expired or been revoked")
    address, is_secure = client_address(request, config)
    peer = peer_of(request)
    return Caller(
        is_remote=is_remote(request, config),
        credential=credential,
        address=address,
        is_secure=is_secure,
        has_expired_session=presented is not None and presented.kind == "session" and credential is None,
        has_chart_key=_has_chart_key(request, config),
        peer=peer,
        is_operator=peer is not None and presented is None and not is_forwarded(request, config),
    )


def session_cookie(services: Services) -> str:
    """Returns the cookie's name. It has the port, because browsers share cookies between all ports of a host.

    Nodes that share a store and a load balancer have different ports, so their cookie has one name.
    """
    return "pilothouse_shared" if services.is_shared else f"pilothouse_{services.port}"


def xsrf_cookie(services: Services) -> str:
    return f"{session_cookie(services)}_xsrf"


def is_chart_key(presented: bytes, config: Config) -> bool:
    key = config.svc.security.api_key
    return key is not None and bool(key.strip()) and hmac.compare_digest(presented, key.encode())


def _token(request: HTTPServerRequest) -> str:
    """Returns the request's token. `X-Tracker-Token` takes precedence over `Authorization: Bearer`; other schemes are
    ignored."""
    scheme, _, credential = request.headers.get("Authorization", "").strip().partition(" ")
    bearer = credential.strip() if scheme.lower() == "bearer" else ""
    return request.headers.get("X-Tracker-Token", "").strip() or bearer


def _has_chart_key(request: HTTPServerRequest, config: Config) -> bool:
    presented = request.headers.get(config.svc.security.api_key_header)
    return presented is not None and is_chart_key(presented.encode("latin-1", "replace"), config)


class AccountLookup(HTTPMessageDelegate):
    """Looks the caller up asynchronously (accounts in PostgreSQL, reports of a proxy) before the request is dispatched.

    `dispatch` is called with the outcome of `lookup`; the request's body is not read before.
    """

    def __init__(
        self, lookup: Awaitable[Credential | None], dispatch: Callable[[FindCredential], HTTPMessageDelegate]
    ) -> None:
        self._lookup = lookup
        self._dispatch = dispatch
        self._inner: HTTPMessageDelegate | None = None
        self._has_disconnected = False

    async def headers_received(self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders) -> None:
        find_credential = await self._result()
        if self._has_disconnected:
            return
        self._inner = self._dispatch(find_credential)
        received = self._inner.headers_received(start_line, headers)
        if received is not None:
            await received

    async def _result(self) -> FindCredential:
        """A failed lookup raises only where its result is used: other reasons to refuse a request come first."""
        try:
            credential = await self._lookup
        except Problem as problem:
            failure = problem

            def fail(_: PresentedCredential) -> Credential | None:
                raise failure

            return fail
        return lambda _: credential

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        return self._inner.data_received(chunk) if self._inner else None

    def finish(self) -> None:
        if self._inner:
            self._inner.finish()

    def on_connection_close(self) -> None:
        self._has_disconnected = True
        if self._inner:
            self._inner.on_connection_close()
