"""Links to a file at a commit and a line, on the forge that an upload's `repoUrl` names."""

from __future__ import annotations

import re
from urllib.parse import quote, urlsplit

_SCP = re.compile(r"(?:[\w.+-]+@)([\w.-]+):(?!//)(.+)")
_FORMS = {
    "github": "/blob/{commit}/{path}",
    "gitlab": "/-/blob/{commit}/{path}",
    "forgejo": "/src/commit/{commit}/{path}",
    "bitbucket": "/src/{commit}/{path}",
}
_HOSTS = {"github": "github", "gitlab": "gitlab", "bitbucket": "bitbucket"} | dict.fromkeys(
    ("codeberg", "gitea", "forgejo"), "forgejo"
)
_COMMIT = re.compile(r"[0-9a-fA-F]{7,64}")


def repository(url: str | None) -> tuple[str, str] | None:
    """The host (with a port of https) and the path of a repository, from an https, ssh or `user@host:path` URL."""
    text = (url or "").strip()
    if "://" not in text:
        match = _SCP.fullmatch(text)
        if match is None:
            return None
        host, path = match.groups()
    else:
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            return None
        if parts.scheme not in ("http", "https", "ssh", "git") or not parts.hostname:
            return None
        host, path = parts.hostname, parts.path
        if port is not None and parts.scheme in ("http", "https") and port != 443:
            host = f"{host}:{port}"
    path = path.strip("/").removesuffix(".git").rstrip("/")
    return (host.lower(), path) if path.count("/") >= 1 and ".." not in path.split("/") else None


def forge_of(host: str, ci_provider: str | None = None) -> str | None:
    """The kind of forge at a host, by its name, else by the CI system that belongs to a forge."""
    for name, kind in _HOSTS.items():
        if name in host:
            return kind
    return ci_provider if ci_provider in ("github", "gitlab") else None


def file_url(repo_url: str | None, commit: str | None, path: str, ci_provider: str | None = None) -> str | None:
    """The page of a file on its forge; None where the forge or the commit is not known."""
    found = repository(repo_url)
    if found is None or not commit or not _COMMIT.fullmatch(commit) or path.startswith("/") or ".." in path.split("/"):
        return None
    host, repo = found
    kind = forge_of(host, ci_provider)
    if kind is None:
        return None
    scheme = "http" if (repo_url or "").strip().lower().startswith("http://") else "https"
    return f"{scheme}://{host}/{quote(repo)}{_FORMS[kind].format(commit=commit, path=quote(path))}"


def line_url(url: str, line: int) -> str:
    """The place of a line on a page that `file_url` returned."""
    return f"{url}#lines-{line}" if "bitbucket" in url.split("/")[2] else f"{url}#L{line}"
