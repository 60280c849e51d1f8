"""Charts in OCI registries: push and pull with helm and a real registry; malicious and faulty registries."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import chart_servers
import pytest
from chart_servers import FULL, Reply, WebServer, post_json, post_parts
from conftest import Server
from http_checks import running_server

CONFIG = "application/vnd.cncf.helm.config.v1+json"
CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with chart_servers.running_registry(tmp_path_factory.mktemp("registry")) as place:
        yield place


@pytest.fixture(scope="module")
def web() -> Iterator[WebServer]:
    with chart_servers.web_server() as one:
        yield one


@pytest.fixture(scope="module")
def forbidden() -> Iterator[WebServer]:
    """A web server that is not an allowed host."""
    with chart_servers.web_server() as one:
        yield one


@pytest.fixture(scope="module")
def server_allowing_web(tmp_path_factory: pytest.TempPathFactory, web: WebServer) -> Iterator[Server]:
    security = FULL | {"allowed-hosts": [web.host_port]}
    with running_server(tmp_path_factory.mktemp("lying"), svc={"security": security}) as server:
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, registry: str) -> Iterator[Server]:
    security = FULL | {"allowed-hosts": [registry]}
    with running_server(tmp_path_factory.mktemp("server"), svc={"security": security}) as one:
        yield one


def push_by_helm(folder: Path, registry: str, name: str, version: str, **facts: Any) -> None:
    file = folder / f"{name}-{version}.tgz"
    file.write_bytes(chart_servers.chart_archive(name, version, **facts))
    chart_servers.run_helm(folder, "push", "--plain-http", file.name, f"oci://{registry}/theirs")


def pull(server: Server, ref: str, version: str | None = None) -> bytes:
    answer = post_json(server, "/repos/pull", {"chart": ref, "version": version})
    assert answer.status == 200, answer
    return answer.body


def version_in(data: bytes) -> str:
    with tarfile.open(fileobj=io.BytesIO(data)) as file:
        metadata = file.extractfile("demo/Chart.yaml")
        assert metadata
        return next(
            line.partition(": ")[2] for line in metadata.read().decode().splitlines() if line.startswith("version")
        )


@pytest.fixture(scope="module")
def pushed_by_helm(tmp_path_factory: pytest.TempPathFactory, registry: str) -> str:
    """The reference of a chart that helm has pushed."""
    folder = tmp_path_factory.mktemp("pushed")
    for version in ("0.1.0", "0.2.0", "0.10.0", "1.0.0-rc.1", "0.3.0+build.7", "v0.11.0", "v2.0.0-rc.1"):
        push_by_helm(folder, registry, "demo", version)
    return f"oci://{registry}/theirs/demo"


@pytest.mark.parametrize(
    ("tag", "version", "found"),
    [
        ("", None, "0.10.0"),
        ("", "0.2.0", "0.2.0"),
        ("", "~0.2", "0.2.0"),
        ("", "<0.10", "0.3.0+build.7"),
        ("", ">=1.0.0-0", "1.0.0-rc.1"),
        ("", "0.3.0+build.7", "0.3.0+build.7"),
        ("", "v0.11.0", "v0.11.0"),
        ("", "~0.11", "v0.11.0"),
        (":0.1.0", None, "0.1.0"),
        (":0.1.0", "0.1.0", "0.1.0"),
        (":0.3.0_build.7", "0.3.0+build.7", "0.3.0+build.7"),
        (":1.0.0-rc.1", None, "1.0.0-rc.1"),
    ],
)
def test_a_chart_pushed_by_helm_is_pulled(
    server: Server, pushed_by_helm: str, tag: str, version: str | None, found: str
) -> None:
    data = pull(server, pushed_by_helm + tag, version)
    assert version_in(data) == found
    assert data == chart_servers.chart_archive("demo", found)


def test_the_file_name_of_a_pulled_chart_has_its_version(server: Server, pushed_by_helm: str) -> None:
    answer = post_json(server, "/repos/pull", {"chart": f"{pushed_by_helm}:0.3.0_build.7"})
    assert answer.headers["Content-Disposition"] == 'attachment; filename="demo-0.3.0+build.7.tgz"'
    assert answer.headers["Content-Type"] == "application/gzip"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"version": "9.9.9"}, 404),
        ({"version": ">9"}, 404),
        ({"version": "latest"}, 400),
        ({"version": "1/2"}, 400),
    ],
)
def test_a_missing_version_in_a_registry_is_not_found(
    server: Server, pushed_by_helm: str, body: dict[str, str], status: int
) -> None:
    assert post_json(server, "/repos/pull", {"chart": pushed_by_helm} | body).status == status
    assert (
        server.get(
            f"/api/v1/charts/show?chartRef={pushed_by_helm}&version={body['version'].replace('>', '%3E')}"
        ).status
        == status
    )


def test_a_missing_repository_in_a_registry_is_not_found(server: Server, registry: str) -> None:
    assert post_json(server, "/repos/pull", {"chart": f"oci://{registry}/nothing/demo"}).status == 404
    assert post_json(server, "/repos/pull", {"chart": f"oci://{registry}/nothing/demo:1.0.0"}).status == 404


def test_a_tag_and_a_different_version_are_400(server: Server, pushed_by_helm: str) -> None:
    answer = post_json(server, "/repos/pull", {"chart": f"{pushed_by_helm}:0.1.0", "version": "0.2.0"})
    assert answer.status == 400
    assert "0.2.0" in answer.json["detail"]


def test_helm_pulls_a_pushed_chart(server: Server, registry: str, tmp_path: Path) -> None:
    facts: dict[str, Any] = {
        "description": "\u00dcber",
        "keywords": ["a"],
        "deprecated": True,
        "appVersion": "1.0",
        "maintainers": [{"name": "me"}],
        "annotations": {"a": "b"},
        "dependencies": [{"name": "x", "version": "1", "repository": "https://x.example", "tags": ["t"]}],
    }
    data = chart_servers.chart_archive("mine", "1.2.3+b", **facts)
    for _ in range(2):  # a second push succeeds too
        answer = post_parts(server, "/repos/push", {"chart": data, "remote": f"oci://{registry}/ours"})
        assert (answer.status, answer.body) == (200, b""), answer
    chart_servers.run_helm(tmp_path, "pull", "--plain-http", f"oci://{registry}/ours/mine", "--version=1.2.3+b")
    assert [file.read_bytes() for file in tmp_path.glob("*.tgz")] == [data]
    shown = chart_servers.run_helm(
        tmp_path, "show", "chart", "--plain-http", f"oci://{registry}/ours/mine", "--version=1.2.3+b"
    ).stdout
    assert "description: Über" in shown
    assert pull(server, f"oci://{registry}/ours/mine:1.2.3_b") == data


def test_a_chart_can_be_pushed_to_the_root_of_a_registry(server: Server, registry: str) -> None:
    assert (
        post_parts(
            server, "/repos/push", {"chart": chart_servers.chart_archive("top"), "remote": f"oci://{registry}"}
        ).status
        == 200
    )
    assert pull(server, f"oci://{registry}/top")


@pytest.mark.parametrize(
    ("remote", "detail"),
    [
        (" ", "remote is required"),
        ("https://{0}/ours", "remote must be oci://"),
        ("{0}/ours", "remote must be oci://"),
        ("oci://{0}/ours:1.0.0", "without a tag"),
        ("oci://{0}/../ours", "remote must be oci://"),
        ("oci://me:pw@{0}/ours", "host of a registry"),
        ("oci://127.0.0.1:1/ours", "is refused"),
        ("oci://169.254.169.254/ours", "is refused"),
        ("oci://localhost/ours", "is refused"),
    ],
)
def test_invalid_remotes_of_a_push_are_400(server: Server, registry: str, remote: str, detail: str) -> None:
    answer = post_parts(
        server, "/repos/push", {"chart": chart_servers.chart_archive(), "remote": remote.format(registry)}
    )
    assert answer.status == 400, answer
    assert detail in answer.json["detail"]


def test_an_invalid_chart_is_not_pushed(server: Server, registry: str) -> None:
    answer = post_parts(server, "/repos/push", {"chart": b"no chart", "remote": f"oci://{registry}/ours"})
    assert answer.status == 400
    assert post_parts(server, "/repos/push", {"remote": f"oci://{registry}/ours"}).json["detail"] == "chart is required"


def test_a_push_without_credentials_is_401(server: Server, registry: str) -> None:
    assert server.post("/api/v1/repos/push", b"").status == 401


# Malicious and faulty registries


def manifest(data: bytes, digest: str | None = None, kind: str = CONFIG, layers: int = 1) -> bytes:
    digest = digest or f"sha256:{hashlib.sha256(data).hexdigest()}"
    layer = {"mediaType": CONTENT, "digest": digest, "size": len(data)}
    return json.dumps(
        {"schemaVersion": 2, "config": {"mediaType": kind, "digest": digest, "size": 2}, "layers": [layer] * layers}
    ).encode()


def serve_chart(web: WebServer, path: str, data: bytes, result: bytes | None = None) -> str:
    """Serves a chart as a registry would, at `path`; returns its reference."""
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    web.pages[f"/v2/{path}/manifests/1.0.0"] = result or manifest(data)
    web.pages[f"/v2/{path}/blobs/{digest}"] = data
    return f"oci://{web.host_port}/{path}:1.0.0"


def error_detail(server_allowing_web: Server, ref: str, status: int) -> str:
    answer = post_json(server_allowing_web, "/repos/pull", {"chart": ref})
    assert answer.status == status, answer
    return str(answer.json["detail"])


def test_a_blob_with_a_wrong_digest_is_refused(server_allowing_web: Server, web: WebServer) -> None:
    data = chart_servers.chart_archive("demo", "1.0.0")
    ref = serve_chart(web, "false/demo", data)
    web.pages[f"/v2/false/demo/blobs/sha256:{hashlib.sha256(data).hexdigest()}"] = chart_servers.chart_archive(
        "demo", "6.6.6"
    )
    assert "digest" in error_detail(server_allowing_web, ref, 502)


def test_a_manifest_with_a_wrong_digest_is_refused(server_allowing_web: Server, web: WebServer) -> None:
    ref = serve_chart(web, "twisted/demo", chart_servers.chart_archive("demo", "1.0.0"))
    body = web.pages["/v2/twisted/demo/manifests/1.0.0"]
    assert isinstance(body, bytes)
    web.pages["/v2/twisted/demo/manifests/1.0.0"] = (200, {"Docker-Content-Digest": f"sha256:{'0' * 64}"}, body)
    assert "digest" in error_detail(server_allowing_web, ref, 502)


def test_an_artifact_that_is_not_a_chart_is_refused(server_allowing_web: Server, web: WebServer) -> None:
    data = chart_servers.chart_archive()
    kind = "application/vnd.oci.image.config.v1+json"
    assert "is not a chart" in error_detail(
        server_allowing_web, serve_chart(web, "image/demo", data, manifest(data, kind=kind)), 400
    )
    assert "contains no chart" in error_detail(
        server_allowing_web, serve_chart(web, "two/demo", data, manifest(data, layers=2)), 400
    )
    assert "without a SHA-256" in error_detail(
        server_allowing_web, serve_chart(web, "md5/demo", data, manifest(data, digest="md5:0")), 502
    )
    assert "gzip" in error_detail(server_allowing_web, serve_chart(web, "noise/demo", b"noise"), 400)
    assert "did not answer with JSON" in error_detail(
        server_allowing_web, serve_chart(web, "odd/demo", data, b"<html>"), 502
    )


def _challenge(realm: str) -> Reply:
    return 401, {"WWW-Authenticate": f'Bearer realm="{realm}",service="it",scope="repository:x:pull"'}, b""


def test_a_token_is_requested_from_the_realm_of_the_registry(server_allowing_web: Server, web: WebServer) -> None:
    data = chart_servers.chart_archive("demo", "1.0.0")
    ref = serve_chart(web, "closed/demo", data)
    inner = dict(web.pages)

    def require_token(handler: BaseHTTPRequestHandler) -> Reply:
        if handler.headers.get("Authorization") != "Bearer the.token":
            return _challenge(f"{web.url}/token")
        return 200, {}, inner[handler.path]  # type: ignore[return-value]

    for path in [path for path in inner if path.startswith("/v2/closed")]:
        web.pages[path] = require_token
    web.pages["/token"] = b'{"token": "the.token"}'
    web.seen.clear()
    assert post_json(server_allowing_web, "/repos/pull", {"chart": ref}).body == data
    requested = [path for path in web.paths() if path.startswith("/token")]
    assert requested == ["/token?service=it&scope=repository%3Ax%3Apull"]


def test_a_missing_token_server_is_an_upstream_error(server_allowing_web: Server, web: WebServer) -> None:
    ref = serve_chart(web, "barred/demo", chart_servers.chart_archive("demo", "1.0.0"))
    web.pages["/v2/barred/demo/manifests/1.0.0"] = _challenge(f"{web.url}/no-tokens")
    assert error_detail(server_allowing_web, ref, 502).endswith("answered 404")


@pytest.mark.parametrize(
    "realm", ["{0}/token", "http://169.254.169.254/token", "file:///etc/passwd", "http://me:pw@{1}/token"]
)
def test_a_token_realm_at_an_internal_address_is_refused(
    server_allowing_web: Server, web: WebServer, forbidden: WebServer, realm: str
) -> None:
    ref = serve_chart(web, "led/demo", chart_servers.chart_archive("demo", "1.0.0"))
    web.pages["/v2/led/demo/manifests/1.0.0"] = _challenge(realm.format(forbidden.url, web.host_port))
    forbidden.pages["/token"] = b'{"token": "x"}'
    assert "refused" in error_detail(server_allowing_web, ref, 400)
    assert forbidden.seen == []


def test_a_blob_redirect_to_an_internal_address_is_refused(
    server_allowing_web: Server, web: WebServer, forbidden: WebServer
) -> None:
    data = chart_servers.chart_archive("demo", "1.0.0")
    ref = serve_chart(web, "moved/demo", data)
    forbidden.pages["/blob"] = data
    digest = hashlib.sha256(data).hexdigest()
    web.pages[f"/v2/moved/demo/blobs/sha256:{digest}"] = (307, {"Location": f"{forbidden.url}/blob"}, b"")
    assert "refused" in error_detail(server_allowing_web, ref, 400)
    assert forbidden.seen == []


def test_a_token_is_not_sent_to_the_target_of_a_blob_redirect(server_allowing_web: Server, web: WebServer) -> None:
    """The registry redirects to a second allowed host; the token is for the registry only."""
    data = chart_servers.chart_archive("demo", "1.0.0")
    ref = serve_chart(web, "cdn/demo", data)
    digest = hashlib.sha256(data).hexdigest()
    seen: list[str | None] = []

    def require_token(handler: BaseHTTPRequestHandler) -> Reply:
        if handler.headers.get("Authorization") != "Bearer t":
            return _challenge(f"{web.url}/t")
        return 200, {}, manifest(data)

    def stored(handler: BaseHTTPRequestHandler) -> Reply:
        seen.append(handler.headers.get("Authorization"))
        return 200, {}, data

    with chart_servers.web_server() as cdn:
        cdn.pages["/blob"] = stored
        web.pages["/v2/cdn/demo/manifests/1.0.0"] = require_token
        web.pages["/t"] = b'{"access_token": "t"}'
        web.pages[f"/v2/cdn/demo/blobs/sha256:{digest}"] = (307, {"Location": f"{cdn.url}/blob"}, b"")
        assert "refused" in error_detail(server_allowing_web, ref, 400)
        web.pages["/blob"] = stored
        web.pages[f"/v2/cdn/demo/blobs/sha256:{digest}"] = (307, {"Location": f"http://0x7f.1:{web.port}/blob"}, b"")
        assert post_json(server_allowing_web, "/repos/pull", {"chart": ref}).body == data
    assert seen == ["Bearer t"]  # another spelling of 127.0.0.1 is the same origin


def test_an_index_can_refer_to_a_registry(server: Server, registry: str, pushed_by_helm: str, tmp_path: Path) -> None:
    """Indexes of large publishers do this."""
    data = chart_servers.chart_archive("demo", "0.3.0+build.7")
    with chart_servers.web_server() as shop:
        (tmp_path / "shop").mkdir()
        svc = {"security": FULL | {"allowed-hosts": [registry, shop.host_port]}}
        with running_server(tmp_path / "shop", svc=svc) as one:
            for name, url, result, status in (
                ("tagged", f"{pushed_by_helm}:0.3.0_build.7", data, 200),
                ("plain", pushed_by_helm, data, 200),
                ("false", f"{pushed_by_helm}:0.2.0", data, 502),
                ("other", f"{pushed_by_helm}:0.2.0", None, 502),
                ("inside", "oci://127.0.0.1:1/demo:0.3.0_build.7", None, 400),
                ("odd", "oci://../demo", None, 400),
            ):
                entry = chart_servers.index_entry("demo", "0.3.0+build.7", result, urls=[url])
                shop.pages[f"/{name}/index.yaml"] = chart_servers.index_file(entry)
                assert post_json(one, "/repos", {"name": name, "url": f"{shop.url}/{name}"}).status == 201
                answer = post_json(one, "/repos/pull", {"chart": f"{name}/demo"})
                assert answer.status == status, (name, answer)
                assert status != 200 or answer.body == data


def test_an_upload_location_at_an_internal_address_is_refused(
    server_allowing_web: Server, web: WebServer, forbidden: WebServer
) -> None:
    web.pages["/v2/ours/demo/blobs/uploads/"] = (202, {"Location": f"{forbidden.url}/upload"}, b"")
    answer = post_parts(
        server_allowing_web,
        "/repos/push",
        {"chart": chart_servers.chart_archive(), "remote": f"oci://{web.host_port}/ours"},
    )
    assert answer.status == 400
    assert "refused" in answer.json["detail"]
    assert forbidden.seen == []


def test_an_error_of_a_registry_is_reported_with_its_message(server_allowing_web: Server, web: WebServer) -> None:
    result = json.dumps({"errors": [{"code": "DENIED", "message": "not for you"}]}).encode()
    web.pages["/v2/deny/demo/blobs/uploads/"] = (403, {}, result)
    answer = post_parts(
        server_allowing_web,
        "/repos/push",
        {"chart": chart_servers.chart_archive(), "remote": f"oci://{web.host_port}/deny"},
    )
    assert (answer.status, answer.json["code"]) == (400, "registry-login-required")
    assert f"the registry {web.host_port} requires a login for oci://{web.host_port}/deny/demo" in answer.json["detail"]
    assert "DENIED: not for you" in answer.json["detail"]


def test_a_token_realm_that_answers_401_is_reported_as_login_required(
    server_allowing_web: Server, web: WebServer
) -> None:
    realm = f"{web.url}/denied-token"
    web.pages["/v2/private/demo/manifests/1.0.0"] = _challenge(realm)
    web.pages["/denied-token"] = (401, {}, b"{}")
    answer = post_json(server_allowing_web, "/repos/pull", {"chart": f"oci://{web.host_port}/private/demo:1.0.0"})
    assert (answer.status, answer.json["code"]) == (400, "registry-login-required")


def test_paged_tag_lists_are_followed(server_allowing_web: Server, web: WebServer) -> None:
    data = chart_servers.chart_archive("demo", "1.0.0")
    serve_chart(web, "many/demo", data)

    def tags(handler: BaseHTTPRequestHandler) -> Reply:
        if "last=" in handler.path:
            return 200, {}, b'{"name": "many/demo", "tags": ["1.0.0", "nonsense"]}'
        return 200, {"Link": '</v2/many/demo/tags/list?last=0.2.0&n=2>; rel="next"'}, b'{"tags": ["0.1.0", "0.2.0"]}'

    web.pages["/v2/many/demo/tags/list"] = tags
    assert post_json(server_allowing_web, "/repos/pull", {"chart": f"oci://{web.host_port}/many/demo"}).body == data


@pytest.mark.parametrize(
    ("pages", "padding", "reason"), [(101, 0, "100 pages"), (2, 5, "8388608 bytes"), (1, 9, "8388608 bytes")]
)
def test_only_an_exact_version_is_pulled_beyond_100_pages_or_8_mib_of_tags(
    server_allowing_web: Server, web: WebServer, pages: int, padding: int, reason: str
) -> None:
    data, path = chart_servers.chart_archive("demo", "1.0.0"), f"long{pages}/demo"
    serve_chart(web, path, data)

    def tags(handler: BaseHTTPRequestHandler) -> Reply:
        page = int(handler.path.rpartition("=")[2]) if "page=" in handler.path else 0
        more = {"Link": f'</v2/{path}/tags/list?page={page + 1}>; rel="next"'} if page + 1 < pages else {}
        return 200, more, b'{"tags":["1.0.0"]' + b" " * (padding * 1024**2) + b"}"

    web.pages[f"/v2/{path}/tags/list"] = tags
    chart = f"oci://{web.host_port}/{path}"
    refused = post_json(server_allowing_web, "/repos/pull", {"chart": chart, "version": "^1"})
    assert refused.status == 400, refused
    assert f"has more than {reason} of tags: name an exact version" in refused.json["detail"]
    assert post_json(server_allowing_web, "/repos/pull", {"chart": chart, "version": "1.0.0"}).body == data


@pytest.mark.parametrize("pages", [1, 100])
def test_only_an_exact_version_is_pulled_from_600_000_tags(
    server_allowing_web: Server, web: WebServer, pages: int
) -> None:
    data, path = chart_servers.chart_archive("demo", "1.0.0"), f"crowd{pages}/demo"
    serve_chart(web, path, data)
    count = 600_000 // pages

    def tags(handler: BaseHTTPRequestHandler) -> Reply:
        page = int(handler.path.rpartition("=")[2]) if "page=" in handler.path else 0
        listed = ",".join(f'"0.{page}.{number}"' for number in range(count))
        more = {"Link": f'</v2/{path}/tags/list?page={page + 1}>; rel="next"'} if page + 1 < pages else {}
        return 200, more, f'{{"tags":[{listed}]}}'.encode()

    web.pages[f"/v2/{path}/tags/list"] = tags
    web.seen.clear()
    for wanted in ("^0.1", ""):
        result = post_json(
            server_allowing_web, "/repos/pull", {"chart": f"oci://{web.host_port}/{path}", "version": wanted}
        )
        assert result.status == 400
        assert "more tags than svc.fetch.max-tags (20000): name an exact version" in result.json["detail"]
    lists = [requested for requested in web.paths() if "tags/list" in requested]
    assert len(lists) == 2 * (1 if pages == 1 else 4), "no page is read beyond the limit"
    web.seen.clear()
    assert (
        post_json(
            server_allowing_web, "/repos/pull", {"chart": f"oci://{web.host_port}/{path}", "version": "1.0.0"}
        ).body
        == data
    )
    assert not [requested for requested in web.paths() if "tags/list" in requested]


def test_a_registry_that_is_not_allowed_is_not_contacted_in_plain_http(
    server_allowing_web: Server, forbidden: WebServer
) -> None:
    forbidden.pages["/v2/"] = b"{}"
    assert (
        post_json(server_allowing_web, "/repos/pull", {"chart": f"oci://{forbidden.host_port}/demo:1.0.0"}).status
        == 400
    )
    assert forbidden.seen == []
