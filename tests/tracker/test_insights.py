"""Summaries of tests: random histories compared with a plain computation from all rows, and single rules."""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import IS_PROOF
from records import open_store

from models.config.settings import TrackerSettings
from models.errors import Unavailable
from models.tracker.insights import counting, listing
from models.tracker.insights.listing import SORTS, Insight, InsightFilter
from models.tracker.insights.summaries import figures
from models.tracker.reports.base import Case, CaseStatus, Suite, TestReport, Totals
from models.tracker.reports.staging import StagedRows
from models.tracker.runs import retention
from models.tracker.runs import store as runs
from models.tracker.runs.store import StoredRun, Upload
from models.tracker.tables import Project, Run, reports
from supervisor import scheduling
from supervisor.tracker.insights import Insights

SECOND = 1_000_000
BASE = "main"
PASSED, FAILED, ERROR, SKIPPED = CaseStatus
FLAGS, BRANCHES, SUITES = ("unit", "e2e"), ("main", "feature", None), ("linux", "windows")
TESTS = ("a", "b", "c", "d", "e")

Result = tuple[str, CaseStatus, int | None, bool]
"""The name, the outcome, the duration in milliseconds and whether the report marks it flaky."""


class Worker:
    """Stores uploads as the server does, each a second after the one before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0

    def post(self, results: Sequence[Result], suite: str = "linux", now: int | None = None, **fields: Any) -> StoredRun:
        self.count += 1
        path = self.folder / f"spool{self.count}"
        with StagedRows(path) as spool:
            _stage(spool, results, suite, fields.pop("content", str(self.count)))
        upload = Upload(**{"project": "p", "branch": BASE, "commit": None, "flag": "unit", **fields})
        at = self.count * SECOND if now is None else now
        return reports.run_with_timeout(lambda: runs.store(path, upload, None, TrackerSettings(), 100, at), 30.0)


def _stage(spool: StagedRows, results: Sequence[Result], suite: str, content: str) -> None:
    spool.begin()
    for name, status, duration, is_flaky in results:
        spool.case(Case("c", name, status, 0, duration, is_flaky))
    count = {each: sum(status is each for _, status, _, _ in results) for each in CaseStatus}
    flaky = sum(is_flaky for *_, is_flaky in results)
    totals = Totals(len(results), count[PASSED], count[FAILED], count[ERROR], count[SKIPPED], flaky, 0)
    spool.end_tests(TestReport("junit", totals, [Suite(suite, totals)], digest=content), "a.xml", content)


@pytest.fixture
def worker(tmp_path: Path, database_url: str | None) -> Iterator[Worker]:
    with open_store(tmp_path / "tracker.db", database_url):
        yield Worker(tmp_path)


def count_all() -> None:
    while counting.count_some(BASE, 7):
        pass


def delete(run: int) -> None:
    for part in (*retention.superseded_runs(run), run):
        while retention.delete_some(part, batch=3):
            pass


# The plain computation

_ROWS = """
    SELECT r.id, t.name, r.run_id, r.status, r.flaky, r.duration_ms, p.created_at, c.branch, c.flag, c.commit_sha,
    s.name, c.created_at FROM result r JOIN test t ON t.id = r.test_id JOIN run c ON c.id = r.run_id
    JOIN report p ON p.id = r.report_id LEFT JOIN suite s ON s.id = r.suite_id ORDER BY r.id"""
_NAMES = ["id", "test", "run", "status", "flaky", "ms", "at", "branch", "flag", "commit", "suite", "created"]


def plain(filter: InsightFilter) -> dict[str, tuple[Any, ...]]:
    """By test, what its results amount to, each written down from its definition."""
    rows = [dict(zip(_NAMES, row, strict=True)) for row in reports.execute_sql(_ROWS)]
    rows = [row for row in rows if row["status"] != 3 and (filter.since is None or row["created"] >= filter.since)]
    rows = [row for row in rows if filter.branch in (None, row["branch"]) and filter.flag in (None, row["flag"])]
    return {test: _plain_of([row for row in rows if row["test"] == test]) for test in {row["test"] for row in rows}}


def _plain_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Any, ...]:
    failed = [row for row in rows if row["status"] in (1, 2)]
    flaky = [row for row in rows if row["flaky"] or (row in failed and _passed_elsewhere(row, rows))]
    either = {row["id"] for row in failed + flaky}
    times = [row["ms"] for row in rows if row["ms"] is not None][-30:]
    slopes = [(times[j] - times[i]) / (j - i) for i, j in itertools.combinations(range(len(times)), 2)]
    green = list(_times_to_green(rows))
    return (
        len(rows), len(failed), len(flaky), len(either), round(statistics.median(times) * 1000) if times else None,
        round(statistics.median(slopes) * 1000) if slopes else None, max((row["at"] for row in failed), default=None),
        len(green), sum(green),
    )  # fmt: skip


def _passed_elsewhere(bad: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> bool:
    same = ("commit", "flag", "suite")
    others = [row for row in rows if row["run"] != bad["run"] and all(row[key] == bad[key] for key in same)]
    return bad["commit"] is not None and any(
        all(row["status"] == 0 for row in others if row["run"] == run) for run in {row["run"] for row in others}
    )


def _times_to_green(rows: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    for branch, flag in {(row["branch"], row["flag"]) for row in rows}:
        of = [row for row in rows if (row["branch"], row["flag"]) == (branch, flag)]
        red: int | None = None
        for run in sorted(
            {row["run"] for row in of}, key=lambda run: min(row["id"] for row in of if row["run"] == run)
        ):
            group = [row for row in of if row["run"] == run]
            if any(row["status"] in (1, 2) for row in group):
                red = group[0]["at"] if red is None else red
            elif red is not None:
                yield max(0, group[0]["at"] - red)
                red = None


def found(filter: InsightFilter, sort: str, limit: int = 100) -> list[Insight]:
    """All pages of a list."""
    source = listing.source(Project.get().id, filter)
    items, cursor = list[Insight](), None
    while True:
        page = source.page(sort, limit, cursor)
        items += page.items
        cursor = page.next_cursor
        if cursor is None:
            return items


def check(filter: InsightFilter, limit: int = 100) -> None:
    wanted = plain(filter)
    lists: Mapping[str, Any] = {
        "slowest": lambda one: one[4],
        "growing": lambda one: one[5] if (one[5] or 0) > 0 else None,
        "unreliable": lambda one: one[3] * 1_000_000 // one[0] or None,
        "never-failing": lambda one: one[0] if not one[1] else None,
    }
    for sort in SORTS:
        items = found(filter, sort, limit)
        values = {
            one.name: (one.runs, one.failures, one.flaky, one.unreliable, one.median_us, one.growth_us,
                       one.last_failure_at, one.recoveries, one.recovery_us)
            for one in items
        }  # fmt: skip
        keys = {test: lists[sort](one) for test, one in wanted.items()}
        assert values == {test: one for test, one in wanted.items() if keys[test] is not None}, (filter, sort)
        shown = [keys[one.name] for one in items]
        assert shown == sorted(shown, reverse=True), (filter, sort)


FILTERS = [InsightFilter(branch=branch, flag=flag) for branch in (None, "main", "feature") for flag in (None, *FLAGS)]


class History:
    def __init__(self, worker: Worker, seed: int) -> None:
        self.worker = worker
        self.random = random.Random(seed)
        self.commits = ["c0"]
        self.sent: list[dict[str, Any]] = []

    def step(self) -> None:
        draw = self.random
        kind = draw.choices(["upload", "again", "retry", "commit", "delete", "count"], [8, 2, 4, 3, 2, 6])[0]
        if kind == "commit":
            self.commits.append(f"c{len(self.commits)}")
        elif kind == "count":
            counting.count_some(BASE, draw.choice([1, 5, 100]))
        elif kind == "delete":
            ids = [row[0] for row in reports.execute_sql("SELECT id FROM counted_run ORDER BY id")]
            if ids:
                delete(draw.choice([ids[0], ids[0], ids[-1], draw.choice(ids)]))
        else:
            self.upload(kind)

    def upload(self, kind: str) -> None:
        """A new run, a further upload to a run, or a later attempt of a job; sometimes the same reports again."""
        draw = self.random
        facts: dict[str, Any] = {
            "branch": draw.choice(BRANCHES), "commit": draw.choice([None, *self.commits[-3:]]),
            "flag": draw.choice(FLAGS), "run_key": f"k{len(self.sent)}", "job_key": draw.choice(["x", "y"]),
            "attempt": 1, "content": str(draw.random()), "suite": draw.choice(SUITES),
        }  # fmt: skip
        if kind != "upload" and self.sent:
            earlier = draw.choice(self.sent[-6:])
            content = draw.choice([earlier["content"], facts["content"], facts["content"]])
            facts |= {"run_key": earlier["run_key"], "flag": earlier["flag"], "content": content}
            if kind == "retry":
                facts |= {"job_key": earlier["job_key"], "attempt": earlier["attempt"] + draw.choice([-1, 1, 1])}
        if facts["attempt"] < 0:
            return
        self.sent.append(facts)
        self.worker.post(self.results(), now=self.worker.count * SECOND - draw.choice([0, 0, 3 * SECOND]), **facts)

    def results(self) -> list[Result]:
        draw = self.random
        names = draw.sample(TESTS, draw.randrange(1, 6)) + draw.choice([[], ["a"]])
        outcomes = [PASSED] * 6 + [FAILED, ERROR, SKIPPED]
        return [
            (name, status, draw.choice([None, 0, 5, 20, self.worker.count]), status is PASSED and draw.random() < 0.05)
            for name, status in ((name, PASSED if name == "e" else draw.choice(outcomes)) for name in names)
        ]


@pytest.mark.parametrize("seed", range(3))
def test_summaries_of_random_histories_are_those_of_a_plain_computation(
    worker: Worker, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(worker, seed)
    worker.post([("a", PASSED, 3, False)])
    for step in range(2000 if IS_PROOF else 80):
        history.step()
        if step % 10 == 9:
            for filter in (*FILTERS, InsightFilter(since=worker.count * SECOND // 2)):
                check(filter, 2 if filter.since else 100)
            count_all()
            monkeypatch.setattr(listing, "MAX_READ", 0)
            check(InsightFilter(), 2)
            for filter in FILTERS:
                if listing._scope(Project.get().id, filter) is not None:
                    check(filter)
            monkeypatch.undo()
    assert Run.select().count() > 5


# Single rules


def test_the_growth_is_the_median_slope_so_that_one_outlier_does_not_count() -> None:
    assert figures((100, 110, 120, 9_000, 140)) == (120_000, 10_000)
    assert figures((5,)) == (5_000, None)
    assert figures(()) == (None, None)
    assert figures((7, 7, 7)) == (7_000, 0)


def test_a_sample_follows_the_newest_durations_without_their_ids(worker: Worker) -> None:
    """The lower bound of its ids moves on, so that old runs are deleted without reading the history."""
    for number in range(100):
        worker.post([("a", PASSED, number, False)])
        count_all()
    (kept,) = reports.execute_sql("SELECT floor, sample FROM insight LIMIT 1")
    assert kept[1] == ",".join(map(str, range(70, 100)))
    ids = [row[0] for row in reports.execute_sql("SELECT id FROM result ORDER BY id")]
    assert ids[30] <= kept[0] <= ids[70]
    delete(Run.select().order_by(Run.id).first().id)
    assert reports.execute_sql("SELECT count(*) FROM insight_due").fetchone() == (0,)
    count_all()
    check(InsightFilter())


def test_results_that_get_the_ids_of_deleted_ones_are_counted(worker: Worker) -> None:
    worker.post([("a", PASSED, 5, False)])
    last = worker.post([("a", FAILED, 5, False), ("b", PASSED, 5, False)])
    count_all()
    delete(last.run.id)
    worker.post([("b", FAILED, 9, False)])
    count_all()
    assert counting.is_current(last.project.id)
    check(InsightFilter())


def test_a_new_base_branch_has_no_summaries_of_a_part_of_its_runs(worker: Worker) -> None:
    worker.post([("a", PASSED, 5, False)])
    project = worker.post([("a", PASSED, 5, False)], branch="next").project
    count_all()
    Project.update(base_branch="next").execute()
    worker.post([("a", FAILED, 7, False)], branch="next")
    count_all()
    assert listing._scope(project.id, InsightFilter(branch="next")) is None
    assert listing._scope(project.id, InsightFilter(branch="main")) is not None
    check(InsightFilter(branch="next"))


def test_a_run_that_gets_its_branch_later_counts_on_it(worker: Worker) -> None:
    worker.post([("a", PASSED, 5, False)])
    worker.post([("a", FAILED, 5, False)], branch=None, run_key="k")
    count_all()
    worker.post([("b", PASSED, 5, False)], branch=BASE, run_key="k")
    count_all()
    assert listing._scope(Project.get().id, InsightFilter(branch=BASE)) is not None
    check(InsightFilter(branch=BASE))


def flaky_of(test: str) -> int:
    count_all()
    check(InsightFilter())
    return next(one.flaky for one in found(InsightFilter(), "unreliable") if one.name == test)


def test_a_failure_becomes_flaky_when_another_run_of_its_commit_passes_much_later(worker: Worker) -> None:
    worker.post([("a", FAILED, 5, False)], commit="c1")
    assert flaky_of("a") == 0
    worker.post([("a", PASSED, 5, False)], commit="c2")
    assert flaky_of("a") == 0
    worker.post([("a", PASSED, 5, False)], commit="c1")
    assert flaky_of("a") == 1


def test_a_failure_becomes_flaky_when_its_attempt_is_superseded(worker: Worker) -> None:
    """The attempt leaves the run in which another job has passed the test, for a run of its own."""
    facts: Mapping[str, Any] = {"commit": "c1", "run_key": "k"}
    worker.post([("a", FAILED, 5, False)], job_key="x", attempt=1, **facts)
    worker.post([("a", PASSED, 5, False)], job_key="y", attempt=1, **facts)
    assert flaky_of("a") == 0
    worker.post([("b", PASSED, 5, False)], job_key="x", attempt=2, **facts)
    assert flaky_of("a") == 1


def test_only_so_many_runs_are_read_where_no_summaries_are_kept(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        worker.post([("a", PASSED, number, False), ("b", PASSED, 1, False)], branch="side")
    project = Project.get()
    monkeypatch.setattr(listing, "MAX_READ", 4)
    count_all()
    page = listing.source(project.id, InsightFilter(branch="side")).page("slowest", 10)
    assert [(one.name, one.runs, one.median_us) for one in page.items] == [("a", 2, 3_500), ("b", 2, 1_000)]
    assert (page.runs_read, page.is_current) == (2, True)
    whole = listing.source(project.id, InsightFilter(flag="unit", since=0)).page("slowest", 10)
    assert (whole.items[0].runs, whole.runs_read, whole.is_current) == (5, None, True)
    worker.post([("a", PASSED, 9, False)])
    late = listing.source(project.id, InsightFilter()).page("slowest", 10)
    assert (late.items[0].runs, late.runs_read, late.is_current) == (5, None, False)


def test_a_test_is_counted_again_from_a_bounded_number_of_results(worker: Worker) -> None:
    """Thousands of results of one name, in one run or in many, must not hold up the others."""
    worker.post([("a", PASSED, 1, False)] * (counting.MAX_RESULTS + 100))
    while counting.count_some(BASE, 1_000):
        pass
    assert found(InsightFilter(), "never-failing")[0].runs == counting.MAX_RESULTS + 100
    worker.post([("a", FAILED, 1, False)])
    count_all()
    (one,) = found(InsightFilter(), "unreliable")
    assert (one.runs, one.failures) == (counting.MAX_RESULTS, 1)


def test_results_that_were_left_out_are_not_subtracted(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MAX_RESULTS", 4)
    monkeypatch.setattr(counting, "_OF_TEST", counting._OF_TEST.replace("LIMIT 2000", "LIMIT 4"))
    runs = [worker.post([("a", FAILED if number == 0 else PASSED, 1, False)]).run.id for number in range(6)]
    count_all()
    assert found(InsightFilter(), "never-failing")[0].runs == 4, "the failure is among those that are left out"
    delete(runs[0])
    delete(runs[1])
    count_all()
    assert found(InsightFilter(), "never-failing")[0].runs == 4
    delete(runs[5])
    count_all()
    assert found(InsightFilter(), "never-failing")[0].runs == 3


def test_a_failure_before_the_newest_results_of_an_earlier_version_is_counted(worker: Worker) -> None:
    """Its results are counted in steps; those after the position are not read, and take no other's place."""
    worker.post([("a", PASSED, 1, False)] * 99)
    worker.post([("a", FAILED, 1, False)])
    worker.post([("a", PASSED, 1, False)] * counting.MAX_RESULTS)
    seen = set()
    while counting.count_some(BASE, 250):
        seen |= set(reports.execute_sql("SELECT DISTINCT runs, failures FROM insight").fetchall())
    assert (250, 1) in seen
    assert {failures for _, failures in seen} == {1}


def test_scopes_of_branches_without_runs_are_forgotten(worker: Worker) -> None:
    (first, second, base) = (worker.post([("a", PASSED, 1, False)], branch=branch) for branch in ("side", "side", BASE))
    count_all()
    branches = "SELECT DISTINCT branch FROM insight_scope WHERE branch IS NOT NULL ORDER BY branch"
    assert reports.execute_sql(branches).fetchall() == [(BASE,), ("side",)]
    delete(first.run.id)
    assert reports.execute_sql(branches).fetchall() == [(BASE,), ("side",)]
    delete(second.run.id)
    assert reports.execute_sql(branches).fetchall() == [(BASE,)]
    delete(base.run.id)
    assert reports.execute_sql(branches).fetchall() == [(BASE,)], "a complete one stays right"


def test_results_of_an_earlier_version_are_counted_in_steps(worker: Worker) -> None:
    for number in range(4):
        worker.post([(test, FAILED if number == 1 else PASSED, number, False) for test in TESTS])
    steps = 0
    while counting.count_some(BASE, 3):
        steps += 1
    assert steps == 7
    check(InsightFilter())


def test_counting_goes_on_after_any_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "RETRY_SECONDS", 0.01)
    counted = asyncio.Event()
    errors = [LookupError("not expected"), Unavailable("the store is locked")]

    async def in_store(_: Callable[[], bool]) -> bool:
        if errors:
            raise errors.pop()
        counted.set()
        return False

    async def work() -> None:
        watching = asyncio.create_task(Insights("main", in_store).watch())
        async with asyncio.timeout(30):
            await counted.wait()
        watching.cancel()

    asyncio.run(work())
