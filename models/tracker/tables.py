"""The tables of the tracker, in a file of their own (`tracker.db`) or in PostgreSQL.

Times are microseconds since 1970 (UTC), durations of tests milliseconds. Names of tests and files are cut before they
are stored, never refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import peewee

from models.accounts.mail_settings import MAILS
from models.accounts.tables import IDENTITIES, STEPS
from models.accounts.tables import database as reports
from models.storage.columns import Row, fields
from models.tracker.reports.base import FAILING

__all__ = ["STEPS", "Project", "Run", "Test", "reports"]

STEPS[0] += [
    "CREATE TABLE project (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, repo_url TEXT,"
    " visibility TEXT NOT NULL, created_at INTEGER NOT NULL, base_branch TEXT, min_line_coverage REAL,"
    " max_coverage_drop_pct REAL, fail_on_new_failures INTEGER)",
    "CREATE TABLE membership (project_id INTEGER NOT NULL REFERENCES project ON DELETE CASCADE,"
    " account_id INTEGER NOT NULL REFERENCES account ON DELETE CASCADE, role TEXT NOT NULL,"
    " created_at INTEGER NOT NULL, PRIMARY KEY (project_id, account_id)) WITHOUT ROWID",
    "CREATE INDEX membership_by_account ON membership (account_id)",
    "CREATE TABLE run (id INTEGER PRIMARY KEY AUTOINCREMENT,"
    " project_id INTEGER NOT NULL REFERENCES project ON DELETE CASCADE, branch TEXT, flag TEXT NOT NULL,"
    " commit_sha TEXT, run_key TEXT, repo_url TEXT, build_url TEXT, build_name TEXT, ci_provider TEXT,"
    " base_branch TEXT, pr_number INTEGER, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL,"
    " status TEXT NOT NULL, tests INTEGER NOT NULL, passed INTEGER NOT NULL, failed INTEGER NOT NULL,"
    " errors INTEGER NOT NULL, skipped INTEGER NOT NULL, flaky INTEGER NOT NULL, duration_ms INTEGER NOT NULL,"
    " line_covered INTEGER, line_missed INTEGER, branch_covered INTEGER, branch_missed INTEGER,"
    " uploads INTEGER NOT NULL)",
    "CREATE UNIQUE INDEX run_by_key ON run (project_id, run_key) WHERE run_key IS NOT NULL",
    "CREATE INDEX run_by_commit ON run (project_id, commit_sha, created_at, id)",
    "CREATE INDEX run_by_branch ON run (project_id, branch, flag, created_at, id)",
    "CREATE INDEX run_by_time ON run (project_id, created_at, id)",
    "CREATE TABLE report (id INTEGER PRIMARY KEY AUTOINCREMENT,"
    " run_id INTEGER NOT NULL REFERENCES run ON DELETE CASCADE, kind TEXT NOT NULL, hash TEXT NOT NULL,"
    " name TEXT NOT NULL, format TEXT NOT NULL, module TEXT, created_at INTEGER NOT NULL, tests INTEGER NOT NULL,"
    " passed INTEGER NOT NULL, failed INTEGER NOT NULL, errors INTEGER NOT NULL, skipped INTEGER NOT NULL,"
    " flaky INTEGER NOT NULL, duration_ms INTEGER NOT NULL, line_covered INTEGER, line_missed INTEGER,"
    " branch_covered INTEGER, branch_missed INTEGER)",
    "CREATE UNIQUE INDEX report_by_hash ON report (run_id, kind, hash)",
    # What a report holds is deleted with its run, so one index serves reading and deleting.
    "CREATE TABLE suite (id INTEGER PRIMARY KEY AUTOINCREMENT, report_id INTEGER NOT NULL,"
    " run_id INTEGER NOT NULL REFERENCES run ON DELETE CASCADE,"
    " name TEXT NOT NULL, tests INTEGER NOT NULL, failed INTEGER NOT NULL, errors INTEGER NOT NULL,"
    " skipped INTEGER NOT NULL, duration_ms INTEGER NOT NULL)",
    "CREATE INDEX suite_by_run ON suite (run_id)",
    "CREATE TABLE test (id INTEGER PRIMARY KEY,"
    " project_id INTEGER NOT NULL REFERENCES project ON DELETE CASCADE,"
    " class_name TEXT NOT NULL, name TEXT NOT NULL)",
    "CREATE UNIQUE INDEX test_by_name ON test (project_id, class_name, name)",
    "CREATE TABLE result (id INTEGER PRIMARY KEY, report_id INTEGER NOT NULL,"
    " run_id INTEGER NOT NULL REFERENCES run ON DELETE CASCADE,"
    " test_id INTEGER NOT NULL REFERENCES test, suite_id INTEGER,"
    " status INTEGER NOT NULL, flaky INTEGER NOT NULL, reruns INTEGER NOT NULL, duration_ms INTEGER)",
    "CREATE INDEX result_by_run ON result (run_id, status)",
    "CREATE INDEX result_by_test ON result (test_id, run_id)",
    "CREATE INDEX result_flaky ON result (run_id, test_id) WHERE flaky = 1",
    "CREATE TABLE failure (result_id INTEGER PRIMARY KEY REFERENCES result ON DELETE CASCADE, type TEXT,"
    " message TEXT, stack TEXT)",
    "CREATE TABLE output (result_id INTEGER PRIMARY KEY REFERENCES result ON DELETE CASCADE, out TEXT, err TEXT)",
    "CREATE TABLE coverage (id INTEGER PRIMARY KEY, report_id INTEGER NOT NULL,"
    " run_id INTEGER NOT NULL REFERENCES run ON DELETE CASCADE,"
    " path TEXT NOT NULL, line_covered INTEGER NOT NULL, line_missed INTEGER NOT NULL,"
    " branch_covered INTEGER NOT NULL, branch_missed INTEGER NOT NULL, covered BLOB, missed BLOB)",
    "CREATE INDEX coverage_by_run ON coverage (run_id, path)",
    "CREATE TABLE mark (project_id INTEGER NOT NULL REFERENCES project ON DELETE CASCADE,"
    " test_id INTEGER NOT NULL REFERENCES test, status TEXT NOT NULL, note TEXT, account_id INTEGER,"
    " created_at INTEGER NOT NULL, PRIMARY KEY (project_id, test_id)) WITHOUT ROWID",
    "CREATE TABLE run_event (id INTEGER PRIMARY KEY AUTOINCREMENT, project_id INTEGER NOT NULL, data TEXT NOT NULL)",
]

STEPS.append(
    [
        "ALTER TABLE run ADD COLUMN state TEXT NOT NULL DEFAULT 'COMPLETE'",
        "ALTER TABLE run ADD COLUMN expected_uploads INTEGER",
        "ALTER TABLE run ADD COLUMN superseded_by INTEGER REFERENCES run ON DELETE CASCADE",
        "ALTER TABLE run ADD COLUMN job_key TEXT",
        "ALTER TABLE run ADD COLUMN attempt INTEGER",
        "CREATE INDEX run_superseded ON run (superseded_by) WHERE superseded_by IS NOT NULL",
        "CREATE INDEX run_pending ON run (updated_at) WHERE state = 'PENDING'",
        "CREATE TABLE upload (id INTEGER PRIMARY KEY AUTOINCREMENT,"
        " run_id INTEGER NOT NULL REFERENCES run ON DELETE CASCADE, job_key TEXT NOT NULL,"
        " job_instance TEXT NOT NULL, attempt INTEGER NOT NULL, created_at INTEGER NOT NULL)",
        "CREATE UNIQUE INDEX upload_by_job ON upload (run_id, job_key, job_instance, attempt)",
        "ALTER TABLE report ADD COLUMN upload_id INTEGER",
        "ALTER TABLE run ADD COLUMN patch_covered INTEGER",
        "ALTER TABLE run ADD COLUMN patch_missed INTEGER",
        "ALTER TABLE run ADD COLUMN patch_unknown INTEGER",
        "ALTER TABLE run ADD COLUMN patch_reason TEXT",
        "CREATE TABLE patch (run_id INTEGER PRIMARY KEY REFERENCES run ON DELETE CASCADE, base TEXT, head TEXT,"
        " ranges TEXT NOT NULL, paths TEXT NOT NULL, problem TEXT)",
        "ALTER TABLE project ADD COLUMN min_patch_coverage REAL",
        "ALTER TABLE project ADD COLUMN min_patch_lines INTEGER",
        "ALTER TABLE project ADD COLUMN fail_on_no_tests INTEGER",
        "ALTER TABLE project ADD COLUMN fail_on_missing_coverage INTEGER",
        "ALTER TABLE project ADD COLUMN aggregate_flags INTEGER",
        "ALTER TABLE project ADD COLUMN carry_forward_flags TEXT",
        "ALTER TABLE project ADD COLUMN carry_forward_max_age REAL",
    ]
)

_TOUCH = "UPDATE project SET revision = revision + 1 WHERE id ="
_OF_PROJECT, _OF_RUN = "{0}.project_id", "(SELECT project_id FROM run WHERE id = {0}.run_id)"


def _touching(*tables: tuple[str, str]) -> list[str]:
    """Triggers that count `project.revision` up whenever a row of the tables changes: kept answers end."""
    return [
        f"CREATE TRIGGER {table}_{name} AFTER {event} ON {table} BEGIN {_TOUCH} {column.format(row)}; END"
        for table, column in tables
        for name, event, row in (("added", "INSERT", "NEW"), ("changed", "UPDATE", "NEW"), ("gone", "DELETE", "OLD"))
    ]


STEPS.append(
    [
        "ALTER TABLE project ADD COLUMN revision INTEGER NOT NULL DEFAULT 0",
        *_touching(("run", _OF_PROJECT), ("mark", _OF_PROJECT), ("upload", _OF_RUN)),
    ]
)

STEPS.append(
    [
        "ALTER TABLE failure ADD COLUMN cluster_id INTEGER",
        "CREATE INDEX failure_by_cluster ON failure (cluster_id) WHERE cluster_id IS NOT NULL",
        "CREATE TABLE cluster (id INTEGER PRIMARY KEY AUTOINCREMENT,"
        " project_id INTEGER NOT NULL REFERENCES project ON DELETE CASCADE, hash TEXT NOT NULL,"
        " signature TEXT NOT NULL, type TEXT, message TEXT, stack TEXT, first_run_id INTEGER, last_run_id INTEGER,"
        " tests INTEGER NOT NULL, occurrences INTEGER NOT NULL)",
        "CREATE UNIQUE INDEX cluster_by_hash ON cluster (project_id, hash)",
        "CREATE INDEX cluster_by_occurrences ON cluster (project_id, occurrences, id)",
        "CREATE TABLE cluster_case (run_id INTEGER NOT NULL REFERENCES run ON DELETE CASCADE,"
        " cluster_id INTEGER NOT NULL, test_id INTEGER NOT NULL, occurrences INTEGER NOT NULL,"
        " PRIMARY KEY (run_id, cluster_id, test_id)) WITHOUT ROWID",
        "CREATE INDEX cluster_case_by_test ON cluster_case (cluster_id, test_id, run_id)",
        "CREATE INDEX cluster_case_by_run ON cluster_case (cluster_id, run_id)",
        "ALTER TABLE test ADD COLUMN file TEXT",
        "CREATE INDEX test_by_id ON test (project_id, id)",
        "CREATE TABLE triage_rule (id INTEGER PRIMARY KEY AUTOINCREMENT,"
        " project_id INTEGER NOT NULL REFERENCES project ON DELETE CASCADE, name TEXT NOT NULL,"
        " category TEXT NOT NULL, pattern TEXT NOT NULL, field TEXT NOT NULL, priority INTEGER NOT NULL,"
        " created_at INTEGER NOT NULL)",
        "CREATE INDEX triage_rule_by_priority ON triage_rule (project_id, priority, id)",
        "CREATE TABLE owners (project_id INTEGER PRIMARY KEY REFERENCES project ON DELETE CASCADE, codeowners TEXT,"
        " rules TEXT NOT NULL, updated_at INTEGER NOT NULL)",
        "CREATE TABLE backfill (name TEXT PRIMARY KEY, position INTEGER NOT NULL)",
        "INSERT INTO backfill (name, position) SELECT 'clusters', max(result_id) FROM failure HAVING count(*) > 0",
        *_touching(("triage_rule", _OF_PROJECT), ("owners", _OF_PROJECT)),
    ]
)

STEPS.append(
    [
        "CREATE TABLE attachment (id INTEGER PRIMARY KEY AUTOINCREMENT,"
        " run_id INTEGER NOT NULL REFERENCES run ON DELETE CASCADE, report_id INTEGER, result_id INTEGER,"
        " name TEXT NOT NULL, hash TEXT NOT NULL, size INTEGER NOT NULL, type TEXT NOT NULL,"
        " created_at INTEGER NOT NULL)",
        "CREATE INDEX attachment_by_run ON attachment (run_id, id)",
        "CREATE INDEX attachment_by_result ON attachment (result_id) WHERE result_id IS NOT NULL",
        "CREATE INDEX attachment_by_hash ON attachment (hash)",
        "CREATE INDEX attachment_by_time ON attachment (created_at)",
        *_touching(("attachment", _OF_RUN)),
    ]
)

STEPS.append(
    [
        "CREATE TABLE source_content (hash TEXT PRIMARY KEY, size INTEGER NOT NULL, content BLOB NOT NULL)",
        "CREATE TABLE source (run_id INTEGER NOT NULL REFERENCES run ON DELETE CASCADE, path TEXT NOT NULL,"
        " hash TEXT NOT NULL, PRIMARY KEY (run_id, path)) WITHOUT ROWID",
        "CREATE INDEX source_by_hash ON source (hash)",
        "ALTER TABLE project ADD COLUMN source_mode TEXT",
        *_touching(("source", _OF_RUN)),
    ]
)

STEPS.append(
    [
        "CREATE TABLE perf_point (id INTEGER PRIMARY KEY AUTOINCREMENT, report_id INTEGER NOT NULL,"
        " run_id INTEGER NOT NULL REFERENCES run ON DELETE CASCADE, label TEXT NOT NULL, samples INTEGER NOT NULL,"
        " mean REAL, min REAL, max REAL, p50 REAL, p90 REAL, p95 REAL, p99 REAL, throughput REAL, error_pct REAL)",
        "CREATE INDEX perf_point_by_run ON perf_point (run_id)",
        "ALTER TABLE project ADD COLUMN perf_max_latency_increase_pct REAL",
        "ALTER TABLE project ADD COLUMN perf_max_throughput_drop_pct REAL",
        "ALTER TABLE project ADD COLUMN perf_max_error_pct REAL",
    ]
)

_ADD_BYTES = (
    "INSERT INTO stored_bytes (name, bytes) VALUES ('{0}', NEW.size)"
    " ON CONFLICT (name) DO UPDATE SET bytes = stored_bytes.bytes + excluded.bytes"
)
_SUBTRACT_BYTES = "UPDATE stored_bytes SET bytes = bytes - OLD.size WHERE name = '{0}'"
_DELETE_UNUSED = "DELETE FROM {0} WHERE hash = OLD.hash AND NOT EXISTS (SELECT 1 FROM {1} WHERE hash = OLD.hash)"


def _totalled(table: str) -> list[str]:
    """Triggers that keep the sum of `size` of a table of contents in `stored_bytes`."""
    return [
        f"CREATE TRIGGER {table}_counted AFTER INSERT ON {table} BEGIN {_ADD_BYTES.format(table)}; END",
        f"CREATE TRIGGER {table}_removed AFTER DELETE ON {table} BEGIN {_SUBTRACT_BYTES.format(table)}; END",
    ]


def _used_by(table: str, contents: str, name: str, event: str) -> str:
    """A trigger that deletes a content when its last row in `table` goes."""
    return f"CREATE TRIGGER {name} AFTER {event} ON {table} BEGIN {_DELETE_UNUSED.format(contents, table)}; END"


STEPS.append(
    [
        "CREATE TABLE stored_bytes (name TEXT PRIMARY KEY, bytes INTEGER NOT NULL)",
        "CREATE TABLE attachment_content (hash TEXT PRIMARY KEY, size INTEGER NOT NULL)",
        *_totalled("attachment_content"),
        "CREATE TRIGGER attachment_stored AFTER INSERT ON attachment BEGIN INSERT INTO attachment_content (hash, size)"
        " VALUES (NEW.hash, NEW.size) ON CONFLICT (hash) DO NOTHING; END",
        _used_by("attachment", "attachment_content", "attachment_unused", "DELETE"),
        "INSERT INTO attachment_content (hash, size) SELECT hash, max(size) FROM attachment GROUP BY hash",
        *_totalled("source_content"),
        _used_by("source", "source_content", "source_unused", "DELETE"),
        _used_by("source", "source_content", "source_replaced", "UPDATE"),
        "DELETE FROM source_content WHERE NOT EXISTS (SELECT 1 FROM source WHERE hash = source_content.hash)",
        "INSERT INTO stored_bytes (name, bytes) SELECT 'source_content', sum(size) FROM source_content"
        " HAVING count(*) > 0",
    ]
)
"""A sum over all rows at each upload would cost by what is stored."""

STEPS.append(
    [
        "ALTER TABLE coverage ADD COLUMN repository_path TEXT",
        "ALTER TABLE project ADD COLUMN forge_repo TEXT",
        "ALTER TABLE project ADD COLUMN forge_repo_by_admin INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE project ADD COLUMN forge_token_at INTEGER",
        "ALTER TABLE project ADD COLUMN forge_token_host TEXT",
    ]
)
"""The token itself is a secret (`project_secrets.py`); its host is that of the repository it was set for."""

STEPS.append(
    [
        "CREATE TABLE repeated_report (upload_id INTEGER NOT NULL REFERENCES upload ON DELETE CASCADE,"
        " kind TEXT NOT NULL, hash TEXT NOT NULL, PRIMARY KEY (upload_id, kind, hash)) WITHOUT ROWID",
    ]
)
"""Reports that an upload had too, although the run had them from another one. No response reads them."""

_GROUP = "e.project_id = {0}.project_id AND e.commit_sha = {0}.commit_sha AND e.branch = {0}.branch"
_FORKS = "(e.head_repo IS NULL) = ({0}.head_repo IS NULL)"
_SAME_COMMIT = f"{_GROUP} AND {_FORKS}"
_EARLIER = (
    f"(SELECT e.{{0}} FROM run e WHERE {_SAME_COMMIT.format('NEW')} AND e.id <> NEW.id"  # noqa: S608 (constants)
    " AND (e.first_at, e.first_id) < (NEW.created_at, NEW.id) LIMIT 1)"
)
_PLACE = (
    f"UPDATE run SET first_at = coalesce({_EARLIER.format('first_at')}, NEW.created_at),"  # noqa: S608 (constants)
    f" first_id = coalesce({_EARLIER.format('first_id')}, NEW.id) WHERE id = NEW.id;"
    f" UPDATE run SET first_at = NEW.created_at, first_id = NEW.id WHERE id IN (SELECT e.id FROM run e"
    f" WHERE {_SAME_COMMIT.format('NEW')} AND (e.first_at, e.first_id) > (NEW.created_at, NEW.id))"
)
_PLACE_ALL = f"""
    UPDATE run SET first_at = place.at, first_id = place.id FROM (SELECT r.id AS run, f.created_at AS at, f.id AS id
        FROM run r JOIN run f ON f.id = coalesce((SELECT e.id FROM run e WHERE {_SAME_COMMIT.format("r")}
            ORDER BY e.created_at, e.id LIMIT 1), r.id)) AS place
    WHERE run.id = place.run"""  # noqa: S608 (constants)
_SUITE_FAILED = f"""
    CREATE VIEW failed_suite AS SELECT s.id, s.report_id, s.run_id, s.name, s.failed, s.errors FROM suite s
    WHERE s.failed + s.errors > 0 AND NOT EXISTS
    (SELECT 1 FROM result r WHERE r.suite_id = s.id AND r.status IN {FAILING})"""  # noqa: S608 (constants)

STEPS.append(
    [
        "ALTER TABLE run ADD COLUMN head_repo TEXT",
        "ALTER TABLE run ADD COLUMN first_at INTEGER",
        "ALTER TABLE run ADD COLUMN first_id INTEGER",
        " ".join(_PLACE_ALL.split()),
        f"CREATE TRIGGER run_placed AFTER INSERT ON run BEGIN {_PLACE}; END",
        f"CREATE TRIGGER run_moved AFTER UPDATE OF branch, commit_sha, head_repo ON run BEGIN {_PLACE}; END",
        "CREATE INDEX run_by_place ON run (project_id, branch, first_at, first_id)",
        "CREATE INDEX run_by_flag_and_place ON run (project_id, branch, flag, first_at, first_id)",
        "CREATE INDEX run_by_prefix ON run (project_id, substr(lower(commit_sha), 1, 7))",
        "CREATE VIEW counted_run AS SELECT * FROM run WHERE superseded_by IS NULL",
        f"CREATE INDEX result_failed ON result (suite_id) WHERE status IN {FAILING}",
        " ".join(_SUITE_FAILED.split()),
        "CREATE TABLE base_commit (run_id INTEGER NOT NULL REFERENCES run ON DELETE CASCADE, place INTEGER NOT NULL,"
        " commit_sha TEXT NOT NULL, PRIMARY KEY (run_id, place)) WITHOUT ROWID",
    ]
)
"""`first_at` and `first_id` are time and id of the first run of the commit on the branch: they order the commits of a
branch (`baseline.py`). They stay when that run is deleted. `base_commit` is written with its run only."""

STEPS.append(
    [
        "ALTER TABLE project ADD COLUMN required_flags TEXT",
        "ALTER TABLE project ADD COLUMN max_test_drop_pct REAL",
        "ALTER TABLE project ADD COLUMN fail_on_any_failure INTEGER",
    ]
)

STEPS.append(
    [
        "ALTER TABLE attachment ADD COLUMN project_id INTEGER",
        "UPDATE attachment SET project_id = (SELECT r.project_id FROM run r WHERE r.id = attachment.run_id)",
        "CREATE INDEX attachment_by_project ON attachment (project_id, id)",
        "CREATE INDEX attachment_by_project_and_hash ON attachment (project_id, hash)",
        "ALTER TABLE project ADD COLUMN attachment_bytes INTEGER NOT NULL DEFAULT 0",
        "CREATE TABLE project_content (project_id INTEGER NOT NULL, hash TEXT NOT NULL, size INTEGER NOT NULL,"
        " PRIMARY KEY (project_id, hash)) WITHOUT ROWID",
        "CREATE TRIGGER project_content_counted AFTER INSERT ON project_content BEGIN"
        " UPDATE project SET attachment_bytes = attachment_bytes + NEW.size WHERE id = NEW.project_id; END",
        "CREATE TRIGGER project_content_removed AFTER DELETE ON project_content BEGIN"
        " UPDATE project SET attachment_bytes = attachment_bytes - OLD.size WHERE id = OLD.project_id; END",
        "CREATE TRIGGER attachment_shared AFTER INSERT ON attachment BEGIN"
        " INSERT INTO project_content (project_id, hash, size) VALUES (NEW.project_id, NEW.hash, NEW.size)"
        " ON CONFLICT (project_id, hash) DO NOTHING; END",
        "CREATE TRIGGER attachment_unshared AFTER DELETE ON attachment BEGIN"
        " DELETE FROM project_content WHERE project_id = OLD.project_id AND hash = OLD.hash AND NOT EXISTS"
        " (SELECT 1 FROM attachment WHERE project_id = OLD.project_id AND hash = OLD.hash); END",
        "INSERT INTO project_content (project_id, hash, size) SELECT project_id, hash, max(size) FROM attachment"
        " GROUP BY project_id, hash",
    ]
)
"""The contents of the attachments of each project, each counted once in `project.attachment_bytes`. An attachment has
its project itself: its run may be gone when the trigger runs."""

STEPS.append(["ALTER TABLE report ADD COLUMN warnings TEXT"])
"""What a report lacks, a line each: it ends in the middle, or lists fewer tests than it declares."""

_EXTENSION = "lower(substr(c.path, length(rtrim(c.path, replace(c.path, '.', ''))) + 1))"
_EXTENSIONS = f"""
    INSERT INTO covered_extension (project_id, extension, seen_at)
    SELECT r.project_id, {_EXTENSION}, max(r.created_at) FROM run r JOIN coverage c ON c.run_id = r.id
    WHERE r.id IN (SELECT max(n.id) FROM run n WHERE n.line_covered IS NOT NULL GROUP BY n.project_id, n.flag)
    AND {_EXTENSION} NOT LIKE '%/%' GROUP BY r.project_id, {_EXTENSION}"""  # noqa: S608 (constants)

STEPS.append(
    [
        "ALTER TABLE run ADD COLUMN partial_by TEXT",
        "CREATE INDEX report_by_upload ON report (upload_id) WHERE upload_id IS NOT NULL",
        "CREATE INDEX run_by_pull ON run (project_id, pr_number, created_at, id) WHERE pr_number IS NOT NULL",
        "CREATE TABLE covered_extension (project_id INTEGER NOT NULL REFERENCES project ON DELETE CASCADE,"
        " extension TEXT NOT NULL, seen_at INTEGER NOT NULL, PRIMARY KEY (project_id, extension)) WITHOUT ROWID",
        " ".join(_EXTENSIONS.split()),
    ]
)
"""`partial_by`: who closed a run that expected more uploads, and let that count as complete. `covered_extension`: when
coverage of the project last had files of this extension."""

STEPS.append(["ALTER TABLE project ADD COLUMN created_from TEXT"])
"""The address of the anonymous caller that created the project; null where an account did."""


class Flag(peewee.BooleanField):
    """Stored as 0 or 1."""

    def db_value(self, value: bool | None) -> int | None:
        return None if value is None else int(value)


class Names(peewee.TextField):
    """Names without commas, stored with commas between them."""

    def db_value(self, value: Sequence[str] | None) -> str | None:
        return None if value is None else ",".join(value)

    def python_value(self, value: str | None) -> tuple[str, ...] | None:
        return None if value is None else tuple(value.split(",")) if value else ()


class Table(Row):  # type: ignore[misc]  # Any
    """The base of the models: of the tables of which single rows are read or written. SQL statements do the rest."""

    class Meta:
        database = reports


class Project(Table):
    """A project; its settings override the global ones where they are not null. `visibility` is PUBLIC or PRIVATE."""

    vars().update(fields("project", STEPS, {}))
    del attachment_bytes  # type: ignore[name-defined]  # noqa: F821 (triggers set it)
    fail_on_new_failures = Flag(null=True)
    fail_on_no_tests = Flag(null=True)
    fail_on_missing_coverage = Flag(null=True)
    aggregate_flags = Flag(null=True)
    carry_forward_flags = Names(null=True)
    required_flags = Names(null=True)
    fail_on_any_failure = Flag(null=True)
    quarantine_after_flaky = peewee.IntegerField(null=True)
    quarantine_within = peewee.FloatField(null=True)
    quarantine_expires = peewee.FloatField(null=True)
    quarantine_max_pct = peewee.FloatField(null=True)
    quarantine_waiting = peewee.IntegerField(null=True)
    forge_reports_enabled = Flag(null=True)
    forge_reports_statuses, forge_reports_context = peewee.TextField(null=True), peewee.TextField(null=True)
    forge_reports_comment, forge_reports_untrusted = peewee.TextField(null=True), peewee.TextField(null=True)
    forge_reports_publish = peewee.TextField(null=True)


class Run(Table):
    """One run of a project's CI: one upload, or several with one `run_key`. Its totals are those of its reports.

    `status` is PASSED or FAILED, `state` COMPLETE, PENDING or INCOMPLETE; the four coverage counts are null where no
    report had coverage. A run with `superseded_by` holds the reports of an earlier attempt of a job of that run.
    """

    vars().update(fields("run", STEPS, {"project": Project}))
    trusted = Flag(default=False)
    del first_at, first_id  # type: ignore[name-defined]  # noqa: F821 (triggers set them)


class Test(Table):
    """The name of a test in its project, over all runs. No class is the empty text."""

    __test__ = False  # pytest must not take it for a test

    vars().update(fields("test", STEPS, {"project": Project}))


def stored_bytes(contents: str) -> int:
    """The bytes of all rows of a table of contents."""
    row = reports.execute_sql("SELECT bytes FROM stored_bytes WHERE name = ?", (contents,)).fetchone()
    return int(row[0]) if row else 0


STEPS.append(
    [
        "ALTER TABLE attachment ADD COLUMN is_anonymous INTEGER NOT NULL DEFAULT 0",
        "CREATE INDEX anonymous_attachment ON attachment (project_id, id) WHERE is_anonymous = 1",
    ]
)
"""The attachments of anonymous uploaders are the first to be deleted beyond a limit."""

STEPS.append(["ALTER TABLE patch ADD COLUMN renames TEXT"])
"""The new paths of renamed files by their old ones, as JSON."""

STEPS.append(["CREATE INDEX project_by_creator ON project (created_from, created_at) WHERE created_from IS NOT NULL"])

STEPS.append(
    [
        "CREATE INDEX run_by_commit_and_place ON run (project_id, commit_sha, branch, first_at, first_id)",
        "CREATE INDEX run_by_branch_and_time ON run (project_id, branch, created_at, id)",
        "CREATE INDEX run_of_pull ON run (project_id, created_at, id) WHERE pr_number IS NOT NULL",
    ]
)
"""A commit is judged, and a page of commits or pull requests listed, at the same cost however long the history is."""

STEPS.append(["ALTER TABLE run ADD COLUMN trusted INTEGER NOT NULL DEFAULT 0"])
"""Whether all uploads of the run had a credential of WRITE in the project; runs of earlier versions are not trusted."""

STEPS.append(
    [
        "ALTER TABLE mark ADD COLUMN expires_at INTEGER",
        "ALTER TABLE mark ADD COLUMN issue_url TEXT",
        "CREATE TABLE mark_change (id INTEGER PRIMARY KEY AUTOINCREMENT,"
        " project_id INTEGER NOT NULL REFERENCES project ON DELETE CASCADE,"
        " test_id INTEGER NOT NULL REFERENCES test ON DELETE CASCADE, status TEXT NOT NULL, note TEXT,"
        " expires_at INTEGER, issue_url TEXT, changed_by TEXT, created_at INTEGER NOT NULL)",
        "CREATE INDEX mark_change_by_test ON mark_change (project_id, test_id, id)",
        "CREATE INDEX mark_change_by_project ON mark_change (project_id, id)",
        "CREATE INDEX mark_change_of_test ON mark_change (test_id)",
        "CREATE INDEX mark_expiring ON mark (expires_at) WHERE expires_at IS NOT NULL",
        "ALTER TABLE project ADD COLUMN quarantine_after_flaky INTEGER",
        "ALTER TABLE project ADD COLUMN quarantine_within REAL",
        "ALTER TABLE project ADD COLUMN quarantine_expires REAL",
        "ALTER TABLE project ADD COLUMN quarantine_max_pct REAL",
        "ALTER TABLE project ADD COLUMN quarantine_waiting INTEGER",
    ]
)
"""`mark_change`: who changed the status of a test, and when. `quarantine_waiting`: how many flaky tests are not
quarantined because too many are."""

_REPORTS = ("enabled INTEGER", "statuses TEXT", "context TEXT", "comment TEXT", "untrusted TEXT")
STEPS.append([f"ALTER TABLE project ADD COLUMN forge_reports_{column}" for column in _REPORTS])
STEPS.append(IDENTITIES)

_COUNTS = "runs, failures, flaky, unreliable, recoveries, recovery_us, is_red, floor, mark, marked, since"
_SUMMARY = _COUNTS.replace(",", " INTEGER NOT NULL,") + " INTEGER NOT NULL"
STEPS.append(
    [
        "CREATE TABLE insight_scope (id INTEGER PRIMARY KEY AUTOINCREMENT, project_id INTEGER NOT NULL"
        " REFERENCES project ON DELETE CASCADE, branch TEXT, flag TEXT, complete INTEGER NOT NULL)",
        "CREATE INDEX insight_scope_of_project ON insight_scope (project_id, branch)",
        "CREATE TABLE insight (scope_id INTEGER NOT NULL REFERENCES insight_scope ON DELETE CASCADE,"
        " test_id INTEGER NOT NULL, median_us INTEGER, growth_us INTEGER, last_failure_at INTEGER,"
        f" {_SUMMARY}, sample TEXT NOT NULL, PRIMARY KEY (scope_id, test_id)) WITHOUT ROWID",
        "CREATE TABLE insight_due (project_id INTEGER NOT NULL REFERENCES project ON DELETE CASCADE,"
        " test_id INTEGER NOT NULL, PRIMARY KEY (project_id, test_id)) WITHOUT ROWID",
    ]
)
"""The summaries of tests (`models/tracker/insights`). Null in a scope: of any branch, or flag."""
STEPS.append(["ALTER TABLE project ADD COLUMN forge_reports_publish TEXT"])
STEPS.append(MAILS)
