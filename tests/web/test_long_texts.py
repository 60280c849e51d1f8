"""The page of a release with long notes, values and manifest: they are cut, and a link leads to all of them."""

from __future__ import annotations

import pytest
from browser_pages import get_page
from cluster import Cluster
from conftest import Serve, Server
from small_charts import FULL, KEY, chart_archive, helm_path, post_chart

API = "/helm/v9"
SIZE = 300_000
MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Release.Name }}}\ndata: {long: {{ .Values.long }}}\n"


@pytest.fixture
def release(serve: Serve, cluster: Cluster) -> tuple[Server, str]:
    """A server with another base path, and the page of a release with long texts."""
    own = {
        "rest": {"base-path": API},
        "kube": {"kubeconfig": str(cluster.kubeconfig)},
        "helm": {"binary": helm_path("helm")},
    }
    server, space = serve(svc=FULL | own), cluster.namespace()
    archive = chart_archive(templates__map=MAP, templates__NOTES="{{ .Values.long }}\n")
    request = {"releaseName": "wordy", "namespace": space, "values": {"long": "y" * SIZE}}
    assert post_chart(server, f"{API}/releases/upload", KEY, chart=archive, request=request).status == 201
    return server, f"/releases/{space}/wordy"


@pytest.mark.parametrize(
    ("show", "link"), [("overview", "/notes?"), ("values", "/values?"), ("manifest", "/manifest?")]
)
def test_a_long_text_is_cut_and_the_link_has_all_of_it(release: tuple[Server, str], show: str, link: str) -> None:
    server, path = release
    assert len(server.get(f"{path}?show={show}").body) < SIZE
    links = [str(facts.get("href")) for tag, facts in get_page(server, f"{path}?show={show}").tags if tag == "a"]
    (whole,) = [href for href in links if link in href and href.startswith(API)]
    answer = server.get(whole)
    assert answer.status == 200
    assert answer.text.count("y") >= SIZE
