"""The event endpoints: one event, counts, and exactly one event for each change, stored before the response."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conftest import Serve, Server
from http_checks import DURATION, EVENT_FIELDS, STATUSES, TIMESTAMP, check_error, json_body, running_server

API = "/api/v1/events"
INT64 = 2**63 - 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    processes = {
        "sleeper": {"command": "sleep 1000"},
        "absent": {"command": "no-such-program-anywhere"},
        "idle": {"command": "true"},
    }
    with running_server(tmp_path_factory.mktemp("events"), processes) as server:
        server.do("start", "sleeper")
        server.do("stop", "sleeper")
        server.do("start", "absent")
        yield server


@pytest.fixture(params=["", "/supervision"])
def base(request: pytest.FixtureRequest) -> str:
    return f"{request.param}{API}"


def test_one_event_is_found_by_its_id(server: Server, base: str) -> None:
    event = json_body(server.get(f"{base}/4"))
    assert set(event) == EVENT_FIELDS
    assert (event["id"], event["processName"]) == (4, "sleeper")
    assert (event["oldStatus"], event["newStatus"]) == ("stopping", "stopped")
    assert all(TIMESTAMP.fullmatch(event[name]) for name in ("eventTime", "startTime", "endTime"))
    assert event["exitCode"] == 143
    assert DURATION.fullmatch(event["processUptime"])


def test_ids_start_at_one_and_each_change_has_one_event(server: Server) -> None:
    events = [json_body(server.get(f"{API}/{id}")) for id in range(1, 7)]
    assert [(event["oldStatus"], event["newStatus"]) for event in events] == [
        ("not_started", "starting"),
        ("starting", "running"),
        ("running", "stopping"),
        ("stopping", "stopped"),
        ("not_started", "starting"),
        ("starting", "failed_to_start"),
    ]
    times = [event["eventTime"] for event in events]
    assert times == sorted(times)


def test_events_have_the_pid_from_running_until_stopped(server: Server) -> None:
    starting, running, stopping, stopped = server.events("sleeper")
    assert starting["pid"] is None
    assert starting["processUptime"] == "PT0S"
    assert isinstance(running["pid"], int)
    assert running["pid"] == stopping["pid"] == stopped["pid"]
    assert [event["exitCode"] for event in (starting, running, stopping)] == [None] * 3
    assert [event["endTime"] for event in (starting, running, stopping)] == [None] * 3


def test_event_of_a_failed_start_has_null_pid_times_and_exit_code(server: Server) -> None:
    failed = server.events("absent")[-1]
    assert set(failed) == EVENT_FIELDS
    assert [failed[name] for name in ("pid", "startTime", "endTime", "exitCode")] == [None] * 4
    assert failed["processUptime"] == "PT0S"


@pytest.mark.parametrize("id", ["7", "0", "-1", str(INT64), str(-INT64), "0000007"])
def test_an_unknown_event_is_404(server: Server, base: str, id: str) -> None:
    check_error(server.get(f"{base}/{id}"), 404, f"{base}/{id}", "EVENT_NOT_FOUND")


@pytest.mark.parametrize(
    "id",
    ["x", "1.0", "1e3", "0x1", "1_0", "%D9%A3", "1%20", "%20", "%00", "Count", str(INT64 + 1), str(-INT64 - 2),
    "9" * 5000],
)  # fmt: skip
def test_event_id_that_is_not_an_int64_is_400(server: Server, base: str, id: str) -> None:
    check_error(server.get(f"{base}/{id}"), 400, f"{base}/{id}")


def test_the_count_has_the_total_and_the_statuses_that_occurred(server: Server, base: str) -> None:
    counts = json_body(server.get(f"{base}/count"))
    assert counts == {
        "totalEvents": 6,
        "running": 1,
        "failed_to_start": 1,
        "stopped": 1,
        "stopping": 1,
        "starting": 2,
    }


def test_count_without_events_has_only_the_total(serve: Serve) -> None:
    assert serve().get(f"{API}/count").body == b'{"totalEvents":0}'


@pytest.mark.parametrize("status", STATUSES)
def test_by_status_matches_only_the_new_status(server: Server, base: str, status: str) -> None:
    page = json_body(server.get(f"{base}/by-status/{status}"))
    occurred = {"running": [2], "stopping": [3], "stopped": [4], "starting": [5, 1], "failed_to_start": [6]}
    assert [event["id"] for event in page["content"]] == occurred.get(status, [])


@pytest.mark.parametrize("status", ["nope", "RUNNING", "Running", "running%20", "totalEvents", "failed-to-start", "0"])
def test_an_invalid_status_is_400(server: Server, base: str, status: str) -> None:
    outcome = check_error(server.get(f"{base}/by-status/{status}"), 400, f"{base}/by-status/{status}")
    assert "failed_to_start" in outcome["message"]


def test_by_process_returns_only_events_of_that_process(server: Server, base: str) -> None:
    page = json_body(server.get(f"{base}/by-process/absent"))
    assert [event["id"] for event in page["content"]] == [6, 5]


def test_by_process_without_events_is_an_empty_page(server: Server, base: str) -> None:
    page = json_body(server.get(f"{base}/by-process/idle"))
    assert (page["content"], page["totalElements"], page["empty"]) == ([], 0, True)


def test_by_process_of_an_unknown_name_is_404(server: Server, base: str) -> None:
    check_error(server.get(f"{base}/by-process/nosuch"), 404, f"{base}/by-process/nosuch", "PROCESS_NOT_FOUND")


def test_events_of_a_removed_process_are_still_found(serve: Serve) -> None:
    server = serve({"gone": {"command": "sleep 1000"}})
    server.do("start", "gone")
    server.configure({"supervisor": {"processes": {}}})
    assert server.post("/api/v1/supervisor/reload").status == 200
    assert server.get("/api/v1/processes/info/gone").status == 404
    assert server.new_statuses("gone") == ["starting", "running", "stopping", "stopped"]


def test_ids_grow_across_restarts_of_the_server(serve: Serve) -> None:
    server = serve({"sleeper": {"command": "sleep 1000"}})
    server.do("start", "sleeper")
    server.stop()
    server.start()
    assert server.status("sleeper") == "stopped"
    server.do("start", "sleeper")
    assert [event["id"] for event in server.events("sleeper")] == [1, 2, 3, 4, 5, 6]


# /api/v1/events: a page of events, or the tracker's event stream

STREAM = "text/event-stream"


@pytest.mark.parametrize(
    "accept",
    [STREAM, "TEXT/Event-Stream", f"{STREAM};q=0.9", f"text/html, {STREAM}", f"application/json,{STREAM} ; q=1",
    f"*/*,{STREAM}"],
)  # fmt: skip
def test_root_events_path_is_the_tracker_stream_if_accept_names_it(server: Server, accept: str) -> None:
    stream = server.stream(API, Accept=accept)
    assert stream.status == 200
    assert stream.headers["Content-Type"] == STREAM
    assert stream.headers["Vary"] == "Accept"
    assert stream.next()["event"] == "connected"
    stream.close()


@pytest.mark.parametrize(
    "accept", [None, "", "*/*", "text/*", "application/json", "text/html", "text/event-streams", ";", ",,"]
)
def test_root_events_path_is_the_page_for_any_other_accept_header(server: Server, accept: str | None) -> None:
    answer = server.ask("GET", API, headers={} if accept is None else {"Accept": accept})
    assert json_body(answer)["totalElements"] == 6
    assert answer.headers["Vary"] == "Accept, Accept-Encoding"
    assert answer.headers["Link"] == '</tracker/api/v1/events>; rel="alternate"; type="text/event-stream"'


@pytest.mark.parametrize("accept", ["*/*", "application/json", STREAM])
def test_tracker_events_path_is_always_the_stream(server: Server, accept: str) -> None:
    stream = server.stream(f"/tracker{API}", Accept=accept)
    assert stream.status == 200
    assert stream.next() == {"event": "connected", "retry": "3000", "data": "{}"}
    stream.close()


@pytest.mark.parametrize("accept", ["*/*", "application/json", STREAM])
def test_supervision_events_path_is_always_the_page(server: Server, accept: str) -> None:
    answer = server.get(f"/supervision{API}", Accept=accept)
    assert json_body(answer)["totalElements"] == 6
    assert 'rel="alternate"' in answer.headers["Link"]


@pytest.mark.parametrize("path", ["/1", "/count", "/by-status/running", "/by-process/idle"])
def test_paths_below_events_are_never_a_stream(server: Server, path: str) -> None:
    assert server.get(API + path, Accept=STREAM).headers["Content-Type"] == "application/json"
