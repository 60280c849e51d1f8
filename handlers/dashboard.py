"""The pages of supervision: the overview, the processes, one process, the history."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence
from urllib.parse import quote, urlencode

from attrs import frozen

from handlers import frame, wire
from handlers.base import Page, write_page
from handlers.charts.card import card
from handlers.charts.doing import release_state
from handlers.gates import SAFE, Gate, operators, readers
from handlers.routing import Route
from handlers.tracker.standing import counted, health, standings
from models import events
from models.errors import Invalid
from models.events import Entry, Filter
from models.paging import paging
from models.processes import STATUSES, TROUBLE, ProcessSpec, Status
from models.secrets import shown_environment, shown_words
from models.tracker.board import Health
from supervisor import host
from supervisor.process import Process
from supervisor.usage import Usage

_NEWEST = 8
_WORST = 8
_TIMELINE = 60
_WIDTH = 900


class Home(Page):
    """The host, the fleet, the projects, what changed last."""

    gate = staticmethod(readers)

    async def get(self) -> None:
        await self.services.journal.soon()
        fleet = list(self.services.fleet)
        newest = events.page(paging({"size": str(_NEWEST)}, ["eventTime"]))
        projects = await standings(self)
        write_page(
            self,
            "home.html",
            standings=projects,
            verdicts=counted(projects),
            worst=[one for one in projects if one.health in (Health.FAILING, Health.AT_RISK)][:_WORST],
            health=health,
            machine=host.read(),
            size=host.size,
            name=self.services.config.supervisor.node_name or platform.node(),
            description=self.services.config.supervisor.description,
            up=self.services.clock.since_boot(),
            states=Counter(process.status for process in fleet),
            trouble=[_row(process, None) for process in fleet if process.status in TROUBLE],
            changes=newest.content,
            releases=await card(self.services.charts, self.request),
            release_state=release_state,
            status_of=frame.status_of,
        )


class Processes(Page):
    """All processes, and start, stop, restart of all at once."""

    back = "/processes"

    @classmethod
    def gate_of(cls, method: str) -> Gate:
        return readers if method in SAFE else operators

    gate = staticmethod(readers)

    async def get(self) -> None:
        await self.services.journal.soon()
        fleet = list(self.services.fleet)
        write_page(
            self,
            "processes.html",
            rows=[_row(process, usage) for process, usage in zip(fleet, await self._usage(fleet), strict=True)],
            states=Counter(process.status for process in fleet),
            status_of=frame.status_of,
        )

    async def _usage(self, fleet: list[Process]) -> list[Usage | None]:
        found = await self.services.meter.read(fleet)
        return [found.get(process.name) for process in fleet]

    async def post(self) -> None:
        fleet = self.services.fleet
        deeds = {"start": fleet.start_all, "stop": fleet.stop_all, "restart": fleet.restart_all}
        await deeds[_verb(self)]()
        self.redirect(f"{self.prefix}/processes", status=303)


class OneProcess(Page):
    back = "/processes"

    @classmethod
    def gate_of(cls, method: str) -> Gate:
        return readers if method in SAFE else operators

    gate = staticmethod(readers)

    async def get(self, name: str) -> None:
        await self.services.journal.soon()
        process = self.services.fleet.get(name)
        usage = (await self.services.meter.read([process])).get(name)
        page = events.page(paging({"size": str(_TIMELINE)}, ["eventTime"]), Filter(process=name))
        write_page(
            self,
            "process.html",
            process=process,
            row=_row(process, usage),
            changes=page.content,
            total=page.total,
            spans=spans(page.content, self.services.clock.now()),
            settings=_settings(process.spec),
            status_of=frame.status_of,
            width=_WIDTH,
        )

    async def post(self, name: str) -> None:
        fleet = self.services.fleet
        deeds = {"start": fleet.start, "stop": fleet.stop, "restart": fleet.restart}
        await deeds[_verb(self)](name)
        at = f"/processes/{quote(name, safe='')}" if self.get_body_argument("to", "") == "one" else "/processes"
        self.redirect(self.prefix + at, status=303)


class History(Page):
    gate = staticmethod(readers)

    async def get(self) -> None:
        query = self.query()
        asked = paging({**query, "size": "50"}, events.SORTS)
        which = Filter(_status(query.get("status", "")), query.get("process") or None)
        if which.status is not None and which.process is not None:
            raise Invalid("either a status or a process can be asked for, not both")
        near = events.is_near(asked)
        page = events.page(asked, which) if near else await self.services.off_loop(lambda: events.page(asked, which))
        write_page(
            self,
            "history.html",
            page=page,
            asked=asked,
            query=query,
            statuses=STATUSES,
            names=[process.name for process in self.services.fleet],
            status_of=frame.status_of,
            url=lambda **changes: f"{self.prefix}/history?{urlencode({**query, **changes})}",
        )


@frozen
class Row:
    """One process as the pages show it."""

    name: str
    href: str
    status: Status
    pid: str
    uptime: str
    cpu: str
    memory: str
    restarts: int
    why: str
    description: str
    live: bool
    labels: tuple[str, ...]


@frozen
class Span:
    """How long a process was in a status: for the timeline, `x` and `width` in a picture 900 wide."""

    x: float
    width: float
    status: Status
    kind: str
    at: int
    lasted: str


def _row(process: Process, usage: Usage | None) -> Row:
    info = wire.process_status(process)
    return Row(
        name=process.name,
        href=f"/processes/{quote(process.name, safe='')}",
        status=process.status,
        pid="" if info.pid is None else str(info.pid),
        uptime=info.process_uptime if process.live else "",
        cpu="" if usage is None or usage.cpu is None else f"{usage.cpu:.1f} %",
        memory="" if usage is None else host.size(usage.memory),
        restarts=process.restarts,
        why=_why(process),
        description=process.spec.description,
        live=process.live,
        labels=tuple(process.spec.labels),
    )


def _why(process: Process) -> str:
    """What an operator wants to know of trouble, in a line."""
    record = process.record
    if record.failed_log:
        return record.failed_log.splitlines()[0]
    if record.status in TROUBLE and record.exit_code is not None:
        return f"exit code {record.exit_code}"
    return ""


def _verb(page: Page) -> str:
    verb = page.get_body_argument("verb", "")
    if verb not in ("start", "stop", "restart"):
        raise Invalid("verb must be start, stop or restart")
    return verb


def _status(name: str) -> Status | None:
    if name and name not in {status.value for status in STATUSES}:
        raise Invalid(f"status must be one of {', '.join(status.value for status in STATUSES)}")
    return Status(name) if name else None


def _settings(spec: ProcessSpec) -> list[tuple[str, str]]:
    """The configuration of a process, secrets hidden, in the words of the YAML file."""
    environment = shown_environment(spec.environment)
    facts = [
        ("command", " ".join(shown_words(spec.argv))),
        ("directory", spec.directory),
        ("environment", "\n".join(f"{name}={text}" for name, text in environment.items())),
        ("user", spec.user),
        ("group", spec.group),
        ("limits", ", ".join(f"{name} {soft}:{hard}" for name, (soft, hard) in spec.limits.items())),
        ("stdout-logfile", spec.stdout_logfile),
        ("stderr-logfile", spec.stderr_file),
        ("order", str(spec.order)),
        ("depends-on", ", ".join(f"{one.process} ({one.condition.value})" for one in spec.depends_on)),
        ("auto-start", "yes" if spec.auto_start else "no"),
        ("restart", spec.restart.value),
        ("stop-signal", spec.stop_signal.name.removeprefix("SIG")),
        ("stop-timeout", f"{spec.stop_timeout:g} s"),
    ]
    return [(name, text) for name, text in facts if text]


def spans(changes: Sequence[Entry], now: int) -> list[Span]:
    """The statuses that some changes (newest first) tell of, oldest first, as parts of one picture up to now."""
    if not changes:
        return []
    first, found, until = changes[-1].at, list[Span](), now
    scale = _WIDTH / max(1, now - first)
    for entry in changes:
        x, lasted = (entry.at - first) * scale, until - entry.at
        found.append(
            Span(x, max(1.0, lasted * scale), entry.new, frame.kind_of(entry.new), entry.at, wire.spoken(lasted))
        )
        until = entry.at
    return found[::-1]


routes: list[Route] = [
    (r"/?", Home),
    (r"/processes/?", Processes),
    (r"/processes/([^/]+)", OneProcess),
    (r"/history", History),
]
