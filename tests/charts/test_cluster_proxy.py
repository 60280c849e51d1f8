"""Reads and changes through a proxy that cuts streams, stalls and answers 429: the right status, never an address."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from cluster import Cluster
from cluster_proxy import BUSY, CUT, HALF, PASS, STALL, RequestProxy, StreamProxy, proxies
from conftest import ROOT, Answer, Server
from http_checks import check_problem
from small_charts import FULL, HELMS, KEY, MAP, chart_archive, helm_path, post_chart, send_json

API = "/api/v1"
CHART = chart_archive(values="colour: red\n", templates__map=MAP)
SHORT_TIMEOUTS = f"""
import os, runpy, sys
sys.path.insert(0, {str(ROOT)!r})
from supervisor.charts.helm import changes, runner
from supervisor.charts.kube import client
class Timeout:
    def __init__(self, seconds):
        self.seconds = seconds
    def now(self):
        return 0.5 if os.path.exists("stalled") else self.seconds
    def __radd__(self, time):
        return time + self.now()
    def __format__(self, spec):
        return format(self.now(), spec)
client.RESPONSE_SECONDS = Timeout(client.RESPONSE_SECONDS)
runner.CHANGE_GRACE_SECONDS = Timeout(runner.CHANGE_GRACE_SECONDS)
changes._GRACE_SECONDS = Timeout(changes._GRACE_SECONDS)
changes._REVISION_TIMEOUT_SECONDS = Timeout(changes._REVISION_TIMEOUT_SECONDS)
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a server whose timeouts for the cluster are short while its folder has a file `stalled`."""


class HelmServer:
    """A server with helm 3 or 4 and a kubeconfig that leads through a proxy. It has installed a release `kept`."""

    def __init__(self, server: Server, namespace: str) -> None:
        self.server, self.namespace = server, namespace

    def read(self, path: str) -> Answer:
        return self.server.get(f"{API}/releases{path}?namespace={self.namespace}")

    def install(self, name: str, timeout: int = 60) -> Answer:
        request = {"releaseName": name, "namespace": self.namespace, "timeout": timeout}
        return post_chart(self.server, f"{API}/releases/upload", KEY, chart=CHART, request=request)

    def uninstall(self, name: str) -> Answer:
        return send_json(self.server, "DELETE", f"{API}/releases/{name}?namespace={self.namespace}&timeout=1")


@pytest.fixture(scope="module")
def both_proxies(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RequestProxy, StreamProxy]]:
    with proxies(cluster, tmp_path_factory.mktemp("proxies")) as running:
        yield running


def running_helm_server(
    folder: Path, cluster: Cluster, program: str, kubeconfig: Path, *command: str
) -> Iterator[HelmServer]:
    svc = {**FULL, "helm": {"binary": helm_path(program)}, "kube": {"kubeconfig": str(kubeconfig)}}
    server = Server(folder, {"svc": svc}, {}, list(command)).start()
    running = HelmServer(server, cluster.namespace())
    assert running.install("kept").status == 201
    yield running
    server.close()


@pytest.fixture(scope="module", params=HELMS)
def behind_request_proxy(
    request: pytest.FixtureRequest, cluster: Cluster, both_proxies: tuple[RequestProxy, StreamProxy],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[HelmServer]:  # fmt: skip
    folder = tmp_path_factory.mktemp(request.param)
    yield from running_helm_server(
        folder, cluster, request.param, both_proxies[0].kubeconfig, sys.executable, "-c", SHORT_TIMEOUTS
    )


@pytest.fixture(scope="module", params=HELMS)
def behind_stream_proxy(
    request: pytest.FixtureRequest, cluster: Cluster, both_proxies: tuple[RequestProxy, StreamProxy],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[HelmServer]:  # fmt: skip
    yield from running_helm_server(
        tmp_path_factory.mktemp(request.param), cluster, request.param, both_proxies[1].kubeconfig
    )


def check_detail(answer: Answer, port: int, expected: Sequence[tuple[int, str]]) -> str:
    """Checks that the problem has an expected status and code and no address; returns its detail."""
    path = answer.json["instance"]
    body = check_problem(answer, answer.status, path, has_timestamp=True)
    assert (answer.status, body["code"]) in expected, answer
    assert not any(text in answer.text for text in ("127.0.0.1", "localhost", str(port), "https:")), answer
    return str(body["detail"])


LOST = [(502, "cluster-connection-lost"), (502, "cluster-unreachable"), (502, "discovery-incomplete")]
EXPECTED = {CUT: LOST, HALF: LOST, BUSY: [(502, "cluster-busy")], STALL: [(504, "timeout")]}
UNCERTAIN = "the change may have been applied"


@contextlib.contextmanager
def injected_fault(
    proxy: RequestProxy, folder: Path, action: str, where: Callable[[str, str], bool]
) -> Iterator[Callable[[], bool]]:
    """Injects faults into the proxy, at least one. Yields a function that reports whether one has occurred.

    Requests that stall are the only ones with short timeouts: others may take longer on a busy machine.
    """
    before, stalled = proxy.faults, folder / "stalled"
    if action == STALL:
        stalled.touch()
    proxy.choose = lambda method, path: action if where(method, path) else PASS
    try:
        yield lambda: proxy.faults > before
    finally:
        proxy.choose = lambda *_: PASS
        stalled.unlink(missing_ok=True)
    assert proxy.faults > before


@pytest.mark.parametrize("behind_request_proxy", HELMS[:1], indirect=True)
@pytest.mark.parametrize("action", EXPECTED)
def test_reads_report_the_faults_of_the_cluster(
    behind_request_proxy: HelmServer, both_proxies: tuple[RequestProxy, StreamProxy], action: str
) -> None:
    with injected_fault(both_proxies[0], behind_request_proxy.server.folder, action, any_request):
        for path in ("", "/kept", "/kept/history", "/kept/resources"):
            answer = behind_request_proxy.read(path)
            check_detail(answer, both_proxies[0].port, EXPECTED[action])
            assert (answer.headers.get("Retry-After") == "5") is (action == BUSY)
    assert behind_request_proxy.read("/kept").status == 200


def any_request(method: str, path: str) -> bool:
    return True


def object_change(method: str, path: str) -> bool:
    return "configmaps" in path and method != "GET"


def release_record(method: str, path: str) -> bool:
    return "secrets" in path and method in ("POST", "PUT")


def discovery(method: str, path: str) -> bool:
    return path.startswith(("/api", "/openapi", "/version")) and "namespaces" not in path


CHANGES: list[tuple[str, Callable[[str, str], bool]]] = [
    (HALF, any_request), (BUSY, any_request), (STALL, any_request), (HALF, discovery), (CUT, object_change),
    (BUSY, object_change), (CUT, release_record), (BUSY, release_record), (STALL, object_change),
]  # fmt: skip


@pytest.mark.parametrize(("action", "where"), CHANGES, ids=[f"{action}-{where.__name__}" for action, where in CHANGES])
def test_changes_report_the_faults_of_the_cluster(
    behind_request_proxy: HelmServer,
    both_proxies: tuple[RequestProxy, StreamProxy],
    action: str,
    where: Callable[[str, str], bool],
) -> None:
    name = f"{action}-{where.__name__}".replace("_", "-")
    folder = behind_request_proxy.server.folder
    with injected_fault(both_proxies[0], folder, action, where) as has_met:
        answer = behind_request_proxy.install(name, 1 if action == STALL else 60)
        if not has_met():  # on a busy machine helm may send no request within a second
            answer = behind_request_proxy.install(f"{name}-again", 25)
    detail = check_detail(answer, both_proxies[0].port, EXPECTED[action])
    assert (UNCERTAIN in detail) or where in (any_request, discovery)
    assert behind_request_proxy.read("/kept").status == 200


@pytest.mark.parametrize("limit", [2000, 4000, 6000, 10000])
def test_an_install_over_cut_streams_succeeds_or_reports_a_lost_connection(
    behind_stream_proxy: HelmServer, both_proxies: tuple[RequestProxy, StreamProxy], limit: int
) -> None:
    """Each connection is cut after `limit` bytes of TLS; helm uses HTTP/2."""
    proxy = both_proxies[1]
    cuts, proxy.limit = proxy.cuts, limit
    answer = behind_stream_proxy.install(f"cut-{limit}")
    proxy.limit = None
    assert proxy.cuts > cuts
    if answer.status != 201:  # helm may have repeated the request
        check_detail(answer, proxy.port, LOST)
