"""Reads and changes through a proxy that cuts streams, stalls and answers 429: the right status, never an address."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from cluster import Cluster
from cluster_proxy import BUSY, CUT, HALF, PASS, STALL, Choose, RequestProxy, StreamProxy, proxies
from conftest import ROOT, Answer, Server
from http_checks import check_problem
from small_charts import FULL, HELMS, KEY, MAP, chart_archive, helm_path, post_chart, send_json

API = "/api/v1"
CHART = chart_archive(values="colour: red\n", templates__map=MAP)
IMPATIENT = f"""
import runpy, sys
sys.path.insert(0, {str(ROOT)!r})
from supervisor.charts.helm import changes, runner
from supervisor.charts.kube import client
client.RESPONSE_SECONDS = 0.5
changes._GRACE_SECONDS = changes._REVISION_TIMEOUT_SECONDS = runner.CHANGE_GRACE_SECONDS = 0.5
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a server that waits for a cluster only briefly. A stalled request gets the same answer, sooner."""


class Place:
    """A server with one of the helms; its kubeconfig leads through a proxy. Each has a release `kept`."""

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
def both(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RequestProxy, StreamProxy]]:
    with proxies(cluster, tmp_path_factory.mktemp("proxies")) as running:
        yield running


def place(folder: Path, cluster: Cluster, program: str, kubeconfig: Path, *command: str) -> Iterator[Place]:
    svc = {**FULL, "helm": {"binary": helm_path(program)}, "kube": {"kubeconfig": str(kubeconfig)}}
    server = Server(folder, {"svc": svc}, {}, list(command)).start()
    running = Place(server, cluster.namespace())
    assert running.install("kept").status == 201
    yield running
    server.close()


@pytest.fixture(scope="module", params=HELMS)
def by_request(
    request: pytest.FixtureRequest, cluster: Cluster, both: tuple[RequestProxy, StreamProxy],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Place]:  # fmt: skip
    folder = tmp_path_factory.mktemp(request.param)
    yield from place(folder, cluster, request.param, both[0].kubeconfig, sys.executable, "-c", IMPATIENT)


@pytest.fixture(scope="module", params=HELMS)
def by_stream(
    request: pytest.FixtureRequest, cluster: Cluster, both: tuple[RequestProxy, StreamProxy],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Place]:  # fmt: skip
    yield from place(tmp_path_factory.mktemp(request.param), cluster, request.param, both[1].kubeconfig)


def checked(answer: Answer, port: int, expected: Sequence[tuple[int, str]]) -> str:
    """The detail of a problem with one of these statuses and codes, in which no address is."""
    path = answer.json["instance"]
    body = check_problem(answer, answer.status, path, has_timestamp=True)
    assert (answer.status, body["code"]) in expected, answer
    assert not any(text in answer.text for text in ("127.0.0.1", "localhost", str(port), "https:")), answer
    return str(body["detail"])


LOST = [(502, "cluster-connection-lost"), (502, "cluster-unreachable"), (502, "discovery-incomplete")]
EXPECTED = {CUT: LOST, HALF: LOST, BUSY: [(502, "cluster-busy")], STALL: [(504, "timeout")]}
UNCERTAIN = "the change may have been applied"


@contextlib.contextmanager
def chosen(proxy: RequestProxy, choose: Choose) -> Iterator[Callable[[], bool]]:
    """Meanwhile the proxy does this, at least once. Yields whether it has."""
    before, proxy.choose = proxy.faults, choose
    try:
        yield lambda: proxy.faults > before
    finally:
        proxy.choose = lambda *_: PASS
    assert proxy.faults > before


@pytest.mark.parametrize("by_request", HELMS[:1], indirect=True)
@pytest.mark.parametrize("action", EXPECTED)
def test_a_read_by_a_cluster_at_fault(by_request: Place, both: tuple[RequestProxy, StreamProxy], action: str) -> None:
    with chosen(both[0], lambda *_: action):
        for path in ("", "/kept", "/kept/history", "/kept/resources"):
            answer = by_request.read(path)
            checked(answer, both[0].port, EXPECTED[action])
            assert (answer.headers.get("Retry-After") == "5") is (action == BUSY)
    assert by_request.read("/kept").status == 200


def everything(method: str, path: str) -> bool:
    return True


def objects(method: str, path: str) -> bool:
    return "configmaps" in path and method != "GET"


def own_record(method: str, path: str) -> bool:
    return "secrets" in path and method in ("POST", "PUT")


def discovery(method: str, path: str) -> bool:
    return path.startswith(("/api", "/openapi", "/version")) and "namespaces" not in path


CHANGES: list[tuple[str, Callable[[str, str], bool]]] = [
    (HALF, everything), (BUSY, everything), (STALL, everything), (HALF, discovery), (CUT, objects), (BUSY, objects),
    (CUT, own_record), (BUSY, own_record), (STALL, objects),
]  # fmt: skip


@pytest.mark.parametrize(("action", "where"), CHANGES, ids=[f"{action}-{where.__name__}" for action, where in CHANGES])
def test_a_change_by_a_cluster_at_fault(
    by_request: Place, both: tuple[RequestProxy, StreamProxy], action: str, where: Callable[[str, str], bool]
) -> None:
    name = f"{action}-{where.__name__}".replace("_", "-")
    with chosen(both[0], lambda method, path: action if where(method, path) else PASS) as has_met:
        answer = by_request.install(name, 1 if action == STALL else 60)
        if not has_met():  # on a busy machine helm gets nowhere in a second
            answer = by_request.install(f"{name}-again", 25)
    detail = checked(answer, both[0].port, EXPECTED[action])
    assert (UNCERTAIN in detail) or where in (everything, discovery)
    assert by_request.read("/kept").status == 200


@pytest.mark.parametrize("limit", [2000, 4000, 6000, 10000])
def test_a_change_whose_streams_are_cut(by_stream: Place, both: tuple[RequestProxy, StreamProxy], limit: int) -> None:
    """Each connection ends after so many bytes of TLS, so in its middle; helm speaks HTTP/2."""
    proxy = both[1]
    cuts, proxy.limit = proxy.cuts, limit
    answer = by_stream.install(f"cut-{limit}")
    proxy.limit = None
    assert proxy.cuts > cuts
    if answer.status != 201:  # helm may have repeated what was cut
        checked(answer, proxy.port, LOST)
