"""The forge of a project: the repository that an OWNER confirmed, and the request for a file of it.

A host and a port are compared whole, and requests go to the configured `api-url` only: what an upload names never
decides where a token goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from attrs import field, frozen

from models import globs
from models.accounts.accounts import User
from models.accounts.permissions import role_in
from models.config.settings import ForgeSettings, SourceSettings
from models.errors import Conflict
from models.tracker import visibility
from models.tracker.files import sources
from models.tracker.files.sources import CoveredFile
from models.tracker.forges.forge_links import PORTS, ForgePages, ForgeRepository, is_commit, pages_of, repository
from models.tracker.project_secrets import ProjectSecrets
from models.tracker.tables import Project, Run, reports

State = Literal["OK", "UNCONFIRMED", "UNKNOWN_HOST", "NO_TOKEN", "REFUSED"]
Forges = Mapping[str, ForgeSettings]

TOKEN = "forgeToken"  # noqa: S105 (its name)
GITHUB_RAW = "application/vnd.github.raw+json"
MAX_OFFERED = 20
_MAX_PATH_CHARACTERS = 1000
_HASH_CHARACTERS = (40, 64)
"""Of SHA-1 and SHA-256."""

_API_PATHS = {"github": "/api/v3", "gitlab": "/api/v4", "forgejo": "/api/v1"}
_FILES = {
    "github": "{api}/repos/{repository}/contents/{path}?ref={commit}",
    "gitlab": "{api}/projects/{project}/repository/files/{file}/raw?ref={commit}",
    "forgejo": "{api}/repos/{repository}/raw/{path}?ref={commit}",
}
_OFFERED = """
    SELECT DISTINCT repo_url FROM (SELECT repo_url FROM run WHERE project_id = ?
    ORDER BY created_at DESC, id DESC LIMIT 500) AS newest WHERE repo_url IS NOT NULL ORDER BY repo_url LIMIT ?"""


@frozen
class ForgeLink:
    """The confirmed repository of a project and its forge; `reason` is what is missing."""

    state: State
    reason: str | None
    name: str | None = None
    forge: ForgeSettings | None = None
    path: str | None = None
    """Of the repository, without that of the forge's URL."""


@frozen
class FileRequest:
    """A file to read from a forge, with the project whose token is used."""

    project_id: int
    has_own_token: bool
    name: str
    forge: ForgeSettings
    url: str
    path: str
    commit: str
    repository: str
    headers: Mapping[str, str] = field(factory=dict)
    token_header: str = "Authorization"  # noqa: S105 (a header)
    auth_scheme: str = "Bearer"


def api_url(forge: ForgeSettings) -> str:
    if forge.api_url is not None:
        return forge.api_url
    is_public = forge.type == "github" and urlsplit(forge.url).hostname == "github.com"
    return "https://api.github.com" if is_public else forge.url + _API_PATHS[forge.type]


def find(forges: Forges, found: ForgeRepository) -> tuple[str, ForgeSettings, str] | None:
    """The name of the first forge that serves a repository, the forge, and the path of the repository there."""
    for name, forge in forges.items():
        path = _path_at(forge, found)
        if path is not None and any(globs.matches(pattern.lower(), path.lower()) for pattern in forge.repositories):
            return name, forge, path
    return None


def _path_at(forge: ForgeSettings, found: ForgeRepository) -> str | None:
    """The path of a repository at a forge; None if the forge has another host or port."""
    parts = urlsplit(forge.url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = parts.port or PORTS[parts.scheme]
    if found.host != host or found.port not in (None, port):
        return None
    path, folder = found.path, parts.path.strip("/")
    if folder and path.startswith(f"{folder}/"):
        path = path.removeprefix(f"{folder}/")
    elif folder and found.port is not None:
        return None
    is_valid = path.isprintable() and all(part not in ("", ".", "..") for part in path.split("/"))
    return path if is_valid and (path.count("/") == 1 or (forge.type == "gitlab" and "/" in path)) else None


def pages(project: Project, repo_url: str | None, forges: Forges, ci_provider: str | None) -> ForgePages | None:
    """The pages of a project's repository: the confirmed one at its forge, else that of an upload."""
    confirmed = repository(project.forge_repo)
    if confirmed and (found := find(forges, confirmed)):
        _, forge, path = found
        return ForgePages(forge.type, f"{forge.url.rstrip('/')}/{quote(path)}")
    return pages_of(project.forge_repo or repo_url or project.repo_url, ci_provider)


def origin_of(url: str) -> str:
    """Scheme, host and port of a URL: what a token is bound to."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or PORTS[parts.scheme]}"


def _bound_to(forge_repo: str | None, forges: Forges) -> str | None:
    """The origin of the forge that has a repository, else of the repository itself."""
    confirmed = repository(forge_repo)
    if confirmed is None:
        return None
    found = find(forges, confirmed)
    return origin_of(found[1].url if found else confirmed.address)


def _fits(bound: str | None, origin: str | None) -> bool:
    """Whether a token that is bound to an origin, or to a host by an earlier version, is for another one."""
    if bound is None or origin is None or "://" in bound:
        return bound in (None, origin)
    return origin in (f"https://{bound}:443", f"http://{bound}:80")


def link(project: Project, forges: Forges) -> ForgeLink:
    """The forge of a project. Whether the forge accepts the token is not known here."""
    if not project.forge_repo:
        return ForgeLink("UNCONFIRMED", "no repository is confirmed: an OWNER does so in the settings of the project")
    confirmed = repository(project.forge_repo)
    found = confirmed and find(forges, confirmed)
    if not found:
        return ForgeLink("UNKNOWN_HOST", f"no forge of tracker.forges has the repository {project.forge_repo}")
    name, forge, path = found
    if project.forge_token_at is None:
        if forge.token is None and forge.token_file is None and forge.app is None:
            return ForgeLink("NO_TOKEN", f"neither the project nor the forge {name} has a token", *found)
        if not project.forge_repo_by_admin:
            reason = f"the token of the forge {name} is for repositories that an ADMIN confirmed: set the project's own"
            return ForgeLink("NO_TOKEN", reason, *found)
    elif not _fits(project.forge_token_host, origin_of(forge.url)):
        reason = f"the token of the project was set for {project.forge_token_host}, not for {origin_of(forge.url)}"
        return ForgeLink("NO_TOKEN", reason, *found)
    return ForgeLink("OK", None, name, forge, path)


@frozen
class TokenChange:
    """A new token of a project; None removes it."""

    value: str | None = field(repr=False)


def change(
    project: Project,
    columns: Mapping[str, Any],
    token: TokenChange | None,
    secrets: ProjectSecrets,
    forges: Forges,
    now: int,
    is_admin: bool = False,
) -> None:
    """Stores settings of a project, and its token, in the caller's transaction. Raises `Conflict`.

    A token stays with the scheme, host and port of the forge that it was set for. The forge's own token may read more
    than the owner of a project, so it serves a repository only if an ADMIN confirms it (`is_admin`).
    """
    changed = dict(columns)
    if changed.get("forge_repo", project.forge_repo) != project.forge_repo or (is_admin and "forge_repo" in changed):
        changed["forge_repo_by_admin"] = int(is_admin)
    host = _bound_to(changed.get("forge_repo", project.forge_repo), forges)
    if token is not None:
        is_set = token.value is not None
        changed |= {"forge_token_at": now if is_set else None, "forge_token_host": host if is_set else None}
        secrets.set(project.id, TOKEN, token.value, now)
    elif project.forge_token_at is not None and host is not None:
        if not _fits(project.forge_token_host, host):
            raise Conflict(
                f"forgeToken was set for {project.forge_token_host}: set it again, or send null to remove it"
            )
        changed["forge_token_host"] = host
    if changed:
        Project.update(**changed).where(Project.id == project.id).execute()


def offered(project: Project) -> list[str]:
    """The repositories that the newest uploads of a project name."""
    return [row[0] for row in reports.execute_sql(_OFFERED, (project.id, MAX_OFFERED)) if repository(row[0])]


def shows_to(user: User | None, run_id: str, settings: SourceSettings) -> bool:
    """Whether the files of a run are read from the forge for `user`, who is a member. Raises `Invalid`, `NotFound`."""
    if user is None:
        return False
    _, project = visibility.run(user, run_id)
    return sources.mode_of(project, settings) == "forge" and role_in(user, project) is not None


def request(run: Run, project: Project, file: CoveredFile, forges: Forges) -> FileRequest | str:
    """The request for a covered file, or why it cannot be made."""
    linked = link(project, forges)
    if linked.forge is None or linked.name is None or linked.path is None or linked.reason is not None:
        return linked.reason or ""
    if run.repo_url is not None and not names_same(run.repo_url, linked, forges):
        return "the run names another repository than the confirmed one"
    if not is_commit(run.commit_sha):
        return "the run has no commit"
    path = file.repository_path.replace("\\", "/")
    if not _is_file(path):
        return f"the place of {path} in the repository is not known: upload the part paths"
    forge, commit = linked.forge, str(run.commit_sha).lower()
    if forge.type == "forgejo" and len(commit) not in _HASH_CHARACTERS:
        return f"the commit {commit} is abbreviated: {linked.name} would answer with the default branch"
    url = _FILES[forge.type].format(
        api=api_url(forge),
        repository=quote(linked.path),
        project=quote(linked.path, safe=""),
        path=quote(path),
        file=quote(path, safe=""),
        commit=commit,
    )
    facts = (project.id, project.forge_token_at is not None, linked.name, forge, url, path, commit, linked.path)
    if forge.type == "gitlab":
        return FileRequest(*facts, token_header="PRIVATE-TOKEN", auth_scheme="")  # noqa: S106 (a header's name)
    if forge.type == "forgejo":
        return FileRequest(*facts, auth_scheme="token")
    return FileRequest(*facts, headers={"Accept": GITHUB_RAW, "X-GitHub-Api-Version": "2022-11-28"})


def names_same(repo_url: str, linked: ForgeLink, forges: Forges) -> bool:
    """Whether an upload's `repoUrl` is the confirmed repository."""
    named = repository(repo_url)
    found = named and find(forges, named)
    return bool(found and (found[0], found[2].casefold()) == (linked.name, (linked.path or "").casefold()))


def _is_file(path: str) -> bool:
    parts = path.split("/")
    return len(path) <= _MAX_PATH_CHARACTERS and path.isprintable() and not {"", ".", ".."} & set(parts)
