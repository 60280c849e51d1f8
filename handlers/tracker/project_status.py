"""How projects stand, as the overview and the board show it: read anew when something was stored, and only then."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from attrs import field, frozen

from handlers.base import Base
from handlers.tracker.base import in_snapshot
from handlers.web import layout
from handlers.web.layout import Kept
from models.accounts.accounts import User
from models.tracker import project_status
from models.tracker.project_status import Health, ProjectStatus
from models.tracker.tables import reports
from supervisor.services import Services
from supervisor.single_flight import SingleFlight

_KINDS = {Health.FAILING: "bad", Health.AT_RISK: "warn", Health.HEALTHY: "good", Health.NO_RUNS: ""}
_PEOPLE = 8


@frozen(eq=False)
class Board:
    """The projects that somebody may read, trouble first, as they stood at one version of the store."""

    version: object
    standings: list[ProjectStatus]
    counts: list[tuple[Health, int]] = field(init=False)
    """How many projects of each verdict, trouble first."""

    @counts.default
    def _counted(self) -> list[tuple[Health, int]]:
        return [(verdict, sum(one.health is verdict for one in self.standings)) for verdict in Health]


class Boards:
    """The board of each who asked lately. Many who ask while it is read share what is read after they asked."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._kept: OrderedDict[object, Board] = OrderedDict()
        self._asking: SingleFlight[Board] = SingleFlight()

    async def of(self, user: User | None) -> Board:
        """As things are now."""
        whose = None if user is None else "ADMIN" if user.is_admin else user.id
        kept = self._kept.get(whose)
        if kept is not None and kept.version == await self._services.read_fast(reports.version):
            return kept
        return await self._asking.ask(whose, lambda: self._read(whose, user))

    async def _read(self, whose: object, user: User | None) -> Board:
        version, settings = await self._services.read_fast(reports.version), self._services.config.tracker.quality_gate
        found = await self._services.run_in_tracker(
            lambda: in_snapshot(lambda: project_status.visible_to(user, settings))
        )
        kept = self._kept[whose] = Board(version, found)
        self._kept.move_to_end(whose)
        if len(self._kept) > _PEOPLE:
            self._kept.popitem(last=False)
        return kept


def rows(page: Base, standings: Sequence[ProjectStatus]) -> bytes:
    """The rows of the board. For the worker."""
    kept: Kept = page.settings["kept"]
    facts = {"base": page.prefix, "health": health, "change": layout.change, **layout.words()}

    def row(one: ProjectStatus) -> bytes:
        project, change = one.project, one.verdict and one.verdict.coverage_delta
        shown = project.id, project.name, project.visibility, one.health, one.reason, one.run, one.newest, one.since
        return kept.piece(
            ("standing", page.prefix, change, *shown),
            lambda: page.render_string("tracker/project_row.html", one=one, **facts),
        )

    return b"".join(map(row, standings))


async def board_of(page: Base) -> Board:
    """The caller's."""
    boards: Boards = page.settings["boards"]
    return await boards.of(page.caller.user)


def health(verdict: Health) -> str:
    """A verdict on a project as HTML."""
    return layout.state(verdict.value, _KINDS[verdict])
