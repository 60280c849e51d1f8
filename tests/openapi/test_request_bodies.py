"""Operations that take JSON or multipart: the document accepts the bodies that the server accepts, of both kinds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import chart_servers
import jsonschema  # type: ignore[import-untyped]
import pytest
from attrs import frozen
from chart_servers import FULL, KEY, WebServer
from conftest import ROOT, Server
from http_checks import running_server
from small_charts import multipart

JSON, FORM = "application/json", "multipart/form-data"


@frozen
class Lab:
    """A server, and a web server with a repository and a registry."""

    server: Server
    web: WebServer
    document: Mapping[str, Any]

    def fields(self, path: str) -> dict[str, str]:
        """The required fields of the operation."""
        if path == "/repos":
            return {"name": "demo", "url": self.web.url}
        return {"host": self.web.host_port, "username": "me", "password": "secret"}

    def content(self, path: str) -> Mapping[str, Any]:
        return dict(self.document["paths"][f"/api/v1{path}"]["post"]["requestBody"]["content"])

    def is_valid(self, path: str, kind: str, value: Any) -> bool:
        """Whether a body is valid by the document; one of multipart is an object of its parts."""
        schema = self.content(path)[kind]["schema"]
        return bool(
            jsonschema.Draft202012Validator({**schema, "components": self.document["components"]}).is_valid(value)
        )

    def post(self, path: str, kind: str, value: Any) -> int:
        if kind == JSON:
            return chart_servers.post_json(self.server, path, value).status
        body, headers = multipart(**value)
        return self.server.ask("POST", f"/api/v1{path}", body, {"X-API-Key": KEY, **headers}).status


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with chart_servers.web_server() as web:
        web.serve(("demo", "1.0.0", chart_servers.chart_archive("demo", "1.0.0")))
        web.pages["/v2/"] = b"{}"
        svc = {"security": FULL | {"allowed-hosts": [web.host_port]}}
        with running_server(tmp_path_factory.mktemp("bodies"), svc=svc) as server:
            yield Lab(server, web, server.get("/v3/api-docs").json)


@pytest.mark.parametrize("path", ["/repos", "/registries"])
def test_the_document_accepts_the_bodies_of_both_kinds_that_the_server_accepts(lab: Lab, path: str) -> None:
    fields = lab.fields(path)
    assert set(lab.content(path)) == {JSON, FORM}
    no_files = {"ca": "", "certificate": "", "key": ""}
    for kind, body in ((JSON, fields), (FORM, {"request": fields}), (FORM, {"request": fields, **no_files})):
        assert lab.is_valid(path, kind, body), (kind, body)
        assert lab.post(path, kind, body) == 201, (kind, body)
    for name in fields:
        rest = {each: value for each, value in fields.items() if each != name}
        for kind, body in ((JSON, rest), (FORM, {"request": rest})):
            assert not lab.is_valid(path, kind, body), (kind, body)
            assert lab.post(path, kind, body) == 400, (kind, body)
    for kind, body in ((JSON, {"request": fields}), (FORM, no_files)):
        assert not lab.is_valid(path, kind, body), (kind, body)
        assert lab.post(path, kind, body) == 400, (kind, body)


@pytest.mark.parametrize("path", ["/repos", "/registries"])
def test_the_table_of_the_documentation_has_the_fields_of_each_kind(lab: Lab, path: str) -> None:
    (row,) = [
        line
        for line in (ROOT / "docs" / "api.md").read_text().splitlines()
        if line.startswith(f"| `POST /api/v1{path}` ")
    ]
    as_json, parts = row.split("|")[4].split("; multipart: ")
    content = lab.content(path)
    for kind, text in ((JSON, as_json), (FORM, parts)):
        schema = content[kind]["schema"]
        names = [each.strip(" *`") for each in text.split(",")]
        assert names == list(schema["properties"])
        assert [name for name in names if f"**`{name}`**" in text] == schema["required"]
    assert json.dumps(content[FORM]["schema"]["properties"]["request"]) == json.dumps(content[JSON]["schema"])
