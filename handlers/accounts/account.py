"""The caller's own account: login, logout, profile, tokens, and `/me` for programs; all accounts for an ADMIN."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from tornado.web import RequestHandler

from handlers.base import Base, HtmlPage, shown_again, write_long_page, write_page
from handlers.http.credentials import session_cookie
from handlers.http.permissions import ADMINISTER, PUBLIC, SIGNED_IN
from handlers.http.serializers import Account
from handlers.operations import NoInputs, Operation, operation_routes
from handlers.routing import Route
from handlers.web.table import TableQuery, page_of, read_table
from models.accounts import accounts, identities, mail_settings
from models.accounts.accounts import Credential, Role, Scope, User
from models.accounts.mail_settings import KINDS
from models.errors import Invalid
from models.json_format import rfc3339
from models.times import DAY

_LOCAL = re.compile(r"/(?![/\\])[!-\[\]-~]{0,2000}")  # printable ASCII without backslashes
_LOGIN = re.compile(r"(?:/(?:supervision|charts|tracker))?/log(?:in(?:/oidc(?:/callback)?)?|out)(?:[?#]|$)")
"""The login itself, to which every page has a link, and the form that ends a session."""
_WRONG = "The user name or the password is not right."
_ROLES = ("ADMIN", "USER")
_SORTS: dict[str, Callable[[User], Any]] = {
    "name": lambda user: user.username.lower(),
    "email": lambda user: (user.email or "").lower(),
    "role": lambda user: user.role,
}


def me(handler: Base, _: NoInputs) -> Account:
    user = _user(handler)
    return Account(user.username, user.display_name, user.email, user.role)


class LoginPage(HtmlPage):
    permission = PUBLIC

    def check_xsrf_cookie(self) -> None:
        """Checks browsers only, so that `curl -d` can log in: no session exists yet that another site could use."""
        if self.is_from_browser():
            RequestHandler.check_xsrf_cookie(self)

    def get(self) -> None:
        self._form(local_path(self.query_value("next")))

    async def post(self) -> None:
        name, target = self.form_value("username"), local_path(self.form_value("next") or self.query_value("next"))
        raw = await self.services.accounts.log_in(
            self.caller.address, name, self.form_value("password", is_trimmed=False)
        )
        if raw is None:
            self.set_status(401)
            self.set_header("WWW-Authenticate", "Bearer")
            self.refused, self.why = ": the name or the password is wrong", _WRONG
            self._form(target)
            return
        await end_session(self)
        lifetime = self.services.accounts.lifetime
        self.set_cookie(session_cookie(self.services), raw, max_age=lifetime)
        self.redirect(target, status=303)

    def _form(self, target: str) -> None:
        sign_on = self.services.sign_on
        address = f"{sign_on.public_url}/login/oidc?{urlencode({'next': target})}" if sign_on else None
        write_page(self, "accounts/login.html", next=target, sign_on=address)


class Logout(HtmlPage):
    permission = PUBLIC

    async def post(self) -> None:
        await end_session(self)
        self.clear_cookie(session_cookie(self.services))
        self.redirect(f"{self.prefix}/login", status=303)


class ProfileForm(HtmlPage):
    permission = SIGNED_IN
    back = "/profile"

    async def again(self, *arguments: str) -> None:
        await show_profile(self)


class Profile(ProfileForm):
    """The account, its sessions and its tokens."""

    async def get(self) -> None:
        await show_profile(self)

    @shown_again
    async def post(self) -> None:
        user, name, mail = _user(self), self.form_value("displayName"), self.form_value("email")
        await self.services.accounts.in_store(lambda: accounts.set_profile(user.id, name, mail))
        self.redirect(f"{self.prefix}/profile", status=303)


class ProfileMails(ProfileForm):
    """Chooses the mails that the account gets."""

    @shown_again
    async def post(self) -> None:
        user, wanted = _user(self), {kind: self.form_value(kind) == "true" for kind in KINDS}
        await self.services.accounts.in_store(lambda: mail_settings.choose(user.id, wanted))
        await self.services.outbound.forget_mails(user.id, [kind for kind in KINDS if not wanted[kind]])
        self.redirect(f"{self.prefix}/profile", status=303)


class ProfilePassword(ProfileForm):
    @shown_again
    async def post(self) -> None:
        current = self.form_value("currentPassword", is_trimmed=False)
        new = self.form_value("newPassword", is_trimmed=False)
        await self.services.accounts.change_password(_credential(self), self.caller.address, current, new)
        self.redirect(f"{self.prefix}/profile", status=303)


class ProfileTokens(ProfileForm):
    """Creates a token and shows it once."""

    @shown_again
    async def post(self) -> None:
        user, name, now = _user(self), self.form_value("name"), self.clock.now()
        scope, days = _scope(self.form_value("scope")), _days(self.form_value("expiresDays"))
        expires = None if days is None else now + days * DAY
        make = self.services.accounts.in_store
        raw = await make(lambda: accounts.create_token(user.id, name, scope, expires, now))
        await show_profile(self, raw)


class ProfileTokenRevoke(ProfileForm):
    @shown_again
    async def post(self, token: str) -> None:
        user, now = _user(self), self.clock.now()
        await self.services.accounts.delete_in_store(lambda: accounts.revoke_token(user.id, int(token), now))
        self.redirect(f"{self.prefix}/profile", status=303)


class ProfileSessionEnd(ProfileForm):
    @shown_again
    async def post(self, session: str) -> None:
        user = _user(self)
        await self.services.accounts.end_session_of(user, int(session))
        self.redirect(f"{self.prefix}/profile", status=303)


async def show_profile(handler: HtmlPage, token: str | None = None) -> None:
    """Shows the profile, with a token that was just created."""
    credential, now = _credential(handler), handler.clock.now()
    user = credential.user
    sessions = await handler.services.accounts.sessions_of(user)
    tokens, mails = await handler.services.accounts.in_store(
        lambda: (accounts.tokens_of(user.id), mail_settings.of_account(user.id))
    )
    write_page(
        handler,
        "accounts/profile.html",
        user=user,
        sessions=sessions,
        own=credential.id if credential.kind == "session" else None,
        tokens=tokens,
        mails=mails if handler.services.config.notify.has_mail else None,
        made=token,
        now=now,
        instant=rfc3339,
    )


async def end_session(handler: HtmlPage) -> None:
    """Ends the session of the request, if it has one."""
    credential = handler.caller.credential
    if credential is not None:
        await handler.services.accounts.end_session(credential)


def local_path(path: str) -> str:
    """Returns the target of a login if it is the local path of a page, else the start page."""
    return path if _LOCAL.fullmatch(path) and not _LOGIN.match(path) else "/"


def _credential(handler: Base) -> Credential:
    credential = handler.caller.credential
    assert credential is not None  # the permission is `SIGNED_IN`
    return credential


def _user(handler: Base) -> User:
    return _credential(handler).user


def _scope(raw: str) -> Scope:
    """Raises `Invalid`."""
    if raw not in ("", "FULL", "INGEST"):
        raise Invalid("scope is FULL or INGEST")
    return "INGEST" if raw == "INGEST" else "FULL"


def _days(raw: str) -> int | None:
    """Raises `Invalid`."""
    if not raw:
        return None
    if not re.fullmatch(r"[0-9]{1,5}", raw) or not 1 <= int(raw) <= 36_500:
        raise Invalid("expiresDays is a whole number of days from 1 to 36500, or empty")
    return int(raw)


class UserForm(HtmlPage):
    permission = ADMINISTER
    back = "/users"

    def table(self) -> TableQuery:
        """Returns the query of the list."""
        path = f"{self.prefix}/users"
        return read_table(path, self.query(), _SORTS, _ROLES, status_name="role", status_label="Role")

    @property
    def address(self) -> str:
        """The page of the list that had the form."""
        table = self.table()
        return table.url(page=table.page)

    async def again(self, *arguments: str) -> None:
        users, linked = await self.services.accounts.in_store(
            lambda: (accounts.list_users(), identities.all_identities())
        )
        wanted = self.table()
        matches = [user for user in users if _matches(user, wanted)]
        table, shown = page_of(wanted, matches, _SORTS)
        roles = [(role, role, sum(user.role == role for user in users)) for role in _ROLES]
        own = self.caller.user
        query = table.url(page=table.page).removeprefix(table.path)
        values = {"users": shown, "own": own, "linked": linked, "has_sign_on": self.services.sign_on is not None}
        await write_long_page(self, "accounts/users.html", table=table, table_statuses=roles, query=query, **values)


def _matches(user: User, table: TableQuery) -> bool:
    text = f"{user.username} {user.display_name or ''} {user.email or ''}".lower()
    return table.q.lower() in text and table.status in ("", user.role)


class Users(UserForm):
    async def get(self) -> None:
        await self.again()

    @shown_again
    async def post(self) -> None:
        """Creates an account."""
        name, password, role = self.form_value("username"), self.form_value("password", is_trimmed=False), _role(self)
        await self.services.accounts.create(name, password, role)
        redirect_to_list(self)


class UserRole(UserForm):
    @shown_again
    async def post(self, user: str) -> None:
        role = _role(self)

        def change() -> None:
            accounts.user_by_id(int(user))
            accounts.set_role(int(user), role)

        await self.services.accounts.in_store(change)
        redirect_to_list(self)


class UserPassword(UserForm):
    @shown_again
    async def post(self, user: str) -> None:
        password = self.form_value("password", is_trimmed=False)
        account = await self.services.accounts.in_store(lambda: accounts.user_by_id(int(user)))
        await self.services.accounts.set_password(account, password)
        redirect_to_list(self)


class UserDelete(UserForm):
    @shown_again
    async def post(self, user: str) -> None:
        def delete() -> None:
            accounts.user_by_id(int(user))
            accounts.delete_user(int(user))

        await self.services.accounts.delete_in_store(delete)
        redirect_to_list(self)


def redirect_to_list(handler: UserForm) -> None:
    handler.redirect(handler.address, status=303)


def _role(handler: HtmlPage) -> Role:
    """Raises `Invalid`."""
    raw = handler.form_value("role")
    if raw not in ("", "ADMIN", "USER"):
        raise Invalid("role is ADMIN or USER")
    return "ADMIN" if raw == "ADMIN" else "USER"


OPERATIONS = [
    Operation(
        None, "GET", "/me", "Get the caller's account", NoInputs, me, Account, name="account_info", permission=SIGNED_IN
    )
]
routes: list[Route] = operation_routes(OPERATIONS)

pages: list[Route] = [
    (r"/login", LoginPage),
    (r"/logout", Logout),
    (r"/profile", Profile),
    (r"/profile/mails", ProfileMails),
    (r"/profile/password", ProfilePassword),
    (r"/profile/tokens", ProfileTokens),
    (r"/profile/tokens/([0-9]{1,18})/revoke", ProfileTokenRevoke),
    (r"/profile/sessions/(-?[0-9]{1,18})/end", ProfileSessionEnd),
    (r"/users", Users),
    (r"/users/([0-9]{1,18})/role", UserRole),
    (r"/users/([0-9]{1,18})/password", UserPassword),
    (r"/users/([0-9]{1,18})/delete", UserDelete),
]
