"""Unknown paths, wrong methods, HEAD and OPTIONS: each error in the format of the service of the path."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

import pytest
from conftest import Answer, Server, wait_for
from http_checks import check_error, check_problem, check_service_error, ready, running_server, send_request

from handlers.base import STATUS
from models.errors import Problem

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
SERVICES = ["supervision", "charts", "tracker"]

READS = [
    "/api/v1/processes", "/api/v1/processes/info/idle", "/api/v1/supervisor/info", "/api/v1/events", "/api/v1/events/1",
    "/api/v1/events/count", "/api/v1/events/by-status/running", "/api/v1/events/by-process/idle",
    "/api/v1/processes/logs/idle", "/api/v1/processes/stream", "/healthz", "/readyz", "/metrics",
]  # fmt: skip
CHANGES = [
    "/api/v1/processes/start/idle", "/api/v1/processes/stop/idle", "/api/v1/processes/restart/idle",
    "/api/v1/processes/group/start", "/api/v1/processes/group/stop", "/api/v1/processes/group/restart",
    "/api/v1/supervisor/reload",
]  # fmt: skip
METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "PROPFIND", "get"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("errors")
    with running_server(folder, {"idle": {"command": "true", "stdout-logfile": "idle.log"}}) as server:
        server.do("start", "idle")
        yield server


def test_every_kind_of_problem_has_a_status() -> None:
    waiting, found = [Problem], set[type[Problem]]()
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        found.add(kind)
    assert {kind for kind in found if kind.__module__ == "models.errors"} - {Problem} == set(STATUS)


# 404


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/nope", "/api/v1/", "/api/v1", "/api/v1/processes/", "/api/v1/processes/nope",
        "/api/v1/processes/info/",
        "/api/v1/processes/info/a/b", "/api/v1/processes/start/", "/api/v1/events/1/2", "/api/v1/events/by-status/",
        "/api/v1//processes", "/api/v2/processes", "/api/v1/Processes", "/api/v1/%70rocesses",
        "/api/v1/processes%2Finfo",
        "/nope", "/api/v1/releases-not-there", "/api/v1/m%C3%A9", "/api/v1/%FF", "/api/v1/%00", "/api/v1/a%20b?x=1",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_an_unknown_path_under_a_prefix_is_404_in_the_format_of_that_service(
    server: Server, service: str, path: str, method: str
) -> None:
    path = f"/{service}{path}"
    check_service_error(service, server.ask(method, path), 404, path.partition("?")[0])


@pytest.mark.parametrize("service", ["charts", "tracker"])
@pytest.mark.parametrize("path", ["/api/v1/processes", "/api/v1/supervisor/info", "/api/v1/processes/info/idle"])
def test_a_prefix_has_no_paths_of_other_services(server: Server, service: str, path: str) -> None:
    check_service_error(service, server.get(f"/{service}{path}"), 404, f"/{service}{path}")


def test_the_charts_have_no_events(server: Server) -> None:
    check_problem(server.get("/charts/api/v1/events"), 404, "/charts/api/v1/events", has_timestamp=True)


@pytest.mark.parametrize(
    "path", ["/api/v1/nope", "/api/v1/", "/api/v1/processes/nope", "/api/v1/events/1/2", "/api/v2/x"]
)
@pytest.mark.parametrize("accept", ["*/*", BROWSER])
def test_an_unknown_path_of_the_root_api_is_a_404_of_supervision(server: Server, path: str, accept: str) -> None:
    check_error(server.get(path, Accept=accept), 404, path)


@pytest.mark.parametrize(
    "path",
    [
        "/nope", "/apiary", "/processes.html", "//", "//nope", "/supervisionx", "/supervision/nope", "/charts/x/y",
        "/tracker/nope", "/static/nope.css", "/static/", "/static/../run.py",
    ],
)  # fmt: skip
def test_an_unknown_path_outside_the_api_is_a_page_for_browsers(server: Server, path: str) -> None:
    answer = server.get(path, Accept=BROWSER)
    assert (answer.status, answer.headers["Content-Type"]) == (404, "text/html; charset=utf-8")
    assert "Not Found" in answer.text


@pytest.mark.parametrize("path", ["/nope", "//nope", "/processes.html"])
def test_an_unknown_path_outside_the_api_is_an_error_response_for_programs(server: Server, path: str) -> None:
    check_error(server.get(path, Accept="*/*"), 404, path)


@pytest.mark.parametrize(
    "name", ["a%20b", "a%2fb", "a%2Fb", "%C3%BC", "~x", "%7Ex", "a+b", "a;b=c", "%25", "%zz", "%", "a:b@c"]
)
@pytest.mark.parametrize("prefix", ["", "/supervision"])
def test_the_path_in_an_error_is_the_requested_path(server: Server, name: str, prefix: str) -> None:
    path = f"{prefix}/api/v1/processes/info/{name}"
    check_error(send_request(server, "GET", f"{path}?secret=1&page=2"), 404, path, "PROCESS_NOT_FOUND")


# 405, HEAD, OPTIONS


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", READS)
def test_read_endpoints_refuse_methods_of_changes(server: Server, method: str, path: str) -> None:
    if path == "/readyz":
        ready(server)
    answer = send_request(server, method, path)
    if method in ("GET", "HEAD"):
        assert answer.status == 200
        return
    check_error(answer, 405, path)
    assert answer.headers.get_all("Allow") == ["GET, HEAD, OPTIONS"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", CHANGES)
def test_change_endpoints_refuse_get(server: Server, method: str, path: str) -> None:
    if method == "POST":
        return
    answer = send_request(server, method, path)
    assert answer.status == 405
    assert answer.headers.get_all("Allow") == ["POST, OPTIONS"]
    if method != "HEAD":
        check_error(answer, 405, path)


@pytest.mark.parametrize(
    ("path", "service"),
    [
        ("/tracker/api/v1/events", "tracker"), ("/supervision/api/v1/events", "supervision"),
        ("/supervision/healthz", "supervision"), ("/charts/healthz", "charts"), ("/tracker/metrics", "tracker"),
    ],
)  # fmt: skip
def test_a_405_has_the_format_of_the_service_of_its_path(server: Server, path: str, service: str) -> None:
    answer = server.ask("DELETE", path)
    check_service_error(service, answer, 405, path)
    assert answer.headers["Allow"] == "GET, HEAD, OPTIONS"


@pytest.mark.parametrize("path", ["/", "/static/app.css"])
def test_a_405_of_a_page_has_allow(server: Server, path: str) -> None:
    answer = server.post(path)
    assert answer.status == 405
    assert answer.headers["Allow"] == "GET, HEAD, OPTIONS"


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        *((path, "GET, HEAD, OPTIONS") for path in [*READS, "/", "/static/app.css", "/tracker/api/v1/events"]),
        *((path, "POST, OPTIONS") for path in CHANGES),
    ],
)  # fmt: skip
def test_options_is_204_with_allow(server: Server, path: str, allow: str) -> None:
    answer = server.ask("OPTIONS", path)
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers.get_all("Allow") == [allow]
    assert "Content-Type" not in answer.headers


def test_options_of_an_unknown_path_is_404(server: Server) -> None:
    check_error(server.ask("OPTIONS", "/api/v1/nope"), 404, "/api/v1/nope")


STEADY = [*(path for path in READS if not path.endswith("stream") and path != "/metrics"), "/", "/static/app.css"]


@pytest.mark.parametrize(
    "path", [*STEADY, "/api/v1/nope", "/nope", "/tracker/nope", "/api/v1/events?size=0", "/api/v1/events/9999"]
)
def test_head_answers_as_get_without_a_body(server: Server, path: str) -> None:
    def kept(answer: Answer) -> dict[str, str]:
        own = {"Date", "Content-Length"} if answer.status >= 400 else {"Date"}
        return {name: value for name, value in answer.headers.items() if name not in own}

    def send_request() -> tuple[Answer, Answer] | None:
        before, between, after = server.get(path), server.ask("HEAD", path), server.get(path)
        return (before, between) if kept(before) == kept(after) else None  # the home page shows the memory of the host

    get, head = wait_for(send_request, about=f"{path} to say the same twice")
    assert head.body == b""
    assert head.status == get.status
    assert kept(get) == kept(head)
    assert "Content-Length" in head.headers


def test_a_connection_is_kept_through_refusals(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.connect()
    first = connection.sock.getsockname()
    for method, path, status in [
        ("HEAD", "/nope", 404), ("POST", "/api/v1/processes", 405), ("OPTIONS", "/api/v1/processes", 204),
        ("GET", "/api/v1/events?size=0", 400), ("POST", "/api/v1/processes/stop/nosuch", 404), ("GET", "/healthz", 200),
    ]:  # fmt: skip
        connection.request(method, path, b"x" * 5000 if method == "POST" else None)
        response = connection.getresponse()
        response.read()
        assert response.status == status
        assert connection.sock.getsockname() == first
    connection.close()


# Prefixes


@pytest.mark.parametrize("service", SERVICES)
def test_all_endpoints_of_a_service_are_served_under_its_prefix(server: Server, service: str) -> None:
    ready(server)
    for path in ("/healthz", "/readyz", "/metrics", "", "/"):
        assert server.get(f"/{service}{path}").status == 200, path


@pytest.mark.parametrize("path", [path for path in READS if path.startswith("/api") and not path.endswith("stream")])
def test_supervision_answers_the_same_under_its_prefix(server: Server, path: str) -> None:
    if path.endswith("/info"):
        return  # the memory of the host changes
    assert server.get(path).body == server.get(f"/supervision{path}").body


def test_api_errors_are_json_whatever_accept_says(server: Server) -> None:
    """`Accept` cannot select HTML for an API path."""
    for accept in (BROWSER, "text/html", "image/png", "application/xml;q=0", "nonsense"):
        check_error(
            server.get("/api/v1/processes/info/nosuch", Accept=accept),
            404,
            "/api/v1/processes/info/nosuch",
            "PROCESS_NOT_FOUND",
        )
