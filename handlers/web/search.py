"""The search over everything that the caller may read: pages, processes, projects, runs, tests, releases, charts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar
from urllib.parse import quote, urlencode

from attrs import frozen

from handlers.base import Base, HtmlPage, write_page
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
"""Results of one kind that are shown at least, so that no kind pushes the others out of a short list."""
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
_MIN_VERB = 3
_ALL = {
    "process": ("/processes", "processes"),
    "project": ("/projects", "projects"),
    "run": ("/search", "runs"),
    "test": ("/search", "tests"),
    "release": ("/releases", "releases"),
    "chart": ("/search", "charts"),
}
"""The page that lists all results of a kind, and the plural of the kind."""


@frozen
class SearchResult:
    """`href` is the path of its page below the prefix. An `action` is a `POST` to the API path `href`."""

    kind: str
    title: str
    detail: str
    state: str
    href: str


@frozen
class _Kind:
    """The results of one kind, best first, and how many match; `is_more`: at least so many."""

    kind: str
    results: Sequence[SearchResult]
    total: int
    is_more: bool = False


async def search(page: Base, text: str, limit: int, only: str = "") -> list[SearchResult]:
    """What matches the text, best first: names that begin with it, then names that contain it.

    Each kind gets room for six, and what the others leave. A kind with more has a result that leads to all of them.
    """
    text = text.strip()[:_MAX_CHARACTERS]
    needle = text.lower()
    kinds = [_pages(needle), _actions(page, needle), _processes(page, needle, limit)]
    if needle:
        tracked = await _tracked(page, text, limit)
        kinds += [await _projects(page, needle, limit), *tracked, *await _charts(page, needle, limit)]
    kinds = [kind for kind in kinds if kind.results and kind.kind == (only or kind.kind)]
    return _chosen(kinds, text, limit, bool(only))


def _chosen(kinds: Sequence[_Kind], text: str, limit: int, is_alone: bool) -> list[SearchResult]:
    """The results of all kinds within the limit, in the order of the kinds."""
    shares = [min(len(kind.results), _MAX_OF_A_KIND) for kind in kinds]
    room = limit - sum(shares) - sum(kind.total > share for kind, share in zip(kinds, shares, strict=True))
    results = list[SearchResult]()
    for kind, least in zip(kinds, shares, strict=True):
        added = max(0, min(len(kind.results) - least, room))
        room -= added
        results += kind.results[: least + added]
        if least + added < kind.total and text and not is_alone and kind.kind in _ALL:
            results.append(_all(kind, least + added, text))
    return results[:limit]


def _all(kind: _Kind, shown: int, text: str) -> SearchResult:
    """The result that leads to all of one kind."""
    path, plural = _ALL[kind.kind]
    total = f"{kind.total:,}{' or more' if kind.is_more else ''}"
    query = {"q": text, **({"kind": kind.kind} if path == "/search" else {})}
    return SearchResult("page", f"All {total} {plural}", f"{shown} of {total}", "", f"{path}?{urlencode(query)}")


def _best(found: Iterable[_Item], name: Callable[[_Item], str], needle: str, limit: int) -> tuple[list[_Item], int]:
    """The best and how many there are. Chosen before their results are made: a letter may be in a thousand names."""
    ordered = sorted(found, key=lambda item: not name(item).lower().startswith(needle))
    return ordered[:limit], len(ordered)


def _pages(needle: str) -> _Kind:
    titles, total = _best((title for title in _PAGES if needle in title.lower()), str, needle, len(_PAGES))
    return _Kind("page", [SearchResult("page", title, "", "", _PAGES[title]) for title in titles], total)


def _actions(page: Base, needle: str) -> _Kind:
    """`restart web` and `rest` offer to restart each process whose name contains `web`, or the first of all."""
    verb, _, name = needle.partition(" ")
    verbs = [each for each in _VERBS if len(verb) >= _MIN_VERB and each.startswith(verb)]
    names = [process.name for process in page.supervision.fleet if name.strip() in process.name.lower()]
    results = [
        SearchResult("action", f"{each.capitalize()} {match}", "", "", _action(each, match))
        for each in verbs
        for match in names[:_MAX_OF_A_KIND]
    ]
    return _Kind("action", results[:_MAX_OF_A_KIND], min(len(results), _MAX_OF_A_KIND))


def _action(verb: str, name: str) -> str:
    return f"/api/v1/processes/{verb}/{quote(name, safe='')}"


def _processes(page: Base, needle: str, limit: int) -> _Kind:
    found = (one for one in page.supervision.fleet if needle in f"{one.name} {one.spec.description}".lower())
    best, total = _best(found, lambda process: process.name, needle, limit)
    results = [
        SearchResult("process", one.name, one.spec.description, one.status.value, process_url(one.name)) for one in best
    ]
    return _Kind("process", results, total)


async def _projects(page: Base, needle: str, limit: int) -> _Kind:
    projects = await projects_of(page)
    found = (status for status in projects.statuses if needle in status.project.name.lower())
    best, total = _best(found, lambda status: status.project.name, needle, limit)
    results = [
        SearchResult("project", one.project.name, one.reason, one.health.value, f"/projects/{one.project.id}")
        for one in best
    ]
    return _Kind("project", results, total)


async def _tracked(page: Base, text: str, limit: int) -> tuple[_Kind, _Kind]:
    """The runs and the tests."""
    user = page.caller.user
    runs, tests = await page.tracker.run(
        lambda: (
            tracker_search.find_runs(user, text, limit + 1),
            tracker_search.find_tests(user, text, limit + 1),
        )
    )
    about_runs = [
        SearchResult("run", f"Run {run.id} of {run.project}", _about(run), run.status.lower(), f"/runs/{run.id}")
        for run in runs
    ]
    about_tests = [
        SearchResult("test", f"{test.class_name} {test.name}".strip(), test.project, "", _of(test)) for test in tests
    ]
    return _counted("run", about_runs, limit), _counted("test", about_tests, limit)


def _counted(kind: str, results: list[SearchResult], limit: int) -> _Kind:
    """The results of a search that reads one more than the limit."""
    return _Kind(kind, results[:limit], len(results), len(results) > limit)


def _of(test: tracker_search.FoundTest) -> str:
    query = urlencode({"className": test.class_name, "name": test.name})
    return f"/projects/{test.project_id}/test?{query}"


def _about(run: tracker_search.FoundRun) -> str:
    return ", ".join(part for part in (run.branch, (run.commit or "")[:10]) if part)


async def _charts(page: Base, needle: str, limit: int) -> list[_Kind]:
    """The releases, where a cluster is known, and the charts."""
    charts, kinds = page.charts, list[_Kind]()
    work = charts.work(page.request)
    known = (
        await charts.overview.lately(work.reads, _MAX_RELEASES_AGE_SECONDS) if charts.has_cluster(work.target) else None
    )
    if known is not None and known.problem is None:
        found = (release for release in known.releases if needle in release.name.lower())
        best, total = _best(found, lambda release: release.name, needle, limit)
        results = [
            SearchResult("release", one.name, one.namespace, one.status, release_url(one.namespace, one.name))
            for one in best
        ]
        kinds.append(_Kind("release", results, total))
    names = await charts.repositories.stored(lambda: repositories.charts_named(needle, limit + 1))
    results = [
        SearchResult("chart", f"{repository}/{chart}", "", "", f"{repository_url(repository)}/{quote(chart, safe='')}")
        for repository, chart in names
    ]
    return [*kinds, _counted("chart", results, limit)]


@http_message
class SearchRequest:
    q: str | None = query("A part of a name, the number of a run, or the beginning of a commit", kind=free_text("web"))
    limit: int = query("The maximum number of results", DEFAULT_LIMIT, kind=whole(1, MAX_LIMIT))


async def search_all(handler: Base, request: SearchRequest) -> list[SearchResult]:
    """Search results as JSON, for the palette."""
    return await search(handler, request.q or "", request.limit)


class SearchPage(HtmlPage):
    """The search without script."""

    permission = READ

    async def get(self) -> None:
        text = self.query().get("q", "").strip()
        kind = self.query().get("kind", "")
        results = await search(self, text, MAX_LIMIT, kind if kind in _ALL else "")
        shown = [result for result in results if result.kind != "action"]
        write_page(self, "web/search.html", q=text, results=shown, state_html=state_html)


def state_html(result: SearchResult) -> str:
    """Renders the state of a result."""
    if not result.state:
        return ""
    kind = (_process_kind if result.kind == "process" else _plain_kind)(result.state)
    label = result.state.replace("_", " ").replace("-", " ")
    return layout.state(f"tests {label}" if result.kind == "run" else label, kind)


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
