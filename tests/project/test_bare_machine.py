"""What `.ci/bare.py` relies on: the README names the packages, and a skipped test says how to get what it lacks."""

from __future__ import annotations

from pathlib import Path

import pytest
import requirements
from conftest import ROOT, load_script
from document_reader import blocks

bare = load_script(".ci/bare.py")
PARTS = [*requirements.PACKAGES, *requirements._OTHERWISE]


def test_the_packages_are_those_of_the_readme() -> None:
    assert bare.packages() == "make,python3-venv"


def test_the_tests_of_the_part_exist() -> None:
    assert [name for name in bare.PART if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("part", PARTS)
def test_a_skipped_test_says_how_to_get_the_missing_part(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "false")
    with pytest.raises(pytest.skip.Exception) as skipped:
        requirements.missing_part(part)
    assert bare.REASON.fullmatch(str(skipped.value))
    monkeypatch.setenv("CI", "true")
    outcome = pytest.skip if part == requirements.CONTROL_GROUPS else pytest.fail
    with pytest.raises(outcome.Exception, match="missing: "):
        requirements.missing_part(part)


def test_the_programs_of_the_documents_have_packages() -> None:
    documents = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    needs = {
        need for file in documents for block in blocks(file.read_text()) for need in block.needs if block.kind == "run"
    }
    assert "sqlite3" in needs
    assert needs - set(PARTS) <= {"cluster", "registry"}


def test_tests_are_skipped_by_their_requirements_only() -> None:
    """Except for those that are about SQLite, where a database replaces the files."""
    found = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in (ROOT / "tests").rglob("*.py")
        if file not in (Path(__file__), ROOT / "tests" / "requirements.py")
        for line in file.read_text().splitlines()
        if ("pytest.skip" in line or "importorskip" in line or ".skipif" in line) and "is_on_postgresql" not in line
    ]
    assert found == []
