"""Repositories over HTTP: add, list, update and remove; refused indexes, and the content of listings."""

from __future__ import annotations

import base64
import gzip
import json
import sqlite3
import ssl
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import chart_servers
import pytest
import trustme
import yaml
from chart_servers import FULL, KEY, Reply, WebServer, index_entry, index_file, post_json
from conftest import Answer, Serve, Server, free_port
from http_checks import check_problem, running_server


@pytest.fixture(scope="module")
def web() -> Iterator[WebServer]:
    with chart_servers.web_server() as one:
        yield one


@pytest.fixture(scope="module")
def second() -> Iterator[WebServer]:
    with chart_servers.web_server() as one:
        yield one


@pytest.fixture(scope="module")
def forbidden() -> Iterator[WebServer]:
    """A web server on loopback that is not an allowed host."""
    with chart_servers.web_server() as one:
        yield one


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, web: WebServer, second: WebServer) -> Iterator[Server]:
    security = FULL | {"allowed-hosts": [web.host_port, second.host_port]}
    fetch = {"max-index": "1M", "max-archive": "1M"}
    with running_server(tmp_path_factory.mktemp("server"), svc={"security": security, "fetch": fetch}) as one:
        yield one


@pytest.fixture
def repository(server: Server, web: WebServer, request: pytest.FixtureRequest) -> str:
    """A repository name that is unique to the test, also used as its folder on the web server."""
    return f"r{abs(hash(request.node.nodeid)) % 10**9}"


def add(server: Server, name: str, url: str, **facts: Any) -> Answer:
    return post_json(server, "/repos", {"name": name, "url": url, **facts})


def remove(server: Server, name: str) -> Answer:
    return server.ask("DELETE", f"/api/v1/repos/{name}", headers={"X-API-Key": KEY})


def urls_of(server: Server) -> dict[str, str]:
    return {one["name"]: one["url"] for one in server.get("/api/v1/repos").json}


def test_a_repository_is_added_listed_and_removed(server: Server, web: WebServer, repository: str) -> None:
    web.serve(("demo", "0.1.0", chart_servers.chart_archive()), folder=f"/{repository}")
    answer = add(server, repository, f"{web.url}/{repository}")
    assert (answer.status, answer.body) == (201, b"")
    assert {"name": repository, "url": f"{web.url}/{repository}"} in server.get("/api/v1/repos").json
    answer = remove(server, repository)
    assert (answer.status, answer.body) == (204, b"")
    assert repository not in urls_of(server)
    check_problem(remove(server, repository), 404, f"/api/v1/repos/{repository}", has_timestamp=True)


def test_adding_a_repository_again_is_201_and_with_another_url_409(
    server: Server, web: WebServer, repository: str
) -> None:
    web.serve(folder=f"/{repository}")
    web.serve(folder=f"/{repository}/other")
    url = f"{web.url}/{repository}"
    assert [add(server, repository, one).status for one in (url, url, f"{url}/", url)] == [201] * 4
    assert add(server, repository, f"{url}/other").status == 409
    assert add(server, repository, url, username="me", password="secret").status == 409
    assert urls_of(server)[repository] == url
    assert add(server, repository, f"{url}/other", forceUpdate=True).status == 201
    assert urls_of(server)[repository] == f"{url}/other"


def test_force_update_replaces_a_repository_with_the_same_url(server: Server, web: WebServer, repository: str) -> None:
    web.serve(folder=f"/{repository}")
    url = f"{web.url}/{repository}"
    assert add(server, repository, url, username="me", password="secret", insecureSkipTlsVerify=True).status == 201
    assert add(server, repository, url).status == 201
    assert "authorization" in web.seen[-1][2], "an unchanged repository is not fetched again"
    assert add(server, repository, url, forceUpdate=True).status == 201
    assert "authorization" not in web.seen[-1][2]
    assert post_json(server, f"/repos/{repository}/update").status == 200
    assert "authorization" not in web.seen[-1][2], "the login is removed"


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({}, "name is required; url is required"),
        ({"name": " ", "url": ""}, "name is required; url is required"),
        ({"name": "lab"}, "url is required"),
        ({"name": "a/b", "url": "http://x.example"}, "name"),
        ({"name": "..", "url": "http://x.example"}, "name"),
        ({"name": "-x", "url": "http://x.example"}, "name"),
        ({"name": "lab", "url": "oci://x.example/charts"}, "neither http nor https"),
        ({"name": "lab", "url": "file:///etc"}, "neither http nor https"),
        ({"name": "lab", "url": "x.example"}, "neither http nor https"),
        ({"name": "lab", "url": 7}, "url"),
        ({"name": "lab", "url": "http://x.example", "forceUpdate": "yes"}, "forceUpdate"),
    ],
)
def test_invalid_repositories_are_not_added(server: Server, body: dict[str, Any], detail: str) -> None:
    result = check_problem(post_json(server, "/repos", body), 400, "/api/v1/repos", has_timestamp=True)
    assert detail in result["detail"]


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0x7f.1", "2130706433", "127.0.0.1.", "me:secret@127.0.0.1"],
)
def test_a_repository_on_loopback_is_refused_and_not_stored(server: Server, forbidden: WebServer, host: str) -> None:
    forbidden.serve()
    answer = add(server, "inner", f"http://{host}:{forbidden.port}")
    assert answer.status == 400
    assert "refused" in answer.json["detail"]
    assert "secret" not in answer.text
    assert "inner" not in urls_of(server)
    assert forbidden.seen == []


def test_a_redirect_of_an_index_to_loopback_is_refused(
    server: Server, web: WebServer, forbidden: WebServer, repository: str
) -> None:
    forbidden.serve()
    web.pages[f"/{repository}/index.yaml"] = (302, {"Location": f"{forbidden.url}/index.yaml"}, b"")
    assert add(server, repository, f"{web.url}/{repository}").status == 400
    assert forbidden.seen == []
    assert repository not in urls_of(server)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html><body>Welcome</body></html>",
        b"- a\n- b",
        b"apiVersion: v1\nentries: []",
        b"apiVersion: v1\nentries: {demo: 7}",
        b"entries: {}",
        b"apiVersion: v1\nentries:\n  demo:\n  - version: [1]",
        b"apiVersion: v1\nentries:\n  demo: [\n",
        b"apiVersion: v1\nentries: {demo: [], demo: []}",
        b"apiVersion: v1\nentries: *nothing",
        b"apiVersion: v1\nx: " + b"[" * 50_000,
        b"apiVersion: v1\nentries:\n  demo:\n  - {version: 0.1.0, x: " + b"[" * 500,
        b'{"apiVersion": "v1", "entries": {"demo": [{]}}',
        b'{"apiVersion": "v1", "entries": {}} more',
        b'{"apiVersion": "v1", "entries": ' + b'{"a":' * 5000,
        b"apiVersion: v1\nentries: {}\n\xff\xfe",
        b"apiVersion: v1\nentries: {}\nx: " + b"y" * 1_200_000,
    ],
    ids=range(17),
)
def test_an_invalid_index_is_refused_and_not_stored(
    server: Server, web: WebServer, repository: str, body: bytes
) -> None:
    web.pages[f"/{repository}/index.yaml"] = body
    answer = add(server, repository, f"{web.url}/{repository}")
    assert answer.status == 400, answer
    assert repository not in urls_of(server)


def test_an_invalid_index_does_not_replace_a_valid_one(server: Server, web: WebServer, repository: str) -> None:
    web.serve(("demo", "0.1.0", chart_servers.chart_archive()), folder=f"/{repository}")
    add(server, repository, f"{web.url}/{repository}")
    before = server.get(f"/api/v1/repos/{repository}/charts").body
    good = index_file(index_entry("new", "0.1.0"))
    for body in (
        b"<html>",
        good[: len(good) // 2] + b"[",
        b"apiVersion: v1\nentries:\n  a:\n  - version: 1.0.0\n  b: 7",
    ):
        web.pages[f"/{repository}/index.yaml"] = body
        assert post_json(server, f"/repos/{repository}/update").status == 400
        assert server.get(f"/api/v1/repos/{repository}/charts").body == before


@pytest.mark.parametrize(
    ("status", "expected"), [(404, 400), (410, 400), (401, 502), (403, 502), (500, 502), (503, 502), (204, 400)]
)
def test_unexpected_responses_of_a_repository_are_reported(
    server: Server, web: WebServer, repository: str, status: int, expected: int
) -> None:
    web.pages[f"/{repository}/index.yaml"] = (status, {}, b"")
    assert add(server, repository, f"{web.url}/{repository}").status == expected


def test_an_unreachable_repository_is_502(serve: Serve) -> None:
    port = free_port()
    server = serve(svc={"security": FULL | {"allowed-hosts": [f"127.0.0.1:{port}"]}})
    assert add(server, "lab", f"http://127.0.0.1:{port}").status == 502
    assert server.get("/api/v1/repos").json == []


def test_a_repository_that_does_not_respond_is_504(serve: Serve, web: WebServer, repository: str) -> None:
    server = serve(svc={"security": FULL | {"allowed-hosts": [web.host_port]}, "fetch": {"timeout": "1s"}})
    stop = threading.Event()

    def slow(handler: BaseHTTPRequestHandler) -> Reply:
        stop.wait(30)
        return 200, {}, b""

    web.pages[f"/{repository}/index.yaml"] = slow
    assert add(server, repository, f"{web.url}/{repository}").status == 504
    stop.set()


# Listings


VERSIONS = ("0.9.0", "0.10.0", "1.0.0-rc.1", "0.2.0", "0.10.0-beta.2", "0.10.0-beta.10", "v0.3", "0.1.0+b")


def test_charts_list_the_newest_stable_version_and_versions_list_all(
    server: Server, web: WebServer, repository: str
) -> None:
    result = [index_entry("demo", one, description=f"it is {one}", appVersion="5") for one in VERSIONS]
    web.pages[f"/{repository}/index.yaml"] = index_file(
        *result, index_entry("Bare", "1.0.0"), index_entry("only-pre", "1.0.0-a"), index_entry("again", "2")
    )
    add(server, repository, f"{web.url}/{repository}")
    answer = server.get(f"/api/v1/repos/{repository}/charts")
    assert answer.headers.get_all("Content-Type") == ["application/json"]
    assert answer.json == [
        {"name": f"{repository}/again", "chartVersion": "2", "appVersion": None, "description": None},
        {"name": f"{repository}/Bare", "chartVersion": "1.0.0", "appVersion": None, "description": None},
        {"name": f"{repository}/demo", "chartVersion": "0.10.0", "appVersion": "5", "description": "it is 0.10.0"},
    ]
    assert answer.body == json.dumps(answer.json, separators=(",", ":"), ensure_ascii=False).encode()
    versions = server.get(f"/api/v1/repos/{repository}/charts/demo/versions").json
    assert [one["chartVersion"] for one in versions] == [
        "1.0.0-rc.1", "0.10.0", "0.10.0-beta.10", "0.10.0-beta.2", "0.9.0", "v0.3", "0.2.0", "0.1.0+b",
    ]  # fmt: skip
    assert {one["name"] for one in versions} == {f"{repository}/demo"}
    assert set(versions[0]) == {"name", "chartVersion", "appVersion", "description"}


def test_invalid_and_duplicate_versions_are_not_listed(server: Server, web: WebServer, repository: str) -> None:
    result = [
        index_entry("demo", "1.0.0", description="first"),
        index_entry("demo", "1.0.0", description="second"),
        index_entry("demo", "latest"),
    ]
    web.pages[f"/{repository}/index.yaml"] = index_file(
        *result, index_entry("../up", "1.0.0"), index_entry("a/b", "1.0.0")
    )
    add(server, repository, f"{web.url}/{repository}")
    assert [one["description"] for one in server.get(f"/api/v1/repos/{repository}/charts/demo/versions").json] == [
        "first"
    ]
    assert [one["name"] for one in server.get(f"/api/v1/repos/{repository}/charts").json] == [f"{repository}/demo"]


@pytest.mark.parametrize(
    "path", ["/repos/nothing/charts", "/repos/nothing/charts/demo/versions", "/repos/{}/charts/nothing/versions"]
)
def test_charts_of_missing_repositories_are_not_found(
    server: Server, web: WebServer, repository: str, path: str
) -> None:
    web.serve(("demo", "0.1.0", chart_servers.chart_archive()), folder=f"/{repository}")
    add(server, repository, f"{web.url}/{repository}")
    path = f"/api/v1{path.format(repository)}"
    check_problem(server.get(path), 404, path, has_timestamp=True)


def test_descriptions_of_an_index_in_flow_style_are_cleaned_as_by_helm(
    server: Server, web: WebServer, repository: str, tmp_path: Path
) -> None:
    text = r"""{apiVersion: v1, entries: {demo: [{name: demo, version: 1.0.0, urls: [a.tgz], appVersion: "1\t2",
        description: "ü\u202e <b>\a\n c\u00a0d\n"}]}}"""
    web.pages[f"/{repository}/index.yaml"] = text.encode()
    add(server, repository, f"{web.url}/{repository}")
    (item,) = server.get(f"/api/v1/repos/{repository}/charts").json
    chart_servers.run_helm(tmp_path, "repo", "add", "lab", f"{web.url}/{repository}")
    (theirs,) = json.loads(chart_servers.run_helm(tmp_path, "search", "repo", "-o", "json").stdout)
    assert (item["description"], item["appVersion"]) == (theirs["description"], theirs["app_version"])


def test_an_index_can_be_json_compressed_or_have_anchors(server: Server, web: WebServer, repository: str) -> None:
    result = {
        "apiVersion": "v1",
        "entries": {
            "demo": [
                {"version": "1.0.0", "description": "\U0001f600 <ü>", "urls": ["a.tgz"], "x": {"y": [1.5, None, True]}}
            ]
        },
    }
    anchored = """
apiVersion: v1
generated: 2026-11-01
entries:
  demo:
  - &one
    version: 1.0.0
    description: &words "\\U0001F600 <ü>"
    urls: [a.tgz]
    keywords: &keys [a, b]
  - version: 0.9.0
    description: *words
    keywords: *keys
    maintainers: {1: 2, ? [a] : b}
"""
    packed = (200, {"Content-Encoding": "gzip"}, gzip.compress(json.dumps(result).encode()))
    for body in (
        json.dumps(result).encode(),
        json.dumps(result, indent=1, ensure_ascii=False).encode(),
        packed,
        yaml.safe_dump(result, allow_unicode=True).encode(),
        anchored.encode(),
    ):
        web.pages[f"/{repository}/index.yaml"] = body
        assert add(server, repository, f"{web.url}/{repository}").status == 201
        assert post_json(server, f"/repos/{repository}/update").status == 200
        found = server.get(f"/api/v1/repos/{repository}/charts/demo/versions").json
        assert {one["description"] for one in found} == {"\U0001f600 <ü>"}
        remove(server, repository)


# Updates


def test_an_update_sends_a_conditional_request(server: Server, web: WebServer, repository: str) -> None:
    state = {"tag": '"1"', "body": index_file(index_entry("demo", "0.1.0"))}

    def page(handler: BaseHTTPRequestHandler) -> Reply:
        headers = {"ETag": str(state["tag"]), "Last-Modified": "Sat, 21 Nov 2026 10:00:00 GMT"}
        if handler.headers.get("If-None-Match") == state["tag"]:
            return 304, headers | {"Content-Length": "0"}, b""
        return 200, headers, state["body"]  # type: ignore[return-value]

    web.pages[f"/{repository}/index.yaml"] = page
    add(server, repository, f"{web.url}/{repository}")
    web.seen.clear()
    answer = post_json(server, f"/repos/{repository}/update")
    assert (answer.status, answer.body) == (200, b"")
    assert web.seen[0][2]["if-none-match"] == '"1"'
    assert web.seen[0][2]["if-modified-since"] == "Sat, 21 Nov 2026 10:00:00 GMT"
    assert len(server.get(f"/api/v1/repos/{repository}/charts").json) == 1
    state |= {"tag": '"2"', "body": index_file(index_entry("demo", "0.2.0"), index_entry("more", "0.1.0"))}
    assert post_json(server, f"/repos/{repository}/update").status == 200
    assert [one["chartVersion"] for one in server.get(f"/api/v1/repos/{repository}/charts").json] == ["0.2.0", "0.1.0"]


def test_an_update_of_a_missing_repository_is_not_found(server: Server) -> None:
    assert post_json(server, "/repos/nothing/update").status == 404


def test_update_all_names_the_repositories_that_fail(serve: Serve, tmp_path: Path) -> None:
    with chart_servers.web_server() as web:
        server = serve(svc={"security": FULL | {"allowed-hosts": [web.host_port]}})
        answer = post_json(server, "/repos/update-all")
        assert (answer.status, answer.body, answer.headers.get_all("Warning")) == (200, b"", None)
        for name in ("good", "bad", "worse"):
            web.serve(folder=f"/{name}")
            assert add(server, name, f"{web.url}/{name}").status == 201
        assert post_json(server, "/repos/update-all").headers.get_all("Warning") is None
        web.pages["/bad/index.yaml"] = b"<html>"
        web.pages["/worse/index.yaml"] = (500, {}, b"")
        answer = post_json(server, "/repos/update-all")
        warnings = answer.headers.get_all("Warning") or []
        assert (answer.status, answer.body, len(warnings)) == (200, b"", 2)
        assert any("bad:" in line for line in warnings)
        assert any("worse:" in line and "500" in line for line in warnings)
        web.pages["/good/index.yaml"] = (500, {}, b"")
        result = check_problem(
            post_json(server, "/repos/update-all"), 502, "/api/v1/repos/update-all", has_timestamp=True
        )
        assert all(f"{name}: " in result["detail"] for name in ("good", "bad", "worse"))


# Logins


def test_a_login_is_sent_to_its_repository_only_and_never_shown(serve: Serve, forbidden: WebServer) -> None:
    data = chart_servers.chart_archive()
    expected = "Basic " + base64.b64encode(b"me:s3cret").decode()
    with chart_servers.web_server() as web, chart_servers.web_server() as cdn:
        server = serve(svc={"security": FULL | {"allowed-hosts": [web.host_port, cdn.host_port]}})
        web.serve(("demo", "0.1.0", data))
        cdn.pages["/far.tgz"] = data
        web.pages["/index.yaml"] = index_file(
            index_entry("demo", "0.1.0", data), index_entry("demo", "0.2.0", urls=[f"{cdn.url}/far.tgz"])
        )
        assert add(server, "own", web.url, username="me", password="s3cret").status == 201
        assert add(server, "url", f"http://me:s3cret@{web.host_port}/").status == 201
        assert {headers.get("authorization") for _, _, headers in web.seen} == {expected}
        assert post_json(server, "/repos/pull", {"chart": "own/demo:0.1.0"}).status == 200
        assert web.seen[-1][2]["authorization"] == expected
        post_json(server, "/repos/pull", {"chart": "own/demo:0.2.0"})
        assert "authorization" not in cdn.seen[-1][2]
        assert add(server, "passing", web.url, username="me", password="s3cret", passCredentials=True).status == 201
        post_json(server, "/repos/pull", {"chart": "passing/demo:0.2.0"})
        assert cdn.seen[-1][2]["authorization"] == expected
        assert urls_of(server)["url"] == f"{web.url}/"
        assert "s3cret" not in server.get("/api/v1/repos").text
        assert "s3cret" not in server.log.read_text()
        web.pages["/index.yaml"] = (401, {}, b"")
        answer = post_json(server, "/repos/url/update")
        assert (answer.status, "s3cret" in answer.text) == (502, False)
        assert stat.S_IMODE((server.data / "charts.db").stat().st_mode) == 0o600


# Archives


def test_archives_are_fetched_from_the_urls_of_the_index(
    server: Server, web: WebServer, second: WebServer, repository: str
) -> None:
    data = {one: chart_servers.chart_archive("demo", one) for one in ("0.1.0", "0.2.0", "0.3.0", "0.4.0")}
    web.pages |= {
        f"/{repository}/index.yaml": index_file(
            index_entry("demo", "0.1.0", data["0.1.0"]),
            index_entry("demo", "0.2.0", data["0.2.0"], urls=["sub/folder/x.tgz?a=b", "ignored"]),
            index_entry(
                "demo",
                "0.3.0",
                data["0.3.0"],
                urls=[f"{second.url}/far.tgz"],
                digest="sha256:" + index_entry("", "", data["0.3.0"])["digest"],
            ),
            index_entry("demo", "0.4.0", urls=["/at/the/top.tgz"]),
            index_entry("demo", "0.5.0", urls=[]),
            index_entry("demo", "0.6.0", urls=["not-there.tgz"]),
        ),
        f"/{repository}/demo-0.1.0.tgz": data["0.1.0"],
        f"/{repository}/sub/folder/x.tgz": data["0.2.0"],
        "/at/the/top.tgz": data["0.4.0"],
    }
    second.pages["/far.tgz"] = data["0.3.0"]
    add(server, repository, f"{web.url}/{repository}")
    for version, expected in data.items():
        answer = post_json(server, "/repos/pull", {"chart": f"{repository}/demo", "version": version})
        assert (answer.status, answer.body) == (200, expected)
        assert answer.headers["Content-Disposition"] == f'attachment; filename="demo-{version}.tgz"'
    assert post_json(server, "/repos/pull", {"chart": f"{repository}/demo:0.5.0"}).status == 400
    assert post_json(server, "/repos/pull", {"chart": f"{repository}/demo:0.6.0"}).status == 404


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{0}/x.tgz",
        "http://localhost:{0}/x.tgz",
        "//127.0.0.1:{0}/x.tgz",
        "file:///etc/passwd",
        "http://me@{1}/x.tgz",
        "http://{1}@127.0.0.1:{0}/x.tgz",
        "ftp://{1}/x.tgz",
        "http://[::ffff:127.0.0.1]:{0}/x.tgz",
    ],
)
def test_an_archive_url_at_an_internal_address_is_refused(
    server: Server, web: WebServer, forbidden: WebServer, repository: str, url: str
) -> None:
    forbidden.pages["/x.tgz"] = web.pages["/x.tgz"] = chart_servers.chart_archive()
    web.pages[f"/{repository}/index.yaml"] = index_file(
        index_entry("demo", "0.1.0", urls=[url.format(forbidden.port, web.host_port)])
    )
    add(server, repository, f"{web.url}/{repository}")
    answer = post_json(server, "/repos/pull", {"chart": f"{repository}/demo"})
    assert answer.status == 400, answer
    assert forbidden.seen == []


def test_an_archive_that_does_not_match_the_index_is_refused(server: Server, web: WebServer, repository: str) -> None:
    web.pages |= {
        f"/{repository}/index.yaml": index_file(
            index_entry("demo", "0.1.0", b"another"),
            index_entry("demo", "0.2.0"),
            index_entry("demo", "0.3.0", digest="nonsense"),
            index_entry("demo", "0.4.0"),
        ),
        f"/{repository}/demo-0.1.0.tgz": chart_servers.chart_archive(),
        f"/{repository}/demo-0.2.0.tgz": chart_servers.chart_archive("plain", "0.2.0"),
        f"/{repository}/demo-0.3.0.tgz": chart_servers.chart_archive("demo", "0.3.0"),
        f"/{repository}/demo-0.4.0.tgz": chart_servers.chart_archive("demo", "0.4.1"),
    }
    add(server, repository, f"{web.url}/{repository}")
    for version, message in (
        ("0.1.0", "does not match the digest"),
        ("0.2.0", "it is plain"),
        ("0.3.0", "does not match the digest"),
        ("0.4.0", "0.4.1"),
    ):
        answer = post_json(server, "/repos/pull", {"chart": f"{repository}/demo", "version": version})
        assert answer.status == 502
        assert message in answer.json["detail"]


@pytest.mark.parametrize(
    "data",
    [
        b"no archive",
        chart_servers.tar_archive(
            [("demo/Chart.yaml", b"apiVersion: v2\nname: demo\nversion: 0.1.0"), ("demo/../../x", b"")]
        ),
        bytes(2_000_000),
    ],
    ids=["noise", "leading out", "too large"],
)  # fmt: skip
def test_an_unsafe_archive_is_refused(server: Server, web: WebServer, repository: str, data: bytes) -> None:
    web.serve(("demo", "0.1.0", data), folder=f"/{repository}")
    add(server, repository, f"{web.url}/{repository}")
    for answer in (
        post_json(server, "/repos/pull", {"chart": f"{repository}/demo"}),
        server.get(f"/api/v1/charts/show?chartRef={repository}/demo"),
    ):
        assert answer.status == 400, answer


@pytest.mark.parametrize(
    ("version", "found"),
    [
        (None, "0.10.0"),
        ("~0.9", "0.9.0"),
        (">=0.10.0-0", "1.0.0-rc.1"),
        ("0.2", "0.2.0"),
        ("0.1.0", "0.1.0+b"),
        ("0.3.0", "v0.3"),
        ("<0.2", "0.1.0+b"),
    ],
)
def test_a_range_selects_the_newest_matching_version(
    server: Server, web: WebServer, repository: str, version: str | None, found: str
) -> None:
    web.serve(*(("demo", one, chart_servers.chart_archive("demo", one)) for one in VERSIONS), folder=f"/{repository}")
    add(server, repository, f"{web.url}/{repository}")
    answer = post_json(server, "/repos/pull", {"chart": f"{repository}/demo", "version": version})
    assert answer.status == 200, answer
    assert answer.body == chart_servers.chart_archive("demo", found)


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        ({}, 400, "chart is required"),
        ({"chart": ""}, 400, "chart is required"),
        ({"chart": "demo"}, 400, "chart must be"),
        ({"chart": "{0}/demo", "version": "1/2"}, 400, "version"),
        ({"chart": "{0}/demo", "version": "latest"}, 400, "version"),
        ({"chart": "{0}/demo:0.1.0", "version": "0.2.0"}, 400, "0.2.0"),
        ({"chart": "{0}/demo", "version": "7"}, 404, "7"),
        ({"chart": "{0}/none"}, 404, "none"),
        ({"chart": "none/demo"}, 404, "none"),
        ({"chart": "{0}/demo", "verify": True}, 400, "svc.fetch.keyring"),
        ({"chart": "/etc/passwd"}, 400, "chart must be"),
        ({"chart": "../{0}/demo"}, 400, "chart must be"),
        ({"chart": "http://127.0.0.1/x.tgz"}, 400, "chart must be"),
    ],
)
def test_invalid_pulls_are_reported(
    server: Server, web: WebServer, repository: str, body: dict[str, Any], status: int, detail: str
) -> None:
    web.serve(("demo", "0.1.0", chart_servers.chart_archive()), folder=f"/{repository}")
    add(server, repository, f"{web.url}/{repository}")
    requested = {name: value.format(repository) if isinstance(value, str) else value for name, value in body.items()}
    result = check_problem(
        post_json(server, "/repos/pull", requested), status, "/api/v1/repos/pull", has_timestamp=True
    )
    assert detail in result["detail"]


def test_fetched_files_are_removed(server: Server, web: WebServer, repository: str) -> None:
    web.serve(("demo", "0.1.0", chart_servers.chart_archive()), folder=f"/{repository}")
    add(server, repository, f"{web.url}/{repository}")
    post_json(server, "/repos/pull", {"chart": f"{repository}/demo"})
    web.pages[f"/{repository}/index.yaml"] = b"<html>"
    post_json(server, f"/repos/{repository}/update")
    left = [
        file for file in (server.data / "charts").rglob("*") if file.suffix in (".tgz", ".yaml") or "index" in file.name
    ]
    assert left == []


# Show


def show(server: Server, repository: str, what: str = "", **headers: str) -> Answer:
    return server.get(f"/api/v1/charts/show{what}?chartRef={repository}/demo", **headers)


def test_show_has_the_content_of_the_archive(server: Server, web: WebServer, repository: str) -> None:
    files = {"README.md": "# Demo\n", "crds/a.yaml": "kind: A\n"}
    web.serve(("demo", "0.1.0", chart_servers.chart_archive(files=files)), folder=f"/{repository}")
    add(server, repository, f"{web.url}/{repository}")
    parts = {what: show(server, repository, f"/{what}").text for what in ("chart", "values", "readme", "crds")}
    assert parts == {
        "chart": "apiVersion: v2\nname: demo\nversion: 0.1.0\n",
        "values": "# how many\nreplicas: 1\n",
        "readme": "# Demo\n",
        "crds": "---\nkind: A\n\n",
    }
    assert show(server, repository).text == "{chart}---\n{values}---\n{readme}{crds}".format(**parts)


def test_show_is_text_or_yaml(server: Server, web: WebServer, repository: str) -> None:
    web.serve(("demo", "0.1.0", chart_servers.chart_archive()), folder=f"/{repository}")
    add(server, repository, f"{web.url}/{repository}")
    for what in ("", "/chart", "/values", "/readme", "/crds"):
        assert show(server, repository, what).headers.get_all("Content-Type") == ["text/plain; charset=utf-8"]
        assert show(server, repository, what, Accept="application/yaml").headers.get_all("Content-Type") == [
            "application/yaml"
        ]
    assert (show(server, repository, "/readme").status, show(server, repository, "/readme").body) == (200, b"")
    assert (show(server, repository, "/crds").status, show(server, repository, "/crds").body) == (200, b"")


def test_metadata_and_values_are_sent_as_json_on_request(server: Server, web: WebServer, repository: str) -> None:
    facts: dict[str, Any] = {
        "appVersion": "1.10", "deprecated": True, "keywords": ["a"], "annotations": {"note": "1"}, "own": {"a": 1.0},
        "dependencies": [{"name": "sub", "version": "1.0"}],
    }  # fmt: skip
    values = "a: &a {n: 1e3, on: 2020-01-01, none: }\nb: *a\nc: [1.5, 'x', true]\n"
    web.serve(
        ("demo", "0.1.0", chart_servers.chart_archive(files={"values.yaml": values}, **facts)), folder=f"/{repository}"
    )
    add(server, repository, f"{web.url}/{repository}")
    accept = {"Accept": "application/json"}
    metadata, answer = show(server, repository, "/chart", **accept), show(server, repository, "/values", **accept)
    for one in (metadata, answer):
        assert (one.status, one.headers["Content-Type"]) == (200, "application/json")
        assert "Accept," in one.headers["Vary"]
    assert metadata.json == {
        "apiVersion": "v2", "name": "demo", "version": "0.1.0", **facts, "own": {"a": "1"},
        "dependencies": [{"name": "sub", "version": "1.0", "repository": ""}],
    }  # fmt: skip
    one_value = {"false": 1000.0, "true": "2020-01-01", "none": None}
    assert answer.json == {"a": one_value, "b": one_value, "c": [1.5, "x", True]}
    for what in ("", "/readme", "/crds"):
        assert show(server, repository, what, **accept).headers["Content-Type"] == "text/plain; charset=utf-8"


def test_values_that_are_not_yaml_are_400_as_json(server: Server, web: WebServer, repository: str) -> None:
    web.serve(("demo", "0.1.0", chart_servers.chart_archive(files={"values.yaml": "a: ["})), folder=f"/{repository}")
    add(server, repository, f"{web.url}/{repository}")
    assert show(server, repository, "/values").text == "a: ["
    path = "/api/v1/charts/show/values"
    result = check_problem(
        show(server, repository, "/values", Accept="application/json"), 400, path, has_timestamp=True
    )
    assert result["detail"].startswith("the chart's values.yaml: not YAML")


@pytest.mark.parametrize("what", ["", "/chart", "/values", "/readme", "/crds"])
def test_show_of_a_missing_or_invalid_chart_is_an_error(server: Server, what: str) -> None:
    path = f"/api/v1/charts/show{what}"
    assert check_problem(server.get(path), 400, path, has_timestamp=True)["detail"] == "chartRef is required"
    assert (
        check_problem(server.get(f"{path}?chartRef="), 400, path, has_timestamp=True)["detail"]
        == "chartRef is required"
    )
    check_problem(server.get(f"{path}?chartRef=none/demo"), 404, path, has_timestamp=True)
    check_problem(server.get(f"{path}?chartRef=/etc/passwd"), 400, path, has_timestamp=True)
    check_problem(server.get(f"{path}?chartRef=http://127.0.0.1/x.tgz"), 400, path, has_timestamp=True)


# Concurrency


def test_concurrent_changes_of_repositories_are_all_stored(serve: Serve) -> None:
    with chart_servers.web_server() as web, ThreadPoolExecutor(16) as many:
        server = serve(svc={"security": FULL | {"allowed-hosts": [web.host_port]}})
        names = [f"r{number}" for number in range(32)]
        for name in names:
            web.serve((name, "0.1.0", chart_servers.chart_archive(name)), folder=f"/{name}")
        jobs: list[Callable[[], Answer]] = [lambda name=name: add(server, name, f"{web.url}/{name}") for name in names]  # type: ignore[misc]
        assert {answer.status for answer in many.map(lambda job: job(), jobs)} == {201}
        jobs = [lambda name=name: remove(server, name) for name in names[:16]]  # type: ignore[misc]
        jobs += [lambda name=name: post_json(server, f"/repos/{name}/update") for name in names[16:]]  # type: ignore[misc]
        assert {answer.status for answer in many.map(lambda job: job(), jobs)} == {200, 204}
        assert sorted(urls_of(server)) == sorted(names[16:])
        server.kill()
        server.start()
        assert sorted(urls_of(server)) == sorted(names[16:])
        for name in names[16:]:
            assert [one["name"] for one in server.get(f"/api/v1/repos/{name}/charts").json] == [f"{name}/{name}"]
        with closing(sqlite3.connect(server.data / "charts.db")) as store:
            assert store.execute("SELECT count(*) FROM chart").fetchone() == (16,)
            assert store.execute("SELECT count(*) FROM version").fetchone() == (16,)


def test_a_certificate_is_verified_unless_the_repository_disables_it(serve: Serve) -> None:
    with chart_servers.web_server() as web:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
        web.server.socket = context.wrap_socket(web.server.socket, server_side=True)
        web.serve(("demo", "0.1.0", chart_servers.chart_archive()))
        url = f"https://{web.host_port}"
        server = serve(svc={"security": FULL | {"allowed-hosts": [web.host_port]}})
        answer = add(server, "lab", url)
        assert (answer.status, "certificate" in answer.json["detail"]) == (502, True)
        assert add(server, "lab", url, insecureSkipTlsVerify=True).status == 201
        assert post_json(server, "/repos/pull", {"chart": "lab/demo"}).status == 200


def test_a_corrupt_store_fails_the_start_with_one_line(serve: Serve) -> None:
    server = serve(wait=False)
    server.data.mkdir(mode=0o700)
    (server.data / "charts.db").write_bytes(b"no database " * 1000)
    server.launch()
    assert server.process is not None
    assert server.process.wait(30) != 0
    assert "charts.db: the store cannot be opened" in server.log.read_text()
    assert "Traceback" not in server.log.read_text()


def test_reading_a_large_index_does_not_block_the_loop(serve: Serve) -> None:
    """Other requests are answered meanwhile; the list is complete afterwards."""
    lines = ["apiVersion: v1", "entries:"]
    for chart in range(400):
        lines.append(f"  chart{chart}:")
        for number in range(chart, 12_000, 400):
            lines += [f"  - version: {number}.0.0", f"    description: {'x' * 400}", f"    urls: [a-{number}.tgz]"]
    with chart_servers.web_server() as web, ThreadPoolExecutor(1) as other:
        web.pages["/index.yaml"] = "\n".join(lines).encode()
        server = serve(svc={"security": FULL | {"allowed-hosts": [web.host_port]}})
        adding = other.submit(add, server, "lab", web.url)
        answered = 0
        while not adding.done():
            assert server.get("/healthz").status == 200
            answered += 1
        assert adding.result().status == 201
        assert answered > 20
        assert len(server.get("/api/v1/repos/lab/charts").json) == 400
        versions = server.get("/api/v1/repos/lab/charts/chart7/versions").json
        assert [one["chartVersion"] for one in versions] == [f"{number}.0.0" for number in range(11_607, 0, -400)]
