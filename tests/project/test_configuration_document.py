"""docs/configuration.md lists exactly the properties that the code reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from attrs import evolve
from conftest import ROOT, load_script
from requirements import missing_part

from models.config import loader
from models.config.settings import Config
from models.supervision.process import HealthCheck, ProcessSpec

DOCUMENT = ROOT / "docs" / "configuration.md"
EXAMPLE = ROOT.parent / "shared" / "spec" / "example.yaml"

tables = load_script(".ci/configuration.py")


def test_the_tables_equal_the_properties_of_the_code() -> None:
    text = DOCUMENT.read_text()
    assert tables.with_tables(text) == text, "run python .ci/configuration.py"


def test_each_section_has_a_table() -> None:
    found = re.findall(r"<!-- properties: ([a-z-]+) -->", DOCUMENT.read_text())
    assert sorted(found) == sorted(tables.SECTIONS)


@pytest.mark.parametrize("table", tables.SECTIONS)
def test_every_property_has_a_description(table: str) -> None:
    meanings = dict(re.findall(r"^\| `([^`]+)` \|.*\| ([^|]*) \|$", DOCUMENT.read_text(), re.MULTILINE))
    assert [one.path for one in tables.properties(table) if not meanings[one.path].strip()] == []


def test_every_variable_is_documented() -> None:
    result = set(re.findall(r"^\| `[^`]+` \|[^|]*\|[^|]*\| `([A-Z_]+)` \|", DOCUMENT.read_text(), re.MULTILINE))
    assert result == loader.VARIABLES


def test_a_difference_from_the_code_is_detected() -> None:
    text = DOCUMENT.read_text()
    for before, after in ((r"\| `svc.hub.url` .*\n", ""), ("`30d` [|]", "`31d` |"), ("SERVER_PORT`", "PORT`")):
        changed = re.sub(before, after, text, count=1)
        assert changed != text
        assert tables.with_tables(changed) != changed


def test_chart_properties_in_the_example_exist_and_have_their_defaults(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "pilothouse.yaml").read_text()
    properties = re.sub("^# ", "", text[text.index("# svc:\n") :], flags=re.MULTILINE)
    file = tmp_path / "example.yaml"
    file.write_text(properties)
    assert loader.load(file, {}) == Config()
    assert paths(yaml.safe_load(properties)) >= {"svc.rest.unknown-fields", "svc.fetch.max-tags", "svc.work.timeout"}


# The example of the specification


@pytest.fixture(scope="module")
def example() -> str:
    if not EXAMPLE.exists():
        missing_part(EXAMPLE.name, "not in Debian: it lies beside the checkout")
    return EXAMPLE.read_text()


def paths(tree: Any, above: str = "") -> set[str]:
    """The paths of the properties in a mapping; processes are not entered."""
    found = set()
    for name, value in tree.items():
        path = f"{above}{name}"
        inner = isinstance(value, dict) and value and path != "supervisor.processes"
        found |= paths(value, f"{path}.") if inner else {path}
    return found


def names(table: str) -> set[str]:
    return {one.path for one in tables.properties(table)}


def test_every_property_of_the_specified_example_exists(example: str) -> None:
    """Later additions are in docs/configuration.md only."""
    own = set().union(*(names(table) for table in ("server", "supervisor", "svc", "tracker")))
    assert paths(yaml.safe_load(example)) <= own


def test_the_example_of_the_specification_has_the_defaults(tmp_path: Path, example: str) -> None:
    file = tmp_path / "example.yaml"
    file.write_text(example)
    read = loader.load(file, {})
    assert evolve(read, supervisor=evolve(read.supervisor, processes={})) == Config()


def test_the_process_of_the_example_has_known_properties_and_defaults(tmp_path: Path, example: str) -> None:
    web = yaml.safe_load(example)["supervisor"]["processes"]["web"]
    assert set(web) <= names("process")
    example_only = {"command", "environment", "limits"}  # values that differ from the defaults
    file = tmp_path / "example.yaml"
    kept = {
        name: str(value) if name == "umask" and value else value
        for name, value in web.items()
        if name not in example_only
    }
    file.write_text(yaml.safe_dump({"supervisor": {"processes": {"web": {"command": "true", **kept}}}}))
    assert loader.load(file, {}).supervisor.processes["web"] == ProcessSpec("web", ("true",))


def test_the_health_checks_of_the_example_have_all_properties_and_defaults(tmp_path: Path, example: str) -> None:
    file, found = tmp_path / "example.yaml", set()
    for line in re.findall(r"# (health-check: \{.*\})", example):
        settings = yaml.safe_load(line)["health-check"]
        found |= paths(settings)
        file.write_text(
            yaml.safe_dump({"supervisor": {"processes": {"web": {"command": "true", "health-check": settings}}}})
        )
        read = loader.load(file, {}).supervisor.processes["web"].health_check
        assert read is not None
        assert evolve(read, http=None, tcp=None, exec=None) == HealthCheck()
        assert read.http is None or read.http.status == ((200, 399),)
    assert found == names("health-check")
