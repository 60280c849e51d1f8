"""Properties of an entry can be written in nested, dotted or mixed notation."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.config import loader
from models.config.settings import BadConfig
from models.supervision.process import ProcessSpec


def _processes(folder: Path, text: str) -> dict[str, ProcessSpec]:
    file = folder / "pilothouse.yaml"
    file.write_text(f"supervisor:\n  processes:\n    db: {{command: run}}\n    {text}\n")
    return dict(loader.load(file, {}).supervisor.processes)


@pytest.mark.parametrize(
    ("written", "nested"),
    [
        ("web.command: a b", "web: {command: a b}"),
        ("{web.command: a, web.order: 2}", "web: {command: a, order: 2}"),
        ("{web: {command: a}, web.environment: {PORT: 1}}", "web: {command: a, environment: {PORT: 1}}"),
        ("{web: {command: a}, web.limits.nofile: 1}", "web: {command: a, limits: {nofile: 1}}"),
        ("web: {command: a, limits.nofile.soft: 1, limits.nofile.hard: 2}",
         "web: {command: a, limits: {nofile: {soft: 1, hard: 2}}}"),
        ("web: {command: a, limits: {nofile.soft: 1, nofile: {hard: 2}}}",
         "web: {command: a, limits: {nofile: {soft: 1, hard: 2}}}"),
        ("web.api.command: a", "web.api: {command: a}"),
        ("web.order: {command: a}", "web.order: {command: a}"),  # a name can contain dots and names of properties
        ("web: {command: a, depends-on: {process: db}}", "web: {command: a, depends-on: [{process: db}]}"),
    ],
)  # fmt: skip
def test_dotted_and_mixed_notation_equal_nested_notation(tmp_path: Path, written: str, nested: str) -> None:
    lines = "\n    ".join(written[1:-1].split(", ", 1)) if written.startswith("{") else written
    assert _processes(tmp_path, lines) == _processes(tmp_path, nested)


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ("web: {command: a}\n    web.comand: b", "web.comand: unknown property; did you mean"),
        ("web: {command: a}\n    web.command: b", "web.command: is given twice"),
        ("web: {command: a, limits: {nofile.soft: 1}}", "web.limits.nofile.hard: is required"),
        ("web: {command: a, depends-on: {process: d}}", "web.depends-on: 'd' is not a process"),
        ("web: {command: a, depends-on: {condition: healthy}}", "web.depends-on[0].process: is required"),
        ("web.api: null", "web.api.command: is required"),
    ],
)
def test_an_error_names_the_path_of_the_property(tmp_path: Path, written: str, fault: str) -> None:
    with pytest.raises(BadConfig) as bad:
        _processes(tmp_path, written)
    assert [line.startswith(f"supervisor.processes.{fault}") for line in bad.value.faults] == [True]
