"""Who somebody is: logins, sessions and tokens, as the handlers ask for them."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import peewee

from models.accounts import accounts
from models.accounts.accounts import Credential, PresentedCredential, User
from models.accounts.tables import database as reports
from models.config.settings import TrackerSecurity
from models.errors import Invalid, Problem, Unavailable
from supervisor.accounts import passwords
from supervisor.accounts.throttle import Throttle
from supervisor.clock import Clock

log = logging.getLogger("accounts")

Result = TypeVar("Result")

PASSWORD_FILE = "admin-password"  # noqa: S105 (the name of a file)

_SECOND = 1_000_000
_USE_EVERY = 60 * _SECOND
_TAKES = 20.0


class Accounts:
    """What the server knows of accounts. Reads are made on the loop where that is at once, writes in the worker."""

    def __init__(self, settings: TrackerSecurity, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._passwords = passwords.Passwords()
        limits = settings.login_failures
        self._throttle = Throttle(limits.per_minute, limits.per_name_per_hour, clock.since_boot)
        self.failed_logins = 0
        self._uses: dict[int, int] = {}
        self._writing: asyncio.Task[None] | None = None

    @property
    def lifetime(self) -> int:
        """Of a session, in seconds."""
        return int(self._settings.session_lifetime) or 1

    async def in_store(self, work: Callable[[], Result]) -> Result:
        """Runs what writes, or reads much, in the worker. Raises `Unavailable`, `TimedOut`."""
        try:
            return await asyncio.to_thread(reports.run_with_timeout, work, _TAKES)
        except peewee.OperationalError as error:
            raise Unavailable(f"the store of accounts does not answer: {error}") from None

    async def _read_fast(self, query: Callable[[], Result]) -> Result:
        """A read of one row. Raises `Unavailable`, `TimedOut`."""
        return _read(query) if reports.is_local else await self.in_store(query)

    # Credentials

    def find_credential(self, presented: PresentedCredential) -> Credential | None:
        """Returns the stored credential, for a local store (`reports.is_local`) only. Raises `Unavailable`."""
        return self._noted(_read(lambda: self._stored(presented)))

    async def find_credential_remotely(self, presented: PresentedCredential) -> Credential | None:
        """As `find_credential`, for any store. Raises `Unavailable`, `TimedOut`."""
        return self._noted(await self._read_fast(lambda: self._stored(presented)))

    def _stored(self, presented: PresentedCredential) -> Credential | None:
        by = accounts.by_token if presented.kind == "token" else accounts.by_session
        return by(presented.raw, self._clock.now())

    def _noted(self, known: Credential | None) -> Credential | None:
        if known is not None and known.kind == "token":
            self._note_use(known)
        return known

    def _note_use(self, token: Credential) -> None:
        """At most once a minute for each token; no request waits for it."""
        now = self._clock.now()
        if token.id in self._uses or (token.used_at is not None and 0 <= now - token.used_at < _USE_EVERY):
            return
        self._uses[token.id] = now
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_uses(1.0), name="token uses")

    async def _write_uses(self, after: float) -> None:
        await asyncio.sleep(after)
        uses = list(self._uses.items())
        try:
            await self.in_store(lambda: accounts.write_uses(uses))
        except (Problem, peewee.PeeweeException) as error:
            log.warning("the last use of %d tokens could not be written: %s", len(uses), error)
        for id, at in uses:
            if self._uses.get(id) == at:
                del self._uses[id]
        self._writing = None

    async def prune(self) -> None:
        """Removes the sessions that have ended. Raises `Unavailable`, `TimedOut`."""
        await self.in_store(lambda: accounts.prune_sessions(self._clock.settled()))

    async def close(self) -> None:
        """Writes what is to be written."""
        if self._writing is not None:
            self._writing.cancel()
        if self._uses:
            await self._write_uses(0)

    # Logins and passwords

    async def log_in(self, address: str, username: str, password: str) -> str | None:
        """A new session's id; None where the name or the password is wrong.

        Raises `Throttled`, `Unavailable`.
        """
        succeeded = self._throttle.begin(address, username)
        known = await self._read_fast(lambda: accounts.password_of(username))
        possible = len(password) <= accounts.LONGEST_PASSWORD
        if not await self._passwords.fits(password if possible else "", known.hash if known else None) or not known:
            self.failed_logins += 1
            log.info("a login failed, from %s%s", address, f": {known.user.username}" if known else "")
            return None
        new = None if passwords.is_current(known.hash) else await self._passwords.hashed(password)
        length = int(self._settings.session_lifetime * _SECOND)
        raw = await self.in_store(lambda: accounts.log_in(known, length, self._clock.now(), new))
        if raw is None:
            return None
        succeeded()
        log.info("%s logged in, from %s", known.user.username, address)
        return raw

    async def change_password(self, credential: Credential, address: str, current: str, new: str) -> None:
        """Somebody's own; ends the other sessions. Raises `Invalid`, `Throttled`, `Unavailable`."""
        accounts.check_password(new)
        user = credential.user
        succeeded = self._throttle.begin(address, user.username)
        known = await self._read_fast(lambda: accounts.password_of(user.username))
        if not await self._passwords.fits(current[: accounts.LONGEST_PASSWORD + 1], known.hash if known else None):
            self.failed_logins += 1
            raise Invalid("the current password is not right")
        succeeded()
        kept = await self._passwords.hashed(new)
        session = credential.id if credential.kind == "session" else None
        await self.in_store(lambda: accounts.set_password(user.id, kept, session))
        log.info("%s changed the password", user.username)

    async def set_password(self, user: User, new: str) -> None:
        """By an ADMIN; ends the user's sessions. Raises `Invalid`, `Unavailable`."""
        accounts.check_password(new)
        kept = await self._passwords.hashed(new)
        await self.in_store(lambda: accounts.set_password(user.id, kept))
        log.info("the password of %s was set", user.username)

    async def create(self, username: str, password: str, role: accounts.Role) -> User:
        """Raises `Invalid`, `Conflict`, `Unavailable`."""
        accounts.check_username(username)
        accounts.check_password(password)
        kept = await self._passwords.hashed(password)
        made = await self.in_store(lambda: accounts.create_user(username, kept, role, self._clock.now()))
        log.info("there is a user %s (%s)", made.username, made.role)
        return made

    # The first start

    def make_admin(self, data_dir: Path) -> None:
        """Makes the first ADMIN, if there is none or the configuration names one that there is not.

        Raises `Invalid` where the configured name or password cannot be one, `OSError` and `peewee.PeeweeException`.
        """
        name, password = self._settings.admin_username, self._settings.admin_password
        if accounts.user_named(name) is not None or (password is None and accounts.has_admin()):
            return
        try:
            accounts.check_username(name)
        except Invalid as problem:
            raise Invalid(f"tracker.security.admin-username: {problem.message}") from None
        if password is not None:
            try:
                accounts.check_password(password)
            except Invalid as problem:
                raise Invalid(f"tracker.security.admin-password: {problem.message}") from None
        with reports.atomic(of="accounts"):  # another node may start now
            if accounts.user_named(name) is not None or (password is None and accounts.has_admin()):
                return
            if password is None:
                self._make_with_random_password(name, data_dir / PASSWORD_FILE)
                return
            accounts.create_user(name, passwords.hashed(password), "ADMIN", self._clock.now(), "Administrator")
        log.info("there is a user %s (ADMIN), with the configured password", name)

    def _make_with_random_password(self, name: str, file: Path) -> None:
        password = secrets.token_urlsafe(16)
        file.unlink(missing_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(f"{password}\n")
            out.flush()
            os.fsync(out.fileno())
        kept = passwords.hashed(password, is_random=True)
        accounts.create_user(name, kept, "ADMIN", self._clock.now(), "Administrator")
        log.info("there is a user %s (ADMIN); its password is in %s", name, file)
        if sys.stderr.isatty():
            print(f"the password of {name}: {password}", file=sys.stderr)


def _read(query: Callable[[], Result]) -> Result:
    """A read of one row on the loop."""
    try:
        return query()
    except peewee.PeeweeException as error:
        log.error("the store of accounts cannot be read: %s", error)
        raise Unavailable("the store of accounts cannot be read") from None
