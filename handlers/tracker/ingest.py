"""`POST /ingest`: writes a multipart body of reports to disk as it arrives, and answers when they are stored."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, get_args

from attrs import evolve, make_class
from python_multipart.multipart import parse_options_header
from tornado.web import stream_request_body

from handlers.base import Base
from handlers.http.body_limit import connection_of
from handlers.http.multipart import Part, Parts
from handlers.http.permissions import POST_REPORTS
from handlers.http.serializers import copied
from handlers.operations import Operation, operation_routes
from handlers.routing import Route
from handlers.tracker.responses import FinishedRun, IngestResult
from handlers.tracker.serializers import run_path, state
from models.config.settings import AttachmentSettings, Config, ReportLimits
from models.errors import Invalid, Problem, Unsupported
from models.inputs import InputKind, body, form
from models.json_format import camel_case, http_message
from models.paging import INT64, whole
from models.tracker import visibility
from models.tracker.coverage import diff
from models.tracker.coverage.file_coverage import line_coverage, percent
from models.tracker.files.source_archive import MAX_ARCHIVE_BYTES
from models.tracker.forges import codeowners
from models.tracker.forges.forge_links import without_login
from models.tracker.gate import commit_gate
from models.tracker.reports.upload_folder import FileKind, Received
from models.tracker.runs import store as runs
from models.tracker.runs.store import StoredRun, Upload
from models.tracker.tables import reports

_WRITE_BYTES = 256 * 1024
_MAX_TEXT_CHARACTERS, _MAX_PROJECT_CHARACTERS = 2000, 255
_MAX_NAMED_PARTS = _MAX_NAME_CHARACTERS = 30
_CHARSET = re.compile(
    r"utf-?8|(?:us-)?ascii|iso-?8859-1|latin-?1|(?:windows-|cp)125[0-8]|utf-?16(?:-?[bl]e)?", re.IGNORECASE
)
"""Others, such as idna and punycode, take time that grows with the square of the text."""
_FILES: tuple[FileKind, ...] = get_args(FileKind)
_FIELDS = {
    camel_case(name): name
    for name in (
        "project", "branch", "commit", "flag", "run_key", "repo_url", "build_url", "build_name", "ci_provider",
        "base_branch", "pr_number", "module", "job_key", "job_instance", "attempt", "expected_uploads", "complete",
        "perf_flag", "reruns", "head_repo",
    )
}  # fmt: skip
"""The text parts, and the fields of `Upload` they set."""

_ALIASES: Mapping[str, FileKind] = {"tests": "junit", "coverage": "jacoco"}
_KNOWN_PARTS = tuple(dict.fromkeys((*_FILES, *_ALIASES, *_FIELDS, "codeowners")))
_MAX_WARNED_PARTS, _MAX_EMPTY_CHARACTERS = 10, 200
_NUMBERS = {"prNumber": (0, INT64), "attempt": (-INT64, INT64), "expectedUploads": (1, 10_000)}
_BOOLEANS = {"true": True, "false": False}
_RERUNS = ("worst", "last")
_MAX_JOB_CHARACTERS = 255
_PERF_FLAG = "perf"

_PROJECT = {"type": "string", "minLength": 1, "maxLength": _MAX_PROJECT_CHARACTERS, "examples": ["shop"]}
_TEXTS = {
    "branch": "The branch that was tested",
    "commit": "The commit that was tested",
    "flag": "The part of the project that was tested; `default` if absent",
    "runKey": "Uploads of one project with the same key are one run",
    "repoUrl": "The URL of the project's repository",
    "buildUrl": "The URL of the build",
    "buildName": "The name of the build",
    "ciProvider": "The CI system",
    "baseBranch": "The branch to compare with",
    "headRepo": "The repository of a pull request's commit, where it is a fork",
    "module": "The module that the coverage is of",
    "perfFlag": "The flag of a run that has only performance reports; `perf` if absent",
}
_JOB = {"type": "string", "maxLength": _MAX_JOB_CHARACTERS}


_CUT = {
    "source": MAX_ARCHIVE_BYTES + 1,
    "diff": diff.MAX_DIFF_BYTES + 1,
    "paths": diff.MAX_PATHS_BYTES + 1,
    "codeowners": codeowners.MAX_BYTES + 1,
}
"""How many bytes of a part are written to disk. Beyond its limit a part is ignored with a warning, not refused."""


class Arrival:
    """The part of a request's body that has arrived. `take` and `discard` run in workers, perhaps at the same time."""

    def __init__(self, content_type: str, folder: Path, limits: ReportLimits, attachments: AttachmentSettings) -> None:
        """Raises `Unsupported`, `Invalid`."""
        self.folder = folder
        self._lock = threading.Lock()
        self._gone = False
        self._parts = Parts(
            content_type,
            lambda name: name not in _FIELDS,
            folder,
            most_parts=limits.parts,
            most_of_file=limits.file,
            is_dropped=lambda name: name not in _KNOWN_PARTS,
            cut=_CUT | {"attachment": attachments.file if attachments.enabled else 0},
        )

    def take(self, data: bytes, is_end: bool = False) -> None:
        """Writes the next piece of the body. Raises `Invalid`, `TooLarge`, `OSError`."""
        with self._lock:
            if self._gone:
                return
            self.folder.mkdir(mode=0o700, exist_ok=True)
            self._parts.feed(data)
            if is_end:
                self._parts.end()

    @property
    def kept_bytes(self) -> int:
        """The bytes of text parts in memory."""
        return self._parts.kept_bytes

    def discard(self) -> None:
        """Closes the files, so that the folder may be removed, and frees the parts."""
        with self._lock:
            self._gone = True
            self._parts.discard()

    def project(self) -> str | None:
        """The name of the project, once that part is complete. Raises `Invalid`."""
        parts = [part for part in self._parts.all[:-1] if part.name == "project"]
        return _text(parts[-1]) if parts else None

    def upload(self) -> Upload:
        """The text parts; the last of several with one name. Raises `Invalid`.

        For a worker, as `files`: there may be thousands of parts.
        """
        last = {part.name: part for part in self._parts.all if part.name in _FIELDS}
        values: dict[str, Any] = {_FIELDS[name]: _text(part) for name, part in last.items()}
        project = values.get("project")
        if project is None:
            raise Invalid("project is required")
        if len(project) > _MAX_PROJECT_CHARACTERS or not project.isprintable():
            raise Invalid(f"project must have 1 to {_MAX_PROJECT_CHARACTERS} characters, all of them printable")
        for name, (lowest, highest) in _NUMBERS.items():
            if (text := values.get(_FIELDS[name])) is not None:
                values[_FIELDS[name]] = whole(name, text, lowest, highest)
        for name in ("jobKey", "jobInstance"):
            if len(values.get(_FIELDS[name]) or "") > _MAX_JOB_CHARACTERS:
                raise Invalid(f"{name} has more than {_MAX_JOB_CHARACTERS} characters")
        if (complete := values.get("complete")) is not None:
            if complete.lower() not in _BOOLEANS:
                raise Invalid("complete must be true or false")
            values["complete"] = _BOOLEANS[complete.lower()]
        if values.get("reruns") not in (None, *_RERUNS):
            raise Invalid(f"reruns must be one of {', '.join(_RERUNS)}")
        for field in ("repo_url", "build_url"):
            if values.get(field) is not None:
                values[field] = without_login(values[field])
        if values.get("expected_uploads") is not None and values.get("run_key") is None:
            raise Invalid("expectedUploads needs a runKey: without one, each upload is a run of its own")
        values["warnings"] = [*self._unknown_parts(), *self._empty_reports()]
        owners = next((part for part in reversed(self._parts.all) if part.name == "codeowners" and part.size), None)
        if owners is not None:
            values["codeowners"] = _content(owners, codeowners.MAX_BYTES)
        return Upload(**{field: value for field, value in values.items() if value is not None})

    def _unknown_parts(self) -> list[str]:
        """A warning for each name of a part that means nothing here: a typing error would go unseen."""
        unknown = dict.fromkeys(part.name for part in self._parts.all if part.name not in _KNOWN_PARTS)
        known = ", ".join(_KNOWN_PARTS)
        return [
            f"part {_printable(name)[:_MAX_NAME_CHARACTERS]} was ignored: it is not one of {known}"
            for name in [*unknown][:_MAX_WARNED_PARTS]
        ]

    def _empty_reports(self) -> list[str]:
        """A warning for each report that has a name and no content: a tool that wrote nothing would go unseen."""
        kinds = ((part, _ALIASES.get(part.name, part.name)) for part in self._parts.all if not part.size)
        empty = [
            f"{kind} {_printable(part.file_name)[:_MAX_EMPTY_CHARACTERS]}: the file is empty"
            for part, kind in kinds
            if part.file_name and kind in ("junit", "jacoco", "perf")
        ]
        more = len(empty) - _MAX_WARNED_PARTS
        return empty if more <= 0 else [*empty[:_MAX_WARNED_PARTS], f"{more} more reports are empty"]

    def files(self) -> Sequence[Received]:
        """The files in order, without empty ones. Raises `Invalid` without a test or performance report."""
        reports = [
            Received(kind, _printable(part.file_name or "without a file name"), part.file.name, part.size)
            for part in self._parts.all
            for kind in _FILES
            if _ALIASES.get(part.name, part.name) == kind and part.file is not None and part.size
        ]
        if not any(file.kind in ("junit", "perf") for file in reports):
            names = ", ".join(
                dict.fromkeys(_printable(part.name)[:_MAX_NAMED_PARTS] for part in self._parts.all[:_MAX_NAMED_PARTS])
            )
            raise Invalid(f"at least one part junit is required: a test report that is not empty (there is: {names})")
        return reports


_FILE = {"type": "string", "format": "binary"}
_REPORTS = {"type": "array", "items": _FILE}


def _part(name: str, about: str, schema: Mapping[str, Any], required: bool = False) -> tuple[str, Any]:
    """An input that `Arrival` reads, for the OpenAPI document."""
    kind = InputKind(schema, lambda _, value: value)
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name), form(about, required=required, kind=kind)


_PARTS = (
    _part("project", "The name of the project, which is created if it does not exist", _PROJECT, required=True),
    _part(
        "junit",
        "Test reports, plain or gzipped: JUnit, and other formats, detected by content; required without `perf`",
        _REPORTS | {"minItems": 1},
    ),
    _part("jacoco", "Coverage reports, plain or gzipped: JaCoCo, and other formats, detected by content", _REPORTS),
    _part("attachment", "Files that the reports name; the file name is the path in the report", _REPORTS),
    _part("perf", "Performance reports, plain or gzipped, detected by content; then `junit` is not required", _REPORTS),
    _part("source", "A tar.gz of the covered source files, where `tracker.source.mode` is `upload`", _FILE),
    _part("diff", "The changed lines: a unified diff or JSON of ranges", _FILE),
    _part("paths", "The files of the repository, one a line (`git ls-files`)", _FILE),
    _part("codeowners", "A CODEOWNERS file; taken from trusted uploads of the base branch", _FILE),
    _part("prNumber", "The number of the pull request", {"type": "integer", "format": "int64", "minimum": 0}),
    _part("jobKey", "The job of the CI system: a later attempt of it supersedes the reports of earlier ones", _JOB),
    _part("jobInstance", "The execution of the job; several of one attempt are legs of a matrix", _JOB),
    _part("attempt", "The attempt of the job; its order counts", {"type": "integer", "format": "int64", "default": 0}),
    _part(
        "expectedUploads",
        "How many jobs upload to the run; it is complete when all of them have",
        {"type": "integer", "minimum": 1, "maximum": 10_000},
    ),
    _part("complete", "Whether the run is complete with this upload", {"type": "boolean", "default": False}),
    _part(
        "reruns",
        "Which outcome counts of a test that passed and failed in one suite, where the report does not mark reruns",
        {"type": "string", "enum": list(_RERUNS), "default": "worst"},
    ),
    *(_part(name, about, {"type": "string", "maxLength": _MAX_TEXT_CHARACTERS}) for name, about in _TEXTS.items()),
)
UploadParts = make_class("UploadParts", dict(_PARTS), frozen=True)


@stream_request_body
class IngestHandler(Base):
    """Answers 201 once everything is committed; with any other status, nothing was stored."""

    permission = POST_REPORTS
    takes_forms = True
    _is_received = False
    operations: ClassVar = {
        "POST": Operation(
            None, "POST", "/ingest", "Upload test and coverage reports", UploadParts, None, IngestResult, 201,
            error_statuses=[409, 415, 507], name="ingest",
        )
    }  # fmt: skip

    @classmethod
    def body_limit(cls, config: Config, method: str) -> int:
        return min(config.tracker.limits.request, config.server.max_body)

    def prepare(self) -> None:
        self._piece = bytearray()
        self._unwritten = 0
        self._arrival: Arrival | None = None
        self._fault: Problem | None = None
        self._is_checked = False
        try:
            encoding = self.request.headers.get("Content-Encoding", "identity")
            if encoding.lower() != "identity":
                raise Unsupported("a body with Content-Encoding is not accepted: compress its files, not the form")
            content_type = self.request.headers.get("Content-Type", "")
            tracker = self.config.tracker
            self._arrival = Arrival(content_type, self.tracker.ingest.folder(), tracker.limits, tracker.attachments)
        except Problem as problem:
            self._fault = problem  # raised once the body is discarded

    @property
    def held_bytes(self) -> int:
        return len(self._piece) + self._unwritten + (self._arrival.kept_bytes if self._arrival is not None else 0)

    def data_received(self, chunk: bytes) -> Any:
        self._piece += chunk
        if self._fault is not None:
            raise self._fault
        connection = connection_of(self.request)
        is_short = connection is not None and connection.is_memory_short
        return self._pass_on() if is_short or len(self._piece) >= _WRITE_BYTES else None

    async def _pass_on(self, is_end: bool = False) -> None:
        """Writes the buffered piece to disk, and checks the permission once the project is known."""
        arrival, piece = self._open_arrival(), self._piece
        self._piece, self._unwritten = bytearray(), len(piece)
        await self.tracker.ingest.spool(lambda: arrival.take(bytes(piece), is_end))
        self._unwritten = 0
        if not self._is_checked and (project := arrival.project()) is not None:
            self._is_checked = True
            await self._check(project)

    @property
    def _anonymous_address(self) -> str | None:
        """The address for which a new project counts; None for an account and an operator."""
        if self.caller.user is not None or self.caller.is_operator:
            return None
        return self.caller.account_or_address.removeprefix("address ")

    async def _check(self, project: str) -> None:
        await self.tracker.ingest.check(self.caller.user, project, self._anonymous_address)

    async def post(self) -> None:
        self._is_received = True
        if self._fault is not None:
            raise self._fault
        await self._pass_on(is_end=True)
        arrival = self._open_arrival()
        upload, files = await self.tracker.ingest.spool(lambda: (arrival.upload(), arrival.files()))
        if not any(file.kind == "junit" for file in files):
            default = upload.perf_flag or (None if upload.flag else _PERF_FLAG)
            upload = evolve(upload, flag=default or upload.flag, perf_flag=default)
        upload = evolve(upload, address=self._anonymous_address)
        await self._check(upload.project)
        self._open_arrival()
        self._arrival = None  # its folder is removed by `run`
        arrival.discard()
        stored = await self.tracker.ingest.run(
            arrival.folder,
            upload,
            files,
            self.caller.credential,
            self.caller.account_or_address,
            lambda reading: self.when_left(reading.cancel),
        )
        self.set_status(201)
        self.reply(_answer(stored))

    def _open_arrival(self) -> Arrival:
        """The arrival. Raises `Invalid` where the client has left and it was removed."""
        if self._arrival is None:
            raise Invalid("the client closed the connection")
        return self._arrival

    def drop_body(self) -> None:
        self._piece = bytearray()

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self._discard()

    @property
    def is_answering(self) -> bool:
        return self._is_received

    def on_finish(self) -> None:
        super().on_finish()
        self._discard()
        status = self.get_status()
        outcome = "stored" if status == 201 else "refused" if status < 500 else "failed"
        self.tracker.ingest.answered[outcome] += 1

    def _discard(self) -> None:
        arrival, self._arrival = self._arrival, None
        if arrival is not None:
            self.tracker.ingest.remove(arrival.folder, arrival.discard)


def _answer(stored: StoredRun) -> IngestResult:
    run = stored.run
    return copied(
        IngestResult,
        run,
        run_id=run.id,
        project=stored.project.name,
        failures=run.failed + run.errors,
        line_coverage_pct=line_coverage(run),
        commit=run.commit_sha,
        gate_status=stored.verdict.status,
        run_path=run_path(run),
        warnings=stored.warnings,
        patch_coverage_pct=percent(run.patch_covered, run.patch_missed),
    )


def _content(part: Part, limit: int) -> bytes:
    """The content of a file, cut after one byte more than `limit`."""
    assert part.file is not None
    with part.file.open("rb") as file:
        return file.read(limit + 1)


def _text(part: Part) -> str | None:
    """The content of a text part, trimmed; None where it is blank. Raises `Invalid`."""
    _, options = parse_options_header(part.media_type or "")
    charset = options.get(b"charset", b"utf-8").decode("latin-1")
    if _CHARSET.fullmatch(charset.replace("_", "-")) is None:
        raise Invalid(f"{part.name} has the charset {_printable(charset)}, which is not supported; use utf-8")
    try:
        text = part.content.decode(charset).strip()
        text.encode()
    except (ValueError, LookupError):
        raise Invalid(f"{part.name} is not text in {charset}") from None
    if "\0" in text:
        raise Invalid(f"{part.name} contains NUL")
    if len(text) > _MAX_TEXT_CHARACTERS:
        raise Invalid(f"{part.name} has more than {_MAX_TEXT_CHARACTERS} characters")
    return text or None


def _printable(text: str) -> str:
    """A name for messages."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def _finish_text(is_required: bool) -> Callable[[str, Any], Any]:
    def read(name: str, value: Any) -> str:
        if not isinstance(value, str) or (is_required and not value):
            raise Invalid(f"{name} must be text" + (", and is required" if is_required else ""))
        return value

    return read


def _finish_boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise Invalid(f"{name} must be true or false")
    return value


@http_message
class FinishedUploads:
    project: str = body(
        "The name of the project", required=True, kind=InputKind(_PROJECT, _finish_text(True), reads_absent=True)
    )
    run_key: str = body(
        "The key of the run", required=True, kind=InputKind({"type": "string"}, _finish_text(True), reads_absent=True)
    )
    flag: str | None = body("Its flag", kind=InputKind({"type": ["string", "null"]}, _finish_text(False)))
    partial: bool = body(
        "Whether fewer uploads than expected are enough", False, kind=InputKind({"type": "boolean"}, _finish_boolean)
    )


async def finish_run(handler: Base, request: FinishedUploads) -> FinishedRun:
    """Closes a run; requires the permission to upload."""
    by = handler.caller.user.username if handler.caller.user else "an anonymous caller"
    user, settings, now = handler.caller.user, handler.config.tracker.quality_gate, handler.clock.now()

    def finish() -> FinishedRun:
        with reports.atomic():
            found = visibility.named(user, request.project)
            runs.check_post(user, request.project)
            run = runs.finish(found, request.run_key, request.flag, now, by if request.partial else None)
            runs.trust_only(user, found, run)
            verdict = commit_gate.of_run(run, found, settings).verdict
        return FinishedRun(run.id, state(run), verdict.status, run_path(run))

    finished = await handler.tracker.run(finish)
    handler.services.outbound.run_finished()
    return finished


OPERATIONS = [
    Operation(
        None, "POST", "/runs/finish", "Close a run: nothing more is expected", FinishedUploads, finish_run, FinishedRun,
        error_statuses=[404], name="run_finish", permission=POST_REPORTS,
    )
]  # fmt: skip
routes: list[Route] = [(r"/ingest", IngestHandler), *operation_routes(OPERATIONS)]
