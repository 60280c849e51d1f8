"""Password hashing by scrypt, off the loop, in bounded queues.

A hash names its own parameters: `scrypt$n$r$p$salt$key`. One with other parameters than today's is replaced at the next
login.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import ctypes
import hashlib
import hmac
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from attrs import frozen

from models.errors import Unavailable

Result = TypeVar("Result")

_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES = -3, 1024 * 1024
MAX_CONCURRENT_LOGINS = 2
MAX_WAITING_LOGINS = 50
"""They take some seconds."""
MAX_LOGINS_OF_ADDRESS = 25
"""Waiting and running: one address cannot take every place in the queue."""
MAX_WAITING_CHANGES = 20


@frozen
class _Cost:
    n: int
    r: int
    p: int

    def key(self, password: str, salt: bytes) -> bytes:
        memory = 256 * self.r * (self.n + self.p)
        return hashlib.scrypt(password.encode(), salt=salt, n=self.n, r=self.r, p=self.p, maxmem=memory, dklen=32)


_COST = _Cost(2**14, 8, 5)
_LIGHT = _Cost(2**4, 8, 1)
"""For generated passwords: 128 random bits cannot be guessed, however cheap a guess is."""


def hash_password(password: str, is_random: bool = False) -> str:
    """Takes a tenth of a second and more, unless `is_random`."""
    cost, salt = _LIGHT if is_random else _COST, os.urandom(16)
    fields = (base64.b64encode(raw).decode() for raw in (salt, cost.key(password, salt)))
    return "$".join(("scrypt", str(cost.n), str(cost.r), str(cost.p), *fields))


def verify_password(password: str, stored: str | None) -> bool:
    """Takes as long for an account that does not exist (`stored` is None) as for any other."""
    if stored is None:
        _COST.key(password, b"there is nobody.")
        return False
    try:
        cost, salt, key = _parse(stored)
    except (ValueError, binascii.Error):
        return verify_password(password, None)
    if cost != _COST:
        _COST.key(password, salt)
    return hmac.compare_digest(cost.key(password, salt), key)


def is_current(stored: str) -> bool:
    """Whether a hash has today's parameters."""
    return stored.startswith(f"scrypt${_COST.n}${_COST.r}${_COST.p}$")


def _parse(stored: str) -> tuple[_Cost, bytes, bytes]:
    """Returns the cost, the salt and the key of a hash. Raises `ValueError`."""
    kind, n, r, p, salt, key = stored.split("$")
    if kind != "scrypt":
        raise ValueError("not scrypt")
    return _Cost(int(n), int(r), int(p)), base64.b64decode(salt), base64.b64decode(key)


class HashingQueue:
    """Threads of its own for hashes, each of which takes 16 MiB and a core."""

    def __init__(self, name: str, max_concurrent: int, max_waiting: int, max_of_address: int) -> None:
        _return_memory_to_the_system()
        self._workers = ThreadPoolExecutor(max_concurrent, name)
        self._capacity = max_concurrent + max_waiting
        self._max_of_address = max_of_address
        self._pending: Counter[str] = Counter()

    async def run(self, address: str, work: Callable[[], Result]) -> Result:
        """Raises `Unavailable` where too many wait, or too many of this address."""
        if self._pending.total() >= self._capacity or self._pending[address] >= self._max_of_address:
            raise Unavailable("too many log in at once; try again soon")
        self._pending[address] += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._workers, work)
        finally:
            self._pending[address] -= 1
            if not self._pending[address]:
                del self._pending[address]

    def close(self) -> None:
        self._workers.shutdown(wait=False, cancel_futures=True)


class Passwords:
    """Hashing off the loop. Logins, which anybody can cause, do not delay the password changes of accounts."""

    def __init__(self) -> None:
        self._logins = HashingQueue("login", MAX_CONCURRENT_LOGINS, MAX_WAITING_LOGINS, MAX_LOGINS_OF_ADDRESS)
        self._changes = HashingQueue("password", 1, MAX_WAITING_CHANGES, MAX_WAITING_CHANGES)

    async def verify_login(self, address: str, password: str, stored: str | None) -> bool:
        """Raises `Unavailable` where too many log in."""
        return await self._logins.run(address, lambda: verify_password(password, stored))

    async def verify(self, password: str, stored: str | None) -> bool:
        """For a caller with an account. Raises `Unavailable`."""
        return await self._changes.run("", lambda: verify_password(password, stored))

    async def hash(self, password: str) -> str:
        """For a caller with an account. Raises `Unavailable`."""
        return await self._changes.run("", lambda: hash_password(password))

    def close(self) -> None:
        self._logins.close()
        self._changes.close()


def _return_memory_to_the_system() -> None:
    """Makes glibc return large blocks when they are freed; it would keep those of a hash."""
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
