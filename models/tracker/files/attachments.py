"""Attachments of tests and runs: the test of each file, limits, and deletion."""

from __future__ import annotations

import json
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from attrs import frozen

from models.config.settings import Attachments as Settings
from models.errors import NotFound
from models.tracker.files.attachment_files import AttachmentFolder, StagedFile
from models.tracker.tables import Run, reports, stored_bytes

BATCH_ROWS = 500
MAX_LISTED = 500
_MAX_REFERENCES = 100_000
_MAX_NAMED = 5
_ESCAPED = re.compile(r"%(22|0A|0D)", re.IGNORECASE)
"""Characters that clients escape in the file name of a part."""
_OTHER_PLACES = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:")

_REFERENCES = """
    SELECT a.path, a.case_id, s.kind, s.hash, (SELECT min(c.id) FROM cases c WHERE c.id BETWEEN s.first AND s.last)
    FROM attachments a JOIN reports s ON s.number = a.report JOIN cases k ON k.id = a.case_id ORDER BY a.id LIMIT ?"""
_REPORT = "SELECT max(id) FROM report WHERE run_id = ? AND kind = ? AND hash = ?"
_FIRST_RESULT = "SELECT min(id) FROM result WHERE run_id = ? AND report_id = ?"
_INSERT = """
    INSERT INTO attachment (run_id, report_id, result_id, name, hash, size, type, created_at)
    SELECT :run, :report, :result, :name, :hash, :size, :type, :now WHERE NOT EXISTS (SELECT 1 FROM attachment
    WHERE run_id = :run AND result_id IS :result AND name = :name AND hash = :hash)"""
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


def normalised(path: str) -> str:
    """A path for comparisons: slashes, no `.`, and `..` resolved where that is possible."""
    return posixpath.normpath(path.strip().replace("\\", "/")).lstrip("/") if path.strip() else ""


@frozen
class _Reference:
    path: str
    case: int
    kind: str
    hash: str
    first_case: int


def add(
    run: Run, files: Sequence[StagedFile], folder: AttachmentFolder, settings: Settings, now: int
) -> tuple[list[str], Collection[str]]:
    """Stores the attachments of an upload, whose reports are stored already, in the same transaction.

    Returns warnings, and the hashes of contents that may have lost their last row.
    """
    rows = reports.execute_sql(_REFERENCES, (_MAX_REFERENCES,)).fetchall()
    by_path: dict[str, list[_Reference]] = defaultdict(list)
    for row in rows:
        by_path[normalised(row[0])].append(_Reference(*row))
    owners = _owners(by_path, files)
    warnings = _missing(by_path, owners.values())
    used = int(
        reports.execute_sql("SELECT coalesce(sum(size), 0) FROM attachment WHERE run_id = ?", (run.id,)).fetchone()[0]
    )
    results, of_case, beyond = _Results(run), Counter[int](), Counter[str]()
    for file in files:
        if used + file.size > settings.per_run:
            beyond[f"more than {settings.per_run} bytes for one run"] += 1
            continue
        places = [results.of(reference) for reference in by_path.get(owners.get(file.name, ""), ())]
        kept = [place for place in places if place[1] is None or of_case[place[1]] < settings.per_case]
        if places and not kept:
            beyond[f"more than {settings.per_case} for one test"] += 1
            continue
        folder.keep(file)
        used += file.size
        facts = {"run": run.id, "name": file.name, "hash": file.hash, "size": file.size, "type": file.type, "now": now}
        for report, result in dict.fromkeys(kept or [(None, None)]):
            reports.execute_sql(_INSERT, {**facts, "report": report, "result": result})
            if result is not None:
                of_case[result] += 1
    warnings += [f"{count} attachment(s) were not stored: {why}" for why, count in beyond.items()]
    return warnings, _evict(settings.total) if files else ()


class _Results:
    """The result of each case of the uploaded reports, by the first ids of both: their order is the same."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._known: dict[tuple[str, str], tuple[int, int] | None] = {}

    def of(self, reference: _Reference) -> tuple[int | None, int | None]:
        """The ids of the report and the result; None where the report is no longer of this run."""
        key = reference.kind, reference.hash
        if key not in self._known:
            report = reports.execute_sql(_REPORT, (self._run.id, *key)).fetchone()[0]
            first = report and reports.execute_sql(_FIRST_RESULT, (self._run.id, report)).fetchone()[0]
            self._known[key] = (int(report), int(first)) if first is not None and report is not None else None
        known = self._known[key]
        return (None, None) if known is None else (known[0], known[1] + reference.case - reference.first_case)


def _owners(by_path: Mapping[str, object], files: Iterable[StagedFile]) -> dict[str, str]:
    """By the name of an uploaded file: the path of a report that it is. A shorter or longer path counts if unique."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for path in by_path:
        by_name[path.rpartition("/")[2]].append(path)
    owners = {}
    for file in files:
        name = normalised(file.name)
        if name not in by_path:
            name = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), name)
        if name in by_path:
            owners[file.name] = name
            continue
        similar = [
            path
            for path in by_name.get(name.rpartition("/")[2], ())
            if f"/{path}".endswith(f"/{name}") or f"/{name}".endswith(f"/{path.removeprefix('../')}")
        ]
        if len(similar) == 1:
            owners[file.name] = similar[0]
    return owners


def _missing(by_path: Mapping[str, Sequence[_Reference]], present: Iterable[str]) -> list[str]:
    """A warning for the files that reports refer to and that were not uploaded."""
    there = set(present)
    missing = [found[0].path for path, found in by_path.items() if path not in there and not _OTHER_PLACES.match(path)]
    if not missing:
        return []
    more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
    return [f"attachments that the reports name were not uploaded: {', '.join(missing[:_MAX_NAMED])}{more}"]


def _evict(total: int) -> Collection[str]:
    """Deletes the oldest rows until the contents have at most `total` bytes. Returns the hashes of deleted rows."""
    gone: set[str] = set()
    while stored_bytes("attachment_content") > total:
        row = reports.execute_sql("SELECT id, hash FROM attachment ORDER BY id LIMIT 1").fetchone()
        if row is None:
            break
        reports.execute_sql("DELETE FROM attachment WHERE id = ?", (row[0],))
        gone.add(row[1])
    return gone


def delete_excess(total: int) -> Collection[str]:
    """Deletes the oldest attachments beyond `total` bytes, after that setting was lowered. Returns their hashes."""
    with reports.atomic():
        return _evict(total)


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
