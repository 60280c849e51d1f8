"""Which failures of a run are new against its baseline: they are counted, and not only named.

A failing test is new where the run has more failing results of it than the baseline: in a suite that both have, in a
module that both have, or in all. A suite that failed without a failing case counts as one failure of its name.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from attrs import field, frozen

from models.tracker.reports.base import FAILING
from models.tracker.tables import reports

_FAILING_RESULTS = f"""
    SELECT r.run_id, r.id, r.test_id, p.module, s.name FROM result r JOIN report p ON p.id = r.report_id
    LEFT JOIN suite s ON s.id = r.suite_id
    WHERE r.run_id IN (SELECT value FROM json_each(?)) AND r.status IN {FAILING}"""  # noqa: S608 (constants)
_FAILED_SUITES = """
    SELECT s.run_id, s.id, p.module, s.name FROM failed_suite s JOIN report p ON p.id = s.report_id
    WHERE s.run_id IN (SELECT value FROM json_each(?))"""
_MODULES = """
    SELECT DISTINCT run_id, module, NULL FROM report
    WHERE run_id IN (SELECT value FROM json_each(?)) AND module IS NOT NULL"""
_SUITES = """
    SELECT DISTINCT s.run_id, p.module, s.name FROM suite s JOIN report p ON p.id = s.report_id
    WHERE s.run_id IN (SELECT value FROM json_each(?))"""


class _Failure(NamedTuple):
    """A failing result, or a failed suite, whose `subject` is its name."""

    id: int
    subject: int | str
    module: str | None
    suite: str | None


@frozen
class NewFailures:
    """The tests of new failures by id, the names of new failed suites, and the rows of both."""

    tests: Collection[int] = ()
    suites: Collection[str] = ()
    results: Collection[int] = ()
    """Ids of failing results."""
    suite_rows: Collection[int] = ()
    """Ids of failed suites."""


@frozen
class _Run:
    results: list[_Failure] = field(factory=list)
    suites: list[_Failure] = field(factory=list)


def of_runs(pairs: Mapping[int, int | None]) -> dict[int, NewFailures]:
    """The new failures of runs, given with their baselines; without one, every failure is new."""
    if not pairs:
        return {}
    bases = {base for base in pairs.values() if base is not None}
    runs = defaultdict[int, _Run](_Run)
    ids = json.dumps([*{*pairs, *bases}])
    for run, id, test, module, suite in reports.execute_sql(_FAILING_RESULTS, (ids,)):
        runs[run].results.append(_Failure(id, test, module, suite))
    for run, id, module, suite in reports.execute_sql(_FAILED_SUITES, (ids,)):
        runs[run].suites.append(_Failure(id, suite, module, None))
    legs = _legs({base for base in bases if base in runs} | {run for run in pairs if pairs[run] in runs})
    found = {}
    for run, base in pairs.items():
        before = runs[base] if base is not None and base in runs else _Run()
        both = legs.get(run, set()) & legs.get(base or 0, set())
        results = _increased(runs[run].results, before.results, both)
        suites = _increased(runs[run].suites, before.suites, both)
        found[run] = NewFailures(
            {int(one.subject) for one in results}, {str(one.subject) for one in suites},
            {one.id for one in results}, {one.id for one in suites},
        )  # fmt: skip
    return found


def of_run(run: int, base: int | None) -> NewFailures:
    """The new failures of one run against any other."""
    return of_runs({run: base})[run]


def _legs(runs: Iterable[int]) -> dict[int, set[tuple[str | None, str | None]]]:
    """By run, its suites as pairs of module and name, and its modules as pairs without a name."""
    legs = defaultdict[int, set[tuple[str | None, str | None]]](set)
    ids = json.dumps([*runs])
    for query in (_SUITES, _MODULES):
        for run, module, suite in reports.execute_sql(query, (ids,)):
            legs[run].add((module, suite))
    return dict(legs)


def _increased(
    failures: Sequence[_Failure], before: Sequence[_Failure], both: Collection[tuple[str | None, str | None]]
) -> list[_Failure]:
    """Those failures of which there are more than before, in the leg that they belong to."""
    if not before:
        return list(failures)
    now, then = _counted(failures), _counted(before)

    def is_new(failure: _Failure) -> bool:
        for leg in ((failure.module, failure.suite), (failure.module, None)):
            if leg != (None, None) and leg in both:
                return now[failure.subject, *leg] > then[failure.subject, *leg]
        return now[failure.subject,] > then[failure.subject,]

    return [failure for failure in failures if is_new(failure)]


def _counted(failures: Iterable[_Failure]) -> Counter[tuple[Hashable, ...]]:
    """The failures of each subject in all, by module, and by module and suite."""
    counts = Counter[tuple[Hashable, ...]]()
    for one in failures:
        counts[one.subject,] += 1
        counts[one.subject, one.module, None] += 1
        if one.suite is not None:
            counts[one.subject, one.module, one.suite] += 1
    return counts
