"""Reads of releases from a real API server: they equal those of helm; errors without a cluster."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from cluster import TOKEN, Cluster
from conftest import ROOT, Answer, Serve, Server, wait_for
from release_secrets import chart_folder, helm_programs, made_release, needs_helm, release_secret, store_release

READS = ("", "/history", "/values", "/values?all=true", "/manifest", "/notes", "/hooks", "/resources")
API = "/api/v1/releases"

TEMPLATES = {
    "values.yaml": json.dumps({"size": 1, "deep": {"a": 1, "b": {"c": True}}, "off": "default", "list": [1, 2]}),
    "templates/a.yaml": (
        'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: "{{ .Release.Name }}"}\ndata: {size: "{{ .Values.size }}"}\n'
    ),
    "templates/tests/b.yaml": (
        'apiVersion: v1\nkind: Pod\nmetadata:\n  name: "{{ .Release.Name }}-test"\n'
        '  annotations: {helm.sh/hook: "test, post-rollback", helm.sh/hook-weight: "3"}\n'
        'spec: {containers: [{name: one, image: "nothing:1"}]}\n'
    ),
    "templates/c.yaml": (
        'apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: "{{ .Release.Name }}-before"\n'
        '  annotations: {helm.sh/hook: pre-upgrade, helm.sh/hook-delete-policy: "hook-succeeded,hook-failed"}\n'
    ),
    "templates/NOTES.txt": "Of size {{ .Values.size }}.\n\nThat is all: ü.\n",
    "charts/inner/Chart.yaml": json.dumps({"apiVersion": "v2", "name": "inner", "version": "9.9.9"}),
    "charts/inner/values.yaml": json.dumps({"own": 1, "global": {"g": 1}}),
}


class Helm:
    """Runs helm 3 or helm 4 against a cluster."""

    def __init__(self, binary: str, kubeconfig: Path, home: Path) -> None:
        self.binary = binary
        self.environ = {"KUBECONFIG": str(kubeconfig), "HOME": str(home)}
        self.major = int(self("version", "--template={{.Version}}")[1])

    def __call__(self, *arguments: str, may_fail: bool = False) -> str:
        done = subprocess.run([self.binary, *arguments], env=self.environ, capture_output=True, text=True, timeout=60)
        assert may_fail or done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "-o", "json"))


def new_server(folder: Path, kubeconfig: Path | None, environ: dict[str, str] | None = None) -> Server:
    """A server with this kubeconfig, or without a cluster."""
    helm = {"helm": {"binary": str(ROOT / ".tools" / "helm")}} if (ROOT / ".tools" / "helm").exists() else {}
    config = {"svc": {"kube": {"kubeconfig": str(kubeconfig) if kubeconfig else None}, **helm}}
    return Server(folder, config, {"HOME": str(folder), "KUBECONFIG": "", **(environ or {})}, [])


@pytest.fixture(scope="module")
def server(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    one = new_server(tmp_path_factory.mktemp("server"), cluster.kubeconfig)
    try:
        yield one.start()
    finally:
        one.close()
    assert "Traceback" not in one.log.read_text()


@pytest.fixture(scope="module")
def plain_chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chart with templates, hooks, tests, notes and a subchart."""
    return chart_folder(tmp_path_factory.mktemp("chart"), "plain", TEMPLATES)


@pytest.fixture(scope="module", params=helm_programs(), ids=[Path(one).name for one in helm_programs()])
def namespace_of_helm(
    request: pytest.FixtureRequest, cluster: Cluster, plain_chart: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Helm, str]:
    """helm and a namespace in which it has left releases in every status."""
    helm = Helm(request.param, cluster.kubeconfig, tmp_path_factory.mktemp("home"))
    space = cluster.namespace()
    there = ["-n", space]
    own = [*there, *(["--server-side=false"] if helm.major == 4 else [])]
    given = plain_chart.parent / f"given{helm.major}.yaml"
    given.write_text(json.dumps({"size": 2, "deep": {"a": None, "x": ["é"]}, "off": None, "inner": {"own": 7}}))
    broken = {"templates/x.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: A_}"}
    bad = chart_folder(plain_chart.parent, f"bad{helm.major}", broken)

    def web() -> None:
        helm("install", *own, "web", str(plain_chart), "-f", str(given), "--description", "the first")
        helm("test", *there, "web")
        helm("upgrade", *own, "web", str(plain_chart), "--set", "size=3")
        helm("rollback", *there, "web", "1")

    def others() -> None:
        helm("install", *own, "one", str(plain_chart))
        helm("install", *own, "kept", str(plain_chart))
        helm("uninstall", *there, "kept", "--keep-history")
        helm("install", *own, "failed", str(bad), may_fail=True)
        helm("install", *own, "many", str(plain_chart))
        for size in range(3):
            helm("upgrade", *own, "many", str(plain_chart), "--set", f"size={size}", "--history-max", "2")

    with cluster.attended(space), ThreadPoolExecutor(2) as both:
        for work in [both.submit(web), both.submit(others)]:
            work.result()
    store_release(cluster, made_release("pending", space, status="pending-install"))
    store_release(cluster, made_release("odd", space, number=4, status="superseded"))
    return helm, space


def nanoseconds(text: str) -> int:
    """Parses a time in either format of Go."""
    found = re.fullmatch(r"(\S{10})[T ](\S{8}?)(\.\d+)? ?(Z|[+-]\d\d:?\d\d)( \S+)?", text)
    assert found, text
    zone = "+0000" if found[4] == "Z" else found[4].replace(":", "")
    seconds = int(datetime.strptime(f"{found[1]} {found[2]} {zone}", "%Y-%m-%d %H:%M:%S %z").timestamp())
    return seconds * 10**9 + int((found[3] or ".0")[1:].ljust(9, "0"))


def ok(answer: Answer) -> Answer:
    assert answer.status == 200, answer
    return answer


def assert_same_row(own: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert own["updated"].endswith("Z")
    assert nanoseconds(own["updated"]) == nanoseconds(theirs["updated"])
    assert own | {"updated": 0} == theirs | {"updated": 0, "revision": int(theirs["revision"])}


# Comparison with helm


@needs_helm
def test_the_list_equals_that_of_helm(server: Server, namespace_of_helm: tuple[Helm, str]) -> None:
    helm, space = namespace_of_helm
    theirs = helm.json("list", "-n", space, "-m", "0", *(["--all"] if helm.major == 3 else []))
    own = ok(server.get(f"{API}?namespace={space}")).json
    assert [row["name"] for row in own] == [row["name"] for row in theirs]
    statuses = {row["name"]: row["status"] for row in own}
    assert statuses == {
        "web": "deployed", "one": "deployed", "kept": "uninstalled", "failed": "failed", "many": "deployed",
        "pending": "pending-install", "odd": "superseded",
    }  # fmt: skip
    for row, their in zip(own, theirs, strict=True):
        assert list(row) == ["name", "namespace", "revision", "updated", "status", "chart", "app_version"]
        assert_same_row(row, their)


NAMES = ("web", "one", "kept", "failed", "many", "pending", "odd")


@needs_helm
@pytest.mark.parametrize("name", NAMES)
def test_a_release_equals_that_of_helm(server: Server, namespace_of_helm: tuple[Helm, str], name: str) -> None:
    helm, space = namespace_of_helm
    theirs = helm.json("status", "-n", space, name)
    own = ok(server.get(f"{API}/{name}?namespace={space}")).json
    assert list(own) == ["name", "namespace", "version", "info", "manifest"]
    assert list(own["info"]) == ["first_deployed", "last_deployed", "deleted", "description", "status", "notes"]
    for field in ("name", "namespace", "version"):
        assert own[field] == theirs[field]
    assert own["manifest"] == theirs.get("manifest", "")
    assert own["info"]["status"] == theirs["info"]["status"]
    assert own["info"]["description"] == theirs["info"]["description"]
    assert own["info"]["notes"] == theirs["info"].get("notes", "")
    for field in ("first_deployed", "last_deployed", "deleted"):
        their = theirs["info"].get(field) or None
        assert (own["info"][field] and nanoseconds(own["info"][field])) == (their and nanoseconds(their))
    assert (own["info"]["deleted"] is not None) == (name == "kept")


@needs_helm
@pytest.mark.parametrize("name", NAMES)
def test_the_history_equals_that_of_helm_in_reverse_order(
    server: Server, namespace_of_helm: tuple[Helm, str], name: str
) -> None:
    helm, space = namespace_of_helm
    theirs = helm.json("history", "-n", space, name)
    own = ok(server.get(f"{API}/{name}/history?namespace={space}")).json
    assert [row["revision"] for row in own] == [row["revision"] for row in theirs][::-1]
    for row, their in zip(own, reversed(theirs), strict=True):
        assert list(row) == ["revision", "updated", "status", "chart", "app_version", "description"]
        assert_same_row(row, their)
    if name == "web":
        assert [(row["revision"], row["status"]) for row in own] == [
            (3, "deployed"), (2, "superseded"), (1, "superseded"),
        ]  # fmt: skip
    if name == "many":
        assert [row["revision"] for row in own] == [4, 3]


@needs_helm
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("all_of_them", ["false", "true"])
def test_values_equal_those_of_helm(
    server: Server, namespace_of_helm: tuple[Helm, str], name: str, all_of_them: str
) -> None:
    helm, space = namespace_of_helm
    theirs = helm.json("get", "values", "-n", space, name, *(["--all"] if all_of_them == "true" else []))
    own = ok(server.get(f"{API}/{name}/values?namespace={space}&all={all_of_them}"))
    assert own.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert yaml.safe_load(own.text) == (theirs or {})
    if theirs:
        options = ["--all"] if all_of_them == "true" else []
        assert own.text == helm("get", "values", "-n", space, name, "-o", "yaml", *options)
    as_json = ok(server.get(f"{API}/{name}/values?namespace={space}&all={all_of_them}", Accept="application/json"))
    assert as_json.headers["Content-Type"] == "application/json"
    assert as_json.json == (theirs or {})
    if name == "one" and all_of_them == "false":
        assert own.text == "{}\n"


OVERRIDES: list[Any] = [..., None, 1, [1], {}, {"k": None}, {"k": 1}, {"k": {"x": None}}, {"n": None}]
DEFAULTS: list[Any] = [..., None, 2, {}, {"k": None}, {"k": 2, "m": 3}, {"k": {"x": 2, "y": None}}]


@needs_helm
@pytest.mark.parametrize("binary", helm_programs(), ids=[Path(one).name for one in helm_programs()])
def test_values_are_merged_as_by_helm(server: Server, cluster: Cluster, binary: str, tmp_path: Path) -> None:
    space, helm = cluster.namespace(), Helm(binary, cluster.kubeconfig, tmp_path)
    given: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for index, (one, other) in enumerate((one, other) for one in OVERRIDES for other in DEFAULTS):
        if helm.major == 3 and one == other and one in (None, {"k": None}):
            continue  # a null over a null within a table: helm 3 drops it, helm 4 and Pilothouse keep it
        given |= {f"v{index}": one} if one is not ... else {}
        own |= {f"v{index}": other} if other is not ... else {}
    release = made_release("met", space, config={**given, "deep": given, "deeper": {"still": given}})
    release["chart"]["values"] = {**own, "deep": own, "deeper": {"still": own}}
    store_release(cluster, release)
    theirs = helm.json("get", "values", "-n", space, "--all", "met")
    assert yaml.safe_load(ok(server.get(f"{API}/met/values?namespace={space}&all=true")).text) == theirs


@needs_helm
@pytest.mark.parametrize("name", NAMES)
def test_manifest_and_notes_equal_those_of_helm(server: Server, namespace_of_helm: tuple[Helm, str], name: str) -> None:
    helm, space = namespace_of_helm
    manifest = ok(server.get(f"{API}/{name}/manifest?namespace={space}")).text
    assert f"{manifest}\n" == helm("get", "manifest", "-n", space, name)
    notes = ok(server.get(f"{API}/{name}/notes?namespace={space}")).text
    theirs = helm("get", "notes", "-n", space, name)
    assert theirs == (f"NOTES:\n{notes}\n" if notes else "")


@needs_helm
@pytest.mark.parametrize("name", NAMES)
def test_hooks_equal_those_of_helm(server: Server, namespace_of_helm: tuple[Helm, str], name: str) -> None:
    helm, space = namespace_of_helm
    own = ok(server.get(f"{API}/{name}/hooks?namespace={space}")).json
    theirs = helm.json("status", "-n", space, name).get("hooks") or []
    assert own == [
        {
            "kind": hook["kind"],
            "name": hook["name"],
            "phases": hook["events"],
            "weight": hook.get("weight", 0),
            "deletePolicy": hook.get("delete_policies", []),
        }
        for hook in theirs
    ]
    if name == "web":
        assert [hook["weight"] for hook in own if "test" in hook["phases"]] == [3]


@needs_helm
def test_resources_report_the_live_objects(server: Server, namespace_of_helm: tuple[Helm, str]) -> None:
    _, space = namespace_of_helm
    there = ok(server.get(f"{API}/one/resources?namespace={space}")).json
    assert there == [{"kind": "ConfigMap", "name": "one", "namespace": space, "ready": True, "message": "ready"}]
    (gone,) = ok(server.get(f"{API}/kept/resources?namespace={space}")).json
    assert (gone["ready"], gone["name"]) == (False, "kept")
    assert "not found" in gone["message"]


@needs_helm
def test_reads_by_helm_equal_native_reads_for_an_exec_plugin(
    server: Server, namespace_of_helm: tuple[Helm, str], cluster: Cluster, tmp_path: Path
) -> None:
    """A kubeconfig with an exec plugin is unsupported by the native client, so the server runs helm."""
    _, space = namespace_of_helm
    other = new_server(tmp_path, cluster.plugin_config())
    try:
        other.start()
        paths = [API, *(f"{API}/web{read}" for read in READS), f"{API}/kept", f"{API}/kept/resources"]
        for path in paths:
            path += ("&" if "?" in path else "?") + f"namespace={space}"
            own, theirs = ok(server.get(path)), ok(other.get(path))
            if path.startswith(f"{API}/kept/resources"):
                assert [(one["name"], one["ready"]) for one in theirs.json] == [("kept", False)]
            elif "values" in path:
                assert yaml.safe_load(own.text) == yaml.safe_load(theirs.text)
            else:
                assert own.body == theirs.body, path
        for read in ("nobody", "nobody/history", "nobody/values?all=true", "nobody/resources", "web?revision=99",
                     "web/values?all=true&revision=99", "web/resources?revision=99"):  # fmt: skip
            path = f"{API}/{read}{'&' if '?' in read else '?'}namespace={space}"
            own, theirs = server.get(path), other.get(path)
            assert (own.status, theirs.status) == (404, 404)
            assert [theirs.json[name] for name in ("detail", "code")] == [own.json[name] for name in ("detail", "code")]
    finally:
        other.close()


@needs_helm
def test_releases_of_the_configmap_driver_are_read_by_helm(cluster: Cluster, plain_chart: Path, tmp_path: Path) -> None:
    space = cluster.namespace()
    helm = Helm(helm_programs()[0], cluster.kubeconfig, tmp_path)
    helm.environ["HELM_DRIVER"] = "configmap"
    helm("install", "-n", space, "mapped", str(plain_chart), *(["--server-side=false"] if helm.major == 4 else []))
    server = new_server(tmp_path, cluster.kubeconfig, {"HELM_DRIVER": "configmap"})
    try:
        server.start()
        assert [row["name"] for row in ok(server.get(f"{API}?namespace={space}")).json] == ["mapped"]
        assert ok(server.get(f"{API}/mapped?namespace={space}")).json["version"] == 1
        assert "size: 1" in ok(server.get(f"{API}/mapped/values?namespace={space}&all=true")).text
    finally:
        server.close()


# Current data


def test_a_new_revision_is_reported_at_once(server: Server, cluster: Cluster) -> None:
    space = cluster.namespace()
    for number in range(1, 41):
        store_release(cluster, made_release("busy", space, number))
        assert ok(server.get(f"{API}/busy?namespace={space}")).json["version"] == number
        assert ok(server.get(f"{API}?namespace={space}")).json[0]["revision"] == number
        assert ok(server.get(f"{API}/busy/history?namespace={space}")).json[0]["revision"] == number
    assert len(ok(server.get(f"{API}/busy/history?namespace={space}")).json) == 40


def test_a_changed_status_is_reported_at_once(server: Server, cluster: Cluster) -> None:
    space = cluster.namespace()
    store_release(cluster, made_release("moody", space))
    for status in ("uninstalling", "uninstalled", "failed", "deployed") * 3:
        changed = release_secret(made_release("moody", space, status=status))
        cluster.ask("PUT", f"{cluster.path(space, 'v1', 'Secret')}/{changed['metadata']['name']}", changed)
        assert ok(server.get(f"{API}/moody?namespace={space}")).json["info"]["status"] == status
        assert ok(server.get(f"{API}?namespace={space}")).json[0]["status"] == status
        assert ok(server.get(f"{API}/moody/history?namespace={space}")).json[0]["status"] == status


def test_a_history_with_gaps_is_reported_completely(server: Server, cluster: Cluster) -> None:
    space = cluster.namespace()
    for number in (1, 7, 30):
        store_release(cluster, made_release("gappy", space, number))
        assert ok(server.get(f"{API}/gappy?namespace={space}")).json["version"] == number
    cluster.delete(space, "v1", "Secret", "sh.helm.release.v1.gappy.v30")
    assert ok(server.get(f"{API}/gappy?namespace={space}")).json["version"] == 7
    assert [row["revision"] for row in ok(server.get(f"{API}/gappy/history?namespace={space}")).json] == [7, 1]
    for number in (1, 7):
        cluster.delete(space, "v1", "Secret", f"sh.helm.release.v1.gappy.v{number}")
    assert server.get(f"{API}/gappy?namespace={space}").status == 404
    assert ok(server.get(f"{API}?namespace={space}")).json == []


def test_a_release_is_read_from_its_namespace_or_from_default(server: Server, cluster: Cluster) -> None:
    space = cluster.namespace()
    store_release(cluster, made_release("twin", space, 2))
    store_release(cluster, made_release("twin", "default", 5))
    assert ok(server.get(f"{API}/twin?namespace={space}")).json["version"] == 2
    assert ok(server.get(f"{API}/twin")).json["version"] == 5
    assert "twin" in [row["name"] for row in ok(server.get(API)).json]
    assert [row["name"] for row in ok(server.get(f"{API}?namespace={space}")).json] == ["twin"]
    cluster.delete("default", "v1", "Secret", "sh.helm.release.v1.twin.v5")


def test_a_corrupt_release_is_not_listed_and_is_502(server: Server, cluster: Cluster) -> None:
    space = cluster.namespace()
    store_release(cluster, made_release("good", space))
    broken = release_secret(made_release("broken", space))
    broken["data"]["release"] = "bm90IGEgcmVsZWFzZQ=="
    cluster.create(space, broken)
    assert [row["name"] for row in ok(server.get(f"{API}?namespace={space}")).json] == ["good"]
    answer = server.get(f"{API}/broken?namespace={space}")
    assert answer.status == 502
    assert "broken" in answer.json["detail"]


def test_an_unrelated_secret_with_the_labels_of_a_release_is_ignored(server: Server, cluster: Cluster) -> None:
    space = cluster.namespace()
    store_release(cluster, made_release("real", space, 2))
    other = release_secret(made_release("real", space, 9))
    other["metadata"]["name"] = "somebodys"
    cluster.create(space, other)
    assert [row["revision"] for row in ok(server.get(f"{API}?namespace={space}")).json] == [2]
    assert ok(server.get(f"{API}/real?namespace={space}")).json["version"] == 2


def test_a_list_of_more_than_500_releases_is_complete(server: Server, cluster: Cluster) -> None:
    space = cluster.namespace()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda index: store_release(cluster, made_release(f"r{index:03}", space)), range(510)))
    answer = ok(server.get(f"{API}?namespace={space}"))
    assert answer.headers["Content-Type"] == "application/json"
    assert [row["name"] for row in answer.json] == [f"r{index:03}" for index in range(510)]
    assert answer.json[0] == {
        "name": "r000", "namespace": space, "revision": 1, "updated": answer.json[0]["updated"], "status": "deployed",
        "chart": "made-1.2.3", "app_version": "9",
    }  # fmt: skip


def test_fifty_concurrent_reads_get_correct_responses(server: Server, cluster: Cluster) -> None:
    space = cluster.namespace()
    for index in range(60):
        store_release(cluster, made_release(f"r{index}", space))
    paths = [f"{API}?namespace={space}", *(f"{API}/r{index}?namespace={space}" for index in range(49))]
    with ThreadPoolExecutor(50) as pool:
        first, second = list(pool.map(server.get, paths)), list(pool.map(server.get, [paths[0]] * 50))
    assert [answer.status for answer in first + second] == [200] * 100
    assert [answer.json["name"] for answer in first[1:]] == [f"r{index}" for index in range(49)]
    assert {answer.body for answer in second} == {first[0].body}
    assert len(first[0].json) == 60


# Requests


@pytest.mark.parametrize("read", READS)
def test_an_unknown_release_is_not_found(server: Server, read: str) -> None:
    answer = server.get(f"{API}/nobody{read}")
    assert answer.status == 404
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert "nobody" in answer.json["message"]


def test_a_missing_namespace_has_no_releases(server: Server) -> None:
    assert ok(server.get(f"{API}?namespace=nowhere")).json == []
    assert server.get(f"{API}/a?namespace=nowhere").status == 404


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("name", ["UPPER", "a" * 54, "-a", "a_b", "a..b", "a%2Fb", "a%20b"])
def test_an_invalid_release_name_is_400(server: Server, name: str, read: str) -> None:
    assert server.get(f"{API}/{name}{read}").status == 400


@pytest.mark.parametrize("namespace", ["UPPER", "a" * 64, "-a", "a.b", "a/b", "a%20b"])
def test_an_invalid_namespace_is_400(server: Server, namespace: str) -> None:
    for path in (f"{API}?namespace={namespace}", f"{API}/a?namespace={namespace}"):
        assert server.get(path).status == 400


@pytest.mark.parametrize("value", ["1", "yes", "on", "truee", "null"])
def test_an_invalid_value_of_all_is_400(server: Server, value: str) -> None:
    assert server.get(f"{API}/nobody/values?all={value}").status == 400


def test_texts_are_sent_as_yaml_on_request(server: Server, cluster: Cluster) -> None:
    space = cluster.namespace()
    store_release(cluster, made_release("texts", space, manifest="a: 1\n"))
    for read in ("values", "manifest", "notes"):
        path = f"{API}/texts/{read}?namespace={space}"
        assert ok(server.get(path)).headers["Content-Type"] == "text/plain; charset=utf-8"
        assert ok(server.get(path, Accept="application/yaml")).headers["Content-Type"] == "application/yaml"
    assert ok(server.get(f"{API}/texts/notes?namespace={space}")).body == b""


# Choice of the cluster


UseKubeconfig = Callable[[Path], Server]


@pytest.fixture(scope="module")
def server_with_changing_kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose kubeconfig is written by the tests."""
    folder = tmp_path_factory.mktemp("wanderer")
    one = new_server(folder, folder / "kubeconfig")
    try:
        yield one.start()
    finally:
        one.close()
    assert "Traceback" not in one.log.read_text()


@pytest.fixture
def use_kubeconfig(server_with_changing_kubeconfig: Server) -> UseKubeconfig:
    """`use_kubeconfig(file)` replaces the kubeconfig of a running server and returns the server."""

    def use(kubeconfig: Path) -> Server:
        (server_with_changing_kubeconfig.folder / "kubeconfig").write_bytes(kubeconfig.read_bytes())
        return server_with_changing_kubeconfig

    return use


@pytest.mark.parametrize("kind", ["kubeconfig", "certificate", "insecure"])
def test_each_kind_of_cluster_credentials_is_supported(
    use_kubeconfig: UseKubeconfig, cluster: Cluster, kind: str
) -> None:
    file = {
        "kubeconfig": lambda: cluster.kubeconfig,
        "certificate": cluster.certificate_config,
        "insecure": cluster.insecure_config,
    }[kind]()
    assert ok(use_kubeconfig(file).get(f"{API}?namespace=kube-system")).json == []


def test_releases_are_404_until_a_kubeconfig_appears(cluster: Cluster, tmp_path: Path) -> None:
    server = new_server(tmp_path, None)
    try:
        server.start()
        assert server.get(API).status == 404
        assert server.get(f"{API}/a/history").status == 404
        (tmp_path / ".kube").mkdir()
        (tmp_path / ".kube" / "config").write_text(cluster.kubeconfig.read_text())
        assert ok(server.get(f"{API}?namespace=kube-system")).json == []
        (tmp_path / ".kube" / "config").write_text(cluster.dead_config().read_text())
        assert server.get(API).status == 502
        (tmp_path / ".kube" / "config").unlink()
        assert server.get(API).status == 404
    finally:
        server.close()


def test_an_unreachable_cluster_is_502_and_invalid_input_400(use_kubeconfig: UseKubeconfig, cluster: Cluster) -> None:
    server = use_kubeconfig(cluster.dead_config())
    for read in READS:
        assert server.get(f"{API}/UPPER{read}").status == 400
        answer = server.get(f"{API}/a{read}")
        assert answer.status == 502
        assert str(server.folder) not in answer.text
    assert server.get(f"{API}?namespace=UPPER").status == 400
    assert server.get(API).status == 502


@pytest.mark.parametrize(
    "user", [{"token": "a-token-of-nobody"}, {"token": "nobodys-token"}, {}], ids=["unknown", "may not", "no token"]
)
def test_refused_cluster_credentials_are_502(
    use_kubeconfig: UseKubeconfig, cluster: Cluster, user: dict[str, Any]
) -> None:
    server = use_kubeconfig(cluster.config(user=user))
    for path in (API, f"{API}/a"):
        answer = server.get(path)
        assert answer.status == 502, answer
        assert not any(secret in answer.text for secret in (TOKEN, "nobody", str(server.folder)))


def test_a_certificate_of_another_authority_is_not_trusted(use_kubeconfig: UseKubeconfig, cluster: Cluster) -> None:
    foreign = base64.b64encode(trustme.CA().cert_pem.bytes()).decode()
    file = cluster.config(cluster={"server": cluster.url, "certificate-authority-data": foreign})
    answer = use_kubeconfig(file).get(API)
    assert answer.status == 502
    assert "certificate" in answer.json["detail"]


def test_a_token_file_that_changes_is_read_again(
    use_kubeconfig: UseKubeconfig, cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    server = use_kubeconfig(cluster.config(user={"tokenFile": str(tmp_path / "token")}))
    assert server.get(API).status == 200
    (tmp_path / "token").write_text("expired")
    assert server.get(API).status == 502
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert server.get(API).status == 200


def test_the_configured_context_is_used(serve: Serve, cluster: Cluster, tmp_path: Path) -> None:
    document = yaml.safe_load(cluster.kubeconfig.read_text())
    document["contexts"].append({"name": "other", "context": {"cluster": "here", "user": "nobody"}})
    document["users"].append({"name": "nobody", "user": {"token": "nobodys-token"}})
    (tmp_path / "config").write_text(yaml.safe_dump(document))
    for context, status in (("main", 200), ("other", 502)):
        server = serve(svc={"kube": {"kubeconfig": str(tmp_path / "config"), "context": context}})
        assert server.get(API).status == status, context


def test_concurrent_reads_share_connections(server: Server, cluster: Cluster) -> None:
    """Connections are kept: a second round of requests uses those of the first."""

    def connections() -> int:
        import psutil

        return sum(
            1
            for one in psutil.Process(server.pid).net_connections("tcp")
            if one.raddr and one.raddr.port == cluster.port and one.status == "ESTABLISHED"
        )

    with ThreadPoolExecutor(30) as pool:
        for _ in range(2):
            assert [one for one in pool.map(server.get, [f"{API}/nobody"] * 60) if one.status != 404] == []
    wait_for(lambda: 1 <= connections() <= 8, about="few connections")


# Any revision, all namespaces


def test_each_read_takes_a_revision(cluster: Cluster, server: Server) -> None:
    space = cluster.namespace()
    for number, status in ((1, "superseded"), (2, "deployed")):
        store_release(
            cluster, made_release("web", space, number, status, manifest=f"# {number}\n", config={"size": number})
        )
    for revision, number in (("", 2), ("&revision=1", 1), ("&revision=2", 2)):
        query = f"?namespace={space}{revision}"
        assert server.get(f"{API}/web{query}").json["version"] == number
        assert server.get(f"{API}/web/manifest{query}").text == f"# {number}\n"
        assert server.get(f"{API}/web/values{query}").text == f"size: {number}\n"
        assert f"size: {number}" in server.get(f"{API}/web/values{query}&all=true").text
    for path in ("", "/values", "/values?all=true", "/manifest", "/notes", "/hooks", "/resources"):
        join = "&" if "?" in path else "?"
        assert server.get(f"{API}/web{path}{join}namespace={space}&revision=3").status == 404
        assert server.get(f"{API}/web{path}{join}namespace={space}&revision=0").status == 400


def test_releases_of_all_namespaces_are_listed_filtered_and_paged(cluster: Cluster, server: Server) -> None:
    spaces = sorted(cluster.namespace() for _ in range(2))
    for space in spaces:
        store_release(cluster, made_release("all-b", space))
        store_release(cluster, made_release("all-a", space, status="failed"))

    def listed(query: str) -> list[tuple[str, str]]:
        rows = server.get(f"{API}?allNamespaces=true&{query}").json
        return [(row["namespace"], row["name"]) for row in rows if row["namespace"] in spaces]

    everything = [(space, name) for space in spaces for name in ("all-a", "all-b")]
    assert listed("filter=^all-") == everything
    assert listed("filter=^all-&status=failed") == [(space, "all-a") for space in spaces]
    answer = server.get(f"{API}?namespace={spaces[0]}&limit=1&offset=1")
    assert [row["name"] for row in answer.json] == ["all-b"]
    assert answer.headers["X-Total-Count"] == "2"
    assert server.get(f"{API}?allNamespaces=true&namespace={spaces[0]}").status == 400
