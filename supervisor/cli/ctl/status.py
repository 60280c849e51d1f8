"""`status`: the processes, why each is as it is, and since when."""

from __future__ import annotations

import contextlib
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from supervisor.cli.ctl.client import Client
from supervisor.cli.ctl.commands import DETAILS, print_json, selection
from supervisor.cli.ctl.errors import NOT_RUNNING, OK, CtlError
from supervisor.cli.ctl.logs import LogOutput, sources
from supervisor.cli.ctl.terminal import (
    ENDED,
    UP,
    WIDTH,
    coloured,
    duration,
    instant,
    moment,
    plain,
    rough,
    wants_colour,
)

_LOG_LINES = 10
_GAVE_UP, _START_FAILED = "process.gave_up", "process.start_failed"
_MAX_NOTICES = "100"


def status(client: Client, arguments: Namespace) -> int:
    reply = client.get(DETAILS, selection(arguments.selectors))
    processes = reply.json
    if arguments.json:
        print_json(processes)
    elif processes:
        reasons = _Reasons(client, processes)
        for line in status_lines(processes, reasons, reply.now() or time.time(), wants_colour(arguments.color)):
            print(line)
        if len(processes) == 1 and arguments.selectors == [processes[0]["name"]]:
            _show_logs(client, arguments.selectors)
    all_run = all(_counts_as_running(process) for process in processes)
    return OK if all_run or not arguments.selectors else NOT_RUNNING


def _show_logs(client: Client, selectors: Sequence[str]) -> None:
    """The end of both logs of one process; nothing where it has none, or they may not be read."""
    output = LogOutput(is_raw=not sys.stdout.isatty())
    sys.stdout.flush()
    with contextlib.suppress(CtlError):
        for source in sources(client, selectors):
            output.write(source.label, client.get(source.path, source.query(_LOG_LINES)).body)


def status_lines(processes: Sequence[dict[str, Any]], reasons: _Reasons, now: float, colour: bool) -> list[str]:
    """A line for each process, of at most 80 columns where the names leave room."""
    names = [plain(process["name"]) for process in processes]
    name_width = max(map(len, names))
    status_width = max(len(process["status"]) for process in processes)
    room = WIDTH - name_width - status_width - 4
    return [
        f"{name:<{name_width}}  {coloured(process['status'], status_width, colour)}  "
        f"{about(process, reasons, now, room)}".rstrip()
        for name, process in zip(names, processes, strict=True)
    ]


def about(process: dict[str, Any], reasons: _Reasons, now: float, room: int) -> str:
    """Returns the text after the status. Beyond `room` times of day are omitted and messages cut."""
    words = _facts(process, now)
    words += [f"gave up after {limit}"] if (limit := reasons.limit(process)) else []
    since = reasons.since(process) if process["status"] in ENDED else None
    times = _times(process, since, now, has_clock=True)
    if len(", ".join([*words, *times])) > room:
        times = _times(process, since, now, has_clock=False)
    said = plain(reasons.failure(process) or process["statusText"] or "")
    if said:
        left = room - len(", ".join([*words, "", *times]))
        words.append(said if len(said) <= left or left < len("...") else f"{said[: left - 3]}...")
    return ", ".join([*words, *times])


def _times(process: dict[str, Any], since: float | None, now: float, has_clock: bool) -> list[str]:
    """How long a process has had its status, and when its schedule runs it next; `has_clock` adds times of day."""
    times = []
    if since is not None:
        times += [moment(since, now)] * has_clock + [f"{rough(now - since)} ago"]
    due = instant(process["schedule"]["nextRun"]) if process["schedule"] else None
    if process["schedule"] and process["schedule"]["paused"]:
        times.append("schedule paused")
    elif due is not None:
        times.append(
            f"next run {moment(due, now)}, in {rough(due - now)}" if has_clock else f"runs in {rough(due - now)}"
        )
    return times


def _facts(process: dict[str, Any], now: float) -> list[str]:
    start, due = instant(process["startTime"]), instant(process["nextRestart"])
    words = []
    if process["pid"] is not None:
        words.append(f"pid {process['pid']}")
        if start is not None:
            words.append(f"uptime {duration(now - start)}")
    elif process["exitCode"] is not None:
        words.append(f"exit code {process['exitCode']}")
    if process["waitingFor"] == "restart" and due is not None:
        words.append(f"restart in {duration(due - now)}")
    elif process["waitingFor"] not in (None, "ready"):
        words.append(f"waits for {process['waitingFor'].replace('-', ' ')}")
    return words


class _Reasons:
    """Why processes failed, from the newest notices of failed starts and of limits of restarts that were reached."""

    def __init__(self, client: Client, processes: Sequence[dict[str, Any]]) -> None:
        """Reads them where a process needs them; without the permission to read notices there are none."""
        self._found: dict[tuple[str, str], dict[str, Any]] = {}
        failed = [one["name"] for one in processes if one["status"] in ENDED - {"stopped"}]
        wanted = [_START_FAILED] if any(one["status"] == "failed_to_start" for one in processes) else []
        for kind in [*wanted, _GAVE_UP] if failed else ():
            query = [("name", kind), ("size", _MAX_NOTICES), *([("process", failed[0])] if len(failed) == 1 else [])]
            try:
                notices = client.get("/processes/notices", query).json["content"]
            except CtlError:
                return
            for notice in reversed(notices):
                self._found[kind, notice["processName"]] = notice

    def failure(self, process: dict[str, Any]) -> str:
        """Why the last start failed."""
        notice = self._notice(_START_FAILED, process) if process["status"] == "failed_to_start" else None
        return notice["message"].partition("failed to start: ")[2] if notice else ""

    def limit(self, process: dict[str, Any]) -> str:
        """The limit of restarts after which it was given up, such as `5 restarts`."""
        notice = self._notice(_GAVE_UP, process)
        is_over = notice is not None and process["waitingFor"] is None and process["status"] in ENDED - {"stopped"}
        if notice is None or not is_over or (instant(notice["time"]) or 0) < (self.since(process) or 0):
            return ""
        limit = notice["message"].partition("is not restarted again: ")[2].partition(";")[0]
        return plain(limit.partition(" within ")[0].partition(" in a row")[0])

    def since(self, process: dict[str, Any]) -> float | None:
        """When it ended, or when its last start failed."""
        notice = self._notice(_START_FAILED, process) if process["status"] == "failed_to_start" else None
        return instant(notice["time"] if notice else process["endTime"])

    def _notice(self, kind: str, process: dict[str, Any]) -> dict[str, Any] | None:
        return self._found.get((kind, process["name"]))


def _counts_as_running(process: dict[str, Any]) -> bool:
    if process["status"] in UP:
        return True
    is_job = process["type"] == "oneshot"
    is_due = process["schedule"] is not None and not process["schedule"].get("paused")
    return is_job and (process["status"] == "finished" or is_due)
