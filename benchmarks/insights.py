"""The insights of a project with a long history: the duration must not depend on the number of runs.

    python benchmarks/insights.py [--tests 20000] [--history 500] [--seconds 2] [--runs 3] [--out FILE]

One client reads the four lists and the page of a server whose project has so many tests and runs. `from all rows`: the
summaries computed from the results of every 50th test, times 50. `counting`: what a further run of all tests costs in
the background. The results are written to the store directly, and so are their summaries up to the last run.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # it is run as a program

from benchmarks import claims, report
from benchmarks.candidates import Pilothouse, Setup
from benchmarks.claims import Claim
from benchmarks.httpload import Target, hammer
from models.tracker.insights import counting
from models.tracker.insights.summaries import CountedResult, summary_of
from models.tracker.tables import reports

SORTS = ("slowest", "growing", "unreliable", "never-failing")
LIST, PAGE = "/api/v1/projects/1/tests/insights?sort={}&limit=50", "/projects/1/insights"
MAX_MILLISECONDS = 50.0
BASE = "main"
SHARE = 50
MINUTE = 60_000_000
_RESULTS = (
    "INSERT INTO result (id, report_id, run_id, test_id, status, flaky, reruns, duration_ms) VALUES (?,?,?,?,?,?,0,?)"
)
_RUN = """
    INSERT INTO run (id, project_id, branch, flag, commit_sha, created_at, updated_at, status, state, tests, passed,
    failed, errors, skipped, flaky, duration_ms, uploads)
    VALUES (?, 1, 'main', 'unit', ?, ?, ?, 'PASSED', 'COMPLETE', ?, ?, 0, 0, 0, 0, 0, 1)"""
_REPORT = """
    INSERT INTO report (id, run_id, kind, hash, name, format, created_at, tests, passed, failed, errors, skipped, flaky,
    duration_ms) VALUES (?, ?, 'junit', ?, 'a.xml', 'junit', ?, ?, ?, 0, 0, 0, 0, 0)"""


def result(test: int, run: int, tests: int) -> CountedResult:
    """The result of a test in a run. One of 50 tests fails now and then, one of 100 grows slower."""
    failed = test % 50 == 7 and (run * 7 + test) % 40 < 2
    duration = 5 + test % 1000 + (run * 31 + test * 17) % 9 + (run if test % 100 == 3 else 0)
    id = (run - 1) * tests + test
    return CountedResult(id, test, run, int(failed), 0, duration, run * MINUTE, BASE, "unit", f"{run:040}", None, None)


def fill(path: Path, tests: int, history: int) -> None:
    """Writes the history, and the summaries of all but the last run."""
    reports.open(path)
    indexes = [*reports.execute_sql("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = 'result'")]
    for name, _ in indexes:
        reports.execute_sql(f"DROP INDEX {name}")
    with reports.atomic():
        reports.execute_sql("INSERT INTO project (id, name, visibility, created_at) VALUES (1, 'large', 'PUBLIC', 0)")
        names = ((id, f"com.example.Shop{id // 20}Test", f"case {id}") for id in range(1, tests + 1))
        reports.write_many("INSERT INTO test (id, project_id, class_name, name) VALUES (?, 1, ?, ?)", names)
    for run in range(1, history + 1):
        with reports.atomic():
            reports.execute_sql(_RUN, (run, f"{run:040}", run * MINUTE, run * MINUTE, tests, tests))
            reports.execute_sql(_REPORT, (run, run, f"{run}", run * MINUTE, tests, tests))
            rows = (result(test, run, tests) for test in range(1, tests + 1))
            reports.write_many(_RESULTS, ((r.id, run, run, r.test_id, r.status, 0, r.duration_ms) for r in rows))
        reports.obj.checkpoint(truncate=True)  # type: ignore[call-arg]  # a file
    for _, sql in indexes:
        reports.execute_sql(sql)
    _summarise(tests, history)
    reports.close()


def _summarise(tests: int, history: int) -> None:
    """The summaries of the tests in the four scopes of a project with one branch and one flag."""
    with reports.atomic():
        scopes = [(1, None, None), (2, None, "unit"), (3, BASE, None), (4, BASE, "unit")]
        reports.write_many(
            "INSERT INTO insight_scope (id, project_id, branch, flag, complete) VALUES (?, 1, ?, ?, 1)", scopes
        )
        for test in range(1, tests + 1):
            summary = summary_of([result(test, run, tests) for run in range(1, history)])
            counting.store_summaries((scope, test, summary) for scope, *_ in scopes)
        position = ((history - 1) * tests,)
        reports.execute_sql("INSERT INTO backfill (name, position) VALUES ('insights', ?)", position)


@contextmanager
def served(tests: int, history: int) -> Iterator[tuple[Pilothouse, float, float]]:
    """A server of the history; and the seconds that counting its last run took, and computing all from the rows."""
    with tempfile.TemporaryDirectory(prefix="ph-bench-", ignore_cleanup_errors=True) as name:
        setup = Setup(Path(name), 0, ())
        data = setup.directory / "data"
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        fill(data / "tracker.db", tests, history)
        reports.open(data / "tracker.db")
        begin = time.perf_counter()
        while counting.count_some(BASE):
            pass
        counted = time.perf_counter()
        for test in range(1, tests + 1, SHARE):
            summary_of(counting.results_of(test, 1, tests * history)[0])
        computed = (time.perf_counter() - counted) * SHARE
        reports.close()
        server = Pilothouse(setup)
        try:
            server.launch()
            server.connect()
            yield server, counted - begin, computed
        finally:
            server.close()


def measure(options: argparse.Namespace) -> tuple[list[list[str]], list[Claim]]:
    """The rows of the table, and the claims."""
    paths = {f"list: {sort}": LIST.format(sort) for sort in SORTS} | {"page with the four lists": PAGE}
    with served(options.tests, options.history) as (server, counted, computed):
        found = {
            name: [hammer(Target.get(server.port, path), 1, options.seconds).median for _ in range(options.runs)]
            for name, path in paths.items()
        }
    rows, claimed = [], []
    for name, values in found.items():
        middle = statistics.median(values)
        rows.append([name, f"{middle:.1f}", f"{computed * 1000:,.0f}", f"{middle / computed / 1000:.2g}"])
        text = f"insights of {options.tests:,} tests x {options.history} runs, {name}"
        claimed.append(Claim("insights", text, "ms", values, target=MAX_MILLISECONDS))
        claimed.append(Claim("insights", text, "ms", values, "from all rows", [computed * 1000] * len(values)))
    counting_text = f"counting a run of {options.tests:,} results"
    rows.append([counting_text, f"{counted * 1000:,.0f}", "", ""])
    claimed.append(Claim("insights", counting_text, "ms", [counted * 1000]))
    return rows, claimed


def document(options: argparse.Namespace, rows: Sequence[Sequence[str]]) -> str:
    return f"""# Insights

{options.tests:,} tests, {options.history} runs; one client. {report.machine()}.
`python benchmarks/insights.py`, which explains the columns.

{report.table(["median ms", "Pilothouse", "from all rows", "ratio"], rows)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the insights of a project with a long history.")
    parser.add_argument("--tests", type=int, default=20_000)
    parser.add_argument("--history", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--runs", type=int, default=3)
    claims.add_outputs(parser)
    options = parser.parse_args()
    rows, claimed = measure(options)
    claims.publish(options, document(options, rows), claimed)


if __name__ == "__main__":
    main()
