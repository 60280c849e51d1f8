"""How often somebody may fail: sliding windows per key, in bounded memory."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable

from models.errors import Throttled

_MOST_KEYS = 20_000
_MINUTE, _HOUR = 60.0, 3600.0


class Window:
    """At most `limit` failures of one key within `seconds`."""

    def __init__(self, limit: int, seconds: float) -> None:
        self.limit = limit
        self._seconds = seconds
        self._failures: dict[bytes, deque[float]] = {}

    def __len__(self) -> int:
        return len(self._failures)

    def wait(self, key: bytes, now: float) -> float:
        """After how many seconds one more is allowed; 0: now."""
        times = self._failures.get(key)
        while times and times[0] <= now - self._seconds:
            times.popleft()
        if times is not None and not times:
            del self._failures[key]
        return times[0] + self._seconds - now if times and len(times) >= self.limit else 0.0

    def add(self, key: bytes, now: float) -> None:
        if key not in self._failures and len(self._failures) >= _MOST_KEYS:
            self._make_room(now)
        self._failures.setdefault(key, deque(maxlen=self.limit)).append(now)

    def take_back(self, key: bytes, at: float) -> None:
        times = self._failures.get(key)
        if times and at in times:
            times.remove(at)

    def _make_room(self, now: float) -> None:
        """Forgets half: what is over, then who failed least, for many names of one failure may be made up."""
        kept = [(key, times) for key, times in self._failures.items() if times and times[-1] > now - self._seconds]
        kept.sort(key=lambda item: (len(item[1]), item[1][-1]))
        self._failures = dict(kept[-_MOST_KEYS // 2 :])


class Throttle:
    """Of logins: for an address with a name, and for a name from everywhere."""

    def __init__(self, per_minute: int, per_name_per_hour: int, clock: Callable[[], float]) -> None:
        self._near = Window(per_minute, _MINUTE)
        self._far = Window(per_name_per_hour, _HOUR)
        self._clock = clock

    def begin(self, address: str, name: str) -> Callable[[], None]:
        """A try, which counts as failed (others may come before it is over) until what is returned is called.

        Raises `Throttled`.
        """
        now, near, far = self._clock(), _key(address, name), _key(name)
        wait = max(self._near.wait(near, now), self._far.wait(far, now))
        if wait:
            raise Throttled("too many logins failed; try again later", int(wait) + 1)
        self._near.add(near, now)
        self._far.add(far, now)

        def succeeded() -> None:
            self._near.take_back(near, now)
            self._far.take_back(far, now)

        return succeeded


def _key(*words: str) -> bytes:
    """Of one size, whatever somebody calls himself."""
    return hashlib.blake2b("\0".join(words).encode("utf-8", "replace"), digest_size=16).digest()
