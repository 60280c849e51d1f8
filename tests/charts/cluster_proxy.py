"""A proxy in front of the API server that cuts streams, stalls or responds 429, as a test selects."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cluster import Cluster

PASS, CUT, HALF, STALL, BUSY = "pass", "cut", "half", "stall", "429"
"""Forward; close before the response; close within it; never answer; answer 429."""

Choose = Callable[[str, str], str]
"""From method and path to one of the above."""

_READ_BYTES = 65536
_TOO_MANY = b"Too many requests, please try again later.\n"


class RequestProxy:
    """An HTTP/1.1 proxy with TLS that decides for each request."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.choose: Choose = lambda *_: PASS
        self.faults = 0
        self._over = threading.Event()
        proxy, upstream = self, ssl.create_default_context(cadata=cluster.ca.cert_pem.bytes().decode())

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                action = proxy.choose(self.command, self.path)
                proxy.faults += action != PASS
                if action == STALL:
                    proxy._over.wait()
                if action in (CUT, STALL):
                    self.close_connection = True
                    return
                status, headers, content = (
                    (429, {"Content-Type": "text/plain"}, _TOO_MANY) if action == BUSY else self.forwarded(body)
                )
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) // 2] if action == HALF else content)
                self.close_connection = action == HALF

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815 (the names that http.server looks for)

            def forwarded(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
                connection = http.client.HTTPSConnection("127.0.0.1", cluster.port, timeout=30, context=upstream)
                headers = {name: value for name, value in self.headers.items() if name.lower() != "accept-encoding"}
                with contextlib.closing(connection):
                    connection.request(self.command, self.path, body, headers)
                    response = connection.getresponse()
                    return response.status, {"Content-Type": response.headers["Content-Type"]}, response.read()

            def log_message(self, format: str, *_: Any) -> None:
                """Logs nothing."""

        class Listener(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: Any) -> None:
                """The client has disconnected."""

        certificate = cluster.ca.issue_cert("127.0.0.1")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        self._server = Listener(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = int(self._server.server_address[1])
        self.kubeconfig = _kubeconfig(cluster, self.port, folder / "requests")
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()


class StreamProxy:
    """Forwards TLS unchanged, HTTP/2 included; cuts each connection after a number of bytes of the API server."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.limit: int | None = None
        self.cuts = 0
        self._target = cluster.port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.kubeconfig = _kubeconfig(cluster, self.port, folder / "streams")
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with self._listener, contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._forward, args=(client, self.limit), daemon=True).start()

    def _forward(self, client: socket.socket, limit: int | None) -> None:
        with client, socket.create_connection(("127.0.0.1", self._target)) as server:
            back = threading.Thread(target=self._copy, args=(server, client, limit), daemon=True)
            back.start()
            self._copy(client, server, None)
            back.join()

    def _copy(self, source: socket.socket, target: socket.socket, limit: int | None) -> None:
        size = 0
        with contextlib.suppress(OSError):
            while data := source.recv(_READ_BYTES):
                size += len(data)
                if limit is not None and size > limit:
                    target.sendall(data[: len(data) - (size - limit)])
                    self.cuts += 1
                    break
                target.sendall(data)
        for connection in (source, target):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # the thread closes it: see `receivers.listening`


def _kubeconfig(cluster: Cluster, port: int, path: Path) -> Path:
    (path.parent / "ca.pem").write_bytes(cluster.ca.cert_pem.bytes())
    server = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(path.parent / "ca.pem")}
    return cluster.config(cluster=server, path=path)


@contextlib.contextmanager
def proxies(cluster: Cluster, folder: Path) -> Iterator[tuple[RequestProxy, StreamProxy]]:
    requests, streams = RequestProxy(cluster, folder), StreamProxy(cluster, folder)
    try:
        yield requests, streams
    finally:
        requests.close()
        streams.close()
