"""Every route names its permission."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from tornado.routing import PathMatches, Rule

from handlers import app
from handlers.accounts import account
from handlers.base import Base, methods
from handlers.charts import release_pages
from handlers.http import permissions
from handlers.http.credentials import Caller
from handlers.http.sse import Streams
from handlers.routing import API
from handlers.web import live
from handlers.web.static import StaticFiles
from models.accounts.accounts import Credential, User
from models.config.settings import Config
from models.errors import Denied
from supervisor.services import Services

_NOBODY = cast("Services", SimpleNamespace(config=Config()))
RULES = app.rules(_NOBODY, Streams(Config().server))
CHANGING = {"POST", "PUT", "PATCH", "DELETE"}


def name(rule: Rule) -> str:
    return f"{cast('PathMatches', rule.matcher).regex.pattern} {rule.target.__name__}"


@pytest.mark.parametrize("rule", RULES, ids=name)
def test_every_handler_names_its_permission(rule: Rule) -> None:
    assert issubclass(rule.target, Base)
    assert rule.target.permission is not permissions.CLOSED


ASKING = {
    permissions.CONTROL_PROCESSES, permissions.SIGNED_IN, permissions.ADMINISTER, permissions.POST_REPORTS,
    permissions.CHANGE_CHARTS, permissions.SEND_CHART_FORMS, permissions.USE_TOOLS,
}  # fmt: skip
"""The permissions that ask for a credential where one is needed."""

FREE = {account.Login, account.Logout}
"""A POST without a permission: a caller has no account before the login, and anyone may log out."""

READING = {live.LiveTopics, release_pages.ValuesCheck}
"""A POST that changes nothing: the topics of the caller's own stream, each with its permission; a check of values."""


@pytest.mark.parametrize("rule", RULES, ids=name)
def test_a_change_needs_a_permission_that_requires_a_credential(rule: Rule) -> None:
    for method in CHANGING & set(methods(rule.target)):
        permission = rule.target.permission_of(method)
        operation = getattr(rule.target, "operations", {}).get(method)
        if operation is not None and not operation[0].mutating:
            assert permission is permissions.READ_CHARTS, "a question that is asked with a body"
        elif rule.target in FREE:
            assert permission is permissions.PUBLIC
        elif rule.target in READING:
            assert permission is permissions.READ
        else:
            assert permission in ASKING


@pytest.mark.parametrize("rule", RULES, ids=name)
def test_no_gate_but_that_of_reports_lets_the_scope_ingest_pass(rule: Rule) -> None:
    user = User(1, "ci", None, None, "ADMIN")
    who = Caller(is_remote=False, credential=Credential(user, "token", 1, "INGEST"), has_chart_key=True)
    for method in methods(rule.target):
        permission = rule.target.permission_of(method)
        if permission is permissions.POST_REPORTS:
            permissions.admit(who, permission, Config())
        else:
            with pytest.raises(Denied):
                permissions.admit(who, permission, Config())


def test_a_handler_that_names_no_gate_is_closed() -> None:
    class Forgetful(Base):
        pass

    assert Forgetful.permission is permissions.CLOSED


def test_static_files_are_open() -> None:
    assert cast("Any", StaticFiles).permission is permissions.PUBLIC


def test_every_service_is_mounted_at_the_root_and_whole_under_its_prefix() -> None:
    patterns = {cast("PathMatches", rule.matcher).regex.pattern.rstrip("$") for rule in RULES}
    for service in app.SERVICES:
        for route in service.routes:
            assert {f"{API}{route[0]}", f"{service.prefix}{API}{route[0]}"} <= patterns
