"""The quality gate over all flags of a commit, with coverage carried forward from earlier commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from models.config.settings import QualityGate
from models.tracker.coverage import patch
from models.tracker.coverage.file_coverage import line_coverage
from models.tracker.gate import quality_gate
from models.tracker.gate.quality_gate import MISSING_COVERAGE, PATCH, RuleInfo, Thresholds, Verdict
from models.tracker.queries import runs_by_id
from models.tracker.tables import Project, Run, reports

MAX_FLAGS = 100
_SECOND = 1_000_000

_NEWEST_OF_FLAGS = """
    SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY flag ORDER BY created_at DESC, id DESC) AS place, flag
        FROM run WHERE project_id = ? AND commit_sha = ? AND superseded_by IS NULL) AS runs
    WHERE place = 1 ORDER BY flag LIMIT ?"""
_CARRIED = """
    SELECT id, flag FROM run WHERE project_id = :project AND branch = :branch AND state = 'COMPLETE'
    AND superseded_by IS NULL AND line_covered + line_missed > 0 AND created_at >= :since
    AND (created_at, id) < (:until, :newest)
    AND (commit_sha IS NULL OR commit_sha <> :commit) ORDER BY created_at DESC, id DESC"""


@frozen
class FlagStatus:
    """A flag of a commit: its newest run and the verdict, or the earlier run that lends its coverage."""

    flag: str
    run: Run
    verdict: Verdict | None
    """None where the coverage is carried forward."""

    @property
    def coverage(self) -> float | None:
        return line_coverage(self.run)


@frozen
class CommitVerdict:
    """The verdict on the newest run of a commit, and on all of its flags."""

    newest: Run
    verdict: Verdict
    flags: Sequence[FlagStatus]
    patch_covered: int = 0
    patch_missed: int = 0

    @property
    def complete(self) -> bool:
        return all(flag.run.state == "COMPLETE" for flag in self.flags if flag.verdict is not None)


def judge(newest: Run, project: Project, settings: QualityGate, aggregate: bool = True) -> CommitVerdict:
    """Judges the commit of a run. Without `aggregate`, or with `aggregate-flags: false`, that run alone decides."""
    limits = quality_gate.thresholds(project, settings)
    runs = _runs_of_commit(newest) if aggregate else [newest]
    verdicts = quality_gate.verdicts(runs, {project.id: project}, settings)
    flags = [FlagStatus(run.flag, run, verdicts[run.id]) for run in runs]
    if aggregate:
        flags += [
            FlagStatus(run.flag, run, None) for run in _carried(newest, project, limits, {run.flag for run in runs})
        ]
    own = verdicts[newest.id]
    if not aggregate or not limits.aggregate_flags:
        return CommitVerdict(newest, own, flags, newest.patch_covered or 0, newest.patch_missed or 0)
    found = patch.coverage([run.id for run in runs])
    rules = _rules(flags, verdicts)
    for place, rule in enumerate(rules):
        if rule.name == PATCH:
            counts = found.covered, found.missed, found.unknown
            rules[place] = evolve(quality_gate.patch_rule(limits, *counts, found.reason), flag=rule.flag)
    return CommitVerdict(newest, evolve(own, rules=rules), flags, found.covered, found.missed)


def _runs_of_commit(newest: Run) -> list[Run]:
    """The newest run of each flag of the commit, by flag."""
    if newest.commit_sha is None:
        return [newest]
    values = (newest.project_id, newest.commit_sha, MAX_FLAGS)
    ids = [row[0] for row in reports.execute_sql(_NEWEST_OF_FLAGS, values)]
    runs = runs_by_id({*ids, newest.id})
    return [runs[id] for id in ids]


def _carried(newest: Run, project: Project, limits: Thresholds, present: set[str]) -> list[Run]:
    """Earlier runs that lend coverage to flags without a run of the commit: of its branch, else of the base branch."""
    listed = set(limits.carry_forward_flags)
    if not listed or newest.commit_sha is None:
        return []
    values: dict[str, Any] = {"project": project.id, "commit": newest.commit_sha}
    values |= {"until": newest.created_at, "newest": newest.id}
    values["since"] = newest.created_at - round(limits.carry_forward_max_age * _SECOND)
    lenders: dict[str, int] = {}
    for branch in dict.fromkeys((newest.branch, newest.base_branch or limits.base_branch)):
        if branch is not None:
            for id, flag in reports.execute_sql(_CARRIED, values | {"branch": branch}):
                if flag not in present and (flag in listed or "*" in listed):
                    lenders.setdefault(flag, id)
    runs = runs_by_id(lenders.values())
    return [runs[lenders[flag]] for flag in sorted(lenders)]


def _rules(flags: Sequence[FlagStatus], verdicts: Mapping[int, Verdict]) -> list[RuleInfo]:
    """The rules of all flags. Coverage of one flag is enough for `missing-coverage` of the others."""
    lender = next((flag.flag for flag in flags if flag.coverage is not None), None)
    found = []
    for flag in flags:
        for rule in verdicts[flag.run.id].rules if flag.verdict else ():
            if rule.name == MISSING_COVERAGE and not rule.passed and lender is not None:
                rule = evolve(rule, passed=True, detail=f"coverage of the flag {lender}")
            found.append(evolve(rule, flag=flag.flag))
    return found
