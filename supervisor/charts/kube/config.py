"""Which cluster there is, if any: the kubeconfig that counts now, and what it says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import yaml
from attrs import field, frozen

from models.charts import kubeconfig
from models.charts.kubeconfig import Access, BadKubeconfig, Blob
from models.errors import Upstream

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MOST = 8 * 1024**2

Stamp = tuple[tuple[int, int, int], ...]


@frozen
class Place:
    """A cluster that there is: by its kubeconfig files, or (none) by the account that a cluster gives its Pods."""

    files: tuple[Path, ...]
    context: str | None = None
    variables: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which helm finds the same cluster and the same releases."""
        return dict(self.variables)

    @property
    def arguments(self) -> list[str]:
        """The options by which helm finds the same cluster."""
        return [f"--kube-context={self.context}"] if self.context else []


class Kube:
    """Finds the cluster, in this order: `svc.kube.kubeconfig`, KUBECONFIG, ~/.kube/config, the in-cluster account.

    One that is named and is not there means that there is no cluster (yet): never another one in its stead.
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
        """Where helm keeps releases; "" is what it does by itself: in Secrets."""
        driver = self._environ.get("HELM_DRIVER", "").lower()
        return "" if driver in ("secret", "secrets") else driver

    def place(self, file: Path | None = None, context: str | None = None) -> Place | None:
        """The cluster that there is now, or `None`. `file` and `context` are another's choice for this request."""
        if file is not None:
            return self._place((file,), context) if file.is_file() else None
        context = context or self._context
        if (named := self._named()) is not None:
            there = tuple(one for one in named if one.is_file())
            return self._place(there, context) if there else None
        return self._place((), None) if self._in_cluster() else None

    def _place(self, files: tuple[Path, ...], context: str | None) -> Place:
        names = ["HELM_DRIVER", "HELM_DRIVER_SQL_CONNECTION_STRING"] if self.driver else []
        found = {"KUBECONFIG": os.pathsep.join(str(file.absolute()) for file in files)} if files else {}
        if not files:
            names += ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"]
        found |= {name: self._environ[name] for name in names if name in self._environ}
        return Place(files, context, tuple(found.items()))

    def _named(self) -> tuple[Path, ...] | None:
        if self._configured is not None:
            return (self._configured.expanduser(),)
        listed = [Path(one) for one in self._environ.get("KUBECONFIG", "").split(os.pathsep) if one]
        if listed:
            return tuple(listed)
        home = Path(self._environ.get("HOME") or "/") / ".kube" / "config"
        return (home,) if home.is_file() else None

    def _in_cluster(self) -> bool:
        return bool(self._environ.get("KUBERNETES_SERVICE_HOST")) and (self._account / "token").is_file()

    def access(self, place: Place) -> Access:
        """Reads the kubeconfig files. Raises `Upstream`, or `UnsupportedKubeconfig` where only helm can connect."""
        if not place.files:
            return Access(
                scheme="https",
                host=self._environ["KUBERNETES_SERVICE_HOST"],
                port=int(port) if (port := self._environ.get("KUBERNETES_SERVICE_PORT", "")).isdecimal() else 443,
                prefix="",
                authority=Blob(file=self._account / "ca.crt"),
                token=Blob(file=self._account / "token"),
            )
        try:
            access = kubeconfig.access(kubeconfig.merged([(file, _read(file)) for file in place.files]), place.context)
        except BadKubeconfig as bad:
            raise Upstream(f"the cluster cannot be reached: the kubeconfig cannot be used: {bad}") from None
        if self._has_proxy(access):
            raise kubeconfig.UnsupportedKubeconfig("the environment names a proxy for the cluster")
        return access

    def _has_proxy(self, access: Access) -> bool:
        """Whether a proxy of the environment is between us and the cluster; those of loopback are never asked."""
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
            document = yaml.safe_load(opened.read(_MOST))
    except OSError:
        raise BadKubeconfig("it cannot be read") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError):
        raise BadKubeconfig("it is not YAML") from None
    if not isinstance(document, dict | None):
        raise BadKubeconfig("it is not an object")
    return document or {}


def stamp(files: list[Path]) -> Stamp:
    """What changes when one of the files does."""
    return tuple(_stamp(file) for file in files)


def _stamp(file: Path) -> tuple[int, int, int]:
    try:
        about = file.stat()
    except OSError:
        return (0, 0, 0)
    return about.st_mtime_ns, about.st_size, about.st_ino
