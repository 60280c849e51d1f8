"""The tables of accounts and of the tracker, in a file of their own (`tracker.db`) or in PostgreSQL.

Times are microseconds since 1970 (UTC), lengths of tests milliseconds. Names of tests and files are cut before they
come here, never refused.
"""

from __future__ import annotations

from typing import Any

import peewee

from models.storage.sqlite import Either

reports = Either(
    "tracker",
    [
        [
            "CREATE TABLE account (id INTEGER PRIMARY KEY AUTOINCREMENT, username TEXT NOT NULL UNIQUE,"
            " display_name TEXT, email TEXT, password_hash TEXT NOT NULL, role TEXT NOT NULL,"
            " created_at INTEGER NOT NULL)",
            "CREATE TABLE session (id INTEGER PRIMARY KEY AUTOINCREMENT, hash TEXT NOT NULL UNIQUE,"
            " account_id INTEGER NOT NULL REFERENCES account ON DELETE CASCADE, created_at INTEGER NOT NULL,"
            " expires_at INTEGER NOT NULL)",
            "CREATE INDEX session_by_account ON session (account_id)",
            "CREATE TABLE token (id INTEGER PRIMARY KEY AUTOINCREMENT, hash TEXT NOT NULL UNIQUE,"
            " account_id INTEGER NOT NULL REFERENCES account ON DELETE CASCADE, name TEXT NOT NULL,"
            " scope TEXT NOT NULL,"
            " prefix TEXT NOT NULL, created_at INTEGER NOT NULL, expires_at INTEGER, last_used_at INTEGER,"
            " revoked_at INTEGER)",
            "CREATE INDEX token_by_account ON token (account_id)",
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
            " name TEXT NOT NULL, format TEXT NOT NULL, module TEXT, created_at INTEGER NOT NULL,"
            " tests INTEGER NOT NULL,"
            " passed INTEGER NOT NULL, failed INTEGER NOT NULL, errors INTEGER NOT NULL, skipped INTEGER NOT NULL,"
            " flaky INTEGER NOT NULL, duration_ms INTEGER NOT NULL, line_covered INTEGER, line_missed INTEGER,"
            " branch_covered INTEGER, branch_missed INTEGER)",
            "CREATE UNIQUE INDEX report_by_hash ON report (run_id, kind, hash)",
            # What a report holds goes with its run, so that one index serves reading it and deleting it.
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
            "CREATE TABLE output (result_id INTEGER PRIMARY KEY REFERENCES result ON DELETE CASCADE, out TEXT,"
            " err TEXT)",
            "CREATE TABLE coverage (id INTEGER PRIMARY KEY, report_id INTEGER NOT NULL,"
            " run_id INTEGER NOT NULL REFERENCES run ON DELETE CASCADE,"
            " path TEXT NOT NULL, line_covered INTEGER NOT NULL, line_missed INTEGER NOT NULL,"
            " branch_covered INTEGER NOT NULL, branch_missed INTEGER NOT NULL, covered BLOB, missed BLOB)",
            "CREATE INDEX coverage_by_run ON coverage (run_id, path)",
            "CREATE TABLE mark (project_id INTEGER NOT NULL REFERENCES project ON DELETE CASCADE,"
            " test_id INTEGER NOT NULL REFERENCES test, status TEXT NOT NULL, note TEXT, account_id INTEGER,"
            " created_at INTEGER NOT NULL, PRIMARY KEY (project_id, test_id)) WITHOUT ROWID",
            "CREATE TABLE run_event (id INTEGER PRIMARY KEY AUTOINCREMENT,"
            " project_id INTEGER NOT NULL, data TEXT NOT NULL)",
        ],
    ],
)
"""Accounts, projects, runs and what they hold."""


class Table(peewee.Model):
    """The base of every table of the tracker."""

    id: Any

    class Meta:
        database = reports


class Flag(peewee.BooleanField):
    """Kept as 0 or 1."""

    def db_value(self, value: bool | None) -> int | None:
        return None if value is None else int(value)


class Account(Table):
    """Somebody with a password. `role` is ADMIN or USER."""

    username = peewee.TextField(unique=True)
    display_name = peewee.TextField(null=True)
    email = peewee.TextField(null=True)
    password_hash = peewee.TextField()
    role = peewee.TextField()
    created_at = peewee.BigIntegerField()

    class Meta:
        table_name = "account"


class Session(Table):
    """A login. `hash` is the SHA-256 of the random id in the cookie."""

    hash = peewee.TextField(unique=True)
    account = peewee.ForeignKeyField(Account, on_delete="CASCADE")
    created_at = peewee.BigIntegerField()
    expires_at = peewee.BigIntegerField()

    class Meta:
        table_name = "session"


class Token(Table):
    """A personal API token, of scope FULL or INGEST. `hash` is the SHA-256 of all of it, `prefix` what is shown."""

    hash = peewee.TextField(unique=True)
    account = peewee.ForeignKeyField(Account, on_delete="CASCADE")
    name = peewee.TextField()
    scope = peewee.TextField()
    prefix = peewee.TextField()
    created_at = peewee.BigIntegerField()
    expires_at = peewee.BigIntegerField(null=True)
    last_used_at = peewee.BigIntegerField(null=True)
    revoked_at = peewee.BigIntegerField(null=True)

    class Meta:
        table_name = "token"


class Project(Table):
    """A project; its settings override the global ones where they are not null. `visibility` is PUBLIC or PRIVATE."""

    name = peewee.TextField(unique=True)
    repo_url = peewee.TextField(null=True)
    visibility = peewee.TextField()
    created_at = peewee.BigIntegerField()
    base_branch = peewee.TextField(null=True)
    min_line_coverage = peewee.FloatField(null=True)
    max_coverage_drop_pct = peewee.FloatField(null=True)
    fail_on_new_failures = Flag(null=True)

    class Meta:
        table_name = "project"


class Membership(Table):
    """What an account may in a project: OWNER, WRITE or READ."""

    project = peewee.ForeignKeyField(Project, on_delete="CASCADE")
    account = peewee.ForeignKeyField(Account, on_delete="CASCADE")
    role = peewee.TextField()
    created_at = peewee.BigIntegerField()

    class Meta:
        table_name = "membership"
        primary_key = peewee.CompositeKey("project", "account")


class Run(Table):
    """One run of a project's CI, of one upload or of many with one `run_key`. Its totals are those of its reports.

    `status` is PASSED or FAILED; the four coverage counts are null where no report had coverage.
    """

    project_id: Any
    project = peewee.ForeignKeyField(Project, on_delete="CASCADE")
    branch = peewee.TextField(null=True)
    flag = peewee.TextField()
    commit_sha = peewee.TextField(null=True)
    run_key = peewee.TextField(null=True)
    repo_url = peewee.TextField(null=True)
    build_url = peewee.TextField(null=True)
    build_name = peewee.TextField(null=True)
    ci_provider = peewee.TextField(null=True)
    base_branch = peewee.TextField(null=True)
    pr_number = peewee.BigIntegerField(null=True)
    created_at = peewee.BigIntegerField()
    updated_at = peewee.BigIntegerField()
    status = peewee.TextField()
    tests = peewee.IntegerField()
    passed = peewee.IntegerField()
    failed = peewee.IntegerField()
    errors = peewee.IntegerField()
    skipped = peewee.IntegerField()
    flaky = peewee.IntegerField()
    duration_ms = peewee.BigIntegerField()
    line_covered = peewee.BigIntegerField(null=True)
    line_missed = peewee.BigIntegerField(null=True)
    branch_covered = peewee.BigIntegerField(null=True)
    branch_missed = peewee.BigIntegerField(null=True)
    uploads = peewee.IntegerField()

    class Meta:
        table_name = "run"


class Report(Table):
    """One file of an upload: `kind` is junit or jacoco, `hash` the SHA-256 of its inflated content."""

    run = peewee.ForeignKeyField(Run, on_delete="CASCADE")
    kind = peewee.TextField()
    hash = peewee.TextField()
    name = peewee.TextField()
    format = peewee.TextField()
    module = peewee.TextField(null=True)
    created_at = peewee.BigIntegerField()
    tests = peewee.IntegerField()
    passed = peewee.IntegerField()
    failed = peewee.IntegerField()
    errors = peewee.IntegerField()
    skipped = peewee.IntegerField()
    flaky = peewee.IntegerField()
    duration_ms = peewee.BigIntegerField()
    line_covered = peewee.BigIntegerField(null=True)
    line_missed = peewee.BigIntegerField(null=True)
    branch_covered = peewee.BigIntegerField(null=True)
    branch_missed = peewee.BigIntegerField(null=True)

    class Meta:
        table_name = "report"


class Suite(Table):
    """A suite of a report, with the counts of what it holds."""

    report = peewee.ForeignKeyField(Report)
    run_id = peewee.IntegerField()
    name = peewee.TextField()
    tests = peewee.IntegerField()
    failed = peewee.IntegerField()
    errors = peewee.IntegerField()
    skipped = peewee.IntegerField()
    duration_ms = peewee.BigIntegerField()

    class Meta:
        table_name = "suite"


class Test(Table):
    """What a test is called in its project, over all runs. No class is the empty text."""

    project = peewee.ForeignKeyField(Project, on_delete="CASCADE")
    class_name = peewee.TextField()
    name = peewee.TextField()

    class Meta:
        table_name = "test"


class Result(Table):
    """What became of a test in a run. `status` is the rank of a `CaseStatus`."""

    report = peewee.ForeignKeyField(Report)
    run_id = peewee.IntegerField()
    test = peewee.ForeignKeyField(Test)
    suite_id = peewee.IntegerField(null=True)
    status = peewee.SmallIntegerField()
    flaky = Flag()
    reruns = peewee.IntegerField()
    duration_ms = peewee.BigIntegerField(null=True)

    class Meta:
        table_name = "result"


class Failure(Table):
    """Why a result failed."""

    result = peewee.ForeignKeyField(Result, primary_key=True, on_delete="CASCADE")
    type = peewee.TextField(null=True)
    message = peewee.TextField(null=True)
    stack = peewee.TextField(null=True)

    class Meta:
        table_name = "failure"


class Output(Table):
    """What a test wrote."""

    result = peewee.ForeignKeyField(Result, primary_key=True, on_delete="CASCADE")
    out = peewee.TextField(null=True)
    err = peewee.TextField(null=True)

    class Meta:
        table_name = "output"


class Coverage(Table):
    """A source file in a coverage report. `covered` and `missed` are its packed line numbers, null without lines."""

    report = peewee.ForeignKeyField(Report)
    run_id = peewee.IntegerField()
    path = peewee.TextField()
    line_covered = peewee.IntegerField()
    line_missed = peewee.IntegerField()
    branch_covered = peewee.IntegerField()
    branch_missed = peewee.IntegerField()
    covered = peewee.BlobField(null=True)
    missed = peewee.BlobField(null=True)

    class Meta:
        table_name = "coverage"


class Mark(Table):
    """What people said of a test: ACTIVE, QUARANTINED (it runs, and does not gate) or RESOLVED."""

    project = peewee.ForeignKeyField(Project, on_delete="CASCADE")
    test = peewee.ForeignKeyField(Test)
    status = peewee.TextField()
    note = peewee.TextField(null=True)
    account_id = peewee.IntegerField(null=True)
    created_at = peewee.BigIntegerField()

    class Meta:
        table_name = "mark"
        primary_key = peewee.CompositeKey("project", "test")


class RunEvent(Table):
    """A `run` event as it was sent, for who was away. Only the newest `server.stream-replay` are kept."""

    project_id = peewee.IntegerField()
    data = peewee.TextField()

    class Meta:
        table_name = "run_event"
