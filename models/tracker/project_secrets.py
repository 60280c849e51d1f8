"""The secrets of projects: in a file of their own, or sealed with `server.secret-key-file` in PostgreSQL.

A secret is written and used, and never shown. When one was set stands in the project's row.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import peewee

from models.config import secret_files
from models.config.parsers import ValidationError
from models.config.settings import ServerSettings
from models.errors import Conflict, DiskFull, Unavailable
from models.storage.sqlite import Either, SqliteStore, is_disk_full

Result = TypeVar("Result")

FILE = "secrets.db"
STEPS = [
    [
        "CREATE TABLE secret (project_id INTEGER NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL,"
        " updated_at INTEGER NOT NULL, PRIMARY KEY (project_id, name))"
    ]
]
_GET = "SELECT value FROM secret WHERE project_id = ? AND name = ?"
_SET = """
    INSERT INTO secret (project_id, name, value, updated_at) VALUES (?, ?, ?, ?)
    ON CONFLICT (project_id, name) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at"""
_REMOVE = "DELETE FROM secret WHERE project_id = ? AND name = ?"
_NONCE_BYTES = 12
_TIMEOUT_SECONDS = 10.0


class ProjectSecrets:
    """The store of secrets, opened when one is first set or used. For workers."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._store = Either("secrets", STEPS)
        self._lock = threading.Lock()
        self._is_open = False

    def get(self, project_id: int, name: str) -> str | None:
        """Raises `Conflict` if the secret was sealed with another key."""

        def read() -> bytes | None:
            row = self._store.execute_sql(_GET, (project_id, name)).fetchone()
            return row and bytes(row[0])

        value = self._run(read)
        if value is None:
            return None
        if self._settings.database_url is None:
            return value.decode()
        return _unsealed(self._key(), value, _place(project_id, name))

    def set(self, project_id: int, name: str, value: str | None, now: int) -> None:
        """Stores a secret, or removes it. Raises `Conflict`."""
        data = None
        if value is not None and self._settings.database_url is None:
            data = value.encode()
        elif value is not None:
            data = _sealed(self._key(), value, _place(project_id, name))

        def write() -> None:
            if self._store.is_local:
                self._store.execute_sql("PRAGMA secure_delete = 1")  # nothing of the old secret stays in the file
            with self._store.atomic():
                if data is None:
                    self._store.execute_sql(_REMOVE, (project_id, name))
                else:
                    self._store.execute_sql(_SET, (project_id, name, data, now))

        self._run(write)
        if self._store.is_local:
            with _reported():
                cast("SqliteStore", self._store.obj).checkpoint(truncate=True)  # nor in the write-ahead log

    def close(self) -> None:
        if self._is_open:
            self._store.close_all()

    def _run(self, work: Callable[[], Result]) -> Result:
        with _reported():
            with self._lock:
                if not self._is_open:
                    self._store.open_for_workers(self._settings.data_dir / FILE, self._settings.database_url)
                    self._is_open = True
            return self._store.run_with_timeout(work, _TIMEOUT_SECONDS)

    def _key(self) -> bytes:
        path: Path | None = self._settings.secret_key_file
        if path is None:
            raise Conflict("secrets cannot be stored in PostgreSQL without server.secret-key-file")
        try:
            return secret_files.key_of(path)
        except ValidationError as why:
            raise Conflict(f"secrets cannot be used: server.secret-key-file {why}") from None


@contextmanager
def _reported() -> Iterator[None]:
    """A fault of the store is `Unavailable` or `DiskFull`, without the statement."""
    try:
        yield
    except peewee.DatabaseError as error:
        if is_disk_full(error):
            raise DiskFull("the store of secrets cannot be written: the disk is full") from None
        raise Unavailable(f"the store of secrets cannot be used: {type(error).__name__}") from None


def _place(project_id: int, name: str) -> bytes:
    """What a sealed secret is bound to: a copy in another project's row does not open."""
    return f"{project_id} {name}".encode()


def _cipher(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # large, and of the extra `crypto`
    except ImportError:
        raise Conflict("secrets cannot be stored in PostgreSQL: install the extra `crypto`") from None
    return AESGCM(key)


def _sealed(key: bytes, value: str, place: bytes) -> bytes:
    nonce = secrets.token_bytes(_NONCE_BYTES)
    sealed: bytes = _cipher(key).encrypt(nonce, value.encode(), place)
    return nonce + sealed


def _unsealed(key: bytes, data: bytes, place: bytes) -> str:
    cipher = _cipher(key)
    from cryptography.exceptions import InvalidTag

    try:
        value: bytes = cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], place)
    except InvalidTag:
        raise Conflict("the secret was stored with another server.secret-key-file: set it again") from None
    return value.decode()
