"""A real Kubernetes API server for tests: etcd and kube-apiserver on free loopback ports, for a whole run of pytest.

There are no controllers and no kubelet: objects are stored and validated for real, but no Deployment becomes ready and
no Pod runs unless a test patches its status. `tests/conftest.py` offers one as the fixture `cluster`; a test that
changes things uses its own namespace (`cluster.namespace()`).
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import itertools
import json
import os
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trustme
import yaml
from conftest import ROOT, TIMEOUT_SECONDS, free_port, wait_for
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from requirements import missing_part

TOKEN = "a-token-of-the-admin"
_PROGRAMS = ("etcd", "kube-apiserver")
_TRIES = 3
_JSON = "application/json"


def programs() -> Path:
    """The folder of etcd and kube-apiserver: KUBEBUILDER_ASSETS, or the one that is shared beside the checkout.

    Without them the test is skipped; in CI it fails.
    """
    named = os.environ.get("KUBEBUILDER_ASSETS")
    shared = ROOT.parent / "shared" / "envtest" / "assets"
    if not named and shared.exists():
        named = subprocess.run([str(shared)], check=True, capture_output=True, text=True).stdout.strip()
    if not named or not all((Path(named) / name).exists() for name in _PROGRAMS):
        missing_part("a Kubernetes API server", "not in Debian: KUBEBUILDER_ASSETS names the folder of envtest")
    return Path(named)


class Refused(Exception):
    """The API server refused a request."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status} {body[:300]!r}")
        self.status = status


class Cluster:
    """A running API server, and kubeconfigs for it."""

    def __init__(self, folder: Path, assets: Path) -> None:
        self.folder = folder
        self.port = 0
        self.ca = trustme.CA()
        self._admin = trustme.CA()
        self._assets = assets
        self._running: list[subprocess.Popen[bytes]] = []
        self._namespaces = itertools.count(1)
        self._configs = itertools.count(1)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    # Starting and ending

    def start(self) -> Cluster:
        """Starts the API server; returns when it is ready and has created the namespace `default`."""
        self._write_keys()
        for attempt in range(_TRIES):
            if self._launch(f"data{attempt}"):
                self.kubeconfig = self.config()
                return self
            self.close()
        raise AssertionError(f"the API server does not start; its log:\n{self._log('kube-apiserver')[-3000:]}")

    def _launch(self, data: str) -> bool:
        etcd, peer, self.port = (free_port() for _ in range(3))
        here, there, keys = f"http://127.0.0.1:{etcd}", f"http://127.0.0.1:{peer}", self.folder
        self._run(
            "etcd",
            f"--data-dir={keys / data}",
            f"--listen-client-urls={here}",
            f"--advertise-client-urls={here}",
            f"--listen-peer-urls={there}",
            f"--initial-advertise-peer-urls={there}",
            f"--initial-cluster=default={there}",
        )
        self._run(
            "kube-apiserver",
            f"--etcd-servers={here}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--cert-dir={keys}",
            f"--tls-cert-file={keys / 'server.pem'}",
            f"--tls-private-key-file={keys / 'server.key'}",
            f"--client-ca-file={keys / 'admin-ca.pem'}",
            f"--token-auth-file={keys / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={keys / 'sa.pub'}",
            f"--service-account-signing-key-file={keys / 'sa.key'}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--disable-admission-plugins=ServiceAccount",
            "--allow-privileged",
        )
        # It takes eight seconds of processor time, and two workers of xdist may start one each.
        wait_for(lambda: self._is_ready() or not self._is_alive(), 4 * TIMEOUT_SECONDS, "the API server")
        return self._is_alive()

    def _run(self, program: str, *arguments: str) -> None:
        bound = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
        with (self.folder / f"{program}.log").open("ab") as log:
            self._running.append(
                subprocess.Popen([*bound, str(self._assets / program), *arguments], stdout=log, stderr=log)
            )

    def _write_keys(self) -> None:
        server = self.ca.issue_cert("127.0.0.1", "localhost", "kubernetes.default.svc")
        self.client = self._admin.issue_cert("admin", common_name="admin", organization_name="system:masters")
        server.private_key_pem.write_to_path(self.folder / "server.key")
        (self.folder / "server.pem").write_bytes(b"".join(pem.bytes() for pem in server.cert_chain_pems))
        self._admin.cert_pem.write_to_path(self.folder / "admin-ca.pem")
        (self.folder / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\nnobodys-token,nobody,nobody\n")
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        plain = serialization.NoEncryption()
        pem, pkcs1 = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
        (self.folder / "sa.key").write_bytes(key.private_bytes(pem, pkcs1, plain))
        public = serialization.PublicFormat.SubjectPublicKeyInfo
        (self.folder / "sa.pub").write_bytes(key.public_key().public_bytes(pem, public))

    def _is_alive(self) -> bool:
        return all(process.poll() is None for process in self._running)

    def _is_ready(self) -> bool:
        try:
            self.ask("GET", "/readyz")
            self.ask("GET", "/api/v1/namespaces/default")
        except (Refused, OSError, http.client.HTTPException):
            return False
        return True

    def _log(self, program: str) -> str:
        return (self.folder / f"{program}.log").read_text(errors="replace")

    def close(self) -> None:
        for process in reversed(self._running):
            process.kill()
            process.wait()
        self._running.clear()

    # Asking

    def ask(self, method: str, path: str, body: Any = None, kind: str = _JSON) -> Any:
        """Sends a request as the admin and returns the response. Raises `Refused`."""
        with contextlib.closing(self._connection()) as connection:
            return self._ask(connection, method, path, body, kind)

    def _connection(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cadata=self.ca.cert_pem.bytes().decode())
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=context)

    def _ask(
        self, connection: http.client.HTTPSConnection, method: str, path: str, body: Any = None, kind: str = _JSON
    ) -> Any:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": kind}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        outcome = response.read()
        if response.status >= 400:
            raise Refused(response.status, outcome)
        return json.loads(outcome) if outcome[:1] in (b"{", b"[") else outcome.decode()

    def namespace(self, name: str | None = None) -> str:
        """Creates a namespace with a new name."""
        name = name or f"space-{next(self._namespaces)}"
        self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        return name

    def create(self, namespace: str, thing: dict[str, Any]) -> Any:
        """Creates an object; its path is made of its apiVersion and kind."""
        return self.ask("POST", self.path(namespace, thing["apiVersion"], thing["kind"]), thing)

    def delete(self, namespace: str, api_version: str, kind: str, name: str) -> None:
        self.ask("DELETE", f"{self.path(namespace, api_version, kind)}/{name}?gracePeriodSeconds=0")

    def patch_status(self, namespace: str, api_version: str, kind: str, name: str, status: dict[str, Any]) -> None:
        """Sets the status of an object, as a controller or a kubelet would."""
        path = f"{self.path(namespace, api_version, kind)}/{name}/status"
        self.ask("PATCH", path, {"status": status}, "application/merge-patch+json")

    @staticmethod
    def path(namespace: str, api_version: str, kind: str) -> str:
        root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        return f"{root}/namespaces/{namespace}/{kind.lower()}s"

    # The work of controllers and kubelets

    def finish_pod(self, namespace: str, name: str, phase: str = "Succeeded") -> None:
        self.patch_status(namespace, "v1", "Pod", name, {"phase": phase})

    def ready_deployment(self, namespace: str, name: str) -> None:
        found = self.ask("GET", f"{self.path(namespace, 'apps/v1', 'Deployment')}/{name}")
        count = found["spec"]["replicas"]
        status: dict[str, Any] = dict.fromkeys(
            ("replicas", "readyReplicas", "updatedReplicas", "availableReplicas"), count
        )
        status["observedGeneration"] = found["metadata"]["generation"]
        status["conditions"] = [{"type": "Available", "status": "True"}, {"type": "Progressing", "status": "True"}]
        self.patch_status(namespace, "apps/v1", "Deployment", name, status)

    @contextlib.contextmanager
    def attended(self, namespace: str, phase: str = "Succeeded") -> Iterator[None]:
        """Ends every Pod of the namespace with `phase` and makes every Deployment ready, meanwhile."""
        over = threading.Event()
        thread = threading.Thread(target=self._attend, args=(namespace, phase, over))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _attend(self, namespace: str, phase: str, over: threading.Event) -> None:
        with contextlib.closing(self._connection()) as kept:  # a request on a new one takes four times as much
            while not over.wait(0.05):
                try:
                    self._attend_once(kept, namespace, phase)
                except (Refused, OSError, http.client.HTTPException):
                    kept.close()  # the next request opens it again

    def _attend_once(self, kept: http.client.HTTPSConnection, namespace: str, phase: str) -> None:
        for pod in self._ask(kept, "GET", f"/api/v1/namespaces/{namespace}/pods")["items"]:
            if pod["status"].get("phase") in (None, "Pending"):
                self.finish_pod(namespace, pod["metadata"]["name"], phase)
        for one in self._ask(kept, "GET", self.path(namespace, "apps/v1", "Deployment"))["items"]:
            if one.get("status", {}).get("observedGeneration") != one["metadata"]["generation"]:
                self.ready_deployment(namespace, one["metadata"]["name"])

    # Kubeconfigs

    def config(
        self,
        user: dict[str, Any] | None = None,
        cluster: dict[str, Any] | None = None,
        context: dict[str, Any] | None = None,
        path: Path | None = None,
    ) -> Path:
        """Writes a kubeconfig: by default the admin's token, and the authority that signed the server's certificate."""
        authority = base64.b64encode(self.ca.cert_pem.bytes()).decode()
        file = path or self.folder / f"config{next(self._configs)}"
        file.write_text(yaml.safe_dump({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "here", "cluster": cluster or {"server": self.url, "certificate-authority-data": authority}}
            ],
            "users": [{"name": "admin", "user": {"token": TOKEN} if user is None else user}],
            "contexts": [{"name": "main", "context": {"cluster": "here", "user": "admin", **(context or {})}}],
            "current-context": "main",
        }))  # fmt: skip
        file.chmod(0o600)
        return file

    def certificate_config(self) -> Path:
        """A kubeconfig with a client certificate instead of a token."""
        certificate = b"".join(pem.bytes() for pem in self.client.cert_chain_pems)
        key = self.client.private_key_pem.bytes()
        data = {"client-certificate-data": certificate, "client-key-data": key}
        return self.config({name: base64.b64encode(value).decode() for name, value in data.items()})

    def insecure_config(self) -> Path:
        """A kubeconfig that accepts any certificate."""
        return self.config(cluster={"server": self.url, "insecure-skip-tls-verify": True})

    def dead_config(self) -> Path:
        """A kubeconfig for a closed port."""
        return self.config(cluster={"server": f"https://127.0.0.1:{free_port()}", "insecure-skip-tls-verify": True})

    def plugin_config(self) -> Path:
        """A kubeconfig that gets its token from a program (exec plugin)."""
        result = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": TOKEN}}
        plugin = {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "/bin/echo",
            "args": [json.dumps(result)],
            "interactiveMode": "Never",
        }
        return self.config({"exec": plugin})
