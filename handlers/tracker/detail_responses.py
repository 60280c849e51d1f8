"""Response types of the parts of a run: attachments, performance, covered files."""

from __future__ import annotations

from collections.abc import Sequence

from models.json_format import Instant, http_message


@http_message
class PerfInfo:
    """The figures of a label in milliseconds, per second and per cent; null where the report has none.

    The changes are against the median of the baselines.
    """

    label: str
    samples: int
    mean: float | None
    min: float | None
    max: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    throughput: float | None
    error_pct: float | None
    latency_change_pct: float | None
    throughput_change_pct: float | None


@http_message
class RunPerf:
    run_id: int
    flag: str
    baseline_run_ids: Sequence[int]
    items: Sequence[PerfInfo]
    next_cursor: str | None


@http_message
class PerfHistoryEntry:
    """The figures of one run."""

    run_id: int
    branch: str | None
    commit: str | None
    created_at: Instant
    items: Sequence[PerfInfo]


@http_message
class PerfHistory:
    flag: str
    flags: Sequence[str]
    items: Sequence[PerfHistoryEntry]
    next_cursor: str | None


@http_message
class AttachmentInfo:
    """A file of a test or a run; its content is at `path`."""

    id: int
    name: str
    size: int
    type: str
    path: str


@http_message
class TestAttachment:
    """An attachment with its test, null where it belongs to the run."""

    __test__ = False  # pytest would collect it

    id: int
    name: str
    size: int
    type: str
    path: str
    class_name: str | None
    test_name: str | None


@http_message
class AttachmentList:
    items: Sequence[TestAttachment]
    next_cursor: str | None


@http_message
class CoveredFileInfo:
    """A file with the ranges of lines that a run covers, misses and that were changed; both ends are included.

    `source` is the text, null where it is not stored or not shown to the caller; `url` is the file on the forge;
    `reason` is why a member gets no text from the forge.
    """

    run_id: int
    path: str
    repository_path: str
    modules: Sequence[str]
    covered_ranges: Sequence[Sequence[int]]
    missed_ranges: Sequence[Sequence[int]]
    changed_ranges: Sequence[Sequence[int]]
    url: str | None
    source: str | None
    reason: str | None
