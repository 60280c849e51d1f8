"""Logins of OCI registries in the database `charts.db`, by lower-case host, with its port where it has one."""

from __future__ import annotations

import peewee
from attrs import asdict, field, frozen

from models.charts.repositories.stored import CatalogueTable


class Registry(CatalogueTable):
    host = peewee.TextField(primary_key=True)
    username = peewee.TextField()
    password = peewee.TextField()
    authority = peewee.TextField(default="")
    certificate = peewee.TextField(default="")
    private_key = peewee.TextField(default="")

    class Meta:
        table_name = "registry"


@frozen
class StoredLogin:
    """A login of a registry, and the certificates for it, as PEM."""

    host: str
    username: str
    password: str = field(repr=False)
    authority: str = field(default="", repr=False)
    certificate: str = field(default="", repr=False)
    private_key: str = field(default="", repr=False)


def hosts() -> list[str]:
    """The hosts with a login, sorted."""
    return [row.host for row in Registry.select(Registry.host).order_by(Registry.host)]


def login(host: str) -> StoredLogin | None:
    found: StoredLogin | None = Registry.select().where(Registry.host == host).objects(StoredLogin).first()
    return found


def store(login: StoredLogin) -> None:
    """Replaces an earlier login of the host."""
    Registry.insert(**asdict(login)).on_conflict_replace().execute()


def remove(host: str) -> bool:
    """Whether there was a login."""
    return bool(Registry.delete().where(Registry.host == host).execute())
