"""The rows of the process table: their contents, and the rows that a query selects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from urllib.parse import quote
from weakref import WeakKeyDictionary

from attrs import frozen

from handlers.base import HtmlPage
from handlers.http import serializers
from handlers.supervision.process_metrics import sparkline
from handlers.web import layout
from handlers.web.table import TableQuery, page_of
from models.json_format import rfc3339
from models.supervision.process import STATUSES, TROUBLE, Status
from models.times import SECOND
from supervisor import host
from supervisor.processes.process.health import HealthReport, Prober
from supervisor.processes.process.process import Process
from supervisor.processes.usage import Meter, Usage

_PLACEHOLDER = b"\0"
_USAGE_CELLS = '<td class="number">{}</td><td class="number">{}{}</td><td class="number">{}</td>'
_BY_USAGE = ("cpu", "memory")
SORTS = ("name", "status", "pid", "uptime", "cpu", "memory", "restarts")


@frozen
class ProcessRow:
    """The displayed values of one process, except uptime and resource usage."""

    name: str
    href: str
    status: Status
    pid: str
    restarts: int
    reason: str
    description: str
    live: bool


class ProcessRows:
    """Renders the rows of the process table.

    A row is cached until its process changes, its sparkline for a minute; uptime and usage are not cached.
    """

    def __init__(self) -> None:
        self._sparklines: WeakKeyDictionary[Process, tuple[tuple[int, int], str]] = WeakKeyDictionary()
        """With the minute, and how many minutes were known."""
        self._cache: dict[str, WeakKeyDictionary[Process, tuple[tuple[object, ...], bytes, bytes]]] = {}
        """By the prefix of the page: the values that a row shows, and its HTML before and after the usage cells."""

    def render(self, page: HtmlPage, processes: Sequence[Process], usage: Mapping[str, Usage]) -> bytes:
        return b"".join(self._row(page, process, usage.get(process.name)) for process in processes)

    def _row(self, page: HtmlPage, process: Process, usage: Usage | None) -> bytes:
        cache = self._cache.setdefault(page.prefix, WeakKeyDictionary())
        prober = page.supervision.context.prober
        shown = process.spec, process.record, process.restarts, process.live, prober.report(process.name)
        parts = cache.get(process)
        if parts is None or parts[0] != shown:
            helpers = {"status_of": layout.status_of, "reason_html": layout.reason_html, "grouped": layout.grouped}
            row = page.render_string(
                "supervision/process_row.html",
                row=row_of(process, prober),
                base=page.prefix,
                **helpers,
                usage_cells=_PLACEHOLDER,
            )
            head, _, tail = row.partition(_PLACEHOLDER)
            parts = cache[process] = (shown, head, tail)
        cpu, memory = usage_texts(usage)
        spark = self._sparkline(process, page)
        return parts[1] + _USAGE_CELLS.format(uptime_text(process), spark, cpu, memory).encode() + parts[2]

    def _sparkline(self, process: Process, page: HtmlPage) -> str:
        now, series = page.clock.now() // SECOND, page.supervision.metrics.of(process.name)
        key = now // 60, series.minute_count
        cached = self._sparklines.get(process)
        if cached is None or cached[0] != key:
            cached = self._sparklines[process] = key, sparkline(series, now)
        return cached[1]


def process_url(name: str) -> str:
    """The path of a process's page, below the prefix."""
    return f"/processes/{quote(name, safe='')}"


def status_counts(fleet: Sequence[Process]) -> dict[Status, int]:
    """The number of processes in each status: those that need a look first, then in the order of `STATUSES`."""
    counts = Counter(process.status for process in fleet)
    order = sorted(STATUSES, key=lambda status: status not in TROUBLE)
    return {status: counts[status] for status in order if status in counts}


def row_of(process: Process, prober: Prober) -> ProcessRow:
    return ProcessRow(
        name=process.name,
        href=process_url(process.name),
        status=process.status,
        pid=str(process.record.pid or "") if process.live else "",
        restarts=process.restarts,
        reason=_reason(process, prober.report(process.name)),
        description=process.spec.description,
        live=process.live,
    )


def uptime_text(process: Process) -> str:
    return serializers.duration_text(process.uptime()) if process.live else ""


def usage_texts(usage: Usage | None) -> tuple[str, str]:
    """Returns CPU and memory as text."""
    return ("", "") if usage is None else (f"{usage.cpu:.1f} %", host.size(usage.memory))


def _reason(process: Process, report: HealthReport | None) -> str:
    """The reason for a failure in one line, or an empty text."""
    record = process.record
    if record.failed_log:
        return record.failed_log
    if record.status is Status.UNHEALTHY and report is not None:
        return health_text(report)
    if record.status in TROUBLE and record.exit_code is not None:
        return f"exit code {record.exit_code}"
    return ""


def health_text(report: HealthReport) -> str:
    """The last health check in one line."""
    if report.ok:
        return f"{report.check}: ok"
    since = rfc3339(report.since)[11:16]
    times = "once" if report.failures == 1 else f"{report.failures} times"
    return f"{report.check}: {report.message}, {times} since {since} UTC"


async def select(table: TableQuery, processes: Sequence[Process], meter: Meter) -> tuple[TableQuery, list[Process]]:
    """The processes that match the query's text and status, sorted, on one page."""
    text = table.q.lower()
    matches = [
        process
        for process in processes
        if text in f"{process.name} {process.spec.description}".lower() and table.status in ("", process.status.value)
    ]
    usage = await meter.read(matches) if table.sort_key in _BY_USAGE else {}
    none = Usage(-1.0, -1)
    return page_of(
        table,
        matches,
        {
            "name": lambda process: process.name.lower(),
            "status": lambda process: process.status.rank,
            "pid": lambda process: process.record.pid or 0 if process.live else 0,
            "uptime": lambda process: process.uptime() if process.live else -1,
            "cpu": lambda process: usage.get(process.name, none).cpu,
            "memory": lambda process: usage.get(process.name, none).memory,
            "restarts": lambda process: process.restarts,
        },
    )
