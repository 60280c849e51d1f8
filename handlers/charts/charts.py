"""The operations on charts and their repositories: rendering, show, pull, push, hub search, dependencies."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from attrs import evolve

from handlers.charts import certificates
from handlers.charts.operations import GZIP, LOCK, TEXT, ChartOperation, Warned
from models.charts import refs, requests
from models.charts.archives import archive, metadata
from models.charts.refs import ChartRef, check_version, repository_name
from models.charts.responses import ChartItem, Download, HubItem, Lint, Repository, RepositoryDetails
from models.inputs import body, file, form, path, query
from models.json_format import http_message, rfc3339
from models.times import SECOND
from supervisor.charts import repositories, sources
from supervisor.charts.helm import rendering
from supervisor.charts.service import Work

_REF = "repo/chart, repo/chart:version or oci://host/path[:tag]"
_VERSION = "an exact version or a range; the newest stable one by default"
Shown = TypeVar("Shown", str, bytes)
_FETCH_ERRORS = (400, 404, 500, 502, 503, 504)


@http_message(kw_only=True)
class ShowRequest:
    chart_ref: str = query(_REF, required=True)
    version: str | None = query(_VERSION, check=check_version)


@http_message(kw_only=True)
class ChartPullRequest:
    chart: str = body(_REF, required=True)
    version: str | None = body(_VERSION, check=check_version)
    verify: bool = body("require a signature by a key in the operator's keyring", False)


@http_message(kw_only=True)
class PushRequest:
    chart: Path = file("the chart archive")
    remote: str = form("oci://host/path, to which the chart's name and version are added", required=True)


def _show_with(read: Callable[[Path], Shown]) -> Callable[[Work, ShowRequest], Coroutine[Any, Any, Shown]]:
    async def show(work: Work, request: ShowRequest) -> Shown:
        chart = await work.charts.sources.chart(
            ChartRef.parse(request.chart_ref, request.version), work.subfolder("chart")
        )
        return await work.charts.workers.run(read, chart.path)

    return show


async def pull(work: Work, request: ChartPullRequest) -> Download:
    ref = ChartRef.parse(request.chart, request.version, "chart")
    keyring = sources.check_keyring(work.charts.svc.fetch.keyring) if request.verify else None
    chart = await work.charts.sources.chart(ref, work.subfolder("chart"), proven=request.verify)
    if keyring is not None:
        await sources.verify_provenance(work.charts.helm, chart, keyring, work.subfolder("helm"))
    return Download(chart.path, f"{chart.name}-{chart.version}.tgz")


async def push(work: Work, request: PushRequest) -> None:
    refs.remote(request.remote, "chart", "0.0.0")  # checked before the archive is read
    chart = await work.charts.sources.checked(request.chart)
    chart.check_dependencies()
    work.begin()
    created = rfc3339(work.charts.clock.now() // SECOND * SECOND).replace(".000000Z", "Z")
    await work.charts.registries.push(refs.remote(request.remote, chart.name, chart.version), chart, created)


_SHOW_OPERATIONS: tuple[tuple[str, str, str, Callable[[Path], str]], ...] = (
    ("helm_show_all", "", "Get a chart's metadata, values, README and custom resource definitions", archive.show_all),
    ("helm_show_values", "/values", "Get a chart's default values", archive.show_values),
    ("helm_show_readme", "/readme", "Get a chart's README", archive.show_readme),
    ("helm_show_chart", "/chart", "Get a chart's metadata", archive.show_chart),
    ("helm_show_crds", "/crds", "Get a chart's custom resource definitions", archive.show_crds),
)

_SHOW_JSON = {"/values": _show_with(metadata.show_values_json), "/chart": _show_with(metadata.show_chart_json)}

PACKAGES: list[ChartOperation] = [
    *(
        ChartOperation(tool, "GET", f"/charts/show{path}", summary, ShowRequest, _show_with(read), TEXT, group="charts",
                  error_statuses=_FETCH_ERRORS, json_call=_SHOW_JSON.get(path))
        for tool, path, summary, read in _SHOW_OPERATIONS
    ),
    ChartOperation(
        "helm_pull", "POST", "/repos/pull", "Fetch a chart's archive", ChartPullRequest, pull, GZIP,
        group="repositories", error_statuses=(*_FETCH_ERRORS, 413),
    ),
    ChartOperation(
        "helm_push", "POST", "/repos/push", "Push a chart's archive to a registry", PushRequest, push, None,
        mutating=True, group="repositories", error_statuses=(400, 401, 403, 404, 413, 415, 500, 502, 503, 504),
    ),
]  # fmt: skip


_RENDER_ERRORS = (400, 404, 413, 422, 500, 502, 503, 504)

RENDERING: list[ChartOperation] = [
    ChartOperation(
        "helm_template", "POST", "/charts/template", "Render the templates of a chart", requests.TemplateRequest,
        rendering.template, TEXT, group="charts", needs="helm", error_statuses=_RENDER_ERRORS,
    ),
    ChartOperation(
        None, "POST", "/charts/template/upload", "Render the templates of an uploaded chart", requests.TemplateUpload,
        rendering.template, TEXT, group="charts", needs="helm", error_statuses=(*_RENDER_ERRORS, 415),
        name="helm_template_upload",
    ),
    ChartOperation(
        "helm_lint", "POST", "/charts/lint", "Check a chart for problems", requests.LintRequest, rendering.lint, Lint,
        group="charts", needs="helm", error_statuses=_RENDER_ERRORS,
    ),
    ChartOperation(
        None, "POST", "/charts/lint/upload", "Check an uploaded chart for problems", requests.LintUpload,
        rendering.lint, Lint, group="charts", needs="helm", error_statuses=(*_RENDER_ERRORS, 415),
        name="helm_lint_upload",
    ),
    ChartOperation(
        "helm_create", "POST", "/charts/create", "Create a chart", requests.CreateRequest, rendering.create, GZIP,
        group="charts", needs="helm", error_statuses=(400, 413, 422, 500, 503),
    ),
]  # fmt: skip


@http_message(kw_only=True)
class HubSearchRequest:
    keyword: str = query("search text", required=True)
    max_results: int = query("maximum number of results", 20, low=1, high=60)


async def search(work: Work, request: HubSearchRequest) -> list[HubItem]:
    return await work.charts.hub.search(request.keyword, request.max_results)


HUB: list[ChartOperation] = [
    ChartOperation(
        "helm_search_hub", "GET", "/hub/search", "Search the public chart hub", HubSearchRequest, search, list[HubItem],
        group="hub", error_statuses=(400, 500, 502, 504),
    ),
]  # fmt: skip


@http_message(kw_only=True)
class ResolveRequest:
    chart_ref: str = body("repo/chart, repo/chart:version or oci://host/path[:tag]", required=True)
    version: str | None = body("an exact version or a range", check=check_version)


async def resolve(work: Work, request: ResolveRequest) -> str:
    ref, folder = ChartRef.parse(request.chart_ref, request.version), work.subfolder("chart")
    chart = await work.charts.sources.chart(ref, folder)
    return await work.charts.dependencies.lock(chart, rfc3339(work.charts.clock.now()), folder)


DEPENDENCIES: list[ChartOperation] = [
    ChartOperation(
        "helm_dependency_resolve", "POST", "/dependencies/resolve", "Resolve a chart's dependencies to versions",
        ResolveRequest, resolve, LOCK, group="dependencies", error_statuses=(400, 404, 413, 500, 502, 503, 504),
    ),
]  # fmt: skip


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
    ca: Path | None = certificates.CA
    certificate: Path | None = certificates.CERTIFICATE
    key: Path | None = certificates.KEY


@http_message(kw_only=True)
class RepositoryRequest:
    name: str = path("the repository's name", check=repository_name)


@http_message(kw_only=True)
class ChartRequest(RepositoryRequest):
    chart: str = path("the chart's own name", check=repository_name)


@http_message
class EmptyRequest:
    pass


async def add(work: Work, request: AddRequest) -> None:
    source = repositories.configured(request.name, request.url, request.username, request.password)
    source = evolve(source, insecure=request.insecure_skip_tls_verify, pass_login=request.pass_credentials)
    if (pem := await certificates.read(request.ca, request.certificate, request.key)) is not None:
        source = repositories.with_credentials(source, pem)
    work.begin()
    await work.charts.repositories.add(source, work.folder, request.force_update)


@http_message
class RepositoryListRequest:
    details: bool = query("Add the state of each index.", False)


async def listed(work: Work, request: RepositoryListRequest) -> Sequence[Repository]:
    if request.details:
        return await work.charts.repositories.details()
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


REPOSITORIES: list[ChartOperation] = [
    ChartOperation(
        "helm_repo_add", "POST", "/repos", "Add a repository", AddRequest, add, None, status=201, mutating=True,
        group="repositories", error_statuses=(400, 401, 403, 409, 413, 500, 502, 503, 504),
    ),
    ChartOperation(
        "helm_repo_list", "GET", "/repos", "List the repositories", RepositoryListRequest, listed,
        list[Repository | RepositoryDetails], group="repositories", error_statuses=(400, 500, 503),
    ),
    ChartOperation(
        "helm_repo_remove", "DELETE", "/repos/{name}", "Remove a repository", RepositoryRequest, remove, None,
        status=204, mutating=True, group="repositories", error_statuses=(400, 401, 403, 404, 500, 503),
    ),
    ChartOperation(
        "helm_repo_update", "POST", "/repos/{name}/update", "Update a repository's index", RepositoryRequest,
        update, None, group="repositories", error_statuses=_UPDATE_ERRORS,
    ),
    ChartOperation(
        "helm_repo_update_all", "POST", "/repos/update-all", "Update all indexes", EmptyRequest, update_all, None,
        group="repositories", error_statuses=(500, 502), headers={"Warning": "One per repository that failed"},
    ),
    ChartOperation(
        "helm_repo_charts", "GET", "/repos/{name}/charts",
        "List a repository's charts, each with its newest stable version",
        RepositoryRequest, charts, list[ChartItem], group="repositories",
    ),
    ChartOperation(
        "helm_repo_versions", "GET", "/repos/{name}/charts/{chart}/versions", "List a chart's versions, newest first",
        ChartRequest, versions, list[ChartItem], group="repositories",
    ),
]  # fmt: skip
