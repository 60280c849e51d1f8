"""What `helm registry login` has written down: logins of registries, in the form that docker gave such files."""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Any

_DOCKER_HUB = "index.docker.io"
_ALSO_DOCKER_HUB = ("docker.io", "registry-1.docker.io")
_PLACE = re.compile(r"(?:https?://)?(?P<place>[^/\s]+)(?:/.*)?")

Logins = dict[str, tuple[str, str]]
"""Name and password by host, or host and port, in small letters."""


def read(content: bytes) -> Logins:
    """The logins of a file; those that another program keeps are none. Raises `ValueError` where it is no such file."""
    try:
        document = json.loads(content)
    except RecursionError:
        raise ValueError("it is no JSON") from None
    auths = document.get("auths") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(auths, dict | None):
        raise ValueError("it has no auths")
    found: Logins = {}
    for name, entry in (auths or {}).items():
        place, login = _PLACE.fullmatch(name), _login(entry)
        if place is not None and login is not None:
            found[place["place"].lower()] = login
    if _DOCKER_HUB in found:
        found = dict.fromkeys(_ALSO_DOCKER_HUB, found[_DOCKER_HUB]) | found
    return found


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


def is_kin(registry: str, realm: str) -> bool:
    """Whether a host may be told a registry's login because it gives tokens for it: the same one, or one of its domain.

    `auth.docker.io` for `registry-1.docker.io`, `gitlab.com` for `registry.gitlab.com`; never a whole top-level domain,
    and never an address but its own.
    """
    domain = registry.partition(".")[2]
    is_name = "." in domain and not domain.replace(".", "").isdigit()
    return realm == registry or (is_name and (realm == domain or realm.endswith(f".{domain}")))
