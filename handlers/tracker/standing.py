"""How projects stand, as the overview and the board show it."""

from __future__ import annotations

from collections.abc import Sequence

from handlers import frame
from handlers.base import Base
from handlers.tracker.tracked import at_one_moment
from models.tracker import board
from models.tracker.board import Health, Standing

_KINDS = {Health.FAILING: "bad", Health.AT_RISK: "warn", Health.HEALTHY: "good", Health.NO_RUNS: ""}


async def standings(page: Base) -> list[Standing]:
    """Of the projects that the caller may read, trouble first."""
    user, settings = page.caller.user, page.services.config.tracker.quality_gate
    return await page.services.tracked(lambda: at_one_moment(lambda: board.visible_to(user, settings)))


def counted(found: Sequence[Standing]) -> list[tuple[Health, int]]:
    """How many projects of each verdict, trouble first."""
    return [(verdict, sum(one.health is verdict for one in found)) for verdict in Health]


def health(verdict: Health) -> str:
    """A verdict on a project as HTML."""
    return frame.state(verdict.value, _KINDS[verdict])
