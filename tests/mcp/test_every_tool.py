"""Every tool, called by the SDK's client over each of the three transports; and the messages of failures."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from chart_servers import WebServer, running_registry, web_server
from cluster import Cluster
from conftest import Answer, Server
from http_checks import running_server
from mcp.client.client import Client
from mcp_clients import (
    CHANGING,
    FULL,
    KEY,
    READING,
    TRANSPORTS,
    error_text,
    over_http,
    over_sse,
    over_stdio,
    result_text,
    run_client,
    tool_names,
)
from small_charts import chart_archive, sample_chart
from uploads import junit, upload

API = "/api/v1"
HUB = "/api/v1/packages/search"
PACKAGE = {
    "name": "redis", "version": "1.0.0", "app_version": "7", "description": "a store",
    "repository": {"name": "lab", "url": "https://lab.example"},
}  # fmt: skip
TINT = sample_chart()
NEXT = chart_archive(version="0.2.0", values="colour: teal\n")


class Lab:
    """A server with a cluster, a repository, a hub, a registry, a process and a run."""

    def __init__(self, server: Server, cluster: Cluster, repository: WebServer, remote: str, run_id: str) -> None:
        self.server, self.cluster, self.repository, self.remote, self.run_id = (
            server, cluster, repository, remote, run_id,
        )  # fmt: skip


@pytest.fixture(scope="module")
def lab(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("lab")
    log = folder / "web.log"
    log.write_text("one\ntwo\n")
    job = {"command": "true", "schedule": "@yearly", "auto-start": True}
    processes = {"web": {"command": "sleep 1000", "stdout-logfile": str(log)}, "job": job}
    with web_server() as repository, running_registry(folder) as place:
        repository.serve(("tint", "0.1.0", TINT), ("tint", "0.2.0", NEXT))
        repository.pages[HUB] = json.dumps({"packages": [PACKAGE]}).encode()
        svc = {
            "security": {**FULL["security"], "allowed-hosts": [repository.host_port, place]},
            "hub": {"url": repository.url},
            "kube": {"kubeconfig": str(cluster.kubeconfig)},
        }
        with running_server(folder, processes, svc=svc) as server:
            report = ("project", "shop"), ("branch", "main"), ("commit", "c1"), ("junit", junit(2))
            posted = upload(server, *report)
            yield Lab(server, cluster, repository, f"oci://{place}/ours", posted["runId"])


class Agent:
    """A client and the tools that it has called."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.called: set[str] = set()

    async def result(self, tool: str, **arguments: Any) -> Any:
        self.called.add(tool)
        return await self.client.call_tool(tool, arguments)

    async def endpoints(self, tool: str, **arguments: Any) -> str:
        return result_text(await self.result(tool, **arguments))

    async def json_of(self, tool: str, **arguments: Any) -> Any:
        """The value of the JSON text of a result, which it has once."""
        result = await self.result(tool, **arguments)
        assert result.structured_content is None
        return json.loads(result_text(result))

    async def file(self, tool: str, **arguments: Any) -> bytes:
        result = await self.result(tool, **arguments)
        assert not result.is_error, result
        blob = result.content[1].resource
        assert blob.mime_type == "application/gzip"
        return base64.b64decode(blob.blob)


@contextlib.asynccontextmanager
async def agent(lab: Lab, way: str) -> AsyncIterator[Agent]:
    async with TRANSPORTS[way](lab.server, **({} if way == "stdio" else KEY)) as client:
        yield Agent(client)


@pytest.mark.parametrize("way", TRANSPORTS)
def test_every_tool_answers_over_every_transport(lab: Lab, way: str) -> None:
    async def work() -> None:
        async with agent(lab, way) as one:
            assert await tool_names(one.client) == READING | CHANGING
            await repositories(lab, one)
            await charts(lab, one)
            with lab.cluster.attended(namespace := lab.cluster.namespace()):
                await releases(one, {"name": "r", "namespace": namespace})
            host = lab.remote.removeprefix("oci://").partition("/")[0]
            login = {"host": host, "username": "me", "password": "any"}
            assert await one.endpoints("helm_registry_login", **login) == "done"
            assert await one.json_of("helm_registry_list") == [{"host": host, "source": "API"}]
            assert await one.endpoints("helm_registry_logout", host=host) == "done"
            assert await one.endpoints("helm_repo_remove", name="lab") == "done"
            await processes(one)
            await reports(lab, one)
            assert one.called == READING | CHANGING

    run_client(work)
    assert lab.server.get(f"{API}/repos").json == []


async def repositories(lab: Lab, one: Agent) -> None:
    assert await one.endpoints("helm_repo_add", name="lab", url=lab.repository.url) == "done"
    assert await one.json_of("helm_repo_list") == [{"name": "lab", "url": lab.repository.url}]
    assert await one.endpoints("helm_repo_update", name="lab") == "done"
    assert await one.endpoints("helm_repo_update_all") == "done"
    assert (await one.json_of("helm_repo_charts", name="lab"))[0]["chartVersion"] == "0.2.0"
    versions = await one.json_of("helm_repo_versions", name="lab", chart="tint")
    assert [row["chartVersion"] for row in versions] == ["0.2.0", "0.1.0"]
    assert await one.file("helm_pull", chart="lab/tint", version="0.1.0") == TINT
    assert await one.endpoints("helm_push", chart=base64.b64encode(TINT).decode(), remote=lab.remote) == "done"
    assert await one.file("helm_pull", chart=f"{lab.remote}/tint:0.1.0") == TINT
    assert (await one.json_of("helm_search_hub", keyword="redis", maxResults=1))[0]["name"] == "redis"


async def charts(lab: Lab, one: Agent) -> None:
    old = {"chartRef": "lab/tint", "version": "0.1.0"}
    assert "colour: red" in await one.endpoints("helm_show_values", **old)
    assert "name: tint" in await one.endpoints("helm_show_chart", **old)
    assert await one.endpoints("helm_show_readme", **old) == ""
    assert await one.endpoints("helm_show_crds", **old) == ""
    shown = await one.endpoints("helm_show_all", **old)
    assert shown == lab.server.get(f"{API}/charts/show?chartRef=lab/tint&version=0.1.0").text
    assert "colour: " in await one.endpoints("helm_template", **old, values={"colour": "blue"})
    long = "x" * 100_000
    assert long in await one.endpoints("helm_template", **old, values={"colour": long})
    assert (await one.json_of("helm_lint", **old))["ok"]
    assert (await one.file("helm_create", name="fresh")).startswith(b"\x1f\x8b")
    assert (await one.json_of("helm_search_repo", keyword="tin"))[0]["name"] == "lab/tint"
    assert await one.json_of("helm_dependency_list", **old) == []
    assert "digest:" in await one.endpoints("helm_dependency_resolve", **old)


async def releases(one: Agent, this: dict[str, str]) -> None:
    old = {"chartRef": "lab/tint", "version": "0.1.0"}
    installed = await one.json_of("helm_install", **old, releaseName="r", namespace=this["namespace"])
    assert installed["info"]["status"] == "deployed"
    assert [row["name"] for row in await one.json_of("helm_list", namespace=this["namespace"])] == ["r"]
    assert await one.json_of("helm_status", **this) == installed
    assert "colour: red" in await one.endpoints("helm_get_values", **this, all=True)
    assert "ConfigMap" in await one.endpoints("helm_get_manifest", **this)
    assert "painted red" in await one.endpoints("helm_get_notes", **this)
    assert (await one.json_of("helm_get_hooks", **this))[0]["kind"] == "Pod"
    assert (await one.json_of("helm_get_resources", **this))[0]["ready"]
    assert (await one.json_of("helm_test", **this, timeoutSeconds=30))[0]["status"] == "PASSED"
    newer = await one.json_of("helm_upgrades", **this)
    assert newer == [{"chartRef": "lab/tint", "version": "0.2.0", "appVersion": None}]
    assert "red" in await one.endpoints("helm_diff_upgrade", **this, **old, values={"colour": "green"})
    upgraded = await one.json_of("helm_upgrade", **this, **old, values={"colour": "green"})
    assert upgraded["version"] == 2
    assert "+data: {colour: " in await one.endpoints("helm_diff", **this)
    assert (await one.json_of("helm_tree", **this))[0]["kind"] == "ConfigMap"
    assert "colour: " in await one.endpoints("helm_object", **this, kind="ConfigMap", object="r-map")
    assert await one.json_of("helm_events", **this) == []
    assert (await one.json_of("helm_contexts"))[0]["current"]
    assert [row["image"] for row in await one.json_of("helm_images", **this)] == ["b"]
    assert await one.endpoints("helm_rollback", **this, revision=1) == "done"
    assert [row["revision"] for row in await one.json_of("helm_history", **this)] == [3, 2, 1]
    assert await one.endpoints("helm_uninstall", **this) == "done"


async def processes(one: Agent) -> None:
    assert (await one.json_of("process_start", name="web"))["message"].startswith("web has been started")
    assert (await one.json_of("process_restart", name="web"))["message"]
    assert (await one.json_of("process_list", select="web"))[0]["status"] == "running"
    assert (await one.json_of("process_details", select="w*"))[0]["restarts"] == 0
    assert await one.json_of("process_groups") == []
    assert (await one.json_of("process_notices", process="web"))["totalElements"] == 0
    assert [run["trigger"] for run in (await one.json_of("process_runs", name="job"))["content"]] == ["auto"]
    assert "is paused" in (await one.json_of("process_schedule", name="job", paused="true"))["message"]
    assert (await one.json_of("process_details", select="job"))[0]["schedule"]["paused"]
    assert (await one.json_of("process_signal", name="web", signal="CONT"))["message"].startswith("SIGCONT")
    for verb, outcome in (("start", "already"), ("signal", "signalled"), ("restart", "restarted"), ("stop", "stopped")):
        arguments = {"select": "web", "signal": "CONT"} if verb == "signal" else {"select": "web"}
        (done,) = (await one.json_of(f"process_{verb}_selected", **arguments))["results"]
        assert (done["name"], done["outcome"]) == ("web", outcome)
    assert (await one.json_of("process_stop", name="web"))["message"]
    assert (await one.json_of("process_info", name="web"))["status"] == "stopped"
    assert (await one.endpoints("process_logs", name="web", lines=1)).endswith("two\n")
    assert len((await one.json_of("event_list", size=3, sortDirection="desc"))["content"]) == 3


async def reports(lab: Lab, one: Agent) -> None:
    (project,) = await one.json_of("project_list")
    assert project["name"] == "shop"
    assert len(await one.json_of("run_list", id=str(project["id"]), limit=5)) == 1
    assert (await one.json_of("run_detail", id=lab.run_id))["run"]["id"] == lab.run_id
    assert (await one.json_of("gate_verdict", project="shop", branch="main"))["status"] == "PASSED"
    assert await one.json_of("flaky_tests", id=str(project["id"])) == []
    assert await one.json_of("flaky_tests", id="shop") == []
    assert await one.json_of("flaky_tests", project="shop") == []
    assert len(await one.json_of("run_list", project="shop", limit=5)) == 1
    assert "not both" in error_text(await one.result("run_list", id="shop", project="shop"))
    assert error_text(await one.result("run_list", project="none")) == error_text(
        await one.result("run_list", id="none")
    )
    assert len((await one.json_of("run_tests", id=lab.run_id, status="passed"))["items"]) == 2
    assert (await one.json_of("failure_clusters", id=str(project["id"])))["items"] == []
    assert len((await one.json_of("project_search", id=str(project["id"]), q="c1"))["items"]) == 1


LONG = "x" * 70
FAILING: list[tuple[str, dict[str, Any], str, str, Any]] = [
    ("helm_status", {"name": "none"}, "GET", "/releases/none", None),
    ("helm_status", {"name": LONG}, "GET", f"/releases/{LONG}", None),
    ("helm_list", {"namespace": "Not_One"}, "GET", "/releases?namespace=Not_One", None),
    ("helm_install", {}, "POST", "/releases", {}),
    ("helm_install", {"chartRef": "no/chart", "releaseName": "a"}, "POST", "/releases",
     {"chartRef": "no/chart", "releaseName": "a"}),
    ("helm_install", {"chartRef": 1, "values": "x"}, "POST", "/releases", {"chartRef": 1, "values": "x"}),
    ("helm_rollback", {"name": "r", "revision": 0}, "POST", "/releases/r/rollback", {"revision": 0}),
    ("helm_rollback", {"name": "r", "revision": "1"}, "POST", "/releases/r/rollback", {"revision": "1"}),
    ("helm_uninstall", {"name": "none"}, "DELETE", "/releases/none", None),
    ("helm_template", {"chartRef": "http://x/y"}, "POST", "/charts/template", {"chartRef": "http://x/y"}),
    ("helm_create", {"name": "../x"}, "POST", "/charts/create", {"name": "../x"}),
    ("helm_show_all", {}, "GET", "/charts/show", None),
    ("helm_show_all", {"chartRef": "no/chart"}, "GET", "/charts/show?chartRef=no/chart", None),
    ("helm_pull", {"chart": "no/chart"}, "POST", "/repos/pull", {"chart": "no/chart"}),
    ("helm_repo_add", {"name": "a b"}, "POST", "/repos", {"name": "a b"}),
    ("helm_repo_add", {"name": "a", "url": "http://169.254.169.254/"}, "POST", "/repos",
     {"name": "a", "url": "http://169.254.169.254/"}),
    ("helm_repo_update", {"name": "none"}, "POST", "/repos/none/update", None),
    ("helm_repo_remove", {"name": "none"}, "DELETE", "/repos/none", None),
    ("helm_search_hub", {"keyword": "x", "maxResults": 61}, "GET", "/hub/search?keyword=x&maxResults=61", None),
    ("helm_dependency_resolve", {}, "POST", "/dependencies/resolve", {}),
    ("process_info", {"name": "none"}, "GET", "/processes/info/none", None),
    ("process_info", {"name": "../../a b"}, "GET", "/processes/info/..%2F..%2Fa%20b", None),
    ("process_start", {"name": "none"}, "POST", "/processes/start/none", None),
    ("process_stop", {"name": "none"}, "POST", "/processes/stop/none", None),
    ("process_start_selected", {"select": "none"}, "POST", "/processes/start?select=none", None),
    ("process_stop_selected", {}, "POST", "/processes/stop", None),
    ("process_signal", {"name": "web", "signal": "x"}, "POST", "/processes/signal/web?signal=x", None),
    ("process_details", {"select": "!a"}, "GET", "/processes/details?select=!a", None),
    ("process_logs", {"name": "web", "lines": 0}, "GET", "/processes/logs/web?lines=0", None),
    ("process_logs", {"name": "web", "lines": True}, "GET", "/processes/logs/web?lines=true", None),
    ("event_list", {"size": -1}, "GET", "/events?size=-1", None),
    ("event_list", {"sortBy": "colour"}, "GET", "/events?sortBy=colour", None),
    ("run_detail", {"id": "none"}, "GET", "/runs/none", None),
    ("gate_verdict", {}, "GET", "/gate", None),
    ("gate_verdict", {"project": "shop", "commit": "c9"}, "GET", "/gate?project=shop&commit=c9", None),
    ("flaky_tests", {"id": "none"}, "GET", "/projects/none/flaky", None),
]  # fmt: skip


def rest_answer(server: Server, method: str, path: str, body: Any) -> Answer:
    return server.ask(method, API + path, None if body is None else json.dumps(body).encode(), KEY)


@pytest.mark.parametrize("way", ["http", "stdio"])
def test_the_message_of_a_failure_is_that_of_rest(lab: Lab, way: str) -> None:
    async def work() -> list[tuple[str, str, str]]:
        pairs = []
        async with agent(lab, way) as one:
            for tool, arguments, method, path, body in FAILING:
                answer = rest_answer(lab.server, method, path, body)
                assert answer.status >= 400, (tool, answer)
                pairs.append((tool, error_text(await one.result(tool, **arguments)), answer.json["message"]))
        return pairs

    for tool, observed, detail in run_client(work):
        assert (tool, observed) == (tool, detail)


@pytest.mark.parametrize("way", ["http", "stdio"])
def test_arguments_are_checked_like_bodies_of_rest(lab: Lab, way: str) -> None:
    """Unknown arguments are refused; null is absent; a missing path parameter is named."""

    async def work() -> None:
        async with agent(lab, way) as one:
            unknown = 'unknown field "nme"; did you mean "name"?'
            assert error_text(await one.result("process_info", name="web", nme="web")) == unknown
            assert error_text(await one.result("process_list", colour=None)) == 'unknown field "colour"'
            assert await one.json_of("event_list", size=None)
            assert error_text(await one.result("helm_repo_list", colour={"a": 1})).startswith('unknown field "colour"')
            assert error_text(await one.result("process_info")) == "name is required"
            assert error_text(await one.result("process_info", name=" ")) == "name is required"
            assert error_text(await one.result("helm_status")) == "name is required"
            assert error_text(await one.result("helm_push", remote="oci://x/y")) == "chart is required"
            assert error_text(await one.result("helm_push", chart="no!", remote="oci://x/y")).startswith(
                "chart: must be"
            )
            assert error_text(await one.result("helm_push", chart=7, remote="oci://x/y")).startswith("chart: must be")
            assert "NUL" in error_text(await one.result("process_info", name="a\0b"))
            assert "NUL" in error_text(await one.result("helm_create", name="a\0b"))
            deep: Any = {}
            for _ in range(150):
                deep = {"a": deep}
            assert "too deeply" in error_text(await one.result("helm_template", chartRef="a/b", values=deep))
            large = "the body is larger than 1048576 bytes"
            assert (
                error_text(await one.result("helm_template", chartRef="a/b", values={"a": "x" * 1024 * 1024})) == large
            )
            assert error_text(await one.result("process_info", name="x" * 1024 * 1024)) == large
            archive = base64.b64encode(b"x" * 2 * 1024 * 1024).decode()
            assert "archive" in error_text(await one.result("helm_push", chart=archive, remote="oci://x/y"))

    run_client(work)


def test_tools_of_a_server_report_that_none_is_running(tmp_path: Path) -> None:
    """The chart tools, which need no server, work."""

    other = Server(tmp_path, {"svc": {"kube": {"kubeconfig": "/nonexistent"}}}, {}, [])
    other.port = 1

    async def work() -> None:
        async with over_stdio(other) as client:
            assert "127.0.0.1:1" in error_text(await client.call_tool("process_list", {}))
            assert result_text(await client.call_tool("helm_repo_list", {})) == "[]"

    run_client(work)


def test_concurrent_clients_get_their_own_results(lab: Lab) -> None:
    async def one(number: int) -> None:
        way = over_sse if number % 2 else over_http
        async with way(lab.server, **KEY) as client:
            for turn in range(5):
                name = f"agent-{number}-{turn}"
                assert name in error_text(await client.call_tool("process_info", {"name": name}))

    async def work() -> None:
        await asyncio.gather(*(one(number) for number in range(12)))

    run_client(work)
