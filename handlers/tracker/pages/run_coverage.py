"""`/runs/{id}/coverage` without a path: the coverage of a run by folder and file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from handlers.tracker.pages.tracker_pages import coverage_tree_of, patch_of
from models.accounts.accounts import User
from models.config.settings import QualityGate
from models.tracker import visibility
from models.tracker.coverage import file_coverage as coverage
from models.tracker.gate import quality_gate
from models.tracker.tables import Run

MAX_FILES = 100


def run_coverage(user: User | None, id: str, settings: QualityGate, query: Mapping[str, str]) -> dict[str, Any]:
    """The values of the page. Raises `NotFound`."""
    run, project = visibility.run(user, id)
    verdict = quality_gate.verdict(run, project, settings)
    baseline = Run.get_or_none(Run.id == verdict.baseline_id) if verdict.baseline_id else None
    return {
        "project": project,
        "run": run,
        "baseline": baseline,
        "delta": verdict.coverage_delta,
        "coverage": coverage.files(run),
        "line_pct": coverage.line_coverage(run),
        "branch_pct": coverage.branch_coverage(run),
        "patch": patch_of(run),
        "max_files": MAX_FILES,
        "tree_at": f"/runs/{run.id}/coverage",
        **coverage_tree_of(run, baseline, query.get("folder", "")),
    }
