"""All accounts, for an ADMIN."""

from __future__ import annotations

from handlers.accounts import field
from handlers.base import Page, write_long_page
from handlers.gates import admins
from handlers.routing import Route
from models.errors import Invalid
from models.tracker import accounts
from models.tracker.accounts import Role


class Users(Page):
    gate = staticmethod(admins)
    back = "/users"

    async def get(self) -> None:
        users = await self.services.accounts.in_store(accounts.list_users)
        await write_long_page(self, "users.html", users=users, own=self.caller.user)

    async def post(self) -> None:
        """Makes an account."""
        name, password, role = field(self, "username"), field(self, "password", strip=False), _role(self)
        await self.services.accounts.create(name, password, role)
        self.redirect(f"{self.prefix}/users", status=303)


class UserRole(Page):
    gate = staticmethod(admins)
    back = "/users"

    async def post(self, user: str) -> None:
        role = _role(self)

        def change() -> None:
            accounts.user_by_id(int(user))
            accounts.set_role(int(user), role)

        await self.services.accounts.in_store(change)
        self.redirect(f"{self.prefix}/users", status=303)


class UserPassword(Page):
    gate = staticmethod(admins)
    back = "/users"

    async def post(self, user: str) -> None:
        password = field(self, "password", strip=False)
        known = await self.services.accounts.in_store(lambda: accounts.user_by_id(int(user)))
        await self.services.accounts.set_password(known, password)
        self.redirect(f"{self.prefix}/users", status=303)


class UserDelete(Page):
    gate = staticmethod(admins)
    back = "/users"

    async def post(self, user: str) -> None:
        def delete() -> None:
            accounts.user_by_id(int(user))
            accounts.delete_user(int(user))

        await self.services.accounts.in_store(delete)
        self.redirect(f"{self.prefix}/users", status=303)


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
