"""Pictures of the sample data at a fixed time: the same on each server, and comparable within 0.1 % of their pixels."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conftest import ROOT, Server, wait_for
from release_secrets import made_release, store_release

SIZE = {"width": 1280, "height": 800}
THEMES = ("light", "dark")
MAX_DIFFERENCE = 0.001
KEPT = ("project", "run")
"""The pictures that are kept in docs/images, with the look of the browser that made them."""
IMAGES = ROOT / "docs" / "images"
LOOKS_FILE = IMAGES / "made-with.json"
_NOW_SECONDS = 1_772_445_600
_FIXED_CLOCK = f"import time\ntime.time_ns = lambda: {_NOW_SECONDS} * 10**9\n"
"""Python imports a module `sitecustomize` at its start."""
_PROCESS = {
    "command": ["sh", "-c", "echo INFO listening on 8080; echo ERROR no route to db:5432; exec sleep 1000"],
    "auto-start": True,
    "description": "the API of the shop",
}
_LIVE = {
    "overview": ("section:has(#host)", "section:has(h2 a[href='/releases'])"),
    "process": ("dl.tiles", "#metrics", ":text('started, pid')"),
}
"""What shows live figures of this machine, by the picture."""
_MANIFEST = """---
apiVersion: v1
kind: ConfigMap
metadata: {name: shop}
data: {replicas: "%d"}
"""
_SAMPLE = """<body style="margin: 8px; font: 15px system-ui"><p>Pilothouse 0123456789 <b>failed</b> ✕</p>
    <pre style="font: 13px ui-monospace, monospace">def test_x(): assert 1 == 2</pre><select><option>all</select>"""
_DIFFERENCE = """async ([one, other]) => {
    const pixels = async (text) => {
        const bitmap = await createImageBitmap(await (await fetch(`data:image/png;base64,${text}`)).blob());
        const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
        context.drawImage(bitmap, 0, 0);
        return context.getImageData(0, 0, bitmap.width, bitmap.height);
    };
    const [first, second] = [await pixels(one), await pixels(other)];
    if (first.width !== second.width || first.height !== second.height) return 1;
    const [a, b] = [new Uint32Array(first.data.buffer), new Uint32Array(second.data.buffer)];
    return a.reduce((count, pixel, place) => count + (pixel !== b[place]), 0) / a.length;
}"""


def fixed_clock(folder: Path) -> dict[str, str]:
    """The environment of a server whose clock stands still. `folder` gets the module that stops it."""
    (folder / "clock").mkdir(exist_ok=True)
    (folder / "clock" / "sitecustomize.py").write_text(_FIXED_CLOCK)
    return {"PYTHONPATH": str(folder / "clock")}


def make_sample(folder: Path) -> Path:
    """Makes the sample data at the fixed time; returns its data directory."""
    command = [sys.executable, str(ROOT / "run.py"), "--data-dir", str(folder / "data"), "demo"]
    environ = {**os.environ, **fixed_clock(folder)}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environ, cwd=folder, timeout=300)
    return folder / "data"


def add_release(cluster: Any) -> str:
    """Stores a release of two revisions in a namespace of its own; returns the path of their difference."""
    space = cluster.namespace()
    for number, state in ((1, "superseded"), (2, "deployed")):
        store_release(cluster, made_release("shop", space, number, state, manifest=_MANIFEST % number))
    return f"/releases/{space}/shop?show=manifest&to=1&of=2"


@contextmanager
def sample_server(folder: Path, data: Path, cluster: Any = None) -> Iterator[Server]:
    """A new server with a copy of the sample data, at the fixed time. It supervises a process that writes a log."""
    shutil.copytree(data, folder / "data")
    process = {**_PROCESS, "stdout-logfile": str(folder / "shop-api.log")}
    config: dict[str, Any] = {"supervisor": {"node-name": "demo", "processes": {"shop-api": process}}}
    if cluster is not None:
        config["svc"] = {"kube": {"kubeconfig": str(cluster.kubeconfig)}}
    server = Server(folder, config, fixed_clock(folder), [])
    try:
        yield server.start()
    finally:
        server.close()


def take(server: Server, chromium: Any, release: str = "") -> dict[str, bytes]:
    """The pictures of the pages of the sample data and of a release, by name and theme. Live figures are covered."""
    wait_for(lambda: server.get("/api/v1/processes/info/shop-api").json["status"] == "running")
    wait_for(lambda: "releases-loading" not in server.get("/").text, about="the releases of the cluster")
    project = next(item["id"] for item in server.get("/api/v1/projects").json if item["name"] == "acme/shop")
    run = server.get(f"/api/v1/projects/{project}/runs").json[0]["id"]
    paths = {"overview": "/", "projects": "/projects", "project": f"/projects/{project}", "run": f"/runs/{run}"}
    paths |= {"process": "/processes/shop-api"} | ({"release": release} if release else {})
    pictures = {}
    for theme in THEMES:
        options = {"viewport": SIZE, "color_scheme": theme, "reduced_motion": "reduce"}
        with chromium.page(f"http://127.0.0.1:{server.port}", **options) as page:
            page.clock.set_fixed_time(_NOW_SECONDS)
            for name, path in paths.items():
                page.goto(path)
                page.locator("#live[data-is=on]").wait_for()
                if name == "process":
                    page.get_by_text("INFO listening on 8080", exact=True).wait_for()
                    page.get_by_text("ERROR no route to db:5432", exact=True).wait_for()
                live = [page.locator(place) for place in ("footer", *_LIVE.get(name, ()))]
                pictures[f"{name}-{theme}"] = page.screenshot(mask=live, animations="disabled", caret="hide")
    return pictures


def difference(page: Any, one: bytes, other: bytes) -> float:
    """The share of the pixels that differ; 1 for pictures of two sizes."""
    return float(page.evaluate(_DIFFERENCE, [base64.b64encode(picture).decode() for picture in (one, other)]))


def looks(page: Any) -> str:
    """A digest of how this browser draws text with the fonts of this machine."""
    page.set_viewport_size({"width": 400, "height": 200})
    page.set_content(_SAMPLE)
    return hashlib.sha256(page.screenshot()).hexdigest()
