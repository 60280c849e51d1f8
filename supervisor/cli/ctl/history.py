"""`events` and `wait`: past and future status changes."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections.abc import Collection, Iterable, Iterator
from typing import Any
from urllib.parse import quote

from supervisor.cli.ctl.client import Client, EventStream
from supervisor.cli.ctl.commands import DETAILS, print_json, selection
from supervisor.cli.ctl.errors import FAILED, OK, TIMED_OUT, UNKNOWN, USAGE, CtlError, ServerAway
from supervisor.cli.ctl.terminal import ENDED, UP, coloured, duration, instant, json_text, plain, wants_colour

_STATUSES = UP | ENDED | {"not_started", "starting", "stopping"}
_PAGE = 100
_MAX_PAGES = 100
_RECONNECT_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)


def events(client: Client, arguments: Namespace) -> int:
    """Shows status changes, and with `--notices` notices; with `--follow` until it is interrupted."""
    if arguments.status is not None and arguments.status not in _STATUSES:
        raise CtlError(f"--status {arguments.status!r} is not one of {', '.join(sorted(_STATUSES))}", USAGE)
    log = _EventLog(client, arguments)
    for entry in log.newest():
        log.show(entry)
    if arguments.follow:
        log.follow()
    return OK


class _EventLog:
    def __init__(self, client: Client, arguments: Namespace) -> None:
        self._client = client
        self._arguments = arguments
        self._colour = wants_colour(arguments.color)
        self._names = self._selected()
        self._last_id = 0

    def _selected(self) -> frozenset[str] | None:
        """The names to show; `None` for all. A single name may be one that is configured no more."""
        selectors = self._arguments.selectors
        if not selectors:
            return None
        try:
            return frozenset(one["name"] for one in self._client.get("/processes", selection(selectors)).json)
        except CtlError as error:
            if error.code != UNKNOWN or len(selectors) > 1:
                raise
            self._client.get(f"/events/by-process/{quote(selectors[0], safe='')}", [("size", "1")])
            return frozenset(selectors)

    def newest(self) -> list[dict[str, Any]]:
        """The newest entries that match, oldest first."""
        first = self._client.get("/events", [("size", "1")]).json["content"]
        self._last_id = first[0]["id"] if first else 0
        found = self._matching(self._path())
        if self._arguments.notices:
            found = [*found, *self._matching("/processes/notices")]
            found.sort(key=lambda entry: str(entry.get("eventTime") or entry.get("time")), reverse=True)
        return found[: self._arguments.lines][::-1]

    def _path(self) -> str:
        if self._names is not None and len(self._names) == 1:
            (name,) = self._names
            return f"/events/by-process/{quote(name, safe='')}"
        if self._arguments.status is not None:
            return f"/events/by-status/{self._arguments.status}"
        return "/events"

    def _matching(self, path: str) -> list[dict[str, Any]]:
        """The newest entries of one listing, newest first."""
        found: list[dict[str, Any]] = []
        for number in range(_MAX_PAGES):
            query = [("page", str(number)), ("size", str(_PAGE)), ("sortDirection", "desc")]
            page = self._client.get(path, query).json
            found += [entry for entry in page["content"] if self._matches(entry)]
            if page["last"] or len(found) >= self._arguments.lines:
                break
        return found[: self._arguments.lines]

    def _matches(self, entry: dict[str, Any]) -> bool:
        if self._names is not None and entry["processName"] not in self._names:
            return False
        return self._arguments.status in (None, entry.get("newStatus"))

    def show(self, entry: dict[str, Any]) -> None:
        if self._arguments.json:
            print(json_text(entry), flush=True)
        elif "newStatus" not in entry:
            name = plain(entry["processName"] or "-")
            print(f"{entry['time']}  {name}  {entry['name']}: {plain(entry['message'])}", flush=True)
        else:
            facts = [f"pid {entry['pid']}"] if entry["pid"] is not None else []
            facts += [f"exit code {entry['exitCode']}"] if entry["exitCode"] is not None else []
            status = coloured(entry["newStatus"], 0, self._colour)
            about = f" ({', '.join(facts)})" if facts else ""
            change = f"{entry['oldStatus']} -> {status}{about}"
            print(f"{entry['eventTime']}  {plain(entry['processName'])}  {change}", flush=True)

    def follow(self) -> None:
        """Shows changes as they happen; resumes after a lost connection. Raises `CtlError` if refused."""
        attempt = 0
        while True:
            try:
                for event in self._stream():
                    attempt = 0
                    self._take(event)
            except (ServerAway, TimeoutError) as error:
                if not attempt:
                    print(f"{str(error).splitlines()[0]}; reconnecting", file=sys.stderr)
                time.sleep(_RECONNECT_SECONDS[min(attempt, len(_RECONNECT_SECONDS) - 1)])
                attempt += 1

    def _stream(self) -> EventStream:
        query = [("notices", "true")] if self._arguments.notices else []
        return self._client.stream("/processes/stream", query, **{"Last-Event-ID": str(self._last_id)})

    def _take(self, event: dict[str, str]) -> None:
        if event.get("event") not in ("status", "notice"):
            return
        entry = json.loads(event["data"])
        if event["event"] == "status":
            self._last_id = entry["id"]
        if self._matches(entry):
            self.show(entry)


def wait(client: Client, arguments: Namespace) -> int:
    """Waits until the processes are in the wanted state. Returns 1 if they can no longer reach it."""
    if arguments.target not in _STATUSES | {"ready", "ended"}:
        raise CtlError(f"--for {arguments.target!r} is not ready, ended or a status", USAGE)
    end = time.monotonic() + arguments.wait_timeout
    stream = client.stream("/processes/stream")  # before the first look, so that no change is missed
    query = selection(arguments.selectors)
    processes = client.get(DETAILS, query).json
    names = {process["name"] for process in processes}
    hopeless = _unchecked(client, names) if arguments.target in ("healthy", "unhealthy") else set()
    for _ in _changes(stream, names, end):
        if _is_decided(processes := client.get(DETAILS, query).json, arguments, hopeless):
            break
    else:
        print(f"timed out after {arguments.wait_timeout:g} s: {_states(processes)}", file=sys.stderr)
        return TIMED_OUT
    if arguments.json:
        print_json(processes)
    reached = [_has_reached(process, arguments.target) for process in processes]
    if any(reached) if arguments.any else all(reached):
        return OK
    without = f" ({', '.join(map(plain, sorted(hopeless)))}: no health check)" if hopeless else ""
    print(f"the state can no longer be reached: {_states(processes)}{without}", file=sys.stderr)
    return FAILED


def _changes(stream: EventStream, names: set[str], end: float) -> Iterator[None]:
    """Yields at once, then after each change of one of the processes; ends with the time."""
    yield
    try:
        stream.limit(max(0.001, end - time.monotonic()))
        for event in stream:
            if event.get("event") == "status" and json.loads(event["data"])["processName"] in names:
                yield
            if time.monotonic() >= end:
                return
            stream.limit(max(0.001, end - time.monotonic()))
    except TimeoutError:
        return


def _unchecked(client: Client, names: Iterable[str]) -> set[str]:
    """Those without a health check."""
    return {name for name in names if client.get(f"/processes/health/{quote(name, safe='')}").json["check"] is None}


def _is_decided(processes: list[dict[str, Any]], arguments: Namespace, hopeless: Collection[str]) -> bool:
    """Whether the wanted state is reached, or cannot be; the `hopeless` processes can never reach it."""
    reached = [_has_reached(process, arguments.target) for process in processes]
    lost = [
        not has and (process["name"] in hopeless or (_has_ended(process) and not _is_due(process)))
        for has, process in zip(reached, processes, strict=True)
    ]
    if arguments.any:
        return any(reached) or all(lost)
    return all(reached) or any(lost)


def _has_ended(process: dict[str, Any]) -> bool:
    return process["status"] in ENDED and process["waitingFor"] is None


def _is_due(process: dict[str, Any]) -> bool:
    return process["schedule"] is not None and not process["schedule"].get("paused")


def _has_reached(process: dict[str, Any], target: str) -> bool:
    status = process["status"]
    if target == "ended":
        return _has_ended(process)
    if target != "ready":
        return bool(status == target)
    if process["type"] == "oneshot":
        return bool(status == "finished")
    return status == "healthy" or (status == "running" and process["waitingFor"] is None)


def _states(processes: list[dict[str, Any]]) -> str:
    return ", ".join(f"{plain(process['name'])} is {process['status']}" for process in processes)


def _end_of(process: dict[str, Any]) -> str:
    """`backup is finished (exit code 0, after 12s)`"""
    start, end = instant(process["startTime"]), instant(process["endTime"])
    facts = [] if process["exitCode"] is None else [f"exit code {process['exitCode']}"]
    if start is not None and end is not None and end >= start:
        facts.append(f"after {duration(end - start)}")
    about = f" ({', '.join(facts)})" if facts else ""
    return f"{plain(process['name'])} is {process['status']}{about}"


def wait_for_jobs(client: Client, selectors: list[str], stream: EventStream, is_quiet: bool = False) -> int:
    """After `start --wait`: waits until the started jobs have ended, and prints how; 1 where one did not finish.

    With `is_quiet` only failures are printed.
    """
    query = selection(selectors)
    while True:
        jobs = [process for process in client.get(DETAILS, query).json if process["type"] == "oneshot"]
        if all(process["status"] in ENDED and process["waitingFor"] is None for process in jobs):
            for process in jobs:
                has_finished = process["status"] == "finished"
                if not is_quiet or not has_finished:
                    print(_end_of(process), file=sys.stdout if has_finished else sys.stderr)
            return OK if all(process["status"] == "finished" for process in jobs) else FAILED
        next(iter(stream))
