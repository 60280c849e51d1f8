"""Fixtures of tests that send reports to a forge by hand: `pytest_plugins = ["forge_fixtures"]`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import chart_servers
import pytest
import records
from chart_servers import WebServer
from outbound_stores import open_outbox


@pytest.fixture
def stores(tmp_path: Path, database_url: str | None) -> Iterator[None]:
    """The outbox and the tracker's store, of each kind."""
    with open_outbox(tmp_path / "outbox.db", database_url), records.open_store(tmp_path / "tracker.db", database_url):
        yield


@pytest.fixture(scope="module")
def web() -> Iterator[WebServer]:
    with chart_servers.web_server() as one:
        yield one
