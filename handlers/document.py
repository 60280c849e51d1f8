"""The interface document, OpenAPI 3.1: written from what the registered handlers say of themselves."""

from __future__ import annotations

import enum
import http
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

import attrs

from handlers import wire
from handlers.charts.handler import ChartHandler
from handlers.charts.operations import GZIP, TEXT, Operation
from handlers.interface import Body, Parameter, Says
from handlers.routing import Route, Service
from models import VERSION
from models.charts.fields import Input
from models.config import Config

Schema = dict[str, Any]

_PLAIN: Mapping[Any, Schema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number"},
    type(None): {"type": "null"},
    wire.Instant: {"type": "string", "format": "date-time"},
    wire.Length: {"type": "string", "format": "duration"},
}
_COMMON = (401, 403, 421, 503)
"""What any request may meet: a bad token, another site, another host, a house that is closing."""

_ABOUT = {
    "supervision": "Processes of this host: started, watched, restarted, stopped, and their history.",
    "charts": "Helm releases, charts and chart repositories.",
    "tracker": "Reports of tests and coverage, judged by a quality gate.",
}
_STREAM = "text/event-stream"
_YAML = "application/yaml"


class Components:
    """The schemas of all shapes, by name; each is written once and referred to."""

    def __init__(self) -> None:
        self.schemas: dict[str, Schema] = {}

    def of(self, kind: Any) -> Schema:
        """The schema of a type: plain ones, attrs classes, lists, mappings, unions, enums and Literals."""
        if kind in _PLAIN:
            return dict(_PLAIN[kind])
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is Literal:
            return {"type": "string", "enum": list(arguments)}
        if origin in (types.UnionType, typing.Union):
            return {"anyOf": [self.of(one) for one in arguments]}
        if attrs.has(origin or kind):
            return self._named(kind)
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return {"type": "string", "enum": [one.value for one in kind]}
        if origin is not None and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if origin is not None and issubclass(origin, Sequence):
            return {"type": "array", "items": self.of(arguments[0])}
        return {}

    def _named(self, kind: Any) -> Schema:
        origin, arguments = get_origin(kind) or kind, get_args(kind)
        name = origin.__name__ + "".join(one.__name__ for one in arguments)
        if name not in self.schemas:
            self.schemas[name] = {}  # it may refer to itself
            self.schemas[name] = self._object(origin, arguments)
        return {"$ref": f"#/components/schemas/{name}"}

    def _object(self, kind: Any, arguments: Sequence[Any]) -> Schema:
        variables = dict(zip(getattr(kind, "__parameters__", ()), arguments, strict=False))
        properties = {}
        for one in attrs.fields(attrs.resolve_types(kind)):
            properties[wire.name_of(one)] = self.of(_filled(one.type, variables))
        schema: Schema = {"type": "object", "properties": properties, "required": list(properties)}
        about = (kind.__doc__ or "").strip()
        return schema | ({"description": about} if about and not about.startswith("Method generated") else {})


def _filled(kind: Any, variables: Mapping[Any, Any]) -> Any:
    """A type with the arguments of a generic class in place of its variables."""
    if kind in variables:
        return variables[kind]
    inner = tuple(one for one in getattr(kind, "__parameters__", ()) if one in variables)
    return kind[tuple(variables[one] for one in inner)] if inner else kind


class Document:
    def __init__(self, config: Config, services: Sequence[Service], has_cluster: bool = True) -> None:
        """Without a cluster what needs one is not served, but for what the access gate stands before."""
        self._config = config
        self._has_cluster = has_cluster
        self._services = services
        self._components = Components()

    def write(self, prefix: str = "") -> dict[str, Any]:
        """The document of these services; `prefix` is under which it, and they, are asked for."""
        paths: dict[str, dict[str, Any]] = {}
        for service in self._services:
            for path, method, operation in self._operations(service):
                known = paths.setdefault(path, {}).setdefault(method, operation)
                if known is not operation:
                    _join(known, operation)
        return {
            "openapi": "3.1.0",
            "info": {
                "title": "Pilothouse",
                "version": VERSION,
                "description": "Supervises processes, fronts helm, tracks test reports: one small host's services.",
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "servers": [{"url": prefix or "/"}],
            "tags": [{"name": one.name, "description": _ABOUT[one.name]} for one in self._services],
            "paths": dict(sorted(paths.items())),
            "components": {"schemas": self._components.schemas, "securitySchemes": self._schemes()},
        }

    def _schemes(self) -> dict[str, Any]:
        return {
            "token": {"type": "http", "scheme": "bearer", "description": "A personal API token, from /profile."},
            "trackerToken": {"type": "apiKey", "in": "header", "name": "X-Tracker-Token"},
            "session": {"type": "apiKey", "in": "cookie", "name": f"pilothouse_{self._config.server.port}"},
            "chartKey": {"type": "apiKey", "in": "header", "name": self._config.svc.security.api_key_header},
        }

    def _operations(self, service: Service) -> Iterator[tuple[str, str, dict[str, Any]]]:
        for route in service.routes:
            handler = route[1]
            if issubclass(handler, ChartHandler):
                for operation, fixed in handler.operations.values():
                    is_there = self._has_cluster or operation.needs != "cluster" or operation.mutating
                    if is_there and not fixed:
                        path = service.base + operation.path
                        yield path, operation.method.lower(), self._of_chart(service, operation)
            else:
                for method, says in getattr(handler, "says", {}).items():
                    yield service.base + _path(route, says), method.lower(), self._of(service, says)

    def _of(self, service: Service, says: Says) -> dict[str, Any]:
        operation: dict[str, Any] = {
            "operationId": _identifier(service.name, says.summary),
            "tags": [service.name],
            "summary": says.summary,
            "parameters": [
                *({"name": one, "in": "path", "required": True, "schema": {"type": "string"}} for one in says.path),
                *(_parameter(one) for one in says.query),
            ],
            "responses": self._responses(service, says.status, says.answers, says.fails, says.also),
            "security": _SECURITY[says.gate],
        }
        if says.body is not None:
            operation["requestBody"] = _body(says.body)
        return operation

    def _of_chart(self, service: Service, one: Operation) -> dict[str, Any]:
        fails = {*one.fails, *((401, 403) if one.mutating else ()), *((413, 415) if one.takes_body else ())}
        operation: dict[str, Any] = {
            "operationId": _identifier(service.name, f"{one.method} {one.path}"),
            "tags": [service.name],
            "summary": one.summary,
            "parameters": [_chart_parameter(each) for each in one.inputs if each.source in ("path", "query")],
            "responses": self._responses(service, one.status, one.answers, sorted(fails), {}),
            "security": _SECURITY["key" if one.mutating else "reader"],
        }
        if one.takes_body:
            operation["requestBody"] = _chart_body(one)
        return operation

    def _responses(
        self, service: Service, status: int, answers: Any, fails: Sequence[int], also: Mapping[str, Any]
    ) -> dict[str, Any]:
        good: dict[str, Any] = {"description": http.HTTPStatus(status).phrase}
        if answers is not None:
            good["content"] = self._content(answers) | {media: self._media(kind) for media, kind in also.items()}
        error = {"content": {service.media_type: {"schema": self._error(service)}}}
        return {str(status): good} | {
            str(code): {"description": http.HTTPStatus(code).phrase, **error} for code in sorted({*fails, *_COMMON})
        }

    def _content(self, answers: Any) -> dict[str, Any]:
        if not isinstance(answers, str):
            return {"application/json": {"schema": self._components.of(answers)}}
        if answers == TEXT:
            return {"text/plain": self._media(str), _YAML: self._media(str)}
        return {answers.partition(";")[0]: self._media(bytes if answers == GZIP else str)}

    def _media(self, kind: Any) -> dict[str, Any]:
        return {} if kind is bytes else {"schema": self._components.of(kind)}

    def _error(self, service: Service) -> Schema:
        return self._components.of(typing.get_type_hints(service.error)["return"])


_ANYBODY: list[dict[str, list[str]]] = [{}, {"token": []}, {"trackerToken": []}, {"session": []}]
_SECURITY: Mapping[str, list[dict[str, list[str]]]] = {
    "open": [{}],
    "reader": _ANYBODY,
    "operator": _ANYBODY,
    "poster": _ANYBODY,
    "account": _ANYBODY[1:],
    "key": [{"chartKey": []}],
}


def _path(route: Route, says: Says) -> str:
    """The route's pattern with the names of its groups."""
    names = iter(says.path)
    return re.sub(r"\([^)]*\)", lambda _: f"{{{next(names)}}}", route[0])


def _identifier(service: str, words: str) -> str:
    parts = re.findall(r"[A-Za-z0-9]+", words)
    return service + "".join(part[:1].upper() + part[1:] for part in parts)


def _parameter(one: Parameter) -> dict[str, Any]:
    return {
        "name": one.name, "in": one.where, "description": one.about, "required": one.required,
        "schema": dict(one.schema),
    }  # fmt: skip


def _chart_parameter(one: Input) -> dict[str, Any]:
    return {"name": one.wire, "in": one.source, "required": one.is_required, "schema": one.schema()}


def _body(body: Body) -> dict[str, Any]:
    schema: Schema = {
        "type": "object",
        "properties": {one.name: {"description": one.about, **one.schema} for one in body.fields},
    }
    if required := [one.name for one in body.fields if one.required]:
        schema["required"] = required
    return {"required": body.required, "content": {body.media_type: {"schema": schema}}}


def _chart_body(one: Operation) -> dict[str, Any]:
    fields = [each for each in one.inputs if each.source == "body"]
    schema: Schema = {"type": "object", "properties": {each.wire: each.schema() for each in fields}}
    if required := [each.wire for each in fields if each.is_required]:
        schema["required"] = required
    if not one.is_multipart:
        return {"required": bool(required), "content": {"application/json": {"schema": schema}}}
    parts = {each.wire: each.schema() for each in one.inputs if each.source in ("form", "file")}
    needed = [each.wire for each in one.inputs if each.source in ("form", "file") and each.is_required]
    if fields:
        parts["request"] = schema
        needed += ["request"] if required else []
    whole = {"type": "object", "properties": parts, "required": needed}
    encoding = {"request": {"contentType": "application/json"}} if fields else {}
    return {"required": True, "content": {"multipart/form-data": {"schema": whole, "encoding": encoding}}}


def _join(known: dict[str, Any], other: dict[str, Any]) -> None:
    """One path that two services answer, by what `Accept` asks for."""
    known["summary"] += f"; as an event stream: {other['summary'].lower()}"
    for status, answer in other["responses"].items():
        known["responses"].setdefault(status, answer).setdefault("content", {}).update(answer.get("content", {}))
