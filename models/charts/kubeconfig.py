"""Kubeconfigs: files merged as kubectl merges them, and how a context's cluster is reached."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from attrs import field, frozen

Document = Mapping[str, Any]

_HELM_ONLY_CREDENTIALS = ("exec", "auth-provider")


class BadKubeconfig(ValueError):
    """The kubeconfig cannot be used. The message names no file and contains no value."""


class UnsupportedKubeconfig(Exception):
    """Only helm can use this kubeconfig: it names a credential plugin or a proxy."""


@frozen
class DataOrFile:
    """Data written in the kubeconfig itself, or in a file that it names."""

    data: bytes | None = field(default=None, repr=False)
    file: Path | None = None

    def __bool__(self) -> bool:
        return self.data is not None or self.file is not None


@frozen
class Access:
    """The address and credentials of a cluster."""

    scheme: str
    host: str
    port: int
    prefix: str
    """The path before every API path; usually empty."""
    authority: DataOrFile = DataOrFile()
    verify: bool = True
    server_name: str | None = None
    """The name in the server's certificate if it differs from the host."""
    certificate: DataOrFile = DataOrFile()
    key: DataOrFile = DataOrFile()
    token: DataOrFile = DataOrFile()
    basic: tuple[str, str] | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = ()
    """Impersonation headers."""

    @property
    def files(self) -> list[Path]:
        """The files it depends on; a change of one changes the access."""
        return [blob.file for blob in (self.authority, self.certificate, self.key, self.token) if blob.file]


def merged(documents: Sequence[tuple[Path, Document]]) -> dict[str, Any]:
    """Merges kubeconfigs: the first file that sets a value wins. Relative paths are resolved against their own file."""
    whole: dict[str, Any] = {"clusters": {}, "users": {}, "contexts": {}, "current-context": ""}
    for file, document in documents:
        for kind, inner in (("clusters", "cluster"), ("users", "user"), ("contexts", "context")):
            for entry in _list(document, kind):
                if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                    raise BadKubeconfig(f"an entry of its {kind} has no name")
                whole[kind].setdefault(entry["name"], _with_absolute_paths(entry.get(inner), file.parent))
        whole["current-context"] = whole["current-context"] or _text(document, "current-context")
    return whole


_PATH_FIELDS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


def _with_absolute_paths(entry: Any, folder: Path) -> dict[str, Any]:
    if not isinstance(entry, dict):
        return {}
    return {
        name: str(folder / value) if name in _PATH_FIELDS and isinstance(value, str) and value else value
        for name, value in entry.items()
    }


def contexts(whole: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and namespace of each context, by name. Raises `BadKubeconfig`."""
    return sorted((name, _text(context, "namespace") or "default") for name, context in whole["contexts"].items())


def access(whole: Mapping[str, Any], context: str | None) -> Access:
    """How the cluster of a context (by default the current one) is reached.

    Raises `BadKubeconfig`, and `UnsupportedKubeconfig` if only helm can connect.
    """
    name = context or whole["current-context"]
    if name not in whole["contexts"]:
        raise BadKubeconfig("it has no context with that name" if name else "it names no current context")
    chosen = whole["contexts"][name]
    cluster, user = _text(chosen, "cluster"), _text(chosen, "user")
    if cluster not in whole["clusters"]:
        raise BadKubeconfig("its context names a cluster that it does not have")
    if user and user not in whole["users"]:
        raise BadKubeconfig("its context names a user that it does not have")
    return _access(whole["clusters"][cluster], whole["users"].get(user, {}))


def _access(cluster: Mapping[str, Any], user: Mapping[str, Any]) -> Access:
    if any(user.get(name) for name in _HELM_ONLY_CREDENTIALS) or cluster.get("proxy-url"):
        raise UnsupportedKubeconfig("the kubeconfig has a plugin or a proxy")
    scheme, host, port, prefix = address(_text(cluster, "server"))
    is_verified = cluster.get("insecure-skip-tls-verify") is not True
    token = DataOrFile(file=Path(_text(user, "tokenFile"))) if user.get("tokenFile") else DataOrFile()
    if not token and user.get("token"):
        token = DataOrFile(data=_text(user, "token").encode())
    return Access(
        scheme=scheme,
        host=host,
        port=port,
        prefix=prefix,
        authority=_blob(cluster, "certificate-authority") if is_verified else DataOrFile(),
        verify=is_verified,
        server_name=_text(cluster, "tls-server-name") or None,
        certificate=_blob(user, "client-certificate"),
        key=_blob(user, "client-key"),
        token=token,
        basic=(_text(user, "username"), _text(user, "password")) if user.get("username") else None,
        headers=_impersonation_headers(user),
    )


def address(server: str) -> tuple[str, str, int, str]:
    """Scheme, host, port and path prefix of a server's address. Raises `BadKubeconfig`."""
    try:
        parts = urlsplit(server if "://" in server else f"http://{server}")
        port = parts.port
    except ValueError:
        raise BadKubeconfig("the address of its cluster is not valid") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadKubeconfig("the address of its cluster is not valid")
    return parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80), parts.path.rstrip("/")


def _blob(of: Mapping[str, Any], name: str) -> DataOrFile:
    if of.get(f"{name}-data"):
        try:
            return DataOrFile(data=base64.b64decode("".join(_text(of, f"{name}-data").split()), validate=True))
        except (binascii.Error, ValueError):
            raise BadKubeconfig(f"its {name}-data is not base64") from None
    return DataOrFile(file=Path(_text(of, name))) if of.get(name) else DataOrFile()


def _impersonation_headers(user: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    if not user.get("as"):
        return ()
    headers = [("Impersonate-User", _text(user, "as"))]
    if user.get("as-uid"):
        headers.append(("Impersonate-Uid", _text(user, "as-uid")))
    headers += [("Impersonate-Group", str(group)) for group in _list(user, "as-groups")]
    extra = user.get("as-user-extra") or {}
    if not isinstance(extra, dict):
        raise BadKubeconfig("its as-user-extra is not an object")
    for name in extra:
        headers += [(f"Impersonate-Extra-{name}", str(value)) for value in _list(extra, name)]
    return tuple(headers)


def _list(of: Mapping[str, Any], name: str) -> list[Any]:
    value = of.get(name)
    if value is not None and not isinstance(value, list):
        raise BadKubeconfig(f"its {name} is not a list")
    return value or []


def _text(of: Mapping[str, Any], name: str) -> str:
    value = of.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadKubeconfig(f"its {name} is not text")
    return value
