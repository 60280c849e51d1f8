"""Repositories by their URLs, and links to the pages of their forge: a file at a commit and a line, a comparison."""

from __future__ import annotations

import re
from urllib.parse import quote, urlsplit

from attrs import evolve, frozen

_SCP = re.compile(r"[\w.+-]+@([\w.-]+):(?!//)(\S+)")
_LOGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#\s]*)@", re.IGNORECASE)
_HOSTS = {"github": "github", "gitlab": "gitlab", "bitbucket": "bitbucket", "dev.azure.com": "azure",
          "visualstudio.com": "azure"} | dict.fromkeys(("codeberg", "gitea", "forgejo"), "forgejo")  # fmt: skip
_PUBLIC_HOSTS = {
    "github.com": "github", "gitlab.com": "gitlab", "bitbucket.org": "bitbucket", "dev.azure.com": "azure",
    "codeberg.org": "forgejo", "gitea.com": "forgejo",
}  # fmt: skip
_PROVIDERS = {
    "github": "github", "gitlab": "gitlab", "forgejo": "forgejo", "gitea": "forgejo", "bitbucket": "bitbucket",
}  # fmt: skip
"""CI systems that belong to a forge. Azure Pipelines builds those of others too; a repository of Azure has `/_git/`."""
_AZURE_SSH = {"ssh.dev.azure.com": "dev.azure.com", "vs-ssh.visualstudio.com": "dev.azure.com"}
_COMMIT = re.compile(r"[0-9a-fA-F]{7,64}")
PORTS = {"http": 80, "https": 443}


@frozen
class ForgeRepository:
    """A repository on a forge. `port` is that of its pages; None where the URL does not name it (ssh)."""

    scheme: str
    host: str
    port: int | None
    path: str

    @property
    def address(self) -> str:
        """The URL of its page."""
        port = "" if self.port in (None, PORTS[self.scheme]) else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}/{quote(self.path, safe='/%~')}"


def without_login(url: str) -> str:
    """The URL without the user and password in it: clone URLs of CI systems have tokens. ssh keeps the user."""

    def replaced(match: re.Match[str]) -> str:
        scheme, login = match.groups()
        user = login.partition(":")[0] + "@" if scheme.lower() in ("ssh", "git+ssh") else ""
        return f"{scheme}://{user}"

    return _LOGIN.sub(replaced, url)


def repository(url: str | None) -> ForgeRepository | None:
    """The repository of an http, https, ssh or `user@host:path` URL; None for anything else."""
    text = (url or "").strip()
    scheme, port = "https", None
    if "://" not in text:
        match = _SCP.fullmatch(text)
        if match is None:
            return None
        host, path = match.groups()
        if host.lower() in _AZURE_SSH and path.startswith("v3/") and path.count("/") == 3:
            _, owner, project, name = path.split("/")
            host, path = _AZURE_SSH[host.lower()], f"{owner}/{project}/_git/{name}"
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
    return ForgeRepository(scheme, host.lower(), port, path) if is_one else None


def forge_of(host: str, ci_provider: str | None = None) -> str | None:
    """The kind of forge at a host: a public one, else by the CI system that belongs to a forge, else by its name."""
    known = _PUBLIC_HOSTS.get(host) or _PROVIDERS.get(ci_provider or "")
    return known or next((kind for name, kind in _HOSTS.items() if name in host), None)


def is_commit(text: str | None) -> bool:
    """Whether this is the hash of a commit, or begins one."""
    return bool(text and _COMMIT.fullmatch(text))


@frozen
class _Paths:
    """What follows the address of a repository on a kind of forge."""

    commit: str
    pull: str
    comparison: str
    file: str


_COMPARISON = "/compare/{base}...{head}"
_KINDS = {
    "github": _Paths("/commit/{commit}", "/pull/{number}", _COMPARISON, "/blob/{commit}/{path}"),
    "gitlab": _Paths(
        "/-/commit/{commit}", "/-/merge_requests/{number}", "/-/compare/{base}...{head}", "/-/blob/{commit}/{path}"
    ),
    "forgejo": _Paths("/commit/{commit}", "/pulls/{number}", _COMPARISON, "/src/commit/{commit}/{path}"),
    "bitbucket": _Paths(
        "/commits/{commit}", "/pull-requests/{number}", "/branches/compare/{head}%0D{base}", "/src/{commit}/{path}"
    ),
    "bitbucket-server": _Paths(
        "/commits/{commit}",
        "/pull-requests/{number}/overview",
        "/compare/commits?sourceBranch={head}&targetBranch={base}",
        "/browse/{path}?at={commit}",
    ),
    "azure": _Paths(
        "/commit/{commit}",
        "/pullrequest/{number}",
        "/branchCompare?baseVersion=GC{base}&targetVersion=GC{head}",
        "?path=/{path}&version=GC{commit}",
    ),
}
"""Bitbucket on an own host is Bitbucket Data Center, which has other paths."""


@frozen
class ForgePages:
    """The pages of a repository: its address, and the kind of its forge, None where that is not known."""

    kind: str | None
    address: str

    def commit(self, commit: str | None) -> str | None:
        if self.kind is None or not commit or not is_commit(commit):
            return None
        return self.address + _KINDS[self.kind].commit.format(commit=commit)

    def pull(self, number: int | None) -> str | None:
        """The page of a pull or merge request."""
        if self.kind is None or number is None:
            return None
        return self.address + _KINDS[self.kind].pull.format(number=number)

    def comparison(self, base: str | None, head: str | None) -> str | None:
        if not base or not head or base == head:
            return None
        form = _KINDS[self.kind].comparison if self.kind else _COMPARISON
        return self.address + form.format(base=quote(base, safe=""), head=quote(head, safe=""))

    def file(self, commit: str | None, path: str) -> str | None:
        """The page of a file at a commit."""
        if self.kind is None or not commit or not is_commit(commit) or path.startswith("/") or ".." in path.split("/"):
            return None
        return self.address + _KINDS[self.kind].file.format(commit=commit, path=quote(path))


def pages_of(repo_url: str | None, ci_provider: str | None = None) -> ForgePages | None:
    """The pages of a repository by its URL; None where the URL is not one of a repository."""
    found = repository(repo_url)
    if found is None:
        return None
    kind = "azure" if "/_git/" in f"/{found.path}" else forge_of(found.host, ci_provider)
    if kind == "bitbucket" and found.host != "bitbucket.org":
        parts = [part for part in found.path.split("/") if part]
        if parts[-3:-2] == ["scm"]:
            del parts[-3]
        *folders, owner, name = parts
        place = f"users/{owner[1:]}" if owner.startswith("~") else f"projects/{owner}"
        path = "/".join([*folders, place, "repos", name])
        return ForgePages("bitbucket-server", evolve(found, path=path).address)
    return ForgePages(kind, found.address)


def file_url(repo_url: str | None, commit: str | None, path: str, ci_provider: str | None = None) -> str | None:
    """The page of a file on its forge; None where the forge or the commit is not known."""
    pages = pages_of(repo_url, ci_provider)
    return pages.file(commit, path) if pages else None


def line_url(url: str, line: int) -> str:
    """The place of a line on a page of `ForgePages.file`."""
    if "&version=GC" in url:
        return f"{url}&line={line}&lineEnd={line}&lineStartColumn=1&lineEndColumn=1000"
    if "?at=" in url:
        return f"{url}#{line}"
    return f"{url}#lines-{line}" if url.split("/")[2] == "bitbucket.org" else f"{url}#L{line}"


def compare_url(repo_url: str | None, base: str | None, head: str | None) -> str | None:
    """The page of the forge that compares two commits; None where the repository or a commit is not known."""
    pages = pages_of(repo_url)
    return pages.comparison(base, head) if pages else None
