"""The base of the tracker's handlers: runs a query in a worker and sends its JSON, which is encoded there too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from handlers.base import Base
from handlers.http import serializers
from models.accounts.accounts import User
from models.charts.parameters import json_object
from models.errors import Invalid
from models.tracker.tables import reports

Result = TypeVar("Result")


def test_argument(handler: Base) -> tuple[str, str]:
    """The class and the name of a test, untrimmed, from the query. Raises `Invalid`."""
    class_name, name = (handler.get_query_argument(key, "", strip=False) for key in ("className", "name"))
    if not name:
        raise Invalid("name is required")
    return class_name, name


def in_snapshot(query: Callable[[], Result]) -> Result:
    """Runs `query`, whose reads all see the same snapshot of the store."""
    with reports.atomic("DEFERRED"):
        return query()


class Tracked(Base):
    """A handler that reads the tracker's store."""

    @property
    def user(self) -> User | None:
        return self.caller.user

    async def answer(self, query: Callable[[], Any]) -> None:
        """Runs `query` in a worker and sends its result as JSON."""
        body = await self.services.run_in_tracker(lambda: serializers.encoded(in_snapshot(query)))
        self.send(body, "application/json")

    def body_object(self) -> dict[str, Any]:
        """The body as a JSON object. Raises `Invalid`."""
        return json_object(self.request.body)

    def arguments(self, *names: str) -> dict[str, str | None]:
        """Query parameters, trimmed; None for those that are absent or blank."""
        query = self.query()
        return {name: query.get(name, "").strip() or None for name in names}
