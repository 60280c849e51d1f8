"""Permissions: every viewer at every endpoint of public, private and missing projects.

A caller without read permission receives the same response for a private project as for a missing one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import http_checks
import pytest
import records
from attrs import frozen
from conftest import Answer, Server
from records import FAILED, PASSED

from models import VERSION
from models.tracker.tables import Project, Run

READ_PATHS = (
    "/api/v1/projects/{project}",
    "/api/v1/projects/{project}/runs",
    "/api/v1/projects/{project}/flaky",
    "/api/v1/projects/{project}/tests?className=c.A&name=a",
    "/api/v1/projects/{project}/tests/insights",
    "/api/v1/projects/{project}/tests/insights?since=2020-01-01&sort=unreliable",
    "/api/v1/projects/{project}/commits",
    "/api/v1/projects/{project}/commits/abc",
    "/api/v1/projects/{project}/pulls",
    "/api/v1/projects/{project}/pulls/7",
    "/api/v1/runs/{run}",
    "/api/v1/runs/{run}/quality-gate",
    "/api/v1/compare?base={run}&head={run}",
    "/api/v1/compare?base={open}&head={run}",
    "/api/v1/gate?project={name}&branch=main",
    "/api/v1/gate?project={name}&commit=abc",
    "/badge/{project}/coverage.svg",
    "/badge/{project}/pass.svg",
    "/badge/{project}/flaky.svg",
)
PAGE_PATHS = (
    "/projects/{project}",
    "/projects/{project}/test?className=c.A&name=a",
    "/projects/{project}/insights",
    "/projects/{project}/commits",
    "/projects/{project}/commits/abc",
    "/projects/{project}/pulls",
    "/projects/{project}/pulls/7",
    "/runs/{run}",
    "/compare?base={run}&head={run}",
    "/compare?base={run}&head={open}",
    "/compare?base={run}",
    "/compare?head={run}",
)
CHANGES = (
    ("POST", "/api/v1/projects/{project}/flaky/status", "WRITE"),
    ("DELETE", "/api/v1/runs/{last}", "WRITE"),
    ("POST", "/projects/{project}/settings", "WRITE"),
    ("POST", "/projects/{project}/rules", "OWNER"),
    ("POST", "/projects/{project}/flaky/status", "WRITE"),
    ("POST", "/projects/{project}/visibility", "OWNER"),
    ("POST", "/projects/{project}/members", "OWNER"),
    ("POST", "/projects/{project}/members/999/remove", "OWNER"),
    ("POST", "/runs/{last}/delete", "WRITE"),
)
BODIES = {
    "/api/v1/projects/{project}/flaky/status": b'{"className":"c.A","name":"a","status":"RESOLVED"}',
    "/projects/{project}/flaky/status": b"className=c.A&name=a&status=RESOLVED",
    "/projects/{project}/visibility": b"visibility={visibility}",
    "/projects/{project}/members": b"username=reader&role=READ",
}
ROLES = {"reader": "READ", "writer": "WRITE", "owner": "OWNER"}
RANK = {"READ": 1, "WRITE": 2, "OWNER": 3}
ACCOUNTS = ("outsider", "reader", "writer", "owner", "admin")
VIEWERS = ("anonymous", *ACCOUNTS)
MISSING = {"project": 999_999, "run": 999_999, "last": 999_999, "name": "missing"}


@frozen
class Deployment:
    """A server with a public and a private project, and the tokens and sessions of the viewers."""

    server: Server
    open: Project
    secret: Project
    tokens: dict[str, dict[str, str]]
    sessions: dict[str, dict[str, str]]

    def facts(self, which: str) -> dict[str, Any]:
        """The values of the placeholders in a path, for the project `open`, `secret` or `missing`."""
        first = Run.select().where(Run.project == self.open).order_by(Run.id).first()
        if which == "missing":
            return {**MISSING, "open": first.id, "visibility": "PRIVATE"}
        project = getattr(self, which)
        runs = list(Run.select().where(Run.project == project).order_by(Run.id))
        return {
            "project": project.id, "name": project.name, "run": runs[0].id, "last": runs[-1].id, "open": first.id,
            "visibility": project.visibility,
        }  # fmt: skip

    def ask(self, viewer: str, method: str, path: str, which: str, session: bool = False) -> Answer:
        headers = (self.sessions if session else self.tokens)[viewer]
        facts = self.facts(which)
        body = BODIES.get(path, b"").decode().replace("{visibility}", facts["visibility"])
        if method == "POST" and not path.startswith("/api"):
            headers = {**headers, "Content-Type": "application/x-www-form-urlencoded"}
        return self.server.ask(method, path.format(**facts), body.encode(), headers)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with http_checks.running_server(tmp_path_factory.mktemp("visibility")) as server, records.store_of(server):
        projects = [records.create_project("open"), records.create_project("secret-name", "PRIVATE")]
        for project in projects:
            for _ in range(40):  # a run to delete for each test of CHANGES
                records.create_run(project, {"c.A a": FAILED, "c.A b": PASSED}, (1, 1), commit_sha="abc", pr_number=7)
        tokens: dict[str, dict[str, str]] = {"anonymous": {}}
        sessions: dict[str, dict[str, str]] = {"anonymous": {}}
        for name in ACCOUNTS:
            user = records.create_user(
                f"the-{name}" if name == "admin" else name, "ADMIN" if name == "admin" else "USER"
            )
            tokens[name], sessions[name] = (
                records.bearer(user),
                records.cookie(user, server),
            )
            for project in projects if name in ROLES else []:
                records.add_member(project, user, ROLES[name])  # type: ignore[arg-type]
        tokens["ingest"] = records.bearer(records.create_user("robot"), "INGEST")
        yield Deployment(server, projects[0], projects[1], tokens, sessions)


def has_role(viewer: str, which: str, role: str) -> bool:
    if which == "missing":
        return False
    if viewer == "admin" or (which == "open" and role == "READ"):
        return True
    return RANK.get(ROLES.get(viewer, ""), 0) >= RANK[role]


def normalized(answer: Answer, facts: dict[str, Any]) -> tuple[int, str, str]:
    """A response without the identifiers of the request, timestamps, XSRF tokens and the version in a page's foot."""
    text = unquote(f"{answer.headers.get('Location', '')} {answer.text}").replace(f"Pilothouse {VERSION}", "")
    text = re.sub(r"\?v=[0-9a-f]+", "", text)
    for known in sorted({str(facts[key]) for key in ("project", "run", "last", "name")}, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){known}(?!\w)", "?", text)
    text = re.sub(r'"timestamp":"[^"]*"', "", text)
    text = re.sub(r'name="_xsrf" value="[^"]*"', "", text)
    return answer.status, text, answer.headers.get("Content-Type", "")


@pytest.mark.parametrize("prefix", ["", "/tracker"])
@pytest.mark.parametrize("path", READ_PATHS)
@pytest.mark.parametrize("viewer", VIEWERS)
def test_read_endpoints_hide_private_projects(deployment: Deployment, viewer: str, path: str, prefix: str) -> None:
    answers = {which: deployment.ask(viewer, "GET", prefix + path, which) for which in ("open", "secret", "missing")}
    assert answers["open"].status == 200, answers["open"]
    assert answers["missing"].status == 404
    if has_role(viewer, "secret", "READ"):
        assert answers["secret"].status == 200 or "{open}" in path
    else:
        hidden, absent = (normalized(answers[which], deployment.facts(which)) for which in ("secret", "missing"))
        assert hidden == absent


@pytest.mark.parametrize("prefix", ["", "/tracker", "/charts"])
@pytest.mark.parametrize("path", PAGE_PATHS)
@pytest.mark.parametrize("viewer", VIEWERS)
def test_pages_hide_private_projects(deployment: Deployment, viewer: str, path: str, prefix: str) -> None:
    answers = {
        which: deployment.ask(viewer, "GET", prefix + path, which, session=True)
        for which in ("open", "secret", "missing")
    }
    assert answers["open"].status == 200, answers["open"]
    if viewer == "anonymous":
        assert answers["missing"].status == 302
        assert answers["missing"].headers["Location"].startswith(f"{prefix}/login?next=")
    else:
        assert answers["missing"].status == 404
    if has_role(viewer, "secret", "READ"):
        assert answers["secret"].status == (400 if "{open}" in path else 200)
    else:
        hidden, absent = (normalized(answers[which], deployment.facts(which)) for which in ("secret", "missing"))
        assert hidden == absent


@pytest.mark.parametrize("which", ["open", "secret", "missing"])
@pytest.mark.parametrize(("method", "path", "role"), CHANGES)
@pytest.mark.parametrize("viewer", VIEWERS)
def test_changes_require_their_role(
    deployment: Deployment, viewer: str, method: str, path: str, role: str, which: str
) -> None:
    answer = deployment.ask(viewer, method, path, which)
    is_api = path.startswith("/api")
    if viewer == "anonymous":
        assert answer.status == (401 if is_api else 302), answer
        other = deployment.ask(viewer, method, path, "missing")
        assert normalized(answer, deployment.facts(which)) == normalized(other, deployment.facts("missing"))
    elif has_role(viewer, which, role):
        done = {"/projects/{project}/members/999/remove": 404}.get(path, 303)
        assert answer.status == ((204 if method == "DELETE" else 202) if is_api else done), answer
    elif has_role(viewer, which, "READ"):
        assert answer.status == 403, answer
    else:
        assert answer.status == 404, answer
        other = deployment.ask(viewer, method, path, "missing")
        assert normalized(answer, deployment.facts(which)) == normalized(other, deployment.facts("missing"))


@pytest.mark.parametrize("which", ["open", "secret", "missing"])
@pytest.mark.parametrize("path", [*READ_PATHS, *PAGE_PATHS])
def test_ingest_token_reads_only_the_verdict_on_a_run(deployment: Deployment, path: str, which: str) -> None:
    follows = path.endswith("/quality-gate")
    expected = (200 if which == "open" else 404) if follows else 403
    assert deployment.ask("ingest", "GET", path, which).status == expected


@pytest.mark.parametrize("path", [*READ_PATHS, *PAGE_PATHS])
def test_an_invalid_token_is_never_anonymous(deployment: Deployment, path: str) -> None:
    answer = deployment.server.get(path.format(**deployment.facts("open")), X_Tracker_Token="plt_unknown")
    assert answer.status in (401, 302), answer


@pytest.mark.parametrize("viewer", VIEWERS)
def test_project_list_has_only_readable_projects(deployment: Deployment, viewer: str) -> None:
    for path in ("/api/v1/projects", "/tracker/api/v1/projects", "/projects"):
        text = deployment.server.ask("GET", path, headers=deployment.tokens[viewer]).text
        assert "open" in text
        assert ("secret-name" in text) is has_role(viewer, "secret", "READ")
    listed = deployment.server.ask("GET", "/api/v1/projects?name=secret-name", headers=deployment.tokens[viewer]).json
    assert len(listed) == has_role(viewer, "secret", "READ")


@pytest.mark.parametrize(("method", "path", "role"), CHANGES)
@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}])
def test_cross_site_changes_are_refused(
    deployment: Deployment, method: str, path: str, role: str, headers: dict[str, str]
) -> None:
    answer = deployment.server.ask(
        method, path.format(**deployment.facts("open")), b"", {**deployment.sessions["admin"], **headers}
    )
    assert answer.status == 403, answer


@pytest.mark.parametrize("path", [path for _, path, _ in CHANGES if not path.startswith("/api")])
def test_form_without_the_xsrf_token_is_refused(deployment: Deployment, path: str) -> None:
    answer = deployment.ask("admin", "POST", path, "open", session=True)
    assert answer.status == 403, answer
