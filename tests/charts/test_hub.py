"""The search in the hub, against a fake of the documented /packages/search of Artifact Hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import chart_servers
import pytest
from chart_servers import WebServer
from conftest import Server
from http_checks import check_problem, running_server

PATH = "/api/v1/packages/search"
SEARCH_PATH = "/api/v1/hub/search"


def package(name: str, **facts: Any) -> dict[str, Any]:
    """A package as Artifact Hub returns it, including fields that are not used."""
    return {
        "package_id": "00000000-0000-4000-8000-000000000000", "name": name, "normalized_name": name, "stars": 7,
        "display_name": name.title(), "description": f"{name} for all", "version": "1.2.3", "app_version": "4.5",
        "deprecated": False, "signed": False, "ts": 1700000000,
        "repository": {
            "name": "bits", "url": "https://bits.example/charts", "kind": 0, "display_name": "Bits", "official": True,
        },
        **facts,
    }  # fmt: skip


@pytest.fixture(scope="module")
def hub() -> Iterator[WebServer]:
    with chart_servers.web_server() as one:
        yield one


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, hub: WebServer) -> Iterator[Server]:
    svc = {"hub": {"url": f"{hub.url}/"}, "security": {"allowed-hosts": [hub.host_port]}}
    with running_server(tmp_path_factory.mktemp("server"), svc=svc) as one:
        yield one


def set_packages(hub: WebServer, *packages: Any) -> None:
    hub.pages[PATH] = json.dumps({"packages": packages}).encode()
    hub.seen.clear()


def test_the_hub_is_queried_and_its_packages_are_returned(server: Server, hub: WebServer) -> None:
    set_packages(hub, package("redis"), package("valkey", repository={"name": "val", "url": "https://val.example"}))
    found = server.get(f"{SEARCH_PATH}?keyword=redis")
    assert (found.status, found.headers.get_all("Content-Type")) == (200, ["application/json"])
    assert found.json == [
        {
            "name": name,
            "version": "1.2.3",
            "appVersion": "4.5",
            "repoName": of,
            "repoUrl": url,
            "description": f"{name} for all",
            "url": f"{hub.url}/packages/helm/{of}/{name}",
        }
        for name, of, url in [
            ("redis", "bits", "https://bits.example/charts"),
            ("valkey", "val", "https://val.example"),
        ]
    ]
    requested = parse_qs(urlsplit(hub.paths()[0]).query)
    assert (requested["ts_query_web"], requested["kind"], requested["limit"]) == (["redis"], ["0"], ["20"])


def test_the_keyword_is_escaped_in_the_query_to_the_hub(server: Server, hub: WebServer) -> None:
    set_packages(hub)
    assert server.get(f"{SEARCH_PATH}?keyword=a%26limit%3D1%20%C3%BC%2Fb%23&maxResults=60").json == []
    requested = parse_qs(urlsplit(hub.paths()[0]).query)
    assert (requested["ts_query_web"], requested["limit"]) == (["a&limit=1 \u00fc/b#"], ["60"])


def test_equal_searches_are_cached(server: Server, hub: WebServer) -> None:
    set_packages(hub, package("once"))
    assert [len(server.get(f"{SEARCH_PATH}?keyword=once&maxResults={most}").json) for most in (1, 1, 2)] == [1, 1, 1]
    assert len(hub.seen) == 2


def test_at_most_max_results_packages_are_returned(server: Server, hub: WebServer) -> None:
    set_packages(hub, *(package(f"p{number}") for number in range(10)))
    assert len(server.get(f"{SEARCH_PATH}?keyword=many&maxResults=3").json) == 3


def test_missing_fields_of_a_package_are_empty(server: Server, hub: WebServer) -> None:
    set_packages(hub, {"name": "bare"})
    assert server.get(f"{SEARCH_PATH}?keyword=bare").json == [
        {
            "name": "bare", "version": "", "appVersion": "", "repoName": "", "repoUrl": "", "description": "",
            "url": f"{hub.url}/packages/helm//bare",
        }
    ]  # fmt: skip


@pytest.mark.parametrize("most", ["0", "61", "-1", "x", "1.5", "99999999999999999999", "1e1"])
def test_max_results_must_be_a_number_from_1_to_60(server: Server, most: str) -> None:
    result = check_problem(
        server.get(f"{SEARCH_PATH}?keyword=x&maxResults={most}"), 400, SEARCH_PATH, has_timestamp=True
    )
    assert "maxResults" in result["detail"]


@pytest.mark.parametrize("query", ["", "?keyword=", "?keyword=%20", "?maxResults=5"])
def test_the_keyword_is_required(server: Server, query: str) -> None:
    assert (
        check_problem(server.get(f"{SEARCH_PATH}{query}"), 400, SEARCH_PATH, has_timestamp=True)["detail"]
        == "keyword is required"
    )


@pytest.mark.parametrize(
    ("page", "status"),
    [
        ((429, {"Retry-After": "1"}, b"{}"), 502),
        ((500, {}, b""), 502),
        ((200, {}, b"<html>"), 502),
        ((200, {}, b"[]"), 502),
        ((200, {}, b"{}"), 502),
        ((200, {}, b'{"packages": [7]}'), 502),
        ((200, {}, b'{"packages": null}'), 200),
        ((302, {"Location": "http://169.254.169.254/"}, b""), 400),
        ((302, {"Location": "http://localhost:1/"}, b""), 400),
        ((200, {}, b"[" * 5_000_000), 502),
    ],
)
def test_unexpected_responses_of_the_hub_are_reported(
    server: Server, hub: WebServer, page: chart_servers.Reply, status: int
) -> None:
    hub.pages[PATH] = page
    found = server.get(f"{SEARCH_PATH}?keyword=odd{abs(hash(repr(page)))}")
    assert found.status == status, found


def test_a_hub_on_loopback_must_be_an_allowed_host(tmp_path_factory: pytest.TempPathFactory, hub: WebServer) -> None:
    with running_server(tmp_path_factory.mktemp("strict"), svc={"hub": {"url": hub.url}}) as strict:
        hub.seen.clear()
        assert strict.get(f"{SEARCH_PATH}?keyword=x").status == 400
        assert hub.seen == []
