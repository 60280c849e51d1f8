"""Logins with their rate limits, sessions, tokens and accounts: the rules of `models/accounts`, off the loop."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import secrets
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import peewee

from models.accounts import accounts, group_roles
from models.accounts.accounts import Credential, Password, PresentedCredential, SessionInfo, User
from models.accounts.tables import database as reports
from models.config.settings import TrackerSecurity
from models.errors import DiskFull, Invalid, Problem, Throttled, Unavailable
from models.storage.sqlite import is_disk_full
from models.times import MINUTE, SECOND
from supervisor.accounts import passwords
from supervisor.accounts.memory_sessions import MemorySessions
from supervisor.clock import Clock

log = logging.getLogger("accounts")

Result = TypeVar("Result")

PASSWORD_FILE = "admin-password"  # noqa: S105 (the name of a file)

_TOKEN_USE_INTERVAL = MINUTE
_STORE_SECONDS = 20.0
_STORE_THREADS = 4
MAX_KEYS = 20_000
_MINUTE_SECONDS, _HOUR_SECONDS = 60.0, 3600.0


class FailureWindow:
    """At most `limit` failures of one key within `seconds`, in bounded memory."""

    def __init__(self, limit: int, seconds: float) -> None:
        self.limit = limit
        self._seconds = seconds
        self._failures: dict[bytes, deque[float]] = {}

    def __len__(self) -> int:
        return len(self._failures)

    def wait(self, key: bytes, now: float) -> float:
        """Returns the seconds until another try is allowed; 0 where it is allowed now."""
        times = self._failures.get(key)
        while times and times[0] <= now - self._seconds:
            times.popleft()
        if times is not None and not times:
            del self._failures[key]
        return times[0] + self._seconds - now if times and len(times) >= self.limit else 0.0

    def add(self, key: bytes, now: float) -> None:
        if key not in self._failures and len(self._failures) >= MAX_KEYS:
            self._make_room(now)
        self._failures.setdefault(key, deque(maxlen=self.limit)).append(now)

    def take_back(self, key: bytes, at: float) -> None:
        times = self._failures.get(key)
        if times and at in times:
            times.remove(at)

    def _make_room(self, now: float) -> None:
        """Forgets half: expired keys, then those with the fewest failures, because names can be made up."""
        kept = [(key, times) for key, times in self._failures.items() if times and times[-1] > now - self._seconds]
        kept.sort(key=lambda item: (len(item[1]), item[1][-1]))
        self._failures = dict(kept[-MAX_KEYS // 2 :])


class Throttle:
    """Limits failed logins by address and user name, and by user name alone."""

    def __init__(self, per_minute: int, per_name_per_hour: int, clock: Callable[[], float]) -> None:
        self._by_address = FailureWindow(per_minute, _MINUTE_SECONDS)
        self._by_name = FailureWindow(per_name_per_hour, _HOUR_SECONDS)
        self._clock = clock

    def begin(self, address: str, name: str) -> Callable[[], None]:
        """Counts a try as failed at once, because others may begin before it ends. Raises `Throttled`.

        Returns a function to call when the try has succeeded.
        """
        now, address_key, name_key = self._clock(), _key(address, name), _key(name)
        wait = max(self._by_address.wait(address_key, now), self._by_name.wait(name_key, now))
        if wait:
            raise Throttled("too many logins failed; try again later", int(wait) + 1)
        self._by_address.add(address_key, now)
        self._by_name.add(name_key, now)

        def succeeded() -> None:
            self._by_address.take_back(address_key, now)
            self._by_name.take_back(name_key, now)

        return succeeded


def _key(*words: str) -> bytes:
    """Returns a key of one size, however long the user name is."""
    return hashlib.blake2b("\0".join(words).encode("utf-8", "replace"), digest_size=16).digest()


class Accounts:
    """Logins, sessions, tokens and accounts. Their work has threads of its own: no other request delays a login."""

    def __init__(self, settings: TrackerSecurity, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._passwords = passwords.Passwords()
        limits = settings.login_failures
        self._throttle = Throttle(limits.per_minute, limits.per_name_per_hour, clock.since_boot)
        self.failed_logins = 0
        self._store_threads = ThreadPoolExecutor(_STORE_THREADS, "accounts")
        self._token_uses: dict[int, int] = {}
        self._writing: asyncio.Task[None] | None = None
        self._memory = MemorySessions()
        self.use_reserve: Callable[[Callable[[], Any]], Awaitable[Any]] | None = None
        """Runs work on the store with the room that is kept for deletions on a full disk."""

    @property
    def lifetime(self) -> int:
        """The seconds that a session lasts."""
        return int(self._settings.session_lifetime) or 1

    async def in_store(self, work: Callable[[], Result]) -> Result:
        """Runs work that writes, or reads many rows, in a thread. Raises `Unavailable`, `DiskFull`, `TimedOut`."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(
                self._store_threads, lambda: reports.run_with_timeout(work, _STORE_SECONDS)
            )
        except peewee.OperationalError as error:
            if is_disk_full(error):
                raise DiskFull("the store of accounts cannot be written: the disk is full") from None
            raise Unavailable(f"the store of accounts does not answer: {error}") from None

    async def delete_in_store(self, work: Callable[[], Result]) -> Result:
        """As `in_store`, for work that deletes or revokes: a full disk does not keep an account or a token alive."""
        try:
            return await self.in_store(work)
        except DiskFull:
            if self.use_reserve is None:
                raise
            result: Result = await self.use_reserve(work)
            return result

    async def _read_fast(self, query: Callable[[], Result]) -> Result:
        """Reads one row: on the loop where the store is a local file. Raises `Unavailable`, `TimedOut`."""
        return _read(query) if reports.is_local else await self.in_store(query)

    # Credentials

    def find_credential(self, presented: PresentedCredential) -> Credential | None:
        """Returns the stored credential, for a local store (`reports.is_local`) only. Raises `Unavailable`."""
        return self._record_use(_read(lambda: self._stored(presented)))

    async def find_credential_remotely(self, presented: PresentedCredential) -> Credential | None:
        """As `find_credential`, for any store and for what a proxy reports. Raises `Unavailable`, `TimedOut`.

        For an account that a proxy reports also `Denied` where it does not exist and is not created, and `Invalid`.
        """
        if presented.kind == "proxy":
            return await self._reported(presented)
        return self._record_use(await self._read_fast(lambda: self._stored(presented)))

    async def _reported(self, presented: PresentedCredential) -> Credential:
        """The account that a trusted proxy reports, created or with another role where its groups want it so."""
        settings, name = self._settings.proxy_login, presented.raw
        role = group_roles.role_of_groups(presented.groups, settings.admin_groups)
        user = await self._read_fast(lambda: accounts.user_named(name))
        if user is None or role not in (None, user.role):
            creates, now = settings.auto_create, self._clock.now()
            ensure = group_roles.ensure_reported_user
            stored, is_new = await self.in_store(lambda: ensure(name, role, creates, now))
            log_reported(stored, is_new)
            return Credential(stored, "proxy", stored.id, "FULL")
        return Credential(user, "proxy", user.id, "FULL")

    async def are_valid(self, credentials: Sequence[Credential]) -> Sequence[bool]:
        """Returns for each credential whether it has not ended. Raises `Unavailable`, `TimedOut`."""
        now = self._clock.now()
        return await self._read_fast(lambda: [self._refreshed(one, now) is not None for one in credentials])

    def _refreshed(self, credential: Credential, now: int) -> Credential | None:
        is_stored = credential.kind != "session" or credential.id > 0
        return accounts.refresh(credential, now) if is_stored else self._memory.refresh(credential.id, now)

    def _stored(self, presented: PresentedCredential) -> Credential | None:
        now = self._clock.now()
        if presented.kind == "token":
            return accounts.by_token(presented.raw, now)
        return accounts.by_session(presented.raw, now) or self._memory.find(presented.raw, now)

    def _record_use(self, credential: Credential | None) -> Credential | None:
        """Stores when a token was used, at most once a minute for each; no request waits for that."""
        if credential is None or credential.kind != "token":
            return credential
        now, last = self._clock.now(), credential.used_at
        if credential.id in self._token_uses or (last is not None and 0 <= now - last < _TOKEN_USE_INTERVAL):
            return credential
        self._token_uses[credential.id] = now
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_uses(delay=1.0), name="token uses")
        return credential

    async def _write_uses(self, delay: float) -> None:
        await asyncio.sleep(delay)
        uses = list(self._token_uses.items())
        try:
            await self.in_store(lambda: accounts.write_uses(uses))
        except (Problem, peewee.PeeweeException) as error:
            log.warning("the last use of %d tokens could not be written: %s", len(uses), error)
        for id, at in uses:
            if self._token_uses.get(id) == at:
                del self._token_uses[id]
        self._writing = None

    async def prune(self) -> None:
        """Deletes the sessions that have ended. Raises `Unavailable`, `TimedOut`."""
        await self.in_store(lambda: accounts.prune_sessions(self._clock.settled()))

    async def close(self) -> None:
        """Stores the token uses that are not stored yet."""
        if self._writing is not None:
            self._writing.cancel()
        if self._token_uses:
            await self._write_uses(delay=0)
        self._passwords.close()
        self._store_threads.shutdown(wait=False, cancel_futures=True)

    # Logins and passwords

    async def log_in(self, address: str, username: str, password: str) -> str | None:
        """Returns a new session's id, or None where the name or the password is wrong.

        On a full disk the session is kept in memory, so that an ADMIN can delete something.

        Raises `Throttled`, `Unavailable`.
        """
        succeeded = self._throttle.begin(address, username)
        stored = await self._read_fast(lambda: accounts.password_of(username))
        candidate = password if len(password) <= accounts.MAX_PASSWORD_LENGTH else ""
        is_right = await self._passwords.verify_login(address, candidate, stored.hash if stored else None)
        if stored is None or not is_right:
            self.failed_logins += 1
            log.info("a login failed, from %s%s", address, f": {stored.user.username}" if stored else "")
            return None
        new_hash = None if passwords.is_current(stored.hash) else await self._passwords.hash(password)
        session = await self.open_session(stored, self._settings.session_lifetime, address, new_hash)
        if session is not None:
            succeeded()
        return session

    async def open_session(
        self, known: Password, seconds: float, address: str, new_hash: str | None = None
    ) -> str | None:
        """Returns a new session's id, or None where the password of the account has changed meanwhile.

        On a full disk the session is kept in memory. Raises `Unavailable`, `TimedOut`.
        """
        lifetime = int(seconds * SECOND)
        try:
            session = await self.in_store(lambda: accounts.log_in(known, lifetime, self._clock.now(), new_hash))
        except DiskFull:
            session = self._memory.add(known, lifetime, self._clock.now())
            log.warning("the session of %s is kept in memory only: the disk is full", known.user.username)
        if session is not None:
            log.info("%s logged in, from %s", known.user.username, address)
        return session

    async def end_session(self, credential: Credential) -> None:
        """Ends the session of a request. Raises `Unavailable`, `TimedOut`."""
        if credential.kind == "session":
            self._memory.drop(credential.id)
            if credential.id > 0:
                await self.delete_in_store(lambda: accounts.drop_session(credential.id))

    async def sessions_of(self, user: User) -> list[SessionInfo]:
        """The user's sessions that have not ended, newest first. Raises `Unavailable`, `TimedOut`."""
        now = self._clock.now()
        return await self.in_store(lambda: [*self._memory.of_account(user, now), *accounts.sessions_of(user.id, now)])

    def end_memory_sessions(self, user: User) -> None:
        """Ends those of the user's sessions that are not stored."""
        self._memory.end_all(user)

    async def end_session_of(self, user: User, id: int) -> None:
        """Ends one of the user's sessions. Raises `NotFound`, `Unavailable`, `TimedOut`."""
        if id < 0:
            self._memory.end(user, id)
        else:
            await self.delete_in_store(lambda: accounts.end_session(user.id, id))

    async def change_password(self, credential: Credential, address: str, current: str, new: str) -> None:
        """Changes the caller's password and ends the other sessions. Raises `Invalid`, `Throttled`, `Unavailable`."""
        accounts.check_password(new)
        user = credential.user
        succeeded = self._throttle.begin(address, user.username)
        stored = await self._read_fast(lambda: accounts.password_of(user.username))
        candidate = current[: accounts.MAX_PASSWORD_LENGTH + 1]
        if not await self._passwords.verify(candidate, stored.hash if stored else None):
            self.failed_logins += 1
            raise Invalid("the current password is not right")
        succeeded()
        new_hash = await self._passwords.hash(new)
        session = credential.id if credential.kind == "session" else None
        await self.in_store(lambda: accounts.set_password(user.id, new_hash, session))
        log.info("%s changed the password", user.username)

    async def set_password(self, user: User, new: str) -> None:
        """Sets another account's password and ends its sessions. Raises `Invalid`, `Unavailable`."""
        accounts.check_password(new)
        new_hash = await self._passwords.hash(new)
        await self.in_store(lambda: accounts.set_password(user.id, new_hash))
        log.info("the password of %s was set", user.username)

    async def create(self, username: str, password: str, role: accounts.Role) -> User:
        """Raises `Invalid`, `Conflict`, `Unavailable`."""
        accounts.check_username(username)
        accounts.check_password(password)
        password_hash = await self._passwords.hash(password)
        user = await self.in_store(lambda: accounts.create_user(username, password_hash, role, self._clock.now()))
        log.info("created the user %s (%s)", user.username, user.role)
        return user

    # The first start

    def make_admin(self, data_dir: Path) -> None:
        """Creates the first ADMIN where none exists, or the configured one where it does not exist.

        Raises `Invalid` for a configured name or password that is not allowed, `OSError`, `peewee.PeeweeException`.
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
        with reports.atomic(of="accounts"):  # another node may start at the same time
            if accounts.user_named(name) is not None or (password is None and accounts.has_admin()):
                return
            if password is None:
                self._create_with_random_password(name, data_dir / PASSWORD_FILE)
                return
            accounts.create_user(name, passwords.hash_password(password), "ADMIN", self._clock.now(), "Administrator")
        log.info("created the user %s (ADMIN), with the configured password", name)

    def _create_with_random_password(self, name: str, file: Path) -> None:
        password = secrets.token_urlsafe(16)
        file.unlink(missing_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(f"{password}\n")
            out.flush()
            os.fsync(out.fileno())
        password_hash = passwords.hash_password(password, is_random=True)
        accounts.create_user(name, password_hash, "ADMIN", self._clock.now(), "Administrator")
        log.info("created the user %s (ADMIN); its password is in %s", name, file)
        if sys.stderr.isatty():
            print(f"the password of {name}: {password}", file=sys.stderr)


def log_reported(user: User, is_new: bool) -> None:
    """Logs that an account was created, or got another role, as another server reported it."""
    if is_new:
        log.info("created the user %s (%s), as reported", user.username, user.role)
    else:
        log.info("%s is %s by the reported groups", user.username, user.role)


def _read(query: Callable[[], Result]) -> Result:
    """Reads one row on the loop. Raises `Unavailable`."""
    try:
        return query()
    except peewee.PeeweeException as error:
        log.error("the store of accounts cannot be read: %s", error)
        raise Unavailable("the store of accounts cannot be read") from None
