"""The list of all processes: changed processes are encoded in slices."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, cast

from handlers.supervision.processes import Listing
from models.supervision.process import ProcessSpec
from supervisor.processes.fleet import Fleet

if TYPE_CHECKING:
    from supervisor.processes.context import SupervisionContext


def fleet(size: int) -> Fleet:
    specs = {f"p{number}": ProcessSpec(f"p{number}", ("true",)) for number in range(size)}
    return Fleet(specs, cast("SupervisionContext", None), {})  # none of them is started


def turns_until_ready(listing: Listing) -> int:
    async def count() -> int:
        making = asyncio.ensure_future(listing.ready())
        iterations = 0
        while not making.done():
            await asyncio.sleep(0)
            iterations += 1
        return iterations

    return asyncio.run(count())


def test_hundreds_that_are_new_leave_turns_to_others_and_what_is_known_takes_none() -> None:
    listing = Listing(fleet(500))
    assert turns_until_ready(listing) > 15
    shown: list[dict[str, Any]] = json.loads(listing.encoded())
    assert [one["name"] for one in shown] == [f"p{number}" for number in range(500)]
    assert turns_until_ready(listing) <= 2
