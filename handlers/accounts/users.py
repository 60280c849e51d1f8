"""Pages of all accounts, for an ADMIN."""

from __future__ import annotations

from urllib.parse import urlencode

from handlers.accounts.account import field
from handlers.base import Page, shown_again, write_long_page
from handlers.http.permissions import ADMINISTER
from handlers.routing import Route
from models.accounts import accounts
from models.accounts.accounts import Role
from models.errors import Invalid
from models.paging import whole

_ROWS_PER_PAGE = 50
_MAX_PAGE = 100_000


class UserForm(Page):
    permission = ADMINISTER
    back = "/users"

    async def again(self, *arguments: str) -> None:
        users = await self.services.accounts.in_store(accounts.list_users)
        pages = -(-len(users) // _ROWS_PER_PAGE)
        number = min(whole("page", self.query().get("page") or "0", 0, _MAX_PAGE), max(0, pages - 1))
        rows, paging = (
            users[number * _ROWS_PER_PAGE :][:_ROWS_PER_PAGE],
            {"total": len(users), "number": number, "pages": pages},
        )
        await write_long_page(self, "accounts/users.html", users=rows, own=self.caller.user, **paging)


class Users(UserForm):
    async def get(self) -> None:
        await self.again()

    @shown_again
    async def post(self) -> None:
        """Creates an account."""
        name, password, role = field(self, "username"), field(self, "password", strip=False), _role(self)
        await self.services.accounts.create(name, password, role)
        _redirect_to_list(self)


class UserRole(UserForm):
    @shown_again
    async def post(self, user: str) -> None:
        role = _role(self)

        def change() -> None:
            accounts.user_by_id(int(user))
            accounts.set_role(int(user), role)

        await self.services.accounts.in_store(change)
        _redirect_to_list(self)


class UserPassword(UserForm):
    @shown_again
    async def post(self, user: str) -> None:
        password = field(self, "password", strip=False)
        account = await self.services.accounts.in_store(lambda: accounts.user_by_id(int(user)))
        await self.services.accounts.set_password(account, password)
        _redirect_to_list(self)


class UserDelete(UserForm):
    @shown_again
    async def post(self, user: str) -> None:
        def delete() -> None:
            accounts.user_by_id(int(user))
            accounts.delete_user(int(user))

        await self.services.accounts.in_store(delete)
        _redirect_to_list(self)


def _redirect_to_list(handler: Page) -> None:
    """Redirects to the page of the list that had the form."""
    number = handler.get_query_argument("page", "")
    handler.redirect(f"{handler.prefix}/users" + (f"?{urlencode({'page': number})}" if number else ""), status=303)


def _role(handler: Page) -> Role:
    """Raises `Invalid`."""
    raw = field(handler, "role")
    if raw not in ("", "ADMIN", "USER"):
        raise Invalid("role is ADMIN or USER")
    return "ADMIN" if raw == "ADMIN" else "USER"


pages: list[Route] = [
    (r"/users", Users),
    (r"/users/([0-9]{1,18})/role", UserRole),
    (r"/users/([0-9]{1,18})/password", UserPassword),
    (r"/users/([0-9]{1,18})/delete", UserDelete),
]
