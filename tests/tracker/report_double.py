"""The doubles of three forges that take reports. Each request is compared with the description of the forge's API.

That of GitHub is in forge_facts.json (`.ci/forge_facts.py`); those of GitLab and Gitea are cut-outs of their
`openapi_v2.yaml` (`postApiV4ProjectsIdStatusesSha` and others) and `v1_json.tmpl` (`repoCreateStatus` and others).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import jsonschema  # type: ignore[import-untyped]
import jwt
from chart_servers import Reply, WebServer
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from forge_double import FACTS, TOKEN

from models.config.settings import ForgeSettings

PREFIXES = {"github": "/api/v3", "gitlab": "/lab/api/v4", "forgejo": "/api/v1"}
OWN_ID = 77
"""The user that the token belongs to."""
JSON = {"Content-Type": "application/json"}
REPOSITORIES = {
    "github": "http://localhost:{port}/shop/cart",
    "gitlab": "http://127.0.0.1:{port}/lab/group/sub/cart",
    "forgejo": "http://127.0.0.1:{port}/shop/cart",
}


def _body(required: Sequence[str], **properties: Any) -> Mapping[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _operation(method: str, path: str, body: Mapping[str, Any] | None = None, *query: str) -> Mapping[str, Any]:
    numbers = [{"name": name, "in": "path", "type": "integer"} for name in ("iid", "note_id", "index", "comment")]
    parameters = [*numbers, *({"name": name, "in": "query", "type": "string"} for name in query)]
    return {"method": method, "path": path, "parameters": parameters, "body": body}


_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}
_NOTE = _body(["body"], body=_TEXT)
_NOTES = "/projects/{id}/merge_requests/{iid}/notes"
_ISSUE = "/repos/{owner}/{repo}/issues"
OPERATIONS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "github": FACTS["github"]["reports"],
    "gitlab": [
        {
            "method": "POST", "path": "/projects/{id}/statuses/{sha}", "parameters": [],
            "body": _body(
                ["state"],
                state={"enum": ["pending", "running", "success", "failed", "canceled", "skipped"]}, ref=_TEXT,
                target_url=_TEXT, description=_TEXT, name=_TEXT, context=_TEXT, coverage={"type": "number"},
                pipeline_id=_NUMBER,
            ),
        },
        _operation("GET", "/user"),
        _operation("GET", _NOTES, None, "per_page", "page", "order_by", "sort"),
        _operation("POST", _NOTES, _NOTE),
        _operation("PUT", f"{_NOTES}/{{note_id}}", _NOTE),
        _operation("GET", "/projects/{id}/repository/commits/{sha}/merge_requests"),
    ],
    "forgejo": [
        {
            "method": "POST", "path": "/repos/{owner}/{repo}/statuses/{sha}", "parameters": [],
            "body": _body(
                [], state={"enum": ["pending", "success", "error", "failure", "warning", "skipped"]}, target_url=_TEXT,
                description=_TEXT, context=_TEXT,
            ),
        },
        _operation("GET", "/user"),
        _operation("GET", f"{_ISSUE}/{{index}}/comments", None, "since", "before"),
        _operation("POST", f"{_ISSUE}/{{index}}/comments", _NOTE),
        _operation("PATCH", f"{_ISSUE}/comments/{{comment}}", _NOTE),
        _operation("GET", "/repos/{owner}/{repo}/pulls", None, "state", "sort", "page", "limit"),
    ],
}  # fmt: skip


def forges(web: WebServer) -> dict[str, Any]:
    """The section `tracker.forges` for the doubles."""
    return {
        "hub": {"type": "github", "url": f"http://localhost:{web.port}", "api-url": f"{web.url}/api/v3",
                "token": TOKEN},
        "lab": {"type": "gitlab", "url": f"{web.url}/lab", "token": TOKEN},
        "tea": {"type": "forgejo", "url": web.url, "token": TOKEN},
    }  # fmt: skip


def forge_settings(web: WebServer) -> dict[str, ForgeSettings]:
    """As `forges`, read."""
    return {
        name: ForgeSettings(section["type"], section["url"], section.get("api-url"), section["token"])
        for name, section in forges(web).items()
    }


class ReportDouble:
    """Keeps the statuses that it gets. `answers` replace the next answers; None is the usual one."""

    def __init__(self, web: WebServer) -> None:
        self.web = web
        self.statuses: list[tuple[str, str, dict[str, Any]]] = []
        """The kind of forge, the commit and the body of each."""
        self.answers: list[Reply | None] = []
        self.comments: list[dict[str, Any]] = []
        """All comments, with the kind of forge and the number of their pull request."""
        self.pulls: list[dict[str, Any]] = []
        """What a forge lists as pull requests."""
        self.writes: list[tuple[str, str, str]] = []
        """Each request that made or changed a comment: the kind of forge, the method and the text."""
        self.checks: list[dict[str, Any]] = []
        """The check runs of the App, as GitHub has them: an update adds its annotations."""
        self.app: App | None = None
        self.is_anonymous = False
        """Whether the token is nobody's."""
        self.tokens = {TOKEN}
        self.differences: list[str] = []
        web.seen.clear()
        web.bodies.clear()
        web.pages = EveryPage(self.reply)

    def contexts(self, kind: str = "github") -> list[tuple[str, str]]:
        """The context and state of each status that a forge got."""
        name = "name" if kind == "gitlab" else "context"
        return [(body[name], body["state"]) for forge, _, body in self.statuses if forge == kind]

    def reply(self, handler: Any) -> Reply:
        path, headers = handler.path, {name.lower(): value for name, value in handler.headers.items()}
        kind = next((kind for kind, prefix in PREFIXES.items() if path.startswith(prefix)), None)
        body = handler.body
        if kind is None:
            self.differences.append(f"{path} is not of the API of a forge")
            return 404, JSON, b"{}"
        self.differences += differing(kind, handler.command, path.removeprefix(PREFIXES[kind]), body)
        if (answer := self.answers.pop(0) if self.answers else None) is not None:
            return answer
        token, place = _token(kind, headers), urlsplit(path).path.removeprefix(PREFIXES[kind])
        if place.endswith(("/installation", "/access_tokens")):
            return self.app.reply(self.tokens, token, place, body) if self.app else (404, JSON, b"{}")
        if token not in self.tokens:
            return 401, JSON, b'{"message":"Bad credentials"}'
        return self._accept(kind, handler.command, path, json.loads(body or b"null"))

    def _accept(self, kind: str, method: str, url: str, body: Any) -> Reply:
        path, query = urlsplit(url).path, dict(parse_qsl(urlsplit(url).query))
        if path.endswith("/user"):
            return (403, JSON, b"{}") if self.is_anonymous else _json(200, {"id": OWN_ID, "login": "bot"})
        if "/check-runs" in path:
            return self._check(method, path, body)
        if "/statuses/" in path:
            self.statuses.append((kind, path.rpartition("/")[2], body))
            return 201, JSON, b"{}"
        if path.endswith(("/pulls", "/merge_requests")):
            return _json(200, self.pulls)
        if method == "GET":
            number = int(path.split("/")[-2])
            found = [one for one in self.comments if (one["kind"], one["number"]) == (kind, number)]
            size, page = int(query.get("per_page", 10_000)), int(query.get("page", 1))
            return _json(200, found[size * (page - 1) : size * page])
        return self._write(kind, method, path, body["body"])

    def _check(self, method: str, path: str, body: dict[str, Any]) -> Reply:
        output = body.pop("output", {})
        annotations = output.pop("annotations", [])
        if method == "POST":
            self.checks.append({"id": 2**40 + len(self.checks), "annotations": []})
        found = next((one for one in self.checks if path.endswith(f"/{one['id']}")), None)
        found = self.checks[-1] if method == "POST" else found
        if found is None:
            return 404, JSON, b'{"message":"Not Found"}'
        found |= {**body, **output, "annotations": [*found["annotations"], *annotations]}
        return _json(201 if method == "POST" else 200, {"id": found["id"]})

    def _write(self, kind: str, method: str, path: str, text: str) -> Reply:
        if method == "POST":
            made = self.add(kind, int(path.split("/")[-2]), text)
            self.writes.append((kind, method, text))
            return _json(201, made)
        found = next((one for one in self.comments if one["id"] == int(path.rpartition("/")[2])), None)
        if found is None:
            return 404, JSON, b'{"message":"Not Found"}'
        found["body"] = text
        self.writes.append((kind, method, text))
        return _json(200, found)

    def add(self, kind: str, number: int, text: str, author: int = OWN_ID) -> dict[str, Any]:
        """A comment on a pull request."""
        writer = "author" if kind == "gitlab" else "user"
        id = 1 + max((one["id"] for one in self.comments), default=100)
        made: dict[str, Any] = {"id": id, "body": text, writer: {"id": author}, "kind": kind, "number": number}
        if self.app is not None and author == OWN_ID:
            made["performed_via_github_app"] = {"id": self.app.id}
        self.comments.append(made)
        return made


class App:
    """A GitHub App that is installed once: it gives tokens for one repository, in return for what its key signs."""

    id = 4711
    installation = 99

    def __init__(self) -> None:
        self.key = rsa.generate_private_key(65537, 2048)
        self.given: list[dict[str, Any]] = []
        """The claims of each request for a token, and the repositories that it is for."""

    def pem(self, is_pkcs8: bool = False) -> str:
        """The private key."""
        form = serialization.PrivateFormat.PKCS8 if is_pkcs8 else serialization.PrivateFormat.TraditionalOpenSSL
        no_password = serialization.NoEncryption()
        return self.key.private_bytes(serialization.Encoding.PEM, form, no_password).decode()

    def reply(self, tokens: set[str], token: str, path: str, body: bytes) -> Reply:
        """The answer to the App itself."""
        try:
            claims = jwt.decode(token, self.key.public_key(), ["RS256"], options={"require": ["exp", "iat", "iss"]})
        except jwt.PyJWTError:
            return 401, JSON, b'{"message":"A JSON web token could not be decoded"}'
        if claims["iss"] != str(self.id) or claims["exp"] - claims["iat"] > 600:
            return 401, JSON, b'{"message":"Integration not found, or exp is too far in the future"}'
        if path.endswith("/installation"):
            return _json(200, {"id": self.installation})
        if path != f"/app/installations/{self.installation}/access_tokens":
            return 404, JSON, b'{"message":"Not Found"}'
        self.given.append({**claims, **json.loads(body)})
        made = f"ghs_{len(self.given)}_of_the_app"
        tokens.add(made)
        end = datetime.now(UTC) + timedelta(hours=1)
        return _json(201, {"token": made, "expires_at": end.strftime("%Y-%m-%dT%H:%M:%SZ")})


def _json(status: int, value: Any) -> Reply:
    return status, JSON, json.dumps(value).encode()


def _token(kind: str, headers: Mapping[str, str]) -> str:
    if kind == "gitlab":
        return headers.get("private-token", "")
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token if scheme == {"github": "Bearer", "forgejo": "token"}[kind] else ""


class EveryPage(dict[str, Any]):
    """Responds to every path with the same page."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self._answer = answer

    def get(self, key: str, default: Any = None) -> Any:
        return self._answer


def differing(kind: str, method: str, url: str, body: bytes) -> Iterator[str]:
    """How a request differs from the description of a forge."""
    parts = urlsplit(url)
    found = next((one for one in OPERATIONS[kind] if one["method"] == method and _fits(one, parts.path)), None)
    if found is None:
        yield f"{kind} has no {method} {parts.path}"
        return
    known = {one["name"] for one in found["parameters"] if one["in"] == "query"}
    if unknown := {name for name, _ in parse_qsl(parts.query, keep_blank_values=True)} - known:
        yield f"the parameters {unknown} are not known"
    if found["body"] is None:
        if body:
            yield f"{method} {parts.path} has no body"
        return
    errors = jsonschema.Draft202012Validator(found["body"]).iter_errors(json.loads(body))
    yield from (f"{kind} {method} {parts.path}: {error.message}" for error in errors)


def _fits(operation: Mapping[str, Any], path: str) -> bool:
    """Whether a path is that of an operation: each parameter is one segment, numbers are digits."""
    numbers = {one["name"] for one in operation["parameters"] if one["type"] == "integer"}
    pattern = re.sub(
        r"\\{(\w+)\\}", lambda match: "[0-9]+" if match[1] in numbers else "[^/]+", re.escape(operation["path"])
    )
    return re.fullmatch(pattern, path) is not None and ".." not in unquote(path)
