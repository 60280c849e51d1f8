"""The pages of supervision: all processes, one process, the history."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from attrs import evolve, frozen

from handlers.base import HtmlPage, write_long_page, write_page
from handlers.http import serializers
from handlers.http.permissions import CONTROL_PROCESSES, READ, READ_LOGS, admit
from handlers.routing import Route
from handlers.supervision import process_metrics, process_table
from handlers.supervision.process_metrics import MetricsWindow
from handlers.supervision.process_table import (
    ProcessRows,
    health_text,
    process_url,
    row_of,
    status_counts,
    uptime_text,
    usage_texts,
)
from handlers.supervision.selection import groups
from handlers.supervision.streams import LogRequest, cut_of, log_file
from handlers.web import layout
from handlers.web.table import TableQuery, read_table
from models.config.redaction import shown_environment, shown_words
from models.errors import Failed, Invalid, Problem
from models.inputs import read
from models.paging import Page, Paging
from models.supervision import selectors
from models.supervision.events import Filter, StatusEvent
from models.supervision.process import STATUSES, TROUBLE, ProcessSpec, Status
from models.supervision.runs import JobRun, Outcome
from models.times import SECOND
from supervisor import host
from supervisor.processes import group_calls
from supervisor.processes.logs.files import tail
from supervisor.processes.process.process import Process

_MAX_TIMELINE_EVENTS = 15
_MAX_RUNS, _COUNTED_RUNS = 10, 20
_MAX_LANES = 12
_HISTORY_SORTS = ("eventTime", "processName", "newStatus", "oldStatus", "pid", "exitCode")
_VERBS = ("start", "stop", "restart")
_TIMELINE_WIDTH = 900
_MTIME_SLACK_SECONDS = 0.1
"""File times lag behind the clock by up to a tick of the kernel."""


class ControlPage(HtmlPage):
    """A page with forms that control processes."""

    permission = READ
    permission_to_change = CONTROL_PROCESSES
    back = "/processes"


class Processes(ControlPage):
    """The table of all processes, and start, stop and restart of all."""

    async def get(self) -> None:
        await self.supervision.event_writer.stored_soon()
        fleet, meter = list(self.supervision.fleet), self.supervision.meter
        statuses = [status.value for status in STATUSES]
        wanted = read_table(f"{self.prefix}/processes", self.query(), process_table.SORTS, statuses, ("select",))
        table, shown = await process_table.select(*self._selected(wanted, fleet), meter)
        usage = await meter.read(shown)
        rows: ProcessRows = self.settings["process_rows"]
        states = status_counts(fleet)
        write_page(
            self,
            "supervision/processes.html",
            rows=rows.render(self, shown, usage),
            states=states,
            table=table,
            table_statuses=[(status.value, status.value.replace("_", " "), count) for status, count in states.items()],
            is_empty=not fleet,
            status_of=layout.status_of,
        )

    def _selected(self, table: TableQuery, fleet: Sequence[Process]) -> tuple[TableQuery, Sequence[Process]]:
        """The processes that the selector of the query selects; a faulty selector is ignored with a note."""
        selector = table.extra["select"]
        if not selector:
            return table, fleet
        try:
            names = set(selectors.select([selector], [process.spec for process in fleet], groups(self)))
        except Problem as problem:
            ignored = (*table.ignored, f"select {selector}: {problem.message}")
            return evolve(table, extra={"select": ""}, ignored=ignored), fleet
        return table, [process for process in fleet if process.name in names]

    async def post(self) -> None:
        verb, names = _verb(self, *_VERBS), self.form_values("name")
        if self.form_value("to") == "selected":
            await self._change_selected(verb, names)
        else:
            calls = {"start": group_calls.start_all, "stop": group_calls.stop_all, "restart": group_calls.restart_all}
            await calls[verb](self.supervision.fleet, self.supervision.scheduler)
        self.redirect(f"{self.prefix}/processes", status=303)

    async def _change_selected(self, verb: str, names: Sequence[str]) -> None:
        """Starts, stops or restarts the processes whose rows are selected. Raises `Invalid`, `Failed`."""
        if not names:
            raise Invalid("no process is selected")
        for name in names:
            self.supervision.fleet.get(name)
        calls = {"start": group_calls.start, "stop": group_calls.stop, "restart": group_calls.restart}
        failures = [one.message for one in await calls[verb](self.supervision.fleet, names) if one.outcome == "failed"]
        if failures:
            raise Failed("; ".join(failures))


class ProcessPage(ControlPage):
    """One process: status, history, log and configuration."""

    async def get(self, name: str) -> None:
        await self.supervision.event_writer.stored_soon(name)
        process = self.supervision.fleet.get(name)
        usage = (await self.supervision.meter.read([process])).get(name)
        page = await self.supervision.history.page(Paging(size=_MAX_TIMELINE_EVENTS), Filter(process=name))
        has_runs = process.spec.has_runs or self.supervision.context.runs.last(name) is not None
        runs = await self.supervision.context.runs.page(name, Paging(size=_COUNTED_RUNS)) if has_runs else None
        write_page(
            self,
            "supervision/process.html",
            process=process,
            row=row_of(process, self.supervision.context.prober),
            usage=usage_texts(usage),
            events=page.content,
            total=page.total,
            spans=spans(page.content, self.clock.now()),
            runs=runs,
            **_run_counts(runs.content if runs else ()),
            schedule=self.supervision.scheduler.report(process),
            outcome=outcome_html,
            settings=_settings(process.spec),
            uptime=uptime_text(process),
            logs=_log_streams(process.spec),
            may_read_logs=self._may_read_logs(),
            dependents=self._related(process),
            log=self.query().get("log") or _preferred_log(process),
            health=self.supervision.context.prober.report(name),
            health_text=health_text,
            status_of=layout.status_of,
            width=_TIMELINE_WIDTH,
            **await self._metrics(name, page),
        )

    async def _metrics(self, name: str, events: Page[StatusEvent]) -> dict[str, object]:
        """The plots of CPU and memory."""
        query, now = self.query(), self.clock.now() // SECOND
        requested = query.get("range") or "1h"
        is_known = requested in process_metrics.RANGES
        settings, length = self.config.supervisor.metrics, process_metrics.RANGES.get(requested, 3600)
        shown = process_metrics.window(read(MetricsWindow, {}, query, {}), now, length)
        points, starts = await self.supervision.metrics.window(name, shown.start, shown.end, shown.step)
        return {
            "window": shown,
            "plots": process_metrics.plots(points, starts, shown),
            "metric_rows": process_metrics.rows(points, shown),
            "has_group": process_metrics.has_group(points),
            "moves": process_metrics.moves(shown, now, int(settings.keep)),
            "ranges": process_metrics.RANGES,
            "beyond": ranges_beyond(events, now),
            "ignored": "" if is_known else requested,
            "range": "" if query.get("from") or query.get("to") else requested if is_known else "1h",
            "is_measured": bool(settings.interval),
        }

    def _related(self, process: Process) -> list[tuple[str, str, str]]:
        """The dependencies and the dependents of a process: the relation, the name and the status as HTML."""
        fleet = self.supervision.fleet
        needed = [(f"needs, {one.condition.value}", one.process) for one in process.spec.depends_on]
        needing = [
            ("needed by", other.name)
            for other in fleet
            if any(one.process == process.name for one in other.spec.depends_on)
        ]
        return [(relation, name, layout.status_of(fleet.get(name).status)) for relation, name in (*needed, *needing)]

    def _may_read_logs(self) -> bool:
        try:
            admit(self.caller, READ_LOGS, self.config)
        except Problem:
            return False
        return True

    async def post(self, name: str) -> None:
        verb, fleet = _verb(self, *_VERBS, "pause", "resume"), self.supervision.fleet
        if verb in _VERBS:
            await {"start": fleet.start, "stop": fleet.stop, "restart": fleet.restart}[verb](name)
        else:
            await self.supervision.scheduler.pause(name, verb == "pause")
        path = process_url(name) if self.form_value("to") == "one" else "/processes"
        self.redirect(self.prefix + path, status=303)


class LogLines(HtmlPage):
    """The newest lines of a log, scrolled to the last: what the page of a process shows in a frame without script."""

    permission = READ_LOGS
    may_be_framed = True

    async def get(self, name: str) -> None:
        request = read(LogRequest, {"name": name}, self.query(), {})
        file = log_file(self.supervision, name, request.stream)
        cut = await cut_of(self.supervision, file.path, request.since)
        try:
            text = await self.supervision.logs.threads.run(
                file.path, lambda: cut(*tail(Path(file.path), request.lines)).decode("utf-8", "replace").rstrip("\n")
            )
        except OSError as error:
            raise Failed(f"{file.path} cannot be read: {error.strerror}") from None
        await write_long_page(self, "supervision/log_lines.html", name=name, text=text)


class HistoryPage(HtmlPage):
    """All changes of status, filtered and sorted."""

    permission = READ

    async def get(self) -> None:
        query = self.query()
        if "sortBy" in query and "sort" not in query:  # parameters of earlier versions
            query["sort"] = ("" if query.get("sortDirection", "").lower() == "asc" else "-") + query["sortBy"]
        statuses = [status.value for status in STATUSES]
        table = read_table(
            f"{self.prefix}/history", query, _HISTORY_SORTS, statuses, ("process",), status_label="New status"
        )
        sort = serializers.EVENT_SORTS[table.sort_key or "eventTime"]
        requested = Paging(table.page, table.size, sort, table.descending or not table.sort)
        status = Status(table.status) if table.status else None
        page = await self.supervision.history.page(requested, Filter(status, table.extra["process"] or None, table.q))
        table = evolve(table, total=page.total)
        is_by_time = requested.sort == "event_time" and requested.descending
        write_page(
            self,
            "supervision/history.html",
            page=page,
            table=table,
            table_statuses=[(name, name.replace("_", " "), None) for name in statuses],
            lanes=self._lanes(page.content, is_newest=table.page == 0) if is_by_time else [],
            status_of=layout.status_of,
            width=_TIMELINE_WIDTH,
        )

    def _lanes(self, events: Sequence[StatusEvent], is_newest: bool) -> list[tuple[str, list[Span]]]:
        """The timelines of the processes with the latest of these changes, on one axis."""
        if not events:
            return []
        start, end = events[-1].at, self.clock.now() if is_newest else events[0].at
        names = list(dict.fromkeys(entry.process for entry in events))[:_MAX_LANES]
        return [(name, spans([entry for entry in events if entry.process == name], end, start)) for name in names]


@frozen
class Span:
    """One status on the timeline: `x` and `width` are in units of an SVG 900 wide."""

    x: float
    width: float
    status: Status
    kind: str
    at: int
    duration: str


def ranges_beyond(events: Page[StatusEvent], now: int) -> set[str]:
    """The ranges that show no more than a shorter one: the process had its first event later. `now` is in seconds."""
    if not events.content or events.total > len(events.content):
        return set()
    age = now - events.content[-1].at // SECOND
    return {name for before, name in pairwise(process_metrics.RANGES) if process_metrics.RANGES[before] >= age}


def _run_counts(runs: Sequence[JobRun]) -> dict[str, object]:
    """The last run of a job that has started, how many have ended, and how many of these succeeded."""
    ended = [run for run in runs if run.outcome is not None]
    succeeded = sum(run.outcome == "success" for run in ended)
    return {"last_run": next(iter(runs), None), "ended": len(ended), "succeeded": succeeded, "max_runs": _MAX_RUNS}


def _preferred_log(process: Process) -> str:
    """The stream to show first: stderr of a process in trouble, if this process instance has written to it."""
    path, start = process.spec.stderr_file, process.record.start
    if process.status not in TROUBLE or path is None or path == process.spec.stdout_logfile:
        return ""
    with contextlib.suppress(OSError):
        written = Path(path).stat()
        if written.st_size and (start is None or written.st_mtime + _MTIME_SLACK_SECONDS >= start / SECOND):
            return "stderr"
    return ""


def _log_streams(spec: ProcessSpec) -> dict[str, str]:
    """The log files that a process has of its own: the label of each stream, by its name."""
    labels = {"stdout": "Standard output", "stderr": "Standard error"}
    paths = {"stdout": spec.stdout_logfile, "stderr": spec.stderr_file}
    return {stream: labels[stream] for stream, path in paths.items() if path}


def _verb(page: HtmlPage, *verbs: str) -> str:
    verb = page.form_value("verb")
    if verb not in verbs:
        raise Invalid(f"verb must be {', '.join(verbs[:-1])} or {verbs[-1]}")
    return verb


def outcome_html(outcome: Outcome | None) -> str:
    """The state of a run."""
    kinds = {"success": "good", "failure": "bad", "timeout": "bad", "unknown": "warn", "stopped": ""}
    return layout.state("running", "busy") if outcome is None else layout.state(outcome, kinds[outcome])


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
        ("type", spec.kind.value),
        ("schedule", "" if spec.schedule is None else spec.schedule.expression),
        ("max-runtime", "" if spec.max_runtime is None else f"{spec.max_runtime:g} s"),
        ("order", str(spec.order)),
        ("depends-on", ", ".join(f"{needed.process} ({needed.condition.value})" for needed in spec.depends_on)),
        ("auto-start", "yes" if spec.auto_start else "no"),
        ("restart", spec.restart.value),
        ("stop-signal", spec.stop_signal.name.removeprefix("SIG")),
        ("stop-timeout", f"{spec.stop_timeout:g} s"),
        *_kind_settings(spec),
    ]
    return [(name, text) for name, text in settings if text]


def _kind_settings(spec: ProcessSpec) -> list[tuple[str, str]]:
    """Returns the type of a process and its settings for start and end."""
    hooks = {"start-pre": spec.start_pre, "start-post": spec.start_post, "stop-pre": spec.stop_pre}
    hooks |= {"stop-post": spec.stop_post, "on-failure": spec.on_failure.command if spec.on_failure else ()}
    return [
        ("success-exit-codes", ", ".join(spec.success_exit_codes)),
        ("no-restart-exit-codes", ", ".join(spec.no_restart_exit_codes)),
        ("start-delay", f"{spec.start_delay:g} s" if spec.start_delay else ""),
        ("watchdog", f"{spec.watchdog:g} s" if spec.watchdog else ""),
        ("max-memory", host.size(spec.max_memory) if spec.max_memory else ""),
        *((name, " ".join(shown_words(command))) for name, command in hooks.items()),
        ("log-forward", spec.log_forward.value if spec.log_forward else ""),
    ]


def spans(events: Sequence[StatusEvent], now: int, start: int | None = None) -> list[Span]:
    """The timeline of these events (newest first) from `start` or the first of them up to now; oldest first."""
    if not events:
        return []
    first, timeline, until = events[-1].at if start is None else start, list[Span](), now
    scale = _TIMELINE_WIDTH / max(1, now - first)
    for entry in events:
        x, micros = (entry.at - first) * scale, until - entry.at
        duration, width = serializers.duration_text(micros), max(1.0, micros * scale)
        timeline.append(Span(x, width, entry.new, layout.kind_of(entry.new), entry.at, duration))
        until = entry.at
    return timeline[::-1]


routes: list[Route] = [
    (r"/processes/?", Processes),
    (r"/processes/([^/]+)", ProcessPage),
    (r"/processes/([^/]+)/log", LogLines),
    (r"/history", HistoryPage),
]
