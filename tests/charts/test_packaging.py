"""Uploaded charts are shown, and dependencies listed, as helm does it."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import chart_servers
import pytest
from chart_servers import FULL, WebServer, chart_archive, post_json, run_helm, tar_archive
from conftest import Server
from http_checks import check_problem, running_server
from small_charts import post_chart

API = "/api/v1"
CHART = chart_archive(
    "demo",
    files={"README.md": "# Demo\n", "crds/a.yaml": "kind: CustomResourceDefinition\n"},
    description="shown",
)


@pytest.fixture(scope="module")
def web() -> Iterator[WebServer]:
    with chart_servers.web_server() as one:
        one.serve(("demo", "0.1.0", CHART))
        yield one


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, web: WebServer) -> Iterator[Server]:
    security = FULL | {"allowed-hosts": [web.host_port]}
    with running_server(tmp_path_factory.mktemp("server"), svc={"security": security}) as one:
        assert post_json(one, "/repos", {"name": "lab", "url": web.url}).status == 201
        yield one


def unpack(folder: Path, archive: bytes) -> Path:
    """Unpacks a chart; returns its folder."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as file:
        file.extractall(folder, filter="data")
        return folder / file.getnames()[0].partition("/")[0]


@pytest.mark.parametrize(
    ("what", "path"),
    [("all", ""), ("chart", "/chart"), ("values", "/values"), ("readme", "/readme"), ("crds", "/crds")],
)
def test_an_upload_is_shown_like_a_chart_of_a_repository(server: Server, what: str, path: str) -> None:
    answer = post_chart(server, f"{API}/charts/show/upload", chart=CHART, what=what)
    assert answer.status == 200, answer
    assert answer.text == server.get(f"{API}/charts/show{path}?chartRef=lab/demo").text
    assert answer.text


def test_everything_is_shown_by_default_and_bad_parts_are_refused(server: Server) -> None:
    path = f"{API}/charts/show/upload"
    assert post_chart(server, path, chart=CHART).text == post_chart(server, path, chart=CHART, what="all").text
    check_problem(post_chart(server, path, chart=CHART, what="secrets"), 400, path, has_timestamp=True)
    check_problem(post_chart(server, path, chart=b"no archive"), 400, path, has_timestamp=True)
    check_problem(post_chart(server, path, what="all"), 400, path, has_timestamp=True)


def needing(*dependencies: tuple[str, str], **files: bytes) -> bytes:
    listed = [{"name": name, "version": version, "repository": "https://x.example"} for name, version in dependencies]
    named = {f"charts/{name.replace('__', '/')}": data for name, data in files.items()}
    return chart_archive("needing", files=named, dependencies=listed)


def sub(name: str, version: str) -> bytes:
    return chart_archive(name, version)


STATUSES = {
    "ok": needing(("a", "1.x"), **{"a-1.2.3.tgz": sub("a", "1.2.3")}),
    "missing": needing(("a", "1.x"), ("b", "2")),
    "unpacked": needing(("a", "~1.2"), **{"a__Chart.yaml": b"apiVersion: v2\nname: a\nversion: 1.2.9\n"}),
    "wrong version": needing(("a", "2.x"), **{"a-1.2.3.tgz": sub("a", "1.2.3")}),
    "wrong version of a folder": needing(("a", "2"), **{"a__Chart.yaml": b"apiVersion: v2\nname: a\nversion: 1.2.9\n"}),
    "misnamed": needing(("a", "1.x"), ("b-c", "1.x"), **{"a-1.2.3.tgz": sub("b-c", "1.2.3")}),
    "too many matches": needing(("a", "1.x"), **{"a-1.2.3.tgz": sub("a", "1.2.3"), "a-1.3.0.tgz": sub("a", "1.3.0")}),
    "another name begins alike": needing(
        ("a", "1.x"), **{"a-1.2.3.tgz": sub("a", "1.2.3"), "a-b-9.tgz": sub("a-b", "9.0.0")}
    ),
    "exact": needing(
        ("a", "1.2.3"), ("b", "0.1.0"), **{"a-1.2.3.tgz": sub("a", "1.2.3"), "b-0.1.0.tgz": sub("b", "0.1.0")}
    ),
    "none": chart_archive("needing"),
}  # fmt: skip


@pytest.mark.parametrize("case", STATUSES)
def test_the_status_of_dependencies_equals_helms(server: Server, web: WebServer, tmp_path: Path, case: str) -> None:
    archive = STATUSES[case]
    web.serve(("demo", "0.1.0", CHART), ("needing", "0.1.0", archive))
    assert server.post(f"{API}/repos/lab/update").status == 200
    answer = server.get(f"{API}/dependencies?chartRef=lab/needing")
    assert answer.status == 200, answer
    printed = run_helm(tmp_path, "dependency", "list", str(unpack(tmp_path, archive))).stdout
    lines = [line.split("\t") for line in printed.splitlines() if "\t" in line][1:]
    expected = [
        dict(zip(("name", "version", "repository", "status"), map(str.strip, line), strict=True)) for line in lines
    ]
    assert answer.json == expected
    assert bool(expected) == (case != "none")


def test_unknown_charts_have_no_dependencies(server: Server) -> None:
    path = f"{API}/dependencies"
    check_problem(server.get(f"{path}?chartRef=lab/none"), 404, path, has_timestamp=True)
    check_problem(server.get(path), 400, path, has_timestamp=True)
    check_problem(server.get(f"{path}?chartRef=http://x/y"), 400, path, has_timestamp=True)


def test_an_archive_of_another_format_is_refused(server: Server) -> None:
    path = f"{API}/charts/show/upload"
    check_problem(post_chart(server, path, chart=tar_archive([("a/x", b"")])), 400, path, has_timestamp=True)


def test_references_of_schemas_count_only_where_helm_evaluates_them(server: Server, web: WebServer) -> None:
    """Show, pull, package and the dependency operations work on any chart, as with helm."""
    refused = chart_archive("demo", files={"values.schema.json": '{"$ref": "http://127.0.0.1:9/x.json"}'})
    web.serve(("demo", "0.1.0", refused))
    assert server.post(f"{API}/repos/lab/update").status == 200
    ref = {"chartRef": "lab/demo"}
    for answer in (
        server.get(f"{API}/charts/show?chartRef=lab/demo"),
        post_chart(server, f"{API}/charts/show/upload", chart=refused),
        post_json(server, "/repos/pull", {"chart": "lab/demo"}),
        post_json(server, "/dependencies/resolve", ref),
        server.get(f"{API}/dependencies?chartRef=lab/demo"),
        post_chart(server, f"{API}/charts/package", chart=refused),
        post_chart(server, f"{API}/dependencies/build", chart=refused),
    ):
        assert answer.status == 200, answer
    for answer in (
        post_json(server, "/charts/template", ref),
        post_json(server, "/charts/lint", ref),
        post_chart(server, f"{API}/charts/template/upload", chart=refused),
        post_chart(server, f"{API}/charts/lint/upload", chart=refused),
    ):
        assert answer.status == 400, answer
        assert "values.schema.json" in answer.json["detail"]
