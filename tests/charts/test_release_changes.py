"""Install, upgrade, uninstall, rollback and test, against a real API server, with a real helm 4 and a real helm 3."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chart_servers import WebServer, web_server
from cluster import Cluster
from conftest import Answer, Server, wait_for
from http_checks import check_problem, parse_compact, running_server
from small_charts import (
    FULL,
    HELMS,
    KEY,
    MAP,
    TEST,
    chart_archive,
    helm_path,
    multipart,
    post_chart,
    sample_chart,
    send_json,
    tar_archive,
    temporary_files,
)

API = "/api/v1"
WAITING = chart_archive(
    templates__claim="""apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: {{ .Release.Name }}-claim}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
"""
)
"""A chart that is ready when its claim is bound, which only a test does."""

NEVER_READY = chart_archive(
    templates__web="""apiVersion: apps/v1
kind: Deployment
metadata: {name: {{ .Release.Name }}-web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: example.org/web}]}
"""
)
"""A chart that never becomes ready, because no controller makes its pods; it can be deleted at once."""


class ReleaseClient:
    """Requests to a server with a cluster and a repository, in a separate namespace for each test."""

    def __init__(self, server: Server, cluster: Cluster, repository: WebServer, helm: str) -> None:
        self.server, self.cluster, self.repository, self.helm = server, cluster, repository, helm
        self.namespace = ""

    def ask(self, method: str, path: str, fields: Any = None, query: str = "") -> Answer:
        return send_json(self.server, method, f"{API}{path}?namespace={self.namespace}{query}", fields)

    def install(self, name: str = "r", archive: bytes | None = None, **fields: Any) -> Answer:
        request = {"releaseName": name, "namespace": self.namespace, **fields}
        return post_chart(self.server, f"{API}/releases/upload", KEY, chart=archive or sample_chart(), request=request)

    def upgrade(self, name: str = "r", archive: bytes | None = None, **fields: Any) -> Answer:
        path = f"{API}/releases/{name}/upgrade/upload?namespace={self.namespace}"
        return post_chart(self.server, path, KEY, chart=archive or sample_chart(), request=fields)

    def status(self, name: str = "r") -> Any:
        answer = self.ask("GET", f"/releases/{name}")
        assert answer.status == 200, answer
        return answer.json

    def colour(self, name: str = "r") -> str:
        found = self.cluster.ask("GET", f"/api/v1/namespaces/{self.namespace}/configmaps/{name}-map")
        return str(found["data"]["colour"])

    def bind(self) -> None:
        """Waits for the PersistentVolumeClaim of the release and binds it."""
        claims = f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims"
        wait_for(lambda: self.cluster.ask("GET", claims)["items"])
        self.cluster.patch_status(self.namespace, "v1", "PersistentVolumeClaim", "r-claim", {"phase": "Bound"})

    def check_error(self, answer: Answer, status: int, path: str) -> str:
        return str(check_problem(answer, status, f"{API}{path}", has_timestamp=True)["detail"])


@pytest.fixture(scope="module", params=HELMS)
def shared_client(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReleaseClient]:
    folder = tmp_path_factory.mktemp(request.param)
    with web_server() as repository, contextlib.ExitStack() as stack:
        newer = chart_archive(version="0.2.0", values="colour: teal\n", templates__map=MAP)
        repository.serve(("tint", "0.1.0", sample_chart()), ("tint", "0.2.0", newer))
        svc = {
            **FULL,
            "security": {**FULL["security"], "allowed-hosts": [repository.host_port]},
            "helm": {"binary": helm_path(request.param), "lock-timeout": "1s"},
            "rest": {"temp-dir": str(folder / "temp")},
            "kube": {"kubeconfig": str(cluster.kubeconfig)},
        }
        server = stack.enter_context(running_server(folder, svc=svc))
        assert send_json(server, "POST", f"{API}/repos", {"name": "lab", "url": repository.url}).status == 201
        yield ReleaseClient(server, cluster, repository, helm_path(request.param))
        wait_for(lambda: not temporary_files(folder / "temp"), about="the files of requests to be removed")


@pytest.fixture
def client(shared_client: ReleaseClient, cluster: Cluster) -> ReleaseClient:
    shared_client.namespace = cluster.namespace()
    return shared_client


def test_an_install_returns_the_release(client: ReleaseClient) -> None:
    answer = client.install(values={"colour": "green"}, description="the first", labels={"team": "x"})
    assert answer.status == 201
    release = parse_compact(answer)
    assert set(release) == {"name", "namespace", "version", "info", "manifest"}
    assert set(release["info"]) == {"first_deployed", "last_deployed", "deleted", "description", "status", "notes"}
    assert (release["name"], release["namespace"], release["version"]) == ("r", client.namespace, 1)
    assert (release["info"]["status"], release["info"]["description"]) == ("deployed", "the first")
    assert release["info"]["notes"] == "painted green\n"
    assert "kind: ConfigMap" in release["manifest"]
    assert client.colour() == "green"
    assert client.status() == release, "the release that is read equals the response"
    secrets = client.cluster.ask("GET", f"/api/v1/namespaces/{client.namespace}/secrets?labelSelector=team%3Dx")
    assert len(secrets["items"]) == 1


def test_an_install_from_a_reference_uses_the_requested_version(client: ReleaseClient) -> None:
    fields = {"chartRef": "lab/tint", "releaseName": "r", "namespace": client.namespace}
    newest = send_json(client.server, "POST", f"{API}/releases", {**fields, "dryRun": True})
    assert (newest.status, "teal" in newest.json["manifest"]) == (201, True)
    assert send_json(client.server, "POST", f"{API}/releases", {**fields, "version": "<0.2.0"}).status == 201
    assert client.colour() == "red"
    answer = client.ask("PUT", "/releases/r", {"chartRef": "lab/tint:0.2.0"})
    assert (answer.status, answer.json["version"], client.colour()) == (200, 2, "teal")


@pytest.mark.parametrize(
    ("fields", "status"),
    [({"chartRef": "lab/none"}, 404), ({"chartRef": "none/tint"}, 404), ({"version": "9.9.9"}, 404),
     ({"version": "not one"}, 400), ({"chartRef": "/etc"}, 400), ({"timeout": 0}, 400), ({"timeout": 3601}, 400),
     ({"labels": {"owner": "me"}}, 400), ({"releaseName": "A"}, 400)],
)  # fmt: skip
def test_invalid_installs_are_reported(client: ReleaseClient, fields: dict[str, Any], status: int) -> None:
    whole = {"chartRef": "lab/tint", "releaseName": "r", "namespace": client.namespace, **fields}
    client.check_error(send_json(client.server, "POST", f"{API}/releases", whole), status, "/releases")


def test_all_missing_fields_of_an_install_are_reported_at_once(client: ReleaseClient) -> None:
    answer = send_json(client.server, "POST", f"{API}/releases", {"releaseName": " "})
    assert client.check_error(answer, 400, "/releases") == "releaseName is required; chartRef is required"


def test_a_dry_run_changes_nothing(client: ReleaseClient) -> None:
    answer = client.install(dryRun=True)
    assert (answer.status, answer.json["info"]["status"]) == (201, "pending-install")
    assert client.ask("GET", "/releases").json == []
    client.install()
    assert client.upgrade(dryRun=True, values={"colour": "blue"}).status == 200
    assert client.ask("POST", "/releases/r/rollback", {"revision": 1, "dryRun": True}).status == 204
    assert client.ask("DELETE", "/releases/r", query="&dryRun=true").status == 204
    assert (client.status()["version"], client.colour()) == (1, "red")


def test_a_name_in_use_is_409(client: ReleaseClient) -> None:
    client.install()
    client.check_error(client.install(), 409, "/releases/upload")


def test_a_namespace_is_created_only_if_requested(client: ReleaseClient) -> None:
    client.namespace += "-new"
    assert "namespace" in client.check_error(client.install(), 404, "/releases/upload")
    assert client.install("s", createNamespace=True).status == 201


def test_values_that_break_the_chart_are_422(client: ReleaseClient) -> None:
    broken = chart_archive(templates__a='{{ fail "cannot re-use a name that is still in use" }}')
    assert "cannot re-use" in client.check_error(client.install(archive=broken), 422, "/releases/upload")


def test_a_manifest_refused_by_the_cluster_is_400(client: ReleaseClient) -> None:
    odd = chart_archive(templates__a="apiVersion: odd.example/v1\nkind: Odd\nmetadata: {name: a}\n")
    assert "Odd" in client.check_error(client.install(archive=odd), 400, "/releases/upload")


@pytest.mark.parametrize(
    ("strategy", "values", "colour"),
    [("DEFAULT", None, "green"), ("DEFAULT", {"shade": 1}, "red"), ("RESET", None, "red"),
     ("REUSE", {"shade": 1}, "green"),
     ("RESET_THEN_REUSE", {"shade": 1}, "green")],
)  # fmt: skip
def test_an_upgrade_keeps_or_drops_values_as_requested(
    client: ReleaseClient, strategy: str, values: Any, colour: str
) -> None:
    client.install(values={"colour": "green"})
    answer = client.upgrade(valueStrategy=strategy, values=values, description="again")
    assert (answer.status, answer.json["version"], answer.json["info"]["description"]) == (200, 2, "again")
    assert client.colour() == colour


def test_an_upgrade_of_a_missing_release_is_404_without_install(client: ReleaseClient) -> None:
    client.check_error(client.upgrade(), 404, "/releases/r/upgrade/upload")
    assert client.upgrade(install=True).json["version"] == 1


def test_a_rollback_creates_a_new_revision(client: ReleaseClient) -> None:
    client.install()
    client.upgrade(values={"colour": "blue"})
    answer = client.ask("POST", "/releases/r/rollback", {"revision": 1})
    assert (answer.status, answer.body, answer.headers["Content-Type"]) == (204, b"", None)
    assert (client.status()["version"], client.colour()) == (3, "red")
    rows = client.ask("GET", "/releases/r/history").json
    assert [(row["revision"], row["status"]) for row in rows] == [(3, "deployed"), (2, "superseded"), (1, "superseded")]
    options = {"force": True, "cleanupOnFail": True, "noHooks": True, "maxHistory": 2}
    assert client.ask("POST", "/releases/r/rollback", {"revision": 2, **options}).status == 204
    assert len(client.ask("GET", "/releases/r/history").json) == 2


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [({}, 400, "revision is required"), ({"revision": 0}, 400, "revision"), ({"revision": "1"}, 400, "revision"),
     ({"revision": 2**31}, 400, "revision"), ({"revision": 77}, 404, "77")],
)  # fmt: skip
def test_an_invalid_revision_is_reported(client: ReleaseClient, fields: dict[str, Any], status: int, text: str) -> None:
    client.install()
    assert text in client.check_error(
        client.ask("POST", "/releases/r/rollback", fields), status, "/releases/r/rollback"
    )


@pytest.mark.parametrize(
    ("method", "path", "fields"),
    [("DELETE", "/releases/none", None), ("POST", "/releases/none/rollback", {"revision": 1}),
     ("POST", "/releases/none/test", None), ("PUT", "/releases/none", {"chartRef": "lab/tint"})],
)  # fmt: skip
def test_changes_of_a_missing_release_are_404(client: ReleaseClient, method: str, path: str, fields: Any) -> None:
    client.check_error(client.ask(method, path, fields), 404, path)


def test_an_uninstall_removes_the_history_unless_keep_history_is_set(client: ReleaseClient) -> None:
    client.install()
    assert client.ask("DELETE", "/releases/r", query="&keepHistory=true&description=bye&noHooks=true").status == 204
    assert (client.status()["info"]["status"], client.status()["info"]["description"]) == ("uninstalled", "bye")
    client.check_error(client.ask("DELETE", "/releases/r", query="&keepHistory=true"), 404, "/releases/r")
    assert client.ask("DELETE", "/releases/r").status == 204, "the history is removed"
    client.check_error(client.ask("DELETE", "/releases/r"), 404, "/releases/r")
    client.install("s")
    answer = client.ask("DELETE", "/releases/s")
    assert (answer.status, answer.body) == (204, b"")
    client.check_error(client.ask("GET", "/releases/s"), 404, "/releases/s")


@pytest.mark.parametrize(
    ("query", "field"),
    [("cascade=all", "cascade"), ("wait=1", "wait"), ("timeout=0", "timeout"), ("timeout=x", "timeout")],
)
def test_the_error_for_an_invalid_query_names_its_parameter(client: ReleaseClient, query: str, field: str) -> None:
    text = client.check_error(client.ask("DELETE", "/releases/r", query=f"&{query}"), 400, "/releases/r")
    assert text.startswith(f"{field}: ")


def test_passed_failed_and_absent_tests_are_reported(client: ReleaseClient) -> None:
    client.install()
    with client.cluster.attended(client.namespace):
        answer = client.ask("POST", "/releases/r/test", query="&timeoutSeconds=20")
    assert (answer.status, parse_compact(answer)) == (
        200, [{"kind": "Pod", "name": "r-test", "status": "PASSED", "message": None}],
    )  # fmt: skip
    client.cluster.delete(client.namespace, "v1", "Pod", "r-test")
    with client.cluster.attended(client.namespace, "Failed"):
        (failed,) = client.ask("POST", "/releases/r/test").json
    assert failed["status"] == "FAILED"
    assert failed["message"]
    client.install("s", chart_archive(templates__map=MAP, values="colour: red\n"))
    assert client.ask("POST", "/releases/s/test").json == []


def test_a_test_that_did_not_run_has_no_result_of_an_earlier_run(client: ReleaseClient) -> None:
    second = TEST.replace("-test", "-west").replace('hook": test', 'hook": test, "helm.sh/hook-weight": "1"')
    client.install(archive=chart_archive(templates__first=TEST, templates__second=second))
    with client.cluster.attended(client.namespace):
        both = client.ask("POST", "/releases/r/test", query="&timeoutSeconds=20").json
    assert [(one["name"], one["status"]) for one in both] == [("r-test", "PASSED"), ("r-west", "PASSED")]
    for name in ("r-test", "r-west"):
        client.cluster.delete(client.namespace, "v1", "Pod", name)
    with client.cluster.attended(client.namespace, "Failed"):
        failed, other = client.ask("POST", "/releases/r/test", query="&timeoutSeconds=20").json
    assert failed["status"] == "FAILED"
    assert "pod r-test failed" in failed["message"]
    assert (other["status"], other["message"]) == ("RUNNING", "not run: an earlier test failed")


def test_a_test_that_exceeds_its_timeout_is_running(client: ReleaseClient) -> None:
    client.install()
    answer = client.ask("POST", "/releases/r/test", query="&timeoutSeconds=1")
    assert (answer.status, [one["status"] for one in answer.json]) == (200, ["RUNNING"])
    for text in ("0", "3601", "x", "1.5"):
        client.check_error(
            client.ask("POST", "/releases/r/test", query=f"&timeoutSeconds={text}"), 400, "/releases/r/test"
        )


def test_a_wait_that_exceeds_its_timeout_is_504(client: ReleaseClient) -> None:
    client.check_error(client.install(archive=WAITING, wait=True, timeout=1), 504, "/releases/upload")
    assert client.status()["info"]["status"] == "failed"


def test_a_wait_ends_when_everything_is_ready(client: ReleaseClient) -> None:
    answers: list[Answer] = []
    installing = threading.Thread(target=lambda: answers.append(client.install(archive=WAITING, wait=True, timeout=30)))
    installing.start()
    client.bind()
    installing.join()
    assert (answers[0].status, answers[0].json["info"]["status"]) == (201, "deployed")


def test_a_failed_atomic_install_is_removed(client: ReleaseClient) -> None:
    answer = client.install(archive=NEVER_READY, atomic=True, timeout=1)
    detail = client.check_error(answer, 504, "/releases/upload")
    assert detail.endswith("; the release has been uninstalled")
    assert answer.json["code"] == "rolled-back"
    client.check_error(client.ask("GET", "/releases/r"), 404, "/releases/r")


def test_a_failed_atomic_upgrade_names_the_revision_it_returned_to(client: ReleaseClient) -> None:
    assert client.install().status == 201
    assert client.upgrade(values={"colour": "green"}).status == 200
    answer = client.upgrade(archive=WAITING, atomic=True, timeout=1)
    detail = client.check_error(answer, 504, "/releases/r/upgrade/upload")
    assert detail.endswith("; the release has been rolled back to revision 2")
    assert answer.json["code"] == "rolled-back"
    assert (client.colour(), client.status()["info"]["status"]) == ("green", "deployed")


def test_a_change_that_waits_too_long_for_another_of_its_release_is_409(client: ReleaseClient) -> None:
    answers: list[Answer] = []
    first = threading.Thread(target=lambda: answers.append(client.install(archive=WAITING, wait=True, timeout=60)))
    first.start()
    wait_for(lambda: client.ask("GET", "/releases/r").status == 200)
    text = client.check_error(client.upgrade(archive=WAITING), 409, "/releases/r/upgrade/upload")
    assert "another operation on r is in progress" in text
    assert client.install("other").status == 201, "another release is not delayed"
    client.bind()
    first.join()
    assert answers[0].status == 201


def test_a_started_change_finishes_after_its_client_disconnects(client: ReleaseClient) -> None:
    request = {"releaseName": "r", "namespace": client.namespace, "wait": True, "timeout": 20}
    content, headers = multipart(chart=WAITING, request=request)
    connection = http.client.HTTPConnection("127.0.0.1", client.server.port, timeout=60)
    connection.request("POST", f"{API}/releases/upload", content, {**headers, **KEY})
    wait_for(lambda: client.ask("GET", "/releases/r").status == 200)
    assert client.status()["info"]["status"] == "pending-install"
    connection.close()
    client.bind()
    wait_for(lambda: client.status()["info"]["status"] == "deployed")


def test_changes_in_an_unreachable_cluster_are_502_and_invalid_input_400(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("dead")
    svc = {**FULL, "kube": {"kubeconfig": str(cluster.dead_config())}, "helm": {"binary": helm_path("helm")}}
    with running_server(folder, svc=svc) as server:
        wrong = post_chart(server, f"{API}/releases/upload", KEY, chart=sample_chart(), request={"releaseName": "A"})
        check_problem(wrong, 400, f"{API}/releases/upload", has_timestamp=True)
        right = post_chart(server, f"{API}/releases/upload", KEY, chart=sample_chart(), request={"releaseName": "r"})
        result = check_problem(right, 502, f"{API}/releases/upload", has_timestamp=True)["detail"]
        assert "127.0.0.1" not in result
        check_problem(send_json(server, "DELETE", f"{API}/releases/r"), 502, f"{API}/releases/r", has_timestamp=True)


# Lint of charts in a repository

GOOD = chart_archive(name="good", templates__map=MAP, values="colour: red\n")
FAULTY = chart_archive(name="faulty", templates__a="a: [", values="a: 1\n")
INVALID_NAMES = chart_archive(
    name="odd", templates__a="apiVersion: v1\nkind: ConfigMap\nmetadata: {name: A_B}\n", values="a: 1\n"
)


@pytest.mark.parametrize(
    ("name", "archive", "fields", "ok", "errors", "warnings"),
    [
        ("good", GOOD, {}, True, [], []), ("good", GOOD, {"strict": True, "values": {"a": 2}}, True, [], []),
        ("faulty", FAULTY, {}, False, ["YAML"], []), ("odd", INVALID_NAMES, {}, True, [], ["A_B"]),
        ("odd", INVALID_NAMES, {"strict": True}, False, [], ["A_B"]),
    ],
)  # fmt: skip
def test_lint_reports_errors_warnings_and_infos(
    shared_client: ReleaseClient,
    name: str,
    archive: bytes,
    fields: dict[str, Any],
    ok: bool,
    errors: list[str],
    warnings: list[str],
) -> None:
    shared_client.repository.serve((name, "0.1.0", archive), folder=f"/{name}")
    added = {"name": name, "url": f"{shared_client.repository.url}/{name}"}
    assert send_json(shared_client.server, "POST", f"{API}/repos", added).status == 201
    answer = shared_client.server.post(
        f"{API}/charts/lint", json.dumps({"chartRef": f"{name}/{name}", **fields}).encode()
    )
    assert answer.status == 200, answer
    result = parse_compact(answer)
    assert set(result) == {"chartRef", "ok", "errors", "warnings", "infos"}
    assert result["infos"] == ["Chart.yaml: icon is recommended"]
    assert (result["chartRef"], result["ok"]) == (f"{name}/{name}", ok)
    for expected, lines in ((errors, result["errors"]), (warnings, result["warnings"])):
        assert len(expected) == len(lines)
        assert all(text in line and "/temp/" not in line for text, line in zip(expected, lines, strict=True))


def chart_files(metadata: str, **files: str) -> dict[str, str]:
    return {"Chart.yaml": f"apiVersion: v2\n{metadata}"} | {
        name.replace("__", "/"): text for name, text in files.items()
    }


BROKEN: dict[str, dict[str, str]] = {
    "no metadata": {"values.yaml": "a: 1\n"},
    "metadata that is not YAML": chart_files("name: ["),
    "metadata that is a list": {"Chart.yaml": "- a\n"},
    "no name": chart_files("version: 1.0.0\n"),
    "no version": chart_files("name: demo\n"),
    "a version that is none": chart_files("name: demo\nversion: x.y\ntype: other\nicon: '::'\nappVersion: 1\n"),
    "dependencies of a wrong type": chart_files("name: demo\nversion: 1.0.0\ndependencies: x\n"),
    "values that are not YAML": chart_files("name: demo\nversion: 1.0.0\n", **{"values.yaml": "a: ["}),
    "a broken subchart": chart_files("name: demo\nversion: 1.0.0\n", **{"charts__sub__Chart.yaml": "a: ["}),
    "two broken subcharts": chart_files(
        "name: demo\nversion: 1.0.0\n", **{
            "charts__one__Chart.yaml": "apiVersion: v2\nname: one\n", "charts__one__values.yaml": "a: 1\n",
            "charts__two__Chart.yaml": "apiVersion: v2\nname: two\nversion: 1.0.0\nicon: '::'\n",
            "charts__two__templates__a.yaml": "{{ .Values.a.b }}",
        },
    ),
    "an old API": chart_files(
        "name: demo\nversion: 1.0.0\n", **{
            "values.yaml": "a: 1\n",
            "templates__a.yaml": "apiVersion: extensions/v1beta1\nkind: Deployment\nmetadata: {name: a}\n",
        },
    ),
    "values against the schema": chart_files(
        "name: demo\nversion: 1.0.0\n", **{
            "values.yaml": "a: x\n",
            "values.schema.json": '{"properties": {"a": {"type": "integer"}}}',
        },
    ),
    "templates with faults": chart_files(
        "name: demo\nversion: 1.0.0\n", **{"templates__a.yaml": "{{ .Values.a.b }}", "crds__a.txt": "a"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
def test_lint_of_a_faulty_chart_has_the_findings_of_helm(
    shared_client: ReleaseClient, tmp_path: Path, fault: str
) -> None:
    files = BROKEN[fault]
    for path, text in files.items():
        (tmp_path / "demo" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "demo" / path).write_text(text)
    for options, request in LINT_OPTIONS:
        archive = tar_archive({f"demo/{path}": text for path, text in files.items()})
        answer = post_chart(shared_client.server, f"{API}/charts/lint/upload", chart=archive, request=request)
        assert answer.status == 200, answer
        done = subprocess.run(
            [shared_client.helm, "lint", *options, str(tmp_path / "demo")], capture_output=True, text=True
        )
        found = {"ERROR": answer.json["errors"], "WARNING": answer.json["warnings"], "INFO": answer.json["infos"]}
        assert found == findings_of(done.stdout.replace(f"{tmp_path}/demo/", ""))
        assert answer.json["ok"] is (done.returncode == 0)
        assert found["ERROR"] or found["WARNING"]
        assert answer.json["chartRef"] is None


def test_lint_of_a_reference_equals_lint_of_an_upload(shared_client: ReleaseClient) -> None:
    archive = tar_archive({f"demo/{path}": text for path, text in BROKEN["no name"].items()})
    shared_client.repository.serve(("demo", "1.0.0", archive), folder="/broken")
    added = {"name": "broken", "url": f"{shared_client.repository.url}/broken"}
    assert send_json(shared_client.server, "POST", f"{API}/repos", added).status == 201
    by_reference = shared_client.server.post(f"{API}/charts/lint", b'{"chartRef":"broken/demo"}')
    assert by_reference.status == 200, by_reference
    assert by_reference.json == post_chart(shared_client.server, f"{API}/charts/lint/upload", chart=archive).json | {
        "chartRef": "broken/demo"
    }


LINT_OPTIONS: list[tuple[list[str], dict[str, Any]]] = [
    ([], {}),
    (
        ["--strict", "--with-subcharts", "--kube-version=v1.16.0"],
        {"strict": True, "withSubcharts": True, "kubeVersion": "v1.16.0"},
    ),
]


def findings_of(report: str) -> dict[str, list[str]]:
    """The findings in the output of helm by severity, each on one line."""
    findings: dict[str, list[str]] = {"ERROR": [], "WARNING": [], "INFO": []}
    report = re.sub(r"^==> Linting .*\n(?:Error )?(?!\[|\n)", "[ERROR] ", report, flags=re.MULTILINE)
    text = re.sub(r"\s+", " ", re.sub(r"^==> .*$", "", report, flags=re.MULTILINE))
    parts = re.split(r" ?\[(ERROR|WARNING|INFO)\] ", text)
    for severity, finding in zip(parts[1::2], parts[2::2], strict=True):
        findings[severity].append(finding.strip())
    return findings


@pytest.mark.parametrize("version", ["1", "--help", "1.31 ", "v1.31.x", "1,2", ""])
def test_lint_with_an_invalid_kubernetes_version_is_400(shared_client: ReleaseClient, version: str) -> None:
    path = f"{API}/charts/lint/upload"
    answer = post_chart(shared_client.server, path, chart=GOOD, request={"kubeVersion": version or "x"})
    assert check_problem(answer, 400, path, has_timestamp=True)["detail"].startswith("kubeVersion")


def test_a_template_is_rendered_for_the_given_kubernetes_version_and_apis(shared_client: ReleaseClient) -> None:
    text = """version: {{ .Capabilities.KubeVersion.Version }}
has: {{ .Capabilities.APIVersions.Has "example.com/v1" }} {{ .Capabilities.APIVersions.Has "b.example/v1beta1/Kind" }}
"""
    path = f"{API}/charts/template/upload"
    fields = {"kubeVersion": "1.31", "apiVersions": ["example.com/v1", "b.example/v1beta1/Kind"]}
    answer = post_chart(shared_client.server, path, chart=chart_archive(templates__a=text), request=fields)
    assert answer.text.endswith("version: v1.31\nhas: true true\n"), answer
    for wrong in ({"apiVersions": ["a,b"]}, {"apiVersions": ["v1"] * 201}, {"apiVersions": ["--help"]}):
        check_problem(post_chart(shared_client.server, path, chart=GOOD, request=wrong), 400, path, has_timestamp=True)


@pytest.mark.parametrize(
    ("path", "text"), [("values.schema.json", '{"$ref": "file:///etc/passwd"}'), ("a/../b", ""), ("values.yaml/a", "")]
)
def test_lint_of_an_unsafe_chart_is_400(shared_client: ReleaseClient, path: str, text: str) -> None:
    archive = tar_archive({"demo/values.yaml": "a: [", f"demo/{path}": text})
    name = f"unsafe{len(path)}"
    shared_client.repository.serve(("demo", "1.0.0", archive), folder=f"/{name}")
    added = {"name": name, "url": f"{shared_client.repository.url}/{name}"}
    assert send_json(shared_client.server, "POST", f"{API}/repos", added).status == 201
    answer = shared_client.server.post(f"{API}/charts/lint", json.dumps({"chartRef": f"{name}/demo"}).encode())
    check_problem(answer, 400, f"{API}/charts/lint", has_timestamp=True)


def test_a_template_of_a_reference_is_rendered(shared_client: ReleaseClient) -> None:
    fields = {"chartRef": "lab/tint", "version": "~0.1", "values": {"colour": "grey"}}
    answer = shared_client.server.post(f"{API}/charts/template", json.dumps(fields).encode())
    assert (answer.status, "grey" in answer.text) == (200, True)
