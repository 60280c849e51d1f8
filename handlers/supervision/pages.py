"""The pages of supervision: all processes, one process, the history."""

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

_MAX_TIMELINE_EVENTS = 15
_ROWS_PER_YIELD = 50
_PLACEHOLDER = b"\0"
_USAGE_CELLS = '<td class="number">{}</td>' * 3
_TIMELINE_WIDTH = 900


class Processes(Page):
    """The table of all processes, and start, stop and restart of all."""

    back = "/processes"

    @classmethod
    def permission_of(cls, method: str) -> Permission:
        return READ if method in SAFE_METHODS else CONTROL_PROCESSES

    permission = READ

    async def get(self) -> None:
        await self.services.event_writer.stored_soon()
        fleet = list(self.services.fleet)
        usage = await self.services.meter.read(fleet)
        rows: ProcessRows = self.settings["process_rows"]
        write_page(
            self,
            "supervision/processes.html",
            rows=await rows.render(self, fleet, usage),
            states=status_counts(fleet),
            status_of=layout.status_of,
        )

    async def post(self) -> None:
        fleet = self.services.fleet
        actions = {"start": fleet.start_all, "stop": fleet.stop_all, "restart": fleet.restart_all}
        await actions[_verb(self)]()
        self.redirect(f"{self.prefix}/processes", status=303)


class ProcessPage(Page):
    """One process: status, history, log and configuration."""

    back = "/processes"

    @classmethod
    def permission_of(cls, method: str) -> Permission:
        return READ if method in SAFE_METHODS else CONTROL_PROCESSES

    permission = READ

    async def get(self, name: str) -> None:
        await self.services.event_writer.stored_soon(name)
        process = self.services.fleet.get(name)
        usage = (await self.services.meter.read([process])).get(name)
        page = await self.services.history.page(Paging(size=_MAX_TIMELINE_EVENTS), Filter(process=name))
        write_page(
            self,
            "supervision/process.html",
            process=process,
            row=row_of(process),
            usage=_usage_texts(usage),
            events=page.content,
            total=page.total,
            spans=spans(page.content, self.services.clock.now()),
            settings=_settings(process.spec),
            uptime=_uptime(process),
            logs=_log_streams(process.spec),
            may_read_logs=self._may_read_logs(),
            log=self.query().get("log", ""),
            status_of=layout.status_of,
            width=_TIMELINE_WIDTH,
        )

    def _may_read_logs(self) -> bool:
        try:
            admit(self.caller, READ_LOGS, self.services.config)
        except Problem:
            return False
        return True

    async def post(self, name: str) -> None:
        fleet = self.services.fleet
        actions = {"start": fleet.start, "stop": fleet.stop, "restart": fleet.restart}
        await actions[_verb(self)](name)
        path = process_url(name) if self.get_body_argument("to", "") == "one" else "/processes"
        self.redirect(self.prefix + path, status=303)


class HistoryPage(Page):
    """All changes of status, filtered and sorted."""

    permission = READ

    async def get(self) -> None:
        query = self.query()
        requested = paging({**query, "size": "50"}, serializers.EVENT_SORTS)
        criteria = Filter(_status(query.get("status", "")), query.get("process") or None)
        if criteria.status is not None and criteria.process is not None:
            self.why = self.failed(Invalid("filter by a status or by a process, not both"))
            criteria = Filter(process=criteria.process)
        page = await self.services.history.page(requested, criteria)
        write_page(
            self,
            "supervision/history.html",
            page=page,
            paging=requested,
            query=query,
            statuses=STATUSES,
            names=[process.name for process in self.services.fleet],
            status_of=layout.status_of,
            url=lambda **changes: f"{self.prefix}/history?{urlencode({**query, **changes})}",
        )


@frozen
class ProcessRow:
    """What the pages show of one process, except uptime and resource usage."""

    name: str
    href: str
    status: Status
    pid: str
    restarts: int
    reason: str
    description: str
    live: bool


@frozen
class Span:
    """One status on the timeline: `x` and `width` are in units of an SVG 900 wide."""

    x: float
    width: float
    status: Status
    kind: str
    at: int
    duration: str


class ProcessRows:
    """Renders the rows of the process table. A row is cached until its process changes; uptime and usage are not."""

    def __init__(self) -> None:
        self._cache: dict[str, WeakKeyDictionary[Process, tuple[tuple[object, ...], bytes, bytes]]] = {}
        """By the prefix of the page: the values that a row shows, and its HTML before and after the usage cells."""

    async def render(self, page: Page, processes: Sequence[Process], usage: Mapping[str, Usage]) -> bytes:
        """Renders these rows. Yields to the loop after every fifty."""
        rows = []
        for number, process in enumerate(processes):
            rows.append(self._row(page, process, usage.get(process.name)))
            if number % _ROWS_PER_YIELD == 0:
                await asyncio.sleep(0)
        return b"".join(rows)

    def _row(self, page: Page, process: Process, usage: Usage | None) -> bytes:
        cache = self._cache.setdefault(page.prefix, WeakKeyDictionary())
        shown = process.spec, process.record, process.restarts, process.live
        parts = cache.get(process)
        if parts is None or parts[0] != shown:
            values = {"row": row_of(process), "base": page.prefix, "status_of": layout.status_of}
            row = page.render_string("supervision/process_row.html", usage_cells=_PLACEHOLDER, **values)
            head, _, tail = row.partition(_PLACEHOLDER)
            parts = cache[process] = (shown, head, tail)
        cpu, memory = _usage_texts(usage)
        return parts[1] + _USAGE_CELLS.format(_uptime(process), cpu, memory).encode() + parts[2]


def process_url(name: str) -> str:
    """The path of a process's page, below the prefix."""
    return f"/processes/{quote(name, safe='')}"


def status_counts(fleet: Sequence[Process]) -> dict[Status, int]:
    """The number of processes in each status, in the order of `STATUSES`."""
    counts = Counter(process.status for process in fleet)
    return {status: counts[status] for status in STATUSES if status in counts}


def row_of(process: Process) -> ProcessRow:
    return ProcessRow(
        name=process.name,
        href=process_url(process.name),
        status=process.status,
        pid=str(process.record.pid or "") if process.live else "",
        restarts=process.restarts,
        reason=_reason(process),
        description=process.spec.description,
        live=process.live,
    )


def _uptime(process: Process) -> str:
    return serializers.spoken(process.uptime()) if process.live else ""


def _usage_texts(usage: Usage | None) -> tuple[str, str]:
    """CPU and memory, for people."""
    return ("", "") if usage is None else (f"{usage.cpu:.1f} %", host.size(usage.memory))


def _reason(process: Process) -> str:
    """The reason for a failure in one line, or an empty text."""
    record = process.record
    if record.failed_log:
        return record.failed_log.splitlines()[0]
    if record.status in TROUBLE and record.exit_code is not None:
        return f"exit code {record.exit_code}"
    return ""


def _log_streams(spec: ProcessSpec) -> dict[str, str]:
    """The log files that a process has of its own: the label of each stream, by its name."""
    labels = {"stdout": "Standard output", "stderr": "Standard error"}
    paths = {"stdout": spec.stdout_logfile, "stderr": spec.stderr_file}
    return {stream: labels[stream] for stream, path in paths.items() if path}


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
    """The configuration of a process by its YAML keys, with secrets hidden."""
    environment = shown_environment(spec.environment)
    settings = [
        ("command", " ".join(shown_words(spec.argv))),
        ("directory", spec.directory),
        ("environment", "\n".join(f"{name}={text}" for name, text in environment.items())),
        ("user", spec.user),
        ("group", spec.group),
        ("limits", ", ".join(f"{name} {soft}:{hard}" for name, (soft, hard) in spec.limits.items())),
        ("stdout-logfile", spec.stdout_logfile),
        ("stderr-logfile", spec.stderr_file),
        ("order", str(spec.order)),
        ("depends-on", ", ".join(f"{needed.process} ({needed.condition.value})" for needed in spec.depends_on)),
        ("auto-start", "yes" if spec.auto_start else "no"),
        ("restart", spec.restart.value),
        ("stop-signal", spec.stop_signal.name.removeprefix("SIG")),
        ("stop-timeout", f"{spec.stop_timeout:g} s"),
    ]
    return [(name, text) for name, text in settings if text]


def spans(events: Sequence[Entry], now: int) -> list[Span]:
    """The timeline of these events (newest first) up to now; oldest first."""
    if not events:
        return []
    first, timeline, until = events[-1].at, list[Span](), now
    scale = _TIMELINE_WIDTH / max(1, now - first)
    for entry in events:
        x, micros = (entry.at - first) * scale, until - entry.at
        duration, width = serializers.spoken(micros), max(1.0, micros * scale)
        timeline.append(Span(x, width, entry.new, layout.kind_of(entry.new), entry.at, duration))
        until = entry.at
    return timeline[::-1]


routes: list[Route] = [
    (r"/processes/?", Processes),
    (r"/processes/([^/]+)", ProcessPage),
    (r"/history", HistoryPage),
]
