"""Repositories and registries for tests: archives, a web server with configurable responses, and a real registry
(Debian's docker-registry).
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import socket
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from conftest import Answer, Server, free_port, wait_for
from requirements import require
from small_charts import helm_path, multipart

Reply = tuple[int, dict[str, str], bytes]
KEY = "the-key"
FULL = {"mode": "FULL", "api-key": KEY}


def tar_archive(entries: list[tuple[tarfile.TarInfo | str, bytes]]) -> bytes:
    """A gzipped tar archive with exactly these entries."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as file:
        for entry, data in entries:
            info = tarfile.TarInfo(entry) if isinstance(entry, str) else entry
            info.size = len(data) if info.isreg() else 0
            file.addfile(info, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), 1, mtime=0)


def chart_archive(
    name: str = "demo", version: str = "0.1.0", files: Mapping[str, str | bytes] | None = None, **facts: Any
) -> bytes:
    """A chart's archive; `facts` go into its Chart.yaml, `files` are added to it or replace what is there."""
    metadata = {"apiVersion": "v2", "name": name, "version": version, **facts}
    content: dict[str, str | bytes] = {
        "Chart.yaml": yaml.safe_dump(metadata, sort_keys=False),
        "values.yaml": "# how many\nreplicas: 1\n",
        "templates/map.yaml": f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\n",
        **(files or {}),
    }
    return tar_archive(
        [(f"{name}/{path}", data.encode() if isinstance(data, str) else data) for path, data in content.items()]
    )


def index_entry(name: str, version: str, data: bytes | None = None, **facts: Any) -> dict[str, Any]:
    """The entry of a version in a repository index."""
    result: dict[str, Any] = {"apiVersion": "v2", "name": name, "version": version, "urls": [f"{name}-{version}.tgz"]}
    if data is not None:
        result["digest"] = hashlib.sha256(data).hexdigest()
    return result | facts


def index_file(*entries: dict[str, Any]) -> bytes:
    by_name: dict[str, list[dict[str, Any]]] = {}
    for one in entries:
        by_name.setdefault(one["name"], []).append(one)
    return yaml.safe_dump({"apiVersion": "v1", "entries": by_name}).encode()


class WebServer:
    """A web server on loopback. `pages` maps paths to responses or their functions; `seen` has the requests."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.pages: dict[str, Reply | bytes | Callable[[BaseHTTPRequestHandler], Reply]] = {}
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.bodies: list[bytes] = []
        """Those of the requests in `seen`. A response that depends on a body takes the handler's own, `body`."""
        lock, outer = threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                self.body = self.rfile.read(int(headers.get("content-length", "0")))
                with lock:  # another request may come at the same time
                    outer.seen.append((self.command, self.path, headers))
                    outer.bodies.append(self.body)
                page = outer.pages.get(self.path.partition("?")[0], (404, {}, b"not here"))
                status, more, body = (
                    page(self) if callable(page) else page if isinstance(page, tuple) else (200, {}, page)
                )
                self.send_response(status)
                for name, value in more.items():
                    self.send_header(name, value)
                if "Content-Length" not in more:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(body)

            do_POST = do_PUT = do_PATCH = do_HEAD = do_GET  # noqa: N815 (the names that http.server looks for)

            def log_message(self, *_: Any) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128  # a connection that finds the queue full is tried again after a second
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

            def handle_error(self, *_: Any) -> None:
                pass

        self.server = Quiet((host, 0), Handler)
        self.port = int(self.server.server_address[1])
        self.host_port = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.host_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def paths(self) -> list[str]:
        return [path for _, path, _ in self.seen]

    def serve(self, *archives: tuple[str, str, bytes], folder: str = "") -> None:
        """Serves archives and a repository index of them."""
        for name, version, data in archives:
            self.pages[f"{folder}/{name}-{version}.tgz"] = data
        self.pages[f"{folder}/index.yaml"] = index_file(
            *(index_entry(name, version, data) for name, version, data in archives)
        )

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@contextlib.contextmanager
def web_server() -> Iterator[WebServer]:
    one = WebServer()
    try:
        yield one
    finally:
        one.close()


def run_helm(folder: Path, *arguments: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs helm with its own cache, configuration and data folders in `folder`."""
    homes = {f"HELM_{kind}_HOME": str(folder / "home" / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "TZ": "UTC", **homes}
    done = subprocess.run([helm_path("helm"), *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    assert not ok or done.returncode == 0, done.stderr
    return done


@contextlib.contextmanager
def running_registry(folder: Path, *users: str) -> Iterator[str]:
    """Runs a real registry on loopback, over plain http; yields its host and port. Skips without the program.

    `users` are lines of an htpasswd file: with them it requires a login.
    """
    require("docker-registry")
    port = free_port()
    settings: dict[str, Any] = {
        "version": "0.1",
        "log": {"accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}},
        "http": {"addr": f"127.0.0.1:{port}", "secret": "not one"},
    }
    if users:
        (folder / "users").write_text("\n".join(users))
        settings["auth"] = {"htpasswd": {"realm": "the lab", "path": str(folder / "users")}}
    file = folder / "registry.yml"
    file.write_text(json.dumps(settings))
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", str(file)], stdout=log, stderr=log)
    try:
        wait_for(lambda: _listens(port), about="the registry")
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def post_json(server: Server, path: str, body: Any = None, **more: Any) -> Answer:
    """Posts JSON with the API key."""
    raw = b"" if body is None else json.dumps(body).encode()
    return server.ask("POST", f"/api/v1{path}", raw, {"X-API-Key": KEY, "Content-Type": "application/json"}, **more)


def post_parts(server: Server, path: str, parts: Mapping[str, bytes | str]) -> Answer:
    """Posts several parts with the API key; bytes are sent as a file."""
    body, headers = multipart(**parts)
    return server.ask("POST", f"/api/v1{path}", body, {"X-API-Key": KEY, **headers})
