"""Helpers for tests of the run stream: accounts, reports, uploads and open streams."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import records
from conftest import Answer, Server, Stream

from models.accounts import accounts

NOW = 1_800_000_000_000_000
RUNS = "/tracker/api/v1/events"

RUN_EVENT = [
    "projectId", "runId", "branch", "flag", "status", "totalTests", "failed", "skipped", "passRatePct",
    "lineCoveragePct", "durationMs", "shortSha", "createdAt", "project", "gateStatus", "gatePassed", "uploads",
]  # fmt: skip
"""In the order of the contract."""

COVERAGE = b"""<?xml version="1.0"?><!DOCTYPE report PUBLIC "-//JACOCO//DTD Report 1.1//EN" "report.dtd">
<report name="r"><package name="p"><sourcefile name="A.java"><line nr="1" mi="0" ci="2" mb="0" cb="0"/>
<line nr="2" mi="1" ci="0" mb="0" cb="0"/><counter type="LINE" missed="1" covered="1"/></sourcefile></package>
<counter type="LINE" missed="1" covered="1"/></report>"""


def junit(passed: int = 1, failed: int = 0, skipped: int = 0, mark: str = "t") -> bytes:
    """A JUnit report; `mark` is in the names of its tests, so that reports of different marks differ."""
    cases = [f'<testcase classname="c" name="{mark}p{n}" time="0.5"/>' for n in range(passed)]
    cases += [f'<testcase classname="c" name="{mark}f{n}"><failure message="no"/></testcase>' for n in range(failed)]
    cases += [f'<testcase classname="c" name="{mark}s{n}"><skipped/></testcase>' for n in range(skipped)]
    return f'<testsuite name="{mark}">{"".join(cases)}</testsuite>'.encode()


def post_files(server: Server, project: str, *files: tuple[str, bytes], token: str = "", **fields: str) -> Answer:
    """Uploads `files` (pairs of part name and content; by default one passed test); returns the response."""
    parts = [
        f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in {"project": project, **fields}.items()
    ]
    for name, content in files or (("junit", junit()),):
        head = f'--b\r\nContent-Disposition: form-data; name="{name}"; filename="{name}.xml"\r\n\r\n'
        parts.append(head.encode() + content + b"\r\n")
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return server.ask("POST", "/api/v1/ingest", b"".join(parts) + b"--b--\r\n", headers)


def upload_files(server: Server, project: str, *files: tuple[str, bytes], token: str = "", **fields: str) -> Any:
    """As `post_files`, which the server must accept; returns the JSON of its response."""
    answer = post_files(server, project, *files, token=token, **fields)
    assert answer.status == 201, answer
    return answer.json


def listen(server: Server, path: str = RUNS, token: str = "", **headers: str) -> Stream:
    """Opens a stream and waits until it is subscribed."""
    if token:
        headers["Authorization"] = f"Bearer {token}"
    stream = server.stream(path, **headers)
    assert stream.status == 200
    assert stream.next() == {"event": "connected", "retry": "3000", "data": "{}"}
    return stream


def next_event(stream: Stream) -> dict[str, Any]:
    """The data of the next event, which must be a run."""
    event = stream.next()
    assert event["event"] == "run", event
    data: dict[str, Any] = json.loads(event["data"])
    assert event["data"] == json.dumps(data, separators=(",", ":"), ensure_ascii=False), "not compact"
    return {**data, "id": int(event["id"])}


def commits(stream: Stream, count: int) -> list[str]:
    """The short commits of the next runs."""
    return [str(next_event(stream)["shortSha"]) for _ in range(count)]


def open_store(data: Path) -> contextlib.AbstractContextManager[None]:
    """Opens the tracker's store, before its server starts or while it runs."""
    return records.store_at(data / "tracker.db")


def create_accounts(data: Path, names: Sequence[str], admins: Sequence[str] = ()) -> Mapping[str, str]:
    """Creates accounts without a password; returns a token for each name."""
    with open_store(data):
        users = [accounts.create_user(name, "!", "ADMIN" if name in admins else "USER", NOW) for name in names]
        return {user.username: accounts.create_token(user.id, "t", "FULL", None, NOW) for user in users}
