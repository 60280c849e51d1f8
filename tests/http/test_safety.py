"""Host, cross-site requests, tokens, listening beyond loopback, closed mode, and the headers of pages."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Serve, Server
from http_checks import check_error, check_service_error, json_body, ready, running_server, send_request
from requirements import missing_part

import run
from models.config import loader

STOP = "/api/v1/processes/stop/idle"
READ = "/api/v1/processes"
LOGS = "/api/v1/processes/logs/idle"
CHANGES = [
    STOP, "/api/v1/processes/start/idle", "/api/v1/processes/restart/idle", "/api/v1/processes/group/start",
    "/api/v1/processes/group/stop", "/api/v1/processes/group/restart", "/api/v1/supervisor/reload",
    f"/supervision{STOP}",
]  # fmt: skip
OPEN = [
    READ, "/api/v1/processes/info/idle", "/api/v1/events", "/api/v1/events/count", "/api/v1/events/by-status/running",
    "/api/v1/events/by-process/idle", "/api/v1/supervisor/info", "/", "/healthz", "/readyz", "/metrics",
]  # fmt: skip
IDLE = {"idle": {"command": "true", "stdout-logfile": "idle.log"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("safety")
    with running_server(folder, IDLE, server={"allowed-hosts": ["box.example", "other.example:81"]}) as server:
        yield server


@pytest.fixture(scope="module")
def beyond(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that listens on every address; the tests call it through loopback."""
    with running_server(tmp_path_factory.mktemp("beyond"), IDLE, server={"address": "0.0.0.0"}) as server:
        yield server


@pytest.fixture(scope="module")
def shut(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("shut"), IDLE, tracker={"security": {"open-mode": False}}) as server:
        yield server


# The Host


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8080", "192.168.1.7:8080", "10.0.0.1", "[fe80::1]", "localhost",
        "LOCALHOST:9", "localhost.", "box.example", "BOX.example:8080", "box.example.:80", "other.example:81",
    ],
)  # fmt: skip
def test_an_allowed_host_passes(server: Server, host: str) -> None:
    assert send_request(server, "GET", READ, host=host).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "evil.localhost",
        "sub.box.example", "other.example", "other.example:80", "127.1", "2130706433", "0x7f.1", "box", "",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", [READ, "/healthz", "/api/v1/nope"])
def test_an_unknown_host_is_421(server: Server, host: str, path: str) -> None:
    check_error(send_request(server, "GET", path, host=host), 421, path)


@pytest.mark.parametrize(("path", "service"), [("/charts/x", "charts"), ("/tracker/api/v1/events", "tracker")])
def test_a_421_has_the_format_of_the_service_of_its_path(server: Server, path: str, service: str) -> None:
    check_service_error(service, send_request(server, "GET", path, host="evil.example"), 421, path)


def test_a_change_under_a_foreign_host_is_421_and_does_nothing(server: Server) -> None:
    path = "/api/v1/processes/start/idle"
    check_error(send_request(server, "POST", path, ["Content-Length: 0"], host="evil.example"), 421, path)
    assert server.status("idle") == "not_started"


def test_static_files_are_421_for_unknown_hosts(server: Server) -> None:
    assert send_request(server, "GET", "/static/app.css", host="evil.example").status == 421


def test_beyond_loopback_any_host_passes(beyond: Server) -> None:
    assert send_request(beyond, "GET", READ, host="whatever.example:99").status == 200


def test_beyond_loopback_allowed_hosts_are_the_only_names(serve: Serve) -> None:
    server = serve(IDLE, server={"address": "0.0.0.0", "allowed-hosts": ["box.example"]})
    assert send_request(server, "GET", READ, host="box.example").status == 200
    assert send_request(server, "GET", READ, host="10.1.2.3").status == 200
    check_error(send_request(server, "GET", READ, host="evil.example"), 421, READ)


# Cross-site requests


@pytest.mark.parametrize(
    ("site", "origin", "passes"),
    [
        (None, None, True),
        ("same-origin", None, True),
        ("none", None, True),
        ("same-origin", "http://evil.example", True),
        ("same-site", None, False),
        ("cross-site", None, False),
        ("cross-site", "http://127.0.0.1:{port}", False),
        ("", None, False),
        ("Same-Origin, cross-site", None, False),
        ("nonsense", None, False),
        (None, "http://127.0.0.1:{port}", True),
        (None, "https://127.0.0.1:{port}", True),
        (None, "http://box.example", True),
        (None, "http://BOX.example:1234", True),
        (None, "http://other.example:81", True),
        (None, "http://other.example:82", False),
        (None, "http://evil.example", False),
        (None, "http://127.0.0.1", False),
        (None, "http://127.0.0.1:1", False),
        (None, "http://127.0.0.2:{port}", False),
        (None, "http://localhost:{port}", False),
        (None, "null", False),
        (None, "", False),
        (None, "http://", False),
        (None, "file://", False),
        (None, "127.0.0.1:{port}", False),
        (None, "http://127.0.0.1:{port}.evil.example", False),
        (None, "http://127.0.0.1:{port}@evil.example", False),
        (None, "http://127.0.0.1:99999", False),
        (None, "http://[::1", False),
        (None, "chrome-extension://127.0.0.1:{port}", False),
    ],
)
def test_only_same_origin_requests_may_change_something(
    server: Server, site: str | None, origin: str | None, passes: bool
) -> None:
    headers = {} if site is None else {"Sec-Fetch-Site": site}
    if origin is not None:
        headers["Origin"] = origin.format(port=server.port)
    answer = server.ask("POST", STOP, b"", headers)
    if passes:
        assert answer.status == 200
    else:
        check_error(answer, 403, STOP)
    assert server.ask("GET", READ, headers=headers).status == 200, "reading is for all"


@pytest.mark.parametrize("path", CHANGES)
def test_cross_site_changes_are_refused(server: Server, path: str) -> None:
    check_error(server.post(path, Sec_Fetch_Site="cross-site"), 403, path)


def test_a_refused_change_changes_nothing(server: Server) -> None:
    server.post("/api/v1/processes/start/idle", Origin="http://evil.example")
    assert server.status("idle") == "not_started"


# Credentials


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer nonsense"}, {"Authorization": "bearer nonsense"}, {"Authorization": "BEARER   x y"},
        {"X-Tracker-Token": "nonsense"}, {"X-Tracker-Token": "x", "Authorization": "Basic eDp5"},
        {"Authorization": "Bearer \xff\xfe"}, {"Authorization": "Bearer plt_" + "a" * 43},
    ],
)  # fmt: skip
@pytest.mark.parametrize(("method", "path"), [("GET", READ), ("POST", STOP), ("GET", "/api/v1/events/1")])
def test_a_bad_token_is_401_never_anonymous(server: Server, headers: dict[str, str], method: str, path: str) -> None:
    answer = server.ask(method, path, headers=headers)
    check_error(answer, 401, path)
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert "plt_" not in answer.text
    assert "nonsense" not in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Basic eDp5"}, {"Authorization": "Negotiate abc"}, {"Authorization": "nonsense"},
        {"Authorization": ""},
        {"X-API-Key": "whatever"}, {"Cookie": "pilothouse=dead"}, {"X-Tracker-Token": ""},
    ],
)  # fmt: skip
def test_other_credentials_are_ignored(server: Server, headers: dict[str, str]) -> None:
    assert server.ask("GET", READ, headers=headers).status == 200
    assert server.ask("POST", STOP, b"", headers).status == 200


def test_a_401_has_the_format_of_the_service_of_its_path(server: Server) -> None:
    check_service_error(
        "tracker", server.get("/tracker/api/v1/events", X_Tracker_Token="x"), 401, "/tracker/api/v1/events"
    )


def test_a_token_never_reaches_the_log(server: Server) -> None:
    server.get(READ, Authorization="Bearer very-secret-word")
    server.post(STOP, X_Tracker_Token="very-secret-word")
    assert "very-secret-word" not in server.log.read_text()


# Beyond loopback


@pytest.mark.parametrize("path", CHANGES)
def test_a_server_beyond_loopback_requires_an_account(beyond: Server, path: str) -> None:
    answer = beyond.post(path)
    check_error(answer, 401, path)
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert beyond.status("idle") == "not_started"


@pytest.mark.parametrize("path", OPEN)
def test_reading_needs_no_account_beyond_loopback(beyond: Server, path: str) -> None:
    ready(beyond)
    assert beyond.get(path).status == 200


def test_logs_require_an_account_beyond_loopback(beyond: Server) -> None:
    check_error(beyond.get(LOGS), 401, LOGS)


@pytest.mark.parametrize(
    "header",
    [
        "X-Forwarded-For",
        "X-Forwarded-Proto",
        "X-Forwarded-Host",
        "x-forwarded-port",
        "Forwarded",
        "FORWARDED",
        "X-Real-IP",
        "Via",
        "via",
    ],
)
@pytest.mark.parametrize("value", ["127.0.0.1", "for=127.0.0.1", "1.1 proxy", ""])
def test_a_forwarded_request_is_never_local(server: Server, header: str, value: str) -> None:
    check_error(server.ask("POST", STOP, b"", {header: value}), 401, STOP)
    check_error(server.ask("GET", LOGS, headers={header: value}), 401, LOGS)
    assert server.ask("GET", READ, headers={header: value}).status == 200


def test_one_address_beyond_loopback_is_enough(serve: Serve) -> None:
    if not socket.has_ipv6:
        missing_part("IPv6, for two addresses on one port", "not in Debian: a kernel with IPv6")
    check_error(serve(IDLE, server={"address": ["127.0.0.1", "::"]}).post(STOP), 401, STOP)


def test_allowed_anonymous_control_works_and_logs_a_warning(serve: Serve) -> None:
    server = serve(
        IDLE,
        server={"address": "0.0.0.0"},
        supervisor={"processes": IDLE, "security": {"allow-anonymous-control": True}},
    )
    assert server.post(STOP).status == 200
    assert server.ask("POST", STOP, b"", {"X-Forwarded-For": "10.0.0.1"}).status == 200
    check_error(server.post(STOP, Sec_Fetch_Site="cross-site"), 403, STOP)
    check_error(server.get(LOGS), 401, LOGS)
    assert "anybody who can reach" in server.log.read_text()
    assert "WARNING" in server.log.read_text().upper()


def test_control_on_loopback_needs_no_account_and_logs_no_warning(server: Server) -> None:
    assert server.post(STOP).status == 200
    assert server.get(LOGS).status == 200
    assert "anybody who can reach" not in server.log.read_text()


# A server that runs as root


@pytest.mark.parametrize(
    ("uid", "sections", "warns"),
    [
        (0, {}, True),
        (0, {"tracker": {"security": {"open-mode": False}}}, False),
        (0, {"server": {"address": "0.0.0.0"}}, False),
        (1000, {}, False),
    ],
    ids=["root", "closed mode", "beyond loopback", "another user"],
)
def test_a_server_that_lets_local_users_act_as_root_warns(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    uid: int,
    sections: dict[str, Any],
    warns: bool,
) -> None:
    file = tmp_path / "pilothouse.yaml"
    file.write_text(json.dumps(sections))
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    with caplog.at_level(logging.INFO, logger="server"):
        run.log_access(loader.load(file, {}), [])
    assert ("any local user can control processes as root" in caplog.text) is warns


def test_the_warning_is_among_the_first_lines_of_the_log(server: Server) -> None:
    lines = server.log.read_text().splitlines()[:15]
    assert any("any local user can control processes as root" in line for line in lines) == (os.geteuid() == 0)


# Closed mode


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", path) for path in [*OPEN, LOGS, "/api/v1/processes/stream"] if path.startswith("/api")),
        *(("POST", path) for path in CHANGES),
        ("GET", "/metrics"),
    ],
)
def test_in_closed_mode_every_api_path_requires_an_account(shut: Server, method: str, path: str) -> None:
    answer = shut.ask(method, path)
    check_error(answer, 401, path)
    assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_in_closed_mode_the_trackers_stream_requires_an_account(shut: Server) -> None:
    check_service_error("tracker", shut.get("/tracker/api/v1/events"), 401, "/tracker/api/v1/events")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/static/app.css", "/tracker/healthz"])
def test_in_closed_mode_health_and_static_files_stay_open(shut: Server, path: str) -> None:
    ready(shut)
    assert shut.get(path).status == 200


@pytest.mark.parametrize("accept", ["text/html", "*/*", "application/json"])
@pytest.mark.parametrize(
    ("path", "login"), [("/", "/login"), ("/tracker/", "/tracker/login"), ("/charts", "/charts/login")]
)
def test_every_page_redirects_to_the_login_in_closed_mode(shut: Server, path: str, login: str, accept: str) -> None:
    answer = shut.get(path, Accept=accept)
    assert answer.status == 302
    assert answer.headers["Location"].partition("?")[0] == login
    assert "idle" not in answer.text


# Pages


@pytest.mark.parametrize(("path", "status"), [("/", 200), ("/tracker/", 200), ("/nope", 404)])
def test_every_page_has_the_security_headers(server: Server, path: str, status: int) -> None:
    answer = server.get(path, Accept="text/html")
    assert answer.status == status
    policy = answer.headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in policy
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "same-origin"
    assert "<script>" not in answer.text
    assert " style=" not in answer.text


@pytest.mark.parametrize("path", [READ, "/api/v1/nope", "/static/app.css", "/metrics", "/static/nope.css"])
def test_responses_forbid_sniffing_and_do_not_name_the_server(server: Server, path: str) -> None:
    answer = server.get(path)
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "Server" not in answer.headers


def test_a_page_does_not_execute_script_in_a_path(server: Server) -> None:
    answer = server.get("/%3Cscript%3Ealert(1)%3C/script%3E", Accept="text/html")
    assert (answer.status, "<script>alert" in answer.text) == (404, False)


@pytest.mark.parametrize(
    "path", ["/static/../run.py", "/static/%2e%2e/run.py", "/static/..%2frun.py", "/static//etc/passwd", "/static/"]
)
def test_only_files_of_the_static_folder_are_served(server: Server, path: str) -> None:
    answer = send_request(server, "GET", path)
    assert answer.status in (403, 404)
    assert b"import" not in answer.body
    assert b"root:" not in answer.body


# The environment of children


def test_a_child_does_not_inherit_the_environment_variables_of_the_server(serve: Serve) -> None:
    processes = {"teller": {"command": "env", "stdout-logfile": "env.log", "environment": {"MINE": "yes"}}}
    environ = {
        "SVC_SECURITY_API_KEY": "very-secret-word",
        "TRACKER_SECURITY_ADMIN_PASSWORD": "very-secret-word",
        "KEPT": "yes",
    }
    server = serve(processes, environ={**environ, "HOME": os.environ.get("HOME", "/")})
    server.do("start", "teller")
    server.until("teller", "finished")
    result = (server.folder / "env.log").read_text()
    assert "very-secret-word" not in result
    assert {"KEPT=yes", "MINE=yes"} <= set(result.splitlines())
    assert "very-secret-word" not in server.log.read_text()
    assert json_body(server.get(READ))[0]["name"] == "teller"
