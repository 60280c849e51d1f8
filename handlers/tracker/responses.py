"""The responses of the tracker's endpoints: their JSON fields, in order."""

from __future__ import annotations

from collections.abc import Sequence

from handlers.tracker.detail_responses import AttachmentInfo
from models.config.settings import QualityGate, Quarantine
from models.json_format import Instant, http_message
from models.tracker.coverage.file_coverage import FileInfo
from models.tracker.coverage.patch import PatchFileInfo
from models.tracker.failures.clusters import ClusterInfo
from models.tracker.failures.flaky import Triage
from models.tracker.forges.owners import OwnerInfo, OwnerRuleInfo
from models.tracker.forges.project_forge import State as ForgeState
from models.tracker.gate.baseline import Reason
from models.tracker.gate.quality_gate import Judged, RuleInfo
from models.tracker.queries import SlowRow, SuiteInfo
from models.tracker.runs.attempts import State
from models.tracker.runs.comparison import Tests, Timing


@http_message
class IngestResult:
    """The result of an upload: the run after it."""

    run_id: int
    project: str
    tests: int
    failures: int
    skipped: int
    line_coverage_pct: float | None
    project_id: int
    passed: int
    failed: int
    errors: int
    status: Judged
    flag: str
    branch: str | None
    commit: str | None
    uploads: int
    gate_status: Judged
    run_path: str
    state: State
    warnings: Sequence[str]
    patch_coverage_pct: float | None


@http_message
class RunInfo:
    id: int
    project_id: int
    branch: str | None
    flag: str
    commit: str | None
    build_url: str | None
    build_name: str | None
    ci_provider: str | None
    base_branch: str | None
    pr_number: int | None
    created_at: Instant
    total: int
    passed: int
    failed: int
    errors: int
    skipped: int
    flaky: int
    duration_ms: int
    status: Judged
    pass_rate: float
    line_coverage_pct: float | None
    branch_coverage_pct: float | None
    uploads: int
    run_path: str
    state: State
    patch_coverage_pct: float | None
    superseded_by: int | None
    """The run whose later attempt of the same job superseded these reports."""
    trusted: bool
    """Whether all of its uploads had a credential of WRITE: only such runs are reported to a forge."""


@http_message
class ProjectInfo:
    id: int
    name: str
    repo_url: str | None
    visibility: str
    created_at: Instant
    run_count: int
    latest_run: RunInfo | None


@http_message
class SecretInfo:
    """Whether a secret is set; it is never shown."""

    set: bool
    updated_at: Instant | None


@http_message
class ForgeInfo:
    """The forge of a project: its name, the repository's path, and whether it can be read from and reported to."""

    forge: str | None
    repository: str | None
    state: ForgeState
    reason: str | None


@http_message
class ForgeReportsInfo:
    """What a project reports to its forge."""

    enabled: bool
    comment: str
    statuses: str
    context: str
    untrusted: str
    publish: str


@http_message
class ProjectDetail(ProjectInfo):
    quality_gate: QualityGate
    """The limits that count for this project."""
    quarantine: Quarantine
    """The policy that counts for this project."""
    quarantine_waiting: int
    """Flaky tests that are not quarantined because `maxPct` of the tests are."""
    branches: Sequence[str]
    role: str | None
    """The caller's role; null without membership, for a public project."""
    forge_repo: str | None
    """The repository that an OWNER confirmed; null for callers that are no members."""
    forge_token: SecretInfo | None
    """Null for callers that are not OWNER."""
    forge_reports: ForgeReportsInfo


@http_message
class RunReference:
    run_id: int
    commit: str | None
    created_at: Instant


@http_message
class BaselineInfo:
    """The run that another is compared with. `behind`: how many commits its branch had after it, before that run."""

    run_id: int
    commit: str | None
    branch: str
    reason: Reason
    behind: int


@http_message
class FlagInfo:
    """A flag of a commit; with `carriedFrom` it has no run of the commit, and is not judged."""

    flag: str
    run_id: int | None
    state: State
    passed: bool | None
    line_coverage_pct: float | None
    carried_from: RunReference | None
    """The run whose coverage counts for a flag without a run of the commit."""
    baseline: BaselineInfo | None


@http_message
class AttemptInfo:
    """An upload of a job to a run. `runId` is the run that holds its reports."""

    job_key: str | None
    job_instance: str | None
    attempt: int
    created_at: Instant
    run_id: int
    superseded: bool
    reports: int
    tests: int
    failures: int


@http_message
class RunAttempts:
    run_id: int
    state: State
    expected_uploads: int | None
    uploads: int
    """The jobs of which an upload came."""
    items: Sequence[AttemptInfo]
    next_cursor: str | None


@http_message
class ChangedLines:
    """The coverage of changed lines; `reason` is why `pct` is null."""

    base_commit: str | None
    head_commit: str | None
    covered: int
    missed: int
    pct: float | None
    reason: str | None
    unknown_files: int


@http_message
class PatchInfo(ChangedLines):
    """The coverage of the lines that a run's diff changes."""

    run_id: int
    files: Sequence[PatchFileInfo]
    next_cursor: str | None


@http_message
class FinishedRun:
    run_id: int
    state: State
    gate_status: Judged
    run_path: str


@http_message
class CommitCoverageInfo:
    """The union by line over the flags of a commit, carried ones included; `flags` are those with coverage."""

    covered: int
    missed: int
    pct: float
    flags: Sequence[str]


@http_message
class GateVerdict:
    """The quality gate's verdict on the newest matching run."""

    # `status` and `passed` before `rules`: shell clients look for the first
    project: str
    branch: str | None
    commit: str | None
    flag: str
    run_id: int
    status: Judged
    passed: bool
    coverage_delta: float | None
    rules: Sequence[RuleInfo]
    run_path: str
    complete: bool
    patch_coverage_pct: float | None
    flags: Sequence[FlagInfo]
    baseline: BaselineInfo | None
    """That of `runId`."""
    coverage: CommitCoverageInfo | None


@http_message
class RunVerdict:
    run_id: int
    status: Judged
    passed: bool
    coverage_delta: float | None
    baseline_run_id: int | None
    rules: Sequence[RuleInfo]
    state: State


@http_message
class FailureInfo:
    suite: str | None
    class_name: str
    name: str
    status: str
    duration_ms: int | None
    reruns: int
    failure_type: str | None
    failure_message: str | None
    stack_trace: str | None
    system_out: str | None
    system_err: str | None
    first_failing: RunReference | None
    """The first run of the unbroken series of failures on the branch and flag of the run; null for a suite."""
    last_passed: RunReference | None
    compare_url: str | None
    attachments: Sequence[AttachmentInfo]
    owner: str | None
    category: str | None
    """Of the first triage rule that matches; null for a suite."""


@http_message
class RunTestInfo:
    """A test in a run. `category` is that of the first triage rule that a failure matches."""

    suite: str | None
    class_name: str
    name: str
    status: str
    duration_ms: int | None
    reruns: int
    failure_type: str | None
    failure_message: str | None
    stack_trace: str | None
    first_failing: RunReference | None
    last_passed: RunReference | None
    compare_url: str | None
    flaky: bool
    owner: str | None
    category: str | None


@http_message
class OwnersInfo:
    codeowners: str | None
    rules: Sequence[OwnerRuleInfo]
    updated_at: Instant | None
    items: Sequence[OwnerInfo]
    next_cursor: str | None


@http_message
class FoundTestInfo:
    class_name: str
    name: str
    file: str | None
    owner: str | None


FoundItem = FoundTestInfo | ClusterInfo


@http_message
class ProjectSearchResult:
    """Tests or clusters. `partial`: the time limit was reached; `nextCursor` continues the search."""

    items: Sequence[FoundItem]
    next_cursor: str | None
    partial: bool


@http_message
class CoverageInfo:
    line_pct: float | None
    branch_pct: float | None
    line_covered: int | None
    line_missed: int | None
    branch_covered: int | None
    branch_missed: int | None
    file_count: int
    files: Sequence[FileInfo]


@http_message
class RunDetail:
    """A run with its contents; the lists are bounded, the counts are not."""

    run: RunInfo
    project: str
    gate: RunVerdict
    suite_count: int
    suites: Sequence[SuiteInfo]
    failure_count: int
    failures: Sequence[FailureInfo]
    slowest: Sequence[SlowRow]
    coverage: CoverageInfo | None
    attachments: Sequence[AttachmentInfo]


@http_message
class FlakyInfo:
    class_name: str
    name: str
    status: str
    note: str | None
    flaky: bool
    flaky_commits: int
    total_results: int
    failures: int
    failure_rate_pct: float
    last_failure_at: Instant | None
    fails_only_in: Sequence[str] | None
    """The flags, modules or suites in which the test fails while it passes in others: a platform's failure."""


@http_message
class TriageInfo:
    """The triage status of a test."""

    class_name: str
    name: str
    status: Triage
    note: str | None
    expires_at: Instant | None
    issue_url: str | None


@http_message
class OutcomeInfo:
    run_id: int
    branch: str | None
    flag: str
    commit: str | None
    created_at: Instant
    status: str
    flaky: bool
    duration_ms: int | None
    failure_message: str | None
    attachments: Sequence[AttachmentInfo]
    superseded_by: int | None
    """The run whose later attempt of the same job superseded this result."""


@http_message
class TestHistory:
    """A test over its runs.

    The last four fields are null unless its newest result that is not superseded is a failure.
    """

    class_name: str
    name: str
    status: str
    """ACTIVE, QUARANTINED or RESOLVED."""
    results: Sequence[OutcomeInfo]
    next_cursor: str | None
    owner: str | None
    first_failing: RunReference | None
    """The first run of the unbroken series of failures on the branch and flag of the newest result."""
    last_passed: RunReference | None
    """The run before it in which the test passed."""
    compare_url: str | None
    """The page of the forge that compares the commits of both."""


@http_message
class ComparisonInfo:
    """`head` against `base`."""

    base: RunInfo
    head: RunInfo
    pass_rate_delta: float
    coverage_delta: float | None
    duration_delta_ms: int
    new_failures: Tests
    fixed: Tests
    still_failing: Tests
    timings: Sequence[Timing]


@http_message
class TestInsight:
    """What the results of a test amount to, without skipped ones.

    `flaky` results are marked as such by their report, or failed for a commit for which the test passed in another run.
    The median and its growth for each run are of the newest 30 durations. `meanTimeToGreenMs` is from the first failure
    on a branch in a flag to the next run that passes there; null where it never did.
    """

    __test__ = False  # pytest would collect it

    class_name: str
    name: str
    owner: str | None
    runs: int
    failures: int
    failure_rate_pct: float
    flaky: int
    flaky_rate_pct: float
    median_ms: float | None
    growth_ms_per_run: float | None
    last_failure_at: Instant | None
    never_failed: bool
    mean_time_to_green_ms: int | None


@http_message
class TestInsights:
    """A list of tests. `runsRead`: they are about so many of the newest runs only, null where about all.

    `current`: whether all stored results are counted.
    """

    __test__ = False

    items: Sequence[TestInsight]
    next_cursor: str | None
    runs_read: int | None
    current: bool
