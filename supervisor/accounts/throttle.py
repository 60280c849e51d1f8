"""Rate limits of failed logins: sliding windows by key, in bounded memory."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable

from models.errors import Throttled

MAX_KEYS = 20_000
_MINUTE_SECONDS, _HOUR_SECONDS = 60.0, 3600.0


class Window:
    """At most `limit` failures of one key within `seconds`."""

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
        self._by_address = Window(per_minute, _MINUTE_SECONDS)
        self._by_name = Window(per_name_per_hour, _HOUR_SECONDS)
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
