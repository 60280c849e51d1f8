"""`/runs/{id}/coverage` without a path: the coverage of a run by folder and file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from handlers.tracker.pages.tracker_pages import patch_of
from models.accounts.accounts import User
from models.config.settings import QualityGate
from models.tracker import visibility
from models.tracker.coverage import coverage_tree
from models.tracker.coverage import file_coverage as coverage
from models.tracker.gate import quality_gate
from models.tracker.tables import Run

MAX_FILES = 100
_MAP_SIZE = (1200, 280)


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
        **_tree(run, baseline, query.get("folder", "")),
    }


def _tree(run: Run, baseline: Run | None, folder: str) -> dict[str, Any]:
    """One level of the folders of a run's coverage, with its treemap."""
    files = coverage_tree.files_of(run) if run.line_covered is not None else {}
    before = coverage_tree.files_before(baseline, run, files) if baseline and files else {}
    tree = coverage_tree.level(files, folder, before)
    if not folder and len(tree.entries) == 1 and tree.entries[0].is_folder:
        tree = coverage_tree.level(files, tree.entries[0].path, before)
    return {"tree": tree, "tiles": coverage_tree.treemap(tree.entries, *_MAP_SIZE), "map_size": _MAP_SIZE}
