"""The API page: generated from the OpenAPI document, readable without JavaScript, with a form for each operation."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser_pages import Browser, axe_findings, get_page, url_of
from conftest import Server
from http_checks import running_server
from openapi_server import document_for
from users import log_in

from handlers.openapi import pages

CLOSED = {"security": {"open-mode": False, "admin-password": "correct horse battery"}}
DOCUMENT = document_for()
OPERATIONS = pages.operations(DOCUMENT)
MAX_NODES = 2500


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("interface"), {"web": {"command": "sleep 1000"}}) as one:
        yield one


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.id)
def test_every_operation_has_its_details(operation: pages.OperationEntry) -> None:
    shown = pages.details(DOCUMENT, operation.id, "http://127.0.0.1:8080/")
    assert shown is not None
    assert shown.operation == operation
    words = shlex.split(shown.curl.replace("\\\n", ""))
    assert words[0] == "curl"
    assert re.fullmatch(r"http://127\.0\.0\.1:8080/[^{}]*", words[-1]), words
    assert {one.where for one in shown.inputs} <= {"path", "query", "header", "form"}
    assert all(f"{{{one.name}}}" in operation.path for one in shown.inputs if one.where == "path")
    assert any(response.status.startswith("2") for response in shown.responses)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": ["string", "null"]}, "string or null"),
        ({"type": "array", "items": {"type": "integer", "format": "int64"}}, "[integer (int64)]"),
        ({"enum": ["a", None]}, '"a" | null'),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string or null"),
        ({"properties": {"a": {"type": "string"}, "b": {}}, "required": ["a"]}, "{\n  a: string\n  b?: object\n}"),
        ({"additionalProperties": {"type": "string"}, "type": "object"}, "{any name: string}"),
        ({"$ref": "#/components/schemas/Tree"}, "Tree {\n  next: Tree\n}"),
    ],
)
def test_a_schema_is_described_in_text(schema: dict[str, object], text: str) -> None:
    tree = {"properties": {"next": {"$ref": "#/components/schemas/Tree"}}, "required": ["next"]}
    assert pages.described(schema, {"Tree": tree}) == text


@pytest.mark.parametrize(
    ("prefix", "shown", "other"),
    [
        ("", "/api/v1/processes/info/{name}", None),
        ("/charts", "/api/v1/repos/{name}/charts", "/api/v1/gate"),
        ("/tracker", "/api/v1/gate", "/api/v1/repos"),
        ("/supervision", "/api/v1/events/count", "/api/v1/gate"),
    ],
)
def test_the_api_page_lists_the_operations_of_its_prefix(
    server: Server, prefix: str, shown: str, other: str | None
) -> None:
    found = get_page(server, f"{prefix}/swagger-ui.html")
    assert shown in found.words
    assert other is None or other not in found.words.split()
    assert len(found.tags) < MAX_NODES


def test_the_api_page_is_searched_and_shows_one_operation_without_script(server: Server) -> None:
    assert "/api/v1/gate" not in get_page(server, "/swagger-ui.html?q=GET+info").words
    found = get_page(server, "/swagger-ui.html?operation=process_info&q=info").words
    assert "ProcessStatusInfo {" in found
    assert "one of" not in found
    assert get_page(server, "/swagger-ui.html?operation=nothing", 404)


@pytest.mark.needs("curl")
def test_the_example_command_works(server: Server) -> None:
    text = server.get("/supervision/swagger-ui.html?operation=process_list").text
    command = re.search(r'<pre id="curl"[^>]*>(.*?)</pre>', text, re.DOTALL)
    assert command
    shown = command[1].replace("&#x27;", "'").replace("&quot;", '"').replace("\\\n", "")
    done = subprocess.run([*shlex.split(shown), "--noproxy", "*", "-fsS"], capture_output=True, text=True, check=True)
    assert '"web"' in done.stdout


def test_an_operation_can_be_sent(chromium: Browser, server: Server) -> None:
    with chromium.page(url_of(server)) as tab:
        tab.goto("/supervision/swagger-ui.html")
        tab.get_by_label("Path, name or summary contains").fill("processes/info")
        tab.wait_for_url("**q=processes%2Finfo*")
        tab.get_by_role("link", name="/api/v1/processes/info/{name}").click()
        tab.wait_for_load_state()  # its script, which sends the form, has run
        tab.locator("#try").get_by_label("name (required)").fill("web")
        tab.get_by_role("button", name="Send GET").click()
        tab.locator("#answer-status", has_text="200").wait_for()
        tab.locator("#answer-body", has_text='"not_started"').wait_for()
        assert "/supervision/api/v1/processes/info/web" in tab.locator("#answer-about").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_api_page_is_accessible(chromium: Browser, server: Server, scheme: str) -> None:
    with chromium.page(url_of(server), color_scheme=scheme) as tab:
        tab.goto("/swagger-ui.html?operation=ingest")
        assert axe_findings(tab) == []


def test_the_api_page_requires_an_account_in_closed_mode(chromium: Browser, tmp_path: Path) -> None:
    with running_server(tmp_path, tracker=CLOSED) as server:
        refused = server.get("/swagger-ui.html")
        assert (refused.status, refused.headers["Location"]) == (302, "/login?next=%2Fswagger-ui.html")
        assert server.get("/v3/api-docs").status == 401
        cookie = {"name": f"pilothouse_{server.port}", "value": log_in(server), "url": url_of(server)}
        with chromium.page(url_of(server)) as tab:
            tab.context.add_cookies([cookie])
            tab.goto("/swagger-ui.html")
            tab.get_by_role("link", name="/api/v1/processes/info/{name}").wait_for()
