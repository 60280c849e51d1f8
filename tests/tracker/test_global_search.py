"""The search of runs and tests by a part of their names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import records
from records import PASSED

from models.tracker import search


@pytest.fixture
def run_ids(tmp_path: Path) -> Iterator[list[int]]:
    """The ids of five runs, each with its own test."""
    with records.store_at(tmp_path / "tracker.db"):
        project = records.create_project("shop")
        yield [records.create_run(project, {f"cart.Test{number} pays": PASSED}).id for number in range(5)]


def test_runs_and_tests_are_found_by_a_part_of_their_names(run_ids: list[int]) -> None:
    admin = records.create_user("boss", "ADMIN")
    assert [run.id for run in search.find_runs(admin, "mai", 10)] == run_ids[::-1]
    assert [test.class_name for test in search.find_tests(admin, "test3 PAYS", 10)] == ["cart.Test3"]
    assert search.find_tests(admin, "pa", 10) == []


def test_search_reads_only_the_newest_runs_and_tests(run_ids: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MAX_RUNS", 2)
    monkeypatch.setattr(search, "MAX_TESTS", 3)
    admin = records.create_user("boss", "ADMIN")
    assert [run.id for run in search.find_runs(admin, "mai", 10)] == run_ids[:2:-1]
    assert [run.id for run in search.find_runs(admin, str(run_ids[0]), 10)] == run_ids[:1]
    assert {test.class_name for test in search.find_tests(admin, "pays", 10)} == {
        "cart.Test2",
        "cart.Test3",
        "cart.Test4",
    }
