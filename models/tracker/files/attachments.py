"""Attachments of tests and runs: the test of each file, limits, and deletion."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from attrs import frozen

from models.config.settings import AttachmentSettings
from models.errors import NotFound
from models.tracker.files.attachment_files import AttachmentFolder, StagedFile
from models.tracker.tables import Run, reports, stored_bytes

BATCH_ROWS = 500
MAX_LISTED = 500
_MAX_REFERENCES = 100_000
_MAX_ROWS = 50_000
"""Rows that one upload adds: the store is locked meanwhile."""

_REFERENCES = """
    SELECT a.place, a.case_id, s.kind, s.hash, (SELECT min(c.id) FROM cases c WHERE c.id BETWEEN s.first AND s.last)
    FROM attachments a JOIN reports s ON s.number = a.report JOIN cases k ON k.id = a.case_id
    WHERE a.place IN (SELECT place FROM attached) ORDER BY a.id LIMIT ?"""
_REPORT = "SELECT max(id) FROM report WHERE run_id = ? AND kind = ? AND hash = ?"
_FIRST_RESULT = "SELECT min(id) FROM result WHERE run_id = ? AND report_id = ?"
_INSERT = """
    INSERT INTO attachment (project_id, run_id, report_id, result_id, name, hash, size, type, created_at, is_anonymous)
    SELECT :project, :run, :report, :result, :name, :hash, :size, :type, :now, :anonymous
    WHERE NOT EXISTS
    (SELECT 1 FROM attachment WHERE run_id = :run AND result_id IS :result AND name = :name AND hash = :hash)"""
_OF_PROJECT = "WHERE project_id = ? AND"
_IS_USED = "SELECT 1 FROM attachment WHERE hash = ? LIMIT 1"
_COLUMNS = "a.id, a.run_id, a.result_id, a.name, a.hash, a.size, a.type"


@frozen
class Attachment:
    id: int
    run_id: int
    result_id: int | None
    """None: it belongs to the run, because no report refers to it."""
    name: str
    hash: str
    size: int
    type: str


@frozen
class AttachedTest:
    """An attachment with the name of its test."""

    attachment: Attachment
    class_name: str | None
    name: str | None


@frozen
class _Reference:
    case: int
    kind: str
    hash: str
    first_case: int


Target = tuple[int | None, int | None]
"""The ids of the report and the result that an attachment is of."""


def add(
    run: Run,
    files: Sequence[StagedFile],
    folder: AttachmentFolder,
    settings: AttachmentSettings,
    now: int,
    is_anonymous: bool = False,
) -> tuple[list[str], Collection[str]]:
    """Stores the attachments of an upload, whose reports are stored already, in the same transaction.

    Beyond the share of the project, or the total, the oldest of the same project are deleted, those of anonymous
    uploaders first: an upload takes nothing from another project. Returns warnings, and the hashes of contents that may
    have lost their last row.
    """
    if not files:
        return [], ()
    room = _Room(run.project_id, settings)
    warnings = _insert(run, files, folder, settings, {"now": now, "anonymous": int(is_anonymous)})
    return [*warnings, *room.make()], room.deleted


def _insert(
    run: Run,
    files: Sequence[StagedFile],
    folder: AttachmentFolder,
    settings: AttachmentSettings,
    common: Mapping[str, int],
) -> list[str]:
    """Inserts the rows of the files, and moves the files to their places. Returns warnings.

    `common` has what all rows have.
    """
    targets, places = _targets(run), dict(reports.execute_sql("SELECT name, place FROM attached").fetchall())
    used = int(
        reports.execute_sql("SELECT coalesce(sum(size), 0) FROM attachment WHERE run_id = ?", (run.id,)).fetchone()[0]
    )
    of_case, beyond, rows = Counter[int](), Counter[str](), 0
    for file in files:
        if used + file.size > settings.per_run:
            beyond[f"more than {settings.per_run} bytes for one run"] += 1
            continue
        referring = targets.get(places.get(file.name, ""), [])
        kept = [target for target in referring if target[1] is None or of_case[target[1]] < settings.per_case]
        if referring and not kept:
            beyond[f"more than {settings.per_case} for one test"] += 1
            continue
        if rows + len(kept) > _MAX_ROWS:
            beyond[f"more than {_MAX_ROWS} tests refer to the attachments of one upload"] += 1
            continue
        if referring:
            referring[:] = kept  # the next file of this name passes over those that have enough
        folder.keep(file)
        used += file.size
        rows += len(kept)
        facts = {**common, "project": run.project_id, "run": run.id, "name": file.name}
        facts |= {"hash": file.hash, "size": file.size, "type": file.type}
        for report, result in kept or [(None, None)]:
            reports.execute_sql(_INSERT, {**facts, "report": report, "result": result})
            if result is not None:
                of_case[result] += 1
    return [f"{count} attachment(s) were not stored: {why}" for why, count in beyond.items()]


def share_of_project(settings: AttachmentSettings) -> int:
    """The bytes that the attachments of one project may have."""
    return settings.total // 4 if settings.per_project is None else settings.per_project


class _Room:
    """Made before an upload is stored: what was stored already is not its excess, if a limit has been lowered since."""

    def __init__(self, project: int, settings: AttachmentSettings) -> None:
        self._project, self._settings = project, settings
        self._share = max(share_of_project(settings), _bytes_of(project))
        self._total = max(settings.total, stored_bytes("attachment_content"))
        self._last = int(reports.execute_sql("SELECT coalesce(max(id), 0) FROM attachment").fetchone()[0])
        self.deleted: set[str] = set()
        """The hashes of deleted rows."""

    def make(self) -> list[str]:
        """Deletes rows of the project, as `_evict`. Returns warnings about those that the upload itself stored."""
        settings = self._settings
        own = self._evict(lambda: _bytes_of(self._project) > self._share)
        everywhere = self._evict(lambda: stored_bytes("attachment_content") > self._total)
        refused = (
            (own, f"more than {share_of_project(settings)} bytes for one project"),
            (everywhere, f"more than {settings.total} bytes for all projects"),
        )
        return [f"{len(hashes)} attachment(s) were not stored: {why}" for hashes, why in refused if hashes]

    def _evict(self, is_full: Callable[[], bool]) -> set[str]:
        """Returns the hashes of deleted rows that the upload stored."""
        deleted = list(_evict(is_full, _OF_PROJECT, (self._project,)))
        self.deleted.update(hash for _, hash in deleted)
        return {hash for id, hash in deleted if id > self._last}


def _bytes_of(project: int) -> int:
    """The bytes of the attachments of a project; equal contents count once."""
    return int(reports.execute_sql("SELECT attachment_bytes FROM project WHERE id = ?", (project,)).fetchone()[0])


def _targets(run: Run) -> dict[str, list[Target]]:
    """The reports and results that refer to uploaded files, by the path."""
    results, found = _Results(run), defaultdict[str, dict[Target, None]](dict)
    for place, *reference in reports.execute_sql(_REFERENCES, (_MAX_REFERENCES,)):  # row by row: they may be many
        found[place][results.of(_Reference(*reference))] = None
    return {place: list(targets) for place, targets in found.items()}


class _Results:
    """The result of each case of the uploaded reports, by the first ids of both: their order is the same."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._known: dict[tuple[str, str], tuple[int, int] | None] = {}

    def of(self, reference: _Reference) -> Target:
        """The ids of the report and the result; None where the report is no longer of this run."""
        key = reference.kind, reference.hash
        if key not in self._known:
            report = reports.execute_sql(_REPORT, (self._run.id, *key)).fetchone()[0]
            first = report and reports.execute_sql(_FIRST_RESULT, (self._run.id, report)).fetchone()[0]
            self._known[key] = (int(report), int(first)) if first is not None and report is not None else None
        known = self._known[key]
        return (None, None) if known is None else (known[0], known[1] + reference.case - reference.first_case)


def _evict(is_full: Callable[[], bool], where: str = "WHERE", values: Sequence[int] = ()) -> Iterator[tuple[int, str]]:
    """Deletes some rows as long as there are too many bytes: the oldest of anonymous uploaders first, then the oldest.

    Yields their ids and hashes.
    """
    for only in ("is_anonymous = 1", "is_anonymous = 0"):
        query = f"SELECT id, hash FROM attachment {where} {only} ORDER BY id LIMIT 1"  # noqa: S608 (constants)
        while is_full() and (row := reports.execute_sql(query, values).fetchone()):
            reports.execute_sql("DELETE FROM attachment WHERE id = ?", (row[0],))
            yield row[0], row[1]


def delete_excess(settings: AttachmentSettings) -> Collection[str]:
    """Deletes some attachments beyond the shares of projects and the total, oldest first, after a limit was lowered.

    Returns their hashes; none where there is no excess.
    """
    share = share_of_project(settings)
    with reports.atomic():
        full = "SELECT id FROM project WHERE attachment_bytes > ? ORDER BY id LIMIT 1"
        project = reports.execute_sql(full, (share,)).fetchone()
        if project is not None:
            excess = _evict(lambda: _bytes_of(project[0]) > share, _OF_PROJECT, project)
        else:
            excess = _evict(lambda: stored_bytes("attachment_content") > settings.total)
        return {hash for _, hash in islice(excess, BATCH_ROWS)}


def delete_expired(before: int) -> Collection[str]:
    """Deletes some attachments that were stored before a time. Returns their hashes; none where there are none."""
    with reports.atomic():
        rows = reports.execute_sql(
            "SELECT id, hash FROM attachment WHERE created_at < ? ORDER BY id LIMIT ?", (before, BATCH_ROWS)
        ).fetchall()
        reports.write_many("DELETE FROM attachment WHERE id = ?", [(id,) for id, _ in rows])
    return {hash for _, hash in rows}


def hashes_of(run_id: int) -> Collection[str]:
    """The contents of the attachments of a run, which is to be deleted."""
    return {row[0] for row in reports.execute_sql("SELECT hash FROM attachment WHERE run_id = ?", (run_id,))}


def remove_unused(folder: AttachmentFolder, hashes: Iterable[str]) -> None:
    """Removes those of these contents that no attachment has. Raises `OSError`."""
    batch = list(hashes)
    for start in range(0, len(batch), BATCH_ROWS):
        with reports.atomic():
            some = batch[start : start + BATCH_ROWS]
            folder.remove([hash for hash in some if reports.execute_sql(_IS_USED, (hash,)).fetchone() is None])


def attachment(id: int) -> Attachment:
    """Raises `NotFound`."""
    row = reports.execute_sql(f"SELECT {_COLUMNS} FROM attachment a WHERE a.id = ?", (id,)).fetchone()  # noqa: S608
    if row is None:
        raise no_attachment(id)
    return Attachment(*row)


def no_attachment(id: int) -> NotFound:
    """The error for one that is missing, and for one whose run the caller cannot read."""
    return NotFound(f"there is no attachment {id}", "ATTACHMENT_NOT_FOUND")


def of_results(ids: Sequence[int]) -> dict[int, list[Attachment]]:
    """The attachments of results, by their ids."""
    query = f"SELECT {_COLUMNS} FROM attachment a WHERE a.result_id IN (SELECT value FROM json_each(?)) ORDER BY a.id"  # noqa: S608
    found: dict[int, list[Attachment]] = defaultdict(list)
    for row in reports.execute_sql(query, (json.dumps(list(ids)),)) if ids else ():
        found[row[2]].append(Attachment(*row))
    return found


def of_run(run_id: int) -> list[Attachment]:
    """The attachments of a run that belong to no test."""
    query = f"SELECT {_COLUMNS} FROM attachment a WHERE a.run_id = ? AND a.result_id IS NULL ORDER BY a.id LIMIT ?"  # noqa: S608
    return [Attachment(*row) for row in reports.execute_sql(query, (run_id, MAX_LISTED))]


def listing(run_id: int, after: int, limit: int) -> list[AttachedTest]:
    """The attachments of a run after an id, with their tests."""
    query = f"""SELECT {_COLUMNS}, t.class_name, t.name FROM attachment a LEFT JOIN result r ON r.id = a.result_id
        LEFT JOIN test t ON t.id = r.test_id WHERE a.run_id = ? AND a.id > ? ORDER BY a.id LIMIT ?"""  # noqa: S608
    return [AttachedTest(Attachment(*row[:7]), *row[7:]) for row in reports.execute_sql(query, (run_id, after, limit))]
