"""Every operation returns the documented common error statuses, and its own statuses."""

from __future__ import annotations

import http.client
import json
import re
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import small_charts
from conftest import Answer, Serve, Server, python_command, wait_for
from openapi_schema_validator import OAS31Validator
from openapi_server import CHART, KEY, REPOSITORY, PreparedServer, document_for, operations, prepared_server
from users import bearer

DOCUMENT = document_for(has_cluster=False)
EVERY = [(result["operationId"], method.upper(), path) for path, method, result in operations(DOCUMENT)]
UNGATED = {"ingest", "run_finish"}
"""What a token of scope INGEST is for."""

MIB = 1024 * 1024
UPLOADS = {"ingest": 100, "helm_install_upload": 101, "helm_upgrade_upload": 101, "helm_template_upload": 101,
           "helm_push": 101, "helm_lint_upload": 101, "helm_show_upload": 101,
           "helm_package": 101, "helm_dependency_build": 101}  # fmt: skip
"""MiB that they take; the others take one."""

every = pytest.mark.parametrize(("name", "method", "path"), EVERY, ids=[name for name, _, _ in EVERY])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreparedServer]:
    with prepared_server(tmp_path_factory.mktemp("statuses")) as one:
        yield one


def address(path: str) -> str:
    return re.sub(r"\{\w+\}", "1", path)


def check_documented(answer: Answer, status: int, method: str, path: str) -> Answer:
    """Checks a response against the document of this operation."""
    assert answer.status == status, answer
    result = DOCUMENT["paths"][path][method.lower()]["responses"][str(status)]
    media = (answer.headers["Content-Type"] or "").partition(";")[0]
    assert media in result["content"], media
    schema = {**result["content"][media]["schema"], "components": DOCUMENT["components"]}
    OAS31Validator(schema).validate(json.loads(answer.body))
    assert all(name in answer.headers for name in result.get("headers", {}))
    return answer


@every
def test_a_bad_token_is_401(plain: PreparedServer, name: str, method: str, path: str) -> None:
    check_documented(plain.server.ask(method, address(path), headers=bearer("plt_unknown")), 401, method, path)


@every
def test_an_operation_without_permission_is_403(plain: PreparedServer, name: str, method: str, path: str) -> None:
    headers = {"Sec-Fetch-Site": "cross-site"} if name in UNGATED else bearer(plain.poster)
    status = 200 if name == "run_verdict" else 403  # of a run that the poster may post to
    check_documented(plain.server.ask(method, address(path), headers=headers), status, method, path)


@every
def test_an_unknown_host_is_421(plain: PreparedServer, name: str, method: str, path: str) -> None:
    check_documented(plain.server.ask(method, address(path), headers={"Host": "elsewhere.example"}), 421, method, path)


@every
def test_a_body_that_is_too_large_is_413(plain: PreparedServer, name: str, method: str, path: str) -> None:
    body = bytes(UPLOADS.get(name, 1) * MIB + 1)
    kind = "multipart/form-data; boundary=b" if name in UPLOADS else "text/plain"
    headers = {"X-API-Key": KEY, "Content-Type": kind, **bearer(plain.admin)}
    check_documented(plain.server.ask(method, address(path), body, headers), 413, method, path)


@every
def test_bytes_that_are_not_text_are_400(plain: PreparedServer, name: str, method: str, path: str) -> None:
    result = DOCUMENT["paths"][path][method.lower()]
    if not [one for one in result["parameters"] if one["in"] != "header"]:
        return
    requested = re.sub(r"\{\w+\}", "%00", path) if "{" in path else f"{path}?{result['parameters'][0]['name']}=%00"
    check_documented(
        plain.server.ask(method, requested, headers={"X-API-Key": KEY, **bearer(plain.admin)}), 400, method, path
    )


@pytest.mark.parametrize("body", [b"", b"{}", bytes(2 * MIB)], ids=["no body", "a small body", "a large body"])
@pytest.mark.parametrize(("name", "method", "path"), [one for one in EVERY if "{" in one[2] and one[1] != "GET"])
def test_a_path_that_is_not_text_is_refused_without_a_traceback(
    plain: PreparedServer, name: str, method: str, path: str, body: bytes
) -> None:
    headers = {"X-API-Key": KEY, **bearer(plain.admin)}
    answer = plain.server.ask(method, re.sub(r"\{\w+\}", "%ff", path), body, headers)
    check_documented(answer, 400, method, path)
    assert "Traceback" not in plain.server.log.read_text()


def test_a_stopping_server_responds_503(serve: Serve, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = f"import signal, time\nsignal.signal(15, signal.SIG_IGN)\nopen({str(ready)!r}, 'w')\ntime.sleep(1000)"
    stubborn = {"command": python_command(code), "auto-start": True, "stop-timeout": "100s"}
    security: dict[str, Any] = {"security": {"mode": "FULL", "api-key": KEY}}
    server = serve({"stubborn": stubborn}, svc=security, server={"shutdown-timeout": "100s"})
    wait_for(ready.exists)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    with closing(connection):
        exchange(connection, "GET", "/healthz")
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: exchange(connection, "GET", "/healthz").status == 503)
        for _, method, path in EVERY:
            check_documented(exchange(connection, method, address(path)), 503, method, path)
    server.kill()


def exchange(connection: http.client.HTTPConnection, method: str, path: str) -> Answer:
    connection.request(method, path)
    response = connection.getresponse()
    return Answer(response.status, response.headers, response.read())


CHARTED = f"{REPOSITORY}/{CHART}"
UPLOADED = "multipart/form-data"
BODIES: dict[str, tuple[str, str, Any, int]] = {
    "an unknown process": ("GET", "/api/v1/processes/info/{name}", None, 404),
    "an unknown process is started": ("POST", "/api/v1/processes/start/{name}", None, 400),
    "an unknown process is stopped": ("POST", "/api/v1/processes/stop/{name}", None, 404),
    "an unknown process is restarted": ("POST", "/api/v1/processes/restart/{name}", None, 404),
    "an unknown process's log": ("GET", "/api/v1/processes/logs/{name}", None, 404),
    "an unknown process's events": ("GET", "/api/v1/events/by-process/{processName}", None, 404),
    "an unknown event": ("GET", "/api/v1/events/{id}", None, 404),
    "an unknown project": ("GET", "/api/v1/projects/{id}", None, 404),
    "an unknown project's runs": ("GET", "/api/v1/projects/{id}/runs", None, 404),
    "an unknown project's tests": ("GET", "/api/v1/projects/{id}/flaky", None, 404),
    "an unknown run": ("GET", "/api/v1/runs/{id}", None, 404),
    "an unknown run's verdict": ("GET", "/api/v1/runs/{id}/quality-gate", None, 404),
    "an unknown run is deleted": ("DELETE", "/api/v1/runs/{id}", None, 404),
    "an unknown project's badge": ("GET", "/badge/{projectId}/{metric}.svg", None, 404),
    "an unknown repository's charts": ("GET", "/api/v1/repos/{name}/charts", None, 404),
    "an unknown repository is updated": ("POST", "/api/v1/repos/{name}/update", None, 404),
    "an unknown repository is removed": ("DELETE", "/api/v1/repos/{name}", None, 404),
    "an unknown chart's versions": ("GET", "/api/v1/repos/{name}/charts/{chart}/versions", None, 404),
    "an unknown chart is rendered": ("POST", "/api/v1/charts/template", {"chartRef": f"{REPOSITORY}/none"}, 404),
    "an unknown chart is looked over": ("POST", "/api/v1/charts/lint", {"chartRef": f"{REPOSITORY}/none"}, 404),
    "an unknown chart is pulled": ("POST", "/api/v1/repos/pull", {"chart": f"{REPOSITORY}/none"}, 404),
    "dependencies of an unknown chart": ("POST", "/api/v1/dependencies/resolve", {"chartRef": "none/none"}, 404),
    "a repository with another URL": ("POST", "/api/v1/repos", {"name": REPOSITORY, "url": "https://192.0.2.1/"}, 409),
    "a repository that is none": ("POST", "/api/v1/repos", {"name": "other", "url": "http://127.0.0.1:1/"}, 400),
    "a body of the wrong kind is posted": ("POST", "/api/v1/ingest", {}, 415),
    "a body of the wrong kind is rendered": ("POST", "/api/v1/charts/template/upload", {}, 415),
    "a body of the wrong kind is pushed": ("POST", "/api/v1/repos/push", {}, 415),
    "a name that is none": ("POST", "/api/v1/charts/create", {"name": "../x"}, 400),
    "a form where JSON is asked for": ("POST", "/api/v1/charts/lint", UPLOADED, 415),
    "a form where a name is asked for": ("POST", "/api/v1/charts/create", UPLOADED, 415),
    "no project": ("GET", "/api/v1/gate", None, 400),
    "no keyword": ("GET", "/api/v1/hub/search", None, 400),
    "no runs": ("GET", "/api/v1/compare", None, 400),
    "no chart": ("GET", "/api/v1/charts/show", None, 400),
    "nothing runs": ("POST", "/api/v1/processes/group/stop", None, 404),
    "there is no cluster": ("POST", "/api/v1/releases", {"chartRef": CHARTED, "releaseName": "a"}, 404),
}  # fmt: skip


@pytest.mark.parametrize("what", BODIES)
def test_error_responses_are_documented(plain: PreparedServer, what: str) -> None:
    method, path, body, status = BODIES[what]
    requested = path.replace("{name}", "none").replace("{processName}", "none").replace("{chart}", "none")
    requested = requested.replace("{metric}", "pass").replace("{projectId}", "999").replace("{id}", "999")
    if what == "nothing runs":
        plain.server.post("/api/v1/processes/group/stop")
    raw = b"" if body in (None, UPLOADED) else json.dumps(body).encode()
    kind = f"{UPLOADED}; boundary=b" if body == UPLOADED else "application/json"
    headers = {"X-API-Key": KEY, "Content-Type": kind, **bearer(plain.admin)}
    check_documented(plain.server.ask(method, requested, raw, headers), status, method, path)


def test_a_group_start_with_running_processes_is_409(plain: PreparedServer) -> None:
    path = "/api/v1/processes/group/start"
    plain.server.post("/api/v1/processes/start/web")
    check_documented(plain.server.post(path), 409, "POST", path)


def test_invalid_values_are_422(plain: PreparedServer) -> None:
    small_charts.helm_path("helm")
    path = "/api/v1/charts/template"
    schema = json.dumps({"properties": {"colour": {"type": "integer"}}})
    strict = small_charts.chart_archive("strict", **{"values.schema": schema})
    plain.web.serve((CHART, "0.1.0", small_charts.chart_archive(CHART)), ("strict", "0.1.0", strict))
    headers = {"X-API-Key": KEY}
    assert plain.server.post(f"/api/v1/repos/{REPOSITORY}/update").status == 200
    body = json.dumps({"chartRef": f"{REPOSITORY}/strict", "values": {"colour": "red"}}).encode()
    check_documented(plain.server.ask("POST", path, body, headers), 422, "POST", path)


@pytest.mark.parametrize(
    ("method", "path", "requested"),
    [
        ("GET", "/api/v1/hub/search", "/api/v1/hub/search?keyword=broken"),
        ("POST", "/api/v1/repos/{name}/update", f"/api/v1/repos/{REPOSITORY}/update"),
        ("POST", "/api/v1/repos/update-all", "/api/v1/repos/update-all"),
    ],
)
def test_a_bad_response_of_another_server_is_502(plain: PreparedServer, method: str, path: str, requested: str) -> None:
    pages = dict(plain.web.pages)
    plain.web.pages.clear()
    for place in pages:
        plain.web.pages[place] = (500, {}, b"broken")
    try:
        check_documented(plain.server.ask(method, requested), 502, method, path)
    finally:
        plain.web.pages.update(pages)


def test_a_process_that_cannot_be_started_is_500(serve: Serve) -> None:
    server = serve({"none": {"command": "/nonexistent/program"}})
    for path in ("/api/v1/processes/start/{name}", "/api/v1/processes/restart/{name}", "/api/v1/processes/group/start",
                 "/api/v1/processes/group/restart"):  # fmt: skip
        check_documented(server.post(path.replace("{name}", "none")), 500, "POST", path)


def test_a_log_that_cannot_be_read_is_500(serve: Serve, tmp_path: Path) -> None:
    path = "/api/v1/processes/logs/{name}"
    (tmp_path / "other.log").write_text("somebody else's\n")
    (tmp_path / "link.log").symlink_to(tmp_path / "other.log")
    server: Server = serve({"odd": {"command": "true", "stdout-logfile": str(tmp_path / "link.log")}})
    check_documented(server.get(path.replace("{name}", "odd")), 500, "GET", path)


def test_a_bad_configuration_is_400_and_changes_nothing(serve: Serve) -> None:
    path = "/api/v1/supervisor/reload"
    server = serve()
    server.file.write_text("supervisor: {processes: {a: {}}}")
    check_documented(server.post(path), 400, "POST", path)


def test_operations_that_need_helm_are_503_without_it(serve: Serve, tmp_path: Path) -> None:
    server = serve(environ={"PATH": str(tmp_path)}, svc={"helm": {"binary": str(tmp_path / "none")}})
    body = json.dumps({"name": "fresh"}).encode()
    check_documented(server.post("/api/v1/charts/create", body), 503, "POST", "/api/v1/charts/create")
