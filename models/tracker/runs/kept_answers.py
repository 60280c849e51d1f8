"""Answers about runs, kept until the project changes: the state of a project, and a cache bounded by bytes."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from attrs import define, field

from models.accounts.accounts import User
from models.accounts.permissions import may_read
from models.config.settings import QualityGate
from models.errors import NotFound
from models.paging import INT64, whole
from models.tracker import queries
from models.tracker.tables import Project, reports

MAX_BYTES = 16 * 1024 * 1024
"""Of all answers together; one above a quarter of this is not kept."""
_ENTRY_BYTES = 1024
"""Counted for each answer in addition to its bytes."""
_MINUTE = 60_000_000

Value = TypeVar("Value")

_NAMES: list[str] = [column.column_name for column in Project._meta.sorted_fields]
_Columns = namedtuple("_Columns", _NAMES)  # type: ignore[misc]  # those of the model
_SELECTED = ", ".join(f"p.{name}" for name in _NAMES)
_OF_RUN = f"SELECT {_SELECTED} FROM run r JOIN project p ON p.id = r.project_id WHERE r.id = ?"  # noqa: S608 (columns)
_OF_ID = f"SELECT {_SELECTED} FROM project p WHERE p.id = ?"  # noqa: S608
_OF_NAME = f"SELECT {_SELECTED} FROM project p WHERE p.name = ?"  # noqa: S608


State = tuple[Any, ...]
"""What an answer about a project depends on: its row, whose `revision` counts all other changes."""


def state_of_run(user: User | None, id: str) -> State:
    """The state of the project of a run that `user` may read. Raises `Invalid`, `NotFound`."""
    number = whole("the id of a run", id, -INT64, INT64)
    return _state(user, _OF_RUN, number, queries.no_run)


def state_of_project(user: User | None, id: str) -> State:
    """The state of the project of this id, which `user` may read. Raises `Invalid`, `NotFound`."""
    number = whole("the id of a project", id, -INT64, INT64)
    return _state(user, _OF_ID, number, queries.no_project)


def state_of_pair(user: User | None, base: str, head: str) -> State:
    """The state of the projects of two runs that `user` may read. Raises `Invalid`, `NotFound`."""
    return (*state_of_run(user, base), *state_of_run(user, head))


def state_of_project_named(user: User | None, name: str) -> State:
    """The state of the project of this name, which `user` may read. Raises `NotFound`."""
    return _state(user, _OF_NAME, name, queries.no_project)


def state_of_gate(user: User | None, name: str, settings: QualityGate, now: int) -> State:
    """As `state_of_project_named`; with required flags it changes every minute, because the wait for them ends."""
    state = state_of_project_named(user, name)
    own = state[_NAMES.index("required_flags")]
    return (*state, now // _MINUTE) if (settings.required_flags if own is None else own) else state


def _state(user: User | None, query: str, value: Value, missing: Callable[[Value], NotFound]) -> State:
    row: State | None = reports.execute_sql(query, (value,)).fetchone()
    project: Any = row and _Columns._make(row)
    if row is None or not may_read(user, project):
        raise missing(value)
    return row


@define
class Answer:
    """The bytes of an answer, its ETag, and its gzipped bytes once a client has accepted these."""

    body: bytes
    etag: str
    compressed: bytes | None = None

    @property
    def size(self) -> int:
        return len(self.body) + len(self.compressed or b"") + _ENTRY_BYTES


@define(eq=False)
class KeptAnswers:
    """Answers by what was requested; the least recently used go first. For the loop only."""

    max_bytes: int = MAX_BYTES
    size: int = 0
    _answers: OrderedDict[Hashable, tuple[State, Answer]] = field(factory=OrderedDict)

    def get(self, key: Hashable, state: State) -> Answer | None:
        """The answer that was kept for `key`, if the project is still in the same state."""
        kept = self._answers.get(key)
        if kept is None:
            return None
        if kept[0] != state:
            self._drop(key)
            return None
        self._answers.move_to_end(key)
        return kept[1]

    def keep(self, key: Hashable, state: State, answer: Answer) -> None:
        """Keeps an answer, which was made in this state, unless it is too large."""
        self._drop(key)
        if answer.size > self.max_bytes // 4:
            return
        self._answers[key] = state, answer
        self.size += answer.size
        while self.size > self.max_bytes:
            self._drop(next(iter(self._answers)))

    def compress(self, key: Hashable, answer: Answer, compressed: bytes) -> None:
        """Keeps the gzipped bytes of an answer too."""
        kept = self._answers.get(key)
        if kept is not None and kept[1] is answer and answer.compressed is None:
            state, _ = kept
            self._drop(key)
            answer.compressed = compressed
            self.keep(key, state, answer)

    def _drop(self, key: Hashable) -> None:
        kept = self._answers.pop(key, None)
        if kept is not None:
            self.size -= kept[1].size
