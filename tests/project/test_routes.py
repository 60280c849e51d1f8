"""Every route names its permission."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any, cast

from tornado.routing import PathMatches, Rule

from handlers import app
from handlers.accounts import account
from handlers.base import Base, methods
from handlers.charts import release_pages
from handlers.charts.operations import ChartOperation
from handlers.http import permissions
from handlers.http.credentials import Caller
from handlers.http.sse import Streams
from handlers.routing import API
from handlers.web.static import StaticFiles
from models.accounts.accounts import Credential, User
from models.config.settings import Config
from models.errors import Denied
from supervisor.services import Services

_SERVICES = cast("Services", SimpleNamespace(config=Config()))
RULES = app.rules(_SERVICES, Streams(Config().server))
CHANGING = {"POST", "PUT", "PATCH", "DELETE"}


def name(rule: Rule) -> str:
    return f"{cast('PathMatches', rule.matcher).regex.pattern} {rule.target.__name__}"


def test_every_handler_names_its_permission() -> None:
    assert len(RULES) > 300
    closed = [
        name(rule)
        for rule in RULES
        if not issubclass(rule.target, Base) or rule.target.permission is permissions.CLOSED
    ]
    assert closed == []


CREDENTIAL_PERMISSIONS = {
    permissions.CONTROL_PROCESSES, permissions.SIGNED_IN, permissions.ADMINISTER, permissions.POST_REPORTS,
    permissions.CHANGE_CHARTS, permissions.SEND_CHART_FORMS, permissions.USE_TOOLS,
}  # fmt: skip
"""Permissions that require a credential where the configuration demands one."""

PUBLIC_POSTS = {account.LoginPage, account.Logout}
"""Handlers with a public POST: a caller has no account before the login, and anyone may log out."""

READING_POSTS = {release_pages.ValuesCheck}
"""Handlers with a POST that changes nothing: a check of values."""

READING_OPERATIONS = {"live_topics"}
"""Operations with a POST that changes nothing: topics of the caller's own stream."""


def allowed_permissions(rule: Rule, method: str) -> set[permissions.Permission]:
    """The permissions that a changing method of this rule's handler may name."""
    operation = getattr(rule.target, "operations", {}).get(method)
    if operation is not None and operation.identifier in READING_OPERATIONS:
        return {permissions.READ}
    if isinstance(operation, ChartOperation) and not operation.mutating:
        return {permissions.READ_CHARTS}  # a read with a request body
    if rule.target in PUBLIC_POSTS:
        return {permissions.PUBLIC}
    return {permissions.READ} if rule.target in READING_POSTS else CREDENTIAL_PERMISSIONS


def test_a_changing_method_has_a_permission_that_requires_a_credential() -> None:
    changing = [(rule, method) for rule in RULES for method in sorted(CHANGING & set(methods(rule.target)))]
    assert len(changing) > 100
    found = [
        f"{method} {name(rule)}"
        for rule, method in changing
        if rule.target.permission_of(method) not in allowed_permissions(rule, method)
    ]
    assert found == []


def test_the_ingest_scope_is_admitted_to_post_and_follow_reports_only() -> None:
    user = User(1, "ci", None, None, "ADMIN")
    caller = Caller(is_remote=False, credential=Credential(user, "token", 1, "INGEST"), has_chart_key=True)
    admitted = set()
    for rule in RULES:
        for permission in map(rule.target.permission_of, methods(rule.target)):
            with contextlib.suppress(Denied):
                permissions.admit(caller, permission, Config())
                admitted.add(permission)
    assert admitted == {permissions.POST_REPORTS, permissions.FOLLOW_REPORTS}


def test_a_handler_without_a_permission_is_closed() -> None:
    class WithoutPermission(Base):
        pass

    assert WithoutPermission.permission is permissions.CLOSED


def test_static_files_are_public() -> None:
    assert cast("Any", StaticFiles).permission is permissions.PUBLIC


def test_every_service_is_mounted_at_the_root_and_under_its_prefix() -> None:
    patterns = {cast("PathMatches", rule.matcher).regex.pattern.rstrip("$") for rule in RULES}
    for service in app.SERVICES:
        for route in service.routes:
            assert {f"{API}{route[0]}", f"{service.prefix}{API}{route[0]}"} <= patterns
