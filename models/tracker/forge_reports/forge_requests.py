"""The requests that reports are sent with, for each kind of forge."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from models.config.settings import Forge
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


def request(forge: Forge, token: str, method: str, path: str, body: Mapping[str, Any] | None = None) -> HttpMessage:
    """A request to the API of a forge, with its token."""
    headers = dict(GITHUB_HEADERS) if forge.type == "github" else {"Accept": "application/json"}
    data = b""
    if body is not None:
        headers["Content-Type"] = "application/json"
        data = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    header, scheme = _TOKENS[forge.type]
    return HttpMessage(api_url(forge) + path, data, headers, token, header, scheme, method)


def digest(message: HttpMessage) -> str:
    """Of what a request says: equal reports are not sent twice."""
    return hashlib.sha256(b"\n".join((message.url.encode(), message.body))).hexdigest()
