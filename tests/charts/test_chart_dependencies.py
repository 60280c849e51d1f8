"""The lock of a chart's dependencies: it equals the lock of helm; unresolvable dependencies are refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chart_servers
import pytest
import yaml
from chart_servers import FULL, WebServer, index_entry, index_file, post_json
from conftest import Answer, Server
from http_checks import check_problem, running_server

PATH = "/api/v1/dependencies/resolve"
DATABASES = ("1.0.0", "1.2.0", "1.10.0", "2.0.0", "3.0.0-rc.1")
CACHES = ("0.1.0", "0.1.5", "0.2.0", "v1.0.0", "1.1.0+build.5")
QUEUES = ("1.0.0", "1.0.0+b1", "v1.2.0", "1.2.0", "2", "2.1")


@pytest.fixture(scope="module")
def web() -> Iterator[WebServer]:
    with chart_servers.web_server() as one:
        one.serve(
            *(("database", version, chart_servers.chart_archive("database", version)) for version in DATABASES),
            folder="/a",
        )
        one.serve(
            *(("cache", version, chart_servers.chart_archive("cache", version)) for version in CACHES), folder="/b"
        )
        queues = [("queue", version, chart_servers.chart_archive("queue", version)) for version in QUEUES]
        one.serve(*queues, folder="/c")
        entries = [index_entry(*queue) for queue in queues]
        one.pages["/c/index.yaml"] = index_file(*entries, index_entry("queue", "3.0.0", urls=[]))
        yield one


@pytest.fixture(scope="module")
def forbidden() -> Iterator[WebServer]:
    with chart_servers.web_server() as one:
        yield one


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("registry")
    with chart_servers.running_registry(folder) as place:
        for version in ("1.0.0", "1.1.0", "2.0.0-rc.1"):
            (folder / "q.tgz").write_bytes(chart_servers.chart_archive("queue", version))
            chart_servers.run_helm(folder, "push", "--plain-http", "q.tgz", f"oci://{place}/charts")
        yield place


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, web: WebServer) -> Iterator[Server]:
    security = FULL | {"allowed-hosts": [web.host_port]}
    with running_server(tmp_path_factory.mktemp("server"), svc={"security": security}) as one:
        assert post_json(one, "/repos", {"name": "aaa", "url": f"{web.url}/a"}).status == 201
        yield one


_names = iter(range(10_000))


def resolve(server: Server, web: WebServer, data: bytes) -> Answer:
    """Adds a repository with this chart and resolves the dependencies of the chart."""
    name = f"own{next(_names)}"
    web.serve(("demo", "0.1.0", data), folder=f"/{name}")
    assert post_json(server, "/repos", {"name": name, "url": f"{web.url}/{name}"}).status == 201
    return post_json(server, "/dependencies/resolve", {"chartRef": f"{name}/demo"})


def lock_of_helm(folder: Path, web: WebServer, dependencies: list[dict[str, Any]], *options: str) -> Any:
    """The lock that helm writes for a chart with these dependencies."""
    chart = folder / "demo"
    chart.mkdir()
    facts = {"apiVersion": "v2", "name": "demo", "version": "0.1.0", "dependencies": dependencies}
    (chart / "Chart.yaml").write_text(yaml.safe_dump(facts, sort_keys=False))
    chart_servers.run_helm(folder, "repo", "add", "aaa", f"{web.url}/a")
    chart_servers.run_helm(folder, "dependency", "update", *options, "demo")
    return yaml.safe_load((chart / "Chart.lock").read_text())


CASES: dict[str, list[dict[str, Any]]] = {
    "exact": [{"name": "database", "version": "1.2.0", "repository": "{0}/a"}],
    "caret": [{"name": "database", "version": "^1.0.0", "repository": "{0}/a"}],
    "tilde": [{"name": "cache", "version": "~0.1", "repository": "{0}/b"}],
    "anything": [{"name": "cache", "version": "*", "repository": "{0}/b"}],
    "bounds": [{"name": "database", "version": ">=1.2.0 <1.10.0", "repository": "{0}/a/"}],
    "prerelease": [{"name": "database", "version": ">=3.0.0-0", "repository": "{0}/a"}],
    "v and build": [
        {"name": "cache", "version": "1.0.0", "repository": "{0}/b"},
        {"name": "cache", "version": ">1.0", "repository": "{0}/b", "alias": "second"},
    ],
    "first in range": [
        {"name": "queue", "version": "1.0.0+b1", "repository": "{0}/c"},
        {"name": "queue", "version": "1.2.0", "repository": "{0}/c", "alias": "b"},
        {"name": "queue", "version": "2", "repository": "{0}/c", "alias": "c"},
        {"name": "queue", "version": ">1", "repository": "{0}/c", "alias": "without-url"},
    ],
    "named": [
        {"name": "database", "version": "1.x", "repository": "@aaa"},
        {"name": "database", "version": "2.x", "repository": "alias:aaa", "alias": "other"},
    ],
    "conditions": [
        {
            "name": "database", "version": "1.2", "repository": "{0}/a", "condition": "database.enabled,global.<on>",
            "tags": ["back", "end"], "enabled": False, "alias": "db",
            "import-values": ["data", {"child": "a.b", "parent": "c"}],
        },
        {"name": "cache", "version": "0.2.0", "repository": "{0}/b", "condition": "never", "enabled": True},
    ],
    "spaces and order": [
        {
            "name": "data\u200bbase", "version": "\t^1\n", "repository": "{0}/a", "condition": "a.b,\n c\u00a0.d",
            "tags": ["back\tend", None, 5],
            "import-values": [{"parent": "c", "child": "a.b", "x": [{"z": "1", "b": "2"}]}],
        },
    ],
    "none": [],
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_lock_equals_that_of_helm(server: Server, web: WebServer, tmp_path: Path, name: str) -> None:
    dependencies = [{**one, "repository": one["repository"].format(web.url)} for one in CASES[name]]
    answer = resolve(server, web, chart_servers.chart_archive(dependencies=dependencies))
    assert answer.status == 200, answer
    own, theirs = yaml.safe_load(answer.text), lock_of_helm(tmp_path, web, dependencies)
    assert own["dependencies"] == theirs["dependencies"]
    assert own["digest"] == theirs["digest"]
    assert list(own) == list(theirs) == ["dependencies", "digest", "generated"]


def test_the_lock_is_sent_as_yaml(server: Server, web: WebServer) -> None:
    dependencies = [{"name": "database", "version": "1.x", "repository": f"{web.url}/a"}]
    answer = resolve(server, web, chart_servers.chart_archive(dependencies=dependencies))
    assert answer.headers.get_all("Content-Type") == ["text/yaml"]
    assert answer.text.startswith(
        f"dependencies:\n- name: database\n  repository: {web.url}/a\n  version: 1.10.0\ndigest: sha256:"
    )
    assert re.search(r"^generated: ['\"]\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z['\"]$", answer.text, re.MULTILINE)


def test_dependencies_in_registries_are_resolved(tmp_path: Path, web: WebServer, registry: str) -> None:
    dependencies = [
        {"name": "queue", "version": "1.x", "repository": f"oci://{registry}/charts"},
        {"name": "queue", "version": "1.0.0", "repository": f"oci://{registry}/charts", "alias": "old"},
    ]
    with running_server(tmp_path, svc={"security": FULL | {"allowed-hosts": [web.host_port, registry]}}) as server:
        answer = resolve(server, web, chart_servers.chart_archive(dependencies=dependencies))
        missing = [
            resolve(server, web, chart_servers.chart_archive(dependencies=[{**dependencies[0], **change}]))
            for change in ({"version": "1.0.9"}, {"name": "nothing", "version": "1.0.0"})
        ]
    assert [(one.status, "in that version" in one.json["detail"]) for one in missing] == [(404, True)] * 2
    assert answer.status == 200, answer
    own, theirs = yaml.safe_load(answer.text), lock_of_helm(tmp_path, web, dependencies, "--plain-http")
    assert [one["version"] for one in own["dependencies"]] == ["1.1.0", "1.0.0"]
    assert (own["dependencies"], own["digest"]) == (theirs["dependencies"], theirs["digest"])


def test_dependencies_of_a_v1_chart_are_read_from_requirements_yaml(
    server: Server, web: WebServer, tmp_path: Path
) -> None:
    dependencies = [{"name": "database", "version": "1.x", "repository": f"{web.url}/a"}]
    text = yaml.safe_dump({"dependencies": dependencies})
    answer = resolve(server, web, chart_servers.chart_archive(apiVersion="v1", files={"requirements.yaml": text}))
    assert yaml.safe_load(answer.text)["digest"] == lock_of_helm(tmp_path, web, dependencies)["digest"]


def test_a_vendored_dependency_needs_no_repository(server: Server, web: WebServer, tmp_path: Path) -> None:
    dependencies = [{"name": "local", "version": ">=0.1.0", "repository": ""}]
    local = "apiVersion: v2\nname: local\nversion: 0.2.0\n"
    answer = resolve(
        server, web, chart_servers.chart_archive(dependencies=dependencies, files={"charts/local/Chart.yaml": local})
    )
    (tmp_path / "demo" / "charts" / "local").mkdir(parents=True)
    (tmp_path / "demo" / "charts" / "local" / "Chart.yaml").write_text(local)
    facts = {"apiVersion": "v2", "name": "demo", "version": "0.1.0", "dependencies": dependencies}
    (tmp_path / "demo" / "Chart.yaml").write_text(yaml.safe_dump(facts))
    chart_servers.run_helm(tmp_path, "dependency", "update", "demo")
    theirs = yaml.safe_load((tmp_path / "demo" / "Chart.lock").read_text())
    own = yaml.safe_load(answer.text)
    assert (own["dependencies"], own["digest"]) == (theirs["dependencies"], theirs["digest"])


def test_a_chart_without_dependencies_has_an_empty_lock(server: Server, web: WebServer) -> None:
    found = yaml.safe_load(resolve(server, web, chart_servers.chart_archive()).text)
    assert found["dependencies"] == []
    assert re.fullmatch("sha256:[0-9a-f]{64}", found["digest"])


@pytest.mark.parametrize(
    ("dependency", "status", "message"),
    [
        ({"version": "1.x", "repository": "file://../database"}, 400, "neither http nor https"),
        ({"version": "1.x", "repository": "file:///etc"}, 400, "neither http nor https"),
        ({"version": "1.x", "repository": "../database"}, 400, "neither http nor https"),
        ({"version": "1.x", "repository": "s3://bucket"}, 400, "neither http nor https"),
        ({"version": "1.x", "repository": "{1}"}, 400, "is refused"),
        ({"version": "1.x", "repository": "http://169.254.169.254/"}, 400, "is refused"),
        ({"version": "1.x", "repository": "oci://127.0.0.1:1/charts"}, 400, "is refused"),
        ({"version": "1.x", "repository": "oci://reg.example/../charts"}, 400, "its repository"),
        ({"version": "1.x"}, 400, "no repository"),
        ({"repository": "{0}/a"}, 400, "the dependency database: it has no version"),
        ({"version": " ", "repository": "{0}/a"}, 400, "it has no version"),
        ({"version": "nonsense", "repository": "{0}/a"}, 400, "version"),
        ({"version": "1/2", "repository": "{0}/a"}, 400, "version"),
        ({"version": ">9", "repository": "{0}/a"}, 404, "no version >9"),
        ({"name": "queue", "version": "3.0.0", "repository": "{0}/c"}, 404, "no version 3.0.0"),
        ({"version": "1.x", "repository": "{0}/b"}, 404, "no chart database"),
        ({"version": "1.x", "repository": "@nobody"}, 404, "no repository nobody"),
        ({"version": "1.x", "repository": "{0}/nowhere"}, 400, "not a chart repository"),
    ],
)
def test_unresolvable_dependencies_are_reported(
    server: Server, web: WebServer, forbidden: WebServer, dependency: dict[str, str], status: int, message: str
) -> None:
    forbidden.serve(("database", "1.0.0", chart_servers.chart_archive("database", "1.0.0")))
    result = {name: text.format(web.url, forbidden.url) for name, text in dependency.items()}
    answer = resolve(server, web, chart_servers.chart_archive(dependencies=[{"name": "database", **result}]))
    assert message in check_problem(answer, status, PATH, has_timestamp=True)["detail"]
    assert forbidden.seen == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (({"version": "1.x"}, {"version": "2.x"}), "more than one dependency with the name or alias database"),
        (({"alias": "db"}, {"alias": "db"}), "more than one dependency with the name or alias db"),
        (({"name": "cache", "alias": "database"}, {}), "more than one dependency with the name or alias database"),
        (({"alias": "a.b"},), "the dependency database: its alias"),
        (({"alias": "d\u00e4"},), "the dependency database: its alias"),
    ],
)
def test_dependencies_that_helm_cannot_load_are_refused(
    server: Server, web: WebServer, tmp_path: Path, changes: tuple[dict[str, str], ...], message: str
) -> None:
    dependencies = [{"name": "database", "version": "1.x", "repository": f"{web.url}/a", **one} for one in changes]
    data = chart_servers.chart_archive(dependencies=dependencies)
    answer = resolve(server, web, data)
    pushed = chart_servers.post_parts(server, "/repos/push", {"chart": data, "remote": f"oci://{web.host_port}/charts"})
    assert [(one.status, message in one.json["detail"]) for one in (answer, pushed)] == [(400, True)] * 2
    (tmp_path / "demo.tgz").write_bytes(data)
    refused = chart_servers.run_helm(tmp_path, "push", "demo.tgz", f"oci://{web.host_port}/charts", ok=False)
    assert "validation: " in refused.stderr


def test_an_index_that_is_not_added_is_fetched_once(server: Server, web: WebServer) -> None:
    web.pages["/once/index.yaml"] = index_file(index_entry("database", "1.0.0"))
    data = chart_servers.chart_archive(
        dependencies=[{"name": "database", "version": "1.x", "repository": f"{web.url}/once"}]
    )
    web.seen.clear()
    assert [resolve(server, web, data).status for _ in range(3)] == [200] * 3
    assert web.paths().count("/once/index.yaml") == 1
    assert f"{web.url}/once" not in server.get("/api/v1/repos").text


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 400, "chartRef is required"),
        ({"chartRef": " "}, 400, "chartRef is required"),
        ({"chartRef": "/etc"}, 400, "chartRef must be"),
        ({"chartRef": "aaa/database", "version": "1/2"}, 400, "version"),
        ({"chartRef": "aaa/nothing"}, 404, "nothing"),
        ({"chartRef": "nobody/database"}, 404, "nobody"),
    ],
)
def test_resolving_dependencies_of_a_missing_chart_is_an_error(
    server: Server, body: dict[str, str], status: int, message: str
) -> None:
    result = check_problem(post_json(server, "/dependencies/resolve", body), status, PATH, has_timestamp=True)
    assert message in result["detail"]
