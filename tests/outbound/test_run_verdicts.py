"""The events of runs are about all flags of their commit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import records
from records import FAILED, NOW, PASSED, SECOND

from models.config.settings import QualityGate
from models.outbound import run_verdicts
from models.tracker.tables import Project, Run

GATE = QualityGate()


@pytest.fixture
def project(tmp_path: Path, database_url: str | None) -> Iterator[Project]:
    with records.open_store(tmp_path / "tracker.db", database_url):
        yield records.create_project("demo")


def events_of(run: Run, settings: QualityGate = GATE, late: int | None = None) -> tuple[list[str], bool]:
    """The types of the events of a run, and whether it is not awaited any more."""
    found = run_verdicts.judge(run.id, settings, NOW, late)
    return [event.type for event in found or ()], found is not None


def test_a_failed_flag_fails_the_commit_in_the_events_of_all_flags(project: Project) -> None:
    records.create_run(project, {"A a": FAILED}, commit_sha="1", flag="ui")
    unit = records.create_run(project, {"A a": PASSED}, commit_sha="1", flag="unit")
    assert events_of(unit) == (["gate.failed"], True)
    other = records.create_run(project, {"A a": PASSED}, commit_sha="2", flag="unit")
    assert events_of(other) == (["gate.passed"], True)


def test_a_commit_is_awaited_until_its_required_flags_came_or_are_late(project: Project) -> None:
    settings = QualityGate(required_flags=("unit", "ui"))
    unit = records.create_run(project, {"A a": PASSED}, commit_sha="1", flag="unit")
    assert events_of(unit, settings, unit.updated_at - SECOND) == ([], False)
    assert events_of(unit, settings, unit.updated_at) == (["gate.failed"], True)
    records.create_run(project, {"A a": PASSED}, commit_sha="1", flag="ui")
    assert events_of(unit, settings, unit.updated_at - SECOND) == (["gate.passed"], True)


def test_a_run_of_a_deleted_project_has_no_events(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    run = records.create_run(project, {"A a": FAILED}, commit_sha="1")
    monkeypatch.setattr(Project, "get_or_none", lambda *_: None)
    assert events_of(run) == ([], True)
