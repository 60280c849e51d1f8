"""Password hashes and the limits of failed logins, without a server."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from users import open_accounts

from models.accounts import accounts
from models.config.settings import TrackerSecurity
from models.errors import Throttled, Unavailable
from supervisor.accounts import passwords
from supervisor.accounts.logins import MAX_KEYS, Accounts, FailureWindow, Throttle
from supervisor.accounts.passwords import HashingQueue, hash_password, is_current, verify_password
from supervisor.clock import Clock


@pytest.mark.parametrize("password", ["correct horse", "日本語のパスワード", "p" * 1024, "a$b$c$d", " ", ""])
def test_hash_verifies_its_own_password_only(password: str) -> None:
    kept = hash_password(password)
    assert kept.startswith("scrypt$16384$8$5$")
    assert password == " " or not password or password not in kept
    assert verify_password(password, kept)
    assert not verify_password(password + "x", kept)
    assert is_current(kept)


def test_two_hashes_of_one_password_differ() -> None:
    assert hash_password("correct horse", is_random=True) != hash_password("correct horse", is_random=True)


def test_hash_records_its_parameters() -> None:
    light = hash_password("a random one", is_random=True)
    assert verify_password("a random one", light)
    assert not verify_password("another", light)
    assert not is_current(light)


@pytest.mark.parametrize("kept", [None, "", "x", "scrypt$1$2$3", "argon2$16$8$1$AAAA$AAAA", "scrypt$a$8$1$AAAA$AAAA"])
def test_no_password_verifies_against_an_invalid_hash(kept: str | None) -> None:
    assert not verify_password("", kept)
    assert not verify_password("password", kept)


@pytest.mark.parametrize(
    "kept",
    [None, hash_password("right one", is_random=True), hash_password("right one"), "nonsense"],
    ids=["unknown", "random", "own", "nonsense"],
)
def test_every_verification_computes_one_full_hash(kept: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the response time would reveal whether a user name exists."""
    computed: list[passwords._Cost] = []
    real = passwords._Cost.key

    def counted(self: passwords._Cost, password: str, salt: bytes) -> bytes:
        computed.append(self)
        return real(self, password, salt)

    monkeypatch.setattr(passwords._Cost, "key", counted)
    for password in ("right one", "wrong one"):
        computed.clear()
        verify_password(password, kept)
        assert computed.count(passwords._COST) == 1


# Queues


def test_one_address_cannot_fill_the_login_queue() -> None:
    async def work() -> None:
        queue, release = HashingQueue("test", 1, max_waiting=5, max_of_address=3), threading.Event()
        waiting = [asyncio.create_task(queue.run("attacker", release.wait)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await queue.run("attacker", release.wait)
        waiting += [asyncio.create_task(queue.run(f"other {number}", release.wait)) for number in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await queue.run("one too many", release.wait)
        release.set()
        assert await asyncio.gather(*waiting) == [True] * 6
        assert await queue.run("attacker", lambda: "again") == "again"
        queue.close()

    asyncio.run(work())


def test_logins_do_not_delay_the_password_changes_of_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(passwords, "verify_password", lambda password, stored: release.wait())

    async def work() -> None:
        hashing = passwords.Passwords()
        logins = [
            asyncio.create_task(hashing.verify_login(f"address {number}", "guess", None))
            for number in range(passwords.MAX_CONCURRENT_LOGINS + passwords.MAX_WAITING_LOGINS)
        ]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await hashing.verify_login("another", "guess", None)
        assert is_current(await hashing.hash("correct horse"))
        release.set()
        await asyncio.gather(*logins)
        hashing.close()

    asyncio.run(work())


def test_a_login_does_not_wait_for_the_work_of_other_requests(tmp_path: Path) -> None:
    """Charts, pages and queries run in the loop's default threads, which are all busy here."""
    release = threading.Event()

    async def work() -> str | None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        taken = asyncio.create_task(asyncio.to_thread(release.wait))
        logins = Accounts(TrackerSecurity(), Clock())
        try:
            accounts.create_user("ulla", hash_password("correct horse"), "USER", 0)
            return await logins.log_in("127.0.0.1", "ulla", "correct horse")
        finally:
            release.set()
            await taken
            await logins.close()

    with open_accounts(tmp_path):
        assert asyncio.run(work()) is not None


# Throttling of failed logins


class FakeClock:
    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


def allowed_attempts(throttle: Throttle, address: str, name: str, times: int) -> list[bool]:
    """Returns for each of `times` failed logins whether the throttle allowed it."""
    result = []
    for _ in range(times):
        try:
            throttle.begin(address, name)
        except Throttled:
            result.append(False)
        else:
            result.append(True)
    return result


def test_throttle_windows_slide() -> None:
    now = FakeClock()
    throttle = Throttle(3, 5, now)
    assert allowed_attempts(throttle, "a", "x", 4) == [True] * 3 + [False]
    assert allowed_attempts(throttle, "b", "x", 3) == [True] * 2 + [False]
    assert allowed_attempts(throttle, "a", "y", 1) == [True]
    now.at += 59
    assert allowed_attempts(throttle, "a", "x", 1) == [False]
    now.at += 3600
    assert allowed_attempts(throttle, "a", "x", 4) == [True] * 3 + [False]


def test_throttled_login_has_the_time_to_retry_after() -> None:
    now = FakeClock()
    throttle = Throttle(1, 2, now)
    throttle.begin("a", "x")
    now.at += 20
    with pytest.raises(Throttled) as result:
        throttle.begin("a", "x")
    assert result.value.again == 41
    throttle.begin("b", "x")
    with pytest.raises(Throttled) as result:
        throttle.begin("c", "x")
    assert result.value.again == 3581


def test_successful_login_does_not_count_against_the_throttle() -> None:
    throttle = Throttle(1, 1, FakeClock())
    for _ in range(5):
        throttle.begin("a", "x")()
    assert allowed_attempts(throttle, "a", "x", 2) == [True, False]


def test_throttle_keys_of_names_and_addresses_do_not_collide() -> None:
    throttle = Throttle(1, 1000, FakeClock())
    throttle.begin("a", "b\0c")
    assert allowed_attempts(throttle, "a", "bc", 1) == [True]
    assert allowed_attempts(throttle, "c", "b\0c", 1) == [True]


def test_window_is_bounded_and_keeps_keys_with_many_failures() -> None:
    window = FailureWindow(3, 3600)
    for _ in range(3):
        window.add(b"victim", 0.0)
    for number in range(3 * MAX_KEYS):
        window.add(b"%d" % number, 1.0 + number / 1e6)
        assert len(window) <= MAX_KEYS
    assert window.wait(b"victim", 2.0) == 3598.0
    assert window.wait(b"victim", 3600.5) == 0


def test_expired_window_entries_are_removed() -> None:
    window = FailureWindow(3, 60)
    window.add(b"x", 0.0)
    assert window.wait(b"x", 61.0) == 0
    assert len(window) == 0
