"""Paths below /api/v1 that match no route: their errors have the format of the service they belong to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from http_checks import ERROR_FIELDS, PROBLEM_FIELDS
from in_process import TIMEOUT_SECONDS, application, fetch
from tornado.httpclient import AsyncHTTPClient
from tornado.ioloop import IOLoop

from handlers.app import Application

BROWSER = "text/html,application/xhtml+xml,*/*;q=0.8"

SHAPES = {
    "supervision": ("application/json", ERROR_FIELDS),
    "charts": ("application/problem+json", PROBLEM_FIELDS | {"timestamp", "code"}),
    "tracker": ("application/problem+json", PROBLEM_FIELDS),
}
SERVICE_OF_SEGMENT = {
    "processes": "supervision", "supervisor": "supervision", "events": "supervision",
    "releases": "charts", "charts": "charts", "repos": "charts", "hub": "charts", "dependencies": "charts",
    "projects": "tracker", "runs": "tracker", "gate": "tracker", "ingest": "tracker", "compare": "tracker",
    "me": "tracker", "users": "tracker",
    "%72eleases": "charts", "pro%6Aects": "tracker",
    "nope": "supervision", "Releases": "supervision", "releases-not-there": "supervision",
    "accounts": "supervision", "": "supervision",
}  # fmt: skip
UNROUTED = {
    f"{prefix}/api/v1/{segment}/{rest}": prefix.strip("/") or service
    for segment, service in SERVICE_OF_SEGMENT.items()
    for rest in ("a/b/c/d/e/f", "%2E%2E/x/y/z/u", "%FF/%00/x/y/z")
    for prefix in ("", "/supervision", "/charts", "/tracker")
}


@pytest.fixture
def app(io_loop: IOLoop, tmp_path: Path) -> Iterator[Application]:
    with application(io_loop, tmp_path) as app:
        yield app


@pytest.mark.gen_test(timeout=TIMEOUT_SECONDS)
async def test_an_unrouted_path_has_the_error_shape_of_its_prefix_or_first_segment(
    http_client: AsyncHTTPClient, base_url: str
) -> None:
    wrong = []
    for path, service in UNROUTED.items():
        media_type, fields = SHAPES[service]
        for method, accept in (("GET", "*/*"), ("GET", BROWSER), ("POST", "*/*"), ("DELETE", "*/*")):
            response = await fetch(http_client, base_url + path, method, {"Accept": accept})
            if response.headers["Content-Type"] != media_type or set(json.loads(response.body)) != fields:
                wrong.append((method, path, response.headers["Content-Type"]))
            assert response.code in (400, 404, 405), path
    assert wrong == []


class TestWithABasePath:
    """`svc.rest.base-path` moves the charts; /api/v1 then belongs to other services."""

    @pytest.fixture
    def app(self, io_loop: IOLoop, tmp_path: Path) -> Iterator[Application]:
        with application(io_loop, tmp_path, svc={"rest": {"base-path": "/helm"}}) as app:
            yield app

    @pytest.mark.gen_test(timeout=TIMEOUT_SECONDS)
    async def test_errors_of_charts_follow_the_base_path(self, http_client: AsyncHTTPClient, base_url: str) -> None:
        for path, service in {
            "/helm/releases/a/b/c/d/e": "charts",
            "/charts/helm/nope": "charts",
            "/charts/api/v1/releases/a/b/c/d": "charts",
            "/api/v1/releases/a/b/c/d": "supervision",
            "/api/v1/projects/a/b/c/d": "tracker",
        }.items():
            response = await fetch(http_client, base_url + path)
            assert (response.code, response.headers["Content-Type"]) == (404, SHAPES[service][0]), path
            assert set(json.loads(response.body)) == SHAPES[service][1], path
