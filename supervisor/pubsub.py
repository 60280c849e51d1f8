"""Live updates to whoever listens. Publishing never waits; who listens takes what he is given or leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class PubSub(Generic[Item]):
    def __init__(self) -> None:
        self._listeners: set[Callable[[Item], None]] = set()

    def subscribe(self, listener: Callable[[Item], None]) -> Callable[[], None]:
        """`listener` gets every item from now on; the function that is returned ends that."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def publish(self, item: Item) -> None:
        for listener in tuple(self._listeners):
            listener(item)
