"""The permissions of roles in projects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import DATABASES
from users import ensure_user, now, open_accounts

from models.accounts import accounts, permissions
from models.accounts.accounts import Role, User
from models.accounts.permissions import ProjectRole
from models.tracker.tables import Project


@pytest.fixture
def data(tmp_path: Path, database_url: str | None) -> Iterator[Path]:
    if database_url is not None:
        DATABASES[tmp_path] = database_url
    for name, role in {"ada": "ADMIN", "olaf": "USER", "wendy": "USER", "rob": "USER", "sue": "USER"}.items():
        ensure_user(tmp_path, name, "ADMIN" if role == "ADMIN" else "USER")
    with open_accounts(tmp_path):
        for name in ("open", "shut", "other"):
            visibility = "PUBLIC" if name == "open" else "PRIVATE"
            Project.create(name=name, visibility=visibility, created_at=now())
        roles: dict[str, ProjectRole] = {"olaf": "OWNER", "wendy": "WRITE", "rob": "READ"}
        for name, member in roles.items():
            permissions.grant(project("shut").id, get_user(name).id, member, now())
        yield tmp_path


def project(name: str) -> Project:
    found: Project = Project.get(Project.name == name)
    return found


def get_user(name: str) -> User:
    user = accounts.user_named(name)
    assert user is not None
    return user


@pytest.mark.parametrize(
    ("name", "role", "reads", "writes", "owns"),
    [
        ("ada", "OWNER", True, True, True),
        ("olaf", "OWNER", True, True, True),
        ("wendy", "WRITE", True, True, False),
        ("rob", "READ", True, False, False),
        ("sue", None, False, False, False),
        (None, None, False, False, False),
    ],
)
@pytest.mark.usefixtures("data")
def test_permissions_in_a_private_project_by_role(
    name: str | None, role: str | None, reads: bool, writes: bool, owns: bool
) -> None:
    user, shut = get_user(name) if name else None, project("shut")
    assert permissions.role_in(user, shut) == permissions.role_in(user, shut.id) == role
    assert permissions.may_read(user, shut) is reads
    assert permissions.may_write(user, shut) is writes
    assert permissions.may_own(user, shut) is owns


@pytest.mark.parametrize("name", ["ada", "olaf", "sue", None])
@pytest.mark.usefixtures("data")
def test_public_project_is_readable_by_all_and_writable_by_members(name: str | None) -> None:
    user, public = get_user(name) if name else None, project("open")
    assert permissions.may_read(user, public)
    assert permissions.may_write(user, public) is (name == "ada")


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("ada", ["open", "other", "shut"]), ("olaf", ["open", "shut"]), ("wendy", ["open", "shut"]),
        ("rob", ["open", "shut"]), ("sue", ["open"]), (None, ["open"]),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("data")
def test_listing_has_only_readable_projects(name: str | None, names: list[str]) -> None:
    user = get_user(name) if name else None
    found = [one.name for one in Project.select().where(permissions.readable(user, Project)).order_by(Project.name)]
    assert found == names
    alike = [one.name for one in Project.select().order_by(Project.name) if permissions.may_read(user, one)]
    assert alike == names
    narrowed = Project.select().where(permissions.readable(user, Project) & (Project.name == "shut")).count()
    assert narrowed == ("shut" in names)


@pytest.mark.usefixtures("data")
def test_members_are_sorted_by_name_and_can_be_removed() -> None:
    shut = project("shut").id
    assert [(user.username, role) for user, role in permissions.members_of(shut)] == [
        ("olaf", "OWNER"), ("rob", "READ"), ("wendy", "WRITE"),
    ]  # fmt: skip
    permissions.grant(shut, get_user("rob").id, "WRITE", now())
    assert permissions.role_in(get_user("rob"), shut) == "WRITE"
    assert permissions.remove_member(shut, get_user("rob").id)
    assert not permissions.remove_member(shut, get_user("rob").id)
    assert not permissions.may_read(get_user("rob"), project("shut"))
    assert permissions.members_of(project("other").id) == []


@pytest.mark.usefixtures("data")
def test_deleted_user_has_no_memberships() -> None:
    accounts.delete_user(get_user("olaf").id)
    assert [user.username for user, _ in permissions.members_of(project("shut").id)] == ["rob", "wendy"]


@pytest.mark.parametrize("role", ["ADMIN", "USER"])
@pytest.mark.usefixtures("data")
def test_credential_is_valid_until_it_expires_or_is_revoked(role: Role) -> None:
    user = accounts.create_user("temp", "hash", role, now())
    raw = accounts.create_token(user.id, "ci", "INGEST", now() + 60_000_000, now())
    token = accounts.by_token(raw, now())
    assert token is not None
    assert (token.user, token.kind, token.scope) == (user, "token", "INGEST")
    assert accounts.refresh(token, now()) == token
    assert accounts.refresh(token, now() + 61_000_000) is None
    accounts.revoke_token(user.id, token.id, now())
    assert accounts.refresh(token, now()) is None
    stored = accounts.password_of("temp")
    assert stored is not None
    assert "hash" not in repr(stored)
    session = accounts.by_session(accounts.log_in(stored, 60_000_000, now()) or "", now())
    assert session is not None
    assert (session.kind, session.scope) == ("session", "FULL")
    assert accounts.refresh(session, now()) == session
    accounts.end_session(user.id, session.id)
    assert accounts.refresh(session, now()) is None


@pytest.mark.usefixtures("data")
def test_login_with_a_just_replaced_password_creates_no_session() -> None:
    before = accounts.password_of("sue")
    assert before is not None
    accounts.set_password(before.user.id, "another hash")
    assert accounts.log_in(before, 60_000_000, now()) is None
    assert accounts.sessions_of(before.user.id, now()) == []


@pytest.mark.usefixtures("data")
def test_expired_sessions_are_removed() -> None:
    sue = accounts.password_of("sue")
    assert sue is not None
    accounts.log_in(sue, 60_000_000, now())
    accounts.log_in(sue, 60_000_000, now() - 120_000_000)
    assert accounts.prune_sessions(now()) == 1
    assert len(accounts.sessions_of(sue.user.id, 0)) == 1
