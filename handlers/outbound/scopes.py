"""Channels and rules belong to the server (for an ADMIN) or to a project (for its OWNER): the operations of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from handlers.base import Base
from handlers.http.permissions import ADMINISTER, SIGNED_IN, Permission
from handlers.operations import JsonBody, Operation
from models.errors import Conflict, Denied
from models.inputs import ID_TEXT, NAME, path
from models.json_format import http_message
from models.outbound.rules import CONFIG, SERVER
from models.tracker import visibility

if TYPE_CHECKING:
    from supervisor.outbound.core import Core


@http_message
class AllOfServer:
    """The request type of lists of the server."""


@http_message
class AllOfProject:
    project: str = path("The project", kind=ID_TEXT)


@http_message
class OneOfServer:
    id: str = path("Its id", kind=NAME)


@http_message
class OneOfProject:
    project: str = path("The project", kind=ID_TEXT)
    id: str = path("Its id", kind=NAME)


async def project_of(handler: Base, id: str | None) -> int:
    """The project that a request is about, or `SERVER`. Raises `Denied`, `NotFound`, `Invalid`."""
    user = handler.caller.user
    if id is None:
        if user is None or not user.is_admin:
            raise Denied("only an ADMIN may do this; an OWNER may for a project")
        return SERVER
    found = await handler.tracker.run(lambda: visibility.project(user, id, "OWNER"))
    return int(found.id)


async def scope_of(handler: Base, request: Any) -> tuple[Core, int]:
    """The parts in use, and the project of a request; `SERVER` without one. Raises `Denied`, `NotFound`."""
    project_id = await project_of(handler, getattr(request, "project", None))
    return await handler.services.outbound.core(), project_id


def check_stored(noun: str, id: str, verb: str) -> None:
    """Raises `Conflict` for an id of the configuration."""
    if id.startswith(CONFIG):
        raise Conflict(f"the {noun} {id} stands in the configuration: {verb} it there")


@frozen
class Scope:
    """The server, or a project: the path of what it has, and the request types without a body."""

    name: str
    base: str
    permission: Permission
    all: type[Any]
    one: type[Any]


SCOPES = (
    Scope("server", "/notify", ADMINISTER, AllOfServer, OneOfServer),
    Scope("project", "/projects/{project}/notify", SIGNED_IN, AllOfProject, OneOfProject),
)


@frozen
class OutboundResource:
    """What is listed, made, read, changed and deleted. The request types are those of the server and of a project."""

    noun: str
    full_noun: str
    """As summaries name it."""
    made: tuple[type[Any], type[Any]]
    changed: tuple[type[Any], type[Any]]
    info: type[Any]
    get_all: Callable[[Base, Any], Any]
    get: Callable[[Base, Any], Any]
    keep: Callable[[Base, Any], Any]
    delete: Callable[[Base, Any], Any]
    change_notes: str = ""

    def operations(self) -> list[Operation]:
        """Its operations below the path of each scope."""
        requests = zip(SCOPES, self.made, self.changed, strict=True)
        return [operation for scope, made, changed in requests for operation in self._of(scope, made, changed)]

    def _of(self, scope: Scope, made: type[Any], changed: type[Any]) -> list[Operation]:
        where = f"of the {scope.name}"
        name, text = f"{scope.name}_{self.noun}", self.full_noun
        base, info = f"{scope.base}/{self.noun}s", self.info
        body = JsonBody("a JSON object is required", f"is not a field of a {self.noun}")
        change: Mapping[str, Any] = {"error_statuses": [404, 409], "permission": scope.permission}
        written: Mapping[str, Any] = {**change, "body": body}
        read: Mapping[str, Any] = {"error_statuses": [404], "permission": scope.permission}
        return [
            Operation(None, "GET", base, f"List the {text}s {where}", scope.all, self.get_all, list[info],  # type: ignore[valid-type]
                      name=f"{name}_list", **read),
            Operation(None, "POST", base, f"Make a {text} {where}", made, self.keep, info, 201,
                      name=f"{name}_make", **written),
            Operation(None, "GET", f"{base}/{{id}}", f"Get a {text} {where}", scope.one, self.get, info,
                      name=name, **read),
            Operation(None, "PUT", f"{base}/{{id}}", f"Change a {text} {where}{self.change_notes}", changed, self.keep,
                      info, name=f"{name}_change", **written),
            Operation(None, "DELETE", f"{base}/{{id}}", f"Delete a {text} {where}", scope.one, self.delete, None, 204,
                      name=f"{name}_delete", **change),
        ]  # fmt: skip
