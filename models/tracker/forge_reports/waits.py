"""Which commits are to be reported to their forge, what was reported, and which projects a forge has refused.

In the store of the outbox, so that a commit leaves the list in the transaction that stores its messages. A commit that
is reported while its runs are not complete stays, and is reported again when they are. For worker threads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from attrs import frozen

from models.config.settings import ForgeReportSettings, OutboxSettings
from models.outbound import following, outbox
from models.outbound.outbox import FORGE_CHECK, FORGE_COMMENT, FORGE_STATUS, Message
from models.outbound.tables import store
from models.times import DAY, SECOND

RUNS, STATUSES, SETTINGS = "forge", "forge-mark", "forge-settings"
"""The names of the positions in the events of runs and in the changes of the status of tests, and of the number of the
settings of the server that were in use last."""
AT_ONCE = 500

Commit = tuple[int, str]
"""The id of a project, and a commit."""

_NOTE = """
    INSERT INTO forge_wait (project_id, commit_sha, changes, changed_at, first_at, due_at)
    VALUES (:project, :commit, 1, :now, :now, :soon) ON CONFLICT (project_id, commit_sha) DO UPDATE SET
        changes = forge_wait.changes + 1, changed_at = excluded.changed_at,
        first_at = coalesce(forge_wait.first_at, excluded.first_at),
        due_at = CASE WHEN forge_wait.first_at IS NOT NULL AND forge_wait.first_at + :most < excluded.due_at
            THEN forge_wait.first_at + :most ELSE excluded.due_at END"""
_COLUMNS = "project_id, commit_sha, changes, due_at"
_IS_ALLOWED = "NOT EXISTS (SELECT 1 FROM forge_refusal r WHERE r.project_id = forge_wait.project_id)"
_LIST = f"""
    SELECT {_COLUMNS} FROM forge_wait WHERE (project_id, commit_sha) > (:project, :commit) AND {_IS_ALLOWED}
    ORDER BY project_id, commit_sha LIMIT :most"""  # noqa: S608 (our own condition)
_DUE = f"SELECT {_COLUMNS} FROM forge_wait WHERE due_at <= :now AND {_IS_ALLOWED} ORDER BY due_at LIMIT :most"  # noqa: S608
_ONE = f"SELECT {_COLUMNS} FROM forge_wait WHERE project_id = :project AND commit_sha = :commit AND {_IS_ALLOWED}"  # noqa: S608
_NEXT = f"SELECT min(due_at), count(*) FROM forge_wait WHERE {_IS_ALLOWED}"  # noqa: S608
_THIS = "project_id = :project AND commit_sha = :commit AND changes = :changes"
_DROP = f"DELETE FROM forge_wait WHERE {_THIS}"  # noqa: S608
_WATCH = f"UPDATE forge_wait SET first_at = NULL, due_at = NULL WHERE {_THIS}"  # noqa: S608
_FORGET = "DELETE FROM forge_wait WHERE changed_at < ?"
_SENT = "SELECT hash FROM forge_sent WHERE project_id = ? AND name = ?"
_RECORD = """
    INSERT INTO forge_sent (project_id, name, hash, sent_at) VALUES (?, ?, ?, ?)
    ON CONFLICT (project_id, name) DO UPDATE SET hash = excluded.hash, sent_at = excluded.sent_at"""
_PRUNE = (
    "DELETE FROM forge_sent WHERE sent_at < ?",
    "DELETE FROM forge_check WHERE sent_at < ?",
    "DELETE FROM forge_verdict WHERE reported_at < ?",
)
_VERDICT = "SELECT hash FROM forge_verdict WHERE project_id = ? AND commit_sha = ?"
_REPORTED = "SELECT project_id, commit_sha FROM forge_verdict WHERE reported_at >= ? ORDER BY reported_at DESC LIMIT ?"
_MAX_REPORTED = 200
_KEEP_VERDICT = """
    INSERT INTO forge_verdict (project_id, commit_sha, hash, reported_at) VALUES (?, ?, ?, ?)
    ON CONFLICT (project_id, commit_sha) DO UPDATE SET hash = excluded.hash, reported_at = excluded.reported_at"""
_REFUSE = """
    INSERT INTO {} (project_id, reason, created_at) VALUES (?, ?, ?)
    ON CONFLICT (project_id) DO UPDATE SET reason = excluded.reason"""
_REFUSALS = {
    FORGE_STATUS: "forge_refusal",
    FORGE_COMMENT: "forge_comment_refusal",
    FORGE_CHECK: "forge_check_refusal",
}
"""A token may set statuses, and make no comments or checks."""
_OF_PULL = "project_id = ? AND repository = ? AND number = ?"
_COMMENT = f"SELECT comment_id, hash, is_deleted FROM forge_comment WHERE {_OF_PULL}"  # noqa: S608 (our own condition)
_KEEP_COMMENT = """
    INSERT INTO forge_comment (project_id, repository, number, comment_id, hash, is_deleted, updated_at)
    VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (project_id, repository, number) DO UPDATE SET
        comment_id = excluded.comment_id, hash = excluded.hash, is_deleted = excluded.is_deleted,
        updated_at = excluded.updated_at"""
_FORGET_COMMENTS = "DELETE FROM forge_comment WHERE updated_at < ?"
_COMMENT_DAYS = 365


@frozen
class Comment:
    """A comment on a forge, with the hash of what it says. `is_deleted`: somebody deleted it."""

    id: int
    hash: str
    is_deleted: bool = False


@frozen
class Wait:
    """A commit that is to be reported at `due_at`; None: when its runs are complete."""

    project_id: int
    commit: str
    changes: int
    due_at: int | None


def note(commits: Iterable[Commit], now: int, times: ForgeReportSettings) -> None:
    """Commits whose report may have changed, in the caller's transaction."""
    most = int(times.max_wait * SECOND)
    soon = now + min(int(times.debounce * SECOND), most)
    for project, commit in sorted(set(commits)):
        values = {"project": project, "commit": commit, "now": now, "soon": soon, "most": most}
        store.execute_sql(_NOTE, values)


def follow(
    source: str, after: int | None, last: int, commits: Iterable[Commit], now: int, times: ForgeReportSettings
) -> None:
    """Notes the commits of what a source has after `after`, up to `last`, unless another node did so before."""
    with store.atomic():
        if following.position(source) == after:
            note(commits, now, times)
            following.move(source, last)


def candidates(changed: Collection[Commit], now: int) -> list[Wait]:
    """The commits that are due, and those of `changed` that wait: they may be complete."""
    found = [_wait(row) for row in store.execute_sql(_DUE, {"now": now, "most": AT_ONCE})]
    due = {(one.project_id, one.commit) for one in found}
    for project, commit in sorted(set(changed) - due):
        row = store.execute_sql(_ONE, {"project": project, "commit": commit}).fetchone()
        found += [_wait(row)] if row else []
    return found


def listing(after: Commit) -> list[Wait]:
    """The commits that wait, from the one after `after` on, `AT_ONCE` at most."""
    values = {"project": after[0], "commit": after[1], "most": AT_ONCE}
    return [_wait(row) for row in store.execute_sql(_LIST, values)]


def _wait(row: Sequence[object]) -> Wait:
    return Wait(*row)  # type: ignore[arg-type]


def next_due() -> tuple[int | None, int]:
    """When the next commit is due, and how many wait."""
    row = store.execute_sql(_NEXT).fetchone()
    return row[0], int(row[1])


def enqueue(
    wait: Wait, messages: Sequence[Message], is_over: bool, now: int, limits: OutboxSettings, verdict: str | None = None
) -> bool:
    """Stores the messages of a commit, which waits on unless it `is_over`; False if it has changed meanwhile.

    `verdict` is the hash of what they report; None for a commit that may not be reported.
    """
    values = {"project": wait.project_id, "commit": wait.commit, "changes": wait.changes}
    with store.atomic():
        if not store.execute_sql(_DROP if is_over else _WATCH, values).rowcount:
            return False
        outbox.add(messages, now, limits)
        if verdict is not None:
            store.execute_sql(_KEEP_VERDICT, (wait.project_id, wait.commit, verdict, now))
    return True


def verdict(commit: Commit) -> str | None:
    """The hash of what was last reported of a commit; None: nothing was."""
    row = store.execute_sql(_VERDICT, commit).fetchone()
    return None if row is None else str(row[0])


def reported(since: int) -> list[Commit]:
    """The commits that were reported last, since a time."""
    return [(row[0], row[1]) for row in store.execute_sql(_REPORTED, (since, _MAX_REPORTED))]


def forget(now: int, limits: OutboxSettings, longest: float) -> None:
    """Deletes what waits since longer than a message may, and what is known of commits of long ago.

    `longest` is how many seconds a run may take to be complete.
    """
    with store.atomic():
        store.execute_sql(_FORGET, (now - int((limits.max_age + longest) * SECOND),))
        for statement in _PRUNE:
            store.execute_sql(statement, (now - limits.retain_days * DAY,))
        store.execute_sql(_FORGET_COMMENTS, (now - _COMMENT_DAYS * DAY,))


def sent(project_id: int, name: str) -> str | None:
    """The hash of what was last sent under a name."""
    row = store.execute_sql(_SENT, (project_id, name)).fetchone()
    return None if row is None else str(row[0])


def record(project_id: int, name: str, hash: str, now: int) -> None:
    with store.atomic():
        store.execute_sql(_RECORD, (project_id, name, hash, now))


def refusal(project_id: int, kind: str = FORGE_STATUS) -> str | None:
    """Why the forge refused the token of a project, for a kind of report."""
    row = store.execute_sql(f"SELECT reason FROM {_REFUSALS[kind]} WHERE project_id = ?", (project_id,)).fetchone()  # noqa: S608 (constants)
    return None if row is None else str(row[0])


def any_refusal(project_id: int) -> str | None:
    """Why the forge refused the token of a project, for any kind of report."""
    return next((reason for kind in _REFUSALS if (reason := refusal(project_id, kind)) is not None), None)


def refuse(project_id: int, reason: str, now: int, kind: str = FORGE_STATUS) -> None:
    """Nothing more of the kind is reported, until the project's settings change or a message is tried again by hand."""
    with store.atomic():
        store.execute_sql(_REFUSE.format(_REFUSALS[kind]), (project_id, reason, now))


def resume(project_id: int, kind: str = FORGE_STATUS) -> None:
    """Ends a refusal."""
    with store.atomic():
        store.execute_sql(f"DELETE FROM {_REFUSALS[kind]} WHERE project_id = ?", (project_id,))  # noqa: S608 (constants)


def comment(project_id: int, repository: str, number: int) -> Comment | None:
    """The comment on a pull request, if it was made."""
    row = store.execute_sql(_COMMENT, (project_id, repository.lower(), number)).fetchone()
    return None if row is None else Comment(int(row[0]), str(row[1]), bool(row[2]))


def keep_comment(project_id: int, repository: str, number: int, kept: Comment, now: int) -> None:
    values = (project_id, repository.lower(), number, kept.id, kept.hash, int(kept.is_deleted), now)
    with store.atomic():
        store.execute_sql(_KEEP_COMMENT, values)


def renew(project_id: int, commits: Iterable[Commit], now: int, times: ForgeReportSettings) -> None:
    """Ends a refusal, and reports commits anew: settings have changed, or what counts."""
    with store.atomic():
        for table in _REFUSALS.values():
            store.execute_sql(f"DELETE FROM {table} WHERE project_id = ?", (project_id,))  # noqa: S608 (constants)
        note(commits, now, times)
