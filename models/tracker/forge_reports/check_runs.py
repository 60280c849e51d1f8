"""The check run of a commit on GitHub: its contents, the requests that set it, and which one was sent.

GitHub appends the annotations of an update to those that a check run has. So a check run whose annotations change, or
that was completed and waits again, is replaced by a new one: GitHub shows the newest one of a name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from attrs import evolve, frozen

from models.outbound.formats import HttpMessage
from models.outbound.tables import store
from models.tracker.coverage.patch import PatchCoverage
from models.tracker.forge_reports.commit_reports import CommitReport, CommitStatus
from models.tracker.forge_reports.forge_requests import request

MAX_ANNOTATIONS = 50
"""GitHub takes no more in a request."""
UNKNOWN = "?"
_CONCLUSIONS = {"success": "success", "failure": "failure"}
_MAX_PATH_CHARACTERS = 1000
_GET = "SELECT check_id, hash, annotations, is_completed FROM forge_check WHERE project_id = ? AND name = ?"
_KEEP = """
    INSERT INTO forge_check (project_id, name, check_id, hash, annotations, is_completed, sent_at)
    VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (project_id, name) DO UPDATE SET
        check_id = excluded.check_id, hash = excluded.hash, annotations = excluded.annotations,
        is_completed = excluded.is_completed, sent_at = excluded.sent_at"""


@frozen
class CheckRun:
    """The contents of a check run. `body` has no annotations."""

    body: Mapping[str, Any]
    annotations: Sequence[Mapping[str, Any]]

    @property
    def is_completed(self) -> bool:
        return "conclusion" in self.body

    @property
    def hash(self) -> str:
        return _hash([self.body, self.annotations])

    @property
    def annotations_hash(self) -> str:
        """Empty without annotations."""
        return _hash(self.annotations) if self.annotations else ""

    def sent_as(self, id: int) -> SentCheck:
        """What the forge has after it has answered with the id of the check run."""
        return SentCheck(id, self.hash, self.annotations_hash, self.is_completed)


@frozen
class SentCheck:
    """The check run that the forge has. `annotations` is `UNKNOWN` while some are added, and if the answer is lost."""

    id: int
    hash: str
    annotations: str
    is_completed: bool

    @property
    def uncertain(self) -> SentCheck:
        """What is known of it while annotations are added: the next report replaces it, rather than add them twice."""
        return evolve(self, hash=UNKNOWN, annotations=UNKNOWN)


def render(
    found: CommitReport, status: CommitStatus, text: str | None, patch: PatchCoverage | None, url: str | None
) -> CheckRun:
    """The check run of a commit. `text` is its page in Markdown, if it is known; `url` is that of this server."""
    body: dict[str, Any] = {"name": status.context, "external_id": str(found.project.id)}
    if url is not None:
        body["details_url"] = url + status.path
    if status.state == "pending":
        body["status"] = "in_progress"
    else:
        body |= {"status": "completed", "conclusion": _CONCLUSIONS[status.state]}
    body["output"] = {"title": status.description, "summary": text or status.description}
    return CheckRun(body, [] if patch is None else _annotations(patch))


def _annotations(patch: PatchCoverage) -> Sequence[Mapping[str, Any]]:
    """One for each range of changed lines without coverage, those of the files that miss most first."""
    files = sorted((file for file in patch.files if file.missed), key=lambda file: (-file.missed, file.path))
    ranges = [(file.path, first, last) for file in files for first, last in file.missed_ranges]
    return [
        {
            "path": path,
            "start_line": first,
            "end_line": last,
            "annotation_level": "warning",
            "title": "Changed lines without coverage",
            "message": f"Line {first} is not covered" if first == last else f"Lines {first} to {last} are not covered",
        }
        for path, first, last in ranges
        if len(path) <= _MAX_PATH_CHARACTERS
    ][:MAX_ANNOTATIONS]


def updated(check: CheckRun, sent: SentCheck | None) -> int | None:
    """The id of the check run that `check` updates; None if it needs a new one."""
    if sent is None or (sent.is_completed and not check.is_completed):
        return None
    return sent.id if sent.annotations in ("", check.annotations_hash) else None


def adds_annotations(check: CheckRun, sent: SentCheck | None) -> bool:
    """Whether annotations are added to a check run that the forge has."""
    return bool(check.annotations) and updated(check, sent) is not None and sent is not None and not sent.annotations


def check_request(found: CommitReport, check: CheckRun, sent: SentCheck | None, token: str) -> HttpMessage:
    """The request that makes a check run, or changes the one that was sent."""
    base = f"/repos/{quote(found.link.path or '')}/check-runs"
    id = updated(check, sent)
    output = dict(check.body["output"])
    if check.annotations and (id is None or adds_annotations(check, sent)):
        output["annotations"] = check.annotations
    body = {**check.body, "output": output}
    if id is None:
        return request(found.forge, token, "POST", base, {**body, "head_sha": found.commit.lower()})
    return request(found.forge, token, "PATCH", f"{base}/{id}", body)


def name_of(found: CommitReport, context: str) -> str:
    """What a check run is kept under. Only the App that made one may change it."""
    app = found.forge.app
    return f"{app.id if app else ''} {(found.link.path or '').lower()} {found.commit} {context}"


def sent(project_id: int, name: str) -> SentCheck | None:
    row = store.execute_sql(_GET, (project_id, name)).fetchone()
    return None if row is None else SentCheck(int(row[0]), str(row[1]), str(row[2]), bool(row[3]))


def keep(project_id: int, name: str, found: SentCheck, now: int) -> None:
    """Records the check run that the forge has; `now` is in microseconds since 1970."""
    values = (project_id, name, found.id, found.hash, found.annotations, int(found.is_completed), now)
    with store.atomic():
        store.execute_sql(_KEEP, values)


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode("utf-8", "replace")).hexdigest()
