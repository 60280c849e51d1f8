"""The doubles of three forges, which serve one file. Requests and responses are compared with the forges' descriptions.

The facts of these descriptions (OpenAPI) are in forge_facts.json; `.ci/forge_facts.py` writes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import jsonschema  # type: ignore[import-untyped]
from chart_servers import Reply, WebServer

FACTS: Mapping[str, Any] = json.loads((Path(__file__).parent / "forge_facts.json").read_text())
SHA = "9fceb02d0ae598e95dc970b74767f19372d61af8"
PATH = "src/main/com/x/a b.py"
CODE = "def a():\n    return '<b>markup</b>'\n"
TOKEN = "tok-of-the-forge"
OWN = "tok-of-the-project"
PREFIXES = {"github": "/api/v3", "gitlab": "/lab", "forgejo": ""}
"""The prefix of the paths of a description."""
RAW = "application/vnd.github.raw+json"


class Double:
    """The endpoints for one file of three forges. `answer` replaces the file."""

    def __init__(self, web: WebServer) -> None:
        self.web = web
        self.answer: Reply | None = None
        self.tokens = {TOKEN, OWN}
        self.differences: list[str] = []
        """From the descriptions of the forges."""
        web.pages = _Pages(self.reply)

    def reply(self, handler: Any) -> Reply:
        path, headers = handler.path, handler.headers
        kind = next(kind for kind, prefix in PREFIXES.items() if path.startswith(prefix))
        reply = self._reply(kind, urlsplit(path).path, dict(parse_qsl(urlsplit(path).query)), headers)
        self.differences += differing_request(kind, handler.command, path.removeprefix(PREFIXES[kind]), headers)
        if reply != self.answer:
            self.differences += differing_response(kind, reply)
        return reply

    def _reply(self, kind: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> Reply:
        places = {
            "github": f"/api/v3/repos/shop/cart/contents/{quote(PATH)}",
            "gitlab": f"/lab/api/v4/projects/group%2Fsub%2Fcart/repository/files/{quote(PATH, safe='')}/raw",
            "forgejo": f"/api/v1/repos/shop/cart/raw/{quote(PATH)}",
        }
        tokens = {
            "github": headers.get("Authorization", "").removeprefix("Bearer "),
            "gitlab": headers.get("PRIVATE-TOKEN", ""),
            "forgejo": headers.get("Authorization", "").removeprefix("token "),
        }
        if tokens[kind] not in self.tokens:
            return 401, {"Content-Type": "application/json"}, b'{"message":"Bad credentials"}'
        if path != places[kind] or query != {"ref": SHA}:
            return 404, {"Content-Type": "application/json"}, b'{"message":"Not Found"}'
        media_type = headers.get("Accept", "") if kind == "github" else "text/plain; charset=utf-8"
        return self.answer or (200, {"Content-Type": media_type}, CODE.encode())


class _Pages(dict[str, Any]):
    """Responds to every path with the same page."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self._answer = answer

    def get(self, key: str, default: Any = None) -> Any:
        return self._answer


def differing_request(kind: str, method: str, url: str, headers: Mapping[str, str]) -> Iterator[str]:
    """How a request differs from the description of a forge."""
    facts, parts = FACTS[kind], urlsplit(url)
    values = _path_values(facts["path"], parts.path)
    if method != facts["method"] or values is None:
        yield f"{method} {parts.path} is not {facts['method']} {facts['path']}"
        return
    query = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    for parameter in facts["parameters"]:
        given = values if parameter["in"] == "path" else query
        if parameter["required"] and not unquote(given.get(parameter["name"], "")):
            yield f"{parameter['name']} is required"
    if unknown := set(query) - {item["name"] for item in facts["parameters"] if item["in"] == "query"}:
        yield f"the parameters {unknown} are not known"
    accepted = headers.get("Accept")
    if accepted is not None and accepted not in facts["mediaTypes"]:
        yield f"{accepted} is not one of {facts['mediaTypes']}"
    for name in ("Authorization", "PRIVATE-TOKEN"):
        if facts["tokens"] and name in headers and ["header", name] not in facts["tokens"]:
            yield f"{name} is not one of {facts['tokens']}"


def _path_values(template: str, path: str) -> Mapping[str, str] | None:
    """The values of a path's parameters: of one segment each, but for one at the end."""
    pattern = re.sub(r"\\{(\w+)\\}$", r"(?P<\1>.+)", re.escape(template))
    match = re.fullmatch(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", pattern), path)
    return match and match.groupdict()


def differing_response(kind: str, reply: Reply) -> Iterator[str]:
    """How a response differs from the description, which may leave errors out."""
    status, headers, body = reply
    responses = FACTS[kind]["responses"]
    if str(status) not in responses:
        if status < 400:
            yield f"the status {status} is not one of {sorted(responses)}"
        return
    media_type, schema = headers["Content-Type"].partition(";")[0], responses[str(status)]
    if status == 200 and kind == "github" and media_type not in FACTS[kind]["mediaTypes"]:
        yield f"{media_type} is not one of {FACTS[kind]['mediaTypes']}"
    if schema and schema.get("type") != "file" and media_type == "application/json":
        yield from (error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(json.loads(body)))


def example(schema: Mapping[str, Any]) -> Any:
    """A value of a schema of forge_facts.json."""
    kind = schema.get("type")
    if kind == "object":
        return {name: example(part) for name, part in schema.get("properties", {}).items()}
    if kind == "array":
        return [example(schema["items"])]
    return {"string": "x", "integer": 1}.get(str(kind))
