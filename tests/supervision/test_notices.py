"""Notices: posted, stored, read in pages, and streamed."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import Any

import pytest
from conftest import Serve, Server, wait_for
from http_checks import check_error

CRASHES = {"command": "false", "restart": "on-failure", "restart-delay": "1ms", "restart-limit": 1}
PATH = "/api/v1/processes/notices"


def notices(server: Server, query: str = "") -> list[dict[str, Any]]:
    answer = server.get(f"{PATH}{query}")
    assert answer.status == 200, answer
    return list(answer.json["content"])


def test_notice_of_a_reached_restart_limit_is_stored_logged_and_streamed(serve: Serve) -> None:
    server = serve({"crashes": CRASHES, "other": CRASHES})
    with closing(server.stream("/api/v1/processes/stream?notices=true")) as stream:
        server.do("start", "crashes")
        streamed = next(event for event in iter(stream.next, None) if event["event"] == "notice")
    assert "id" not in streamed
    (notice,) = notices(server)
    assert json.loads(streamed["data"]) == notice
    assert list(notice) == ["id", "time", "name", "processName", "message", "facts"]
    assert (notice["id"], notice["name"], notice["processName"]) == (1, "process.gave_up", "crashes")
    assert notice["facts"] == {"status": "failed", "exitCode": 1}
    assert f"WARNING notices: process.gave_up: {notice['message']}" in server.log.read_text()
    server.do("start", "other")
    wait_for(lambda: len(notices(server)) == 2)
    assert [one["processName"] for one in notices(server)] == ["other", "crashes"]
    assert [one["processName"] for one in notices(server, "?sortDirection=asc&size=1")] == ["crashes"]
    assert [one["id"] for one in notices(server, "?process=other&name=process.gave_up")] == [2]
    assert notices(server, "?name=process.other") == []
    server.kill()
    server.start()
    assert len(notices(server)) == 2
    server.do("start", "other")
    wait_for(lambda: [one["id"] for one in notices(server)] == [3, 2, 1])


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"command": "sleep 1000", "directory": "/no/such/folder"}, "there is no directory /no/such/folder"),
        ({"command": "/no/such/program"}, "No such file or directory"),
        ({"command": ["sh", "-c", "echo secret >&2; exit 3"], "start-seconds": 5}, "it ended with exit code 3 before"),
    ],
    ids=["before the spawn", "at the spawn", "after the spawn"],
)
def test_failed_start_posts_a_notice_with_its_reason(serve: Serve, entry: dict[str, Any], reason: str) -> None:
    server = serve({"web": {**entry, "auto-start": True}})
    server.until("web", "failed_to_start")
    (notice,) = notices(server)
    assert (notice["name"], notice["processName"]) == ("process.start_failed", "web")
    assert notice["message"].startswith("web failed to start: ")
    assert reason in notice["message"]
    assert "secret" not in notice["message"]
    assert notice["facts"] == {"status": "failed_to_start", "exitCode": 3 if "secret" in str(entry) else None}


def test_stream_without_notices_sends_only_status_events(serve: Serve) -> None:
    server = serve({"crashes": CRASHES, "web": {"command": "sleep 1000"}})
    with closing(server.stream("/api/v1/processes/stream")) as stream:
        server.do("start", "crashes")
        wait_for(lambda: notices(server))
        server.do("start", "web")
        seen: list[dict[str, str]] = []
        while not seen or seen[-1].get("id") != str(server.events("web")[-1]["id"]):
            seen.append(stream.next())
    assert {event["event"] for event in seen} == {"status"}


def test_oldest_notices_are_pruned_and_their_ids_are_not_reused(serve: Serve) -> None:
    server = serve({"crashes": CRASHES}, supervisor={"notices": {"retain-rows": 2}})
    server.stop()
    with closing(sqlite3.connect(server.data / "pilothouse.db")) as store, store:
        rows = [(number, number, "a.b", None, "text", "{}") for number in range(1, 2501)]
        store.executemany("INSERT INTO notice VALUES (?, ?, ?, ?, ?, ?)", rows)
    server.start()
    wait_for(lambda: server.get(PATH).json["totalElements"] == 2)
    assert [one["id"] for one in notices(server)] == [2500, 2499]
    server.do("start", "crashes")
    wait_for(lambda: notices(server)[0]["id"] == 2501)


@pytest.mark.parametrize("query", ["?page=-1", "?size=0", "?size=101", "?sortBy=colour", "?sortDirection=up"])
def test_invalid_page_parameters_are_400(serve: Serve, query: str) -> None:
    check_error(serve().get(PATH + query), 400, PATH, "VALIDATION_ERROR")


def test_invalid_notices_parameter_of_the_stream_is_400(serve: Serve) -> None:
    path = "/api/v1/processes/stream"
    check_error(serve().get(f"{path}?notices=maybe"), 400, path, "VALIDATION_ERROR")
