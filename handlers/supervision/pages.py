"""The pages of supervision: the processes, one process, the history."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from urllib.parse import quote, urlencode
from weakref import WeakKeyDictionary

from attrs import frozen

from handlers.base import Page, write_page
from handlers.http import serializers
from handlers.http.origin import SAFE_METHODS
from handlers.http.permissions import CONTROL_PROCESSES, READ, READ_LOGS, Permission, admit
from handlers.routing import Route
from handlers.web import layout
from models.config.redaction import shown_environment, shown_words
from models.errors import Invalid, Problem
from models.paging import Paging, paging
from models.supervision.events import Entry, Filter
from models.supervision.process import STATUSES, TROUBLE, ProcessSpec, Status
from supervisor import host
from supervisor.processes.process import Process
from supervisor.processes.usage import Usage

_TIMELINE = 15
_AT_ONCE = 50
_HOLE = b"\0"
_FIGURES = '<td class="number">{}</td>' * 3
_WIDTH = 900


class Processes(Page):
    """All processes, and start, stop, restart of all at once."""

    back = "/processes"

    @classmethod
    def permission_of(cls, method: str) -> Permission:
        return READ if method in SAFE_METHODS else CONTROL_PROCESSES

    permission = READ

    async def get(self) -> None:
        await self.services.event_writer.stored_soon()
        fleet = list(self.services.fleet)
        usage = await self.services.meter.read(fleet)
        rows: Rows = self.settings["rows"]
        write_page(
            self,
            "supervision/processes.html",
            rows=await rows.rows(self, fleet, usage),
            states=states_of(fleet),
            status_of=layout.status_of,
        )

    async def post(self) -> None:
        fleet = self.services.fleet
        deeds = {"start": fleet.start_all, "stop": fleet.stop_all, "restart": fleet.restart_all}
        await deeds[_verb(self)]()
        self.redirect(f"{self.prefix}/processes", status=303)


class OneProcess(Page):
    back = "/processes"

    @classmethod
    def permission_of(cls, method: str) -> Permission:
        return READ if method in SAFE_METHODS else CONTROL_PROCESSES

    permission = READ

    async def get(self, name: str) -> None:
        await self.services.event_writer.stored_soon(name)
        process = self.services.fleet.get(name)
        usage = (await self.services.meter.read([process])).get(name)
        page = await self.services.history.page(Paging(size=_TIMELINE), Filter(process=name))
        write_page(
            self,
            "supervision/process.html",
            process=process,
            row=row_of(process),
            usage=_taken(usage),
            changes=page.content,
            total=page.total,
            spans=spans(page.content, self.services.clock.now()),
            settings=_settings(process.spec),
            uptime=_up(process),
            logs=_logs(process.spec),
            reads_logs=self._reads_logs(),
            log=self.query().get("log", ""),
            status_of=layout.status_of,
            width=_WIDTH,
        )

    def _reads_logs(self) -> bool:
        try:
            admit(self.caller, READ_LOGS, self.services.config)
        except Problem:
            return False
        return True

    async def post(self, name: str) -> None:
        fleet = self.services.fleet
        deeds = {"start": fleet.start, "stop": fleet.stop, "restart": fleet.restart}
        await deeds[_verb(self)](name)
        at = process_url(name) if self.get_body_argument("to", "") == "one" else "/processes"
        self.redirect(self.prefix + at, status=303)


class History(Page):
    permission = READ

    async def get(self) -> None:
        query = self.query()
        asked = paging({**query, "size": "50"}, serializers.EVENT_SORTS)
        which = Filter(_status(query.get("status", "")), query.get("process") or None)
        if which.status is not None and which.process is not None:
            self.why = self.failed(Invalid("either a status or a process can be asked for, not both"))
            which = Filter(process=which.process)
        page = await self.services.history.page(asked, which)
        write_page(
            self,
            "supervision/history.html",
            page=page,
            asked=asked,
            query=query,
            statuses=STATUSES,
            names=[process.name for process in self.services.fleet],
            status_of=layout.status_of,
            url=lambda **changes: f"{self.prefix}/history?{urlencode({**query, **changes})}",
        )


@frozen
class Row:
    """One process as the pages show it, but for what changes from one moment to the next."""

    name: str
    href: str
    status: Status
    pid: str
    restarts: int
    why: str
    description: str
    live: bool


@frozen
class Span:
    """How long a process was in a status: for the timeline, `x` and `width` in a picture 900 wide."""

    x: float
    width: float
    status: Status
    kind: str
    at: int
    lasted: str


class Rows:
    """The rows of the table of processes: each is kept as HTML until its process changes, but for what it takes."""

    def __init__(self) -> None:
        self._kept: dict[str, WeakKeyDictionary[Process, tuple[tuple[object, ...], bytes, bytes]]] = {}
        """By the prefix of the page."""

    async def rows(self, page: Page, processes: Sequence[Process], usage: Mapping[str, Usage]) -> bytes:
        """Others have their turn between fifty and fifty."""
        found = []
        for place, process in enumerate(processes):
            found.append(self._row(page, process, usage.get(process.name)))
            if place % _AT_ONCE == 0:
                await asyncio.sleep(0)
        return b"".join(found)

    def _row(self, page: Page, process: Process, usage: Usage | None) -> bytes:
        kept = self._kept.setdefault(page.prefix, WeakKeyDictionary())
        made_of = process.spec, process.record, process.restarts, process.live
        parts = kept.get(process)
        if parts is None or parts[0] != made_of:
            words = {"row": row_of(process), "base": page.prefix, "status_of": layout.status_of, "hole": _HOLE}
            head, _, tail = page.render_string("supervision/process_row.html", **words).partition(_HOLE)
            parts = kept[process] = (made_of, head, tail)
        cpu, memory = _taken(usage)
        return parts[1] + _FIGURES.format(_up(process), cpu, memory).encode() + parts[2]


def process_url(name: str) -> str:
    """The page of a process, below the prefix."""
    return f"/processes/{quote(name, safe='')}"


def states_of(fleet: Sequence[Process]) -> dict[Status, int]:
    """How many there are in each status, always in the same order."""
    found = Counter(process.status for process in fleet)
    return {status: found[status] for status in STATUSES if status in found}


def row_of(process: Process) -> Row:
    return Row(
        name=process.name,
        href=process_url(process.name),
        status=process.status,
        pid=str(process.record.pid or "") if process.live else "",
        restarts=process.restarts,
        why=_why(process),
        description=process.spec.description,
        live=process.live,
    )


def _up(process: Process) -> str:
    return serializers.spoken(process.uptime()) if process.live else ""


def _taken(usage: Usage | None) -> tuple[str, str]:
    """Of the processors and of the memory."""
    return ("", "") if usage is None else (f"{usage.cpu:.1f} %", host.size(usage.memory))


def _why(process: Process) -> str:
    """What an operator wants to know of trouble, in a line."""
    record = process.record
    if record.failed_log:
        return record.failed_log.splitlines()[0]
    if record.status in TROUBLE and record.exit_code is not None:
        return f"exit code {record.exit_code}"
    return ""


def _logs(spec: ProcessSpec) -> dict[str, str]:
    """The logs of its own that a process has, by the name of the stream, each with its word."""
    words = {"stdout": "Standard output", "stderr": "Standard error"}
    paths = {"stdout": spec.stdout_logfile, "stderr": spec.stderr_file}
    return {stream: words[stream] for stream, path in paths.items() if path}


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
            Span(
                x, max(1.0, lasted * scale), entry.new, layout.kind_of(entry.new), entry.at, serializers.spoken(lasted)
            )
        )
        until = entry.at
    return found[::-1]


routes: list[Route] = [
    (r"/processes/?", Processes),
    (r"/processes/([^/]+)", OneProcess),
    (r"/history", History),
]
