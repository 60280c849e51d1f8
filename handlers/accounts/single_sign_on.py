"""The login by an OpenID provider, and the identities of accounts, which an ADMIN links."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attrs import evolve

from handlers.accounts.account import UserForm, end_session, local_path, redirect_to_list
from handlers.base import Base, HtmlPage, shown_again
from handlers.http.credentials import session_cookie
from handlers.http.origin import is_embedded
from handlers.http.permissions import ADMINISTER, PUBLIC
from handlers.operations import JsonBody, Operation, operation_routes
from handlers.outbound import fields
from handlers.routing import Route
from models.accounts import accounts, identities
from models.accounts.accounts import User
from models.accounts.identities import MAX_SUBJECT_LENGTH, Identity
from models.accounts.login_attempts import ATTEMPT_SECONDS, Callback, is_random_text, random_text
from models.errors import Conflict, Denied, NotFound
from models.inputs import ID, NAME, path
from models.json_format import Instant, http_message

if TYPE_CHECKING:
    from supervisor.accounts.oidc.sign_on import SignOn

_OFF = "single sign-on is not configured (tracker.security.oidc)"


class SignOnPage(HtmlPage):
    permission = PUBLIC

    @property
    def sign_on(self) -> SignOn:
        """Raises `NotFound`."""
        if self.services.sign_on is None:
            raise NotFound(_OFF)
        return self.services.sign_on

    @property
    def browser_cookie(self) -> str:
        return f"{session_cookie(self.services)}_oidc"

    def leave_for(self, url: str) -> None:
        self.set_header("Cache-Control", "no-store")
        self.set_header("Referrer-Policy", "no-referrer")
        self.redirect(url, status=303)


class SignOnBegin(SignOnPage):
    """Sends the browser to the provider."""

    async def get(self) -> None:
        sign_on = self.sign_on
        if is_embedded(self.request, self.config):
            raise Denied("a login cannot be begun within a page of another site")
        presented = self.get_cookie(self.browser_cookie)
        browser = presented if presented and is_random_text(presented) else random_text()
        url = await sign_on.begin(self.caller.account_or_address, browser, local_path(self.query_value("next")))
        self.set_cookie(self.browser_cookie, browser, max_age=ATTEMPT_SECONDS)
        self.leave_for(url)


class SignOnEnd(SignOnPage):
    """Takes the response of the provider, and opens a session."""

    async def get(self) -> None:
        sign_on = self.sign_on
        issuer = self.query_value("iss") if "iss" in self.request.query_arguments else None
        callback = Callback(self.query_value("state"), self.query_value("code"), issuer, self.query_value("error"))
        caller, browser = self.caller, self.get_cookie(self.browser_cookie) or ""
        entered = await sign_on.finish(caller.address, caller.account_or_address, browser, callback)
        await end_session(self)
        self.set_cookie(session_cookie(self.services), entered.session, max_age=sign_on.lifetime)
        self.leave_for(entered.target)


# Identities


@http_message
class IdentityInfo:
    """An identity at the provider that belongs to an account."""

    id: int
    issuer: str
    subject: str
    created_at: Instant


@http_message
class NamedAccount:
    name: str = path("The user name of the account", kind=NAME)


@http_message
class NewIdentity(NamedAccount):
    subject: str = fields.text("The subject (`sub`) at the provider", required=True, maxLength=MAX_SUBJECT_LENGTH)


@http_message
class IdentityOfAccount(NamedAccount):
    identity_id: int = path(
        "The identity", kind=evolve(ID, read=lambda _, text: ID.read("the id of an identity", text))
    )


def _info(one: Identity) -> IdentityInfo:
    return IdentityInfo(one.id, one.issuer, one.subject, Instant(one.created_at))


def _account(name: str) -> User:
    """Raises `NotFound`."""
    user = accounts.user_named(name)
    if user is None:
        raise NotFound("no such account")
    return user


async def list_identities(handler: Base, request: NamedAccount) -> list[IdentityInfo]:
    found = await handler.services.accounts.in_store(lambda: identities.identities_of(_account(request.name).id))
    return [_info(one) for one in found]


async def link_identity(handler: Base, request: NewIdentity) -> IdentityInfo:
    issuer, now = _issuer(handler), handler.clock.now()
    link = handler.services.accounts.in_store
    return _info(await link(lambda: identities.link(_account(request.name).id, issuer, request.subject, now)))


async def unlink_identity(handler: Base, request: IdentityOfAccount) -> None:
    await _unlink(handler, lambda: _account(request.name), request.identity_id)


async def _unlink(handler: Base, find: Callable[[], User], identity_id: int) -> None:
    """Raises `NotFound`."""

    def unlink() -> User:
        user = find()
        identities.unlink(user.id, identity_id)
        return user

    user = await handler.services.accounts.delete_in_store(unlink)
    handler.services.accounts.end_memory_sessions(user)


def _issuer(handler: Base) -> str:
    """The configured provider. Raises `Conflict`."""
    issuer = handler.config.tracker.security.oidc.issuer
    if issuer is None:
        raise Conflict(_OFF)
    return issuer


class UserIdentities(UserForm):
    @shown_again
    async def post(self, user: str) -> None:
        """Links an identity."""
        issuer, subject, now = _issuer(self), self.form_value("subject"), self.clock.now()
        await self.services.accounts.in_store(lambda: identities.link(int(user), issuer, subject, now))
        redirect_to_list(self)


class UserIdentityUnlink(UserForm):
    @shown_again
    async def post(self, user: str, identity: str) -> None:
        await _unlink(self, lambda: accounts.user_by_id(int(user)), int(identity))
        redirect_to_list(self)


OPERATIONS = [
    Operation(
        None, "GET", "/users/{name}/identities", "List the identities of an account at the identity provider",
        NamedAccount, list_identities, list[IdentityInfo], name="identity_list", permission=ADMINISTER,
        error_statuses=[404],
    ),
    Operation(
        None, "POST", "/users/{name}/identities", "Link an account to an identity at the identity provider",
        NewIdentity, link_identity, IdentityInfo, 201, name="identity_link", permission=ADMINISTER,
        error_statuses=[404, 409], body=JsonBody(if_unknown="is not a field of an identity"),
    ),
    Operation(
        None, "DELETE", "/users/{name}/identities/{identityId}", "Unlink an identity and end the account's sessions",
        IdentityOfAccount, unlink_identity, None, 204, name="identity_unlink", permission=ADMINISTER,
        error_statuses=[404],
    ),
]  # fmt: skip
routes: list[Route] = operation_routes(OPERATIONS)

pages: list[Route] = [
    (r"/login/oidc", SignOnBegin),
    (r"/login/oidc/callback", SignOnEnd),
    (r"/users/([0-9]{1,18})/identities", UserIdentities),
    (r"/users/([0-9]{1,18})/identities/([0-9]{1,18})/unlink", UserIdentityUnlink),
]
