"""Pages of all accounts, for an ADMIN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from handlers.accounts.account import field
from handlers.base import Page, shown_again, write_long_page
from handlers.http.permissions import ADMINISTER
from handlers.routing import Route
from handlers.web.table import TableQuery, page_of, read_table
from models.accounts import accounts
from models.accounts.accounts import Role, User
from models.errors import Invalid

_ROLES = ("ADMIN", "USER")
_SORTS: dict[str, Callable[[User], Any]] = {
    "name": lambda user: user.username.lower(),
    "email": lambda user: (user.email or "").lower(),
    "role": lambda user: user.role,
}


class UserForm(Page):
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
        users = await self.services.accounts.in_store(accounts.list_users)
        wanted = self.table()
        matches = [user for user in users if _matches(user, wanted)]
        table, shown = page_of(wanted, matches, _SORTS)
        roles = [(role, role, sum(user.role == role for user in users)) for role in _ROLES]
        own = self.caller.user
        query = table.url(page=table.page).removeprefix(table.path)
        await write_long_page(
            self, "accounts/users.html", users=shown, own=own, table=table, table_statuses=roles, query=query
        )


def _matches(user: User, table: TableQuery) -> bool:
    text = f"{user.username} {user.display_name or ''} {user.email or ''}".lower()
    return table.q.lower() in text and table.status in ("", user.role)


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


def _redirect_to_list(handler: UserForm) -> None:
    handler.redirect(handler.address, status=303)


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
