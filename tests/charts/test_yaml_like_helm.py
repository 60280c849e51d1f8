"""YAML as helm reads it, compared with helm."""

from __future__ import annotations

import json
from pathlib import Path

import chart_servers
import pytest

from models.charts import archive, metadata


@pytest.mark.parametrize("rest", ["---\n", "---\nname: other\nversion: 9.9.9\n", "--- not: [yaml\n", "...\n"])
def test_the_metadata_is_the_first_document(tmp_path: Path, rest: str) -> None:
    text = f"apiVersion: v2\nname: demo\nversion: 0.1.0\n{rest}"
    file = tmp_path / "chart.tgz"
    file.write_bytes(chart_servers.chart_archive(files={"Chart.yaml": text}))
    chart_servers.run_helm(tmp_path, "template", "one", str(file))
    found = archive.check(file)
    assert (found.name, found.version) == ("demo", "0.1.0")
    assert json.loads(metadata.show_chart_json(file))["name"] == "demo"
