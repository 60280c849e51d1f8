"""The search over everything that the caller may read: pages, processes, projects, runs, tests, releases, charts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar
from urllib.parse import quote, urlencode

from attrs import frozen

from handlers.base import Base, Page, write_page
from handlers.charts.release_list import release_url
from handlers.charts.repository_pages import repository_url
from handlers.http.permissions import READ
from handlers.operations import Operation, operation_routes
from handlers.routing import Route
from handlers.supervision.process_table import process_url
from handlers.tracker.project_status import projects_of
from handlers.web import layout
from models.charts.repositories import stored as repositories
from models.inputs import free_text, query, whole
from models.json_format import http_message
from models.supervision.process import STATUSES
from models.tracker import search as tracker_search

_Item = TypeVar("_Item")

DEFAULT_LIMIT, MAX_LIMIT = 20, 100
_MAX_CHARACTERS = 200
_MAX_RELEASES_AGE_SECONDS = 10.0
"""The palette searches at each key: the cluster is not listed for each of them."""
_MAX_OF_A_KIND = 6
"""Results of one kind, so that no kind pushes the others out of a short list."""
_PAGES = {
    "Overview": "/",
    "Processes": "/processes",
    "History": "/history",
    "Releases": "/releases",
    "Install a chart": "/releases/new",
    "Charts and repositories": "/repositories",
    "Projects and tests": "/projects",
    "Compare runs": "/compare",
    "API": "/swagger-ui.html",
    "Profile, tokens, sessions": "/profile",
}
_VERBS = ("start", "stop", "restart")


@frozen
class SearchResult:
    """`href` is the path of its page below the prefix. An `action` is a `POST` to the API path `href`."""

    kind: str
    title: str
    detail: str
    state: str
    href: str


async def search(page: Base, text: str, limit: int) -> list[SearchResult]:
    """What matches the text, best first: names that begin with it, then names that contain it."""
    text = text.strip()[:_MAX_CHARACTERS]
    needle = text.lower()
    results = [*_pages(needle), *_actions(page, needle), *_processes(page, needle)]
    if needle:
        results += [*await _projects(page, needle), *await _tracked(page, text), *await _charts(page, needle)]
    return results[:limit]


def _best(
    found: Iterable[_Item], name: Callable[[_Item], str], needle: str, limit: int = _MAX_OF_A_KIND
) -> list[_Item]:
    """Chosen before their results are made: a letter may be found in a thousand releases."""
    return sorted(found, key=lambda item: not name(item).lower().startswith(needle))[:limit]


def _pages(needle: str) -> list[SearchResult]:
    titles = _best((title for title in _PAGES if needle in title.lower()), str, needle, len(_PAGES))
    return [SearchResult("page", title, "", "", _PAGES[title]) for title in titles]


def _actions(page: Base, needle: str) -> Iterator[SearchResult]:
    """`restart web` offers to restart each process whose name contains `web`."""
    verb, _, name = needle.partition(" ")
    if verb not in _VERBS or not name.strip():
        return
    names = [process.name for process in page.supervision.fleet if name.strip() in process.name.lower()]
    for match in names[:_MAX_OF_A_KIND]:
        href = f"/api/v1/processes/{verb}/{quote(match, safe='')}"
        yield SearchResult("action", f"{verb.capitalize()} {match}", "", "", href)


def _processes(page: Base, needle: str) -> list[SearchResult]:
    found = (one for one in page.supervision.fleet if needle in f"{one.name} {one.spec.description}".lower())
    return [
        SearchResult("process", one.name, one.spec.description, one.status.value, process_url(one.name))
        for one in _best(found, lambda process: process.name, needle)
    ]


async def _projects(page: Base, needle: str) -> list[SearchResult]:
    projects = await projects_of(page)
    found = (status for status in projects.statuses if needle in status.project.name.lower())
    return [
        SearchResult("project", one.project.name, one.reason, one.health.value, f"/projects/{one.project.id}")
        for one in _best(found, lambda status: status.project.name, needle)
    ]


async def _tracked(page: Base, text: str) -> list[SearchResult]:
    user = page.caller.user
    runs, tests = await page.tracker.run(
        lambda: (
            tracker_search.find_runs(user, text, _MAX_OF_A_KIND),
            tracker_search.find_tests(user, text, _MAX_OF_A_KIND),
        )
    )
    return [
        *(
            SearchResult("run", f"Run {run.id} of {run.project}", _about(run), run.status.lower(), f"/runs/{run.id}")
            for run in runs
        ),
        *(
            SearchResult(
                "test",
                f"{test.class_name} {test.name}".strip(),
                test.project,
                "",
                f"/projects/{test.project_id}/test?{urlencode({'className': test.class_name, 'name': test.name})}",
            )
            for test in tests
        ),
    ]


def _about(run: tracker_search.FoundRun) -> str:
    return ", ".join(part for part in (run.branch, (run.commit or "")[:10]) if part)


async def _charts(page: Base, needle: str) -> list[SearchResult]:
    charts, results = page.charts, list[SearchResult]()
    work = charts.work(page.request)
    known = (
        await charts.overview.lately(work.reads, _MAX_RELEASES_AGE_SECONDS) if charts.has_cluster(work.target) else None
    )
    if known is not None and known.problem is None:
        found = (release for release in known.releases if needle in release.name.lower())
        results += [
            SearchResult("release", one.name, one.namespace, one.status, release_url(one.namespace, one.name))
            for one in _best(found, lambda release: release.name, needle)
        ]
    names = await charts.repositories.stored(lambda: repositories.charts_named(needle, _MAX_OF_A_KIND))
    for repository, chart in names:
        href = f"{repository_url(repository)}/{quote(chart, safe='')}"
        results.append(SearchResult("chart", f"{repository}/{chart}", "", "", href))
    return results


@http_message
class SearchRequest:
    q: str | None = query("A part of a name, the number of a run, or the beginning of a commit", kind=free_text("web"))
    limit: int = query("The maximum number of results", DEFAULT_LIMIT, kind=whole(1, MAX_LIMIT))


async def search_all(handler: Base, request: SearchRequest) -> list[SearchResult]:
    """Search results as JSON, for the palette."""
    return await search(handler, request.q or "", request.limit)


class SearchPage(Page):
    """The search without script."""

    permission = READ

    async def get(self) -> None:
        text = self.query().get("q", "").strip()
        results = await search(self, text, MAX_LIMIT)
        shown = [result for result in results if result.kind != "action"]
        write_page(self, "web/search.html", q=text, results=shown, state_html=state_html)


def state_html(result: SearchResult) -> str:
    """Renders the state of a result."""
    if not result.state:
        return ""
    kind = (_process_kind if result.kind == "process" else _plain_kind)(result.state)
    return layout.state(result.state.replace("_", " ").replace("-", " "), kind)


def _process_kind(status: str) -> str:
    return next((layout.kind_of(one) for one in STATUSES if one.value == status), "")


def _plain_kind(state: str) -> str:
    kinds = {"good": ("passed", "healthy", "deployed"), "bad": ("failed", "failing"), "warn": ("at risk", "unknown")}
    return next((kind for kind, states in kinds.items() if state in states), "")


OPERATIONS = [
    Operation(
        None, "GET", "/search", "Search pages, processes, projects, runs, tests, releases and charts", SearchRequest,
        search_all, list[SearchResult], name="search_all", permission=READ,
    )
]  # fmt: skip
api_routes: list[Route] = operation_routes(OPERATIONS)
routes: list[Route] = [(r"/search", SearchPage)]
