"""Stored uploads, and merging by `runKey`, on a real SQLite file and a real PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from records import open_store
from tracker_rows import Membership

from models.accounts import accounts, permissions
from models.accounts.accounts import Credential
from models.config.settings import QualityGate, RunSettings, TrackerSecurity, TrackerSettings
from models.errors import Denied, Unauthenticated
from models.tracker.coverage import line_sets
from models.tracker.reports.base import (
    BadReport,
    Case,
    CaseStatus,
    CoverageReport,
    FileCoverage,
    Suite,
    TestReport,
    Totals,
)
from models.tracker.reports.staging import StagedRows
from models.tracker.runs import attempts, run_events
from models.tracker.runs import store as runs
from models.tracker.runs.store import StoredRun, Upload
from models.tracker.tables import Project, Run, reports

PASSED, FAILED, ERROR, SKIPPED = CaseStatus


@pytest.fixture(autouse=True)
def store(tmp_path: Path, database_url: str | None) -> Iterator[None]:
    with open_store(tmp_path / "tracker.db", database_url):
        yield


class Worker:
    """Stages and stores uploads as the upload worker does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        self.settings = TrackerSettings()

    def post(self, *files: Any, by: Credential | None = None, now: int | None = None, **fields: Any) -> StoredRun:
        self.count += 1
        path = self.folder / f"spool{self.count}"
        with StagedRows(path) as spool:
            for file in files:
                file(spool)
        upload = Upload(**{"project": "p", **fields})
        at = self.count * 1_000_000 if now is None else now
        return reports.run_with_timeout(lambda: runs.store(path, upload, by, self.settings, 100, at), 30.0)


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path)


def junit(name: str, *cases: tuple[str, CaseStatus], **more: Any) -> Any:
    """A test report whose content is its name: `junit("a", ("one", PASSED))`."""

    def read(spool: StagedRows) -> None:
        spool.begin()
        made = [Case("com.A", case, status, 0, 5, **more) for case, status in cases]
        for case in made:
            spool.case(case)
        spool.end_tests(report_of(name, made), f"{name}.xml", name)

    return read


def report_of(name: str, cases: Sequence[Case]) -> TestReport:
    passed, failed, errors, skipped = (sum(case.status is status for case in cases) for status in CaseStatus)
    totals = Totals(len(cases), passed, failed, errors, skipped, 0, 5 * len(cases))
    return TestReport("junit", totals, [Suite("suite", totals)], digest=name)


def coverage(name: str, files: Mapping[str, Mapping[int, bool] | tuple[int, ...]], own: Any = None) -> Any:
    """A coverage report: path -> its lines, or its counts where it has no lines. `own`: its own totals."""

    def read(spool: StagedRows) -> None:
        spool.begin()
        made = [_file(path, result) for path, result in files.items()]
        for file in made:
            spool.file(file)
        sums = own or [sum(getattr(file, count) for file in made) for count in COUNTS]
        spool.end_coverage(CoverageReport("jacoco", *sums), f"{name}.xml", name)

    return read


COUNTS = ("line_covered", "line_missed", "branch_covered", "branch_missed")


def _file(path: str, result: Any) -> FileCoverage:
    if isinstance(result, tuple):
        return FileCoverage(path, result[0], result[1], *result[2:4])
    hit = sum(result.values())
    return FileCoverage(path, hit, len(result) - hit, lines=result)


def rows(query: str) -> list[Any]:
    return list(reports.execute_sql(query).fetchall())


def table_rows(table: str) -> list[Any]:
    return rows(f"SELECT * FROM {table}")  # noqa: S608 (ours)


def count(table: str) -> int:
    return len(table_rows(table))


def line_totals(run: Run) -> tuple[int | None, int | None]:
    return run.line_covered, run.line_missed


# One upload


def test_an_upload_becomes_a_run_with_its_totals(worker: Worker) -> None:
    stored = worker.post(
        junit("a", ("one", PASSED), ("two", FAILED), ("three", ERROR), ("four", SKIPPED)),
        coverage("c", {"A.java": {1: True, 2: False}}),
        branch="main", commit="abc", build_url="http://ci/1", pr_number=7,
    )  # fmt: skip
    run = stored.run
    assert (run.tests, run.passed, run.failed, run.errors, run.skipped, run.duration_ms) == (4, 1, 1, 1, 1, 20)
    assert (run.status, run.uploads, run.flag, run.branch, run.commit_sha) == ("FAILED", 1, "default", "main", "abc")
    assert (*line_totals(run), run.build_url, run.pr_number) == (1, 1, "http://ci/1", 7)
    assert Run.get_by_id(run.id) == run
    data = Run.get_by_id(run.id).__data__
    assert data == dict.fromkeys(data) | run.__data__, "the returned run is the stored run"
    assert stored.verdict.status == "FAILED"
    assert stored.update.project_id == stored.project.id
    assert rows("SELECT id, project_id, data FROM run_event") == [
        (stored.update.id, stored.project.id, stored.update.data)
    ]


def test_results_refer_to_their_report_suite_and_test(worker: Worker) -> None:
    worker.post(junit("a", ("one", PASSED)), project="other")
    worker.post(
        junit("b", ("one", PASSED), ("two", FAILED), failure_message="why", stack="at", out="said"),
        junit("c", ("one", SKIPPED)),
    )
    found = rows(
        "SELECT p.name, s.name, t.class_name, t.name, r.status, f.message, o.out FROM result r"
        " JOIN report p ON p.id = r.report_id JOIN suite s ON s.id = r.suite_id AND s.report_id = p.id"
        " JOIN run u ON u.id = r.run_id JOIN test t ON t.id = r.test_id AND t.project_id = u.project_id"
        " LEFT JOIN failure f ON f.result_id = r.id LEFT JOIN output o ON o.result_id = r.id"
        " WHERE u.id = 2 ORDER BY r.id"
    )
    assert found == [
        ("b.xml", "suite", "com.A", "one", 0, "why", "said"),
        ("b.xml", "suite", "com.A", "two", 1, "why", "said"),
        ("c.xml", "suite", "com.A", "one", 3, None, None),
    ]
    assert count("test") == 3
    assert count("failure") == count("output") == 2


def test_a_test_of_many_runs_is_one_test(worker: Worker) -> None:
    for name in "abc":
        worker.post(junit(name, ("one", PASSED), ("two", PASSED)))
    assert count("run") == 3
    assert count("test") == 2
    assert count("result") == 6


def test_each_result_refers_to_its_test_whether_new_known_or_repeated(worker: Worker) -> None:
    worker.post(junit("a", ("one", PASSED), ("two", PASSED)))
    worker.post(junit("b", *[(name, PASSED) for name in ("three", "one", "three", "four", "two")]))
    worker.post(junit("c", ("three", PASSED)), junit("d", ("five", PASSED), ("one", PASSED)))
    result = [row[0] for row in rows("SELECT t.name FROM result r JOIN test t ON t.id = r.test_id ORDER BY r.id")]
    assert result == ["one", "two", "three", "one", "three", "four", "two", "three", "five", "one"]
    assert count("test") == 5


def test_tests_of_one_name_in_two_projects_are_two_tests(worker: Worker) -> None:
    worker.post(junit("a", ("one", PASSED)))
    worker.post(junit("a", ("two", PASSED), ("one", PASSED)), project="q")
    query = "SELECT p.name, t.name FROM result r JOIN test t ON t.id = r.test_id JOIN project p ON p.id = t.project_id"
    assert rows(f"{query} ORDER BY r.id") == [("p", "one"), ("q", "two"), ("q", "one")]


def test_retries_are_stored_with_the_status(worker: Worker) -> None:
    worker.post(junit("a", ("one", PASSED), flaky=True, reruns=5), junit("b", ("two", ERROR), reruns=2))
    assert rows("SELECT status, flaky, reruns FROM result ORDER BY id") == [(0, 1, 5), (2, 0, 2)]


def test_superseded_and_flaky_cases_of_a_report_are_stored(worker: Worker) -> None:
    def read(spool: StagedRows) -> None:
        spool.begin()
        for status in (FAILED, PASSED, PASSED):
            spool.case(Case("", "again", status, None, None, failure_message="why", out="said"))
        spool.end_tests(
            TestReport("junit", Totals(2, 2, flaky=1), [], frozenset({0}), frozenset({1}), "x"), "x.xml", "x"
        )

    stored = worker.post(junit("a", ("one", PASSED)), read)
    assert (stored.run.tests, stored.run.flaky) == (3, 1)
    assert rows("SELECT status, flaky, suite_id IS NULL FROM result ORDER BY id") == [(0, 0, 0), (0, 1, 1), (0, 0, 1)]
    assert count("failure") == count("output") == 2


def test_all_rows_of_a_large_report_are_stored(worker: Worker) -> None:
    many = [(f"case {number}", PASSED) for number in range(2500)]
    run = worker.post(junit("a", *many, out="x" * 10_000)).run
    assert (run.tests, count("result"), count("output"), count("test")) == (2500, 2500, 2500, 2500)
    assert rows("SELECT min(length(out)), max(length(out)) FROM output") == [(10_000, 10_000)]


def test_surrogates_in_text_are_replaced(worker: Worker) -> None:
    worker.post(junit("a", ("one \ud800", FAILED), failure_message="\udfff!"))
    assert rows("SELECT name FROM test") == [("one ?",)]
    assert rows("SELECT message FROM failure") == [("?!",)]


def test_surrogates_in_paths_are_replaced_and_other_paths_are_unchanged(worker: Worker) -> None:
    worker.post(junit("a", ("one", PASSED)), coverage("c", {"A": (1, 0), "B \ud800": (1, 0), "C": (1, 0)}))
    assert rows("SELECT path FROM coverage ORDER BY id") == [("A",), ("B ?",), ("C",)]


@pytest.mark.parametrize("wrong", [2**80, -1, 2**60])
def test_out_of_range_count_is_a_bad_report(worker: Worker, wrong: int) -> None:
    with pytest.raises(BadReport):
        worker.post(coverage("c", {"A": (wrong, 1)}))
    with pytest.raises(BadReport):
        worker.post(coverage("c", {"A": (1, 1)}, own=[wrong, 0]))


def test_out_of_range_duration_is_a_bad_report(worker: Worker) -> None:
    def read(spool: StagedRows) -> None:
        spool.begin()
        spool.case(Case("", "long", PASSED, None, 2**80))
        spool.end_tests(TestReport("junit", Totals(1, 1), []), "x", "x")

    with pytest.raises(BadReport):
        worker.post(read)


# Merging


def test_every_upload_without_a_run_key_is_a_run(worker: Worker) -> None:
    ids = {worker.post(junit("same", ("one", PASSED))).run.id for _ in range(3)}
    assert len(ids) == 3


def test_uploads_of_one_run_key_are_one_run(worker: Worker) -> None:
    first = worker.post(junit("a", ("one", PASSED)), run_key="k").run
    second = worker.post(junit("b", ("two", FAILED), ("three", SKIPPED)), run_key="k").run
    assert first.id == second.id
    assert (second.tests, second.passed, second.failed, second.skipped) == (3, 1, 1, 1)
    assert (first.status, second.status, second.uploads) == ("PASSED", "FAILED", 2)
    assert second.duration_ms == 15
    assert (second.created_at, second.updated_at) == (first.created_at, 2_000_000)


def test_run_key_applies_within_its_project(worker: Worker) -> None:
    one = worker.post(junit("a", ("one", PASSED)), run_key="k", project="one").run
    other = worker.post(junit("a", ("one", PASSED)), run_key="k", project="other").run
    assert one.id != other.id


def test_the_same_upload_again_changes_nothing(worker: Worker) -> None:
    def again() -> StoredRun:
        return worker.post(
            junit("a", ("one", FAILED)), coverage("c", {"A": {1: True, 2: False}}), run_key="k", branch="main"
        )

    before = again().run
    tables = {table: table_rows(table) for table in ("run", "report", "suite", "result", "coverage")}
    after = again().run
    assert after == before
    for table, kept in tables.items():
        assert table_rows(table) == kept


def test_the_same_file_twice_in_one_upload_counts_once(worker: Worker) -> None:
    file, other = junit("a", ("one", FAILED), out="said"), junit("b", ("two", PASSED))
    c = coverage("c", {"A": {1: True}})
    run = worker.post(file, other, file, c, c).run
    assert (run.tests, run.failed, *line_totals(run)) == (2, 1, 1, 0)
    assert (count("report"), count("result"), count("output"), count("suite"), count("coverage")) == (3, 2, 1, 2, 1)


def test_a_test_report_and_a_coverage_report_are_never_the_same(worker: Worker) -> None:
    run = worker.post(junit("a", ("one", PASSED)), coverage("a", {"A": {1: True}})).run
    assert (run.tests, *line_totals(run)) == (1, 1, 0)


def test_new_files_of_a_partly_known_upload_are_added(worker: Worker) -> None:
    known = junit("a", ("one", PASSED), out="known")
    worker.post(known, run_key="k")
    run = worker.post(known, junit("b", ("two", FAILED), out="new"), known, run_key="k").run
    assert (run.tests, run.failed, run.uploads) == (2, 1, 2)
    assert rows("SELECT out FROM output ORDER BY result_id") == [("known",), ("new",)]
    assert rows("SELECT r.id FROM result r LEFT JOIN suite s ON s.id = r.suite_id WHERE s.id IS NULL") == []


def test_later_uploads_fill_in_missing_fields_and_keep_present_ones(worker: Worker) -> None:
    worker.post(junit("a", ("one", PASSED)), run_key="k", branch="main", flag="api", repo_url="http://a")
    run = worker.post(
        junit("b", ("two", PASSED)), run_key="k", branch="other", flag="api", repo_url="http://b", commit="abc",
        build_url="http://ci", build_name="7", ci_provider="some", base_branch="main", pr_number=0,
    ).run  # fmt: skip
    assert (run.branch, run.flag, run.repo_url, run.commit_sha) == ("main", "api", "http://a", "abc")
    assert (run.build_url, run.build_name, run.ci_provider, run.base_branch) == ("http://ci", "7", "some", "main")
    assert run.pr_number == 0
    assert Run.get_by_id(run.id).commit_sha == "abc"
    assert Project.get().repo_url == "http://a"


def test_repeated_upload_may_fill_in_missing_fields(worker: Worker) -> None:
    worker.post(junit("a", ("one", PASSED)), run_key="k")
    run = worker.post(junit("a", ("one", PASSED)), run_key="k", commit="abc").run
    assert (run.commit_sha, run.uploads, run.updated_at) == ("abc", 1, 2_000_000)


def test_ids_are_never_reused(worker: Worker) -> None:
    first = worker.post(junit("a", ("one", PASSED))).run
    ((report,),) = rows("SELECT id FROM report")
    reports.execute_sql("DELETE FROM run WHERE id = ?", (first.id,))
    assert count("report") == count("result") == 0
    second = worker.post(junit("a", ("one", PASSED))).run
    assert second.id > first.id
    assert rows("SELECT id FROM report") > [(report,)]


# Coverage of several reports


def test_single_coverage_report_counts_by_its_own_totals(worker: Worker) -> None:
    run = worker.post(junit("a"), coverage("c", {"A": {1: True, 2: False}}, own=[70, 30, 5, 5])).run
    assert (*line_totals(run), run.branch_covered, run.branch_missed) == (70, 30, 5, 5)


def test_run_without_coverage_has_no_coverage_totals(worker: Worker) -> None:
    assert line_totals(worker.post(junit("a")).run) == (None, None)
    run = worker.post(junit("a"), coverage("c", {}, own=[None, None, None, None])).run
    assert line_totals(run) == (None, None)


def test_files_that_do_not_overlap_are_summed(worker: Worker) -> None:
    worker.post(junit("a"), coverage("c", {"A": {1: True, 2: False}}), run_key="k")
    run = worker.post(junit("b"), coverage("d", {"B": {1: True}}), run_key="k").run
    assert line_totals(run) == (2, 1)


@pytest.mark.parametrize("apart", [False, True], ids=["one upload", "two uploads"])
def test_the_same_source_file_in_two_reports_is_the_union_of_its_lines(worker: Worker, apart: bool) -> None:
    one = coverage("c", {"A": {1: True, 2: False, 3: False}, "B": {1: True}})
    two = coverage("d", {"A": {1: False, 2: True, 3: False, 9: False}, "C": {5: False}})
    if apart:
        worker.post(junit("a"), one, run_key="k")
        run = worker.post(junit("b"), two, run_key="k").run
    else:
        run = worker.post(junit("a"), one, two).run
    assert line_totals(run) == (2 + 1, 2 + 1)


def test_own_totals_are_corrected_only_by_the_overlap(worker: Worker) -> None:
    one = coverage("c", {"A": {1: True, 2: False}}, own=[100, 100, 0, 0])
    two = coverage("d", {"A": {1: True, 2: True}}, own=[10, 10, 0, 0])
    assert line_totals(worker.post(junit("a"), one, two).run) == (110 - 3 + 2, 110 - 1 + 0)


def test_the_order_of_shards_does_not_matter(worker: Worker) -> None:
    shards = [coverage(f"c{n}", {"A": {line: line % 5 == n for line in range(n, 20)}}) for n in range(4)]
    totals = set()
    for order in ([0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]):
        runs = [worker.post(junit("a"), shards[shard], run_key=str(order)).run for shard in order]
        totals.add(line_totals(runs[-1]))
    assert totals == {(16, 4)}


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        ((5, 5), (7, 3), (7, 3)),
        ((7, 3), (5, 15), (7, 3)),
        ((5, 5), (5, 15), (5, 15)),
        ({1: True, 2: False}, (7, 3), (7, 3)),
        ({1: True, 2: True, 3: False}, (1, 9), (2, 1)),
    ],
)
def test_a_file_without_lines_merges_by_its_counters(worker: Worker, one: Any, two: Any, expected: Any) -> None:
    assert line_totals(worker.post(junit("a"), coverage("c", {"A": one}), coverage("d", {"A": two})).run) == expected


def test_branches_of_an_overlap_are_those_of_the_best_report(worker: Worker) -> None:
    one, two = coverage("c", {"A": (1, 1, 4, 6), "B": (0, 0, 1, 1)}), coverage("d", {"A": (1, 1, 5, 3)})
    run = worker.post(junit("a"), one, two).run
    assert (run.branch_covered, run.branch_missed) == (5 + 1, 5 + 1)


def test_the_same_path_in_two_modules_is_two_files(worker: Worker) -> None:
    worker.post(junit("a"), coverage("c", {"A": {1: True}}), run_key="k", module="api")
    run = worker.post(junit("b"), coverage("d", {"A": {1: True, 2: False}}), run_key="k", module="ui").run
    assert line_totals(run) == (2, 1)


def test_units_smaller_than_lines_are_merged(worker: Worker) -> None:
    far = 2**52
    one, two = (
        coverage("c", {"A": {far: True, far + 1: False, 3: False}}),
        coverage("d", {"A": {far + 1: True, 3: False}}),
    )
    assert line_totals(worker.post(junit("a"), one, two).run) == (2, 1)


@pytest.mark.parametrize(
    "numbers", [[], [0], [1], [7, 8], list(range(1, 400, 3)), [5, 900_000], [2**20], [2**20 + 1], [1, 2**52]]
)
def test_packed_line_sets_unpack_to_the_same_lines(numbers: list[int]) -> None:
    packed = line_sets.pack(numbers)
    assert line_sets.unpack(packed) == numbers
    assert line_sets.count_union([(packed, line_sets.pack([]))]) == (len(numbers), 0)
    assert line_sets.count_union([(line_sets.pack([]), packed), (line_sets.pack([]), packed)]) == (0, len(numbers))
    assert line_sets.count_union([(line_sets.pack([]), packed), (packed, packed)]) == (len(numbers), 0)
    assert len(packed) <= 70 + 8 * len(numbers)


# Permissions


def create_credential(name: str, role: accounts.Role = "USER") -> Credential:
    user = accounts.create_user(name, "hash", role, 0)
    credential = accounts.by_token(accounts.create_token(user.id, "ci", "INGEST", None, 0), 0)
    assert credential is not None
    return credential


def test_first_uploader_owns_the_project(worker: Worker) -> None:
    someone = create_credential("someone")
    project = worker.post(junit("a"), by=someone).project
    assert rows("SELECT project_id, account_id, role FROM membership") == [(project.id, someone.user.id, "OWNER")]
    worker.post(junit("a"), by=create_credential("another"))
    assert Membership.select().count() == 1


def test_a_project_created_anonymously_has_no_owner(worker: Worker) -> None:
    worker.post(junit("a"))
    assert Membership.select().count() == 0


@pytest.mark.parametrize(
    ("security", "visibility"),
    [
        (TrackerSecurity(), "PUBLIC"),
        (TrackerSecurity(open_mode=False), "PRIVATE"),
        (TrackerSecurity(default_visibility="PRIVATE"), "PRIVATE"),
        (TrackerSecurity(open_mode=False, default_visibility="PUBLIC"), "PUBLIC"),
    ],
)
def test_the_visibility_of_a_new_project(worker: Worker, security: TrackerSecurity, visibility: str) -> None:
    worker.settings = TrackerSettings(security=security)
    assert worker.post(junit("a"), by=create_credential("someone")).project.visibility == visibility


@pytest.mark.parametrize(
    ("role", "visibility", "refused"),
    [
        ("OWNER", "PRIVATE", None), ("WRITE", "PRIVATE", None), ("READ", "PRIVATE", Denied), (None, "PRIVATE", Denied),
        ("READ", "PUBLIC", None), (None, "PUBLIC", None),
    ],
)  # fmt: skip
def test_permission_to_post_to_an_existing_project(worker: Worker, role: Any, visibility: str, refused: Any) -> None:
    project = worker.post(junit("a"), by=create_credential("owner")).project
    Project.update(visibility=visibility).execute()
    someone = create_credential("someone")
    if role:
        permissions.grant(project.id, someone.user.id, role, 0)
    if refused is None:
        assert worker.post(junit("a"), by=someone).project == project
        return
    with pytest.raises(refused):
        worker.post(junit("a"), by=someone)
    assert count("run") == 1
    with pytest.raises(Unauthenticated):
        worker.post(junit("a"))


def test_an_admin_may_post_to_any_project(worker: Worker) -> None:
    worker.post(junit("a"), by=create_credential("owner"))
    Project.update(visibility="PRIVATE").execute()
    assert worker.post(junit("a"), by=create_credential("root", "ADMIN")).run.id == 2


def test_token_revoked_during_the_upload_is_refused(worker: Worker) -> None:
    someone = create_credential("someone")
    accounts.revoke_token(someone.user.id, someone.id, 1)
    with pytest.raises(Unauthenticated):
        worker.post(junit("a"), by=someone)
    assert count("project") == 0


# All or nothing


def test_failure_of_the_last_write_leaves_no_rows(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(run_events, "record", fails)
        with pytest.raises(Exception, match="disk is full"):
            worker.post(
                junit("a", ("one", FAILED), out="x"), coverage("c", {"A": {1: True}}), by=create_credential("someone")
            )
    for table in ("project", "run", "report", "suite", "test", "result", "failure", "output", "coverage", "membership"):
        assert count(table) == 0
    assert worker.post(junit("a", ("one", FAILED))).run.tests == 1


def test_the_gate_judges_the_run_as_it_is_after_the_upload(worker: Worker) -> None:
    worker.settings = TrackerSettings(quality_gate=QualityGate(min_line_coverage=60.0))
    assert worker.post(junit("a"), coverage("c", {"A": {1: True, 2: False}}), run_key="k").verdict.status == "FAILED"
    stored = worker.post(junit("b"), coverage("d", {"A": {2: True}}), run_key="k")
    assert stored.verdict.status == "PASSED"
    assert '"gateStatus":"PASSED"' in stored.update.data


def test_time_of_a_pending_run_begins_anew_where_the_clock_was_set_back(worker: Worker) -> None:
    now, year, settings = 1_795_514_400_000_000, 365 * 86_400_000_000, RunSettings()
    settle, incomplete = (round(span * 1_000_000) for span in (settings.settle, settings.incomplete_after))
    worker.post(junit("a", ("one", PASSED)), run_key="settles", now=now + year)
    worker.post(junit("b", ("one", PASSED)), run_key="waits", expected_uploads=2, now=now + year)
    states = Run.select(Run.state).order_by(Run.id).tuples()
    assert attempts.settle(settings, now) == now + settle
    assert [state for (state,) in states.clone()] == ["PENDING", "PENDING"]
    attempts.settle(settings, now + settle)
    attempts.settle(settings, now + incomplete)
    assert [state for (state,) in states.clone()] == ["COMPLETE", "INCOMPLETE"]
