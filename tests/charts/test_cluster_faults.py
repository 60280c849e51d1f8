"""A misbehaving API server: retries, error messages without internal details, and shared requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import trustme
from chart_servers import web_server
from release_secrets import made_release, release_secret

from models.charts import helm_errors
from models.charts.kubeconfig import Access, DataOrFile
from models.errors import NotFound, Problem, TimedOut, Upstream
from supervisor.charts.kube import client
from supervisor.charts.kube.cluster import DENIED, METADATA_LIST, Cluster
from supervisor.charts.kube.releases import Native
from supervisor.single_flight import SingleFlight

Respond = Callable[[str, dict[str, list[str]], str], tuple[int, bytes] | None]
"""From path, query and Accept to status and body; `None` closes the connection without a response."""


class FakeApiServer:
    """Responds with the result of `respond`; counts connections and keeps the requested paths."""

    def __init__(self, respond: Respond) -> None:
        self.paths: list[str] = []
        self.connections = 0
        fake_server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1

            def setup(self) -> None:
                fake_server.connections += 1
                super().setup()

            def do_GET(self) -> None:
                fake_server.paths.append(self.path)
                parts = urlsplit(self.path)
                answer = respond(parts.path, parse_qs(parts.query), self.headers["Accept"])
                if answer is None:
                    self.close_connection = True
                    return
                self.send_response(answer[0])
                self.send_header("Content-Length", str(len(answer[1])))
                self.end_headers()
                self.wfile.write(answer[1])

            def log_message(self, format: str, *args: Any) -> None:
                """Logs nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.access = Access("http", "127.0.0.1", self.server.server_port, "", token=DataOrFile(data=b"sesame"))


@contextlib.contextmanager
def fake_server(respond: Respond) -> Iterator[FakeApiServer]:
    one = FakeApiServer(respond)
    thread = threading.Thread(target=one.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield one
    finally:
        one.server.shutdown()
        one.server.server_close()
        thread.join()


def run(access: Access, send_request: Callable[[Cluster], Any]) -> Any:
    async def main() -> Any:
        cluster = Cluster(access)
        try:
            return await send_request(cluster)
        finally:
            cluster.close()

    return asyncio.run(main())


def json_response(what: Any, status: int = 200) -> tuple[int, bytes]:
    return status, json.dumps(what).encode()


@pytest.mark.parametrize("status", [400, 401, 403, 409, 429, 500, 503, 301, 204])
def test_the_body_of_an_error_of_the_cluster_is_not_shown(status: int) -> None:
    with (
        fake_server(lambda *_: (status, b"" if status == 204 else b"a secret of the cluster")) as api,
        pytest.raises(Upstream) as failure,
    ):
        run(api.access, lambda cluster: cluster.get("/api/v1/x"))
    assert "secret" not in failure.value.message
    assert "sesame" not in failure.value.message
    assert (failure.value.code == DENIED) == (status in (401, 403))


@pytest.mark.parametrize("body", [b"", b"no json", b"\xff", b"[" * 100_000, b"{" * 100_000])
def test_a_response_that_is_not_json_is_an_upstream_error(body: bytes) -> None:
    with fake_server(lambda *_: (200, body)) as api, pytest.raises(Upstream, match="JSON"):
        run(api.access, lambda cluster: cluster.get("/x"))


def test_a_404_of_the_cluster_is_none() -> None:
    with fake_server(lambda *_: json_response({}, 404)) as api:
        assert run(api.access, lambda cluster: cluster.get("/x")) is None


def test_connections_are_reused_and_closed_ones_replaced() -> None:
    with fake_server(lambda path, *_: None if path == "/close" else json_response({"path": path})) as api:

        async def send_request(cluster: Cluster) -> None:
            for _ in range(5):
                assert await cluster.get("/a") == {"path": "/a"}
            assert api.connections == 1
            with pytest.raises(Upstream, match="closed the connection"):
                await cluster.get("/close")
            assert await cluster.get("/b") == {"path": "/b"}

        run(api.access, send_request)
        assert api.connections <= 4


def test_a_response_above_the_size_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MAX_RESPONSE_BYTES", 1000)
    with fake_server(lambda *_: json_response("x" * 1000)) as api, pytest.raises(Upstream):
        run(api.access, lambda cluster: cluster.get("/x"))


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@contextlib.contextmanager
def raw_response_server(answer: bytes) -> Iterator[Access]:
    """A server that sends these bytes in response to each request and closes the connection."""
    over = threading.Event()

    def serve(listening: socket.socket) -> None:
        while not over.is_set():
            with contextlib.suppress(OSError), listening.accept()[0] as connection:
                if connection.recv(65536):
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        port = listening.getsockname()[1]
        try:
            yield Access("http", "127.0.0.1", port, "")
        finally:
            over.set()
            socket.create_connection(("127.0.0.1", port)).close()
            thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        HEAD + b"Content-Length: 2\r\n\r\n{}",
        HEAD + b"content-LENGTH:2\r\nX: y\r\n\r\n{}",
        HEAD + b"Connection: close\r\n\r\n{}",
        b"HTTP/1.0 200\r\n\r\n{}",
        CHUNKED + b"1\r\n{\r\n1;ext=1\r\n}\r\n0\r\nTrailer: x\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + HEAD + b"Content-Length: 2\r\n\r\n{}",
    ],
)
def test_every_valid_framing_of_a_response_is_read(answer: bytes) -> None:
    with raw_response_server(answer) as access:
        assert run(access, lambda cluster: cluster.get("/x")) == {}


@pytest.mark.parametrize(
    "answer",
    [
        b"hello\r\n\r\n", b"HTTP/2 200\r\n\r\n{}", b"HTTP/1.1\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", HEAD,
        HEAD + b"Content-Length: -1\r\n\r\n", HEAD + b"Content-Length: x\r\n\r\n{}",
        HEAD + b"Content-Length: 9\r\n\r\n{}", CHUNKED + b"2\r\n{}", CHUNKED + b"x\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"-1\r\n", CHUNKED + b"2\r\n{}\r\n", HEAD + b"X: y\r\n" * 100_000 + b"Content-Length: 2\r\n\r\n{}",
        HEAD + b"Content-Length: 99999999999\r\n\r\n", HEAD + b"X: " + b"x" * 300_000 + b"\r\n\r\n",
    ],
    ids=range(15),
)  # fmt: skip
def test_a_malformed_response_is_an_upstream_error(answer: bytes) -> None:
    with raw_response_server(answer) as access, pytest.raises(Upstream, match="closed the connection"):
        run(access, lambda cluster: cluster.get("/x"))


def test_a_refused_connection_is_an_upstream_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Upstream, match="cannot be reached"):
        run(Access("http", "127.0.0.1", port, ""), lambda cluster: cluster.get("/x"))


def problem_of_a_read(access: Access) -> Upstream:
    with pytest.raises(Upstream) as caught:
        run(access, lambda cluster: cluster.get("/x"))
    return caught.value


def problem_of_a_change(cause: str) -> Problem:
    """The problem for what helm prints where a request to the cluster fails."""
    return helm_errors.problem_from_output(
        f'Error: INSTALLATION FAILED: Kubernetes cluster unreachable: Get "https://a.example:6443/version": {cause}'
    )


def check_equal(read: Problem, change: Problem, message: str) -> None:
    """A cause has one code and one message, whether a read or a change meets it."""
    assert (read.code, change.code) == ("cluster-unreachable",) * 2
    assert (type(read), type(change)) == (Upstream, Upstream)
    assert read.message == change.message == f"the cluster cannot be reached: {message}"


def test_an_unreachable_cluster_has_one_code_in_reads_and_changes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    refused = problem_of_a_change("dial tcp 127.0.0.1:6443: connect: connection refused")
    check_equal(problem_of_a_read(Access("http", "127.0.0.1", port, "")), refused, "connection refused")
    with fake_server(lambda *_: json_response({})) as api:
        change = problem_of_a_change("http: server gave HTTP response to HTTPS client")
        check_equal(
            problem_of_a_read(Access("https", "127.0.0.1", api.access.port, "")), change, "it does not speak TLS"
        )


def test_a_certificate_that_is_not_trusted_has_one_code_in_reads_and_changes() -> None:
    with web_server() as web:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
        web.server.socket = context.wrap_socket(web.server.socket, server_side=True)
        read = problem_of_a_read(Access("https", "127.0.0.1", web.server.server_address[1], ""))
    change = problem_of_a_change("tls: failed to verify certificate: x509: certificate signed by unknown authority")
    check_equal(read, change, "its certificate is not trusted")


def test_a_name_that_is_not_resolved_has_one_code_and_the_words_of_the_resolver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    read = problem_of_a_read(Access("https", "a.example", 6443, ""))
    change = problem_of_a_change("dial tcp: lookup a.example on 10.0.0.2:53: no such host")
    assert (read.code, change.code) == ("cluster-unreachable",) * 2
    assert read.message == "the cluster cannot be reached: its name cannot be resolved (Name or service not known)"
    assert change.message == "the cluster cannot be reached: its name cannot be resolved (no such host)"


@pytest.mark.parametrize("status", [401, 403])
def test_a_cluster_that_denies_a_request_has_one_code_in_reads_and_changes(status: int) -> None:
    with fake_server(lambda *_: (status, b"{}")) as api:
        assert problem_of_a_read(api.access).code == "cluster-denied"
    credentials = "the server has asked for the client to provide credentials"
    denied = [
        f"Error: query: failed to query with labels: {credentials}",
        'Error: secrets is forbidden: User "u" cannot list resource "secrets"',
    ]
    assert {helm_errors.problem_from_output(text).code for text in denied} == {"cluster-denied"}


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_server_that_does_not_respond_is_a_timeout(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Over TLS the handshake never completes; without TLS the connection is made, however late this process continues.
    if scheme == "https":
        monkeypatch.setattr(client, "CONNECT_SECONDS", 1.0)
    else:
        monkeypatch.setattr(client, "RESPONSE_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        access = Access(scheme, "127.0.0.1", silent.getsockname()[1], "", verify=False)
        problem = TimedOut if scheme == "http" else Upstream  # 504 for no response, 502 for no connection
        with pytest.raises(problem, match=r"not? answer"):
            run(access, lambda cluster: cluster.get("/x"))


def test_a_server_without_tls_is_an_upstream_error() -> None:
    with fake_server(lambda *_: json_response({})) as api, pytest.raises(Upstream):
        run(Access("https", "127.0.0.1", api.access.port, ""), lambda cluster: cluster.get("/x"))


@pytest.mark.parametrize(
    "blobs",
    [
        {"authority": DataOrFile(data=b"no certificate")},
        {"authority": DataOrFile(data=b"\xff")},
        {"certificate": DataOrFile(data=b"none"), "key": DataOrFile(data=b"none")},
        {"token": DataOrFile(data="tokén".encode())},
    ],
)
def test_unreadable_credentials_are_reported_without_their_content(blobs: dict[str, DataOrFile]) -> None:
    with pytest.raises(Upstream, match="credentials cannot be read"):
        run(Access("https", "127.0.0.1", 1, "", **blobs), lambda cluster: cluster.get("/x"))  # type: ignore[arg-type]


def test_requests_beyond_the_connection_limit_wait() -> None:
    with fake_server(lambda path, *_: json_response({"path": path})) as api:

        async def send_request(cluster: Cluster) -> list[Any]:
            return await asyncio.gather(*(cluster.get(f"/{index}") for index in range(100)))

        assert run(api.access, send_request) == [{"path": f"/{index}"} for index in range(100)]
        assert api.connections <= 8


def test_the_path_prefix_of_the_server_is_part_of_every_request() -> None:
    with fake_server(lambda path, *_: json_response({"path": path})) as api:
        access = Access("http", "127.0.0.1", api.access.port, "/k8s/clusters/one")
        assert run(access, lambda cluster: cluster.get("/api")) == {"path": "/k8s/clusters/one/api"}


# Lists


def page(items: list[dict[str, Any]], following: str = "") -> tuple[int, bytes]:
    return json_response({"items": items, "metadata": {"continue": following}})


def test_a_list_is_read_page_by_page() -> None:
    pages = {"": page([{"a": 1}], "two"), "two": page([{"a": 2}], "three"), "three": page([{"a": 3}])}
    with fake_server(lambda _, query, __: pages[query.get("continue", [""])[0]]) as api:
        found = run(api.access, lambda cluster: cluster.metadata("/list", "owner=helm"))
    assert found == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert all("labelSelector=owner%3Dhelm" in path for path in api.paths)


def test_an_expired_list_is_restarted_once() -> None:
    answers = [page([{"a": 1}], "two"), json_response({}, 410), page([{"a": 2}])]
    with fake_server(lambda *_: answers.pop(0)) as api:
        assert run(api.access, lambda cluster: cluster.metadata("/list", "x=y")) == [{"a": 2}]
    with fake_server(lambda *_: json_response({}, 410)) as api, pytest.raises(Upstream, match="expired"):
        run(api.access, lambda cluster: cluster.metadata("/list", "x=y"))


# Releases


def release_responses(*releases: dict[str, Any], cached: int | None = None) -> Respond:
    """Responses of an API server with these releases; its watch cache has the first `cached` of them only."""
    there = {one["metadata"]["name"]: one for one in map(release_secret, releases)}
    for index, (name, one) in enumerate(there.items()):
        one["metadata"] |= {"uid": name, "resourceVersion": str(index)}

    def answer(path: str, query: dict[str, list[str]], accept: str) -> tuple[int, bytes]:
        if not path.endswith("/secrets"):
            found = there.get(path.rpartition("/")[2])
            return json_response(found) if found else json_response({}, 404)
        items = list(there.values())
        if "resourceVersion" in query:
            items = items[:cached]
        if accept == METADATA_LIST:
            items = [{"metadata": one["metadata"]} for one in items]
        return page(items)

    return answer


def test_releases_are_current_although_the_cache_of_the_cluster_is_stale() -> None:
    revisions = [made_release("a", "n", number) for number in range(1, 6)]
    for behind in range(6):
        with fake_server(release_responses(*revisions, cached=behind)) as api:

            async def send_request(cluster: Cluster) -> None:
                native = Native(cluster)
                assert (await native.stored("n", "a"))["version"] == 5
                assert [row.revision for row in await native.history("n", "a")] == [5, 4, 3, 2, 1]
                assert [row.revision for row in await native.rows("n")] == [5]

            run(api.access, send_request)


def test_a_listing_reads_each_release_once() -> None:
    with fake_server(release_responses(*(made_release(f"r{index:02}", "n") for index in range(50)))) as api:

        async def send_request(cluster: Cluster) -> None:
            native = Native(cluster)
            first = await native.rows("n")
            before = len(api.paths)
            assert await native.rows("n") == first
            assert [row.name for row in first] == [f"r{index:02}" for index in range(50)]
            assert len(api.paths) == before + 1

        run(api.access, send_request)


def test_a_long_history_is_read_completely() -> None:
    with fake_server(release_responses(*(made_release("a", "n", number) for number in range(1, 61)))) as api:
        rows = run(api.access, lambda cluster: Native(cluster).history("n", "a"))
    assert [row.revision for row in rows] == list(range(60, 0, -1))


def test_reads_of_a_missing_release_raise_not_found() -> None:
    with fake_server(release_responses()) as api:
        for method in ("stored", "history", "all_values", "resources"):
            with pytest.raises(NotFound):
                run(api.access, lambda cluster, method=method: getattr(Native(cluster), method)("n", "a"))  # type: ignore[misc]
        assert run(api.access, lambda cluster: Native(cluster).rows("n")) == []


def test_a_manifest_beyond_the_yaml_limits_is_reported() -> None:
    with (
        fake_server(release_responses(made_release("a", "n", manifest="[" * 501))) as api,
        pytest.raises(Upstream, match="more than 500 deep"),
    ):
        run(api.access, lambda cluster: Native(cluster).resources("n", "a"))


def test_a_forbidden_object_does_not_hide_the_others() -> None:
    manifest = "---\n".join(
        f"apiVersion: v1\nkind: {kind}\nmetadata: {{name: x}}\n" for kind in ("Secret", "Pod", "Node")
    )
    releases = release_responses(made_release("a", "n", manifest=manifest))
    kinds = [
        {"kind": "Secret", "name": "secrets", "namespaced": True},
        {"kind": "Pod", "name": "pods", "namespaced": True},
        {"kind": "Pod", "name": "pods/status", "namespaced": True},
        {"kind": "Node", "name": "nodes", "namespaced": False},
    ]

    def answer(path: str, query: dict[str, list[str]], accept: str) -> tuple[int, bytes] | None:
        if path == "/api/v1":
            return json_response({"resources": kinds})
        if path.endswith("/secrets/x"):
            return json_response({"message": "no"}, 403)
        if path == "/api/v1/nodes/x" or path == "/api/v1/namespaces/n/pods/x":
            return json_response({"kind": "Any", "status": {"phase": "Succeeded"}})
        return releases(path, query, accept)

    with fake_server(answer) as api:
        found = run(api.access, lambda cluster: Native(cluster).resources("n", "a"))
    assert [(one.kind, one.namespace) for one in found] == [("Secret", "n"), ("Pod", "n"), ("Node", None)]
    assert found[0].ready is False
    assert "does not authorize" in found[0].message
    assert found[2].ready is True


# Shared requests


def test_later_callers_share_the_next_flight() -> None:
    async def main() -> None:
        single_flight: SingleFlight[int] = SingleFlight()
        begun, go = [0], asyncio.Event()

        async def work() -> int:
            begun[0] += 1
            mine = begun[0]
            await go.wait()
            return mine

        first = [asyncio.create_task(single_flight.run("k", work)) for _ in range(10)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        other = asyncio.create_task(single_flight.run("other", work))
        await asyncio.sleep(0)
        first[1].cancel()
        go.set()
        answers = [await task for task in first if task is not first[1]]
        assert answers == [1, *[3] * 8]
        assert await other == 2
        assert await single_flight.run("k", work) == 4

    asyncio.run(main())


def test_a_failure_is_raised_to_all_sharing_callers_only() -> None:
    async def main() -> None:
        single_flight: SingleFlight[int] = SingleFlight()

        async def fail() -> int:
            await asyncio.sleep(0)
            raise Upstream("no")

        async def good() -> int:
            return 1

        callers = [asyncio.create_task(single_flight.run("k", fail)) for _ in range(3)]
        assert [type(one) for one in await asyncio.gather(*callers, return_exceptions=True)] == [Upstream] * 3
        assert await single_flight.run("k", good) == 1

    asyncio.run(main())


def test_flights_of_one_key_never_overlap() -> None:
    async def main() -> None:
        single_flight: SingleFlight[int] = SingleFlight()
        running, most = 0, 0

        async def work() -> int:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            return 1

        async def one(index: int) -> None:
            for _ in range(index % 7):
                await asyncio.sleep(0)
            assert await single_flight.run("k", work) == 1

        for _ in range(30):
            await asyncio.gather(*(one(index) for index in range(50)))
        assert most == 1

    asyncio.run(main())
