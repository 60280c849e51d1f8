"""Interrupted changes of releases, on a real API server with both versions of helm: the next upgrade is accepted."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from conftest import TIMEOUT_SECONDS, Answer, Server, wait_for
from http_checks import check_problem, running_server
from release_secrets import encoded_release, made_release, store_release
from small_charts import FULL, HELMS, KEY, MAP, chart_archive, helm_path, post_chart, send_json

from models.charts import releases
from models.charts.releases import StartedChange, marked_failed

API = "/api/v1"


def chart_with_hooks(*hooks: str) -> bytes:
    """A chart with a Pod as a hook; the cluster has no kubelet that would run it."""
    return chart_archive(
        values="colour: red\n",
        templates__map=MAP,
        templates__hook=f"""apiVersion: v1
kind: Pod
metadata:
  name: {{{{ .Release.Name }}}}-hook
  annotations: {{"helm.sh/hook": "{",".join(hooks)}", "helm.sh/hook-delete-policy": before-hook-creation}}
spec: {{restartPolicy: Never, containers: [{{name: a, image: b}}]}}
""",
    )


class ReleaseClient:
    """Requests to a server with helm 3 or helm 4, in a separate namespace for each test."""

    def __init__(self, server: Server, cluster: Cluster) -> None:
        self.server, self.cluster, self.namespace = server, cluster, ""

    def ask(self, method: str, path: str, fields: Any = None, query: str = "") -> Answer:
        return send_json(self.server, method, f"{API}{path}?namespace={self.namespace}{query}", fields)

    def install(self, archive: bytes, **fields: Any) -> Answer:
        request = {"releaseName": "r", "namespace": self.namespace, **fields}
        return post_chart(self.server, f"{API}/releases/upload", KEY, chart=archive, request=request)

    def upgrade(self, archive: bytes, **fields: Any) -> Answer:
        path = f"{API}/releases/r/upgrade/upload?namespace={self.namespace}"
        return post_chart(self.server, path, KEY, chart=archive, request=fields)

    @property
    def info(self) -> Any:
        answer = self.ask("GET", "/releases/r")
        assert answer.status == 200, answer
        return answer.json["info"]

    def labels(self, number: int) -> Any:
        path = f"/api/v1/namespaces/{self.namespace}/secrets/{releases.key('r', number)}"
        return self.cluster.ask("GET", path)["metadata"]["labels"]


def settings(cluster: Cluster, program: str) -> dict[str, Any]:
    return {**FULL, "helm": {"binary": helm_path(program)}, "kube": {"kubeconfig": str(cluster.kubeconfig)}}


@pytest.fixture(scope="module", params=HELMS)
def shared_client(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReleaseClient]:
    with running_server(tmp_path_factory.mktemp(request.param), svc=settings(cluster, request.param)) as server:
        yield ReleaseClient(server, cluster)


@pytest.fixture
def client(shared_client: ReleaseClient, cluster: Cluster) -> ReleaseClient:
    shared_client.namespace = cluster.namespace()
    return shared_client


def change_notes(server: Server) -> list[Path]:
    """The notes of unfinished changes."""
    return list((server.data / "charts" / "changing").glob("*"))


def test_a_rollback_with_a_timed_out_hook_is_failed_and_can_be_upgraded(client: ReleaseClient) -> None:
    archive = chart_with_hooks("pre-rollback")
    assert client.install(archive).status == 201
    assert client.upgrade(archive, values={"colour": "blue"}).status == 200
    answer = client.ask("POST", "/releases/r/rollback", {"revision": 1, "timeout": 1})
    check_problem(answer, 504, f"{API}/releases/r/rollback", has_timestamp=True)
    assert client.info["status"] == "failed"
    assert client.info["description"].startswith('Rollback "r" failed: ')
    assert client.labels(3)["status"] == "failed"
    rows = client.ask("GET", "/releases/r/history").json
    assert [(row["revision"], row["status"]) for row in rows] == [(3, "failed"), (2, "deployed"), (1, "superseded")]
    again = client.upgrade(archive, values={"colour": "green"})
    assert (again.status, again.json["version"], again.json["info"]["status"]) == (200, 4, "deployed")
    assert change_notes(client.server) == []


def test_a_rollback_with_a_failed_hook_is_failed_and_can_be_repeated(client: ReleaseClient) -> None:
    archive = chart_with_hooks("pre-rollback")
    client.install(archive)
    client.upgrade(archive)
    with client.cluster.attended(client.namespace, "Failed"):
        answer = client.ask("POST", "/releases/r/rollback", {"revision": 1, "timeout": 20})
    check_problem(answer, 422, f"{API}/releases/r/rollback", has_timestamp=True)
    assert client.info["status"] == "failed"
    with client.cluster.attended(client.namespace):
        assert client.ask("POST", "/releases/r/rollback", {"revision": 1, "timeout": 20}).status == 204
    assert client.info["status"] == "deployed"


def test_an_uninstall_with_a_timed_out_hook_is_failed_and_can_be_upgraded(client: ReleaseClient) -> None:
    archive = chart_with_hooks("pre-delete")
    client.install(archive)
    answer = client.ask("DELETE", "/releases/r", query="&timeout=1")
    check_problem(answer, 504, f"{API}/releases/r", has_timestamp=True)
    assert (client.info["status"], client.info["deleted"]) == ("failed", None)
    assert client.info["description"].startswith('Uninstall "r" failed: ')
    assert client.upgrade(archive).json["info"]["status"] == "deployed"


def test_a_pending_change_of_another_helm_is_left_unchanged(client: ReleaseClient) -> None:
    """The pending revision is newer than the start of our change, but our helm has refused to change the release."""
    client.install(chart_with_hooks("pre-rollback"))
    now = time.strftime("%Y-%m-%dT%H:%M:%S.5Z", time.gmtime(time.time() + 1))
    release = made_release("r", client.namespace, 2, "pending-upgrade")
    release["info"]["last_deployed"] = now
    store_release(client.cluster, release)
    check_problem(
        client.upgrade(chart_with_hooks("pre-rollback")), 409, f"{API}/releases/r/upgrade/upload", has_timestamp=True
    )
    assert client.info["status"] == "pending-upgrade"
    assert change_notes(client.server) == []


def start_change(client: ReleaseClient, method: str, path: str, fields: Any) -> http.client.HTTPConnection:
    """Sends a request for a change; the response is not read."""
    connection = http.client.HTTPConnection("127.0.0.1", client.server.port, timeout=60)
    connection.request(method, f"{API}{path}?namespace={client.namespace}", json.dumps(fields), dict(KEY))
    return connection


@pytest.mark.parametrize("program", HELMS)
def test_a_change_interrupted_by_sigkill_is_failed_after_the_next_start(
    cluster: Cluster, tmp_path: Path, program: str
) -> None:
    archive = chart_with_hooks("pre-rollback")
    with running_server(tmp_path, svc=settings(cluster, program)) as server:
        client = ReleaseClient(server, cluster)
        client.namespace = cluster.namespace()
        client.install(archive)
        client.upgrade(archive)
        with contextlib.closing(start_change(client, "POST", "/releases/r/rollback", {"revision": 1})):
            wait_for(lambda: client.info["status"] == "pending-rollback")
            server.kill()
        (note,) = change_notes(server)
        assert note.stat().st_mode & 0o777 == 0o600
        server.start()
        assert client.upgrade(archive).json["info"]["status"] == "deployed", "it waits for the recovery"
        rows = client.ask("GET", "/releases/r/history").json
        assert [row["status"] for row in rows] == ["deployed", "failed", "superseded", "superseded"]
        assert "killed" in rows[1]["description"]
        assert change_notes(server) == []
        (server.data / "charts" / "changing" / "torn").write_text('{"place')
        server.stop()
        server.start()
        wait_for(lambda: change_notes(server) == [], about="an incomplete note to be removed")


def is_stopping(server: Server) -> bool:
    try:
        return server.get("/healthz").status == 503
    except OSError:
        return True


def test_a_server_stop_leaves_no_pending_release(cluster: Cluster, tmp_path: Path) -> None:
    """The stop waits for helm; the failed hook of the uninstall ends it sooner."""
    archive = chart_with_hooks("pre-delete")
    with running_server(tmp_path, svc=settings(cluster, "helm")) as server:
        client = ReleaseClient(server, cluster)
        client.namespace = cluster.namespace()
        client.install(archive)
        with contextlib.closing(start_change(client, "DELETE", "/releases/r", None)) as connection:
            wait_for(lambda: client.info["status"] == "uninstalling")
            assert server.process is not None
            server.process.send_signal(signal.SIGTERM)
            wait_for(lambda: is_stopping(server))  # else the hook's failure may be older than the stop
            with cluster.attended(client.namespace, "Failed"):
                server.process.wait(TIMEOUT_SECONDS)
            answer = connection.getresponse()
            assert (answer.status, "the change may have been applied" in answer.read().decode()) == (503, True)
        server.start()
        assert client.info["status"] == "failed"


def test_recovery_of_an_unreachable_cluster_runs_before_the_next_change(cluster: Cluster, tmp_path: Path) -> None:
    """The cluster is unreachable when the server is killed and for a while after the next start."""
    archive = chart_with_hooks("pre-rollback")
    config = settings(cluster, "helm")
    live = cluster.kubeconfig.read_text()
    file = tmp_path / "kubeconfig"
    file.write_text(live)
    config["kube"] = {"kubeconfig": str(file)}
    with running_server(tmp_path, svc=config) as server:
        client = ReleaseClient(server, cluster)
        client.namespace = cluster.namespace()
        client.install(archive)
        with contextlib.closing(start_change(client, "POST", "/releases/r/rollback", {"revision": 1})):
            wait_for(lambda: client.info["status"] == "pending-rollback")
            server.kill()
        file.write_text(cluster.dead_config().read_text())
        server.start()
        wait_for(lambda: "may be left pending" in server.log.read_text())
        assert client.upgrade(archive).status == 502
        assert len(change_notes(server)) == 1, "a change that helm has not begun has no note"
        file.write_text(live)
        assert client.info["status"] == "pending-rollback"
        assert client.upgrade(archive).status == 200
        assert change_notes(server) == []


# Detection of interrupted changes, without a cluster

CHANGE = StartedChange("space", "r", "rollback", began=1_000_000.0, seconds=10)


def timestamp_at(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.123456789Z", time.gmtime(seconds))


@pytest.mark.parametrize(
    ("info", "is_left"),
    [
        ({"status": "pending-rollback", "last_deployed": timestamp_at(1_000_001)}, True),
        ({"status": "pending-install", "last_deployed": timestamp_at(1_000_001)}, True),
        ({"status": "pending-upgrade", "last_deployed": timestamp_at(1_000_001)}, True),
        ({"status": "uninstalling", "last_deployed": timestamp_at(1), "deleted": timestamp_at(1_000_001)}, True),
        ({"status": "uninstalling", "last_deployed": timestamp_at(1_000_001), "deleted": timestamp_at(1)}, False),
        ({"status": "pending-rollback", "last_deployed": timestamp_at(999_990)}, False),
        ({"status": "pending-rollback", "last_deployed": timestamp_at(1_000_200)}, False),
        ({"status": "deployed", "last_deployed": timestamp_at(1_000_001)}, False),
        ({"status": "failed", "last_deployed": timestamp_at(1_000_001)}, False),
        ({"status": "pending-rollback"}, False),
        (None, False),
    ],
)
def test_an_interrupted_change_is_matched_by_name_status_and_time(info: Any, is_left: bool) -> None:
    assert CHANGE.has_interrupted({"name": "r", "info": info}) is is_left


def test_marking_a_release_failed_changes_status_and_description_only() -> None:
    whole = made_release("r", "space", 3, "uninstalling", config={"ä": [1.5, 10**20, None, "<&>"]}, odd={"x": 1})
    whole["info"]["deleted"] = timestamp_at(1_000_001)
    secret: dict[str, Any] = {
        "metadata": {"name": "n", "resourceVersion": "7", "labels": {"owner": "helm", "status": "uninstalling"}},
        "type": "helm.sh/release.v1",
        "data": {"release": encoded_release(whole), "other": "y"},
    }
    made = marked_failed(secret, CHANGE, "why", 12.7)
    assert made is not None
    assert made["metadata"] == {
        "name": "n", "resourceVersion": "7", "labels": {"owner": "helm", "status": "failed", "modifiedAt": "12"},
    }  # fmt: skip
    assert (made["type"], made["data"]["other"]) == ("helm.sh/release.v1", "y")
    info = {name: value for name, value in whole["info"].items() if name != "deleted"}
    assert releases.unpacked(made) == {**whole, "info": {**info, "status": "failed", "description": "why"}}
    assert secret["metadata"]["labels"]["status"] == "uninstalling"
