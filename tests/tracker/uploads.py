"""Uploads of reports: multipart bodies and small reports to put into them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from conftest import Answer, Server, database_of
from postgresql import ask

INGEST = "/api/v1/ingest"
BOUNDARY = "----boundary7MA4YWxkTrZu0gW"
FORM = f"multipart/form-data; boundary={BOUNDARY}"
RESULT_FIELDS = (
    "runId", "project", "tests", "failures", "skipped", "lineCoveragePct", "projectId", "passed", "failed", "errors",
    "status", "flag", "branch", "commit", "uploads", "gateStatus", "runPath",
    "state", "warnings", "patchCoveragePct",
)  # fmt: skip

Parts = Sequence[tuple[str, str | bytes]]


def part(name: str, content: str | bytes, file: str | None = None, *lines: str) -> bytes:
    """One part. `file` is its file name, `lines` are further header lines."""
    about = f'form-data; name="{name}"' + ("" if file is None else f'; filename="{file}"')
    head = "\r\n".join([f"Content-Disposition: {about}", *lines])
    data = content.encode() if isinstance(content, str) else content
    return f"--{BOUNDARY}\r\n{head}\r\n\r\n".encode() + data + b"\r\n"


def body(parts: Iterable[bytes]) -> bytes:
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def form(parts: Parts) -> bytes:
    """A body like curl's: junit and jacoco are files named by their number, other parts are text."""
    return body(
        part(name, content, f"{name}{number}.xml" if name in ("junit", "jacoco") else None)
        for number, (name, content) in enumerate(parts)
    )


def send(server: Server, sent: bytes, path: str = INGEST, **headers: str) -> Answer:
    return server.post(path, sent, **{"Content_Type": FORM, **headers})


def post(server: Server, *parts: tuple[str, str | bytes], **headers: str) -> Answer:
    return send(server, form(parts), **headers)


def upload(server: Server, *parts: tuple[str, str | bytes], **headers: str) -> Any:
    """Uploads parts, which the server must accept; returns the JSON of its response."""
    answer = post(server, *parts, **headers)
    assert answer.status == 201, answer
    return answer.json


def junit(passed: int = 0, failed: int = 0, errors: int = 0, skipped: int = 0, prefix: str = "c") -> str:
    """A JUnit report with these numbers of test cases."""
    ends = {"": passed, "<failure message='why'/>": failed, "<error/>": errors, "<skipped/>": skipped}
    found = [inner for inner, count in ends.items() for _ in range(count)]
    rows = "".join(f"<testcase classname='A' name='{prefix}{n}' time='0.5'>{x}</testcase>" for n, x in enumerate(found))
    return f"<testsuite name='s'>{rows}</testsuite>"


def jacoco(files: dict[str, dict[int, bool]]) -> str:
    """A JaCoCo report of source files and their lines, with matching counters."""
    sources, total = "", [0, 0]
    for name, lines in files.items():
        rows = "".join(
            f"<line nr='{n}' mi='{int(not hit)}' ci='{int(hit)}' mb='0' cb='0'/>" for n, hit in lines.items()
        )
        hit = sum(lines.values())
        total = [total[0] + hit, total[1] + len(lines) - hit]
        counter = f"<counter type='LINE' missed='{len(lines) - hit}' covered='{hit}'/>"
        sources += f"<sourcefile name='{name}'>{rows}{counter}</sourcefile>"
    counter = f"<counter type='LINE' missed='{total[1]}' covered='{total[0]}'/>"
    return f"<report name='r'><package name='com/x'>{sources}</package>{counter}</report>"


def query_store(server: Server, query: str, *values: Any) -> list[Any]:
    """Runs a query on the tracker's database of a server."""
    if url := database_of(server.data):
        return ask(url, query, values)
    with closing(sqlite3.connect(server.data / "tracker.db", timeout=30)) as store:
        return store.execute(query, values).fetchall()


def incoming_files(server: Server) -> list[Path]:
    """The files in the folder for incoming uploads."""
    return list((server.data / "incoming").iterdir())
