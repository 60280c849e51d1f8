"""Models of the tracker's tables that it reads and writes by SQL statements alone."""

from __future__ import annotations

from typing import Any

import peewee

from models.accounts.tables import AccountRow
from models.storage.columns import Row, fields
from models.tracker.tables import STEPS, Project, Run, Test, reports

_models: dict[str, type[peewee.Model]] = {"account": AccountRow, "project": Project, "run": Run, "test": Test}


class Table(Row):  # type: ignore[misc]  # Any
    class Meta:
        database = reports

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _models[cls.__name__.lower()] = cls


class Membership(Table):
    vars().update(fields("membership", STEPS, _models))

    class Meta:
        primary_key = peewee.CompositeKey("project", "account")


class Report(Table):
    vars().update(fields("report", STEPS, _models))


class Suite(Table):
    vars().update(fields("suite", STEPS, _models))


class Result(Table):
    vars().update(fields("result", STEPS, _models))


class Failure(Table):
    vars().update(fields("failure", STEPS, _models))


class Output(Table):
    vars().update(fields("output", STEPS, _models))


class Coverage(Table):
    vars().update(fields("coverage", STEPS, _models))


class Mark(Table):
    vars().update(fields("mark", STEPS, _models))

    class Meta:
        primary_key = peewee.CompositeKey("project", "test")
