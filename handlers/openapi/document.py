"""The OpenAPI 3.1 document, generated from the descriptions of the registered handlers."""

from __future__ import annotations

import http
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from handlers.charts.operations import GZIP, LOCK, TEXT
from handlers.http import permissions
from handlers.http.permissions import READ_CLUSTER, Permission
from handlers.http.proxy import listens_beyond_loopback
from handlers.openapi.schemas import Components, Schema, object_schema
from handlers.operations import Operation
from handlers.routing import Service
from models import VERSION
from models.charts.responses import LockDocument
from models.config.settings import Config
from models.inputs import REQUEST_PART, Input

_COMMON_STATUSES = (400, 401, 403, 408, 413, 421, 500, 503)
"""Statuses of any request."""

_DESCRIPTIONS = {
    400: "The request is not valid; the message has the reason",
    401: "A credential is missing, wrong or expired",
    403: "The permission is missing, the configuration forbids it, or a page of another site sent the request",
    404: "It does not exist, or the caller may not see it",
    408: "The request was not complete when the server needed its memory",
    409: "It conflicts with the present state",
    413: "The body, or a part of it, is too large",
    415: "The media type of the body is not supported",
    421: "The Host is not served here",
    422: "The request is valid, but cannot be processed: values against the schema, a template that fails",
    429: "Too many requests; retry after the time in `Retry-After`",
    500: "The operation failed; the message or the log has the reason",
    502: "The cluster, the repository, the registry or the hub failed",
    503: "Shutting down, at capacity, or not installed; retry later",
    504: "The time limit was exceeded",
    507: "Too little space is free on the disk",
}
_HEADERS: Mapping[int, Mapping[str, str]] = {
    401: {"WWW-Authenticate": "Bearer"},
    429: {"Retry-After": "Seconds"},
    503: {"Retry-After": "Seconds"},
}

_ABOUT = {
    "supervision": "Processes of this host: start, stop, restart, status, logs and history.",
    "charts": "Helm releases, charts and chart repositories.",
    "tracker": "Test and coverage reports, and quality gates.",
    "server": "Health, metrics and badges.",
}
_YAML = "application/yaml"


class InterfaceDocument:
    def __init__(self, config: Config, services: Sequence[Service], has_cluster: bool = True) -> None:
        """Without a cluster, operations that need one are left out, except those that change something."""
        self._config = config
        self._has_cluster = has_cluster
        self._services = services
        self._components = Components()

    def write(self, prefix: str = "") -> dict[str, Any]:
        """Returns the document of the services as they are reached under `prefix`."""
        paths: dict[str, dict[str, Any]] = {}
        for service in self._services:
            for path, method, operation in self._operations(service):
                first = paths.setdefault(path, {}).setdefault(method, operation)
                if first is not operation:
                    _merge(first, operation)
        return {
            "openapi": "3.1.0",
            "info": {
                "title": "Pilothouse",
                "version": VERSION,
                "description": "Supervises processes, runs helm, tracks test reports: the services of one small host.",
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "servers": [{"url": prefix or "/"}],
            "tags": [{"name": service.name, "description": _ABOUT[service.name]} for service in self._services],
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
            handler: Any = route[1]
            for method, operation in getattr(handler, "operations", {}).items():
                is_off = operation.permission is READ_CLUSTER and self._config.svc.security.cluster_reads == "OFF"
                is_served = operation.is_served(self._has_cluster) and not is_off
                if is_served and not getattr(handler, "fixed", {}).get(method):
                    described = self._of_operation(service, operation, handler.permission_of(method))
                    yield service.base + operation.path, method.lower(), described

    def _of_operation(self, service: Service, declared: Operation, permission: Permission) -> dict[str, Any]:
        operation: dict[str, Any] = {
            "operationId": declared.identifier,
            "tags": [service.name],
            "summary": declared.summary,
            "parameters": [_parameter(one) for one in declared.inputs if one.source in ("path", "query", "header")],
            "responses": self._responses(
                service,
                declared.status,
                declared.response_type,
                declared.documented_statuses,
                declared.media_types,
                declared.documented_headers,
            ),
            "security": security(permission, self._config),
        }
        if declared.takes_body:
            operation["requestBody"] = _body(declared)
        return operation

    def _responses(
        self,
        service: Service,
        status: int,
        answers: Any,
        fails: Sequence[int],
        also: Mapping[str, Any],
        headers: Mapping[str, str],
    ) -> dict[str, Any]:
        good: dict[str, Any] = {"description": http.HTTPStatus(status).phrase, **_headers(headers)}
        if answers is not None:
            good["content"] = self._content(answers) | {media: self._media(kind) for media, kind in also.items()}
        content = {service.media_type: {"schema": self._error(service)}}
        return {str(status): good} | {
            str(code): {"description": _DESCRIPTIONS[code], **_headers(_HEADERS.get(code, {})), "content": content}
            for code in sorted({*fails, *_COMMON_STATUSES})
        }

    def _content(self, answers: Any) -> dict[str, Any]:
        if not isinstance(answers, str):
            return {"application/json": {"schema": self._components.of(answers)}}
        if answers == TEXT:
            return {"text/plain": self._media(str), _YAML: {}}
        if answers == LOCK:
            return {LOCK: self._media(LockDocument)}
        return {answers.partition(";")[0]: self._media(bytes if answers == GZIP else str)}

    def _media(self, kind: Any) -> dict[str, Any]:
        return {"schema": self._components.of(kind)}

    def _error(self, service: Service) -> Schema:
        return self._components.of(typing.get_type_hints(service.error)["return"])


Security = list[dict[str, list[str]]]

_TOKENS: Security = [{"token": []}, {"trackerToken": []}]
_ACCOUNT: Security = [*_TOKENS, {"session": []}]
_ANYBODY: Security = [{}, *_ACCOUNT]
_KEY: Security = [{"chartKey": []}]


def security(permission: Permission, config: Config) -> Security:
    """Returns the credentials a permission accepts; `{}` means none. Raises `KeyError` for an unknown permission."""
    readers = _ANYBODY if config.tracker.security.open_mode else _ACCOUNT
    is_remote = listens_beyond_loopback(config)
    is_key_asked = config.svc.rest.access_interceptor.enabled
    is_cluster_open = config.svc.security.cluster_reads == "OPEN"
    controls = is_remote and not config.supervisor.security.allow_anonymous_control
    is_log_closed = config.supervisor.security.local_control == "operator"
    accepted: Mapping[Permission, Security] = {
        permissions.PUBLIC: _ANYBODY,
        permissions.READ: readers,
        permissions.FOLLOW_REPORTS: readers,
        permissions.READ_LOGS: _ACCOUNT if is_remote else readers,
        permissions.READ_SERVER_LOG: _ACCOUNT if is_remote or is_log_closed else readers,
        permissions.CONTROL_PROCESSES: _ACCOUNT if controls else readers,
        permissions.SIGNED_IN: _ACCOUNT,
        permissions.ADMINISTER: _ACCOUNT,
        permissions.POST_REPORTS: _TOKENS if config.tracker.security.require_ingest_token else readers,
        permissions.READ_CHARTS: [*readers, *_KEY],
        permissions.READ_CLUSTER: [*readers, *_KEY] if is_cluster_open else [*_ACCOUNT, *_KEY],
        permissions.CHANGE_CHARTS: _KEY if is_key_asked else _ACCOUNT if is_remote else readers,
    }
    return accepted[permission]


def _headers(headers: Mapping[str, str]) -> dict[str, Any]:
    described = {name: {"description": about, "schema": {"type": "string"}} for name, about in headers.items()}
    return {"headers": described} if described else {}


def _parameter(one: Input) -> dict[str, Any]:
    return {
        "name": one.json_name, "in": one.source, "description": one.about, "required": one.is_required,
        "schema": one.schema(),
    }  # fmt: skip


def _body(one: Operation) -> dict[str, Any]:
    fields = [each for each in one.inputs if each.source == "body"]
    schema = _object(fields)
    as_json: dict[str, Any] = {"application/json": {"schema": schema}} if one.takes_json else {}
    if not one.is_multipart:
        return {"required": "required" in schema or bool(one.body.if_empty), "content": as_json}
    whole = _object([each for each in one.inputs if each.source in ("form", "file")])
    encoding = {}
    if fields:
        whole["properties"][REQUEST_PART] = schema
        if "required" in schema:
            whole["required"] = [*whole.get("required", ()), REQUEST_PART]
        encoding = {REQUEST_PART: {"contentType": "application/json"}}
    encoding |= {each.json_name: {"contentType": each.media_type} for each in one.inputs if each.source == "file"}
    content: dict[str, Any] = {"schema": whole, **({"encoding": encoding} if encoding else {})}
    return {"required": True, "content": {**as_json, "multipart/form-data": content}}


def _object(fields: Sequence[Input]) -> Schema:
    properties = {each.json_name: each.described_schema() for each in fields}
    return object_schema(properties, [each.json_name for each in fields if each.is_required])


def _merge(first: dict[str, Any], other: dict[str, Any]) -> None:
    """Merges the operations of a path that two services share, depending on `Accept`."""
    first["summary"] += f"; with Accept: text/event-stream: {other['summary'][:1].lower()}{other['summary'][1:]}"
    first["tags"] += other["tags"]
    first["parameters"] += other["parameters"]
    for status, answer in other["responses"].items():
        first["responses"].setdefault(status, answer).setdefault("content", {}).update(answer.get("content", {}))
