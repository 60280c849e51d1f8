"""Finds the kubeconfig that is in effect, and reads the access to its cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import yaml
from attrs import field, frozen

from models.charts import kubeconfig, yaml_values
from models.charts.kubeconfig import Access, BadKubeconfig, DataOrFile
from models.errors import Invalid, Upstream

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MAX_FILE_BYTES = 8 * 1024**2

Stamp = tuple[tuple[int, int, int], ...]


@frozen
class ConfiguredCluster:
    """A configured cluster: by its kubeconfig files, or without files by the in-cluster service account."""

    files: tuple[Path, ...]
    context: str | None = None
    variables: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead helm to the same cluster and releases."""
        return dict(self.variables)

    @property
    def arguments(self) -> list[str]:
        """The options that lead helm to the same cluster."""
        return [f"--kube-context={self.context}"] if self.context else []


class Kube:
    """Finds the cluster, in this order: `svc.kube.kubeconfig`, KUBECONFIG, ~/.kube/config, the in-cluster account.

    A named file that does not exist means that there is no cluster (yet); no other one is used instead.
    """

    def __init__(
        self,
        configured: Path | None,
        context: str | None,
        environ: Mapping[str, str],
        account: Path = _ACCOUNT,
    ) -> None:
        self._configured = configured
        self._context = context
        self._environ = environ
        self._account = account

    @property
    def driver(self) -> str:
        """Where helm stores releases; empty for its default, Secrets."""
        driver = self._environ.get("HELM_DRIVER", "").lower()
        return "" if driver in ("secret", "secrets") else driver

    def place(self, file: Path | None = None, context: str | None = None) -> ConfiguredCluster | None:
        """The cluster in effect now, or `None`. `file` and `context` are a host application's choice."""
        if file is not None:
            return self._place((file,), context) if file.is_file() else None
        context = context or self._context
        if (named := self._named()) is not None:
            existing = tuple(path for path in named if path.is_file())
            return self._place(existing, context) if existing else None
        return self._place((), None) if self._in_cluster() else None

    def _place(self, files: tuple[Path, ...], context: str | None) -> ConfiguredCluster:
        names = ["HELM_DRIVER", "HELM_DRIVER_SQL_CONNECTION_STRING"] if self.driver else []
        found = {"KUBECONFIG": os.pathsep.join(str(file.absolute()) for file in files)} if files else {}
        if not files:
            names += ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"]
        found |= {name: self._environ[name] for name in names if name in self._environ}
        return ConfiguredCluster(files, context, tuple(found.items()))

    def _named(self) -> tuple[Path, ...] | None:
        if self._configured is not None:
            return (self._configured.expanduser(),)
        listed = [Path(path) for path in self._environ.get("KUBECONFIG", "").split(os.pathsep) if path]
        if listed:
            return tuple(listed)
        home = Path(self._environ.get("HOME") or "/") / ".kube" / "config"
        return (home,) if home.is_file() else None

    def _in_cluster(self) -> bool:
        return bool(self._environ.get("KUBERNETES_SERVICE_HOST")) and (self._account / "token").is_file()

    def access(self, place: ConfiguredCluster) -> Access:
        """Reads the kubeconfig files. Raises `Upstream`, or `UnsupportedKubeconfig` if only helm can connect."""
        if not place.files:
            return Access(
                scheme="https",
                host=self._environ["KUBERNETES_SERVICE_HOST"],
                port=int(port) if (port := self._environ.get("KUBERNETES_SERVICE_PORT", "")).isdecimal() else 443,
                prefix="",
                authority=DataOrFile(file=self._account / "ca.crt"),
                token=DataOrFile(file=self._account / "token"),
            )
        try:
            access = kubeconfig.access(kubeconfig.merged([(file, _read(file)) for file in place.files]), place.context)
        except BadKubeconfig as bad:
            raise Upstream(f"the cluster cannot be reached: the kubeconfig cannot be used: {bad}") from None
        if self._has_proxy(access):
            raise kubeconfig.UnsupportedKubeconfig("the environment names a proxy for the cluster")
        return access

    def contexts(self, place: ConfiguredCluster) -> tuple[list[tuple[str, str]], str]:
        """Name and namespace of each context of the kubeconfig, and the one in effect. Raises `Upstream`."""
        try:
            whole = kubeconfig.merged([(file, _read(file)) for file in place.files])
            return kubeconfig.contexts(whole), place.context or whole["current-context"]
        except BadKubeconfig as bad:
            raise Upstream(f"the kubeconfig cannot be used: {bad}") from None

    def _has_proxy(self, access: Access) -> bool:
        """Whether the environment names a proxy for the cluster; loopback is never proxied."""
        name = f"{access.scheme}_proxy"
        proxy = self._environ.get(name) or self._environ.get(name.upper())
        if not proxy or access.host == "localhost" or access.host.startswith("127.") or access.host == "::1":
            return False
        direct = (self._environ.get("no_proxy") or self._environ.get("NO_PROXY") or "").split(",")
        return not any(
            one == "*" or access.host == one or (one and access.host.endswith(f".{one.lstrip('.')}"))
            for one in map(str.strip, direct)
        )


def _read(file: Path) -> kubeconfig.Document:
    try:
        with file.open("rb") as opened:
            content = opened.read(_MAX_FILE_BYTES)
        yaml_values.check(content, yaml.SafeLoader, "the file")
        document = yaml.safe_load(content)
    except OSError:
        raise BadKubeconfig("it cannot be read") from None
    except Invalid as problem:
        raise BadKubeconfig(problem.message) from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError):
        raise BadKubeconfig("it is not YAML") from None
    if not isinstance(document, dict | None):
        raise BadKubeconfig("it is not an object")
    return document or {}


def stamp(files: list[Path]) -> Stamp:
    """Changes when one of the files changes."""
    return tuple(_stamp(file) for file in files)


def _stamp(file: Path) -> tuple[int, int, int]:
    try:
        status = file.stat()
    except OSError:
        return (0, 0, 0)
    return status.st_mtime_ns, status.st_size, status.st_ino
