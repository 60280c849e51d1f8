"""The store of what is sent: the outbox, channels, rules, and the state of each rule for each subject.

A file of its own, so that a delivery never waits for a report that is being stored. It is opened on first use. Secrets
are not in it: `models/tracker/project_secrets.py` keeps them.
"""

from __future__ import annotations

from models.storage.sqlite import Either

FILE = "outbox.db"
OUTBOX_CHANNEL = "outbox"
"""The channel on which nodes that share a database are notified of changes of messages."""
RULES_CHANNEL = "notify"
"""The same for changes of channels, of rules and of their state."""
STEPS = [
    [
        "CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, target TEXT NOT NULL,"
        " key TEXT, project_id INTEGER, message_id TEXT NOT NULL, payload TEXT NOT NULL, state TEXT NOT NULL,"
        " attempts INTEGER NOT NULL, next_at INTEGER NOT NULL, expires_at INTEGER NOT NULL, lease_until INTEGER,"
        " lease_owner TEXT, status INTEGER, error TEXT, created_at INTEGER NOT NULL, done_at INTEGER)",
        "CREATE INDEX outbox_due ON outbox (state, target, next_at)",
        "CREATE INDEX outbox_leased ON outbox (target, lease_until) WHERE lease_until IS NOT NULL",
        "CREATE INDEX outbox_by_key ON outbox (key) WHERE key IS NOT NULL AND state = 'PENDING'",
        "CREATE INDEX outbox_by_project ON outbox (project_id, id)",
        "CREATE TABLE channel (id TEXT PRIMARY KEY, project_id INTEGER NOT NULL, name TEXT NOT NULL,"
        " settings TEXT NOT NULL, enabled INTEGER NOT NULL, reason TEXT, created_at INTEGER NOT NULL,"
        " updated_at INTEGER NOT NULL)",
        "CREATE UNIQUE INDEX channel_by_name ON channel (project_id, name)",
        "CREATE TABLE notify_rule (id TEXT PRIMARY KEY, project_id INTEGER NOT NULL, name TEXT NOT NULL,"
        " settings TEXT NOT NULL, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL)",
        "CREATE UNIQUE INDEX notify_rule_by_name ON notify_rule (project_id, name)",
        "CREATE TABLE notify_state (rule TEXT NOT NULL, subject TEXT NOT NULL,"
        " is_bad INTEGER NOT NULL, reported INTEGER NOT NULL, count INTEGER NOT NULL, last_at INTEGER NOT NULL,"
        " sent_at INTEGER, due_at INTEGER, good_at INTEGER, last TEXT NOT NULL, good TEXT NOT NULL,"
        " PRIMARY KEY (rule, subject))",
        "CREATE INDEX notify_state_due ON notify_state (due_at) WHERE due_at IS NOT NULL",
        "CREATE TABLE notify_hour (rule TEXT PRIMARY KEY, hour INTEGER NOT NULL, sent INTEGER NOT NULL)",
        "CREATE TABLE follow (name TEXT PRIMARY KEY, position INTEGER NOT NULL)",
        "CREATE TABLE run_wait (run_id INTEGER PRIMARY KEY)",
        "CREATE TABLE release_change (id TEXT PRIMARY KEY, owner TEXT NOT NULL, subject TEXT NOT NULL,"
        " verb TEXT NOT NULL, created_at INTEGER NOT NULL)",
    ],
    [
        "CREATE TABLE forge_wait (project_id INTEGER NOT NULL, commit_sha TEXT NOT NULL, changes INTEGER NOT NULL,"
        " changed_at INTEGER NOT NULL, first_at INTEGER, due_at INTEGER, PRIMARY KEY (project_id, commit_sha))",
        "CREATE INDEX forge_wait_due ON forge_wait (due_at) WHERE due_at IS NOT NULL",
        "CREATE TABLE forge_sent (project_id INTEGER NOT NULL, name TEXT NOT NULL, hash TEXT NOT NULL,"
        " sent_at INTEGER NOT NULL, PRIMARY KEY (project_id, name))",
        "CREATE INDEX forge_sent_by_time ON forge_sent (sent_at)",
        "CREATE TABLE forge_refusal (project_id INTEGER PRIMARY KEY, reason TEXT NOT NULL,"
        " created_at INTEGER NOT NULL)",
    ],
    [
        "CREATE TABLE forge_comment (project_id INTEGER NOT NULL, repository TEXT NOT NULL, number INTEGER NOT NULL,"
        " comment_id INTEGER NOT NULL, hash TEXT NOT NULL, is_deleted INTEGER NOT NULL, updated_at INTEGER NOT NULL,"
        " PRIMARY KEY (project_id, repository, number))",
        "CREATE TABLE forge_comment_refusal (project_id INTEGER PRIMARY KEY, reason TEXT NOT NULL,"
        " created_at INTEGER NOT NULL)",
    ],
    [
        "CREATE TABLE dropped (target TEXT NOT NULL, project_id INTEGER NOT NULL, count INTEGER NOT NULL,"
        " last_at INTEGER NOT NULL, reported_at INTEGER, PRIMARY KEY (target, project_id))",
    ],
    [
        "CREATE TABLE forge_check (project_id INTEGER NOT NULL, name TEXT NOT NULL, check_id INTEGER NOT NULL,"
        " hash TEXT NOT NULL, annotations TEXT NOT NULL, is_completed INTEGER NOT NULL, sent_at INTEGER NOT NULL,"
        " PRIMARY KEY (project_id, name))",
        "CREATE INDEX forge_check_by_time ON forge_check (sent_at)",
        "CREATE TABLE forge_check_refusal (project_id INTEGER PRIMARY KEY, reason TEXT NOT NULL,"
        " created_at INTEGER NOT NULL)",
    ],
    [
        "CREATE TABLE forge_verdict (project_id INTEGER NOT NULL, commit_sha TEXT NOT NULL, hash TEXT NOT NULL,"
        " reported_at INTEGER NOT NULL, PRIMARY KEY (project_id, commit_sha))",
        "CREATE INDEX forge_verdict_by_time ON forge_verdict (reported_at)",
    ],
]
"""`forge_wait`: commits that are to be reported to their forge (`forge_reports/waits.py`)."""

store = Either("outbox", STEPS)
