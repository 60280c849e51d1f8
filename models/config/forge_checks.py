"""Checks of what forges take."""

from __future__ import annotations

from models.config.parsers import ValidationError

MAX_CONTEXT_CHARACTERS = 100


def status_context(raw: str) -> str:
    """The name of a commit status on a forge."""
    if not 0 < len(raw) <= MAX_CONTEXT_CHARACTERS or raw != raw.strip() or not raw.isprintable():
        raise ValidationError(f"is not the name of a status: 1 to {MAX_CONTEXT_CHARACTERS} printable characters", raw)
    return raw
