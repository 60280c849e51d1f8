"""The pages of releases and charts: a real API server, a real helm, a repository on loopback, a real Chromium."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from browser_pages import (
    Browser,
    PageText,
    axe_findings,
    confirm,
    faults_in_all_views,
    get_page,
    go_by_keys,
    tab_to,
    url_of,
    without_the_server,
)
from chart_servers import WebServer, web_server
from cluster import Cluster
from conftest import Answer, Serve, Server, wait_for
from forms import Forms
from http_checks import running_server
from release_secrets import made_release, store_release
from small_charts import MAP, TEST, chart_archive, helm_path, sample_chart

from models import VERSION

KEY = "open sesame"
FORM = "application/x-www-form-urlencoded"
FORGED = "<script>document.title = 'forged'</script>"
MORE = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Release.Name }}-more}\n"
DEPLOYMENT = """apiVersion: apps/v1
kind: Deployment
metadata: {name: {{ .Release.Name }}}
spec:
  selector: {matchLabels: {app: a}}
  template: {metadata: {labels: {app: a}}, spec: {containers: [{name: a, image: b}]}}
"""
TABS = ["", "?show=history", "?show=values", "?show=values&all=true", "?show=manifest", "?show=hooks", "?show=change",
        "?show=change&do=rollback", "?show=change&do=test", "?show=change&do=uninstall"]  # fmt: skip


def send(server: Server, path: str, **fields: str) -> Answer:
    """Posts a form with the API key in its field."""
    return server.post(path, urlencode({"key": KEY, **fields}).encode(), Content_Type=FORM)


def words(answer: Answer) -> str:
    return PageText(answer.text).words


@pytest.fixture(scope="module")
def shop() -> Iterator[WebServer]:
    """A repository of two versions of a chart, and a hub."""
    with web_server() as one:
        second = chart_archive(
            version="0.2.0", values="colour: green\n", templates__map=MAP + MORE, templates__test=TEST,
            templates__NOTES="painted {{ .Values.colour }}\n",
        )  # fmt: skip
        one.serve(("tint", "0.1.0", sample_chart()), ("tint", "0.2.0", second))
        found = {
            "name": FORGED, "normalized_name": "odd", "version": "1.0.0", "app_version": "2", "description": FORGED,
            "repository": {"name": "elsewhere", "url": "javascript:alert(1)"},
        }  # fmt: skip
        one.pages["/api/v1/packages/search"] = json.dumps({"packages": [found]}).encode()
        yield one


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster, shop: WebServer) -> Iterator[Server]:
    svc: dict[str, Any] = {
        "security": {"mode": "FULL", "api-key": KEY, "allowed-hosts": [shop.host_port]},
        "kube": {"kubeconfig": str(cluster.kubeconfig)},
        "helm": {"binary": helm_path("helm")},
        "hub": {"url": shop.url},
    }
    with running_server(tmp_path_factory.mktemp("charts"), svc=svc) as one:
        assert send(one, "/repositories", verb="add", name="paint", url=shop.url).status == 303
        yield one


@pytest.fixture(scope="module")
def space(server: Server, cluster: Cluster) -> str:
    """A namespace with the release `wall` of three revisions: 0.1.0 red, 0.2.0 blue, and a rollback to the first."""
    name = cluster.namespace()
    made = send(server, "/releases/new", chartRef="paint/tint", version="0.1.0", releaseName="wall", namespace=name)
    assert (made.status, made.headers["Location"]) == (303, f"/releases/{name}/wall"), made
    one = f"/releases/{name}/wall"
    assert send(server, one, verb="upgrade", chartRef="paint/tint", values="colour: blue").status == 303
    assert send(server, one, verb="rollback", revision="1").status == 303
    return name


@pytest.fixture(scope="module")
def paths(space: str) -> list[str]:
    """The paths of all chart pages."""
    return [
        "/", "/releases", f"/releases?namespace={space}", "/releases/new",
        *(f"/releases/{space}/wall{tab}" for tab in TABS), f"/releases/{space}/wall?show=manifest&to=2&of=3",
        "/repositories", "/repositories?hub=paint", "/repositories/paint", "/repositories/paint/tint",
        "/repositories/paint/tint?show=values&version=0.1.0",
    ]  # fmt: skip


# Contents


def test_pages_link_within_their_prefix_and_have_no_inline_script(
    server: Server, paths: list[str], shop: WebServer
) -> None:
    for path in paths:
        for prefix in ("", "/charts"):
            for tag, facts in get_page(server, prefix + path).tags:
                assert tag != "style"
                assert tag != "script" or str(facts.get("src", "")).startswith("/static/")
                assert not any(name.startswith("on") or name == "style" for name in facts)
                link = facts.get("href") if tag == "a" else facts.get("action") if tag == "form" else None
                assert link is None or link.startswith((f"{prefix}/", "#", shop.url)), (path, link)


def test_the_list_is_filtered_by_namespace_state_and_name(server: Server, space: str) -> None:
    assert "wall" in get_page(server, f"/releases?namespace={space}").words
    assert "tint-0.1.0" in get_page(server, f"/releases?namespace={space}&state=deployed&q=wa").words
    assert "None of 1 releases matches" in get_page(server, f"/releases?namespace={space}&state=failed").words
    assert "No release in the namespace nowhere" in get_page(server, "/releases?namespace=nowhere").words


def test_a_release_shows_all_that_rest_reports(server: Server, space: str) -> None:
    one = f"/releases/{space}/wall"
    overview = get_page(server, one).words
    assert all(word in overview for word in ("deployed", "tint-0.1.0", "wall-map", "1 of 1 ready", "painted red"))
    history = get_page(server, f"{one}?show=history").words
    assert "Rollback to 1" in history
    assert history.index("Rollback to 1") < history.index("Upgrade complete")
    assert "No values were given" in get_page(server, f"{one}?show=values").words
    assert "colour: red" in get_page(server, f"{one}?show=values&all=true").words
    assert 'colour: "red"' in get_page(server, f"{one}?show=manifest").words
    assert 'colour: "blue"' in get_page(server, f"{one}?show=manifest&of=2").words
    assert "wall-test" in get_page(server, f"{one}?show=hooks").words


def test_a_newer_version_of_the_chart_is_named_in_the_list_and_on_the_page(server: Server, space: str) -> None:
    assert "0.2.0 available" in get_page(server, f"/releases?namespace={space}").words
    assert "0.2.0 available" in get_page(server, f"/releases/{space}/wall").words


def test_a_refused_key_is_marked_at_its_field(server: Server, chromium: Browser, space: str) -> None:
    with chromium.page(url_of(server), allow=("401",)) as one:
        one.goto(f"/releases/{space}/wall?show=change&do=uninstall")
        form = one.locator("form", has=one.locator("[value=uninstall]"))
        form.get_by_label("API key").fill("wrong")
        form.get_by_role("button", name="Preview").click()
        refused = one.locator("[name=key][aria-invalid=true]")
        refused.wait_for()
        assert refused.evaluate("node => node === document.activeElement && node.form.verb.value") == "uninstall"
        assert axe_findings(one) == []


def test_the_search_finds_a_release_installed_after_the_last_search(server: Server, cluster: Cluster) -> None:
    def found() -> list[str]:
        return [one["title"] for one in server.get("/api/v1/search?q=sought").json if one["kind"] == "release"]

    space = cluster.namespace()
    assert found() == []
    assert send(server, "/releases/new", chartRef="paint/tint", releaseName="sought", namespace=space).status == 303
    wait_for(lambda: found() == ["sought"])


def test_two_revisions_are_compared(server: Server, space: str) -> None:
    found = get_page(server, f"/releases/{space}/wall?show=manifest&to=1&of=2").words
    assert '-data: {colour: "red"}' in found
    assert '+data: {colour: "blue"}' in found
    assert "+metadata: {name: wall-more}" in found
    assert "No differences" in get_page(server, f"/releases/{space}/wall?show=manifest&to=1&of=3").words


_WITH_SECRET = """---
# Source: made/templates/login.yaml
apiVersion: v1
kind: Secret
metadata: {name: login}
data: {password: %s}
stringData: {user: byron}
---
# Source: made/templates/map.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: shown}
"""


@pytest.fixture(scope="module")
def login(server: Server, cluster: Cluster) -> str:
    """The path of a release of two revisions with a Secret, whose passwords differ."""
    space = cluster.namespace()
    for number, status, password in ((1, "superseded", "aGlkZGVu"), (2, "deployed", "c2VjcmV0")):
        store_release(cluster, made_release("login", space, number, status, manifest=_WITH_SECRET % password))
    return f"/releases/{space}/login"


def test_values_of_secrets_are_hidden_on_pages_until_the_key_reveals_them(server: Server, login: str) -> None:
    manifest, changes = f"{login}?show=manifest", f"{login}?show=manifest&to=1&of=2"
    found = get_page(server, manifest).words
    assert all(text in found for text in ("(6 bytes)", "ConfigMap shown", "made/templates/map.yaml"))
    assert "(6 bytes, changed)" in get_page(server, changes).words
    for path in (manifest, changes):
        assert not any(hidden in server.get(path).text for hidden in ("c2VjcmV0", "aGlkZGVu", "byron"))
        refused = send(server, path, verb="reveal", showSecrets="yes", key="wrong")
        assert (refused.status, "c2VjcmV0" in refused.text) == (401, False)
        shown = send(server, path, verb="reveal", showSecrets="yes")
        assert (shown.status, "c2VjcmV0" in words(shown)) == (200, True)
    assert "-data: {password: aGlkZGVu}" in words(send(server, changes, verb="reveal", showSecrets="yes"))
    preview = {"verb": "rollback", "revision": "1", "preview": "yes"}
    assert "aGlkZGVu" not in send(server, login, **preview).text
    assert "aGlkZGVu" in send(server, login, **preview, showSecrets="yes").text


def test_a_difference_without_secrets_offers_no_values_to_reveal(server: Server, cluster: Cluster) -> None:
    space, pod = cluster.namespace(), "kind: Pod\nmetadata: {name: a}\nspec: {imagePullSecrets: [{name: %s}]}\n"
    for number, status in ((1, "superseded"), (2, "deployed")):
        store_release(cluster, made_release("pulls", space, number, status, manifest=pod % f"s{number}"))
    found = get_page(server, f"/releases/{space}/pulls?show=manifest&to=1&of=2").words
    assert ("imagePullSecrets" in found, "values of Secrets are hidden" in found) == (True, False)


def test_rest_returns_the_manifest_as_helm_does(server: Server, login: str) -> None:
    _, _, space, name = login.split("/")
    answer = server.get(f"/api/v1/releases/{name}/manifest?namespace={space}")
    assert answer.text.rstrip("\n") == (_WITH_SECRET % "c2VjcmV0").rstrip("\n")


@pytest.mark.parametrize(
    ("path", "status"),
    [("/releases/default/nobody", 404), ("/releases/default/UPPER", 400), ("/releases/default/x?show=odd", 400),
     ("/repositories/nobody", 404), ("/repositories/paint/nobody", 404)],
)  # fmt: skip
def test_a_missing_object_is_a_page_with_that_message(server: Server, path: str, status: int) -> None:
    assert get_page(server, path, status).words


def test_a_revision_that_is_missing_is_not_found(server: Server, space: str) -> None:
    assert "has no revision 99" in get_page(server, f"/releases/{space}/wall?show=manifest&of=99", 404).words


def test_a_chart_shows_its_versions_and_texts(server: Server) -> None:
    found = get_page(server, "/repositories/paint/tint?show=values").words.partition(f"Pilothouse {VERSION}")[0]
    assert "colour: green" in found
    assert all(version in found for version in ("0.2.0", "0.1.0"))
    assert "colour: red" in get_page(server, "/repositories/paint/tint?show=values&version=0.1.0").words
    assert "The chart has none" in get_page(server, "/repositories/paint/tint").words  # no README
    assert "tint" in get_page(server, "/repositories/paint?q=TIN").words
    assert "No chart has odd" in get_page(server, "/repositories/paint?q=odd").words


def test_texts_of_charts_are_escaped_and_not_linked(server: Server, space: str) -> None:
    found = get_page(server, "/repositories?hub=odd")
    assert FORGED in found.words
    assert FORGED not in server.get("/repositories?hub=odd").text
    assert not any("javascript:" in str(value) for _, facts in found.tags for value in facts.values())
    answer = send(server, f"/releases/{space}/wall", verb="upgrade", chartRef=FORGED, values=FORGED, description=FORGED)
    assert answer.status == 400
    assert FORGED not in answer.text


def test_the_overview_counts_releases_by_state(server: Server, space: str) -> None:
    words = wait_for(lambda: (found := get_page(server, "/").words) and "asked for its releases" not in found and found)
    assert re.search(r"Releases\s*\d+\s*deployed\s*\d", words)
    assert f"wall in {space}" in words.partition("Latest changes")[2]


# Permissions


def test_a_form_is_refused_without_the_key_and_keeps_what_was_typed(server: Server, space: str) -> None:
    fields = {
        "chartRef": "paint/tint",
        "releaseName": "kept",
        "namespace": space,
        "values": "colour: pink",
        "wait": "on",
    }
    for key in ("", "wrong"):
        answer = send(server, "/releases/new", **fields, key=key)
        assert answer.status == 401
        assert "key of the charts is missing or wrong" in words(answer)
        assert 'value="kept"' in answer.text
        assert "colour: pink" in answer.text
        assert 'name="wait" checked' in answer.text
    assert send(server, f"/releases/{space}/wall", verb="uninstall", key="").status == 401
    assert send(server, "/repositories/paint", verb="remove", key="").status == 401
    assert send(server, "/repositories", verb="add", name="x", url="http://x/", key="").status == 401


def test_the_key_may_come_in_the_header_and_is_never_shown_again(server: Server, space: str) -> None:
    fields = urlencode({"verb": "uninstall", "preview": "yes"}).encode()
    answer = server.post(f"/releases/{space}/wall", fields, Content_Type=FORM, X_API_Key=KEY)
    assert answer.status == 200
    assert "ConfigMap wall-map" in words(answer)
    answer = send(server, "/releases/new", chartRef="", releaseName="")
    assert answer.status == 400
    assert KEY not in answer.text
    assert not any(name == "Set-Cookie" and KEY in value for name, value in answer.headers.items())


def test_a_form_of_a_browser_requires_the_xsrf_token(server: Server, space: str) -> None:
    fields = urlencode({"key": KEY, "verb": "uninstall"}).encode()
    own = url_of(server)
    assert server.post(f"/releases/{space}/wall", fields, Content_Type=FORM, Origin=own).status == 403
    assert server.get(f"/releases/{space}/wall").status == 200


@pytest.mark.parametrize(
    ("values", "why"),
    [("a: [", "not YAML"), ("- a", "a mapping is expected"), ("a: &x 1\nb: *x", "aliases"), ("a: .inf", "not finite")],
)
def test_invalid_values_are_refused_with_the_reason(server: Server, values: str, why: str) -> None:
    answer = send(server, "/releases/new", chartRef="paint/tint", releaseName="x", values=values)
    assert answer.status == 400
    assert why in words(answer)


def test_a_preview_changes_nothing(server: Server, space: str) -> None:
    one = f"/releases/{space}/wall"
    answer = send(server, one, verb="upgrade", chartRef="paint/tint", values="colour: grey", preview="yes")
    assert answer.status == 200
    assert '+data: {colour: "grey"}' in words(answer)
    answer = send(server, one, verb="rollback", revision="2", preview="yes")
    assert '+data: {colour: "blue"}' in words(answer)
    answer = send(server, "/releases/new", chartRef="paint/tint", releaseName="other", namespace=space, preview="yes")
    assert 'colour: "green"' in words(answer)
    assert server.get(f"/releases/{space}/other").status == 404
    assert "Rollback to 1" in get_page(server, f"{one}?show=history").words
    assert get_page(server, f"{one}?show=history").words.count("Upgrade complete") == 1


def test_a_failure_shows_the_message_of_helm(server: Server, space: str) -> None:
    answer = send(server, "/releases/new", chartRef="paint/tint", releaseName="wall", namespace=space)
    assert answer.status == 409
    assert "in use" in words(answer)
    assert send(server, f"/releases/{space}/wall", verb="shout").status == 400
    assert send(server, f"/releases/{space}/wall", verb="rollback", revision="77").status == 404
    assert send(server, f"/releases/{space}/wall", verb="upgrade", chartRef="paint/nothing").status == 404
    assert send(server, f"/releases/{space}/wall", verb="upgrade", chartRef="paint/tint", timeout="x").status == 400
    assert send(server, f"/releases/{space}/nobody", verb="uninstall").status == 404


def test_the_tests_of_a_release_are_run(server: Server, space: str, cluster: Cluster) -> None:
    with cluster.attended(space):
        answer = send(server, f"/releases/{space}/wall", verb="test", timeoutSeconds="30")
    assert answer.status == 200
    assert re.search(r"wall-test\s*passed", words(answer))


def test_a_repository_is_updated_added_and_removed(server: Server, shop: WebServer) -> None:
    assert send(server, "/repositories", verb="update", key="").status == 303
    assert send(server, "/repositories/paint", verb="update", key="").status == 303
    answer = send(server, "/repositories", verb="add", name="paint", url=f"{shop.url}/other")
    assert answer.status == 409
    assert 'value="paint"' in answer.text
    assert send(server, "/repositories", verb="add", name="second", url=shop.url).status == 303
    assert send(server, "/repositories/second", verb="remove").status == 303
    assert server.get("/repositories/second").status == 404


def test_repositories_are_listed_with_charts_and_index_errors(server: Server, shop: WebServer) -> None:
    other = f"{shop.url}/other"
    shop.pages["/other/index.yaml"] = shop.pages["/index.yaml"]
    assert send(server, "/repositories", verb="add", name="other", url=other, username="jo", password="x").status == 303
    del shop.pages["/other/index.yaml"]
    assert send(server, "/repositories/other", verb="update").status == 400
    found = get_page(server, "/repositories?q=TINT").words
    assert "No repository matches." in found
    assert "paint/tint" in found
    listed = get_page(server, "/repositories?status=failed&sort=-name")
    assert re.search(r"other.*jo.*failed.*since", listed.words, re.DOTALL)
    assert "No chart of a repository has" in listed.words
    assert ("th", {"scope": "col", "aria-sort": "descending"}) in listed.tags
    shop.pages["/other/index.yaml"] = shop.pages["/index.yaml"]
    assert send(server, "/repositories", verb="update").status == 303
    assert "No repository matches." in get_page(server, "/repositories?status=failed").words
    assert send(server, "/repositories/other", verb="remove").status == 303


def test_a_disabled_interceptor_requires_no_key(serve: Serve, cluster: Cluster, space: str) -> None:
    server = serve(
        svc={"rest": {"access-interceptor": {"enabled": False}}, "kube": {"kubeconfig": str(cluster.kubeconfig)}}
    )
    found = get_page(server, f"/releases/{space}/wall?show=change")
    assert not any(facts.get("name") == "key" for _, facts in found.tags)
    assert send(server, "/releases/default/nobody", verb="uninstall", key="").status == 404
    answer = server.post(
        "/releases/default/nobody", b"verb=uninstall", Content_Type=FORM, X_Forwarded_For="203.0.113.9"
    )
    assert answer.status == 401  # beyond loopback an ADMIN is required


def test_pages_redirect_to_the_login_in_closed_mode(serve: Serve) -> None:
    server = serve(svc={"security": {"mode": "FULL", "api-key": KEY}}, tracker={"security": {"open-mode": False}})
    for path in (
        "/releases",
        "/releases/new",
        "/releases/a/b",
        "/repositories",
        "/repositories/a",
        "/repositories/a/b",
    ):
        answer = server.get(path)
        assert (answer.status, answer.headers["Location"].partition("?")[0]) == (302, "/login")
    assert send(server, "/releases/a/b", verb="uninstall").headers["Location"].startswith("/login?")


def test_a_search_ends_when_the_client_leaves(server: Server, shop: WebServer) -> None:
    came, over, usual = threading.Event(), threading.Event(), shop.pages["/api/v1/packages/search"]

    def slow(_: Any) -> Any:
        came.set()
        over.wait(30)
        return 200, {}, b"{}"

    shop.pages["/api/v1/packages/search"] = slow
    try:
        with socket.create_connection(("127.0.0.1", server.port)) as one:
            one.sendall(f"GET /repositories?hub=left HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
            assert came.wait(30)
        wait_for(lambda: re.search(r'="499"} \d', server.get("/metrics").text))
    finally:
        over.set()
        shop.pages["/api/v1/packages/search"] = usual
    assert "Traceback" not in server.log.read_text()


# Without a cluster, without helm, read only


def test_a_page_without_a_cluster_explains_what_to_do(serve: Serve) -> None:
    home = {"HOME": "/nonexistent", "KUBECONFIG": ""}
    server = serve(environ=home)
    assert "kubeconfig:" in get_page(server, "/releases").words
    assert "No cluster is configured" in get_page(server, "/").words
    assert get_page(server, "/releases/default/x", 404).words
    assert "No repository yet" in get_page(server, "/repositories").words


def test_read_only_mode_hides_the_forms_and_explains_how_to_change_it(
    serve: Serve, cluster: Cluster, space: str
) -> None:
    server = serve(svc={"kube": {"kubeconfig": str(cluster.kubeconfig)}, "helm": {"binary": "/nonexistent/helm"}})
    for path in ("/releases/new", f"/releases/{space}/wall?show=change", "/repositories"):
        found = get_page(server, path)
        assert "mode: FULL" in found.words
        assert not any(facts.get("name") == "key" for _, facts in found.tags)
    assert "svc.helm.binary" in get_page(server, "/releases").words
    assert send(server, "/releases/new", chartRef="a/b", releaseName="x").status == 403
    assert send(server, f"/releases/{space}/wall", verb="uninstall").status == 403


def test_an_unreachable_cluster_is_reported_without_delaying_the_overview(serve: Serve, cluster: Cluster) -> None:
    server = serve(svc={"kube": {"kubeconfig": str(cluster.dead_config())}})
    assert "The cluster does not answer" in get_page(server, "/releases").words
    wait_for(lambda: "The cluster does not answer" in get_page(server, "/").words)


def test_a_cluster_that_hangs_does_not_delay_the_overview(serve: Serve, cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = {"server": f"https://127.0.0.1:{silent.getsockname()[1]}", "insecure-skip-tls-verify": True}
        server = serve(svc={"kube": {"kubeconfig": str(cluster.config(cluster=place))}})
        assert "The cluster is asked for its releases" in get_page(server, "/").words  # and not that it took too long


def test_releases_of_the_only_readable_namespace_are_shown(serve: Serve, cluster: Cluster, space: str) -> None:
    rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list"]}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "r"}, "rules": [rule]}
    cluster.create(space, role)
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "r"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "nobody"}],
    }
    cluster.create(space, binding)
    server = serve(svc={"kube": {"kubeconfig": str(cluster.config({"token": "nobodys-token"}))}})
    assert wait_for(lambda: "tint-0.1.0" in get_page(server, f"/releases?namespace={space}").words)
    assert "does not authorize this read" in get_page(server, "/releases").words


# In a browser


def test_the_pages_are_accessible(server: Server, chromium: Browser, paths: list[str], space: str) -> None:
    faults = {}
    without = ["/releases?namespace=nowhere",
               f"/releases?namespace={space}&q=none&state=odd", "/repositories?q=nothing",
               "/repositories/paint?q=odd", "/releases/default/nobody", "/repositories/paint/nobody",
               f"/releases/{space}/wall?show=manifest&of=99"]  # fmt: skip
    with chromium.page(url_of(server), allow=("Failed to load",)) as one:
        for path in [*paths, *without]:
            one.goto(path)
            if found := faults_in_all_views(one):
                faults[path] = found
    assert faults == {}


def test_chart_pages_report_a_lost_server_and_disable_actions(server: Server, chromium: Browser, space: str) -> None:
    paths = ["/releases", "/releases/new", f"/releases/{space}/wall", f"/releases/{space}/wall?show=change",
             "/repositories", "/repositories/paint"]  # fmt: skip
    assert without_the_server(server, chromium, paths) == {}


def test_values_are_checked_against_the_schema_and_copied_from_the_chart(
    server: Server, chromium: Browser, shop: WebServer
) -> None:
    schema = json.dumps({"type": "object", "properties": {"replicas": {"type": "integer"}}})
    shop.serve(
        ("strict", "1.0.0", chart_archive("strict", "1.0.0", values="replicas: 1\n", **{"values.schema": schema})),
        folder="/s",
    )
    assert send(server, "/repositories", verb="add", name="strict", url=f"{shop.url}/s").status == 303
    with chromium.page(url_of(server), allow=("400", "404"), viewport={"width": 1280, "height": 900}) as one:
        one.goto("/releases/new?chartRef=strict/strict")
        one.get_by_label("Values over").fill("replicas: many")
        one.get_by_text(re.compile("lint finds 1 fault")).wait_for()
        assert "integer" in one.locator(".findings .error").inner_text()
        assert one.get_by_label("Values over").get_attribute("aria-invalid") == "true"
        one.get_by_label("Values over").fill("replicas: 2")
        one.get_by_text("valid YAML", exact=True).wait_for()
        assert one.locator(".findings .error").count() == 0
        one.get_by_text("Values of the chart").click()
        one.get_by_label("Default values of the chart").get_by_text("replicas: 1").wait_for()
        left, right = (one.locator(place).bounding_box() for place in (".editor", ".beside details"))
        assert left["y"] == pytest.approx(right["y"], abs=20)
        assert axe_findings(one) == []
        one.get_by_label("Chart", exact=True).fill("strict/nobody")
        one.get_by_label("Version").focus()
        one.get_by_text("not checked against the chart").wait_for()
    assert send(server, "/repositories/strict", verb="remove").status == 303


def test_a_release_is_installed_upgraded_compared_rolled_back_and_uninstalled(
    server: Server, chromium: Browser, cluster: Cluster
) -> None:
    space = cluster.namespace()
    with chromium.page(url_of(server)) as one:
        one.goto("/repositories/paint/tint?version=0.1.0")
        one.get_by_role("link", name="Install 0.1.0").click()
        one.wait_for_load_state()  # the script of each page sends its forms
        one.get_by_label("Release name").fill("door")
        one.get_by_label("Namespace").fill(space)
        one.get_by_label("API key").fill(KEY)
        one.get_by_role("button", name="Preview").click()
        one.get_by_text("Preview of door").wait_for()
        one.get_by_role("button", name="Install", exact=True).click()  # the key is known in this tab now
        one.get_by_role("heading", name="door", exact=True).wait_for()
        one.get_by_role("link", name="Upgrade, roll back, uninstall").click()
        one.wait_for_load_state()
        one.get_by_role("textbox", name="Values").fill("colour: blue")
        upgrade = one.locator("form", has=one.locator("[value=upgrade]"))
        upgrade.get_by_role("button", name="Preview").click()
        one.locator(".diff .add", has_text="blue").wait_for()
        upgrade.get_by_role("button", name="Upgrade door to 0.2.0").click()
        one.locator(".toast.good", has_text="door upgraded to tint-0.2.0: revision 2, deployed").wait_for()
        one.locator(".tabs").get_by_role("link", name="History").click()
        one.get_by_role("button", name="Compare").click()
        one.locator(".diff .del", has_text="red").wait_for()
        one.locator(".tabs").get_by_role("link", name="History").click()
        one.get_by_role("link", name="Roll back to revision 1").click()
        one.wait_for_load_state()
        one.get_by_role("button", name="Roll back").click()
        confirm(one, "Roll back door to revision 1?", "Roll back door")
        one.wait_for_url(f"**/releases/{space}/door")
        one.locator(".toast.good", has_text="door rolled back to revision 1: revision 3, deployed").wait_for()
        one.get_by_text("Rollback to 1").wait_for()
        one.goto(f"/releases/{space}/door?show=change&do=uninstall")
        one.get_by_role("button", name="Uninstall").click()
        confirm(one, f"Uninstall door from {space}?", "Uninstall door")
        one.wait_for_url("**/releases")
        one.locator(".toast.good", has_text=f"door uninstalled from {space}").wait_for()
        assert server.get(f"/releases/{space}/door").status == 404


def test_the_keyboard_opens_a_release_and_rolls_it_back(server: Server, chromium: Browser, space: str) -> None:
    with chromium.page(url_of(server)) as one:
        one.goto("/")
        go_by_keys(one, "gr", "**/releases")
        tab_to(one, "Name contains")
        one.keyboard.type("wall")
        one.wait_for_url("**/releases?q=wall")
        one.locator("tbody th").filter(has_not_text="wall").first.wait_for(state="detached")  # the list is filtered
        tab_to(one, "Filter")
        one.keyboard.press("j")
        one.keyboard.press("Enter")
        one.get_by_role("heading", name="wall", exact=True).wait_for()
        one.wait_for_load_state()
        tab_to(one, "History")
        one.keyboard.press("Enter")
        one.wait_for_url("**show=history")
        tab_to(one, "Roll back to revision 2")
        one.keyboard.press("Enter")
        one.wait_for_url("**show=change*")
        tab_to(one, "API key", "#rollback")
        one.keyboard.type(KEY)
        tab_to(one, "Roll back wall")
        one.keyboard.press("Enter")
        one.get_by_role("dialog", name="Roll back wall to revision 2?").wait_for()
        one.keyboard.press("Enter")
        one.wait_for_url(f"**/releases/{space}/wall")
        one.get_by_text("Rollback to 2").wait_for()


def test_a_long_change_shows_progress_and_continues_after_leaving(
    server: Server, chromium: Browser, cluster: Cluster, shop: WebServer
) -> None:
    space = cluster.namespace()
    shop.serve(("slow", "1.0.0", chart_archive("slow", "1.0.0", templates__deployment=DEPLOYMENT)), folder="/slow")
    assert send(server, "/repositories", verb="add", name="slow", url=f"{shop.url}/slow").status == 303
    with chromium.page(url_of(server)) as one:
        one.goto(f"/releases/new?chartRef=slow/slow&releaseName=slow&namespace={space}")
        one.get_by_label("Wait until all resources are ready").check()
        one.get_by_label("Timeout in seconds").fill("60")
        one.get_by_label("API key").fill(KEY)
        one.get_by_role("button", name="Install", exact=True).click()
        one.get_by_text("working …").wait_for()
        assert one.get_by_role("button", name="Install", exact=True).is_disabled()
        wait_for(lambda: server.get(f"/releases/{space}/slow").status == 200)
        one.get_by_role("button", name="Stop waiting").click()
        one.get_by_text("Stopped waiting").wait_for()
        assert "not ready" in get_page(server, f"/releases/{space}/slow").words
        one.goto(f"/releases/{space}/slow")
        one.get_by_text("1 of 1 not ready").wait_for()
        cluster.ready_deployment(space, "slow")
        one.get_by_text("1 of 1 ready").wait_for()


def test_the_api_key_is_kept_in_the_tab_only_and_can_be_removed(server: Server, chromium: Browser) -> None:
    with chromium.page(url_of(server), allow=("401",)) as one:
        one.goto("/repositories")
        one.get_by_label("Name", exact=True).fill("x")
        one.get_by_label("Address").fill("http://127.0.0.1:1/")
        one.get_by_label("API key").fill("wrong")
        one.get_by_role("button", name="Add").click()
        one.get_by_text("missing or wrong").wait_for()
        assert one.get_by_label("Name", exact=True).input_value() == "x"
        assert one.get_by_label("API key").is_visible()
        assert one.evaluate("sessionStorage.length") == 0
        one.evaluate(f"sessionStorage.setItem('charts key', '{KEY}')")
        one.goto("/releases/new")
        assert not one.get_by_label("API key").is_visible()
        one.get_by_role("button", name="Forget it").click()
        assert one.get_by_label("API key").is_visible()
        assert one.evaluate("sessionStorage.length + localStorage.length") == 0
        assert all(KEY not in cookie["value"] for cookie in one.context.cookies())


def test_changes_of_a_release_by_others_show_without_a_reload(
    server: Server, chromium: Browser, cluster: Cluster
) -> None:
    space = cluster.namespace()
    with chromium.page(url_of(server)) as one:
        one.goto(f"/releases?namespace={space}")
        one.get_by_text("No release in the namespace").wait_for()
        send(server, "/releases/new", chartRef="paint/tint", releaseName="late", namespace=space)
        one.get_by_role("link", name="late").wait_for()
        one.locator("#live[data-is=on]").wait_for()


def test_every_chart_page_and_form_works_without_script(
    server: Server, chromium: Browser, cluster: Cluster, shop: WebServer
) -> None:
    space = cluster.namespace()
    place = f"/releases/{space}/plain"
    tint, key = {"chartRef": "paint/tint"}, {"key": KEY}
    made = {**tint, **key, "version": "0.1.0", "releaseName": "plain", "namespace": space}
    steps: list[tuple[str, str, dict[str, str], str]] = [
        ("/repositories", "/repositories add", {**key, "name": "extra", "url": shop.url}, "extra"),
        ("/repositories", "/repositories update", {}, "extra"),
        ("/repositories/paint", "/repositories/paint update", {}, "tint"),
        ("/repositories/extra", "/repositories/extra update", {}, "tint"),
        ("/repositories/paint", "/repositories/paint remove", key, "extra"),
        ("/repositories", "/repositories add", {**key, "name": "paint", "url": shop.url}, "paint"),
        ("/repositories/extra", "/repositories/extra remove", key, "paint"),
        ("/releases/new", "/releases/new yes", made, "kind: ConfigMap"),
        ("/releases/new", "/releases/new", made, "deployed"),
        (
            f"{place}?show=change",
            f"{place} upgrade yes",
            {**tint, **key, "values": "colour: blue"},
            "nothing was changed",
        ),
        (f"{place}?show=change", f"{place} upgrade", {**tint, **key, "values": "colour: blue"}, "tint-0.2.0"),
        (f"{place}?show=change&do=test", f"{place} test", {**key, "timeoutSeconds": "30"}, "passed"),
        (f"{place}?show=change&do=rollback", f"{place} rollback yes", {**key, "revision": "1"}, "nothing was changed"),
        (f"{place}?show=change&do=rollback", f"{place} rollback", {**key, "revision": "1"}, "tint-0.1.0"),
        (f"{place}?show=change&do=uninstall", f"{place} uninstall yes", key, "nothing was changed"),
        (f"{place}?show=change&do=uninstall", f"{place} uninstall", key, "Releases"),
    ]
    with cluster.attended(space), chromium.page(url_of(server), java_script_enabled=False) as one:
        forms = Forms(one)
        for path in ["/releases", "/releases/new", "/repositories", "/repositories/paint", "/repositories/paint/tint"]:
            forms.visit(path)
        for path, kind, fields, expected in steps:
            forms.send(path, re.sub("[0-9]+", "N", kind), **fields)
            assert expected in one.content(), (kind, one.locator("main").inner_text())
            if kind == f"{place} rollback":
                for tab in TABS:
                    forms.visit(place + tab)
        assert forms.seen - forms.sent == set()
    assert server.get(place).status == 404
