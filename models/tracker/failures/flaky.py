"""Flaky tests, and the triage status of tests.

A test is flaky if it passed and failed for one commit in different runs of one flag, in one module and suite, or if
its report marks it. A run in which several tests of one name did both there counts as failed. A test that fails for a
commit in one flag, module or suite and passes in another fails on a platform, and is not flaky. Only the newest
`WINDOW` runs of a project are read, and of those only failures in runs of commits that have several runs.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Sequence
from enum import Enum

from attrs import frozen

from models.errors import Invalid
from models.times import DAY
from models.tracker.failures import quarantine
from models.tracker.queries import test_id
from models.tracker.reports.base import CASE_STATUSES, FAILING, CaseStatus
from models.tracker.tables import Run, reports

WINDOW = 500
POLICY_WINDOW = 5_000
"""Runs that `often` reads, at most."""
MAX_QUARANTINE = 10 * 365 * DAY
MAX_TESTS = 500
MAX_PLATFORM_TESTS = 5_000
"""So many failing tests are looked for on other platforms."""
SKIPPED = CASE_STATUSES.index(CaseStatus.SKIPPED)
_Leg = tuple[str, str | None, str | None]
"""The flag, module and suite of results."""

_LEG = "JOIN report {0}p ON {0}p.id = {0}.report_id LEFT JOIN suite {0}s ON {0}s.id = {0}.suite_id"
_SAME_LEG = "{0}p.module IS badp.module AND {0}s.name IS bads.name"
_RECENT = """
    WITH recent AS MATERIALIZED (SELECT id, commit_sha, flag, flaky, created_at FROM run WHERE project_id = :project
        {since} ORDER BY created_at DESC, id DESC LIMIT {window}),
    again AS MATERIALIZED (SELECT commit_sha FROM recent WHERE commit_sha IS NOT NULL
        GROUP BY commit_sha HAVING count(*) > 1)"""
_MIXED = f"""
    FROM recent run CROSS JOIN result bad {_LEG.format("bad")}
    WHERE run.commit_sha IN (SELECT commit_sha FROM again) AND bad.run_id = run.id AND bad.status IN {FAILING}
    AND EXISTS (SELECT 1 FROM run other CROSS JOIN result good {_LEG.format("good")}
        WHERE other.project_id = :project AND other.commit_sha = run.commit_sha AND other.id <> run.id {{only}}
        AND other.flag = run.flag AND good.test_id = bad.test_id AND good.run_id = other.id AND good.status = 0
        AND {_SAME_LEG.format("good")} AND NOT EXISTS (SELECT 1 FROM result too {_LEG.format("too")}
            WHERE too.test_id = bad.test_id AND too.run_id = other.id AND too.status IN {FAILING}
            AND {_SAME_LEG.format("too")}))"""  # noqa: S608 (constants)
_MARKED = """
    FROM recent run CROSS JOIN result r INDEXED BY result_flaky
    WHERE run.flaky > 0 AND r.run_id = run.id AND r.flaky = 1"""
_FOUND = f"""{_RECENT.format(since="", window=WINDOW)},
    mixed AS (SELECT DISTINCT bad.test_id, run.commit_sha {_MIXED.format(only="")}),
    marked AS (SELECT DISTINCT r.test_id {_MARKED}),
    found AS MATERIALIZED (SELECT test_id, count(commit_sha) AS commits FROM
        (SELECT test_id, commit_sha FROM mixed UNION ALL SELECT test_id, NULL FROM marked) AS each
        GROUP BY test_id)"""  # noqa: S608 (constants)
_ONLY_OWN = "AND other.head_repo IS NULL"
_OFTEN = f"""{_RECENT.format(since="AND created_at >= :since AND head_repo IS NULL", window=POLICY_WINDOW)},
    seen AS (SELECT bad.test_id, run.commit_sha AS place, run.created_at AS at
            {_MIXED.format(only=f"{_ONLY_OWN} AND other.created_at >= :since")}
        UNION ALL SELECT r.test_id, coalesce(run.commit_sha, CAST(run.id AS TEXT)), run.created_at {_MARKED})
    SELECT test_id, count(DISTINCT place), max(at) FROM seen GROUP BY test_id HAVING count(DISTINCT place) >= :least
    ORDER BY count(DISTINCT place) DESC, test_id"""  # noqa: S608 (constants)
_OF_THIS = """AND id IN (SELECT :run UNION SELECT id FROM run
        WHERE project_id = :project AND commit_sha = :commit AND flag = :flag AND head_repo IS NULL)"""
_OF_COMMIT = f"""{_RECENT.format(since=_OF_THIS, window=WINDOW)},
    seen AS (SELECT bad.test_id {_MIXED.format(only=_ONLY_OWN)} UNION SELECT r.test_id {_MARKED})
    SELECT t.id, t.class_name, t.name FROM seen JOIN test t ON t.id = seen.test_id WHERE NOT EXISTS (SELECT 1 FROM mark
        WHERE project_id = :project AND mark.test_id = t.id AND status = 'QUARANTINED')
    ORDER BY t.id LIMIT {MAX_TESTS}"""  # noqa: S608 (constants)
_COUNT = f"{_FOUND} SELECT count(*) FROM found"  # noqa: S608 (constants)
_LIST = f"""{_FOUND},
    shown AS MATERIALIZED (SELECT test_id, commits FROM found UNION ALL SELECT test_id, NULL FROM mark
        WHERE project_id = :project AND status = 'QUARANTINED' AND test_id NOT IN (SELECT test_id FROM found)
        UNION SELECT value, NULL FROM json_each(:others) WHERE value NOT IN (SELECT test_id FROM found)),
    bad AS MATERIALIZED (SELECT r.test_id, count(*) AS failures, max(run.created_at) AS last
        FROM recent run CROSS JOIN result r WHERE r.run_id = run.id AND r.status IN {FAILING} GROUP BY r.test_id),
    top AS MATERIALIZED (SELECT t.id, t.class_name, t.name, t.file, shown.commits,
        coalesce(bad.failures, 0) AS failures, bad.last FROM shown JOIN test t ON t.id = shown.test_id
        LEFT JOIN bad ON bad.test_id = t.id
        ORDER BY failures DESC, coalesce(shown.commits, -1) DESC, t.class_name, t.name LIMIT {MAX_TESTS})
    SELECT top.class_name, top.name, top.commits, (SELECT count(*) FROM result r WHERE r.test_id = top.id
        AND r.run_id >= (SELECT min(id) FROM recent) AND r.run_id IN (SELECT id FROM recent)),
        top.failures, top.last, coalesce(mark.status, 'ACTIVE'), mark.note,
        top.file, top.id
    FROM top LEFT JOIN mark ON mark.project_id = :project AND mark.test_id = top.id
    ORDER BY top.failures DESC, coalesce(top.commits, -1) DESC, top.class_name, top.name"""  # noqa: S608
_LEGS = f"""
    WITH recent AS MATERIALIZED (SELECT id, commit_sha, flag, created_at FROM counted_run WHERE project_id = :project
        AND commit_sha IS NOT NULL ORDER BY created_at DESC, id DESC LIMIT {WINDOW}),
    newest AS MATERIALIZED (SELECT test_id, commit_sha FROM (SELECT bad.test_id, run.commit_sha, row_number() OVER
            (PARTITION BY bad.test_id ORDER BY run.created_at DESC, run.id DESC) AS place
        FROM recent run CROSS JOIN result bad WHERE bad.run_id = run.id AND bad.status IN {FAILING}) AS failures
        WHERE place = 1 ORDER BY test_id LIMIT {MAX_PLATFORM_TESTS})
    SELECT r.test_id, run.flag, rp.module, rs.name, max(CASE WHEN r.status IN {FAILING} THEN 1 ELSE 0 END)
    FROM newest n JOIN recent run ON run.commit_sha = n.commit_sha
    JOIN result r ON r.test_id = n.test_id AND r.run_id = run.id AND r.status <> {SKIPPED} {_LEG.format("r")}
    GROUP BY r.test_id, run.flag, rp.module, rs.name"""  # noqa: S608 (constants)
_MARK = """
    INSERT INTO mark (project_id, test_id, status, note, account_id, created_at, expires_at, issue_url)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (project_id, test_id) DO UPDATE SET status = excluded.status, note = excluded.note,
    account_id = excluded.account_id, created_at = excluded.created_at, expires_at = excluded.expires_at,
    issue_url = excluded.issue_url"""
_USERNAME = "SELECT username FROM account WHERE id = ?"


class Triage(Enum):
    """The triage status of a test. QUARANTINED: it runs, and the gate ignores it."""

    ACTIVE = "ACTIVE"
    QUARANTINED = "QUARANTINED"
    RESOLVED = "RESOLVED"


@frozen
class FlakyTest:
    """A flaky or quarantined test; `commits`: for how many it both passed and failed, None where not flaky.

    The other counts are over the newest `WINDOW` runs.
    """

    class_name: str
    name: str
    commits: int | None
    results: int
    failures: int
    last_failure_at: int | None
    status: Triage
    note: str | None
    file: str | None
    fails_only_in: Sequence[str] | None = None
    """The flags, modules or suites in which it fails, where it passes in others for the same commit; never if flaky."""


def count(project_id: int) -> int:
    """How many tests of a project are flaky."""
    return int(reports.execute_sql(_COUNT, {"project": project_id}).fetchone()[0])


@frozen
class OftenFlaky:
    """A test and the commits on which it was flaky; a run without a commit counts as one. `last` is the newest run."""

    test: int
    commits: int
    last: int


def on_commit(run: Run) -> Sequence[tuple[int, str, str]]:
    """Id, class and name of the tests that are flaky on the commit of a run, in its flag; `MAX_TESTS` at most.

    Quarantined tests, and runs of forks, do not count.
    """
    values = {"project": run.project_id, "run": run.id, "commit": run.commit_sha, "flag": run.flag}
    return [(id, class_name, name) for id, class_name, name in reports.execute_sql(_OF_COMMIT, values)]


def often(project_id: int, since: int, least: int) -> Sequence[OftenFlaky]:
    """The tests that were flaky on `least` commits or more in runs since a time, those with the most commits first.

    Runs of forks do not count.
    """
    rows = reports.execute_sql(_OFTEN, {"project": project_id, "since": since, "least": least})
    return [OftenFlaky(*row) for row in rows]


def tests(project_id: int) -> Sequence[FlakyTest]:
    """The flaky and the quarantined tests of a project, and those that fail on some platforms; most failures first."""
    others = _platforms(project_id)
    rows = reports.execute_sql(_LIST, {"project": project_id, "others": json.dumps([*others])})
    return [
        FlakyTest(
            class_name, name, commits, results, failures, last, Triage(status), note, file,
            others.get(id) if commits is None else None,
        )
        for class_name, name, commits, results, failures, last, status, note, file, id in rows
    ]  # fmt: skip


def _platforms(project_id: int) -> dict[int, Sequence[str]]:
    """By test: where it fails only, for the newest commit for which it failed."""
    legs = defaultdict[int, tuple[set[_Leg], set[_Leg]]](lambda: (set(), set()))
    for test, flag, module, suite, failed in reports.execute_sql(_LEGS, {"project": project_id}):
        legs[test][0 if failed else 1].add((flag, module, suite))
    named = {test: _names(failing, passing) for test, (failing, passing) in legs.items() if passing}
    return {test: names for test, names in named.items() if names}


def _names(failing: Collection[_Leg], passing: Collection[_Leg]) -> Sequence[str]:
    """What the failing legs have and no passing one does: their flags, else modules, else suites, else all of these.

    None where results name neither a module nor a suite.
    """
    for place in range(3):
        names = {leg[place] for leg in failing}
        if None not in names and not names & {leg[place] for leg in passing}:
            return sorted(str(name) for name in names)
    if any(module is None and suite is None for _, module, suite in failing):
        return ()
    return sorted(" ".join(part for part in leg if part) for leg in failing)


def place(test: FlakyTest) -> tuple[int, int, str, str]:
    """The place of a test in `tests`."""
    return -test.failures, 1 if test.commits is None else -test.commits, test.class_name, test.name


def set_triage(
    project_id: int,
    class_name: str,
    name: str,
    status: Triage,
    note: str | None,
    by: int | None,
    at: int,
    expires_at: int | None = None,
    issue_url: str | None = None,
) -> None:
    """Sets the triage status and note of a test, on behalf of the account `by`. Raises `NotFound`, `Invalid`.

    `expires_at` is when a quarantine ends, at most ten years later.
    """
    if expires_at is not None and not at < expires_at <= at + MAX_QUARANTINE:
        raise Invalid("expiresAt must be in the future, within ten years")
    expires_at = expires_at if status is Triage.QUARANTINED else None
    with reports.atomic():
        test = test_id(project_id, class_name, name)
        reports.execute_sql(_MARK, (project_id, test, status.value, note, by, at, expires_at, issue_url))
        row = reports.execute_sql(_USERNAME, (by,)).fetchone()
        quarantine.record(project_id, test, row and row[0])


def triage(project_id: int, test: int) -> Triage:
    """The triage status of a test."""
    query = "SELECT status FROM mark WHERE project_id = ? AND test_id = ?"
    row = reports.execute_sql(query, (project_id, test)).fetchone()
    return Triage(row[0]) if row else Triage.ACTIVE
