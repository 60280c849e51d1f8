"""All tests of a run: filtered, sorted, and read in pages by the key of the last row (a keyset), not by a number.

A page costs by its size in the order of the upload, which has an index; sorted, by the size of the run at most. Rows
that uploads add meanwhile neither repeat nor hide others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Any, Literal, get_args

from attrs import evolve, frozen

from models.errors import Invalid
from models.inputs import ANY_CASE_FLAG, choice, free_text, query, whole
from models.paging import INT64, decode_cursor, encode_cursor
from models.tracker.failures import triage
from models.tracker.failures.triage import TriageRuleInfo
from models.tracker.forges import owners
from models.tracker.forges.owners import Owners
from models.tracker.queries import MAX_TEXT_CHARACTERS, head_of
from models.tracker.reports.base import CASE_STATUSES, FAILING, CaseStatus
from models.tracker.tables import Run, reports

Sort = Literal["name", "duration"]

SORTS: tuple[Sort, ...] = get_args(Sort)
_MIN_FETCHED = 500
_MIN_WALKED_TESTS = 1000
"""A larger run is sorted by walking through the index of names, a smaller one by sorting its rows."""

_COLUMNS = f"""
    SELECT r.id, r.test_id, s.name, t.class_name, t.name, r.status, r.duration_ms, r.reruns, f.type, f.message,
    substr(f.stack, 1, {triage.MAX_TEXT_CHARACTERS}), r.flaky, t.file FROM"""
_NAMES = " LEFT JOIN suite s ON s.id = r.suite_id LEFT JOIN failure f ON f.result_id = r.id WHERE "
_FROM_RESULTS = f"{_COLUMNS} result r JOIN test t ON t.id = r.test_id{_NAMES}r.run_id = :run"
_FROM_TESTS = f"""{_COLUMNS} test t CROSS JOIN result r ON r.test_id = t.id AND r.run_id = :run{_NAMES}
    t.project_id = :project"""
_IN_ORDER = f"{_FROM_RESULTS} AND r.status = :status AND r.id > :id{{filters}} ORDER BY r.id LIMIT :limit"
_BY_NAME = """ {statuses} AND (t.class_name, t.name) >= (:class_name, :name)
    AND NOT (t.class_name = :class_name AND t.name = :name AND r.id <= :id){filters}
    ORDER BY t.class_name, t.name, r.id LIMIT :limit"""
_BY_DURATION = f"""{_COLUMNS} result r JOIN test t ON t.id = r.test_id{_NAMES}r.id IN
    (SELECT r.id FROM result r{{joined}} WHERE r.run_id = :run {{statuses}}
    AND coalesce(r.duration_ms, -1) <= :duration AND (coalesce(r.duration_ms, -1) < :duration OR r.id > :id){{filters}}
    ORDER BY coalesce(r.duration_ms, -1) DESC, r.id LIMIT :limit)
    ORDER BY coalesce(r.duration_ms, -1) DESC, r.id"""  # noqa: S608 (constants)
_JOINED = " JOIN test t ON t.id = r.test_id"
_FILTERS = {
    "q": " AND lower(t.class_name || ' ' || t.name) LIKE :q ESCAPE '!'",
    "class_name": " AND t.class_name = :class",
    "file": " AND t.file = :file",
    "flaky": " AND r.flaky = :flaky",
    "min_ms": " AND r.duration_ms >= :min_ms",
}


def _read_statuses(name: str, text: str) -> tuple[CaseStatus, ...]:
    names = [part.strip().upper() for part in text.split(",") if part.strip()]
    if unknown := [each for each in names if each not in CaseStatus.__members__]:
        raise Invalid(f"{name} must be some of {', '.join(CaseStatus.__members__)}, not {unknown[0][:50]}")
    return tuple(status for status in CASE_STATUSES if not names or status.value in names)


@frozen(slots=False)  # a base beside another one
class TestFilter:
    """Which tests of a run, and in which order; without `sort` in that of the uploads. None: any."""

    __test__ = False  # pytest must not collect it

    statuses: tuple[CaseStatus, ...] = query(
        f"Some of {', '.join(CaseStatus.__members__)}, in any case, with commas between",
        CASE_STATUSES,
        kind=evolve(free_text("failed,error"), read=_read_statuses),
        json_name="status",
    )
    q: str | None = query("Only tests whose class and name contain this", kind=free_text("checkout"))
    class_name: str | None = query(
        "Only tests of this class", kind=free_text("com.example.ShopTest"), json_name="class"
    )
    file: str | None = query(
        "Only tests of this source file", kind=free_text("src/test/java/com/example/ShopTest.java")
    )
    owner: str | None = query("Only tests of this owner", kind=free_text("@example/shop"))
    category: str | None = query("Only failures of this category of triage", kind=free_text("infrastructure"))
    flaky: bool | None = query("Only tests that are flaky in the run, or not", kind=ANY_CASE_FLAG)
    min_ms: int | None = query("Only tests that took so many milliseconds", kind=whole(0, INT64))
    sort: Sort | None = query(
        "By class and name, or the longest first; else in the order of the reports",
        kind=choice(*SORTS, shown=f"one of {', '.join(SORTS)}"),
    )


@frozen
class TestRow:
    """A test in a run. `category` is None for one that did not fail; a long stack is cut at its end."""

    __test__ = False

    id: int
    test_id: int
    suite: str | None
    class_name: str
    name: str
    status: CaseStatus
    duration_ms: int | None
    reruns: int
    type: str | None
    message: str | None
    stack: str | None
    flaky: bool
    owner: str | None
    category: str | None
    file: str | None


def page(
    run: Run, filter: TestFilter, owner_rules: Owners, rules: Sequence[TriageRuleInfo], cursor: str | None, limit: int
) -> tuple[list[TestRow], str | None]:
    """At most `limit` tests after the cursor, and the cursor of the next page. Raises `Invalid`."""
    found: list[TestRow] = []
    is_computed = filter.owner is not None or filter.category is not None
    while True:
        count = max(limit + 1, _MIN_FETCHED) if is_computed else limit + 1
        rows = _rows(run, filter, cursor, count)
        for row in rows:
            test = _test(row, owner_rules, rules)
            if not _fits(test, filter):
                continue
            if len(found) == limit:
                return found, _cursor(found[-1], filter)
            found.append(test)
        if len(rows) < count:
            return found, None
        cursor = _cursor(_test(rows[-1], owners.NO_OWNERS, ()), filter)


def _fits(test: TestRow, filter: TestFilter) -> bool:
    if filter.owner is not None and not owners.is_one_of(test.owner, filter.owner):
        return False
    return filter.category is None or (test.category or "").casefold() == filter.category.casefold()


def _test(row: Sequence[Any], owner_rules: Owners, rules: Sequence[TriageRuleInfo]) -> TestRow:
    id, test, suite, class_name, name, rank, duration, reruns, type, message, stack, flaky, file = row
    category = triage.category(rules, type, message, stack) if rank in FAILING else None
    owner = owner_rules.of(file, class_name)
    return TestRow(
        id, test, suite, class_name, name, CASE_STATUSES[rank], duration, reruns, type, message, head_of(stack),
        bool(flaky), owner, category, file,
    )  # fmt: skip


def _cursor(test: TestRow, filter: TestFilter) -> str:
    if filter.sort == "name":
        return encode_cursor(test.class_name, test.name, test.id)
    if filter.sort == "duration":
        return encode_cursor(-1 if test.duration_ms is None else test.duration_ms, test.id)
    return encode_cursor(test.id)


def _rows(run: Run, filter: TestFilter, cursor: str | None, count: int) -> list[Any]:
    values = {"run": run.id, "limit": count, **_filter_values(filter)}
    filters = "".join(text for name, text in _FILTERS.items() if getattr(filter, name) is not None)
    ranks = tuple(CASE_STATUSES.index(status) for status in filter.statuses)
    if filter.category is not None:
        ranks = tuple(rank for rank in ranks if rank in FAILING)
    if filter.sort is None:
        (id,) = decode_cursor(cursor, int) if cursor else (0,)
        return list(islice(merge(*_in_order(ranks, filters, {**values, "id": id}), key=lambda row: row[0]), count))
    statuses = f"AND r.status IN ({', '.join(map(str, ranks)) or 'NULL'})"
    if filter.sort == "duration":
        duration, id = decode_cursor(cursor, int, int) if cursor else (INT64, 0)
        joined = _JOINED if " t." in filters or "(t." in filters else ""
        query = _BY_DURATION.format(statuses=statuses, filters=filters, joined=joined)
        return reports.execute_sql(query, {**values, "duration": duration, "id": id}).fetchall()  # type: ignore[no-any-return]
    class_name, name, id = decode_cursor(cursor, str, str, int) if cursor else ("", "", 0)
    is_walked = reports.is_local and run.tests >= _MIN_WALKED_TESTS
    query = (_FROM_TESTS if is_walked else _FROM_RESULTS) + _BY_NAME.format(statuses=statuses, filters=filters)
    values |= {"class_name": class_name, "name": name, "id": id, "project": run.project_id}
    return reports.execute_sql(query, values).fetchall()  # type: ignore[no-any-return]


def _in_order(ranks: Sequence[int], filters: str, values: Mapping[str, Any]) -> Iterator[list[Any]]:
    """For each status, its rows by id: the index has them in this order."""
    for rank in ranks:
        yield reports.execute_sql(_IN_ORDER.format(filters=filters), {**values, "status": rank}).fetchall()


def _filter_values(filter: TestFilter) -> dict[str, Any]:
    text = (filter.q or "").lower().replace("!", "!!").replace("%", "!%").replace("_", "!_")
    return {
        "q": f"%{text}%",
        "class": filter.class_name,
        "file": filter.file,
        "flaky": int(bool(filter.flaky)),
        "min_ms": filter.min_ms,
    }


assert MAX_TEXT_CHARACTERS <= triage.MAX_TEXT_CHARACTERS
