"""Logins by an OpenID provider: Authorization Code with PKCE, bound to the browser that began them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from models.accounts import accounts, group_roles, identities, login_attempts
from models.accounts.identities import MAX_SUBJECT_LENGTH
from models.accounts.login_attempts import ATTEMPT_SECONDS, Callback, LoginAttempt, is_random_text, random_text
from models.config.settings import Config
from models.errors import Denied, DiskFull, Invalid, Problem, Throttled, TimedOut
from models.json_format import ParseJson
from models.times import SECOND
from supervisor.accounts.logins import Accounts, FailureWindow, log_reported
from supervisor.accounts.oidc.id_tokens import verified_claims
from supervisor.accounts.oidc.memory_attempts import MemoryAttempts
from supervisor.accounts.oidc.provider import Provider, shown_error
from supervisor.clock import Clock
from supervisor.http.client import GuardedClient
from supervisor.http.outbound import outbound_rules

log = logging.getLogger("accounts")

CALLBACK = "/login/oidc/callback"
FAILURES_PER_MINUTE = 20
"""Of one address; more are refused before the provider is asked."""


@frozen
class Claims:
    subject: str
    name: str
    groups: tuple[str, ...]


@frozen
class Entered:
    """A finished login: the new session's id, and the local path it leads to."""

    session: str
    target: str


class SignOn:
    """Single sign-on by the provider of `tracker.security.oidc`."""

    def __init__(self, config: Config, accounts: Accounts, clock: Clock, parse_json: ParseJson) -> None:
        """`parse_json` parses the documents of the provider."""
        self.settings = config.tracker.security.oidc
        self.lifetime = int(self.settings.session) or 1
        self.public_url = config.server.public_url or ""
        self._accounts = accounts
        self._clock = clock
        outbound = config.server.outbound
        client = GuardedClient(outbound_rules(outbound, [self.settings.issuer or ""]))
        self._provider = Provider(self.settings, client, clock.since_boot, parse_json)
        self._deadline = 2 * outbound.timeout
        self._failures = FailureWindow(FAILURES_PER_MINUTE, 60.0)
        self._memory = MemoryAttempts()

    async def begin(self, caller: str, browser: str, target: str) -> str:
        """Returns the URL of the provider to which the browser goes.

        `browser` is the random value of its cookie, `caller` whom the login is counted for. On a full disk the begun
        login is kept in memory. Raises `Throttled`, `Upstream`, `TimedOut`, `Unavailable`.
        """
        metadata = await self._provider.metadata()
        state, now = random_text(), self._clock.now()
        expires_at = now + ATTEMPT_SECONDS * SECOND
        attempt = LoginAttempt(accounts.digest(state), accounts.digest(browser), target, caller, expires_at)
        try:
            await self._accounts.in_store(lambda: login_attempts.begin(attempt, now))
        except DiskFull:
            self._memory.begin(attempt, now)
        challenge = hashlib.sha256(_derived(browser, state, "verifier").encode()).digest()
        url = metadata.authorization.with_query(
            response_type="code",
            client_id=self._provider.client_id,
            redirect_uri=self.public_url + CALLBACK,
            scope=self.settings.scopes,
            state=state,
            nonce=_derived(browser, state, "nonce"),
            code_challenge=_base64(challenge),
            code_challenge_method="S256",
        )
        return str(url)

    async def finish(self, address: str, caller: str, browser: str, callback: Callback) -> Entered:
        """Opens a session for the person that the provider reports.

        Raises `Invalid` where this browser has begun no such login, `Denied`, `Conflict`, `Throttled`, `Upstream`,
        `TimedOut`, `Unavailable`.
        """
        key, now = caller.encode(), self._clock.since_boot()
        if wait := self._failures.wait(key, now):
            raise Throttled("too many logins failed; try again later", int(wait) + 1)
        self._failures.add(key, now)
        try:
            async with asyncio.timeout(self._deadline):
                entered = await self._entered(address, browser, callback)
        except TimeoutError:
            raise self._failed(address, TimedOut("the identity provider did not answer in time")) from None
        except Problem as problem:
            raise self._failed(address, problem) from None
        self._failures.take_back(key, now)
        return entered

    def _failed(self, address: str, problem: Problem) -> Problem:
        self._accounts.failed_logins += 1
        log.info("a login by the identity provider failed, from %s: %s", address, problem.message)
        return problem

    async def _entered(self, address: str, browser: str, callback: Callback) -> Entered:
        target = await self._take(browser, callback.state)
        await self._check_issuer(callback)
        if callback.error or not callback.code:
            raise Denied(f"the identity provider refused the login ({shown_error(callback.error)})")
        claims = await self._claims(browser, callback)
        session = await self._session(address, claims)
        return Entered(session, target)

    async def _take(self, browser: str, state: str) -> str:
        """Ends the login that was begun; returns its target. Raises `Invalid`."""
        target = None
        if is_random_text(browser) and is_random_text(state):
            begun = accounts.digest(state), accounts.digest(browser), self._clock.now()
            target = self._memory.take(*begun)
            if target is None:
                target = await self._accounts.delete_in_store(lambda: login_attempts.take(*begun))
        if target is None:
            raise Invalid(
                "this login was not begun in this browser, was used before, or is older than 10 minutes: log in again"
            )
        return target

    async def _check_issuer(self, callback: Callback) -> None:
        """A response must be of the configured provider (RFC 9207). Raises `Denied`."""
        is_missing = callback.issuer is None and (await self._provider.metadata()).sends_issuer
        if is_missing or callback.issuer not in (None, self._provider.issuer):
            raise Denied("the response is of another identity provider (iss)")

    async def _claims(self, browser: str, callback: Callback) -> Claims:
        """Raises `Denied`, `Upstream`, `TimedOut`."""
        provider, settings = self._provider, self.settings
        verifier = _derived(browser, callback.state, "verifier")
        tokens = await provider.exchange(callback.code, verifier, self.public_url + CALLBACK)
        nonce = _derived(browser, callback.state, "nonce")
        claims: Mapping[str, Any] = await verified_claims(
            tokens.id_token, provider.find_key, provider.issuer, provider.client_id, nonce
        )
        subject = claims["sub"]
        if not 1 <= len(subject) <= MAX_SUBJECT_LENGTH or not subject.isprintable():
            raise Denied("the ID token has no usable subject")
        wanted = [settings.username_claim]
        if settings.admin_groups or settings.user_groups:
            wanted.append(settings.groups_claim)
        if any(name not in claims for name in wanted):
            claims = {**await provider.user_info(tokens.access_token, subject), **claims}
        name = claims.get(settings.username_claim)
        return Claims(subject, name if isinstance(name, str) else "", _groups(claims.get(settings.groups_claim)))

    async def _session(self, address: str, claims: Claims) -> str:
        """Raises `Denied`, `Conflict`, `Unavailable`, `TimedOut`."""
        settings, issuer = self.settings, self._provider.issuer
        role = group_roles.role_of_groups(claims.groups, settings.admin_groups)
        if settings.user_groups and set(claims.groups).isdisjoint({*settings.user_groups, *settings.admin_groups}):
            await self._withdraw(claims)
            raise Denied("you are in none of the groups that may log in (tracker.security.oidc.user-groups)")
        creates, now = settings.auto_create, self._clock.now()
        try:
            known, is_new, has_changed = await self._accounts.in_store(
                lambda: identities.enter(issuer, claims.subject, claims.name, role, creates, now)
            )
        except Invalid as problem:
            raise Denied(f"{settings.username_claim} is not usable: {problem.message}") from None
        if is_new or has_changed:
            log_reported(known.user, is_new)
        session = await self._accounts.open_session(known, settings.session, address)
        if session is None:
            raise Denied("the account has changed: log in again")
        return session

    async def _withdraw(self, claims: Claims) -> None:
        """Ends the sessions of an account whose person may not log in any more, and its role."""
        role = group_roles.role_of_groups((), self.settings.admin_groups)
        issuer, subject = self._provider.issuer, claims.subject
        user = await self._accounts.delete_in_store(lambda: identities.withdraw(issuer, subject, role))
        if user is not None:
            self._accounts.end_memory_sessions(user)


def _derived(browser: str, state: str, use: str) -> str:
    """A secret of one login, which only this browser's cookie and state make: nothing of it is stored."""
    return _base64(hmac.digest(browser.encode(), f"{use} {state}".encode(), "sha256"))


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _groups(claim: object) -> tuple[str, ...]:
    """The groups of a claim: a list of names, or one name."""
    names: Sequence[object] = claim if isinstance(claim, list) else [claim]
    return tuple(name for name in names if isinstance(name, str))
