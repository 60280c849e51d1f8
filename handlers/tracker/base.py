"""What the tracker's handlers share: a query in the worker, answered as JSON that was made there too."""

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


def test_asked_for(handler: Base) -> tuple[str, str]:
    """The class and the name of a test, as they are, from the query. Raises `Invalid`."""
    class_name, name = (handler.get_query_argument(word, "", strip=False) for word in ("className", "name"))
    if not name:
        raise Invalid("name is required")
    return class_name, name


def at_one_moment(query: Callable[[], Result]) -> Result:
    """Runs a query of several reads, all of which see the store as it is now."""
    with reports.atomic("DEFERRED"):
        return query()


class Tracked(Base):
    """A handler that reads the tracker's store."""

    @property
    def user(self) -> User | None:
        return self.caller.user

    async def answer(self, query: Callable[[], Any]) -> None:
        """Sends the shape that `query` makes, in the worker, as JSON."""
        body = await self.services.run_in_tracker(lambda: serializers.encoded(at_one_moment(query)))
        self.send(body, "application/json")

    def body_object(self) -> dict[str, Any]:
        """The body, which is a JSON object. Raises `Invalid`."""
        return json_object(self.request.body)

    def asked(self, *names: str) -> dict[str, str | None]:
        """Parameters of the query, trimmed; None for what is absent or blank."""
        query = self.query()
        return {name: query.get(name, "").strip() or None for name in names}
