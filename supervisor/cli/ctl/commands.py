"""The commands that send one request and print its result: start, stop, restart, signal, reload."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from supervisor.cli.ctl.client import Client
from supervisor.cli.ctl.discovery import data_dirs, lock_holder
from supervisor.cli.ctl.errors import FAILED, OK, UNKNOWN, USAGE, CtlError, ServerAway
from supervisor.cli.ctl.terminal import WIDTH, columns, hanging, instant, json_text, moment, plain, rough

Query = list[tuple[str, str]]
_KILLED = 128 + signal.SIGKILL
DETAILS = "/processes/details"


def selection(selectors: Sequence[str]) -> Query:
    return [("select", selector) for selector in selectors]


def print_json(value: Any) -> None:
    print(json_text(value))


def change(client: Client, arguments: Namespace) -> int:
    """start, stop, restart, signal, clear."""
    query = selection(arguments.selectors)
    if arguments.command == "signal":
        query += [("signal", arguments.signal), ("to", "group" if arguments.group else "main")]
    is_signal = arguments.command == "signal"
    path = "clear-logs" if arguments.command == "clear" else arguments.command
    reply = client.post(f"/processes/{path}", query, tolerated=(400, 500) if is_signal else (500,))
    body = reply.json
    if "results" not in body:
        raise CtlError(plain(str(body.get("message", reply.status))), USAGE if reply.status == 400 else FAILED)
    if arguments.json:
        print_json(body)
    if not body["results"]:
        print("no process is selected", file=sys.stderr)
    killed = _killed(client, body["results"]) if arguments.command == "stop" and not arguments.json else set()
    for result in () if arguments.json else body["results"]:
        has_failed = result["outcome"] == "failed" or (is_signal and result["outcome"] == "not_running")
        suffix = ", by SIGKILL" if result["name"] in killed else ""
        print(plain(result["message"]) + suffix, file=sys.stderr if has_failed else sys.stdout)
    if is_signal and _misses(body["results"], arguments.selectors):
        return FAILED
    return OK if reply.status == 200 else FAILED


def _killed(client: Client, results: Sequence[dict[str, Any]]) -> set[str]:
    """Those of the stopped processes that SIGKILL ended, as their details have it."""
    stopped = {result["name"] for result in results if result["outcome"] == "stopped"}
    try:
        processes = client.get(DETAILS).json if stopped else []
    except CtlError:
        return set()
    return {one["name"] for one in processes if one["name"] in stopped and one["exitCode"] == _KILLED}


def _misses(results: Sequence[dict[str, Any]], selectors: Sequence[str]) -> bool:
    """Whether a signal has reached no process, or not one that was named."""
    stopped = {result["name"] for result in results if result["outcome"] == "not_running"}
    names = {name for selector in selectors for name in selector.split(",")}
    return bool(stopped & names) or (bool(stopped) and len(stopped) == len(results))


def reload(client: Client, arguments: Namespace) -> int:
    query = [("dry-run", "true")] if arguments.dry_run else []
    body = client.post("/supervisor/reload", query).json
    if arguments.json:
        print_json(body)
    else:
        print(plain(body["message"]))
        if body["needRestart"]:
            print(f"these need a restart of pilothouse: {', '.join(body['needRestart'])}")
    return FAILED if body["failed"] else OK


def pid(client: Client, arguments: Namespace) -> int:
    processes = client.get(DETAILS, selection(arguments.selectors)).json
    if arguments.json:
        print_json({process["name"]: process["pid"] for process in processes})
    for process in processes:
        if process["pid"] is None:
            print(f"{plain(process['name'])} is not running ({process['status']})", file=sys.stderr)
        elif not arguments.json:
            print(process["pid"])
    return OK if all(process["pid"] is not None for process in processes) else FAILED


def groups(client: Client, arguments: Namespace) -> int:
    found = client.get("/processes/groups").json
    if arguments.json:
        print_json(found)
    elif found:
        rows = [(plain(group["name"]), f"{group['live']}/{len(group['members'])} live", "") for group in found]
        for head, group in zip(columns(rows), found, strict=True):
            print("\n".join(hanging(head, [plain(name) for name in group["members"]])))
    return OK


def schedule(client: Client, arguments: Namespace) -> int:
    """Shows schedules; `pause` and `resume` change them."""
    verb, *selectors = arguments.words or [""]
    if verb not in ("pause", "resume") or not selectors:
        verb, selectors = "", arguments.words
    reply = client.get(DETAILS, selection(selectors))
    scheduled = [process for process in reply.json if process["schedule"] is not None]
    if not scheduled:
        raise CtlError("none of these has a schedule" if selectors else "no process has a schedule")
    for process in scheduled if verb else ():
        paused = "true" if verb == "pause" else "false"
        client.post(f"/processes/schedule/{quote(process['name'], safe='')}", [("paused", paused)])
    if verb:
        reply = client.get(DETAILS, selection(selectors))
        scheduled = [one for one in reply.json if one["schedule"] is not None]
    if arguments.json:
        print_json([{"name": process["name"], **process["schedule"]} for process in scheduled])
        return OK
    now = reply.now() or time.time()
    tables = [columns(_schedule_rows(scheduled, now, clocks)) for clocks in (2, 1, 0)]
    fitting = (table for table in tables if max(map(len, table)) <= WIDTH)
    print("\n".join(next(fitting, tables[-1])))
    return OK


def _schedule_rows(scheduled: Sequence[dict[str, Any]], now: float, clocks: int) -> list[tuple[str, ...]]:
    """The table of schedules. With `clocks` the next run has its local time, with two of them the last one too."""
    rows: list[tuple[str, ...]] = [("NAME", "SCHEDULE", "NEXT", "LAST", "OUTCOME")]
    for process in scheduled:
        facts = process["schedule"]
        due, last = instant(facts["nextRun"]), instant(facts["lastRun"])
        then = "-" if due is None else f"{moment(due, now)}, " * (clocks > 0) + f"in {rough(due - now)}"
        before = "-" if last is None else f"{moment(last, now)}, " * (clocks > 1) + f"{rough(now - last)} ago"
        cells = (facts["expression"], "paused" if facts["paused"] else then, before, facts["lastOutcome"] or "-")
        rows.append((plain(process["name"]), *cells))
    return rows


def shutdown(options: Namespace) -> int:
    """Sends SIGTERM to the server that holds the lock of the data directory, and waits until it has ended."""
    folders = data_dirs(options)
    for folder in folders:
        holder = lock_holder(folder)
        if holder is None:
            continue
        try:
            handle = os.pidfd_open(holder)
            signal.pidfd_send_signal(handle, signal.SIGTERM)
        except ProcessLookupError:
            return OK
        except PermissionError:
            raise CtlError(f"pid {holder} belongs to another user", code=4) from None
        select.select([handle], [], [])
        print(f"pilothouse (pid {holder}) has ended")
        return OK
    raise ServerAway("no server runs on " + ", ".join(map(str, folders)))


def names(client: Client) -> int:
    """For completion: the names of all processes and groups, and nothing where no server answers."""
    try:
        for process in client.get("/processes").json:
            print(process["name"])
        for group in client.get("/processes/groups").json:
            print(f"@{group['name']}")
    except CtlError:
        return UNKNOWN
    return OK
