"""The operations on chart repositories."""

from __future__ import annotations

from attrs import evolve

from handlers.charts.operations import Operation, Warned
from models.charts.parameters import body, path
from models.charts.refs import repository_name
from models.charts.responses import ChartItem, Repository
from models.json_format import http_message
from supervisor.charts import repositories
from supervisor.charts.service import Work

_UPDATE_ERRORS = (400, 404, 500, 502, 503, 504)


@http_message(kw_only=True)
class AddRequest:
    name: str = body("its name on this server", required=True, check=repository_name)
    url: str = body("the URL of the folder with index.yaml, http or https", required=True)
    username: str = body("login of the repository", "")
    password: str = body("login of the repository", "")
    insecure_skip_tls_verify: bool = body("accept any certificate", False)
    pass_credentials: bool = body("send the login to every URL in the index", False)
    force_update: bool = body("replace an existing repository with this name", False)


@http_message(kw_only=True)
class RepositoryRequest:
    name: str = path("the repository's name", check=repository_name)


@http_message(kw_only=True)
class ChartRequest:
    name: str = path("the repository's name", check=repository_name)
    chart: str = path("the chart's own name", check=repository_name)


@http_message
class EmptyRequest:
    pass


async def add(work: Work, request: AddRequest) -> None:
    source = repositories.configured(request.name, request.url, request.username, request.password)
    source = evolve(source, insecure=request.insecure_skip_tls_verify, pass_login=request.pass_credentials)
    work.begin()
    await work.charts.repositories.add(source, work.folder, request.force_update)


async def listed(work: Work, request: EmptyRequest) -> list[Repository]:
    return [Repository(source.name or "", source.url) for source in work.charts.repositories.all()]


async def remove(work: Work, request: RepositoryRequest) -> None:
    work.begin()
    await work.charts.repositories.remove(request.name)


async def update(work: Work, request: RepositoryRequest) -> None:
    await work.charts.repositories.update(request.name, work.folder)


async def update_all(work: Work, request: EmptyRequest) -> Warned:
    return Warned(None, tuple(await work.charts.repositories.update_all(work.folder)))


async def charts(work: Work, request: RepositoryRequest) -> bytes:
    return await work.charts.repositories.charts(request.name)


async def versions(work: Work, request: ChartRequest) -> bytes:
    return await work.charts.repositories.versions(request.name, request.chart)


operations: list[Operation] = [
    Operation(
        "helm_repo_add", "POST", "/repos", "Add a repository", AddRequest, add, None, status=201, mutating=True,
        group="repositories", error_statuses=(400, 401, 403, 409, 413, 500, 502, 503, 504),
    ),
    Operation(
        "helm_repo_list", "GET", "/repos", "List the repositories", EmptyRequest, listed, list[Repository],
        group="repositories", error_statuses=(500,),
    ),
    Operation(
        "helm_repo_remove", "DELETE", "/repos/{name}", "Remove a repository", RepositoryRequest, remove, None,
        status=204, mutating=True, group="repositories", error_statuses=(400, 401, 403, 404, 500, 503),
    ),
    Operation(
        "helm_repo_update", "POST", "/repos/{name}/update", "Update a repository's index", RepositoryRequest,
        update, None, group="repositories", error_statuses=_UPDATE_ERRORS,
    ),
    Operation(
        "helm_repo_update_all", "POST", "/repos/update-all", "Update all indexes", EmptyRequest, update_all, None,
        group="repositories", error_statuses=(500, 502), headers={"Warning": "One per repository that failed"},
    ),
    Operation(
        "helm_repo_charts", "GET", "/repos/{name}/charts",
        "List a repository's charts, each with its newest stable version",
        RepositoryRequest, charts, list[ChartItem], group="repositories",
    ),
    Operation(
        "helm_repo_versions", "GET", "/repos/{name}/charts/{chart}/versions", "List a chart's versions, newest first",
        ChartRequest, versions, list[ChartItem], group="repositories",
    ),
]  # fmt: skip
