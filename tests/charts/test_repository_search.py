"""The search over all repositories finds and orders charts as `helm search repo` does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chart_servers
import pytest
from chart_servers import FULL, index_entry, index_file, post_json, run_helm
from conftest import Server
from http_checks import check_problem, running_server

PATH = "/api/v1/repos/search"
FIRST = index_file(
    index_entry("nginx", "1.0.0", description="A server", keywords=["http", "proxy"], appVersion="1"),
    index_entry("nginx", "1.10.0", description="A WEB server", keywords=["http"]),
    index_entry("nginx", "1.9.0", description="A cache server"),
    index_entry("nginx", "2.0.0-rc.1", description="soon"),
    index_entry("cache", "0.1.0", description='with "nginx" inside'),
    index_entry("early", "0.1.0-alpha", description="nothing stable"),
    index_entry("zero", "0.0.0", description="not found by default"),
)
SECOND = index_file(
    index_entry("proxy", "3.2.1", description="another"),
    index_entry("nginx", "0.5.0", description="an older one", keywords=["Größe", "cache"]),
)
REPOSITORIES = {"main": FIRST, "other-web": SECOND}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("helm")


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server and helm with the same repositories."""
    with chart_servers.web_server() as web:
        security = FULL | {"allowed-hosts": [web.host_port]}
        with running_server(tmp_path_factory.mktemp("server"), svc={"security": security}) as one:
            for name, index in REPOSITORIES.items():
                web.pages[f"/{name}/index.yaml"] = index
                assert post_json(one, "/repos", {"name": name, "url": f"{web.url}/{name}"}).status == 201
                run_helm(folder, "repo", "add", name, f"{web.url}/{name}")
            yield one


def of_helm(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    rows = json.loads(run_helm(folder, "search", "repo", *arguments, "--output=json").stdout)
    return [
        {"name": row["name"], "chartVersion": row["version"], "appVersion": row["app_version"] or None,
         "description": row["description"] or None}
        for row in rows
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("query", "arguments"),
    [
        ("", []),
        ("keyword=nginx", ["nginx"]),
        ("keyword=NGINX&versions=true", ["NGINX", "--versions"]),
        ("keyword=web", ["web"]),
        ("keyword=server&versions=true", ["server", "--versions"]),
        ("keyword=proxy", ["proxy"]),
        ("keyword=cache", ["cache"]),
        ("keyword=gr%C3%B6%C3%9Fe", ["größe"]),
        ("keyword=%22nginx%22", ['"nginx"']),
        ("keyword=main/n", ["main/n"]),
        ("devel=true", ["--devel"]),
        ("keyword=nginx&version=<1.10", ["nginx", "--version=<1.10"]),
        ("keyword=nginx&version=~1&versions=true", ["nginx", "--version=~1", "--versions"]),
        ("version=0.0.0", ["--version=0.0.0"]),
        ("keyword=nowhere", ["nowhere"]),
    ],
)
def test_results_equal_those_of_helm(server: Server, folder: Path, query: str, arguments: list[str]) -> None:
    answer = server.get(f"{PATH}?{query.replace('<', '%3C')}")
    assert answer.status == 200, answer
    expected = of_helm(folder, *arguments)
    assert [dict(row) for row in answer.json] == expected
    assert answer.headers["X-Total-Count"] == str(len(expected))


def test_a_list_is_limited(server: Server) -> None:
    answer = server.get(f"{PATH}?limit=1")
    assert (len(answer.json), answer.headers["X-Total-Count"]) == (1, "4")


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "version=a/b", "versions=maybe"])
def test_bad_inputs_are_refused(server: Server, query: str) -> None:
    check_problem(server.get(f"{PATH}?{query}"), 400, PATH, has_timestamp=True)
