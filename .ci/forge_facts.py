"""Writes tests/tracker/forge_facts.json: the facts of a forge's own description of its API that the tests compare with.

    python .ci/forge_facts.py NAME VERSION FILE

NAME is github, gitlab or forgejo; FILE is the description that the service publishes, as JSON or YAML:

- github: `generated/api.github.com.json` of the npm package `@octokit/openapi`, whose version is VERSION;
- gitlab: `doc/api/openapi/openapi_v2.yaml` of its repository, VERSION is the commit;
- forgejo: `templates/swagger/v1_json.tmpl` of Gitea, VERSION is its release.

Keeps names, places, types and status codes of the operations below, without texts. The operations of reports are those
of GitHub; tests/tracker/report_double.py has cut-outs of the others.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).resolve().parent.parent / "tests" / "tracker" / "forge_facts.json"
OPERATIONS = {
    "github": ("GET", "/repos/{owner}/{repo}/contents/{path}"),
    "gitlab": ("GET", "/api/v4/projects/{id}/repository/files/{file_path}/raw"),
    "forgejo": ("GET", "/repos/{owner}/{repo}/raw/{filepath}"),
}
REPORTS = {
    "github": [
        ("POST", "/repos/{owner}/{repo}/statuses/{sha}"),
        ("GET", "/repos/{owner}/{repo}/issues/{issue_number}/comments"),
        ("POST", "/repos/{owner}/{repo}/issues/{issue_number}/comments"),
        ("PATCH", "/repos/{owner}/{repo}/issues/comments/{comment_id}"),
        ("GET", "/repos/{owner}/{repo}/commits/{commit_sha}/pulls"),
        ("GET", "/user"),
        ("POST", "/repos/{owner}/{repo}/check-runs"),
        ("PATCH", "/repos/{owner}/{repo}/check-runs/{check_run_id}"),
        ("GET", "/repos/{owner}/{repo}/installation"),
        ("POST", "/app/installations/{installation_id}/access_tokens"),
    ],
}
_MEDIA_TYPE = re.compile(r"application/vnd\.[a-z0-9.+-]+")
_MAX_DEPTH = 3
Json = Mapping[str, Any]


def facts(document: Json, name: str) -> Json:
    """The facts of the operation of a forge: its parameters, media types and responses."""
    method, path = OPERATIONS[name]
    operation = document["paths"][path][method.lower()]
    bodies = {status: _resolved(document, response) for status, response in operation["responses"].items()}
    named = _MEDIA_TYPE.findall(str(operation.get("description", "")))
    listed = [kind for body in bodies.values() for kind in body.get("content", {})] + operation.get("produces", [])
    return {
        "method": method,
        "path": document.get("basePath", "").rpartition("}")[2] + path,
        "parameters": [_parameter(_resolved(document, parameter)) for parameter in operation["parameters"]],
        "mediaTypes": sorted({*named, *listed}),
        "responses": {status: _schema_of(document, body) for status, body in bodies.items()},
        "tokens": sorted({(item["in"], item["name"]) for item in _tokens(document)}),
    }


def report_facts(document: Json, method: str, path: str) -> Json:
    """The facts of a request of a report: its parameters, the body that it must have, and the status codes."""
    operation = document["paths"][path][method.lower()]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    return {
        "method": method,
        "path": path,
        "parameters": [_parameter(_resolved(document, one)) for one in operation.get("parameters", [])],
        "body": body and _body(document, body),
        "statuses": sorted(operation["responses"]),
    }


def _body(document: Json, schema: Any) -> Json:
    """The names, types, choices and bounds of a body, which has no others."""
    schema = _resolved(document, schema)
    kept: dict[str, Any] = {**_schema(document, schema, 0)}
    kept |= {name: schema[name] for name in ("enum", "maxItems", "maxLength") if name in schema}
    if "items" in schema:
        kept["items"] = _body(document, schema["items"])
    if "properties" in schema:
        kept["properties"] = {name: _body(document, part) for name, part in schema["properties"].items()}
        kept |= {"required": sorted(schema.get("required", [])), "additionalProperties": False}
    return kept | {name: schema[name] for name in ("oneOf", "anyOf") if name in schema}


def _tokens(document: Json) -> list[Json]:
    """Headers and parameters that may have a token."""
    return [item for item in document.get("securityDefinitions", {}).values() if item["type"] == "apiKey"]


def _resolved(document: Json, value: Any) -> Any:
    while isinstance(value, dict) and "$ref" in value:
        place, found = value["$ref"].removeprefix("#/").split("/"), document
        for key in place:
            found = found[key]
        value = found
    return value


def _parameter(parameter: Json) -> Json:
    kind = parameter.get("type") or parameter["schema"]["type"]
    return {name: parameter.get(name, False) for name in ("name", "in", "required")} | {"type": kind}


def _schema_of(document: Json, response: Json) -> Json | None:
    content = response.get("content", {}).get("application/json", response)
    return _schema(document, content["schema"], _MAX_DEPTH) if "schema" in content else None


def _schema(document: Json, schema: Any, depth: int) -> Json:
    """Types and names of a schema, as JSON Schema."""
    schema = _resolved(document, schema)
    kept: dict[str, Any] = {}
    if kind := schema.get("type"):
        kept["type"] = [kind, "null"] if schema.get("nullable") else kind
    if depth:
        for name in ("oneOf", "anyOf", "allOf"):
            if name in schema:
                kept[name] = [_schema(document, part, depth) for part in schema[name]]
        if "items" in schema:
            kept["items"] = _schema(document, schema["items"], depth - 1)
        if "properties" in schema:
            kept["required"] = sorted(schema.get("required", []))
            properties = schema["properties"].items()
            kept["properties"] = {name: _schema(document, part, depth - 1) for name, part in properties}
    return kept


def main(name: str, version: str, file: str) -> None:
    document = yaml.safe_load(Path(file).read_text()) if file.endswith(".yaml") else json.loads(Path(file).read_text())
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    known[name] = {"version": version, **facts(document, name)}
    if name in REPORTS:
        known[name]["reports"] = [report_facts(document, *operation) for operation in REPORTS[name]]
    FILE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
