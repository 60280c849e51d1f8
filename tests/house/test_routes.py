"""Every route of the house names who may take it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from tornado.routing import PathMatches, Rule

from handlers import app, gates
from handlers.base import Base, methods
from handlers.pages import Static
from handlers.routing import API
from handlers.streams import Streams
from models.config import Config
from supervisor.services import Services

_NOBODY = cast("Services", SimpleNamespace())
RULES = app.rules(_NOBODY, Streams(Config().server))
CHANGING = {"POST", "PUT", "DELETE"}


def name(rule: Rule) -> str:
    return f"{cast('PathMatches', rule.matcher).regex.pattern} {rule.target.__name__}"


@pytest.mark.parametrize("rule", RULES, ids=name)
def test_every_handler_names_its_gate(rule: Rule) -> None:
    assert issubclass(rule.target, Base)
    assert rule.target.gate is not gates.closed


@pytest.mark.parametrize("rule", RULES, ids=name)
def test_whoever_may_change_something_is_asked_who_he_is(rule: Rule) -> None:
    if CHANGING & set(methods(rule.target)):
        assert rule.target.gate is gates.operators


def test_a_handler_that_names_no_gate_is_closed() -> None:
    class Forgetful(Base):
        pass

    assert Forgetful.gate is gates.closed


def test_static_files_are_open() -> None:
    assert cast("Any", Static).gate is gates.open_to_all


def test_every_service_is_mounted_at_the_root_and_whole_under_its_prefix() -> None:
    patterns = {cast("PathMatches", rule.matcher).regex.pattern.rstrip("$") for rule in RULES}
    for service in app.SERVICES:
        for route in service.routes:
            assert {f"{API}{route[0]}", f"{service.prefix}{API}{route[0]}"} <= patterns
