"""The logins of OCI registries: those given to this server, which it stores, and else those of its user, which
`helm registry login` has stored in a file of docker's format.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from models.charts.repositories.registries import StoredLogin
from supervisor.charts.kube.config import Stamp, stamp
from supervisor.http.tls import TlsCredentials, credentials_of
from supervisor.http.urls import OriginLogin, Url

log = logging.getLogger("charts")

_MAX_FILE_BYTES = 1024**2
_DOCKER_HUB = "index.docker.io"
_ALSO_DOCKER_HUB = ("docker.io", "registry-1.docker.io")
_HOST_OF_ENTRY = re.compile(r"(?:https?://)?(?P<place>[^/\s]+)(?:/.*)?")

Logins = dict[str, tuple[str, str]]
"""Username and password by lower-case host, or host and port."""


def read(content: bytes) -> Logins:
    """Parses the logins of a file, without those of credential helpers. Raises `ValueError` for any other file."""
    try:
        document = json.loads(content)
    except RecursionError:
        raise ValueError("it is not JSON") from None
    auths = document.get("auths") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(auths, dict | None):
        raise ValueError("it has no auths")
    logins: Logins = {}
    for name, entry in (auths or {}).items():
        host, login = _HOST_OF_ENTRY.fullmatch(name), _login(entry)
        if host is not None and login is not None:
            logins[host["place"].lower()] = login
    if _DOCKER_HUB in logins:
        logins = dict.fromkeys(_ALSO_DOCKER_HUB, logins[_DOCKER_HUB]) | logins
    return logins


def _login(entry: Any) -> tuple[str, str] | None:
    if not isinstance(entry, dict):
        return None
    name, password = entry.get("username"), entry.get("password")
    if isinstance(entry.get("auth"), str) and entry["auth"]:
        try:
            name, _, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            return None
    return (name, password) if isinstance(name, str) and name and isinstance(password, str) and password else None


def shares_domain(registry: str, realm: str) -> bool:
    """Whether a token realm may get a registry's login: the same host, or a host of the same domain.

    `auth.docker.io` for `registry-1.docker.io`, `gitlab.com` for `registry.gitlab.com`; never a top-level domain,
    and an IP address only for itself.
    """
    domain = registry.partition(".")[2]
    is_name = "." in domain and not domain.replace(".", "").isdigit()
    return realm == registry or (is_name and (realm == domain or realm.endswith(f".{domain}")))


class RegistryLogins:
    """Reads the file again after it has changed, so that a new login counts at once."""

    def __init__(
        self, environ: Mapping[str, str], find_stored: Callable[[str], StoredLogin | None] = lambda host: None
    ) -> None:
        """`find_stored` returns the login that this server stores for a host."""
        self.file = _file(environ)
        self._find_stored = find_stored
        self._known: tuple[Stamp | None, Logins] = None, {}

    async def of(self, registry: Url) -> OriginLogin | None:
        """The login for a registry, by host and port."""
        if stored := self._stored(registry):
            return OriginLogin(stored.username, stored.password)
        of_file = await self.of_file()
        login = next(filter(None, map(of_file.get, _hosts(registry))), None)
        return OriginLogin(*login) if login else None

    def credentials(self, registry: Url) -> TlsCredentials | None:
        """The certificates that this server stores for a registry."""
        stored = self._stored(registry)
        return None if stored is None else credentials_of(stored)

    def _stored(self, registry: Url) -> StoredLogin | None:
        return next(filter(None, map(self._find_stored, _hosts(registry))), None)

    async def of_file(self) -> Logins:
        """The logins of the file, which is read in a thread."""
        return await asyncio.to_thread(self._current)

    def _current(self) -> Logins:
        now = stamp([self.file])
        if now != self._known[0]:
            self._known = now, self._read()
        return self._known[1]

    def _read(self) -> Logins:
        try:
            with self.file.open("rb") as file:
                return read(file.read(_MAX_FILE_BYTES))
        except FileNotFoundError:
            return {}
        except OSError as error:
            log.warning("the logins of registries cannot be read: %s: %s", self.file, error.strerror)
        except ValueError:  # its message might quote the file
            log.warning("the logins of registries cannot be read: %s is not in helm's format", self.file)
        return {}


def _hosts(registry: Url) -> list[str]:
    """The names by which the login of a registry may be stored."""
    hosts = [f"{registry.host}:{registry.port}", registry.authority]
    return [*hosts, *_ALSO_DOCKER_HUB] if registry.authority in _ALSO_DOCKER_HUB else hosts


def _file(environ: Mapping[str, str]) -> Path:
    """The path of helm's login file."""
    if named := environ.get("HELM_REGISTRY_CONFIG"):
        return Path(named)
    if helm := environ.get("HELM_CONFIG_HOME"):
        return Path(helm) / "registry" / "config.json"
    home = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME") or "/") / ".config")
    return Path(home) / "helm" / "registry" / "config.json"
