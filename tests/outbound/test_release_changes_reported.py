"""Changes of releases are reported with their outcome, also where the server ended in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from outbound_stores import LIMITS, NOW, SECOND, FixedClock, in_store, open_outbox, run_in_thread

from models.config.settings import NotifyRuleSettings
from models.errors import Failed
from models.outbound import following, outbox
from models.outbound.channels import Channel, StoredSettings
from models.outbound.rules import SERVER, Rule
from models.outbound.tables import store
from supervisor.outbound.release_changes import ReleaseChanges

CHANNELS = [Channel("ch", SERVER, "team", StoredSettings("slack"))]


@pytest.fixture(autouse=True)
def _store(tmp_path: Path) -> Iterator[None]:
    with open_outbox(tmp_path / "outbox.db"):
        yield


class Notifier:
    def __init__(self, *events: str) -> None:
        self.rules = {"r": Rule("r", SERVER, NotifyRuleSettings("all", ("ch",), events))}


def changes(*events: str) -> ReleaseChanges:
    notifier: Any = Notifier(*events)
    return ReleaseChanges(FixedClock(), "node", run_in_thread, notifier, lambda: None)


def reported(one: ReleaseChanges) -> list[str]:
    in_store(lambda: following.flush(one._rules, CHANNELS, NOW + 60 * SECOND, LIMITS))
    rows = in_store(lambda: outbox.listing(10, 2**62))
    return [row.content["data"]["title"] for row in reversed(rows)]


def pending() -> int:
    return int(in_store(lambda: store.execute_sql("SELECT count(*) FROM release_change").fetchone()[0]))


def test_a_change_that_is_done_and_one_that_fails() -> None:
    one = changes("release.*")

    async def change() -> None:
        async with one.change("shop", "web", "upgrade"):
            assert await asyncio.to_thread(pending) == 1, "it is stored before helm starts"
        with pytest.raises(Failed):
            async with one.change("shop", "db", "install"):
                raise Failed("the values contain a password")

    asyncio.run(change())
    assert reported(one) == ["1 problems, 1 other"]
    (row,) = in_store(lambda: outbox.listing(10, 2**62))
    lines = {line["title"]: line["event"] for line in row.content["data"]["lines"]}
    assert lines == {
        "release shop/db: install failed": "release.failed",
        "release shop/web: upgrade is done": "release.upgraded",
    }
    assert pending() == 0


def test_a_change_that_ends_with_an_error_nobody_expects_has_failed() -> None:
    one = changes("release.failed")

    async def change() -> None:
        async with one.change("shop", "web", "upgrade"):
            raise LookupError("not expected")

    with pytest.raises(LookupError):
        asyncio.run(change())
    assert (reported(one), pending()) == (["release shop/web: upgrade failed"], 0)


def test_a_change_whose_end_was_not_seen_is_reported_as_unknown() -> None:
    one = changes("release.failed")

    async def change() -> None:
        async with one.change("shop", "web", "upgrade"):
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(change())
    assert (reported(one), pending()) == ([], 1)
    in_store(one.recover)
    assert reported(one) == ["release shop/web: the outcome of upgrade is unknown: the server ended meanwhile"]
    assert pending() == 0


def test_nothing_is_stored_where_no_rule_reports_releases() -> None:
    one = changes("process.*")

    async def change() -> None:
        async with one.change("shop", "web", "upgrade"):
            assert await asyncio.to_thread(pending) == 0

    asyncio.run(change())
