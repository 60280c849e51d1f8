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


def test_its_tables_are_those_of_the_code() -> None:
    text = DOCUMENT.read_text()
    assert tables.with_tables(text) == text, "python .ci/configuration.py writes them anew"


def test_it_has_a_table_for_each_section() -> None:
    found = re.findall(r"<!-- properties: ([a-z-]+) -->", DOCUMENT.read_text())
    assert sorted(found) == sorted(tables.SECTIONS)


@pytest.mark.parametrize("table", tables.SECTIONS)
def test_every_property_has_a_meaning(table: str) -> None:
    meanings = dict(re.findall(r"^\| `([^`]+)` \|.*\| ([^|]*) \|$", DOCUMENT.read_text(), re.MULTILINE))
    assert [one.path for one in tables.properties(table) if not meanings[one.path].strip()] == []


def test_every_variable_is_documented() -> None:
    result = set(re.findall(r"^\| `[^`]+` \|[^|]*\|[^|]*\| `([A-Z_]+)` \|", DOCUMENT.read_text(), re.MULTILINE))
    assert result == loader.VARIABLES


def test_what_the_code_has_more_or_otherwise_is_noticed() -> None:
    text = DOCUMENT.read_text()
    for before, after in ((r"\| `svc.hub.url` .*\n", ""), ("`30d` [|]", "`31d` |"), ("SERVER_PORT`", "PORT`")):
        changed = re.sub(before, after, text, count=1)
        assert changed != text
        assert tables.with_tables(changed) != changed


def test_the_chart_properties_in_the_tried_example_are_there_with_their_defaults(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "pilothouse.yaml").read_text()
    properties = re.sub("^# ", "", text[text.index("# svc:\n") :], flags=re.MULTILINE)
    file = tmp_path / "example.yaml"
    file.write_text(properties)
    assert loader.load(file, {}) == Config()
    assert paths(yaml.safe_load(properties)) >= {"svc.rest.unknown-fields", "svc.fetch.max-tags", "svc.work.timeout"}


# What was asked for


@pytest.fixture(scope="module")
def example() -> str:
    if not EXAMPLE.exists():
        missing_part(f"{EXAMPLE.name} beside the checkout")
    return EXAMPLE.read_text()


def paths(tree: Any, above: str = "") -> set[str]:
    """The properties that a mapping gives; processes are for themselves."""
    found = set()
    for name, value in tree.items():
        path = f"{above}{name}"
        inner = isinstance(value, dict) and value and path != "supervisor.processes"
        found |= paths(value, f"{path}.") if inner else {path}
    return found


def names(table: str) -> set[str]:
    return {one.path for one in tables.properties(table)}


def test_every_property_of_the_example_exists(example: str) -> None:
    """Later additions are in docs/configuration.md only."""
    own = set().union(*(names(table) for table in ("server", "supervisor", "svc", "tracker")))
    assert paths(yaml.safe_load(example)) <= own


def test_the_example_shows_our_defaults(tmp_path: Path, example: str) -> None:
    file = tmp_path / "example.yaml"
    file.write_text(example)
    read = loader.load(file, {})
    assert evolve(read, supervisor=evolve(read.supervisor, processes={})) == Config()


def test_its_process_has_our_properties_and_defaults(tmp_path: Path, example: str) -> None:
    web = yaml.safe_load(example)["supervisor"]["processes"]["web"]
    assert set(web) <= names("process")
    shown = {"command", "environment", "limits"}  # what is an example there, and no default
    file = tmp_path / "example.yaml"
    kept = {
        name: str(value) if name == "umask" and value else value for name, value in web.items() if name not in shown
    }
    file.write_text(yaml.safe_dump({"supervisor": {"processes": {"web": {"command": "true", **kept}}}}))
    assert loader.load(file, {}).supervisor.processes["web"] == ProcessSpec("web", ("true",))


def test_its_health_checks_have_exactly_our_properties_and_defaults(tmp_path: Path, example: str) -> None:
    file, found = tmp_path / "example.yaml", set()
    for line in re.findall(r"# (health-check: \{.*\})", example):
        with_tables = yaml.safe_load(line)["health-check"]
        found |= paths(with_tables)
        file.write_text(
            yaml.safe_dump({"supervisor": {"processes": {"web": {"command": "true", "health-check": with_tables}}}})
        )
        read = loader.load(file, {}).supervisor.processes["web"].health_check
        assert read is not None
        assert evolve(read, http=None, tcp=None, exec=None) == HealthCheck()
        assert read.http is None or read.http.status == ((200, 399),)
    assert found == names("health-check")
