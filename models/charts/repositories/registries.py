"""Logins of OCI registries in the database `charts.db`, by lower-case host, with its port where it has one."""

from __future__ import annotations

import peewee

from models.charts.repositories.stored import Table


class Registry(Table):
    host = peewee.TextField(primary_key=True)
    username = peewee.TextField()
    password = peewee.TextField()

    class Meta:
        table_name = "registry"


def hosts() -> list[str]:
    """The hosts with a login, sorted."""
    return [row.host for row in Registry.select(Registry.host).order_by(Registry.host)]


def login(host: str) -> tuple[str, str] | None:
    """Username and password."""
    row = Registry.get_or_none(Registry.host == host)
    return (row.username, row.password) if row else None


def store(host: str, username: str, password: str) -> None:
    """Replaces an earlier login of the host."""
    Registry.insert(host=host, username=username, password=password).on_conflict_replace().execute()


def remove(host: str) -> bool:
    """Whether there was a login."""
    return bool(Registry.delete().where(Registry.host == host).execute())
