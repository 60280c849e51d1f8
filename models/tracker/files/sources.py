"""Source files of covered code: stored once for each content, and shown with what a run covers of them."""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from attrs import frozen

from models.config.settings import SourceSettings
from models.errors import NotFound
from models.tracker.coverage import patch
from models.tracker.coverage.diff import Ranges
from models.tracker.coverage.line_sets import source_lines
from models.tracker.forges.forge_links import file_url
from models.tracker.tables import Project, Run, reports, stored_bytes

Mode = Literal["off", "upload", "forge"]

MAX_LINES = 20_000
"""Lines shown of one file."""

_COVERED = """
    SELECT c.path, r.module, c.covered, c.missed, c.line_covered, c.line_missed, c.repository_path FROM coverage c
    JOIN report r ON r.id = c.report_id WHERE c.run_id = ? AND c.path = ?"""
_STORE_CONTENTS = """
    INSERT INTO source_content (hash, size, content) SELECT s.hash, s.size, s.content FROM sources s
    WHERE s.id IN (SELECT value FROM json_each(?)) ON CONFLICT DO NOTHING"""
_STORE = """
    INSERT INTO source (run_id, path, hash) SELECT ?, s.path, s.hash FROM sources s
    WHERE s.id IN (SELECT value FROM json_each(?))
    ON CONFLICT (run_id, path) DO UPDATE SET hash = excluded.hash"""
_BY_NAME = """
    SELECT s.path, c.content FROM source s JOIN source_content c ON c.hash = s.hash WHERE s.run_id = ?
    AND (s.path = ? OR s.path LIKE ? ESCAPE '!')"""


@frozen
class CoveredFile:
    """A file with the lines that a run covers, misses and that were changed. `text` is None where it is not stored."""

    path: str
    repository_path: str
    """The path in the repository, as far as it is known."""
    modules: Sequence[str]
    covered: Sequence[int]
    missed: Sequence[int]
    changed: Ranges
    text: Sequence[str] | None
    url: str | None
    reason: str | None = None
    """Why the forge gave no text."""


def mode_of(project: Project, settings: SourceSettings) -> Mode:
    """The project's own mode, else the global one."""
    mode: Mode = project.source_mode or settings.mode
    return mode


def add(run: Run, project: Project, settings: SourceSettings) -> str | None:
    """Stores the staged files that have the name of a covered file, in the transaction of the upload.

    Returns why they are ignored, if they are.
    """
    if reports.execute_sql("SELECT 1 FROM sources LIMIT 1").fetchone() is None:
        return None
    if (mode := mode_of(project, settings)) != "upload":
        return f"the part source was ignored: tracker.source.mode is {mode}"
    rows = reports.execute_sql("SELECT DISTINCT path FROM coverage WHERE run_id = ?", (run.id,))
    names = {_name(path) for (path,) in rows}
    staged = reports.execute_sql("SELECT id, path FROM sources")  # row by row: they may be many
    ids = json.dumps([id for id, path in staged if _name(path) in names])
    reports.execute_sql(_STORE_CONTENTS, (ids,))
    reports.execute_sql(_STORE, (run.id, ids))
    _evict(settings.cache)
    return None


def _evict(limit: int) -> None:
    """Deletes the sources of the oldest runs beyond `limit` bytes."""
    while stored_bytes("source_content") > limit:
        oldest = reports.execute_sql("SELECT min(run_id) FROM source").fetchone()[0]
        if oldest is None:
            break
        reports.execute_sql("DELETE FROM source WHERE run_id = ?", (oldest,))


def covered_file(run: Run, project: Project, path: str, settings: SourceSettings) -> CoveredFile:
    """A file of the run's coverage reports. Raises `NotFound`."""
    rows = reports.execute_sql(_COVERED, (run.id, path)).fetchall()
    if not rows:
        raise NotFound(f"run {run.id} has no coverage of {path}", "FILE_NOT_FOUND")
    covered, missed = set[int](), set[int]()
    for _, _, hit, lost, _, _, _ in rows:
        covered |= source_lines(hit)
        missed |= source_lines(lost)
    modules = sorted({row[1] for row in rows if row[1]})
    changed_path, changed = _changed(run.id, path, modules)
    stored = _stored(run.id, path) if mode_of(project, settings) == "upload" else None
    known = next((row[6] for row in rows if row[6]), None)
    in_repository = changed_path or known or (stored[0] if stored else path)
    return CoveredFile(
        path=path,
        repository_path=in_repository,
        modules=modules,
        covered=sorted(covered),
        missed=sorted(missed - covered),
        changed=changed,
        text=stored[1].split("\n") if stored else None,
        url=file_url(run.repo_url or project.repo_url, run.commit_sha, in_repository, run.ci_provider),
    )


def _changed(run_id: int, path: str, modules: Iterable[str]) -> tuple[str | None, Ranges]:
    """The changed file that a path of a coverage report means, and its changed lines."""
    diff: tuple[Mapping[str, Ranges], Collection[str]] = patch.changed_lines(run_id)
    matcher = patch.Matcher(diff[0], diff[1])
    found = next((match for module in (*modules, None) if (match := matcher.match(path, module))), None)
    return found, [] if found is None else diff[0][found]


def _stored(run_id: int, path: str) -> tuple[str, str] | None:
    """The stored file that a path of a coverage report means: the same one, or the only one that ends or begins so."""
    wanted = path.replace("\\", "/")
    pattern = _name(wanted).replace("!", "!!").replace("%", "!%").replace("_", "!_")
    rows = reports.execute_sql(_BY_NAME, (run_id, _name(wanted), f"%/{pattern}")).fetchall()
    found = defaultdict[int, list[tuple[str, bytes]]](list)
    for name, content in rows:
        if name == wanted:
            return name, zlib.decompress(bytes(content)).decode()
        if f"/{wanted}".endswith(f"/{name}") or f"/{name}".endswith(f"/{wanted}"):
            found[min(len(name), len(wanted))].append((name, content))
    best = found[max(found)] if found else []
    return (best[0][0], zlib.decompress(bytes(best[0][1])).decode()) if len(best) == 1 else None


def _name(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2]
