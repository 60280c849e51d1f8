"""The OpenAPI document as JSON, as YAML and as a page, of the application or of one service by prefix.

It is written in a worker, and requests at the same time share it: as YAML it takes a third of a second.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import yaml
from attrs import frozen

from handlers.base import Base, HtmlPage, write_long_page
from handlers.http import serializers
from handlers.http.permissions import READ
from handlers.openapi.document import InterfaceDocument
from handlers.routing import Route, Service
from handlers.server.system import common_routes
from handlers.tracker.pages import badges
from models.errors import NotFound
from supervisor.single_flight import SingleFlight

Json = Mapping[str, Any]

_MAX_DEPTH = 5
_METHOD_KINDS = {"get": "busy", "post": "good", "put": "warn", "patch": "warn", "delete": "bad"}
_EXAMPLES = {"string": "text", "integer": 1, "number": 1.5, "boolean": True, "null": None}
_FORM = "multipart/form-data"


@frozen
class OperationEntry:
    """One operation in the list. `kind` is the kind of state that its method is coloured by."""

    id: str
    method: str
    path: str
    summary: str
    group: str

    @property
    def kind(self) -> str:
        return _METHOD_KINDS.get(self.method.lower(), "")


@frozen
class InputEntry:
    """A parameter or a field of the body. `control` is the kind of its form control."""

    name: str
    where: str
    type: str
    about: str
    is_required: bool
    choices: Sequence[str] = ()
    default: str = ""
    example: str = ""

    @property
    def control(self) -> str:
        if self.choices or self.type == "boolean":
            return "choice"
        return "file" if self.type == "file" else "text"


@frozen
class ResponseEntry:
    status: str
    about: str
    media_types: Sequence[str]
    schema: str


@frozen
class Details:
    """One operation with everything that a caller needs to call it."""

    operation: OperationEntry
    inputs: Sequence[InputEntry]
    media_type: str
    """The media type of the body, or empty."""
    body: str
    """An example of a JSON body."""
    schema: str
    """The schema of the body."""
    responses: Sequence[ResponseEntry]
    needs: Sequence[str]
    """The names of the credentials that are accepted, or nothing where none is needed."""
    curl: str


def operations(document: Json) -> list[OperationEntry]:
    """All operations of a document, in its order."""
    return [
        OperationEntry(about["operationId"], method.upper(), path, about["summary"], about["tags"][0])
        for path, methods in document["paths"].items()
        for method, about in methods.items()
    ]


def grouped(document: Json, text: str) -> list[tuple[str, str, list[OperationEntry]]]:
    """The operations whose path, name or summary contains each word of the text: name, description and operations."""
    words = text.lower().split()
    matches = [
        one
        for one in operations(document)
        if all(word in f"{one.method} {one.path} {one.id} {one.summary}".lower() for word in words)
    ]
    groups = [
        (tag["name"], tag["description"], [one for one in matches if one.group == tag["name"]])
        for tag in document["tags"]
    ]
    return [group for group in groups if group[2]]


def details(document: Json, id: str, origin: str) -> Details | None:
    """One operation by its name; `None` for an unknown one. `origin` is the address of the API."""
    found = next((one for one in operations(document) if one.id == id), None)
    if found is None:
        return None
    about, schemas = document["paths"][found.path][found.method.lower()], document["components"]["schemas"]
    request: Json = about.get("requestBody", {}).get("content", {"": {}})
    media_type, content = next(iter(request.items()))
    schema: Json = content.get("schema", {})
    inputs = [_parameter(one) for one in about["parameters"]]
    if media_type == _FORM:
        inputs += _form_fields(schema, schemas)
    body = (
        json.dumps(_example(schema, schemas), indent=2, ensure_ascii=False) if media_type == "application/json" else ""
    )
    needs = [] if {} in about["security"] else sorted({name for one in about["security"] for name in one})
    return Details(
        found,
        inputs,
        media_type,
        body,
        described(schema, schemas) if media_type else "",
        list(_responses(about["responses"], schemas)),
        needs,
        _curl(found, inputs, media_type, body, needs, document, origin),
    )


def _parameter(one: Json) -> InputEntry:
    return _input(one["name"], one["in"], one["schema"], one.get("description", ""), one["required"])


def _input(name: str, where: str, schema: Json, about: str, is_required: bool) -> InputEntry:
    example = next(iter(schema.get("examples", ())), "")
    choices = [str(choice) for choice in schema.get("enum", ()) if choice is not None]
    default = schema.get("default")
    shown = "" if default is None else json.dumps(default) if not isinstance(default, str) else default
    return InputEntry(name, where, _type(schema), about, is_required, choices, shown, str(example))


def _type(schema: Json) -> str:
    if schema.get("format") == "binary":
        return "file"
    kind = schema.get("type", "object")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _form_fields(schema: Json, schemas: Json) -> Iterator[InputEntry]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        if field.get("type") == "object" or "$ref" in field:
            example = json.dumps(_example(field, schemas))
            yield InputEntry(name, "form", "JSON", field.get("description", ""), name in required, example=example)
        else:
            items = field.get("items", {})
            shown = items if items.get("format") == "binary" else field
            yield _input(name, "form", shown, field.get("description", ""), name in required)


def _responses(responses: Json, schemas: Json) -> Iterator[ResponseEntry]:
    for status, about in responses.items():
        content = about.get("content", {})
        schema = next((one["schema"] for one in content.values() if "schema" in one), None)
        is_good = status.startswith("2")
        yield ResponseEntry(
            status, about["description"], list(content), described(schema, schemas) if schema and is_good else ""
        )


def described(schema: Json, schemas: Json, depth: int = 0, seen: frozenset[str] = frozenset()) -> str:
    """A schema as text: names with their types, `?` after the names of fields that may be absent."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name in seen or depth > _MAX_DEPTH:
            return str(name)
        return f"{name} {described(schemas[name], schemas, depth, seen | {name})}"
    if "allOf" in schema:
        return " and ".join(described(part, schemas, depth, seen) for part in schema["allOf"])
    if "anyOf" in schema:
        return " or ".join(described(part, schemas, depth, seen) for part in schema["anyOf"])
    if schema.get("type") == "array":
        return f"[{described(schema.get('items', {}), schemas, depth, seen)}]"
    if "properties" in schema:
        return _object(schema, schemas, depth, seen)
    if isinstance(schema.get("additionalProperties"), Mapping):
        return f"{{any name: {described(schema['additionalProperties'], schemas, depth, seen)}}}"
    if "enum" in schema:
        return " | ".join(json.dumps(choice) for choice in schema["enum"])
    form = schema.get("format")
    return _type(schema) + (f" ({form})" if form and form != "binary" else "")


def _object(schema: Json, schemas: Json, depth: int, seen: frozenset[str]) -> str:
    indent, required = "  " * (depth + 1), schema.get("required", ())
    lines = [
        f"{indent}{name}{'' if name in required else '?'}: {described(field, schemas, depth + 1, seen)}"
        for name, field in schema["properties"].items()
    ]
    return "{\n" + "\n".join(lines) + "\n" + "  " * depth + "}"


def _example(schema: Json, schemas: Json, depth: int = 0) -> Any:
    """A value that a schema accepts, with the required fields of objects; all fields where none is required."""
    if "$ref" in schema:
        return _example(schemas[schema["$ref"].rpartition("/")[2]], schemas, depth + 1) if depth < _MAX_DEPTH else {}
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    if "default" in schema:
        return schema["default"]
    if "anyOf" in schema or "allOf" in schema:
        return _example((schema.get("anyOf") or schema["allOf"])[0], schemas, depth)
    if "properties" in schema:
        names: Iterable[str] = schema.get("required") or schema["properties"]
        return {name: _example(schema["properties"][name], schemas, depth + 1) for name in names}
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    return [] if kind == "array" else _EXAMPLES.get(str(kind), {})


def _curl(
    operation: OperationEntry,
    inputs: Sequence[InputEntry],
    media_type: str,
    body: str,
    needs: Sequence[str],
    document: Json,
    origin: str,
) -> str:
    """The operation as a command, with an example for each required input."""
    path, query, parts = operation.path, [], list[str]()
    for one in (one for one in inputs if one.is_required):
        value = one.example or (one.choices[0] if one.choices else one.name.upper())
        if one.where == "path":
            path = path.replace(f"{{{one.name}}}", quote(value, safe=""))
        elif one.where == "query":
            query.append(f"{one.name}={quote(value, safe='')}")
        elif one.where == "form":
            parts.append(f"-F {shlex.quote(f'{one.name}=@{value}' if one.type == 'file' else f'{one.name}={value}')}")
    url = f"{origin.rstrip('/')}{path}{'?' + '&'.join(query) if query else ''}"
    command = ["curl" if operation.method == "GET" else f"curl -X {operation.method}", *_credential(needs, document)]
    if body:
        command += [f"-H 'Content-Type: {media_type}'", f"-d {shlex.quote(json.dumps(json.loads(body)))}"]
    return " \\\n  ".join([*command, *parts, shlex.quote(url)])


def _credential(needs: Sequence[str], document: Json) -> list[str]:
    schemes = document["components"]["securitySchemes"]
    if "token" in needs:
        return ['-H "Authorization: Bearer $PILOTHOUSE_TOKEN"']
    return [f'-H "{schemes[name]["name"]}: $PILOTHOUSE_KEY"' for name in needs if schemes[name].get("in") == "header"]


def shared_endpoints(owner: Service) -> Service:
    """Returns the endpoints that belong to no service, with the error shape of the requested prefix's service."""
    return Service("server", "", [*common_routes, *badges.routes], owner.media_type, owner.error, base="")


class Api(Base):
    """The document of what is served now: without a cluster it has no releases."""

    permission = READ
    media_type = "application/json"

    async def get(self) -> None:
        flights: SingleFlight[bytes] = self.settings["interface_documents"]
        key = (self.prefix, self.media_type)
        self.send(await flights.run(key, lambda: asyncio.to_thread(self.encoded)), self.media_type)

    def encoded(self) -> bytes:
        return serializers.text(self.document()).encode()

    def document(self) -> dict[str, Any]:
        services: tuple[Service, ...] = self.settings["served"]
        requested = [service for service in services if not self.prefix or service.prefix == self.prefix]
        has_cluster = self.charts.groups()["releases"]
        return InterfaceDocument(self.config, [*requested, shared_endpoints(requested[0])], has_cluster).write(
            self.prefix
        )


class ApiYaml(Api):
    media_type = "application/yaml"

    def encoded(self) -> bytes:
        return yaml.safe_dump(self.document(), sort_keys=False, allow_unicode=True).encode()


class InterfacePage(Api, HtmlPage):
    """The document as a page: operations by group, and one operation with its schemas, an example and a form."""

    async def get(self) -> None:
        query, document = self.query(), await asyncio.to_thread(self.document)
        text, id = query.get("q", "").strip(), query.get("operation", "")
        origin = f"{'https' if self.caller.is_secure else self.request.protocol}://{self.request.host}{self.prefix}"
        shown = details(document, id, origin)
        if id and shown is None:
            raise NotFound(f"there is no operation {id}")
        await write_long_page(
            self,
            "openapi/interface.html",
            q=text,
            groups=grouped(document, text),
            total=len(operations(document)),
            shown=shown,
            schemes=document["components"]["securitySchemes"],
            url=lambda id: f"?{urlencode({'operation': id} | ({'q': text} if text else {}))}#operation",
        )


routes: list[Route] = [
    (r"/v3/api-docs", Api),
    (r"/v3/api-docs\.yaml", ApiYaml),
    (r"/swagger-ui\.html", InterfacePage),
]
