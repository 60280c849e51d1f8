"""The quality gate over all flags of a commit, with coverage carried forward from earlier commits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from attrs import evolve, frozen

from models.config.settings import QualityGate
from models.errors import Conflict, NotFound
from models.times import SECOND
from models.tracker.coverage import patch
from models.tracker.coverage.file_coverage import line_coverage, share, united
from models.tracker.coverage.patch import PatchCoverage
from models.tracker.gate import baseline, quality_gate
from models.tracker.gate.quality_gate import COVERAGE_RULES, MISSING_COVERAGE, RuleInfo, Verdict
from models.tracker.queries import runs_by_id
from models.tracker.tables import Project, Run, reports

MAX_FLAGS = 100
"""Flags of a commit that are judged; with more, the rule `complete-run` fails."""


_PREFIX = re.compile("[0-9a-f]{7,}")
MAX_CANDIDATES = 10
_ON_BRANCH = "AND branch = :branch"

_COMMITS = """
    SELECT commit_sha FROM (SELECT commit_sha, max(created_at) AS newest FROM run INDEXED BY run_by_prefix
        WHERE superseded_by IS NULL AND project_id = :project
        AND substr(lower(commit_sha), 1, 7) = :start AND substr(lower(commit_sha), 1, :length) = :prefix
        GROUP BY commit_sha) AS commits ORDER BY newest DESC, commit_sha"""
_NEWEST_OF_BRANCH = """
    SELECT id FROM counted_run WHERE project_id = :project AND branch = :branch {only}
    ORDER BY first_at DESC, first_id DESC, created_at DESC, id DESC LIMIT 1"""
_OF_COMMIT = (
    "run INDEXED BY run_by_commit WHERE superseded_by IS NULL AND project_id = :project AND commit_sha = :commit {only}"
)
_NEWEST_OF_COMMIT = f"SELECT id FROM {_OF_COMMIT} ORDER BY created_at DESC, id DESC LIMIT 1"  # noqa: S608
_NEWEST_OF_FLAGS = f"""
    SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY flag ORDER BY created_at DESC, id DESC) AS place, flag
        FROM {_OF_COMMIT}) AS runs
    WHERE place = 1 ORDER BY flag LIMIT :most"""  # noqa: S608 (constants)
_FLAGS = f"SELECT DISTINCT flag FROM {_OF_COMMIT}"  # noqa: S608 (constants)
MAX_NAMED_FLAGS = 5
_CARRIED = """
    SELECT id, flag FROM counted_run WHERE project_id = :project AND branch = :branch AND head_repo IS NULL
    AND state = 'COMPLETE' AND line_covered + line_missed > 0 AND created_at >= :since
    AND (first_at, first_id) < (:until, :first) AND (commit_sha IS NULL OR commit_sha <> :commit) {only}
    ORDER BY first_at DESC, first_id DESC, created_at DESC, id DESC"""


@frozen
class FlagStatus:
    """A flag of a commit: its newest run and the verdict, or the earlier run that lends its coverage."""

    flag: str
    run: Run
    verdict: Verdict | None = None
    """None where the coverage is carried forward."""
    passed: bool | None = None
    """Whether its own rules and those of the commit pass."""

    @property
    def coverage(self) -> float | None:
        return line_coverage(self.run)


@frozen
class CommitCoverage:
    """The lines that any flag of a commit covers, and those that none does; `flags` are those with coverage."""

    covered: int
    missed: int
    flags: Sequence[str]

    @property
    def share(self) -> Fraction:
        """In percent."""
        return Fraction(100 * self.covered, self.covered + self.missed)

    @property
    def pct(self) -> float:
        return float(self.share)


@frozen
class CommitVerdict:
    """The verdict on the newest run of a commit, and on all of its flags."""

    newest: Run
    verdict: Verdict
    flags: Sequence[FlagStatus]
    patch_covered: int = 0
    patch_missed: int = 0
    is_waiting: bool = False
    """Whether a required flag may still come."""
    coverage: CommitCoverage | None = None

    @property
    def complete(self) -> bool:
        return not self.is_waiting and all(
            flag.run.state == "COMPLETE" for flag in self.flags if flag.verdict is not None
        )


@frozen
class Judged:
    """What a request for a verdict is about: the newest run, and the branch that the others must be on, if any."""

    newest: Run
    branch: str | None


def find(project: Project, commit: str | None, branch: str | None, flag: str | None) -> Judged:
    """The newest run of a commit or branch. Raises `NotFound`, and `Conflict` for an ambiguous beginning of a commit.

    With both, it is about the runs of the commit on that branch, or about the commit where that branch has none.
    A branch alone means its newest commit. Runs of forks count for a branch only where it has no others.
    """
    values: dict[str, Any] = {"project": project.id, "branch": branch, "flag": flag}
    only_flag = "AND flag = :flag" if flag is not None else ""
    found: int | None = None
    if commit is not None:
        values["commit"] = _full(project.id, commit)
        if branch is not None and _first(_NEWEST_OF_COMMIT.format(only=_ON_BRANCH), values) is None:
            branch = None
        only = f"{_ON_BRANCH if branch is not None else ''} {only_flag}"
        found = _first(_NEWEST_OF_COMMIT.format(only=only), values)
    else:
        for only in ("AND head_repo IS NULL", ""):
            found = found or _first(_NEWEST_OF_BRANCH.format(only=f"{only} {only_flag}"), values)
        newest = runs_by_id([found]).get(found) if found is not None else None
        if newest is not None and newest.commit_sha is not None:
            values["commit"] = newest.commit_sha
            found = _first(_NEWEST_OF_COMMIT.format(only=f"{_ON_BRANCH} {only_flag}"), values)
    if found is None:
        which = f"of commit {commit}" if commit is not None else f"on branch {branch}"
        raise NotFound(
            f"{project.name} has no run {which}" + (f" with the flag {flag}" if flag else ""), "RUN_NOT_FOUND"
        )
    return Judged(runs_by_id([found])[found], branch)


def _first(query: str, values: Mapping[str, Any]) -> int | None:
    row = reports.execute_sql(query, dict(values)).fetchone()
    return None if row is None else int(row[0])


def _full(project_id: int, commit: str) -> str:
    """The commit of a project's runs that begins like this, in any case; else as it is. Raises `Conflict`."""
    values: dict[str, Any] = {"project": project_id, "commit": commit}
    prefix = commit.lower()
    if _PREFIX.fullmatch(prefix) is None or _first(_NEWEST_OF_COMMIT.format(only=""), values) is not None:
        return commit
    values = {"project": project_id, "start": prefix[:7], "prefix": prefix, "length": len(prefix)}
    found = [name for (name,) in reports.execute_sql(_COMMITS, values)]
    if len({name.lower() for name in found}) > 1:
        names = ", ".join(sorted(found)[:MAX_CANDIDATES])
        raise Conflict(f"commit {commit} is ambiguous: {names}", "AMBIGUOUS_COMMIT")
    return found[0] if found else commit


def of_run(run: Run, project: Project, settings: QualityGate, late: int | None = None) -> CommitVerdict:
    """The verdict on all of a run's commit so far, on the run's branch; on the run alone where it has no commit."""
    if run.commit_sha is None:
        return judge(run, project, settings, late=late)
    found = find(project, run.commit_sha, run.branch, None)
    return judge(found.newest, project, settings, branch=found.branch, late=late)


def judge(
    newest: Run,
    project: Project,
    settings: QualityGate,
    aggregate: bool = True,
    branch: str | None = None,
    late: int | None = None,
    verdicts: Mapping[int, Verdict] | None = None,
) -> CommitVerdict:
    """Judges the commit of a run. Without `aggregate`, or with `aggregate-flags: false`, that run alone decides.

    With `branch`, runs of the commit on other branches do not count. `late`: a commit whose last upload was not after
    this time waits for no required flag any more. `verdicts` on its runs are made here unless given.
    """
    limits = quality_gate.thresholds(project, settings)
    runs = runs_of_commit(newest, branch) if aggregate else [newest]
    verdicts = verdicts or quality_gate.verdicts(runs, {project.id: project}, settings)
    missing = _missing_flags(newest, limits, branch) if aggregate else []
    is_waiting = bool(missing) and (late is None or max(run.updated_at for run in runs) > late)
    required = [required_rule(missing, is_waiting)] if aggregate and limits.required_flags else []
    if limits.aggregate_flags and len(runs) > MAX_FLAGS:
        detail = f"the commit has more than {MAX_FLAGS} flags, which are not all judged"
        required.append(RuleInfo("complete-run", False, detail))
    carried = _carried(newest, project, limits, {run.flag for run in runs}) if aggregate else []
    covered = _coverage([*runs, *carried])
    if not aggregate or not limits.aggregate_flags:
        own = verdicts[newest.id]
        own = evolve(own, rules=quality_gate.in_order([*own.rules, *required]))
        passed = {run.id: verdicts[run.id].passed for run in runs}
        counts = newest.patch_covered or 0, newest.patch_missed or 0
    else:
        found = patch.coverage([run.id for run in runs])
        own, passed = _judged_together(newest, runs, carried, verdicts, limits, covered, found, required)
        counts = found.covered, found.missed
    flags = [FlagStatus(run.flag, run, verdicts[run.id], passed[run.id]) for run in runs]
    lent = [FlagStatus(run.flag, run) for run in carried]
    return CommitVerdict(newest, own, [*flags, *lent], *counts, is_waiting, covered)


def _judged_together(
    newest: Run,
    runs: Sequence[Run],
    carried: Sequence[Run],
    verdicts: Mapping[int, Verdict],
    limits: QualityGate,
    covered: CommitCoverage | None,
    changed: PatchCoverage,
    required: Sequence[RuleInfo],
) -> tuple[Verdict, dict[int, bool]]:
    """The verdict on all flags of a commit, and by run whether the rules of its flag and of the commit pass."""
    now, before = covered.share if covered else None, _coverage_before([verdicts[run.id] for run in runs], carried)
    of_commit = [*required, *quality_gate.coverage_rules(limits, now, before)]
    if limits.min_patch_coverage is not None:
        counts = changed.covered, changed.missed, changed.unknown
        of_commit.append(quality_gate.patch_rule(limits, *counts, changed.reason))
    if limits.fail_on_missing_coverage:
        of_commit.append(_missing_coverage(runs, carried, limits))
    of_flags = {run.id: _rules_of_flag(run, verdicts[run.id]) for run in runs}
    passed = {id: all(rule.passed for rule in (*of_commit, *rules)) for id, rules in of_flags.items()}
    rules = quality_gate.in_order([*of_commit, *(rule for rules in of_flags.values() for rule in rules)])
    delta = None if now is None or before is None else float(now - before)
    return evolve(verdicts[newest.id], rules=rules, coverage_delta=delta), passed


def _coverage(runs: Sequence[Run]) -> CommitCoverage | None:
    counts = united(runs)
    return CommitCoverage(*counts, [run.flag for run in runs if line_coverage(run) is not None]) if counts else None


def _coverage_before(verdicts: Sequence[Verdict], carried: Sequence[Run]) -> Fraction | None:
    """The union of the coverage of the baselines of a commit's flags, with what is carried to the commit."""
    bases = runs_by_id({one.baseline_id for one in verdicts if one.baseline_id is not None})
    if all(line_coverage(run) is None for run in bases.values()):
        return None
    return share(*(united([*bases.values(), *carried]) or (0, 0)))


def _missing_coverage(runs: Sequence[Run], carried: Sequence[Run], limits: QualityGate) -> RuleInfo:
    """Coverage of one flag is enough; carried coverage only of a flag that the settings name."""
    if any(line_coverage(run) is not None for run in runs):
        return RuleInfo(MISSING_COVERAGE, True, "coverage was reported")
    named = [run.flag for run in carried if run.flag in limits.carry_forward_flags]
    detail = f"coverage of the flag {named[0]} is carried forward" if named else "no coverage was reported"
    return RuleInfo(MISSING_COVERAGE, bool(named), detail)


def _rules_of_flag(run: Run, verdict: Verdict) -> list[RuleInfo]:
    return [evolve(rule, flag=run.flag) for rule in verdict.rules if rule.name not in COVERAGE_RULES]


def _missing_flags(newest: Run, limits: QualityGate, branch: str | None) -> list[str]:
    """The required flags without a run of the commit; a run without a commit stands alone."""
    present = {newest.flag}
    if limits.required_flags and newest.commit_sha is not None:
        values = {"project": newest.project_id, "commit": newest.commit_sha, "branch": branch}
        query = _FLAGS.format(only=_ON_BRANCH if branch is not None else "")
        present.update(flag for (flag,) in reports.execute_sql(query, values))
    return [flag for flag in dict.fromkeys(limits.required_flags) if flag not in present]


def required_rule(missing: Sequence[str], is_waiting: bool) -> RuleInfo:
    """The rule that every required flag has a run of the commit."""
    if not missing:
        return RuleInfo("required-flags", True, "all required flags have a run")
    more = f" and {len(missing) - MAX_NAMED_FLAGS} more" if len(missing) > MAX_NAMED_FLAGS else ""
    names = ", ".join(missing[:MAX_NAMED_FLAGS]) + more
    return RuleInfo("required-flags", False, f"waiting for {names}" if is_waiting else f"no run of {names}")


def runs_of_commit(newest: Run, branch: str | None) -> list[Run]:
    """The newest run of each flag of the commit, by flag, with `newest` for its own flag.

    More than `MAX_FLAGS` only show that there are more.
    """
    if newest.commit_sha is None:
        return [newest]
    values = {"project": newest.project_id, "commit": newest.commit_sha, "branch": branch, "most": MAX_FLAGS + 1}
    only = _ON_BRANCH if branch is not None else ""
    ids = [row[0] for row in reports.execute_sql(_NEWEST_OF_FLAGS.format(only=only), values)]
    runs = runs_by_id({*ids, newest.id})
    found = [runs[id] for id in ids if runs[id].flag != newest.flag]
    return sorted([*found, newest], key=lambda run: str(run.flag))


def _carried(newest: Run, project: Project, limits: QualityGate, present: set[str]) -> list[Run]:
    """Earlier runs that lend coverage to flags without a run of the commit: of its branch, else of the base branch."""
    listed = set(limits.carry_forward_flags)
    if not listed or newest.commit_sha is None:
        return []
    values: dict[str, Any] = {"project": project.id, "commit": newest.commit_sha}
    values["since"] = newest.created_at - round(limits.carry_forward_max_age * SECOND)
    lenders: dict[str, int] = {}
    own, base = newest.branch, baseline.base_branch(newest.id, limits.base_branch)
    for branch in dict.fromkeys((own, base)):
        if branch is None:
            continue
        at, first = baseline.place_on(newest.id, branch)
        only = "" if branch == own else "AND pr_number IS NULL"
        place = {"branch": branch, "until": at, "first": first}
        for id, flag in reports.execute_sql(_CARRIED.format(only=only), values | place):
            if flag not in present and (flag in listed or "*" in listed):
                lenders.setdefault(flag, id)
    runs = runs_by_id(lenders.values())
    return [runs[lenders[flag]] for flag in sorted(lenders)]
