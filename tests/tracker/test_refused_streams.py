"""`/api/v1/events` without a prefix: `Accept` selects the service, for refused requests too."""

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


def test_refused_stream_has_the_error_format_of_the_tracker(closed: Server) -> None:
    answer = closed.get(EVENTS, Accept="text/event-stream")
    check_problem(answer, 401, EVENTS, has_timestamp=False)
    assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_refused_event_list_has_the_error_format_of_supervision(closed: Server) -> None:
    check_error(closed.get(EVENTS), 401, EVENTS)


def test_wrong_method_has_the_error_format_of_the_selected_service(closed: Server) -> None:
    check_problem(closed.post(EVENTS, Accept="text/event-stream"), 405, EVENTS, has_timestamp=False)
    check_error(closed.post(EVENTS), 405, EVENTS)
