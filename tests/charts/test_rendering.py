"""Template, lint and create over HTTP, with a real helm 4 and a real helm 3."""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import json
import os
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Serve, Server, instance_of, is_alive, tags_by_pid, wait_for
from http_checks import check_problem, json_body, ready, running_server
from small_charts import (
    HELMS,
    MAP,
    TEST,
    chart_archive,
    helm_path,
    post_chart,
    sample_chart,
    tar_archive,
    temporary_files,
)

TEMPLATE, LINT, CREATE = "/api/v1/charts/template/upload", "/api/v1/charts/lint", "/api/v1/charts/create"
_MIB = 1024**2
_MAX_BODY_BYTES = 101 * _MIB  # server.max-body
ENDLESS = "{{- range until 100000 }}{{- range until 100000 }}{{- end }}{{- end }}"
MEMORY_HUNGRY = (
    '{{- $s := "x" | repeat 64 }}{{- range until 40 }}{{- $s = printf "%s%s" $s $s }}{{- end }}a: {{ len $s }}'
)
LARGE_OUTPUT = 'a: {{ "x" | repeat 300000 }}'


@pytest.fixture(scope="module", params=HELMS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp(request.param)
    svc = {
        "helm": {"binary": helm_path(request.param), "template-timeout": "5s", "max-output": "200K"},
        "rest": {"temp-dir": str(folder / "temp")},
        "kube": {"kubeconfig": str(folder / "none")},
    }
    with running_server(folder, svc=svc) as running:
        yield running
        wait_for(lambda: not temporary_files(folder / "temp"), about="the files of requests to be removed")


def rendered(server: Server, archive: bytes, **request: Any) -> list[dict[str, Any]]:
    answer = post_chart(server, TEMPLATE, chart=archive, request=request)
    assert answer.status == 200, answer
    return [document for document in yaml.safe_load_all(answer.text) if document]


def names_of(documents: list[dict[str, Any]]) -> list[str]:
    return [f"{one['kind']} {one['metadata']['name']}" for one in documents]


def error_detail(server: Server, status: int, archive: bytes, **request: Any) -> str:
    result = check_problem(
        post_chart(server, TEMPLATE, chart=archive, request=request), status, TEMPLATE, has_timestamp=True
    )["detail"]
    assert "/temp/" not in result
    return str(result)


def test_a_chart_is_rendered_with_its_default_values(server: Server) -> None:
    documents = rendered(server, sample_chart())
    assert names_of(documents) == ["ConfigMap release-name-map", "Pod release-name-test"]
    assert documents[0]["data"] == {"colour": "red"}


def test_a_chart_is_rendered_with_the_given_values(server: Server) -> None:
    sent = {"colour": 'blue" \n{{ x }} é 10: null'}
    assert rendered(server, sample_chart(), values=sent, releaseName="r.1", namespace="n")[0]["data"] == sent


def test_values_with_special_characters_reach_the_chart_unchanged(server: Server) -> None:
    """Includes characters that YAML refuses or treats as a line break."""
    odd = {"a": "\x7f\x80\x85\xa0\u2028\u2029\ufeff\uffff", "k\x7f\u2028.,{}": "\\u2028 😀 \t\n\r \\"}
    archive = chart_archive(templates__a="a: {{ .Values.odd | toJson | b64enc }}")
    answer = post_chart(server, TEMPLATE, chart=archive, request={"values": {"odd": odd}})
    assert answer.status == 200, answer
    assert json.loads(base64.b64decode(answer.text.rpartition("a: ")[2])) == odd


def test_the_content_type_of_a_rendered_template_follows_accept(server: Server) -> None:
    plain = post_chart(server, TEMPLATE, chart=sample_chart())
    assert plain.headers["Content-Type"] == "text/plain; charset=utf-8"
    requested = post_chart(server, TEMPLATE, {"Accept": "application/yaml"}, chart=sample_chart())
    assert requested.headers["Content-Type"] == "application/yaml"
    assert requested.body == plain.body
    assert requested.headers["Vary"] == plain.headers["Vary"] == "Accept, Accept-Encoding"


def test_options_select_the_rendered_documents(server: Server) -> None:
    assert names_of(rendered(server, sample_chart(), showOnly=["templates/map.yaml"])) == ["ConfigMap release-name-map"]
    assert names_of(rendered(server, sample_chart(), skipTests=True)) == ["ConfigMap release-name-map"]
    upgraded = chart_archive(templates__a="a: {{ .Release.IsUpgrade }}")
    assert rendered(server, upgraded, isUpgrade=True) == [{"a": True}]
    crd = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "x"}}
    with_crd = sample_chart(crds__x=json.dumps(crd))
    assert len(rendered(server, with_crd)) == 2
    assert len(rendered(server, with_crd, includeCrds=True)) == 3


@pytest.mark.parametrize("file", ["templates/none.yaml", "/etc/passwd", "../x", "--debug"])
def test_show_only_accepts_templates_of_the_chart_only(server: Server, file: str) -> None:
    error_detail(server, 400, sample_chart(), showOnly=[file])


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("a: {{ .Values.x.y.z }}", "a.yaml"),
        ('{{ fail "release: not found" }}', "release: not found"),
        ('{{ required "a colour is needed" .Values.none }}', "a colour is needed"),
        ("{{ if }}", "a.yaml"),
        ("a: [", "YAML"),
        ('{{ include "nobody" . }}', "nobody"),
    ],
)
def test_a_template_with_an_error_is_422(server: Server, template: str, message: str) -> None:
    assert message in error_detail(server, 422, chart_archive(templates__a=template))


def test_values_that_violate_the_schema_are_422(server: Server) -> None:
    schema = json.dumps({"type": "object", "properties": {"port": {"type": "integer"}}})
    strict = tar_archive({
        "tint/Chart.yaml": "apiVersion: v2\nname: tint\nversion: 0.1.0\n", "tint/values.schema.json": schema,
    })  # fmt: skip
    assert "integer" in error_detail(server, 422, strict, values={"port": "x"})


def test_an_endless_template_is_422_and_leaves_no_process(server: Server) -> None:
    assert "svc.helm.template-timeout" in error_detail(server, 422, chart_archive(templates__a=ENDLESS))
    assert not [mark for mark in tags_by_pid().values() if mark.startswith("\x01")]


def test_a_template_above_the_memory_limit_is_422(server: Server) -> None:
    assert "svc.helm.max-memory" in error_detail(server, 422, chart_archive(templates__a=MEMORY_HUNGRY))


def test_a_template_above_the_output_limit_is_422(server: Server) -> None:
    assert "svc.helm.max-output" in error_detail(server, 422, chart_archive(templates__a=LARGE_OUTPUT))


@pytest.mark.parametrize(
    "archive",
    [
        b"",
        b"no archive",
        tar_archive({"a/values.yaml": ""}),
        tar_archive({"../a/Chart.yaml": "name: a"}),
        sample_chart()[:200],
    ],
    ids=["nothing", "text", "no Chart.yaml", "beside", "cut off"],
)
def test_an_archive_that_is_not_a_chart_is_400(server: Server, archive: bytes) -> None:
    error_detail(server, 400, archive)


def test_a_chart_without_its_dependencies_is_400(server: Server) -> None:
    lacking = chart_archive(metadata="dependencies: [{name: b, version: 1.0.0, repository: 'https://e.example'}]\n")
    assert "b" in error_detail(server, 400, lacking)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"releaseName": "UPPER"}, "releaseName: 'UPPER'"), ({"namespace": "a_b"}, "namespace: 'a_b'"),
        ({"releaseName": "--debug"}, "releaseName"), ({"values": "a"}, "values: must be an object"),
        ({"skipTests": "true"}, "skipTests: must be true or false"), ({"showOnly": "a"}, "showOnly"),
    ],
)  # fmt: skip
def test_errors_name_the_invalid_fields(server: Server, fields: dict[str, Any], message: str) -> None:
    assert message in error_detail(server, 400, sample_chart(), **fields)


# Multipart bodies


def test_the_request_part_is_optional_and_can_be_a_file(server: Server) -> None:
    assert post_chart(server, TEMPLATE, chart=sample_chart()).status == 200
    answer = post_chart(server, TEMPLATE, chart=sample_chart(), request=b'{"values": {"colour": "green"}}')
    assert "green" in answer.text


def test_a_missing_chart_is_reported(server: Server) -> None:
    answer = post_chart(server, TEMPLATE, request={})
    assert check_problem(answer, 400, TEMPLATE, has_timestamp=True)["detail"] == "chart is required"


@pytest.mark.parametrize(
    ("kind", "content", "status"),
    [
        (None, b"", 415), ("application/json", b"{}", 415), ("multipart/form-data", b"", 400),
        ("multipart/form-data; boundary=x", b"", 400), ("multipart/form-data; boundary=x", b"--x\r\n", 400),
        ("multipart/form-data; boundary=x", b"nothing of it", 400), ("multipart/mixed; boundary=x", b"--x--", 415),
        ("multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="chart"\r\n\r\nabc', 400),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data\r\n\r\nabc\r\n--x--\r\n", 400),
    ],
)  # fmt: skip
def test_malformed_multipart_bodies_are_reported(server: Server, kind: str | None, content: bytes, status: int) -> None:
    headers = {"Content-Type": kind} if kind else {}
    check_problem(server.ask("POST", TEMPLATE, content, headers), status, TEMPLATE, has_timestamp=True)


def test_values_are_as_deep_as_yaml_may_be(server: Server) -> None:
    deep = chart_archive(values="a: " + "[" * 499 + "]" * 499, templates__map=MAP)
    assert names_of(rendered(server, deep)) == ["ConfigMap release-name-map"]
    deeper = chart_archive(values="a: " + "[" * 500 + "]" * 500, templates__map=MAP)
    assert error_detail(server, 400, deeper) == "the chart's values.yaml: nested more than 500 deep"


def test_multipart_where_json_is_required_is_415(server: Server) -> None:
    check_problem(post_chart(server, LINT, chart=sample_chart()), 415, LINT, has_timestamp=True)


def test_an_upload_above_its_limit_is_413(server: Server) -> None:
    start = b'--x\r\nContent-Disposition: form-data; name="chart"\r\n\r\n'
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        connection.putrequest("POST", TEMPLATE)
        connection.putheader("Content-Type", "multipart/form-data; boundary=x")
        connection.putheader("Content-Length", str(200 * _MIB))
        connection.endheaders(start + bytes(_MIB - len(start)))
        for _ in range(_MAX_BODY_BYTES // _MIB - 1):
            connection.send(bytes(_MIB))
        connection.send(b"0")  # one byte above the limit; the server may close the connection after it
        assert connection.getresponse().status == 413


def test_a_disconnect_during_an_upload_removes_its_files(server: Server) -> None:
    temp = server.folder / "temp"
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.putrequest("POST", TEMPLATE)
    connection.putheader("Content-Type", "multipart/form-data; boundary=x")
    connection.putheader("Content-Length", "1000000")
    connection.endheaders()
    connection.send(b'--x\r\nContent-Disposition: form-data; name="chart"\r\n\r\n' + b"x" * 5000)
    wait_for(lambda: temporary_files(temp))
    connection.close()
    wait_for(lambda: not temporary_files(temp))


def helm_pids(server: Server) -> list[int]:
    """The helm processes of a server that render: it runs `helm version` before the first of them."""
    tag = f"{instance_of(server.data)}:0:\x01helm"
    return [pid for pid, other in tags_by_pid().items() if other == tag and b"template" in _command(pid)]


def _command(pid: int) -> list[bytes]:
    """The words of its command; none once it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []


def test_a_disconnect_ends_the_helm_process_of_the_request(serve: Serve, tmp_path: Path) -> None:
    from small_charts import multipart

    temp = tmp_path / "temp"
    server = serve(
        svc={"helm": {"binary": helm_path("helm"), "template-timeout": "10m"}, "rest": {"temp-dir": str(temp)}}
    )
    content, headers = multipart(chart=chart_archive(templates__a=ENDLESS))
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", TEMPLATE, content, headers)
    wait_for(lambda: helm_pids(server))
    connection.close()
    wait_for(lambda: not helm_pids(server))
    wait_for(lambda: not temporary_files(temp))


# Lint


def test_lint_of_an_unknown_repository_is_404(server: Server) -> None:
    answer = server.post(LINT, b'{"chartRef":"nowhere/tint"}')
    check_problem(answer, 404, LINT, has_timestamp=True)


@pytest.mark.parametrize(
    "ref", ["tint", "/etc", "./a", "../a/b", "http://e.example/a.tgz", "a/b/c", "-a/b", "file:///a"]
)
def test_a_chart_ref_that_is_a_path_or_url_is_400(server: Server, ref: str) -> None:
    for path in (LINT, "/api/v1/charts/template"):
        result = check_problem(server.post(path, json.dumps({"chartRef": ref}).encode()), 400, path, has_timestamp=True)
        assert "chartRef" in result["detail"]


def test_different_versions_in_chart_ref_and_version_are_400(server: Server) -> None:
    answer = server.post(LINT, b'{"chartRef":"a/b:1.2.3","version":"1.2.4"}')
    check_problem(answer, 400, LINT, has_timestamp=True)


# Create


def test_a_created_chart_can_be_rendered(server: Server) -> None:
    answer = server.post(CREATE, b'{"name":"my.chart_1"}')
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/gzip"
    assert answer.headers["Content-Disposition"] == 'attachment; filename="my.chart_1.tgz"'
    with tarfile.open(fileobj=io.BytesIO(answer.body)) as archive:
        members = archive.getmembers()
        metadata = archive.extractfile("my.chart_1/Chart.yaml")
        assert metadata is not None
        assert yaml.safe_load(metadata.read())["name"] == "my.chart_1"
    assert members[0].name == "my.chart_1/Chart.yaml"
    assert all(one.isfile() and one.uid == 0 and not one.uname for one in members)
    assert rendered(server, server.post(CREATE, b'{"name":"plain"}').body)


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "-x", "a b", "", None, "a" * 251, 'x"y'])
def test_an_invalid_name_of_a_new_chart_is_400(server: Server, name: str | None) -> None:
    result = check_problem(server.post(CREATE, json.dumps({"name": name}).encode()), 400, CREATE, has_timestamp=True)[
        "detail"
    ]
    assert result == "name is required" if not name else result.startswith("name: ")


# JSON bodies


@pytest.mark.parametrize("kind", [None, "application/json", "text/plain", "application/x-www-form-urlencoded"])
def test_json_needs_no_content_type(server: Server, kind: str | None) -> None:
    answer = server.ask("POST", CREATE, b'{"name":"x"}', {"Content-Type": kind} if kind else {})
    assert answer.status == 200


@pytest.mark.parametrize(
    "content", [b"[]", b"nothing", b'{"name":1}', b'{"name":"a\\u0000"}', b'{"name":"\\ud800"}', b"\xff", b'{"a":NaN}']
)
def test_a_body_that_is_not_a_json_object_is_400(server: Server, content: bytes) -> None:
    check_problem(server.post(CREATE, content), 400, CREATE, has_timestamp=True)


def test_json_above_its_limit_is_413(server: Server) -> None:
    content = b'{"name":"x"' + b" " * 64 * 1024 + b"}"
    check_problem(server.post(CREATE, content), 413, CREATE, has_timestamp=True)
    assert server.post(CREATE, b'{"name":"x"' + b" " * (64 * 1024 - 100) + b"}").status == 200
    content = b'{"chartRef":"x"' + b" " * 1024**2 + b"}"
    check_problem(server.post(TEMPLATE.removesuffix("/upload"), content), 413, TEMPLATE.removesuffix("/upload"), True)


# Without helm, and after SIGKILL


def test_without_helm_invalid_input_is_400_and_valid_input_503(serve: Serve, tmp_path: Path) -> None:
    server = serve(svc={"helm": {"binary": str(tmp_path / "none")}})
    assert ready(server).json["charts"]["helm"] is False
    check_problem(server.post(CREATE, b'{"name":"../x"}'), 400, CREATE, has_timestamp=True)
    result = check_problem(server.post(CREATE, b'{"name":"x"}'), 503, CREATE, has_timestamp=True)
    assert "svc.helm.binary" in result["detail"]
    check_problem(post_chart(server, TEMPLATE, chart=sample_chart()), 503, TEMPLATE, has_timestamp=True)
    assert json_body(server.get("/api/v1/repos")) == []


def test_remains_of_a_killed_server_are_removed_by_the_next_start(serve: Serve, tmp_path: Path) -> None:
    from small_charts import multipart

    temp = tmp_path / "temp"
    server = serve(
        svc={"helm": {"binary": helm_path("helm"), "template-timeout": "10m"}, "rest": {"temp-dir": str(temp)}}
    )
    content, headers = multipart(chart=chart_archive(templates__a=ENDLESS, templates__test=TEST))
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", TEMPLATE, content, headers)
    (left,) = wait_for(lambda: helm_pids(server))
    server.kill()
    assert is_alive(left)
    assert temporary_files(temp)
    server.start()
    wait_for(lambda: not is_alive(left))
    wait_for(lambda: not temporary_files(temp))
    connection.close()
    os.kill(server.pid, signal.SIGTERM)
