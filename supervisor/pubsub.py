"""Publish/subscribe within the process. Publishing never waits: a listener takes an item at once or unsubscribes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class PubSub(Generic[Item]):
    def __init__(self) -> None:
        self._listeners: set[Callable[[Item], None]] = set()

    def subscribe(self, listener: Callable[[Item], None]) -> Callable[[], None]:
        """Calls `listener` with every item from now on, until the returned function is called."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def publish(self, item: Item) -> None:
        for listener in tuple(self._listeners):
            listener(item)
