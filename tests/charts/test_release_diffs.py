"""Differences of revisions and images of a release: against a real API server, and the rules on texts."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from cluster import Cluster
from conftest import Answer, Server
from http_checks import check_problem, running_server
from release_secrets import made_release, store_release
from small_charts import FULL, KEY

from models.charts import diff, release_diff
from models.charts.images import images
from models.charts.release_diff import DiffSide

API = "/api/v1/releases/r"
PLAIN = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: map}\ndata:\n  colour: {colour}\n"
SECRET = (
    "apiVersion: v1\nkind: Secret\nmetadata:\n  name: login\ndata:\n  password: {password}\nstringData: {user: byron}\n"
)
POD = """apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  template:
    spec:
      initContainers: [{name: first, image: "init:1"}]
      containers: [{name: web, image: "web:2"}, {name: side, image: side}]
"""


def manifest(colour: str, password: str, *more: str) -> str:
    secret = SECRET.replace("{password}", base64.b64encode(password.encode()).decode())
    return "---\n".join(["", PLAIN.replace("{colour}", colour), secret, *more])


HOOK = {"name": "t", "kind": "Pod", "events": ["test"], "manifest": POD.replace("web:2", "test:9")}
REVISIONS: tuple[dict[str, Any], ...] = (
    {"manifest": manifest("red", "sesame"), "config": {"colour": "red", "size": 1}},
    {"manifest": manifest("blue", "open", POD), "config": {"colour": "blue", "size": 1}, "hooks": [HOOK]},
)


@pytest.fixture(scope="module")
def space(cluster: Cluster) -> str:
    """A namespace with a release of two revisions, and one of a single revision."""
    name = cluster.namespace()
    for number, parts in enumerate(REVISIONS, 1):
        store_release(cluster, made_release("r", name, number, "deployed" if number == 2 else "superseded", **parts))
    store_release(cluster, made_release("once", name, **REVISIONS[0]))
    return name


@pytest.fixture(scope="module")
def server(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    svc = {**FULL, "kube": {"kubeconfig": str(cluster.kubeconfig)}}
    with running_server(tmp_path_factory.mktemp("server"), svc=svc) as one:
        yield one


def ok(answer: Answer) -> Answer:
    assert answer.status == 200, answer
    return answer


def test_the_last_two_revisions_are_compared_object_by_object(server: Server, space: str) -> None:
    found = ok(server.get(f"{API}/diff?namespace={space}")).json
    assert (found["from"], found["to"], found["what"], found["truncated"]) == (1, 2, "manifest", False)
    changes = [(one["change"], one["kind"], one["name"], one["namespace"]) for one in found["objects"]]
    assert changes == [
        ("CHANGED", "ConfigMap", "map", space),
        ("CHANGED", "Secret", "login", space),
        ("ADDED", "Deployment", "web", space),
    ]
    assert "-  colour: red\n+  colour: blue\n" in found["objects"][0]["diff"]
    assert found["diff"].startswith(f"--- ConfigMap/{space}/map\n+++ ConfigMap/{space}/map\n@@ ")
    assert all(one["diff"] in found["diff"] for one in found["objects"])
    signs = [
        sum(line.startswith(sign) for one in found["objects"] for line in one["diff"].splitlines()) for sign in "+-"
    ]
    assert signs == [found["added"], found["removed"]]


def test_the_values_of_secrets_are_masked(server: Server, space: str) -> None:
    text = ok(server.get(f"{API}/diff?namespace={space}")).text
    for secret in ("sesame", "open", "byron"):
        assert secret not in text
        assert base64.b64encode(secret.encode()).decode() not in text
    assert "-  password: (6 bytes)" in text.replace("\\n", "\n")
    assert "+  password: (4 bytes, changed)" in text.replace("\\n", "\n")
    assert "(5 bytes, changed)" not in text
    path = f"{API}/diff?namespace={space}&showSecrets=true"
    assert "X-API-Key" in check_problem(server.get(path), 401, f"{API}/diff", has_timestamp=True)["detail"]
    shown = ok(server.get(path, **KEY)).json["objects"][1]["diff"]
    assert base64.b64encode(b"sesame").decode() in shown


def test_other_parts_of_a_revision_are_compared(server: Server, space: str) -> None:
    values = ok(server.get(f"{API}/diff?namespace={space}&what=values&context=0")).json
    assert values["objects"] == []
    assert values["diff"] == "--- values 1\n+++ values 2\n@@ -1 +1 @@\n-colour: red\n+colour: blue\n"
    hooks = ok(server.get(f"{API}/diff?namespace={space}&what=hooks")).json
    assert [one["change"] for one in hooks["objects"]] == ["ADDED"]
    assert ok(server.get(f"{API}/diff?namespace={space}&what=notes")).json["diff"] == ""
    swapped = ok(server.get(f"{API}/diff?namespace={space}&from=2&to=1")).json
    assert [one["change"] for one in swapped["objects"]] == ["CHANGED", "CHANGED", "REMOVED"]


def test_a_diff_as_text_is_a_patch(server: Server, space: str) -> None:
    answer = ok(server.get(f"{API}/diff?namespace={space}", Accept="text/plain"))
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert answer.text == ok(server.get(f"{API}/diff?namespace={space}")).json["diff"]


def test_a_single_revision_is_compared_with_nothing(server: Server, space: str) -> None:
    found = ok(server.get(f"/api/v1/releases/once/diff?namespace={space}")).json
    assert (found["from"], found["to"]) == (None, 1)
    assert {one["change"] for one in found["objects"]} == {"ADDED"}


def test_unknown_revisions_and_bad_inputs_are_refused(server: Server, space: str) -> None:
    for query, status in (
        ("from=7", 404), ("to=9&from=1", 404), ("from=0", 400), ("context=51", 400), ("what=chart", 400),
    ):  # fmt: skip
        check_problem(server.get(f"{API}/diff?namespace={space}&{query}"), status, f"{API}/diff", has_timestamp=True)
    missing = server.get(f"/api/v1/releases/none/diff?namespace={space}")
    check_problem(missing, 404, "/api/v1/releases/none/diff", has_timestamp=True)


def test_the_images_are_listed_with_those_of_hooks(server: Server, space: str) -> None:
    rows = ok(server.get(f"{API}/images?namespace={space}")).json
    assert [(row["image"], row["container"], row["init"]) for row in rows] == [
        ("init:1", "first", True), ("web:2", "web", False), ("side", "side", False),
        ("init:1", "first", True), ("test:9", "web", False), ("side", "side", False),
    ]  # fmt: skip
    assert rows[0]["kind"] == "Deployment"
    assert ok(server.get(f"{API}/images?namespace={space}&revision=1")).json == []


def test_images_of_lists_and_custom_resources_are_found() -> None:
    rollout = {"kind": "Rollout", "metadata": {"name": "x"}, "spec": {"template": {"spec": {"containers": [
        {"name": "a", "image": "one:1"}, {"name": "none"}, "text"]}}}}  # fmt: skip
    text = yaml.safe_dump({"kind": "List", "items": [rollout]}) + "---\nimage: [unclosed\n---\nimage: 7\n"
    assert [(one.image, one.kind, one.name) for one in images(text)] == [("one:1", "Rollout", "x")]


def test_a_difference_of_objects_knows_whether_it_hides_values() -> None:
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {imagePullSecrets: [{name: %s}]}\n"
    first = f"{pod % 'x'}---\n{SECRET}"
    for other, hides in ((pod % "y" + f"---\n{SECRET}", False), (first.replace("{password}", "eA=="), True)):
        found, is_masked = release_diff.masked_by_object(first, other)
        assert (len(found.objects), is_masked) == (1, hides)


def test_secrets_in_lists_and_malformed_ones_are_masked() -> None:
    listed = "kind: List\nitems:\n- {kind: Secret, metadata: {name: a}, data: {k: aGlkZGVu}}\n"
    broken = "kind: Secret\nmetadata: {name: b}\ndata: {k: hidden\n"
    found = release_diff.compare(DiffSide(1, ""), DiffSide(2, f"{listed}---\n{broken}"), "manifest", 3, "n")
    assert "hidden" not in found.diff
    assert "aGlkZGVu" not in found.diff
    assert "(6 bytes)" in found.diff
    assert "not YAML" in found.diff


def test_a_difference_is_bounded() -> None:
    lines = "\n".join(f"- line {number}" for number in range(9000))
    many = release_diff.compare(DiffSide(1, lines), DiffSide(2, lines.replace("line", "row")), "values", 3, "n")
    assert (many.truncated, many.added) == (False, 9000)
    more = lines + lines
    large = release_diff.compare(DiffSide(1, more), DiffSide(2, more.replace("line", "row")), "values", 3, "n")
    assert (large.truncated, large.diff) == (True, "")
    wide = "\n".join("x" * 5000 for _ in range(400))
    cut = release_diff.compare(DiffSide(1, wide), DiffSide(2, wide.replace("x", "y")), "values", 3, "n")
    assert cut.truncated
    assert len(cut.diff) <= release_diff.MAX_DIFF_CHARACTERS + 100


@pytest.mark.parametrize("context", [0, 3, 50])
def test_the_text_equals_that_of_diff(context: int, tmp_path: object) -> None:
    old = "\n".join(f"key{number}: {number}" for number in range(300))
    new = old.replace("key120: 120", "key120: x").replace("key200: 200\n", "") + "\nlast: 1"
    files = []
    for name, text in (("old", old), ("new", new)):
        files.append(f"{tmp_path}/{name}")
        with open(files[-1], "w") as file:
            file.write(f"{text}\n")
    printed = subprocess.run(["diff", f"-U{context}", *files], capture_output=True, text=True).stdout
    assert list(diff.unified(old, new, context).lines) == printed.splitlines()[2:]
