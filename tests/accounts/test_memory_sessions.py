"""Sessions that are kept in memory while the disk is full."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from users import ensure_user, now, open_accounts

from models.accounts import accounts
from models.accounts.accounts import Password, User
from models.config.settings import TrackerSecurity
from models.errors import DiskFull, NotFound
from supervisor.accounts.logins import Accounts
from supervisor.accounts.memory_sessions import LIFETIME, MemorySessions
from supervisor.clock import Clock


@pytest.fixture
def known(tmp_path: Path) -> Iterator[Password]:
    ensure_user(tmp_path, "ada", "ADMIN")
    with open_accounts(tmp_path):
        known = accounts.password_of("ada")
        assert known is not None
        yield known


def other(number: int, role: accounts.Role = "USER") -> Password:
    return Password(User(1000 + number, f"user{number}", None, None, role), "hash")


def test_a_session_ends_after_its_lifetime_or_an_hour(known: Password) -> None:
    sessions = MemorySessions()
    for lifetime, expected in ((60_000_000, 60_000_000), (2 * LIFETIME, LIFETIME)):
        raw = sessions.add(known, lifetime, 1000)
        assert sessions.find(raw, 1000 + expected - 1) is not None
        assert sessions.find(raw, 1000 + expected) is None


def test_the_logins_of_other_accounts_end_no_session_of_an_admin(known: Password) -> None:
    sessions = MemorySessions()
    raw = sessions.add(known, LIFETIME, now())
    for number in range(200):
        sessions.add(other(number), LIFETIME, now())
    assert sessions.find(raw, now()) is not None
    added = [sessions.add(known, LIFETIME, now()) for _ in range(5)]
    assert [sessions.find(one, now()) is not None for one in (raw, *added)] == [False, *[True] * 5]


def test_sessions_are_listed_and_ended_by_their_account(known: Password, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> str:
        raise DiskFull("full")

    async def work() -> None:
        logins = Accounts(TrackerSecurity(), Clock())
        monkeypatch.setattr(logins._passwords, "verify_login", lambda *_: asyncio.sleep(0, True))
        stored = accounts.log_in(known, LIFETIME, now())
        monkeypatch.setattr(accounts, "log_in", full)
        raw = await logins.log_in("127.0.0.1", "ada", "x")
        assert stored is not None
        assert raw is not None
        in_memory, in_store = await logins.sessions_of(known.user)
        assert (in_memory.id < 0, in_store.id > 0) == (True, True)
        another = other(1).user
        with pytest.raises(NotFound):
            await logins.end_session_of(another, in_memory.id)
        await logins.end_session_of(known.user, in_memory.id)
        assert await logins.sessions_of(known.user) == [in_store]
        await logins.close()

    asyncio.run(work())
