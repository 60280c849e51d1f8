"""Makes the responses of the read endpoints (`responses.py`) from models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from attrs import frozen

from handlers.http.serializers import copied
from handlers.tracker.detail_responses import AttachmentInfo, AttachmentList, CoveredFileInfo, PerfInfo, TestAttachment
from handlers.tracker.responses import (
    AttemptInfo,
    BaselineInfo,
    ChangedLines,
    CommitCoverageInfo,
    ComparisonInfo,
    CoverageInfo,
    FailureInfo,
    FlagInfo,
    FlakyInfo,
    ForgeInfo,
    ForgeReportsInfo,
    FoundTestInfo,
    GateVerdict,
    OutcomeInfo,
    OwnersInfo,
    PatchInfo,
    ProjectDetail,
    ProjectInfo,
    RunAttempts,
    RunDetail,
    RunInfo,
    RunReference,
    RunTestInfo,
    RunVerdict,
    SecretInfo,
    TestHistory,
    TestInsight,
)
from models.config.settings import ForgeReportSettings, QualityGate, Quarantine
from models.json_format import Instant
from models.paging import cut, page_after
from models.tracker.coverage import file_coverage as coverage
from models.tracker.coverage.diff import ranges_of
from models.tracker.coverage.file_coverage import branch_coverage, line_coverage, pass_rate, percent
from models.tracker.coverage.patch import PatchCoverage
from models.tracker.failures import triage
from models.tracker.failures.first_failures import FirstFailure
from models.tracker.failures.flaky import FlakyTest
from models.tracker.failures.triage import TriageRuleInfo
from models.tracker.files.attachments import AttachedTest, Attachment
from models.tracker.files.sources import CoveredFile
from models.tracker.forges.forge_links import compare_url
from models.tracker.forges.owners import OwnerInfo, Owners
from models.tracker.forges.project_forge import ForgeLink
from models.tracker.gate.commit_gate import CommitVerdict, FlagStatus
from models.tracker.gate.quality_gate import Verdict
from models.tracker.insights.listing import Insight
from models.tracker.queries import Detail, FailureRow, Listed, TestOutcome
from models.tracker.runs.attempts import Attempt, State
from models.tracker.runs.comparison import Comparison
from models.tracker.runs.perf import Compared
from models.tracker.runs.run_tests import TestRow
from models.tracker.search import ProjectTest
from models.tracker.tables import Project, Run, Test

Lines = TypeVar("Lines", bound=ChangedLines)


def run_info(run: Run) -> RunInfo:
    return copied(
        RunInfo,
        run,
        commit=run.commit_sha,
        total=run.tests,
        pass_rate=pass_rate(run),
        line_coverage_pct=line_coverage(run),
        branch_coverage_pct=branch_coverage(run),
        run_path=run_path(run),
        patch_coverage_pct=percent(run.patch_covered, run.patch_missed),
        trusted=bool(run.trusted),  # an integer in a list
    )


def state(run: Run) -> State:
    return cast("State", run.state)


def run_path(run: Run) -> str:
    return f"/runs/{run.id}"


def project_info(listed: Listed) -> ProjectInfo:
    newest = run_info(listed.newest) if listed.newest else None
    return copied(ProjectInfo, listed.project, run_count=listed.runs, latest_run=newest)


def project_detail(
    listed: Listed,
    gate: QualityGate,
    policy: Quarantine,
    reports: ForgeReportSettings,
    branches: Sequence[str],
    role: str | None,
) -> ProjectDetail:
    project, token_at = listed.project, listed.project.forge_token_at
    return copied(
        ProjectDetail,
        project_info(listed),
        quality_gate=gate,
        quarantine=policy,
        quarantine_waiting=project.quarantine_waiting or 0,
        branches=branches,
        role=role,
        forge_repo=project.forge_repo if role else None,
        forge_token=SecretInfo(token_at is not None, token_at) if role == "OWNER" else None,
        forge_reports=copied(ForgeReportsInfo, reports),
    )


def forge_info(link: ForgeLink) -> ForgeInfo:
    return ForgeInfo(link.name, link.path, link.state, link.reason)


def gate_verdict(project: Project, judged: CommitVerdict) -> GateVerdict:
    run = judged.newest
    return copied(
        GateVerdict,
        judged.verdict,
        project=project.name,
        branch=run.branch,
        commit=run.commit_sha,
        flag=run.flag,
        run_id=run.id,
        run_path=run_path(run),
        complete=judged.complete,
        patch_coverage_pct=percent(judged.patch_covered, judged.patch_missed),
        flags=[flag_info(flag) for flag in judged.flags],
        baseline=baseline_info(judged.verdict),
        coverage=copied(CommitCoverageInfo, judged.coverage) if judged.coverage else None,
    )


def flag_info(flag: FlagStatus) -> FlagInfo:
    run, verdict = flag.run, flag.verdict
    return FlagInfo(
        flag=flag.flag,
        run_id=run.id if verdict else None,
        state=state(run),
        passed=flag.passed,
        line_coverage_pct=flag.coverage,
        carried_from=None if verdict else RunReference(run.id, run.commit_sha, Instant(run.created_at)),
        baseline=baseline_info(verdict),
    )


def baseline_info(verdict: Verdict | None) -> BaselineInfo | None:
    return copied(BaselineInfo, verdict.baseline) if verdict and verdict.baseline else None


def patch_info(run: Run, found: PatchCoverage, cursor: str | None, limit: int) -> PatchInfo:
    """A page of the files; the totals are those of all files. Raises `Invalid`."""
    files, next_cursor = page_after(cursor, found.files, limit, lambda file: (file.path,), str)
    return changed_lines(PatchInfo, found, run_id=run.id, files=files, next_cursor=next_cursor)


def changed_lines(kind: type[Lines], found: PatchCoverage, **more: Any) -> Lines:
    """The totals of changed lines, with what this kind of response has more."""
    return copied(
        kind,
        found,
        base_commit=found.base,
        head_commit=found.head,
        pct=percent(found.covered, found.missed),
        unknown_files=found.unknown,
        **more,
    )


def attempts_info(run: Run, uploads: int, items: Sequence[Attempt], next_cursor: str | None) -> RunAttempts:
    shown = [copied(AttemptInfo, item) for item in items]
    return copied(RunAttempts, run, run_id=run.id, uploads=uploads, items=shown, next_cursor=next_cursor)


def run_verdict(run: Run, verdict: Verdict) -> RunVerdict:
    return copied(RunVerdict, verdict, run_id=run.id, baseline_run_id=verdict.baseline_id, state=state(run))


@frozen
class KnownOfFailures:
    """Since when the failing tests of a run fail, and whose they are, by their ids; and the rules of triage."""

    firsts: Mapping[int, FirstFailure]
    owners: Mapping[int, str | None]
    rules: Sequence[TriageRuleInfo]


NOTHING_KNOWN = KnownOfFailures({}, {}, ())


def run_detail(
    run: Run,
    project: Project,
    verdict: Verdict,
    detail: Detail,
    files: coverage.Files | None,
    known: KnownOfFailures = NOTHING_KNOWN,
) -> RunDetail:
    return copied(
        RunDetail,
        detail,
        run=run_info(run),
        project=project.name,
        gate=run_verdict(run, verdict),
        failures=[_failure(row, known, project.repo_url) for row in detail.failures],
        coverage=_coverage(run, files) if files else None,
        attachments=[attachment_info(found) for found in detail.attachments],
    )


def _failure(row: FailureRow, known: KnownOfFailures, repo_url: str | None) -> FailureInfo:
    id = row.test_id or 0
    category = None
    if row.test_id is not None:
        category = triage.category(known.rules, row.type, row.message, row.triaged_stack)
    return copied(
        FailureInfo,
        row,
        status=row.status.value,
        failure_type=row.type,
        failure_message=row.message,
        stack_trace=row.stack,
        system_out=row.out,
        system_err=row.err,
        **since(known.firsts.get(id), repo_url),
        attachments=[attachment_info(found) for found in row.attachments],
        owner=known.owners.get(id),
        category=category,
    )


def perf_info(row: Compared) -> PerfInfo:
    return copied(
        PerfInfo,
        row.point,
        latency_change_pct=row.latency_change_pct,
        throughput_change_pct=row.throughput_change_pct,
    )


def covered_file(run_id: int, file: CoveredFile) -> CoveredFileInfo:
    return copied(
        CoveredFileInfo,
        file,
        run_id=run_id,
        covered_ranges=ranges_of(file.covered),
        missed_ranges=ranges_of(file.missed),
        changed_ranges=file.changed,
        source=None if file.text is None else "\n".join(file.text),
    )


def attachment_info(found: Attachment) -> AttachmentInfo:
    return AttachmentInfo(found.id, found.name, found.size, found.type, f"/api/v1/attachments/{found.id}")


def attachment_list(rows: Sequence[AttachedTest], limit: int) -> AttachmentList:
    """The first `limit` of these rows."""
    shown, next_cursor = cut(rows, limit, lambda row: (row.attachment.id,))
    items = [
        copied(TestAttachment, attachment_info(row.attachment), class_name=row.class_name, test_name=row.name)
        for row in shown
    ]
    return AttachmentList(items, next_cursor)


def _coverage(run: Run, files: coverage.Files) -> CoverageInfo:
    return copied(
        CoverageInfo,
        run,
        line_pct=line_coverage(run),
        branch_pct=branch_coverage(run),
        file_count=files.count,
        files=files.rows,
    )


def flaky_info(test: FlakyTest) -> FlakyInfo:
    return copied(
        FlakyInfo,
        test,
        status=test.status.value,
        flaky=test.commits is not None,
        flaky_commits=test.commits or 0,
        total_results=test.results,
        failure_rate_pct=percent(test.failures, test.results - test.failures) or 0.0,
    )


def test_insight(one: Insight, owner: str | None) -> TestInsight:
    return copied(
        TestInsight,
        one,
        owner=owner,
        failure_rate_pct=failure_rate(one),
        flaky_rate_pct=flaky_rate(one),
        median_ms=_milliseconds(one.median_us),
        growth_ms_per_run=_milliseconds(one.growth_us),
        never_failed=not one.failures,
        mean_time_to_green_ms=one.recovery_us // one.recoveries // 1000 if one.recoveries else None,
    )


def failure_rate(one: Insight) -> float:
    """The percentage of the runs in which a test failed."""
    return percent(one.failures, one.runs - one.failures) or 0.0


def flaky_rate(one: Insight) -> float:
    """The percentage of the runs in which a test was flaky."""
    return percent(one.flaky, one.runs - one.flaky) or 0.0


def _milliseconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / 1000


def test_history(
    test: Test, status: str, outcomes: Sequence[TestOutcome], limit: int, owner: str | None, first: FirstFailure | None
) -> TestHistory:
    """The history of a test, of whose outcomes one more than `limit` was read."""
    shown, next_cursor = cut(outcomes, limit, lambda outcome: (outcome.run.id, outcome.id))
    return TestHistory(
        class_name=test.class_name,
        name=test.name,
        status=status,
        results=[_outcome(outcome) for outcome in shown],
        next_cursor=next_cursor,
        owner=owner,
        **since(first, test.project.repo_url),
    )


def _outcome(outcome: TestOutcome) -> OutcomeInfo:
    return OutcomeInfo(
        run_id=outcome.run.id,
        branch=outcome.run.branch,
        flag=outcome.run.flag,
        commit=outcome.run.commit_sha,
        created_at=Instant(outcome.run.created_at),
        status=outcome.status.value,
        flaky=outcome.flaky,
        duration_ms=outcome.duration_ms,
        failure_message=outcome.message,
        attachments=[attachment_info(found) for found in outcome.attachments],
        superseded_by=outcome.run.superseded_by,
    )


def since(first: FirstFailure | None, repo_url: str | None) -> dict[str, Any]:
    """Returns the fields with the run since which a test fails."""
    passed = first.last_passed if first else None
    return {
        "first_failing": _reference(first.first_failing) if first else None,
        "last_passed": _reference(passed) if passed else None,
        "compare_url": compare_url(repo_url, passed.commit_sha, first.first_failing.commit_sha)
        if first and passed
        else None,
    }


def _reference(run: Run) -> RunReference:
    return RunReference(run.id, run.commit_sha, Instant(run.created_at))


def comparison_info(comparison: Comparison) -> ComparisonInfo:
    changes = comparison.changes
    return copied(
        ComparisonInfo,
        comparison,
        base=run_info(comparison.base),
        head=run_info(comparison.head),
        new_failures=changes.failing,
        fixed=changes.fixed,
        still_failing=changes.still_failing,
    )


def run_test(row: TestRow, first: FirstFailure | None, repo_url: str | None) -> RunTestInfo:
    return RunTestInfo(
        suite=row.suite,
        class_name=row.class_name,
        name=row.name,
        status=row.status.value,
        duration_ms=row.duration_ms,
        reruns=row.reruns,
        failure_type=row.type,
        failure_message=row.message,
        stack_trace=row.stack,
        **since(first, repo_url),
        flaky=row.flaky,
        owner=row.owner,
        category=row.category,
    )


def owners_info(known: Owners, counts: Sequence[OwnerInfo], next_cursor: str | None) -> OwnersInfo:
    return copied(OwnersInfo, known, items=counts, next_cursor=next_cursor)


def found_test(test: ProjectTest, known: Owners) -> FoundTestInfo:
    return FoundTestInfo(test.class_name, test.name, test.file, known.of(test.file, test.class_name))
