"""Where a process started and ended in its log files: the size of each file at that moment, stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import frozen

from models.supervision.tables import database

_COLUMNS = "id, path, process, position, time, pid, exit_code, is_exit"
_SAVE = f"INSERT OR REPLACE INTO log_mark ({_COLUMNS}) VALUES ({', '.join('?' * 8)})"  # noqa: S608 (our own names)
_TRUNCATED = "DELETE FROM log_mark WHERE path = ? AND id < ? AND position > ?"
_ROTATED = "DELETE FROM log_mark WHERE path = ? AND id <= ?"
_PRUNE = (
    "DELETE FROM log_mark WHERE path = ? AND id <= (SELECT id FROM log_mark WHERE path = ? ORDER BY id DESC"
    " LIMIT 1 OFFSET ?)"
)
MAX_MARKS_PER_FILE = 200


@frozen
class LogMark:
    """The start or the exit of a process, at `position` bytes of a log file. `time` is microseconds since 1970."""

    id: int
    path: str
    process: str
    position: int
    time: int
    pid: int | None
    exit_code: int | None
    is_exit: bool
    rotation: int = 0
    """The number of rotations of the file before it, in this run of the server; not stored."""


def save(marks: Iterable[LogMark]) -> None:
    """Stores marks, and deletes those that a truncation of their file has left behind. For use within `atomic()`."""
    rows = list(marks)
    database.write_many(_TRUNCATED, [(mark.path, mark.id, mark.position) for mark in rows])
    database.write_many(
        _SAVE,
        [
            (mark.id, mark.path, mark.process, mark.position, mark.time, mark.pid, mark.exit_code, int(mark.is_exit))
            for mark in rows
        ],
    )
    database.write_many(_PRUNE, [(path, path, MAX_MARKS_PER_FILE) for path in {mark.path for mark in rows}])


def forget(last_ids: Mapping[str, int]) -> None:
    """Deletes the marks of rotated files, by path, up to the id. For use within `atomic()`."""
    database.write_many(_ROTATED, list(last_ids.items()))


def last_id() -> int:
    return int(database.execute_sql("SELECT coalesce(max(id), 0) FROM log_mark").fetchone()[0])


def of_file(path: str, rotation: int) -> list[LogMark]:
    """The marks of a file, in the order in which they were made."""
    query = f"SELECT {_COLUMNS} FROM log_mark WHERE path = ? ORDER BY id"  # noqa: S608 (our own names)
    rows = database.execute_sql(query, (path,)).fetchall()
    return [
        LogMark(id, path, process, position, time, pid, exit_code, bool(is_exit), rotation)
        for id, _, process, position, time, pid, exit_code, is_exit in rows
    ]
