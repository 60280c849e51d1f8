"""Makes docs/images: pages of a server with the sample data, light and dark. `make screenshots` runs it.

The pages of a project and of a run are made at a fixed time, and tests compare them where the browser and the fonts are
those of made-with.json.

Needs Chromium, and an API server for the page of a release (KUBEBUILDER_ASSETS).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / part) for part in ("", "charts", "web"))]

from browser_pages import PROGRAM, Browser, need_browser  # noqa: E402
from cluster import Cluster, programs  # noqa: E402
from conftest import Server, wait_for  # noqa: E402
from demo_pictures import KEPT, LOOKS_FILE, THEMES, looks, make_sample, sample_server, take  # noqa: E402
from release_secrets import made_release, store_release  # noqa: E402

IMAGES = ROOT / "docs" / "images"
SIZE = {"width": 1280, "height": 800}
SETTLE_SECONDS = 20
"""For the plots of CPU and memory to fill."""
WORK = (
    "while :; do i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done;"
    ' echo "$(date) INFO served 42 requests"; sleep 0.3; done'
)
PROCESSES: dict[str, dict[str, Any]] = {
    "db": {"command": ["sh", "-c", "exec sleep 100000"], "auto-start": True, "description": "PostgreSQL of the shop"},
    "shop-api": {"command": ["sh", "-c", WORK], "auto-start": True, "depends-on": ["db"], "description": "the API"},
    "shop-web": {"command": ["sleep", "100000"], "auto-start": True, "depends-on": ["shop-api"]},
    "mailer": {"command": ["sh", "-c", "echo 'panic: no SMTP server' >&2; exit 3"], "auto-start": True},
    "nightly": {"command": ["true"], "description": "the backup"},
}
MANIFEST = """---
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop}
spec:
  replicas: %d
  selector: {matchLabels: {app: shop}}
  template: {metadata: {labels: {app: shop}}, spec: {containers: [{name: shop, image: "shop:%s"}]}}
---
apiVersion: v1
kind: Service
metadata: {name: shop}
spec: {selector: {app: shop}, ports: [{port: 80}]}
"""


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        run = [sys.executable, str(ROOT / "run.py"), "--data-dir", str(folder / "data"), "demo"]
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL)
        (folder / "cluster").mkdir()
        cluster = Cluster(folder / "cluster", programs())
        stack.callback(cluster.close)
        space = cluster.start().namespace("shop")
        for number, version in ((1, "1.4.0"), (2, "1.5.0")):
            state = "deployed" if number == 2 else "superseded"
            store_release(
                cluster, made_release("shop", space, number, state, manifest=MANIFEST % (number + 1, version))
            )
        store_release(cluster, made_release("monitoring", space, 1, "failed", manifest="# none\n"))
        server = Server(folder, _configuration(folder, cluster), {}, [])
        stack.callback(server.close)
        server.start()
        wait_for(lambda: server.get(f"/api/v1/releases?namespace={space}").json)
        wait_for(lambda: "releases-loading" not in server.get("/").text)
        time.sleep(SETTLE_SECONDS)
        _photograph(server, space)
    _photograph_sample()


def _photograph_sample() -> None:
    """The pages at a fixed time, and how the browser that made them looks."""
    with ExitStack() as stack:
        folder, copy = (Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2))
        server = stack.enter_context(sample_server(copy, make_sample(folder)))
        chromium = stack.enter_context(closing(Browser()))
        pictures = take(server, chromium)
        page = stack.enter_context(chromium.page("http://127.0.0.1"))
        LOOKS_FILE.write_text(json.dumps({"looks": looks(page)}) + "\n")
    for name in (f"{name}-{theme}" for name in KEPT for theme in THEMES):
        (IMAGES / f"{name}.png").write_bytes(pictures[name])


def _configuration(folder: Path, cluster: Cluster) -> dict[str, Any]:
    processes = {
        name: {**about, "stdout-logfile": str(folder / f"{name}.log"), "stderr-logfile": str(folder / f"{name}.err")}
        for name, about in PROCESSES.items()
    }
    supervisor = {"node-name": "edge-1", "metrics": {"interval": "500ms"}, "processes": processes}
    return {"supervisor": supervisor, "svc": {"kube": {"kubeconfig": str(cluster.kubeconfig)}}}


def _photograph(server: Server, space: str) -> None:
    pages = {
        "overview": "/",
        "process": "/processes/shop-api?range=10m",
        "release": f"/releases/{space}/shop?show=manifest&to=1&of=2&layout=side",
    }
    with need_browser().sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox"])
        for theme in ("light", "dark"):
            context = chromium.new_context(
                base_url=f"http://127.0.0.1:{server.port}", viewport=SIZE, color_scheme=theme, reduced_motion="reduce"
            )
            for name, path in pages.items():
                page = context.new_page()
                page.goto(path)
                page.wait_for_timeout(1500)  # the log and the relative times
                page.screenshot(path=IMAGES / f"{name}-{theme}.png")
            context.close()
        chromium.close()


if __name__ == "__main__":
    main()
