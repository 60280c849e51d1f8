"""At the root `Accept` decides whose `/api/v1/events` is: so it does where the request is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conftest import Server
from http_checks import check_error, check_problem, running_server

EVENTS = "/api/v1/events"


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("closed"), tracker={"security": {"open-mode": False}}) as server:
        yield server


def test_a_stream_is_refused_in_the_trackers_words(closed: Server) -> None:
    answer = closed.get(EVENTS, Accept="text/event-stream")
    check_problem(answer, 401, EVENTS, has_timestamp=False)
    assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_a_page_of_events_is_refused_in_supervisions_words(closed: Server) -> None:
    check_error(closed.get(EVENTS), 401, EVENTS)


def test_a_wrong_method_is_reported_in_the_format_of_the_service(closed: Server) -> None:
    check_problem(closed.post(EVENTS, Accept="text/event-stream"), 405, EVENTS, has_timestamp=False)
    check_error(closed.post(EVENTS), 405, EVENTS)
