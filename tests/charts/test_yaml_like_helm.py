"""Values and Chart.yaml are parsed from YAML as by helm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import chart_servers
import pytest
import yaml

from models.charts import yaml_values
from models.charts.archives import archive, metadata
from models.errors import Invalid

SCALARS = (
    "y", "Y", "n", "N", "yes", "off", "True", "tRUE", "~", "", "0x1F", "0X1F", "0o17", "0O17", "017", "08", "0b11",
    "0B11", "-0x1f", "1_000", "1e3", "5.", "-.5", "1e400", "1:30", "2020-01-01", "12345678901234567890",
    "123456789012345678901234", "-9223372036854775809", "100000000000000000000.0", "=", "<<", "!!binary aGk=", "!own x",
    "!own [a]", "!own {a: y}", "!!set {a, b}", "!!float 3", "'y'", "0x_", "0b_", "0o_", "0_", "00_7", "0x_f", "-_",
    "!!timestamp 2001-01-02", "!!bool yes", "!!int '12'",
)  # fmt: skip
KEYS = (
    "y", "N", "0X1F", "08", "1e3", "2.0", "5.", ".inf", "-.Inf", ".nan", "1e400", "0.1", "-9223372036854775809",
)  # fmt: skip
SHOW_VALUES = "values: {{ toJson .Values | quote }}\n"


def values_of_helm(folder: Path, values: str) -> Any:
    """The values of a chart in its templates. Numbers are floats, as helm passes them."""
    file = folder / "chart.tgz"
    file.write_bytes(chart_servers.chart_archive(files={"values.yaml": values, "templates/map.yaml": SHOW_VALUES}))
    manifest = yaml.safe_load(chart_servers.run_helm(folder, "template", "one", str(file)).stdout)
    return json.loads(manifest["values"], parse_int=float)


def test_scalars_and_keys_are_read_as_by_helm(tmp_path: Path) -> None:
    lines = [f"v{number}: {text}" for number, text in enumerate(SCALARS)]
    text = "\n".join([*lines, "names:", *(f"  {name}: {number}" for number, name in enumerate(KEYS)), ""])
    wanted = values_of_helm(tmp_path, text)
    found = json.loads(json.dumps(yaml_values.load(text, "values")), parse_int=float)
    assert found == wanted
    assert [type(found[name]) is bool for name in wanted] == [type(value) is bool for value in wanted.values()]


@pytest.mark.parametrize("value", ["!!bool abc", "!!int abc", "!!int 1.5", "!!float abc", '!!float ""'])
def test_a_value_that_does_not_fit_its_tag_is_refused(value: str) -> None:
    """As by helm: "cannot decode !!str `abc` as a !!bool"."""
    with pytest.raises(Invalid, match="values: a value does not fit its tag"):
        yaml_values.load(f"x: {value}", "values")


@pytest.mark.parametrize("end", ["---\n", "...\n", "---\n# nothing\n---\n"])
def test_an_empty_document_after_the_values_is_ignored(tmp_path: Path, end: str) -> None:
    assert yaml_values.load(f"a: 1\n{end}", "values") == values_of_helm(tmp_path, f"a: 1\n{end}") == {"a": 1}


def test_a_second_document_of_values_is_refused() -> None:
    """helm 4 merges it, and helm 3 ignores it."""
    with pytest.raises(Invalid, match="values: more than one document"):
        yaml_values.load("a: 1\n---\nb: 2\n", "values")


@pytest.mark.parametrize("rest", ["---\n", "---\nname: other\nversion: 9.9.9\n", "--- not: [yaml\n", "...\n"])
def test_the_metadata_is_the_first_document(tmp_path: Path, rest: str) -> None:
    text = f"apiVersion: v2\nname: demo\nversion: 0.1.0\n{rest}"
    file = tmp_path / "chart.tgz"
    file.write_bytes(chart_servers.chart_archive(files={"Chart.yaml": text}))
    chart_servers.run_helm(tmp_path, "template", "one", str(file))
    found = archive.check(file)
    assert (found.name, found.version) == ("demo", "0.1.0")
    assert json.loads(metadata.show_chart_json(file))["name"] == "demo"


WORDS = [
    "", "y", "no", "~", "null", "True", "1", "1.50", "1e3", "0x1f", "0o17", "1_000", "1:30", ".inf", "2020-01-01",
    "*", "&", "!", "*a", "- a", "a: b", "a #b", " a", "?", "{{ .Release.Name }}", "'a", "plain", "v1.2", "100m",
    "a\nb\n", "a\nb", "a\n\n", "a \nb", "a\tb", "\u2713", "\U0001f600",
    "many words " * 20, "x: " + "y " * 60, "z" * 200,
]  # fmt: skip
NAMES = [
    "a", "b", "aB", "ab", "a_b", "a-b", "a.b", "A", "Z", "FOO_BAR", "FOOD", "FOO", "a2", "a10", "a100", "a01",
    "a00", "a0", "a1", "2", "10", "_", "\u00e9", "no", "a.b/c", "a/b", "host1.port10", "host1.port9", "host10",
]  # fmt: skip


def test_values_are_written_as_by_helm(tmp_path: Path) -> None:
    values = {
        "words": WORDS,
        "keys": {key: {"x": [{"b": {}, "a": []}]} for key in NAMES},
        "numbers": [1, 1.5, -2, None],
    }
    text = yaml_values.dump(values)
    file = tmp_path / "chart.tgz"
    file.write_bytes(
        chart_servers.chart_archive(files={"values.yaml": text, "templates/a.yaml": "{{ toYaml .Values }}\n"})
    )
    rendered = chart_servers.run_helm(tmp_path, "template", "one", str(file)).stdout
    assert yaml_values.dump(values) == rendered.split("# Source: demo/templates/a.yaml\n", 1)[1]


def test_the_metadata_of_a_chart_of_helm_2_has_its_dependencies(tmp_path: Path) -> None:
    needed = "dependencies:\n- name: sub\n  version: 0.1.0\n  repository: https://charts.example\n"
    file = tmp_path / "chart.tgz"
    file.write_bytes(chart_servers.chart_archive(apiVersion="v1", files={"requirements.yaml": needed}))
    shown = yaml.safe_load(chart_servers.run_helm(tmp_path, "show", "chart", str(file)).stdout)
    assert json.loads(metadata.show_chart_json(file))["dependencies"] == shown["dependencies"]
