"""The tables of supervision, and the ordered migrations that make them."""

from __future__ import annotations

import secrets

import peewee

from models.storage.sqlite import SqliteStore

HISTORY = (
    "CREATE TABLE event (id INTEGER PRIMARY KEY, event_time INTEGER NOT NULL, process TEXT NOT NULL,"
    " pid INTEGER, start_time INTEGER, end_time INTEGER, exit_code INTEGER, new_status INTEGER NOT NULL,"
    " old_status INTEGER NOT NULL, uptime INTEGER NOT NULL)",
    "CREATE INDEX event_by_time ON event (event_time, id)",
    "CREATE INDEX event_by_process ON event (process, event_time, id)",
    "CREATE INDEX event_by_status ON event (new_status, event_time, id)",
    "CREATE TABLE tally (scope TEXT PRIMARY KEY, events INTEGER NOT NULL) WITHOUT ROWID",
)
"""Creates the tables of the history, here and in the database that several nodes share
(`models/supervision/shared_events.py`). Released, so never changed.
"""

database = SqliteStore(
    [
        [
            "CREATE TABLE house (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
            *HISTORY,
            "CREATE TABLE supervised (name TEXT PRIMARY KEY, status INTEGER NOT NULL, wanted INTEGER NOT NULL,"
            " generation INTEGER NOT NULL, pid INTEGER, start_ticks INTEGER, boot_id TEXT, start_time INTEGER,"
            " end_time INTEGER, exit_code INTEGER, uptime INTEGER NOT NULL, failed_log TEXT) WITHOUT ROWID",
        ],
        [
            "CREATE TABLE notice (id INTEGER PRIMARY KEY AUTOINCREMENT, time INTEGER NOT NULL, name TEXT NOT NULL,"
            " process TEXT, message TEXT NOT NULL, facts TEXT NOT NULL)",
            "CREATE INDEX notice_by_time ON notice (time, id)",
            "CREATE INDEX notice_by_name ON notice (name, time, id)",
            "CREATE INDEX notice_by_process ON notice (process, time, id)",
        ],
        ["ALTER TABLE supervised ADD COLUMN period INTEGER NOT NULL DEFAULT 0"],
        [
            "CREATE TABLE run (id INTEGER PRIMARY KEY, process TEXT NOT NULL, generation INTEGER NOT NULL,"
            " trigger TEXT NOT NULL, scheduled_for INTEGER, start_time INTEGER, end_time INTEGER, exit_code INTEGER,"
            " outcome TEXT)",
            "CREATE INDEX run_by_process ON run (process, id)",
            "CREATE TABLE schedule (process TEXT PRIMARY KEY, times TEXT NOT NULL, handled INTEGER NOT NULL,"
            " paused INTEGER NOT NULL, missed INTEGER NOT NULL, skipped INTEGER NOT NULL) WITHOUT ROWID",
            "ALTER TABLE supervised ADD COLUMN held INTEGER NOT NULL DEFAULT 0",
        ],
        ["ALTER TABLE schedule ADD COLUMN queued INTEGER"],
        [
            "CREATE TABLE log_mark (id INTEGER PRIMARY KEY, path TEXT NOT NULL, process TEXT NOT NULL,"
            " position INTEGER NOT NULL, time INTEGER NOT NULL, pid INTEGER, exit_code INTEGER,"
            " is_exit INTEGER NOT NULL)",
            "CREATE INDEX log_mark_by_path ON log_mark (path, id)",
        ],
        [
            "CREATE TABLE metric_process (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
            "CREATE TABLE metric_minute (minute INTEGER NOT NULL, process INTEGER NOT NULL, cpu_avg INTEGER NOT NULL,"
            " cpu_max INTEGER NOT NULL, memory_avg INTEGER NOT NULL, memory_max INTEGER NOT NULL,"
            " group_cpu_avg INTEGER, group_cpu_max INTEGER, group_memory_avg INTEGER, group_memory_max INTEGER,"
            " PRIMARY KEY (minute, process)) WITHOUT ROWID",
        ],
    ]
)
"""The history and the records of the processes."""


class StoreFact(peewee.Model):
    """A fact about the whole store, for example its instance id."""

    key = peewee.TextField(primary_key=True)
    value = peewee.TextField()

    class Meta:
        database = database
        table_name = "house"  # the name in existing files


def fact(key: str, value: str | None = None) -> str:
    """Returns the stored fact `key`; stores `value` (or a random id) if it is missing."""
    if StoreFact.get_or_none(StoreFact.key == key) is None:  # a start must not require a write: the store may be locked
        with database.atomic():
            StoreFact.insert(key=key, value=value or secrets.token_hex(8)).on_conflict_ignore().execute()
    return str(StoreFact.get_by_id(key).value)
