"""Logins of registries, from the file in which `helm registry login` puts them for whoever runs this server."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from models.charts import registry_logins
from supervisor.charts.http.urls import Login, Url
from supervisor.charts.kube.config import Stamp, stamp

log = logging.getLogger("charts")

_MOST = 1024**2


class RegistryLogins:
    """Reads the file again where it has changed, so that a login counts at once."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.file = _file(environ)
        self._stamp: Stamp | None = None
        self._found: registry_logins.Logins = {}

    def of(self, registry: Url) -> Login | None:
        """The login of a registry, by its host and port."""
        now = stamp([self.file])
        if now != self._stamp:
            self._stamp, self._found = now, self._read()
        found = self._found.get(f"{registry.host}:{registry.port}") or self._found.get(registry.authority)
        return Login(*found) if found else None

    def _read(self) -> registry_logins.Logins:
        try:
            with self.file.open("rb") as file:
                return registry_logins.read(file.read(_MOST))
        except FileNotFoundError:
            return {}
        except OSError as error:
            log.warning("the logins of registries cannot be read: %s: %s", self.file, error.strerror)
        except ValueError:  # its words might show what is in it
            log.warning("the logins of registries cannot be read: %s is not what helm writes", self.file)
        return {}


def _file(environ: Mapping[str, str]) -> Path:
    """Where helm keeps them."""
    if named := environ.get("HELM_REGISTRY_CONFIG"):
        return Path(named)
    if helm := environ.get("HELM_CONFIG_HOME"):
        return Path(helm) / "registry" / "config.json"
    home = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME") or "/") / ".config")
    return Path(home) / "helm" / "registry" / "config.json"
