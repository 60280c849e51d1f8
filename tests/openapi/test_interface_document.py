"""The OpenAPI document: complete, consistent with the routes, and accepted by validators and generators."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Server
from http_checks import running_server
from openapi_server import METHODS, document_for, operations
from openapi_spec_validator import OpenAPIV31SpecValidator

from handlers import app
from handlers.base import methods
from handlers.charts.handler import OPERATIONS, ChartHandler
from handlers.http import permissions
from handlers.openapi import pages
from handlers.openapi.document import security
from handlers.openapi.schemas import Components
from handlers.routing import Route, Service
from models.config.settings import (
    AccessInterceptorSettings,
    Config,
    RestSettings,
    SvcSettings,
    TrackerSecurity,
    TrackerSettings,
)
from models.config.settings import ServerSettings as Address

DOCUMENT = document_for()
EVERY = operations(DOCUMENT)
COMMON = {"400", "401", "403", "408", "413", "421", "500", "503"}
PREFIXES = ("", "/supervision", "/charts", "/tracker")
SEED = """
POST /api/v1/processes/start/{name} 200 400 500
POST /api/v1/processes/stop/{name} 200 400 404 500
POST /api/v1/processes/restart/{name} 200 400 404 500
GET /api/v1/processes 200 400 500
GET /api/v1/processes/info/{name} 200 400 404 500
POST /api/v1/processes/group/start 200 409 400 500
POST /api/v1/processes/group/stop 200 404 400 500
POST /api/v1/processes/group/restart 200 400 500
GET /api/v1/supervisor/info 200 400 500
GET /api/v1/events 200 400 500
GET /api/v1/events/{id} 200 404 400 500
GET /api/v1/events/count 200 400 500
GET /api/v1/events/by-status/{status} 200 400 500
GET /api/v1/events/by-process/{processName} 200 404 400 500
POST /api/v1/ingest 201 400 401
GET /api/v1/gate 200 400 404
GET /api/v1/me 200 401
POST /api/v1/releases 201 400 401 403 404 500
POST /api/v1/releases/upload 201 400 401 403 404 500
PUT /api/v1/releases/{name} 200 400 401 403 404 500
POST /api/v1/releases/{name}/upgrade/upload 200 400 401 403 404 500
DELETE /api/v1/releases/{name} 204 400 401 403 404 500
POST /api/v1/releases/{name}/rollback 204 400 401 403 404 500
POST /api/v1/releases/{name}/test 200 400 401 403 404 500
POST /api/v1/repos 201 400 401 403 500
DELETE /api/v1/repos/{name} 204 400 401 403 404 500
POST /api/v1/repos/push 200 400 401 403 500
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("document")) as one:
        yield one


def references(value: Any) -> Iterator[str]:
    """All references."""
    if isinstance(value, Mapping):
        if "$ref" in value:
            yield value["$ref"]
        for one in value.values():
            yield from references(one)
    elif isinstance(value, list):
        for one in value:
            yield from references(one)


def served_routes() -> list[tuple[Service, Route]]:
    each = app.served(Config())
    return [(service, route) for service in (*each, pages.shared_endpoints(each[0])) for route in service.routes]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_validator_accepts_the_document_and_that_of_each_service(server: Server, prefix: str) -> None:
    answer = server.get(f"{prefix}/v3/api-docs")
    assert answer.headers.get_all("Content-Type") == ["application/json"]
    OpenAPIV31SpecValidator(answer.json).validate()
    assert answer.json["openapi"] == "3.1.0"
    assert answer.json["servers"] == [{"url": prefix or "/"}]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_yaml_has_the_same_content(server: Server, prefix: str) -> None:
    answer = server.get(f"{prefix}/v3/api-docs.yaml")
    assert answer.headers.get_all("Content-Type") == ["application/yaml"]
    assert yaml.safe_load(answer.body) == server.get(f"{prefix}/v3/api-docs").json


def test_the_document_of_a_prefix_has_that_service_and_shared_endpoints(server: Server) -> None:
    for prefix in PREFIXES[1:]:
        tags = {tag for _, _, result in operations(server.get(f"{prefix}/v3/api-docs").json) for tag in result["tags"]}
        assert tags == {prefix[1:], "server"}
    whole = {tag for _, _, result in operations(server.get("/v3/api-docs").json) for tag in result["tags"]}
    assert whole == {"supervision", "charts", "tracker", "server"}


@pytest.mark.parametrize(("service", "route"), served_routes(), ids=lambda one: getattr(one, "name", "") or one[0])
def test_every_method_of_every_route_is_documented(service: Service, route: Route) -> None:
    paths = {re.sub(r"\{\w+\}", "([^/]+)", path): result for path, result in DOCUMENT["paths"].items()}
    pattern = (service.base + route[0]).replace("\\.", ".")
    handler: Any = route[1]
    for method in set(methods(handler)) & {name.upper() for name in METHODS}:
        if issubclass(handler, ChartHandler) and handler.fixed[method]:
            continue  # what is written at the path with a variable
        assert method.lower() in paths[pattern], f"{method} {pattern}"


def test_every_documented_path_is_served(server: Server) -> None:
    for path, method, _ in operations(server.get("/v3/api-docs").json):
        allowed = server.ask("OPTIONS", re.sub(r"\{\w+\}", "1", path)).headers["Allow"]
        assert method.upper() in allowed, path


@pytest.mark.parametrize("line", SEED.strip().splitlines())
def test_the_operations_of_the_specification_are_documented(line: str) -> None:
    method, path, *statuses = line.split()
    assert set(statuses) <= set(DOCUMENT["paths"][path][method.lower()]["responses"])


@pytest.mark.parametrize(("path", "method", "result"), EVERY, ids=[result["operationId"] for _, _, result in EVERY])
def test_every_operation_is_complete(path: str, method: str, result: dict[str, Any]) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", result["operationId"])
    assert result["summary"]
    assert set(result["responses"]) > COMMON
    names = {one["name"] for one in result["parameters"] if one["in"] == "path"}
    assert names == set(re.findall(r"\{(\w+)\}", path))
    for status, answer in result["responses"].items():
        if int(status) < 300:
            assert ("content" in answer) == (int(status) != 204 and result["operationId"] not in EMPTY), status
        else:
            assert set(answer["content"]) <= {"application/json", "application/problem+json"}
    assert ("requestBody" in result) <= (method in ("post", "put", "patch"))


EMPTY = {"helm_registry_login", "helm_repo_add", "helm_repo_update", "helm_repo_update_all", "helm_push"}
"""Their success has no body."""


def test_operation_ids_are_unique() -> None:
    names = [result["operationId"] for _, _, result in EVERY]
    assert len(set(names)) == len(names)


def test_tools_and_operations_have_the_same_names() -> None:
    names = {result["operationId"] for _, _, result in EVERY}
    assert {one.tool for one in OPERATIONS if one.tool} <= names
    assert {"process_list", "gate_verdict", "project_list", "run_list", "run_detail", "flaky_tests"} <= names


def test_all_components_are_defined_and_used() -> None:
    found = {ref.rpartition("/")[2] for ref in references(DOCUMENT)}
    assert found == set(DOCUMENT["components"]["schemas"])


def test_the_schema_of_charts_has_the_specified_name(server: Server) -> None:
    assert "ProblemDetail" in server.get("/charts/v3/api-docs").json["components"]["schemas"]
    assert "PageProcessEventEntry" in server.get("/supervision/v3/api-docs").json["components"]["schemas"]


def test_read_operations_of_a_cluster_are_omitted_without_one() -> None:
    there, gone = ({result["operationId"] for _, _, result in operations(document_for(has))} for has in (True, False))
    reads = {one.identifier for one in OPERATIONS if one.needs == "cluster" and not one.mutating}
    assert there - gone == reads
    assert gone < there


def test_a_replaced_group_is_omitted() -> None:
    each = app.served(Config(), {"hub": []})
    assert not [one for one in each[1].routes if one[0].startswith("/hub")]


def test_charts_have_the_configured_base_path() -> None:
    paths = document_for(svc=SvcSettings(rest=RestSettings(base_path="/helm/v2")))["paths"]
    assert "/helm/v2/repos" in paths
    assert "/api/v1/repos" not in paths
    assert "/api/v1/processes" in paths


def test_one_path_can_be_a_page_and_a_stream() -> None:
    result = DOCUMENT["paths"]["/api/v1/events"]["get"]
    assert set(result["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    assert {one["name"] for one in result["parameters"]} >= {"page", "size", "sortBy", "sortDirection", "Last-Event-ID"}


def test_the_parts_of_uploads_are_described() -> None:
    form = DOCUMENT["paths"]["/api/v1/releases/upload"]["post"]["requestBody"]["content"]["multipart/form-data"]
    assert form["schema"]["required"] == ["chart", "request"]
    assert form["schema"]["properties"]["request"]["required"] == ["releaseName"]
    assert form["encoding"] == {
        "request": {"contentType": "application/json"}, "chart": {"contentType": "application/gzip"},
    }  # fmt: skip
    either = DOCUMENT["paths"]["/api/v1/repos"]["post"]["requestBody"]["content"]
    assert either["application/json"]["schema"]["required"] == ["name", "url"]
    assert either["multipart/form-data"]["schema"]["required"] == ["request"]
    assert either["multipart/form-data"]["encoding"]["ca"] == {"contentType": "application/x-pem-file"}
    body = DOCUMENT["paths"]["/api/v1/ingest"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert body["required"] == ["project"]  # performance reports may come alone
    for name in ("junit", "jacoco"):
        assert body["properties"][name]["type"] == "array"
        assert body["properties"][name]["items"] == {"type": "string", "format": "binary"}


def test_null_and_missing_are_distinguished() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    status = schemas["ProcessStatusInfo"]
    assert status["properties"]["pid"] == {"type": ["integer", "null"], "format": "int64"}
    assert status["properties"]["exitCode"] == {"type": ["integer", "null"], "format": "int32"}
    assert "exitCode" in status["required"]
    message = schemas["ResponseMessage"]
    assert "required" not in message
    assert message["properties"] == {"message": {"type": "string"}, "error": {"type": "string"}}


def test_a_type_without_a_schema_is_an_error() -> None:
    with pytest.raises(TypeError, match="has no schema"):
        Components().of(object)


OPEN = {"token", "trackerToken", "session"}


def security_schemes(gate: permissions.Permission, **sections: Any) -> set[str]:
    """The accepted security schemes; `-` if none is required."""
    return {next(iter(one), "-") for one in security(gate, Config(**sections))}


def test_credentials_are_described_by_the_permissions() -> None:
    closed = {"tracker": TrackerSettings(security=TrackerSecurity(open_mode=False))}
    token = {"tracker": TrackerSettings(security=TrackerSecurity(require_ingest_token=True))}
    beyond = {"server": Address(address=("0.0.0.0",))}
    off = {"svc": SvcSettings(rest=RestSettings(access_interceptor=AccessInterceptorSettings(enabled=False)))}
    assert security_schemes(permissions.READ) == {"-", *OPEN}
    assert security_schemes(permissions.READ, **closed) == OPEN
    assert security_schemes(permissions.PUBLIC, **closed) == {"-", *OPEN}
    assert security_schemes(permissions.SIGNED_IN) == OPEN
    assert security_schemes(permissions.POST_REPORTS) == {"-", *OPEN}
    assert security_schemes(permissions.POST_REPORTS, **token) == {"token", "trackerToken"}
    assert security_schemes(permissions.READ_CHARTS, **closed) == {*OPEN, "chartKey"}
    assert security_schemes(permissions.CHANGE_CHARTS) == {"chartKey"}
    assert security_schemes(permissions.CHANGE_CHARTS, **off) == {"-", *OPEN}
    assert security_schemes(permissions.CHANGE_CHARTS, **off, **beyond) == OPEN
    assert security_schemes(permissions.CONTROL_PROCESSES) == {"-", *OPEN}
    assert security_schemes(permissions.CONTROL_PROCESSES, **beyond) == OPEN
    assert security_schemes(permissions.READ_LOGS, **beyond) == OPEN
    assert security_schemes(permissions.READ_SERVER_LOG) == {"-", *OPEN}
    assert security_schemes(permissions.READ_SERVER_LOG, **beyond) == OPEN


def test_the_document_requires_an_account_in_closed_mode(tmp_path: Path) -> None:
    with running_server(tmp_path, tracker={"security": {"open-mode": False}}) as one:
        for path in ("/v3/api-docs", "/charts/v3/api-docs.yaml"):
            assert one.get(path).status == 401


def test_the_document_has_no_secret_of_the_configuration() -> None:
    from models.config.settings import ChartSecurity

    assert "sesame" not in json.dumps(
        document_for(svc=SvcSettings(security=ChartSecurity(mode="FULL", api_key="open sesame")))
    )
