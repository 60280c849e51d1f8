"""The operations on chart repositories: added, listed, removed, brought up to date; what they hold."""

from __future__ import annotations

from attrs import evolve, frozen

from handlers.charts.operations import Operation, Warned
from models.charts.parameters import body, path
from models.charts.refs import repository_name
from models.charts.responses import ChartItem, Repository
from supervisor.charts import repositories
from supervisor.charts.service import Work

_UPDATE_FAILS = (400, 404, 500, 502, 503, 504)


@frozen(kw_only=True)
class Add:
    name: str = body("what it is to be called here", required=True, check=repository_name)
    url: str = body("where its index.yaml is, http or https", required=True)
    username: str = body("for a repository that asks for a login", "")
    password: str = body("for a repository that asks for a login", "")
    insecure_skip_tls_verify: bool = body("take any certificate", False)
    pass_credentials: bool = body("send the login to wherever the index leads", False)
    force_update: bool = body("replace a repository of that name", False)


@frozen(kw_only=True)
class OfRepository:
    name: str = path("the repository", check=repository_name)


@frozen(kw_only=True)
class OfChart:
    name: str = path("the repository", check=repository_name)
    chart: str = path("the chart's own name", check=repository_name)


@frozen
class Nothing:
    pass


async def add(work: Work, ask: Add) -> None:
    asked = repositories.configured(ask.name, ask.url, ask.username, ask.password)
    asked = evolve(asked, insecure=ask.insecure_skip_tls_verify, pass_login=ask.pass_credentials)
    work.begin()
    await work.charts.repositories.add(asked, work.folder, ask.force_update)


async def listed(work: Work, ask: Nothing) -> list[Repository]:
    return [Repository(one.name or "", one.url) for one in work.charts.repositories.all()]


async def remove(work: Work, ask: OfRepository) -> None:
    work.begin()
    await work.charts.repositories.remove(ask.name)


async def update(work: Work, ask: OfRepository) -> None:
    await work.charts.repositories.update(ask.name, work.folder)


async def update_all(work: Work, ask: Nothing) -> Warned:
    return Warned(None, tuple(await work.charts.repositories.update_all(work.folder)))


async def charts(work: Work, ask: OfRepository) -> bytes:
    return await work.charts.repositories.charts(ask.name)


async def versions(work: Work, ask: OfChart) -> bytes:
    return await work.charts.repositories.versions(ask.name, ask.chart)


operations: list[Operation] = [
    Operation(
        "helm_repo_add", "POST", "/repos", "Add a repository", Add, add, None, status=201, mutating=True,
        group="repositories", fails=(400, 401, 403, 409, 413, 500, 502, 503, 504),
    ),
    Operation(
        "helm_repo_list", "GET", "/repos", "The repositories", Nothing, listed, list[Repository],
        group="repositories", fails=(500,),
    ),
    Operation(
        "helm_repo_remove", "DELETE", "/repos/{name}", "Remove a repository", OfRepository, remove, None, status=204,
        mutating=True, group="repositories", fails=(400, 401, 403, 404, 500, 503),
    ),
    Operation(
        "helm_repo_update", "POST", "/repos/{name}/update", "Bring a repository's index up to date", OfRepository,
        update, None, group="repositories", fails=_UPDATE_FAILS,
    ),
    Operation(
        "helm_repo_update_all", "POST", "/repos/update-all", "Bring all indexes up to date", Nothing, update_all, None,
        group="repositories", fails=(500, 502), headers={"Warning": "One for each that could not be updated"},
    ),
    Operation(
        "helm_repo_charts", "GET", "/repos/{name}/charts", "A repository's charts, each with its newest stable version",
        OfRepository, charts, list[ChartItem], group="repositories",
    ),
    Operation(
        "helm_repo_versions", "GET", "/repos/{name}/charts/{chart}/versions", "A chart's versions, newest first",
        OfChart, versions, list[ChartItem], group="repositories",
    ),
]  # fmt: skip
