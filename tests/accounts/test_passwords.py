"""Hashes of passwords, and how often somebody may fail, by themselves."""

from __future__ import annotations

import time

import pytest

from models.errors import Throttled
from supervisor.accounts import passwords
from supervisor.accounts.passwords import fits, hashed, is_current
from supervisor.accounts.throttle import _MOST_KEYS, Throttle, Window


@pytest.mark.parametrize("password", ["correct horse", "日本語のパスワード", "p" * 1024, "a$b$c$d", " ", ""])
def test_a_password_fits_its_hash_and_no_other(password: str) -> None:
    kept = hashed(password)
    assert kept.startswith("scrypt$16384$8$5$")
    assert password == " " or not password or password not in kept
    assert fits(password, kept)
    assert not fits(password + "x", kept)
    assert is_current(kept)


def test_two_hashes_of_one_password_differ() -> None:
    assert hashed("correct horse", is_random=True) != hashed("correct horse", is_random=True)


def test_a_hash_says_how_it_was_made() -> None:
    light = hashed("a random one", is_random=True)
    assert fits("a random one", light)
    assert not fits("another", light)
    assert not is_current(light)


@pytest.mark.parametrize("kept", [None, "", "x", "scrypt$1$2$3", "argon2$16$8$1$AAAA$AAAA", "scrypt$a$8$1$AAAA$AAAA"])
def test_nothing_fits_what_is_no_hash(kept: str | None) -> None:
    assert not fits("", kept)
    assert not fits("password", kept)


@pytest.mark.parametrize(
    "kept",
    [None, hashed("right one", is_random=True), hashed("right one"), "nonsense"],
    ids=["unknown", "random", "own", "nonsense"],
)
def test_every_answer_costs_a_whole_hash(kept: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """So nobody learns by the time whether there is such a name."""
    paid: list[passwords._Cost] = []
    real = passwords._Cost.key

    def counted(self: passwords._Cost, password: str, salt: bytes) -> bytes:
        paid.append(self)
        return real(self, password, salt)

    monkeypatch.setattr(passwords._Cost, "key", counted)
    for password in ("right one", "wrong one"):
        paid.clear()
        fits(password, kept)
        assert paid.count(passwords._COST) == 1


def test_known_and_unknown_take_about_as_long() -> None:
    def best(kept: str | None) -> float:
        times = []
        for _ in range(3):
            begun = time.perf_counter()
            fits("wrong", kept)
            times.append(time.perf_counter() - begun)
        return min(times)

    ratio = best(hashed("right")) / best(None)
    assert 0.4 < ratio < 2.5


# Failures


class Now:
    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


def tries(throttle: Throttle, address: str, name: str, times: int) -> list[bool]:
    """Whether each of so many failures was let try."""
    told = []
    for _ in range(times):
        try:
            throttle.begin(address, name)
        except Throttled:
            told.append(False)
        else:
            told.append(True)
    return told


def test_the_windows_slide() -> None:
    now = Now()
    throttle = Throttle(3, 5, now)
    assert tries(throttle, "a", "x", 4) == [True] * 3 + [False]
    assert tries(throttle, "b", "x", 3) == [True] * 2 + [False]
    assert tries(throttle, "a", "y", 1) == [True]
    now.at += 59
    assert tries(throttle, "a", "x", 1) == [False]
    now.at += 3600
    assert tries(throttle, "a", "x", 4) == [True] * 3 + [False]


def test_it_says_when_to_come_again() -> None:
    now = Now()
    throttle = Throttle(1, 2, now)
    throttle.begin("a", "x")
    now.at += 20
    with pytest.raises(Throttled) as told:
        throttle.begin("a", "x")
    assert told.value.again == 41
    throttle.begin("b", "x")
    with pytest.raises(Throttled) as told:
        throttle.begin("c", "x")
    assert told.value.again == 3581


def test_a_success_is_taken_back() -> None:
    throttle = Throttle(1, 1, Now())
    for _ in range(5):
        throttle.begin("a", "x")()
    assert tries(throttle, "a", "x", 2) == [True, False]


def test_a_name_and_an_address_are_not_mixed_up() -> None:
    throttle = Throttle(1, 1000, Now())
    throttle.begin("a", "b\0c")
    assert tries(throttle, "a", "bc", 1) == [True]
    assert tries(throttle, "c", "b\0c", 1) == [True]


def test_memory_is_bounded_and_who_failed_often_is_not_forgotten() -> None:
    window = Window(3, 3600)
    for _ in range(3):
        window.add(b"victim", 0.0)
    for number in range(3 * _MOST_KEYS):
        window.add(b"%d" % number, 1.0 + number / 1e6)
        assert len(window) <= _MOST_KEYS
    assert window.wait(b"victim", 2.0) == 3598.0
    assert window.wait(b"victim", 3600.5) == 0


def test_what_is_over_takes_no_room() -> None:
    window = Window(3, 60)
    window.add(b"x", 0.0)
    assert window.wait(b"x", 61.0) == 0
    assert len(window) == 0
