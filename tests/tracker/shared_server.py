"""Fixtures of test files that share one server: `pytest_plugins = ["shared_server"]`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import records
from conftest import Server
from http_checks import running_server

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests of a file."""
    with running_server(tmp_path_factory.mktemp("shared")) as server:
        yield server


@pytest.fixture(scope="module")
def admin_header(server: Server) -> dict[str, str]:
    """The Authorization header of an ADMIN."""
    with records.store_of(server):
        return records.bearer(records.create_user("boss", "ADMIN"))


@pytest.fixture
def project() -> str:
    """The name of a project that no other test has."""
    return f"project {next(_numbers)}"
