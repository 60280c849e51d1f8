"""Accounts for tests: created in the data directory of a server, which may be running, and their credentials."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path
from urllib.parse import urlencode

import records
from conftest import Answer, Server

from models.accounts import accounts
from models.accounts.accounts import Role, Scope, User
from supervisor.accounts import passwords

FORM = "application/x-www-form-urlencoded"
PASSWORD = "correct horse battery"
LIFETIME = 3600 * 1_000_000
RAW_TOKEN = re.compile(r"plt_[A-Za-z0-9_-]{43}")
_XSRF = re.compile(r'name="_xsrf" value="([^"]+)"')


def now() -> int:
    return time.time_ns() // 1000


def open_accounts(data: Path) -> contextlib.AbstractContextManager[None]:
    """Opens the accounts of a data directory."""
    return records.store_at(data / "tracker.db")


def ensure_user(data: Path, name: str, role: Role = "USER", password: str = PASSWORD) -> User:
    """Returns the account of this name; creates it, with a fast password hash, if it is missing."""
    with open_accounts(data):
        known = accounts.user_named(name)
        return known or accounts.create_user(name, passwords.hash_password(password, is_random=True), role, now())


def create_token(
    data: Path, name: str, scope: Scope = "FULL", role: Role = "USER", expires_at: int | None = None
) -> str:
    user = ensure_user(data, name, role)
    with open_accounts(data):
        return accounts.create_token(user.id, "ci", scope, expires_at, now())


def create_session(data: Path, name: str, role: Role = "USER", lifetime: int = LIFETIME) -> str:
    """Creates a session and returns its id."""
    ensure_user(data, name, role)
    with open_accounts(data):
        known = accounts.password_of(name)
        assert known is not None
        raw = accounts.log_in(known, lifetime, now())
    assert raw is not None
    return raw


def cookie(server: Server, session: str) -> dict[str, str]:
    return {"Cookie": f"{server.cookie}={session}"}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def post_form(server: Server, path: str, headers: dict[str, str] | None = None, /, **fields: str) -> Answer:
    """Posts a form."""
    return server.ask("POST", path, urlencode(fields).encode(), {"Content-Type": FORM, **(headers or {})})


def log_in(server: Server, name: str = "admin", password: str = PASSWORD) -> str:
    """Logs in with the form; returns the id of the session."""
    answer = post_form(server, "/login", username=name, password=password)
    assert answer.status == 303, answer
    return cookies_of(answer)[server.cookie].partition(";")[0]


def cookies_of(answer: Answer) -> dict[str, str]:
    """The cookies that a response sets: name -> value with its attributes."""
    return dict(line.split("=", 1) for line in answer.headers.get_all("Set-Cookie") or [])


class FormClient:
    """Keeps cookies, and posts forms as a browser does."""

    def __init__(self, server: Server, session: str | None = None) -> None:
        self.server = server
        self.jar = {} if session is None else {server.cookie: session}

    def headers(self) -> dict[str, str]:
        origin = f"http://127.0.0.1:{self.server.port}"
        pairs = "; ".join(f"{name}={value}" for name, value in self.jar.items())
        return {"Sec-Fetch-Site": "same-origin", "Origin": origin, **({"Cookie": pairs} if pairs else {})}

    def _kept(self, answer: Answer) -> Answer:
        for name, value in cookies_of(answer).items():
            value = value.partition(";")[0].strip('"')
            if value:
                self.jar[name] = value
            else:
                self.jar.pop(name, None)
        return answer

    def get(self, path: str) -> Answer:
        return self._kept(self.server.ask("GET", path, headers=self.headers()))

    def xsrf(self, path: str) -> str:
        """The token in the first form of a page."""
        found = _XSRF.search(self.get(path).text)
        assert found, path
        return found[1]

    def send(self, path: str, on: str, **fields: str) -> Answer:
        """Posts the form of the page `on`."""
        fields = {"_xsrf": self.xsrf(on), **fields}
        return self._kept(post_form(self.server, path, self.headers(), **fields))
