"""Since when a test fails: the first failing run and the last passed one, on the branch and flag of a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from urllib.parse import quote, urlsplit

from attrs import frozen

from models.tracker.queries import runs_by_id
from models.tracker.reports.base import FAILING
from models.tracker.tables import Run, reports

MAX_RUNS = 500
_MAX_RESULTS = 5_000

_WINDOW = """
    SELECT id FROM run WHERE project_id = ? AND branch IS ? AND flag = ? AND superseded_by IS NULL
    AND (created_at, id) <= (?, ?) ORDER BY created_at DESC, id DESC LIMIT ?"""
_RESULTS = """
    SELECT run_id, status FROM result WHERE test_id = ? AND run_id <= ? AND run_id >= ?
    ORDER BY run_id DESC LIMIT ?"""
_SCP = re.compile(r"[^@/\s]+@([\w.-]+):(?!//)([^\s]+)")


@frozen
class FirstFailure:
    """The first run of an unbroken series of failures, and the run before it in which the test passed."""

    first_failing: Run
    last_passed: Run | None


def first_failures(run: Run, tests: Iterable[int]) -> Mapping[int, FirstFailure]:
    """By test that fails in `run`: since when, at most `MAX_RUNS` runs back. Runs without the test are passed over."""
    if not (tests := set(tests)):
        return {}
    values = (run.project_id, run.branch, run.flag, run.created_at, run.id, MAX_RUNS + 1)
    window = [row[0] for row in reports.execute_sql(_WINDOW, values)]
    places = {id: place for place, id in enumerate(window)}
    found = {test: _series(test, places) for test in tests}
    runs = runs_by_id({id for ids in found.values() for id in ids if id is not None})
    return {
        test: FirstFailure(runs[first], None if passed is None else runs[passed])
        for test, (first, passed) in found.items()
        if first in runs
    }


def _series(test: int, places: Mapping[int, int]) -> tuple[int | None, int | None]:
    """The ids of the first failing run and of the last passed one."""
    first: int | None = None
    if not places:
        return None, None
    rows = reports.execute_sql(_RESULTS, (test, max(places), min(places), _MAX_RESULTS))
    for id, results in groupby(rows, key=lambda row: row[0]):
        if id not in places:
            continue
        statuses = {status for _, status in results}
        if statuses & set(FAILING):
            first = id
        elif 0 in statuses:
            return first, id if first is not None else None
    return first, None


def compare_url(repo_url: str | None, base: str | None, head: str | None) -> str | None:
    """The page of the forge that compares two commits; None where the repository or a commit is not known."""
    if not repo_url or not base or not head or base == head:
        return None
    address = _web_address(repo_url.strip())
    if address is None:
        return None
    first, last = quote(base, safe=""), quote(head, safe="")
    host = urlsplit(address).hostname or ""
    if "gitlab" in host:
        return f"{address}/-/compare/{first}...{last}"
    if "bitbucket" in host:
        return f"{address}/branches/compare/{last}%0D{first}"
    return f"{address}/compare/{first}...{last}"


def _web_address(repo_url: str) -> str | None:
    """The address of a repository's page, from an https, ssh or scp-like URL."""
    if (match := _SCP.fullmatch(repo_url)) and "://" not in repo_url:
        return f"https://{match[1]}/{match[2].strip('/').removesuffix('.git')}"
    try:
        parts = urlsplit(repo_url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    path = parts.path.strip("/").removesuffix(".git")
    if not host or not path or parts.scheme not in ("http", "https", "ssh", "git"):
        return None
    is_web = parts.scheme in ("http", "https")
    return f"{parts.scheme if is_web else 'https'}://{host}{f':{port}' if port and is_web else ''}/{path}"
