"""Requests to an OpenID provider: its metadata and keys, which are kept for an hour, codes and the claims of people."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote_plus, urlencode

from attrs import frozen

from models.config import secret_files
from models.config.login_settings import Oidc
from models.config.parsers import ValidationError
from models.errors import Denied, Invalid, TimedOut, Unprocessable, Upstream
from models.json_format import SMALL_BODY_BYTES, ParseJson, json_value
from supervisor.accounts.oidc.id_tokens import MAX_KEYS, Jwk, fitting_key
from supervisor.http import urls
from supervisor.http.client import GuardedClient, Request
from supervisor.http.urls import OriginLogin, Url
from supervisor.single_flight import SingleFlight

KEPT_SECONDS = 3600.0
UNKNOWN_KEY_SECONDS = 60.0
"""An unknown key id makes the keys be fetched again at most once in this time."""
FAILURE_SECONDS = 5.0
"""A failed fetch of metadata or keys is not repeated sooner."""
_MAX_BYTES = 256 * 1024
_FORM = "application/x-www-form-urlencoded"


@frozen
class ProviderMetadata:
    """What a provider publishes about itself."""

    authorization: Url
    token: Url
    keys: Url
    user_info: Url | None
    sends_issuer: bool
    """Whether its responses to the browser have `iss` (RFC 9207)."""
    posts_secret: bool
    """Whether it takes the client's secret in the body only."""


@frozen
class Tokens:
    id_token: str
    access_token: str


class Kept:
    """A document that is fetched when it is older than `KEPT_SECONDS`, by one request for all callers."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._flight: SingleFlight[Any] = SingleFlight()
        self._value: Any = None
        self._at = self._failed_at = -math.inf
        self._failure: tuple[type[Upstream | TimedOut], str] = Upstream, ""

    async def get(self, fetch: Callable[[], Any], since: float | None = None) -> Any:
        """Returns what `fetch` returned, not before the time `since`. Raises its errors."""
        oldest = self._clock() - KEPT_SECONDS if since is None else since

        async def work() -> Any:
            if self._at >= oldest:
                return self._value
            if self._clock() < self._failed_at + FAILURE_SECONDS:
                kind, message = self._failure
                raise kind(message)
            try:
                self._value, self._at = await fetch(), self._clock()
            except (Upstream, TimedOut) as problem:
                self._failure, self._failed_at = (type(problem), problem.message), self._clock()
                raise
            return self._value

        return self._value if self._at >= oldest else await self._flight.run("document", work)


class Provider:
    def __init__(
        self, settings: Oidc, client: GuardedClient, clock: Callable[[], float], parse_json: ParseJson
    ) -> None:
        """`clock` counts seconds. `parse_json` parses documents."""
        self.issuer = settings.issuer or ""
        self.client_id = settings.client_id or ""
        self._settings = settings
        self._client = client
        self._clock = clock
        self._parse_json = parse_json
        self._metadata, self._keys = Kept(clock), Kept(clock)
        self._unknown_key_at = -math.inf

    async def metadata(self) -> ProviderMetadata:
        """Raises `Upstream`, `TimedOut`, `Unavailable`."""
        found: ProviderMetadata = await self._metadata.get(self._fetch_metadata)
        return found

    async def _fetch_metadata(self) -> ProviderMetadata:
        url = _parsed(f"{self.issuer.rstrip('/')}/.well-known/openid-configuration", "issuer")
        document = await self._json(Request(url, _MAX_BYTES, headers={"Accept": "application/json"}))
        if document.get("issuer") != self.issuer:
            raise Upstream("the identity provider has another issuer than tracker.security.oidc.issuer")
        methods = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        names = methods if isinstance(methods, list) else []
        return ProviderMetadata(
            _url(document, "authorization_endpoint"),
            _url(document, "token_endpoint"),
            _url(document, "jwks_uri"),
            _url(document, "userinfo_endpoint") if "userinfo_endpoint" in document else None,
            document.get("authorization_response_iss_parameter_supported") is True,
            "client_secret_basic" not in names and "client_secret_post" in names,
        )

    async def find_key(self, key_id: str | None, algorithm: str) -> Jwk | None:
        """Returns a published key; for an unknown id the keys are fetched again, now and then.

        Raises `Upstream`, `TimedOut`, `Unavailable`.
        """
        found = fitting_key(await self._keys.get(self._fetch_keys), key_id, algorithm)
        now = self._clock()
        if found is None and now >= self._unknown_key_at + UNKNOWN_KEY_SECONDS:
            self._unknown_key_at = now
            found = fitting_key(await self._keys.get(self._fetch_keys, now), key_id, algorithm)
        return found

    async def _fetch_keys(self) -> Sequence[Jwk]:
        metadata = await self.metadata()
        document = await self._json(Request(metadata.keys, _MAX_BYTES, headers={"Accept": "application/json"}))
        keys = document.get("keys")
        if not isinstance(keys, list):
            raise Upstream("the identity provider publishes no keys")
        return [key for key in keys if isinstance(key, dict)][:MAX_KEYS]

    async def exchange(self, code: str, verifier: str, redirect_uri: str) -> Tokens:
        """Exchanges a code. Raises `Denied` where the provider refuses it, `Upstream`, `TimedOut`."""
        metadata, secret = await self.metadata(), await asyncio.to_thread(self._secret)
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "code_verifier": verifier,
            "redirect_uri": redirect_uri,
        }
        login = None
        if secret is not None and not metadata.posts_secret:
            login = OriginLogin(quote_plus(self.client_id), quote_plus(secret))
        else:
            form |= {"client_id": self.client_id, **({} if secret is None else {"client_secret": secret})}
        headers = {"Accept": "application/json", "Content-Type": _FORM}
        body = urlencode(form).encode()
        answer = await self._json(
            Request(metadata.token, _MAX_BYTES, "POST", headers, body=body, login=login), is_refusal=(400, 401, 403)
        )
        id_token, access_token = answer.get("id_token"), answer.get("access_token")
        if not isinstance(id_token, str):
            raise Upstream("the identity provider answered without an ID token")
        return Tokens(id_token, access_token if isinstance(access_token, str) else "")

    def _secret(self) -> str | None:
        """Raises `Upstream`, which has nothing of it."""
        if self._settings.client_secret_file is None:
            return self._settings.client_secret
        try:
            return secret_files.token_of(self._settings.client_secret_file)
        except ValidationError as why:
            raise Upstream(f"tracker.security.oidc.client-secret-file {why}") from None

    async def user_info(self, access_token: str, subject: str) -> Mapping[str, Any]:
        """Returns further claims; empty where the provider has none. Raises `Denied`, `Upstream`, `TimedOut`."""
        url = (await self.metadata()).user_info
        if url is None or not access_token:
            return {}
        headers = {"Accept": "application/json"}
        claims = await self._json(Request(url, _MAX_BYTES, headers=headers, token=access_token))
        if claims.get("sub") != subject:
            raise Denied("the identity provider answered about somebody else (userinfo)")
        return claims

    async def _json(self, request: Request, is_refusal: Sequence[int] = ()) -> Mapping[str, Any]:
        try:
            response = await self._client.fetch(request)
        except Invalid as problem:  # a refused address, or a document that is too large
            raise Upstream(problem.message) from None
        if response.status in is_refusal:
            raise Denied(f"the identity provider refused the login ({response.status}{_error_of(response.body)})")
        if not response.is_good:
            raise Upstream(f"the identity provider answered {response.status}")
        try:
            document = await self._parse_json(response.body)
        except (Invalid, Unprocessable):
            document = None
        if not isinstance(document, dict):
            raise Upstream("the identity provider answered with something else than a JSON object")
        return document


def _error_of(body: bytes) -> str:
    """The code of an OAuth error, in front of which a comma stands; empty where there is none, or beyond 64 KiB."""
    try:
        document = json_value(body) if len(body) <= SMALL_BODY_BYTES else None
    except Invalid:
        document = None
    return f", {shown_error(document.get('error'))}" if isinstance(document, dict) else ""


def shown_error(code: object) -> str:
    """An error code of OAuth as it may be shown: nothing but letters, digits and underscores."""
    is_code = isinstance(code, str) and code.isascii() and code.replace("_", "").isalnum() and len(code) <= 64
    return str(code) if is_code else "unknown error"


def _url(document: Mapping[str, Any], name: str) -> Url:
    """Raises `Upstream`."""
    text = document.get(name)
    if not isinstance(text, str):
        raise Upstream(f"the identity provider publishes no {name}")
    return _parsed(text, name)


def _parsed(text: str, name: str) -> Url:
    """Raises `Upstream`."""
    try:
        return urls.parse(text, f"the {name} of the identity provider")
    except Invalid as problem:
        raise Upstream(problem.message) from None
