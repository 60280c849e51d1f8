"""The requests that reports are sent with, for each kind of forge."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from attrs import field, frozen

from models.config.settings import ForgeSettings
from models.outbound.formats import HttpMessage
from models.tracker.forge_reports.commit_reports import CommitReport, CommitStatus
from models.tracker.forges.project_forge import api_url

GITHUB_HEADERS = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
_TOKENS = {
    "github": ("Authorization", "Bearer"),
    "gitlab": ("PRIVATE-TOKEN", ""),
    "forgejo": ("Authorization", "token"),
}
"""The header that has the token, and what stands before it."""
COMMENTS_A_PAGE = 50
_NOUNS = {"github": "comments", "gitlab": "notes", "forgejo": "comments"}
_GITLAB_STATES = {"failure": "failed"}


def status_request(found: CommitReport, status: CommitStatus, token: str, public_url: str | None) -> HttpMessage:
    """The request that sets the status of a commit. Without `public_url` it has no link."""
    forge, repository = found.forge, quote(found.link.path or "")
    commit = quote(found.commit.lower(), safe="")
    body: dict[str, Any] = {"state": status.state, "description": status.description}
    if public_url is not None:
        body["target_url"] = public_url + status.path
    if forge.type == "gitlab":
        body |= {"state": _GITLAB_STATES.get(status.state, status.state), "name": status.context}
        optional = {"coverage": status.coverage, "pipeline_id": status.pipeline}
        body |= {name: value for name, value in optional.items() if value is not None}
        return request(
            forge, token, "POST", f"/projects/{quote(found.link.path or '', safe='')}/statuses/{commit}", body
        )
    return request(forge, token, "POST", f"/repos/{repository}/statuses/{commit}", body | {"context": status.context})


def request(
    forge: ForgeSettings, token: str, method: str, path: str, body: Mapping[str, Any] | None = None
) -> HttpMessage:
    """A request to the API of a forge, with its token."""
    headers = dict(GITHUB_HEADERS) if forge.type == "github" else {"Accept": "application/json"}
    data = b""
    if body is not None:
        headers["Content-Type"] = "application/json"
        data = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    header, scheme = _TOKENS[forge.type]
    return HttpMessage(api_url(forge) + path, data, headers, token, header, scheme, method)


def installation(forge: ForgeSettings, jwt: str, repository: str) -> HttpMessage:
    """Which installation of a GitHub App has a repository. `jwt` is that of the App."""
    return request(forge, jwt, "GET", f"/repos/{quote(repository)}/installation")


def installation_token(forge: ForgeSettings, jwt: str, id: int, repository: str) -> HttpMessage:
    """A token of an installation, for one repository."""
    body = {"repositories": [repository.rpartition("/")[2]]}
    return request(forge, jwt, "POST", f"/app/installations/{id}/access_tokens", body)


def digest(message: HttpMessage) -> str:
    """Of the contents of a request: equal reports are not sent twice."""
    return hashlib.sha256(b"\n".join((message.url.encode(), message.body))).hexdigest()


@frozen
class CommentRequests:
    """The requests about the comments of pull and merge requests of a repository."""

    forge: ForgeSettings
    repository: str
    token: str = field(repr=False)

    @property
    def _is_gitlab(self) -> bool:
        return self.forge.type == "gitlab"

    @property
    def _base(self) -> str:
        if self._is_gitlab:
            return f"/projects/{quote(self.repository, safe='')}"
        return f"/repos/{quote(self.repository)}"

    def _comments(self, number: int) -> str:
        return f"{self._base}/{'merge_requests' if self._is_gitlab else 'issues'}/{number}/{_NOUNS[self.forge.type]}"

    def user(self) -> HttpMessage:
        """Whose token it is."""
        return request(self.forge, self.token, "GET", "/user")

    def listing(self, number: int, page: int) -> HttpMessage | None:
        """A page of comments, the oldest first; None beyond the last one of a forge without pages."""
        if self.forge.type == "forgejo":
            return None if page > 1 else request(self.forge, self.token, "GET", self._comments(number))
        order = "&order_by=created_at&sort=asc" if self._is_gitlab else ""
        query = f"?per_page={COMMENTS_A_PAGE}&page={page}{order}"
        return request(self.forge, self.token, "GET", self._comments(number) + query)

    def create(self, number: int, text: str) -> HttpMessage:
        return request(self.forge, self.token, "POST", self._comments(number), {"body": text})

    def edit(self, number: int, id: int, text: str) -> HttpMessage:
        path = f"{self._comments(number)}/{id}" if self._is_gitlab else f"{self._base}/issues/comments/{id}"
        return request(self.forge, self.token, "PUT" if self._is_gitlab else "PATCH", path, {"body": text})

    def open_requests(self, commit: str) -> HttpMessage:
        """Those that may have a commit as their head."""
        commit = quote(commit.lower(), safe="")
        paths = {
            "github": f"/commits/{commit}/pulls?per_page=100",
            "gitlab": f"/repository/commits/{commit}/merge_requests",
            "forgejo": "/pulls?state=open&sort=recentupdate&limit=50",
        }
        return request(self.forge, self.token, "GET", self._base + paths[self.forge.type])


def author_of(comment: Any) -> int | None:
    """The id of the user that wrote a comment."""
    user = comment.get("user") or comment.get("author") if isinstance(comment, dict) else None
    id = user.get("id") if isinstance(user, dict) else None
    return id if isinstance(id, int) else None


def app_of(comment: Any) -> int | None:
    """The id of the GitHub App that wrote a comment."""
    app = comment.get("performed_via_github_app") if isinstance(comment, dict) else None
    id = app.get("id") if isinstance(app, dict) else None
    return id if isinstance(id, int) else None


def open_with_head(found: Any, commit: str) -> int | None:
    """The number of the open request of a list whose head is a commit."""
    for one in found if isinstance(found, list) else ():
        if not isinstance(one, dict) or one.get("state") not in ("open", "opened"):
            continue
        head = one.get("head")
        sha = head.get("sha") if isinstance(head, dict) else one.get("sha")
        number = one.get("iid", one.get("number"))
        if isinstance(sha, str) and sha.lower() == commit.lower() and isinstance(number, int):
            return number
    return None
