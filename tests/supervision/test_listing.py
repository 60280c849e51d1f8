"""The list of all processes: changed processes are encoded in slices."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, cast

from handlers.supervision.processes import Listing
from models.supervision.process import ProcessSpec
from supervisor.processes.fleet import Fleet

if TYPE_CHECKING:
    from supervisor.processes.process.context import SupervisionContext


def fleet(size: int) -> Fleet:
    specs = {f"p{number}": ProcessSpec(f"p{number}", ("true",)) for number in range(size)}
    return Fleet(specs, cast("SupervisionContext", None), {})  # none of them is started


def iterations_until_ready(listing: Listing) -> int:
    async def count() -> int:
        making = asyncio.ensure_future(listing.ready())
        iterations = 0
        while not making.done():
            await asyncio.sleep(0)
            iterations += 1
        return iterations

    return asyncio.run(count())


def test_listing_yields_to_the_loop_for_new_processes_and_reuses_known_ones() -> None:
    listing = Listing(fleet(500))
    assert iterations_until_ready(listing) > 15
    shown: list[dict[str, Any]] = json.loads(listing.encoded())
    assert [one["name"] for one in shown] == [f"p{number}" for number in range(500)]
    assert iterations_until_ready(listing) <= 2
