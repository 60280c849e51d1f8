"""The statements of the outbox."""

from __future__ import annotations

COLUMNS = (
    "id, kind, target, key, project_id, message_id, payload, state, attempts, next_at, expires_at, lease_until,"
    " lease_owner, status, error, created_at, done_at"
)

ADD = """
    INSERT INTO outbox (kind, target, key, project_id, message_id, payload, state, attempts, next_at, expires_at,
        created_at)
    VALUES (:kind, :target, :key, :project_id, :message_id, :payload, 'PENDING', 0, :next_at, :expires_at, :now)
    RETURNING id"""
SUPERSEDE = (
    "UPDATE outbox SET state = 'SUPERSEDED', done_at = :now WHERE key = :key AND state = 'PENDING' AND id <> :id"
)
COUNT = "SELECT count(*) FROM outbox"
_IS_UNLEASED = "(lease_until IS NULL OR lease_until <= :now)"
"""Rows with a lease are being sent: they stay, because the lease keeps other requests from their target."""
DROP_DONE = f"""
    DELETE FROM outbox WHERE id IN (SELECT id FROM outbox WHERE state <> 'PENDING' AND {_IS_UNLEASED}
    ORDER BY CASE state WHEN 'DEAD' THEN 1 ELSE 0 END, id LIMIT :surplus)"""  # noqa: S608 (our own condition)
LARGEST_TARGET = f"""
    SELECT target FROM outbox WHERE state = 'PENDING' AND {_IS_UNLEASED}
    GROUP BY target ORDER BY count(*) DESC, target LIMIT 1"""  # noqa: S608
KILL_OLDEST = f"""
    UPDATE outbox SET state = 'DEAD', done_at = :now, error = :error, lease_until = NULL, lease_owner = NULL
    WHERE id = (SELECT min(id) FROM outbox WHERE state = 'PENDING' AND target = :target AND {_IS_UNLEASED})
    RETURNING kind, project_id, payload"""  # noqa: S608

_IS_FREE = "target NOT IN (SELECT target FROM outbox WHERE lease_until > :now)"
"""Whether the target of a row has no lease; the few leases are read once, not for each row."""
DUE_TARGETS = f"""
    SELECT target FROM outbox WHERE state = 'PENDING' AND next_at <= :now AND {_IS_FREE} {{besides}}
    GROUP BY target ORDER BY min(next_at), target LIMIT :most"""  # noqa: S608 (our own condition)
OLDEST_DUE = f"""
    SELECT {COLUMNS} FROM outbox WHERE state = 'PENDING' AND target = :target AND next_at <= :now
    ORDER BY next_at, id LIMIT 1"""  # noqa: S608 (our own column names)
LEASE = "UPDATE outbox SET lease_until = :until, lease_owner = :owner, attempts = attempts + 1 WHERE id = :id"
NEXT_AT = f"""
    SELECT (SELECT min(next_at) FROM outbox WHERE state = 'PENDING' AND {_IS_FREE} {{besides}}),
    (SELECT min(lease_until) FROM outbox WHERE lease_until > :now)"""  # noqa: S608
RELEASE_OWN = "UPDATE outbox SET lease_until = NULL, lease_owner = NULL WHERE lease_owner = :owner"
FINISH = """
    UPDATE outbox SET lease_until = NULL, lease_owner = NULL, status = :status, error = :error,
        state = CASE state WHEN 'PENDING' THEN :state ELSE state END,
        next_at = CASE WHEN :state = 'PENDING' THEN :next_at ELSE next_at END,
        done_at = CASE WHEN state = 'PENDING' AND :state = 'PENDING' THEN NULL ELSE coalesce(done_at, :now) END
    WHERE id = :id AND lease_owner = :owner AND attempts = :attempts
    RETURNING state"""
POSTPONE = "UPDATE outbox SET next_at = :next_at WHERE state = 'PENDING' AND target = :target AND next_at < :next_at"
EXPIRE = f"""
    UPDATE outbox SET state = 'DEAD', done_at = :now, error = coalesce(error, :error), lease_until = NULL,
        lease_owner = NULL
    WHERE state = 'PENDING' AND expires_at <= :now AND {_IS_UNLEASED}
    RETURNING id"""  # noqa: S608
PRUNE = "DELETE FROM outbox WHERE state <> 'PENDING' AND done_at < :before"

GET = f"SELECT {COLUMNS} FROM outbox WHERE id = :id"  # noqa: S608 (our own column names)
RETRY = """
    UPDATE outbox SET state = 'PENDING', next_at = :now, expires_at = :expires_at, done_at = NULL
    WHERE id = :id AND state = 'DEAD'"""
DELETE = f"DELETE FROM outbox WHERE id = :id AND {_IS_UNLEASED}"  # noqa: S608
COUNTS = "SELECT state, count(*) FROM outbox WHERE state IN ('PENDING', 'DEAD') GROUP BY state"
LIST = f"SELECT {COLUMNS} FROM outbox WHERE id < :before {{only}} ORDER BY id DESC LIMIT :most"  # noqa: S608 (ours)
