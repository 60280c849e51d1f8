"""Paging: parameters of the three lists, the order of events, and the format of a page."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import Serve, Server
from http_checks import (
    EVENT_FIELDS,
    PAGE_FIELDS,
    PAGEABLE_FIELDS,
    SORT_FIELDS,
    STATUSES,
    check_error,
    json_body,
    running_server,
    write_history,
)

from models.supervision.events import StatusEvent
from models.supervision.process import STATUSES as ALL

EVENTS, BY_STATUS, BY_PROCESS = "/api/v1/events", "/api/v1/events/by-status/failed", "/api/v1/events/by-process/web"
LISTS = [
    EVENTS,
    BY_STATUS,
    BY_PROCESS,
    "/supervision" + EVENTS,
    "/supervision" + BY_STATUS,
    "/supervision" + BY_PROCESS,
]
FILTERED = [BY_STATUS, BY_PROCESS]
COMMON = ["eventTime", "processName", "newStatus", "oldStatus", "pid"]
FIELDS = [*COMMON, "id", "startTime", "endTime", "exitCode", "processUptime"]
TOTAL = 240
SECOND = 1_000_000


def history() -> list[StatusEvent]:
    """Events with many equal values and nulls."""
    dice = random.Random(7)
    return [
        StatusEvent(
            id=id,
            at=1_700_000_000 * SECOND + id // 7 * SECOND,
            process=dice.choice(["web", "db", "Zoo", "ärger"]),
            pid=dice.choice([None, 9, 10, 1000]),
            start=dice.choice([None, 1_700_000_000 * SECOND, 1_700_000_001 * SECOND]),
            end=dice.choice([None, 1_700_000_002 * SECOND]),
            exit_code=dice.choice([None, 0, 1, 137]),
            new=dice.choice(ALL),
            old=dice.choice(ALL),
            uptime=dice.choice([0, 9 * SECOND, 61 * SECOND, 36_000 * SECOND, 3_600 * SECOND]),
        )
        for id in range(1, TOTAL + 1)
    ]


HISTORY = history()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("pages")
    write_history(folder / "data", HISTORY)
    with running_server(folder, supervisor={"events": {"retain-days": 36500}}) as server:
        yield server


def events_of(path: str) -> list[StatusEvent]:
    """The events of a list, unsorted."""
    if "by-status" in path:
        return [entry for entry in HISTORY if entry.new.value == "failed"]
    return [entry for entry in HISTORY if entry.process == "web" or "by-process" not in path]


def expected(path: str, sort: str, direction: str) -> list[int]:
    """The ids in the order that the specification requires: nulls first, ties by id."""
    column: Any = {
        "id": lambda e: e.id,
        "eventTime": lambda e: e.at,
        "processName": lambda e: e.process.encode(),
        "newStatus": lambda e: STATUSES.index(e.new.value),
        "oldStatus": lambda e: STATUSES.index(e.old.value),
        "pid": lambda e: -1 if e.pid is None else e.pid,
        "startTime": lambda e: e.start or -1,
        "endTime": lambda e: e.end or -1,
        "exitCode": lambda e: -1 if e.exit_code is None else e.exit_code,
        "processUptime": lambda e: e.uptime,
    }[sort]
    order = sorted(events_of(path), key=lambda e: (column(e), e.id), reverse=direction == "desc")
    return [entry.id for entry in order]


def ids(server: Server, path: str, **query: object) -> list[int]:
    requested = "&".join(f"{name}={value}" for name, value in query.items())
    page = json_body(server.get(f"{path}?{requested}"))
    return [event["id"] for event in page["content"]]


# The format


@pytest.mark.parametrize("path", LISTS)
def test_page_has_exactly_the_specified_keys(server: Server, path: str) -> None:
    page = json_body(server.get(path))
    assert set(page) == PAGE_FIELDS
    assert set(page["pageable"]) == PAGEABLE_FIELDS
    assert set(page["sort"]) == set(page["pageable"]["sort"]) == SORT_FIELDS
    assert all(set(event) == EVENT_FIELDS for event in page["content"])


@pytest.mark.parametrize("path", LISTS)
def test_default_page_is_the_newest_twenty_events(server: Server, path: str) -> None:
    total = len(events_of(path))
    page = json_body(server.get(path))
    assert [event["id"] for event in page["content"]] == expected(path, "eventTime", "desc")[:20]
    del page["content"]
    sort = {"unsorted": False, "sorted": True, "empty": False}
    assert page == {
        "totalPages": -(-total // 20),
        "totalElements": total,
        "first": True,
        "last": total <= 20,
        "empty": False,
        "numberOfElements": min(20, total),
        "size": 20,
        "number": 0,
        "pageable": {"pageSize": 20, "pageNumber": 0, "offset": 0, "paged": True, "unpaged": False, "sort": sort},
        "sort": sort,
    }


@pytest.mark.parametrize(
    ("number", "size", "length", "first", "last"),
    [
        (0, 100, 100, True, False),
        (1, 100, 100, False, False),
        (2, 100, 40, False, True),
        (3, 100, 0, False, True),
        (2, 80, 80, False, True),
        (3, 80, 0, False, True),
        (239, 1, 1, False, True),
        (238, 1, 1, False, False),
        (2**31 - 1, 100, 0, False, True),
    ],
)
def test_first_last_and_offset_fit_the_page(
    server: Server, number: int, size: int, length: int, first: bool, last: bool
) -> None:
    page = json_body(server.get(f"{EVENTS}?page={number}&size={size}"))
    assert (page["number"], page["size"], page["numberOfElements"], len(page["content"])) == (
        number,
        size,
        length,
        length,
    )
    assert (page["first"], page["last"], page["empty"]) == (first, last, length == 0)
    assert (page["totalElements"], page["totalPages"]) == (TOTAL, -(-TOTAL // size))
    pageable = page["pageable"]
    assert (pageable["pageNumber"], pageable["pageSize"], pageable["offset"]) == (number, size, number * size)


@pytest.mark.parametrize("path", [EVENTS, "/api/v1/events/by-status/healthy", "/api/v1/events/by-process/idle"])
@pytest.mark.parametrize("number", [0, 5])
def test_empty_list_has_no_pages(serve: Serve, path: str, number: int) -> None:
    page = json_body(serve({"idle": {"command": "true"}}).get(f"{path}?page={number}"))
    assert (page["content"], page["totalPages"], page["totalElements"], page["numberOfElements"]) == ([], 0, 0, 0)
    assert (page["first"], page["last"], page["empty"]) == (number == 0, True, True)


# The order


@pytest.mark.parametrize(("path", "sort"), [*itertools.product([EVENTS], COMMON), *itertools.product(FILTERED, FIELDS)])
@pytest.mark.parametrize("direction", ["asc", "desc"])
def test_every_sort_field_orders_the_events_with_ties_by_id(
    server: Server, path: str, sort: str, direction: str
) -> None:
    order = expected(path, sort, direction)
    assert ids(server, path, sortBy=sort, sortDirection=direction, size=100) == order[:100]
    last = (len(order) - 1) // 30
    assert ids(server, path, sortBy=sort, sortDirection=direction, size=30, page=last) == order[last * 30 :]


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("direction", ["ASC", "Asc", "asc", "DESC", "dEsC"])
def test_the_direction_ignores_case(server: Server, path: str, direction: str) -> None:
    assert ids(server, path, sortDirection=direction) == expected(path, "eventTime", direction.lower())[:20]


def test_pages_together_have_every_event_once(server: Server) -> None:
    found = [id for number in range(5) for id in ids(server, EVENTS, page=number, size=53, sortBy="pid")]
    assert found == expected(EVENTS, "pid", "desc")


# The parameters


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize(
    "query", ["page=&size=&sortBy=&sortDirection=", "page", "unknown=1&PAGE=7", "size=20&page=0", "&&&=&"]
)
def test_empty_and_unknown_parameters_count_as_absent(server: Server, path: str, query: str) -> None:
    assert json_body(server.get(f"{path}?{query}")) == json_body(server.get(path))


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("page", "-1"), ("page", "x"), ("page", "1.0"), ("page", "1e1"), ("page", "0x1"), ("page", "2147483648"),
        ("page", "9" * 400), ("page", "%D9%A3"), ("page", "1_0"), ("page", "null"), ("page", "1;2"), ("page", "--1"),
        ("size", "0"), ("size", "-1"), ("size", "x"), ("size", "1.5"), ("size", "2147483648"), ("size", "-2147483649"),
        ("size", "NaN"), ("size", "%F0%9D%9F%8F"), ("size", "all"),
        ("sortBy", "nope"), ("sortBy", "eventtime"), ("sortBy", "event_time"), ("sortBy", "pid,desc"), ("sortBy", "1"),
        ("sortBy", "id;DROP%20TABLE%20event"), ("sortBy", "uptime"),
        ("sortDirection", "up"), ("sortDirection", "ascending"), ("sortDirection", "1"), ("sortDirection", "asc,desc"),
    ],
)  # fmt: skip
def test_a_bad_parameter_is_400_and_is_named(server: Server, path: str, name: str, value: str) -> None:
    assert name in check_error(server.get(f"{path}?{name}={value}"), 400, path)["message"]


@pytest.mark.parametrize("size", ["101", "1000", "2147483647"])
def test_events_refuses_a_size_above_100(server: Server, size: str) -> None:
    assert "size" in check_error(server.get(f"{EVENTS}?size={size}"), 400, EVENTS)["message"]


@pytest.mark.parametrize("path", FILTERED)
@pytest.mark.parametrize("size", ["101", "1000", "2147483647"])
def test_the_other_lists_clamp_a_size_above_100(server: Server, path: str, size: str) -> None:
    page = json_body(server.get(f"{path}?size={size}"))
    assert page["size"] == page["pageable"]["pageSize"] == 100
    assert page["totalPages"] == -(-len(events_of(path)) // 100)


@pytest.mark.parametrize("sort", sorted(set(FIELDS) - set(COMMON)))
def test_events_can_be_sorted_by_the_five_specified_fields_only(server: Server, sort: str) -> None:
    assert "sortBy" in check_error(server.get(f"{EVENTS}?sortBy={sort}"), 400, EVENTS)["message"]


def test_hundreds_of_unknown_parameters_are_ignored(server: Server) -> None:
    assert json_body(server.get(f"{EVENTS}?{'a=1&' * 999}size=1"))["size"] == 1
