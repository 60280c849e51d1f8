"""The peewee fields of a table, read from the statements that create it: its columns are declared there alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import peewee

if TYPE_CHECKING:
    Row = Any
else:
    Row = peewee.Model
"""The base of models whose fields come from `fields`; a type checker does not know these."""

_CREATED = re.compile(r"CREATE TABLE (\w+) \((.*)\)")
_ADDED = re.compile(r"ALTER TABLE (\w+) ADD COLUMN (.*)")
_COLUMN = re.compile(r"(?:^|, )(\w+) (INTEGER|TEXT|REAL|BLOB)\b( PRIMARY KEY)?")
_FIELDS = {
    "INTEGER": peewee.BigIntegerField,
    "TEXT": peewee.TextField,
    "REAL": peewee.FloatField,
    "BLOB": peewee.BlobField,
}


def fields(
    table: str, steps: Iterable[Iterable[str]], references: Mapping[str, type[peewee.Model]]
) -> dict[str, peewee.Field[Any]]:
    """Fields by name, for the body of a model. `NAME_id` is a foreign key where `references` has NAME."""
    made: dict[str, peewee.Field[Any]] = {}
    for statement in (statement for step in steps for statement in step):
        match = _CREATED.match(statement) or _ADDED.match(statement)
        if match is None or match[1] != table:
            continue
        for name, kind, key in _COLUMN.findall(match[2]):
            target = references.get(name.removesuffix("_id")) if name.endswith("_id") else None
            if target is not None:
                made[name.removesuffix("_id")] = peewee.ForeignKeyField(target, primary_key=bool(key))
            elif name == "id":
                made[name] = peewee.AutoField()
            else:
                made[name] = _FIELDS[kind](null=True)
    return made
