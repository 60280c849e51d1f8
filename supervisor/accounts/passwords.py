"""Passwords become hashes and are held against them: by scrypt, off the loop, few at a time.

A hash says how it was made: `scrypt$n$r$p$salt$key`. One that was made otherwise than today's are is replaced at the
next login.
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
from collections.abc import AsyncIterator

from attrs import frozen

from models.errors import Unavailable

_M_MMAP_THRESHOLD, _LARGE = -3, 1024 * 1024
_AT_ONCE = 2
_WAITING = 50
"""So many may wait for their turn; that is some seconds."""


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
"""For what we generate: 128 random bits are not guessed, however fast a guess is."""


def hashed(password: str, is_random: bool = False) -> str:
    """What is kept of a password. Takes a tenth of a second and more, unless `is_random`."""
    cost, salt = _LIGHT if is_random else _COST, os.urandom(16)
    words = (base64.b64encode(one).decode() for one in (salt, cost.key(password, salt)))
    return "$".join(("scrypt", str(cost.n), str(cost.r), str(cost.p), *words))


def _read(kept: str) -> tuple[_Cost, bytes, bytes]:
    """The cost, the salt and the key of a hash. Raises `ValueError`."""
    kind, n, r, p, salt, key = kept.split("$")
    if kind != "scrypt":
        raise ValueError("not scrypt")
    return _Cost(int(n), int(r), int(p)), base64.b64decode(salt), base64.b64decode(key)


def fits(password: str, kept: str | None) -> bool:
    """Whether this is the password. Takes as long for an account that there is not (`kept` None) as for any other."""
    if kept is None:
        _COST.key(password, b"there is nobody.")
        return False
    try:
        cost, salt, key = _read(kept)
    except (ValueError, binascii.Error):
        return fits(password, None)
    if cost != _COST:
        _COST.key(password, salt)
    return hmac.compare_digest(cost.key(password, salt), key)


def is_current(kept: str) -> bool:
    """Whether a hash was made as they are made today."""
    return kept.startswith(f"scrypt${_COST.n}${_COST.r}${_COST.p}$")


def _give_memory_back() -> None:
    """Has large pieces of memory returned to the system when they are freed; glibc would keep those of a hash."""
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)


class Passwords:
    """The same off the loop: each takes 16 MiB and a core."""

    def __init__(self) -> None:
        _give_memory_back()
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0

    async def hashed(self, password: str) -> str:
        """Raises `Unavailable` when too many wait."""
        async with self._turn():
            return await asyncio.to_thread(hashed, password)

    async def fits(self, password: str, kept: str | None) -> bool:
        """Raises `Unavailable` when too many wait."""
        async with self._turn():
            return await asyncio.to_thread(fits, password, kept)

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        if self._waiting >= _WAITING:
            raise Unavailable("too many log in at once; try again soon")
        self._waiting += 1
        try:
            async with self._turns:
                yield
        finally:
            self._waiting -= 1
