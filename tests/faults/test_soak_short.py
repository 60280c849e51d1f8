"""The short form of `make soak`: mixed traffic on all services, without errors and without a leak."""

from __future__ import annotations

from pathlib import Path

from small_charts import helm_path

from benchmarks.soak import document, helm_version, soak

SECONDS = 12.0
GROWTH = 15.0
"""In MiB. In the first minute most of it are caches, and modules that are imported on first use."""
OPERATIONS = {"processes", "page: home", "start", "upload", "gate", "badge", "template", "stream opened", "pull"}


def test_a_short_soak(tmp_path: Path) -> None:
    helm_path("helm")
    result = soak(tmp_path, SECONDS, with_cluster=False, operations=OPERATIONS)
    assert result.faults(GROWTH) == []
    requested = set(result.tally.took)
    assert requested >= OPERATIONS
    text = document(result, helm_version())
    assert "Errors: 0." in text
    assert all(f"| {name} |" in text for name in requested)
    assert len(result.lag) > 20 * SECONDS
