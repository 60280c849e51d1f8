"""Repositories by their URLs, and links to the pages of their forge: a file at a commit and a line, a comparison."""

from __future__ import annotations

import re
from urllib.parse import quote, urlsplit

from attrs import frozen

_SCP = re.compile(r"[\w.+-]+@([\w.-]+):(?!//)(\S+)")
_LOGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#\s]*)@", re.IGNORECASE)
_FILES = {
    "github": "/blob/{commit}/{path}",
    "gitlab": "/-/blob/{commit}/{path}",
    "forgejo": "/src/commit/{commit}/{path}",
    "bitbucket": "/src/{commit}/{path}",
}
_COMPARISONS = {"gitlab": "/-/compare/{base}...{head}", "bitbucket": "/branches/compare/{head}%0D{base}"}
_COMPARISON = "/compare/{base}...{head}"
_HOSTS = {"github": "github", "gitlab": "gitlab", "bitbucket": "bitbucket"} | dict.fromkeys(
    ("codeberg", "gitea", "forgejo"), "forgejo"
)
_PROVIDERS = {"github": "github", "gitlab": "gitlab", "forgejo": "forgejo", "gitea": "forgejo"}
_COMMIT = re.compile(r"[0-9a-fA-F]{7,64}")
PORTS = {"http": 80, "https": 443}


@frozen
class Repository:
    """A repository on a forge. `port` is that of its pages; None where the URL does not name it (ssh)."""

    scheme: str
    host: str
    port: int | None
    path: str

    @property
    def address(self) -> str:
        """The URL of its page."""
        port = "" if self.port in (None, PORTS[self.scheme]) else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}/{quote(self.path)}"


def without_login(url: str) -> str:
    """The URL without the user and password in it: clone URLs of CI systems have tokens. ssh keeps the user."""

    def replaced(match: re.Match[str]) -> str:
        scheme, login = match.groups()
        user = login.partition(":")[0] + "@" if scheme.lower() in ("ssh", "git+ssh") else ""
        return f"{scheme}://{user}"

    return _LOGIN.sub(replaced, url)


def repository(url: str | None) -> Repository | None:
    """The repository of an http, https, ssh or `user@host:path` URL; None for anything else."""
    text = (url or "").strip()
    scheme, port = "https", None
    if "://" not in text:
        match = _SCP.fullmatch(text)
        if match is None:
            return None
        host, path = match.groups()
    else:
        try:
            parts = urlsplit(text)
            host, path = parts.hostname or "", parts.path
            if parts.scheme in PORTS:
                scheme, port = parts.scheme, parts.port or PORTS[parts.scheme]
        except ValueError:
            return None
        if parts.scheme not in (*PORTS, "ssh", "git") or not host:
            return None
    path = path.strip("/").removesuffix(".git").rstrip("/")
    host = f"[{host}]" if ":" in host else host
    is_one = "/" in path and ".." not in path.split("/")
    return Repository(scheme, host.lower(), port, path) if is_one else None


def forge_of(host: str, ci_provider: str | None = None) -> str | None:
    """The kind of forge at a host, by its name, else by the CI system that belongs to a forge."""
    for name, kind in _HOSTS.items():
        if name in host:
            return kind
    return _PROVIDERS.get(ci_provider or "")


def is_commit(text: str | None) -> bool:
    """Whether this is the hash of a commit, or begins one."""
    return bool(text and _COMMIT.fullmatch(text))


def file_url(repo_url: str | None, commit: str | None, path: str, ci_provider: str | None = None) -> str | None:
    """The page of a file on its forge; None where the forge or the commit is not known."""
    found = repository(repo_url)
    if found is None or not commit or not is_commit(commit) or path.startswith("/") or ".." in path.split("/"):
        return None
    kind = forge_of(found.host, ci_provider)
    return kind and found.address + _FILES[kind].format(commit=commit, path=quote(path))


def line_url(url: str, line: int) -> str:
    """The place of a line on a page that `file_url` returned."""
    return f"{url}#lines-{line}" if "bitbucket" in url.split("/")[2] else f"{url}#L{line}"


def compare_url(repo_url: str | None, base: str | None, head: str | None) -> str | None:
    """The page of the forge that compares two commits; None where the repository or a commit is not known."""
    found = repository(repo_url)
    if found is None or not base or not head or base == head:
        return None
    form = _COMPARISONS.get(forge_of(found.host) or "", _COMPARISON)
    return found.address + form.format(base=quote(base, safe=""), head=quote(head, safe=""))
