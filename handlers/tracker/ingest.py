"""`POST /ingest`: reports come as a multipart body, which goes to disk as it comes, and are answered when stored."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from python_multipart.multipart import parse_options_header
from tornado.web import stream_request_body

from handlers.base import Base
from handlers.http.multipart import Part, Parts
from handlers.http.permissions import POST_REPORTS
from handlers.openapi.describe import Body, Endpoint, Field
from handlers.routing import Route
from handlers.tracker.responses import IngestResult
from handlers.tracker.serializers import judged, run_path
from models.config.settings import Config, ReportLimits
from models.errors import Invalid, Problem, TooLarge, Unsupported
from models.paging import INT64, whole
from models.tracker.percentages import line_coverage
from models.tracker.runs import Stored, Upload
from supervisor.tracker.ingest import Received

_PIECE = 256 * 1024
_LONGEST, _LONGEST_PROJECT = 2000, 255
_NAMED = 30
_NO_LIMIT = 2**62
_FILES: tuple[Literal["junit"], Literal["jacoco"]] = ("junit", "jacoco")
_FIELDS = {
    "project": "project", "branch": "branch", "commit": "commit", "flag": "flag", "runKey": "run_key",
    "repoUrl": "repo_url", "buildUrl": "build_url", "buildName": "build_name", "ciProvider": "ci_provider",
    "baseBranch": "base_branch", "prNumber": "pr_number", "module": "module",
}  # fmt: skip
"""The text parts, and what they are of an `Upload`."""


_PROJECT = {"type": "string", "minLength": 1, "maxLength": _LONGEST_PROJECT, "examples": ["shop"]}
_TEXTS = {
    "branch": "The branch that was tested",
    "commit": "The commit that was tested",
    "flag": "Which part of the project; `default` where there is none",
    "runKey": "Uploads of one key in one project are one run",
    "repoUrl": "Where the project's source is",
    "buildUrl": "Where the build is",
    "buildName": "What the build is called",
    "ciProvider": "Who built it",
    "baseBranch": "The branch to compare with",
    "module": "The module that the coverage is of",
}


class Arrival:
    """The body of one request, as far as it has come. `take` and `discard` are for a worker, and may meet there."""

    def __init__(self, content_type: str, folder: Path, limits: ReportLimits) -> None:
        """Raises `Unsupported`, `Invalid`."""
        self.folder = folder
        self._limits = limits
        self._lock = threading.Lock()
        self._gone = False
        self._parts = Parts(
            content_type, lambda name: name not in _FIELDS, folder, most_parts=_NO_LIMIT, most_of_file=limits.file
        )

    def take(self, data: bytes, is_end: bool = False) -> None:
        """The next piece of the body. Raises `Invalid`, `TooLarge`, `OSError`."""
        with self._lock:
            if self._gone:
                return
            self.folder.mkdir(mode=0o700, exist_ok=True)
            self._parts.feed(data)
            if len(self._parts.all) > self._limits.parts:
                raise TooLarge(f"the request has more than {self._limits.parts} parts")
            if is_end:
                self._parts.end()

    def discard(self) -> None:
        """Lets go of all of it: the folder may be removed."""
        with self._lock:
            self._gone = True
            self._parts.close()

    def project(self) -> str | None:
        """The name of the project, if that part has come whole. Raises `Invalid`."""
        found = [part for part in self._parts.all[:-1] if part.name == "project"]
        return _text(found[-1]) if found else None

    def upload(self) -> Upload:
        """What the text parts say; of several of one name the last. Raises `Invalid`.

        As `files`, for a worker: there may be thousands of parts.
        """
        last = {part.name: part for part in self._parts.all if part.name in _FIELDS}
        said: dict[str, Any] = {_FIELDS[name]: _text(part) for name, part in last.items()}
        project = said.get("project")
        if project is None:
            raise Invalid("project is required")
        if len(project) > _LONGEST_PROJECT or not project.isprintable():
            raise Invalid(f"project must have 1 to {_LONGEST_PROJECT} characters, all of them printable")
        if said.get("pr_number") is not None:
            said["pr_number"] = whole("prNumber", said["pr_number"], 0, INT64)
        return Upload(**said)

    def files(self) -> Sequence[Received]:
        """The reports in their order, but the empty ones. Raises `Invalid` where there is no test report."""
        found = [
            Received(kind, _shown(part), part.file)
            for part in self._parts.all
            for kind in _FILES
            if part.name == kind and part.file is not None and part.size
        ]
        if not any(file.kind == "junit" for file in found):
            came = ", ".join(dict.fromkeys(_printable(part.name)[:_NAMED] for part in self._parts.all[:_NAMED]))
            raise Invalid(f"at least one part junit is required: a test report that is not empty (there is: {came})")
        return found


_REPORTS = {"type": "array", "items": {"type": "string", "format": "binary"}}
_PARTS = (
    Field("project", "The name of the project, which is made where there is none", _PROJECT, required=True),
    Field(
        "junit", "Reports of tests, plain or gzipped; JUnit, and others by content", _REPORTS | {"minItems": 1}, True
    ),
    Field("jacoco", "Reports of coverage, plain or gzipped; JaCoCo, and others by content", _REPORTS),
    Field("prNumber", "The number of the pull request", {"type": "integer", "format": "int64", "minimum": 0}),
    *(Field(name, about, {"type": "string", "maxLength": _LONGEST}) for name, about in _TEXTS.items()),
)


@stream_request_body
class Ingest(Base):
    """The answer is 201 when all is committed; nothing of a request that is answered otherwise was stored."""

    permission = POST_REPORTS
    takes_forms = True
    endpoints: ClassVar = {
        "POST": Endpoint(
            "Post reports of tests and coverage",
            IngestResult,
            201,
            body=Body("multipart/form-data", _PARTS),
            fails=[415],
            name="ingest",
        )
    }

    @classmethod
    def body_limit(cls, config: Config) -> int:
        return min(config.tracker.limits.request, config.server.max_body)

    def prepare(self) -> None:
        self._piece = bytearray()
        self._arrival: Arrival | None = None
        self._fault: Problem | None = None
        self._is_checked = False
        try:
            encoding = self.request.headers.get("Content-Encoding", "identity")
            if encoding.lower() != "identity":
                raise Unsupported("a body with Content-Encoding is not taken: gzip its files, not the form")
            content_type = self.request.headers.get("Content-Type", "")
            limits = self.services.config.tracker.limits
            self._arrival = Arrival(content_type, self.services.ingest.folder(), limits)
        except Problem as problem:
            self._fault = problem  # told when the body was dropped

    def data_received(self, chunk: bytes) -> Any:
        self._piece += chunk
        if self._fault is not None:
            raise self._fault
        return self._pass_on() if len(self._piece) >= _PIECE else None

    async def _pass_on(self, is_end: bool = False) -> None:
        """Has what has come written to disk, and looks whether its project may be posted to."""
        arrival, piece = self._come(), bytes(self._piece)
        self._piece.clear()
        await self.services.ingest.spool(lambda: arrival.take(piece, is_end))
        if not self._is_checked and (project := arrival.project()) is not None:
            self._is_checked = True
            await self.services.ingest.check(self.caller.user, project)

    async def post(self) -> None:
        if self._fault is not None:
            raise self._fault
        await self._pass_on(is_end=True)
        arrival = self._come()
        upload, files = await self.services.ingest.spool(lambda: (arrival.upload(), arrival.files()))
        await self.services.ingest.check(self.caller.user, upload.project)
        self._come()
        self._arrival = None  # who reads it removes it
        stored = await self.services.ingest.run(arrival.folder, upload, files, self.caller.credential)
        self.set_status(201)
        self.reply(_answer(stored))

    def _come(self) -> Arrival:
        """What has come. Raises `Invalid` where its client has left, and it was removed."""
        if self._arrival is None:
            raise Invalid("the client left")
        return self._arrival

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self._discard()

    def on_finish(self) -> None:
        self._discard()
        status = self.get_status()
        outcome = "stored" if status == 201 else "refused" if status < 500 else "failed"
        self.services.ingest.answered[outcome] += 1

    def _discard(self) -> None:
        arrival, self._arrival = self._arrival, None
        if arrival is not None:
            self.services.ingest.remove(arrival.folder, arrival.discard)


def _answer(stored: Stored) -> IngestResult:
    run = stored.run
    return IngestResult(
        run_id=run.id,
        project=stored.project.name,
        tests=run.tests,
        failures=run.failed + run.errors,
        skipped=run.skipped,
        line_coverage_pct=line_coverage(run),
        project_id=stored.project.id,
        passed=run.passed,
        failed=run.failed,
        errors=run.errors,
        status=judged(run),
        flag=run.flag,
        branch=run.branch,
        commit=run.commit_sha,
        uploads=run.uploads,
        gate_status=stored.verdict.status,
        run_path=run_path(run),
    )


def _text(part: Part) -> str | None:
    """What a text part says, trimmed; None where that is nothing. Raises `Invalid`."""
    _, options = parse_options_header(part.media_type or "")
    charset = options.get(b"charset", b"utf-8").decode("latin-1")
    try:
        text = part.content.decode(charset).strip()
        text.encode()
    except (ValueError, LookupError):
        raise Invalid(f"{part.name} is not text in {charset}") from None
    if "\0" in text:
        raise Invalid(f"{part.name} has a NUL in it")
    if len(text) > _LONGEST:
        raise Invalid(f"{part.name} has more than {_LONGEST} characters")
    return text or None


def _shown(part: Part) -> str:
    """The name of a file, in words for people."""
    return _printable(part.file_name or "without a file name")


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


routes: list[Route] = [(r"/ingest", Ingest)]
