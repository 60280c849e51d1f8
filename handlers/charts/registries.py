"""The logins of OCI registries."""

from __future__ import annotations

from pathlib import Path

from attrs import asdict, evolve

from handlers.charts import certificates
from handlers.charts.operations import ChartOperation
from models.charts import refs
from models.charts.repositories import registries
from models.charts.repositories.registries import StoredLogin
from models.charts.responses import RegistryInfo
from models.errors import Conflict, NotFound
from models.inputs import body, path
from models.json_format import http_message
from supervisor.charts.service import Work
from supervisor.http.urls import OriginLogin


@http_message
class RegistryListRequest:
    pass


@http_message(kw_only=True)
class LoginRequest:
    host: str = body("the registry's host, with its port where it is not 443", required=True, check=refs.registry_host)
    username: str = body("the name to log in with", required=True)
    password: str = body("the password or token; it is never shown", required=True)
    ca: Path | None = certificates.CA
    certificate: Path | None = certificates.CERTIFICATE
    key: Path | None = certificates.KEY


@http_message(kw_only=True)
class LogoutRequest:
    host: str = path("the registry's host, with its port", check=refs.registry_host)


async def listed(work: Work, request: RegistryListRequest) -> list[RegistryInfo]:
    own, of_file = await work.charts.registries.hosts()
    return [*(RegistryInfo(host, "API") for host in own), *(RegistryInfo(host, "FILE") for host in of_file)]


async def login(work: Work, request: LoginRequest) -> None:
    """Checks the login at the registry, then stores it."""
    host, pem = request.host.lower(), await certificates.read(request.ca, request.certificate, request.key)
    await work.charts.registries.check_login(host, OriginLogin(request.username, request.password), pem)
    stored = StoredLogin(host, request.username, request.password)
    if pem is not None:
        stored = evolve(stored, **asdict(pem))
    await work.charts.repositories.stored(lambda: registries.store(stored))


async def logout(work: Work, request: LogoutRequest) -> None:
    host = request.host.lower()
    if not await work.charts.repositories.stored(lambda: registries.remove(host)):
        if host in (await work.charts.registries.hosts())[1]:
            raise Conflict(f"the login of {host} is one of helm's: helm registry logout {host} removes it")
        raise NotFound(f"there is no login of {host}")


REGISTRIES: list[ChartOperation] = [
    ChartOperation(
        "helm_registry_list", "GET", "/registries", "List the registries with a login", RegistryListRequest, listed,
        list[RegistryInfo], group="registries", error_statuses=(500,),
    ),
    ChartOperation(
        "helm_registry_login", "POST", "/registries", "Store a login of a registry", LoginRequest, login, None,
        status=201, mutating=True, group="registries", error_statuses=(400, 401, 403, 413, 500, 502, 503, 504),
    ),
    ChartOperation(
        "helm_registry_logout", "DELETE", "/registries/{host}", "Remove a login of a registry", LogoutRequest, logout,
        None, status=204, mutating=True, group="registries", error_statuses=(400, 401, 403, 404, 409, 500, 503),
    ),
]  # fmt: skip
