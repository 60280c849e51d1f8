"""Prompts and resources, by the official client; each task of a prompt takes at most 3 calls and 3,000 tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from chart_servers import KEY as CHART_KEY
from chart_servers import post_json, web_server
from cluster import Cluster
from conftest import Serve, Server, wait_for
from http_checks import running_server
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_clients import CHANGING, FULL, READING, TRANSPORTS, over_http, result_text, run_client
from small_charts import chart_archive, sample_chart
from uploads import junit, upload

from handlers.mcp.prompts import PROMPTS
from handlers.mcp.resources import TEMPLATES

KEY = {"X-API-Key": CHART_KEY}
MAX_CALLS, MAX_TOKENS = 3, 3000
GIVEN = {
    "process": "flappy", "project": "shop", "branch": "main", "commit": "b" * 40, "release": "r", "namespace": "n",
    "hours": "12",
}  # fmt: skip
FAILING = {"command": ["sh", "-c", "echo cannot bind to port 80; exit 3"], "log": "capture", "restart": "never"}


@pytest.fixture(scope="module")
def server(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A process that fails, a commit that breaks a branch of 400 tests, and a release with a newer chart."""
    folder = tmp_path_factory.mktemp("tasks")
    with web_server() as repository:
        repository.serve(("tint", "0.1.0", sample_chart()), ("tint", "0.2.0", chart_archive(version="0.2.0")))
        security = {**FULL["security"], "api-key": CHART_KEY, "allowed-hosts": [repository.host_port]}
        svc = {"security": security, "kube": {"kubeconfig": str(cluster.kubeconfig)}}
        with running_server(folder, {"flappy": FAILING}, svc=svc) as one:
            one.do("start", "flappy")
            wait_for(lambda: one.status("flappy") == "failed")
            for commit, failed in (("a", 0), ("b", 20)):
                report = junit(passed=400 - failed, failed=failed)
                upload(one, ("project", "shop"), ("branch", "main"), ("commit", commit * 40), ("junit", report))
            post_json(one, "/repos", {"name": "lab", "url": repository.url})
            yield one


def names_in(text: str) -> set[str]:
    return {word for word in re.findall(r"[a-z_]+", text) if word in READING | CHANGING}


def test_prompts_name_tools_that_exist_and_no_others_than_declared() -> None:
    for prompt in PROMPTS:
        assert set(prompt.tools) == names_in(prompt.text) <= READING | CHANGING
        assert len(prompt.tools) <= MAX_CALLS
        assert set(re.findall(r"\$([a-z]+)", prompt.text)) == set(prompt.arguments)


@pytest.mark.parametrize("way", TRANSPORTS)
def test_prompts_are_listed_and_filled(server: Server, way: str) -> None:
    async def work() -> None:
        async with TRANSPORTS[way](server, **({} if way == "stdio" else KEY)) as client:
            listed = (await client.list_prompts()).prompts
            assert [one.name for one in listed] == [one.name for one in PROMPTS]
            for prompt in listed:
                given = {each.name: GIVEN[each.name] for each in prompt.arguments or []}
                (message,) = (await client.get_prompt(prompt.name, given)).messages
                assert all(value in getattr(message.content, "text", "") for value in given.values())
                assert "$" not in getattr(message.content, "text", "")
            for name, given, why in (
                ("none", {}, "there is no prompt none"),
                ("what_changed", {}, "hours is required"),
                ("what_changed", {"hours": "1", "days": "2"}, "days is not an argument of what_changed"),
            ):
                with pytest.raises(MCPError, match=why):
                    await client.get_prompt(name, given)

    run_client(work)


def test_prompts_need_their_tools(serve: Serve) -> None:
    reading = serve({"web": {"command": "true"}}, svc={"security": {"api-key": CHART_KEY}})

    async def prompts(path: str) -> set[str]:
        async with over_http(reading, path, **KEY) as client:
            return {one.name for one in (await client.list_prompts()).prompts}

    async def work() -> None:
        assert "upgrade_a_release" not in await prompts("/mcp")
        assert await prompts("/mcp?toolsets=tests") == {"what_broke_the_branch", "is_this_change_safe"}

    run_client(work)


class Budget:
    """The calls and tokens of a task."""

    def __init__(self, client: Client) -> None:
        self.client, self.calls, self.tokens = client, 0, 0.0

    async def text(self, tool: str, **arguments: Any) -> str:
        text = result_text(await self.client.call_tool(tool, arguments))
        self.calls += 1
        self.tokens += (len(text) + len(json.dumps(arguments))) / 4
        return text


def test_each_task_takes_three_calls_and_three_thousand_tokens(server: Server, cluster: Cluster) -> None:
    async def work() -> dict[str, Budget]:
        async with over_http(server, **KEY) as client:
            spent = {prompt.name: Budget(client) for prompt in PROMPTS}
            await restart_reason(spent["why_does_it_restart"])
            await broken_branch(spent["what_broke_the_branch"])
            await safety(spent["is_this_change_safe"])
            with cluster.attended(namespace := cluster.namespace()):
                await upgrade(spent["upgrade_a_release"], server, namespace)
                await lately(spent["what_changed"])
            return spent

    spent = run_client(work)
    assert {name: (one.calls, one.tokens) for name, one in spent.items() if one.calls > MAX_CALLS} == {}
    assert {name: one.tokens for name, one in spent.items() if one.tokens > MAX_TOKENS} == {}


async def restart_reason(task: Budget) -> None:
    assert '"exitCode":3' in (await task.text("process_info", name="flappy")).replace(" ", "")
    await task.text("process_notices", process="flappy", size=10)
    assert "cannot bind to port 80" in await task.text("process_logs", name="flappy", lines=40)


async def broken_branch(task: Budget) -> None:
    verdict = json.loads(await task.text("gate_verdict", project="shop", branch="main"))
    assert verdict["status"]
    await task.text("run_tests", id=str(verdict["runId"]), status="FAILED,ERROR", limit=10)
    await task.text("run_list", project="shop", branch="main", limit=5)


async def safety(task: Budget) -> None:
    verdict = json.loads(await task.text("gate_verdict", project="shop", commit="b" * 40))
    await task.text("run_tests", id=str(verdict["runId"]), status="FAILED,ERROR", limit=10)


async def upgrade(task: Budget, server: Server, namespace: str) -> None:
    first = {"chartRef": "lab/tint", "version": "0.1.0", "releaseName": "r", "namespace": namespace}
    assert post_json(server, "/releases", first).status == 201
    this = {"name": "r", "namespace": namespace}
    (newer,) = json.loads(await task.text("helm_upgrades", **this))
    chosen = {"chartRef": newer["chartRef"], "version": newer["version"]}
    assert "ConfigMap" in await task.text("helm_diff_upgrade", **this, **chosen)
    assert '"deployed"' in await task.text("helm_upgrade", **this, **chosen, atomic=True)


async def lately(task: Budget) -> None:
    assert "flappy" in await task.text("process_notices", size=15)
    await task.text("helm_list", allNamespaces=True, sort="-updated", limit=10)
    assert "shop" in await task.text("project_list", limit=10)


def test_resources_are_results_of_tools(server: Server) -> None:
    async def work() -> None:
        async with over_http(server, **KEY) as client:
            assert (await client.list_resources()).resources == []
            listed = (await client.list_resource_templates()).resource_templates
            assert [one.uri_template for one in listed] == [one.address for one in TEMPLATES]
            (log,) = (await client.read_resource("pilothouse://processes/flappy/log")).contents
            assert "cannot bind to port 80" in getattr(log, "text", "")
            (run,) = (await client.read_resource("pilothouse://runs/1")).contents
            assert (json.loads(getattr(run, "text", ""))["run"]["total"], run.mime_type) == (400, "application/json")
            for address, why in (
                ("pilothouse://processes/none/log", "none"),
                ("pilothouse://processes/flappy", "there is no resource"),
                ("pilothouse://runs/999999", "999999"),
            ):
                with pytest.raises(MCPError, match=why):
                    await client.read_resource(address)

    run_client(work)
