"""The overview of a new server: steps with lines to copy, ticked when the first thing has come, then gone."""

from __future__ import annotations

import re
import socket
from html import unescape
from pathlib import Path

import uploads
import yaml
from conftest import Serve, Server, wait_for

from models.config import loader

REPORT = uploads.junit(passed=1)
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: here, user: me}}]
clusters: [{name: here, cluster: {server: "https://127.0.0.1:%d", insecure-skip-tls-verify: true}}]
users: [{name: me, user: {token: t}}]
"""


def steps(server: Server) -> dict[str, bool]:
    """The steps of the overview, and whether each is ticked."""
    listed = server.get("/").text.partition('<ol class="cards first-steps"')[2].partition("</ol>")[0]
    heads = re.findall(r"<h2>(.*?)</h2>", listed)
    return {re.sub("<.*>", "", head).removeprefix("done ").strip(): "done" in head for head in heads}


def snippet(server: Server, name: str) -> str:
    text = server.get("/").text.partition(f'<pre id="step-{name}"')[2].partition(">")[2].partition("</pre>")[0]
    return unescape(text)


def test_steps_are_ticked_and_then_gone(serve: Serve) -> None:
    server = serve({}, wait=False).start()
    assert steps(server) == {"A process": False, "A test report": False, "A release": False}
    assert "all well" not in server.get("/").text
    assert str(server.folder / "pilothouse.yaml") in server.get("/").text
    uploads.upload(server, ("project", "shop"), ("junit", REPORT))
    wait_for(lambda: steps(server)["A test report"], about="a ticked step")
    assert not snippet(server, "report")
    server.configure({"supervisor": yaml.safe_load(snippet(server, "process"))["supervisor"]})
    assert server.post("/api/v1/supervisor/reload").status == 200
    assert steps(server) == {}
    assert "all well" in server.get("/").text


def test_a_cluster_that_has_not_answered_yet_is_no_step(serve: Serve, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(KUBECONFIG % silent.getsockname()[1])
        server = serve({"web": {"command": "true"}}, svc={"kube": {"kubeconfig": str(kubeconfig)}})
        uploads.upload(server, ("project", "shop"), ("junit", REPORT))
        wait_for(lambda: "shop" in server.get("/").text)
        assert "The cluster is asked for its releases" in server.get("/").text
        assert steps(server) == {}


def test_the_lines_to_copy_are_valid_configurations(serve: Serve, tmp_path: Path) -> None:
    server = serve({}, wait=False).start()
    for name in ("process", "release"):
        (tmp_path / "one.yaml").write_text(snippet(server, name))
        loader.load(tmp_path / "one.yaml", {})
    assert f"http://127.0.0.1:{server.port}/api/v1/ingest" in snippet(server, "report")
