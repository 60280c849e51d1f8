"""Permissions to post reports, and the creation of projects."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pytest
from attrs import frozen
from conftest import Answer, Server, wait_for
from http_checks import check_problem, connect, read_response, running_server
from run_streams import NOW, create_accounts, open_store
from uploads import (
    FORM,
    INGEST,
    form,
    incoming_files,
    junit,
    post,
    query_store,
    upload,
)

from models.accounts import accounts, permissions
from models.tracker.tables import Project

JUNIT = ("junit", junit(passed=1))
JSON = {"Content-Type": "application/json"}
NAMES = ("owner", "writer", "reader", "outsider", "boss")


@frozen
class AccountsServer:
    """A server with accounts, and a token of each by name; `ci` is one of scope INGEST of `owner`."""

    server: Server
    tokens: Mapping[str, str]

    def post(self, project: str, name: str | None = None, **headers: str) -> Answer:
        if name is not None:
            headers["Authorization"] = f"Bearer {self.tokens[name]}"
        return post(self.server, ("project", project), JUNIT, **headers)

    def visibility(self, project: str) -> str | None:
        found = query_store(self.server, "SELECT visibility FROM project WHERE name = ?", project)
        return found[0][0] if found else None

    def members(self, project: str) -> list[tuple[str, str]]:
        query = (
            "SELECT a.username, m.role FROM membership m JOIN account a ON a.id = m.account_id"
            " JOIN project p ON p.id = m.project_id WHERE p.name = ?"
        )
        return query_store(self.server, query, project)


def serve_accounts(folder: pytest.TempPathFactory, security: dict[str, object]) -> Iterator[AccountsServer]:
    where = folder.mktemp("permissions")
    tokens = dict(create_accounts(where / "data", NAMES, admins=["boss"]))
    with open_store(where / "data"):
        user = accounts.user_named("owner")
        assert user
        tokens["ci"] = accounts.create_token(user.id, "ci", "INGEST", None, NOW)
    with running_server(where, tracker={"security": security}) as server:
        yield AccountsServer(server, tokens)


@pytest.fixture(scope="module")
def open_mode(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AccountsServer]:
    yield from serve_accounts(tmp_path_factory, {})


@pytest.fixture(scope="module")
def closed_mode(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AccountsServer]:
    yield from serve_accounts(tmp_path_factory, {"open-mode": False})


@pytest.fixture(scope="module")
def token_required(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AccountsServer]:
    yield from serve_accounts(tmp_path_factory, {"require-ingest-token": True, "default-visibility": "PRIVATE"})


@pytest.fixture(scope="module")
def private(open_mode: AccountsServer) -> AccountsServer:
    """The open-mode server with the PRIVATE project `private`, which has a member of each role."""
    assert open_mode.post("private", "owner").status == 201
    with open_store(open_mode.server.data):
        Project.update(visibility="PRIVATE").where(Project.name == "private").execute()
        for name, role in (("writer", "WRITE"), ("reader", "READ")):
            user = accounts.user_named(name)
            assert user
            permissions.grant(Project.get(Project.name == "private").id, user.id, role, NOW)  # type: ignore[arg-type]
    return open_mode


def check_refused(answer: Answer, status: int) -> None:
    check_problem(answer, status, INGEST, has_timestamp=False)
    assert answer.headers["WWW-Authenticate"] == ("Bearer" if status == 401 else None)


def test_in_open_mode_any_caller_may_post_and_the_project_is_public(open_mode: AccountsServer) -> None:
    assert open_mode.post("new").status == 201
    assert open_mode.visibility("new") == "PUBLIC"
    assert open_mode.members("new") == []
    assert open_mode.post("new", "outsider").status == 201
    assert open_mode.members("new") == [], "a project created anonymously has no owner"


@pytest.mark.parametrize("name", ["owner", "ci", "boss"])
def test_authenticated_caller_owns_the_project_it_creates(open_mode: AccountsServer, name: str) -> None:
    assert open_mode.post(f"of {name}", name).status == 201
    assert open_mode.members(f"of {name}") == [("owner" if name == "ci" else name, "OWNER")]


@pytest.mark.parametrize(
    ("names", "trusted"),
    [(["owner"], True), (["owner", "ci"], True), ([None], False), (["owner", None], False), ([None, "owner"], False),
     (["owner", "outsider"], False), (["outsider", "owner"], False)],
)  # fmt: skip
def test_a_run_is_trusted_if_all_its_uploads_had_a_credential_of_write(
    open_mode: AccountsServer, names: list[str | None], trusted: bool
) -> None:
    project = f"trust of {names}"
    assert open_mode.post(project, "owner").status == 201
    for number, name in enumerate(names):
        header = {} if name is None else {"Authorization": f"Bearer {open_mode.tokens[name]}"}
        reports = ("junit", junit(passed=number + 1))
        assert post(open_mode.server, ("project", project), ("runKey", "r-1"), reports, **header).status == 201
    query = "SELECT r.trusted FROM run r JOIN project p ON p.id = r.project_id WHERE p.name = ? AND r.run_key = 'r-1'"
    assert query_store(open_mode.server, query, project) == [(int(trusted),)]


def test_a_run_that_an_anonymous_caller_closes_is_not_trusted(open_mode: AccountsServer) -> None:
    header = {"Authorization": f"Bearer {open_mode.tokens['owner']}"}
    parts = ("project", "closed"), ("runKey", "r-1"), ("expectedUploads", "2"), JUNIT
    run = post(open_mode.server, *parts, **header).json["runId"]
    assert open_mode.server.get(f"/api/v1/runs/{run}").json["run"]["trusted"] is True
    body = json.dumps({"project": "closed", "runKey": "r-1", "partial": True}).encode()
    assert open_mode.server.ask("POST", "/api/v1/runs/finish", body, JSON).status == 200
    assert open_mode.server.get(f"/api/v1/runs/{run}").json["run"]["trusted"] is False


@pytest.mark.parametrize(
    ("name", "status"),
    [(None, 401), ("outsider", 403), ("reader", 403), ("writer", 201), ("owner", 201), ("ci", 201), ("boss", 201)],
)
def test_posting_to_a_private_project_requires_write_permission(
    private: AccountsServer, name: str | None, status: int
) -> None:
    before = query_store(private.server, "SELECT count(*) FROM run")
    answer = private.post("private", name)
    if status == 201:
        assert answer.status == 201
    else:
        check_refused(answer, status)
        assert query_store(private.server, "SELECT count(*) FROM run") == before


@pytest.mark.parametrize("name", [None, "outsider"])
def test_upload_to_a_private_project_is_refused_before_it_is_read(private: AccountsServer, name: str | None) -> None:
    sent = form([("project", "private"), ("junit", b"\0" * 8_000_000)])
    token = f"Authorization: Bearer {private.tokens[name]}\r\n" if name else ""
    with connect(private.server) as connection:
        head = (
            f"POST {INGEST} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(sent)}\r\n{token}Content-Type: {FORM}"
        )
        connection.sendall(f"{head}\r\n\r\n".encode() + sent[:2_000_000])
        wait_for(lambda: private.server.get("/healthz").status == 200 and not incoming_files(private.server))
        connection.sendall(sent[2_000_000:])
        check_refused(read_response(connection), 403 if name else 401)


def test_an_invalid_token_is_never_anonymous(open_mode: AccountsServer) -> None:
    for headers in ({"Authorization": "Bearer plt_bad"}, {"X_Tracker_Token": "bad"}):
        check_refused(open_mode.post("new", **headers), 401)


def test_x_tracker_token_takes_precedence_over_authorization(private: AccountsServer) -> None:
    good, bad = private.tokens["owner"], private.tokens["outsider"]
    assert private.post("private", X_Tracker_Token=good, Authorization=f"Bearer {bad}").status == 201
    check_refused(private.post("private", X_Tracker_Token=bad, Authorization=f"Bearer {good}"), 403)


def test_cross_site_upload_is_refused(open_mode: AccountsServer) -> None:
    check_refused(open_mode.post("new", Sec_Fetch_Site="cross-site"), 403)
    check_refused(open_mode.post("new", Origin="http://evil.example"), 403)


def test_closed_mode_requires_an_account_and_creates_private_projects(closed_mode: AccountsServer) -> None:
    check_refused(closed_mode.post("new"), 401)
    assert closed_mode.visibility("new") is None
    assert closed_mode.post("new", "ci").status == 201
    assert closed_mode.visibility("new") == "PRIVATE"
    assert closed_mode.members("new") == [("owner", "OWNER")]
    check_refused(closed_mode.post("new", "outsider"), 403)


def test_require_ingest_token_refuses_uploads_without_a_token(token_required: AccountsServer) -> None:
    check_refused(token_required.post("new"), 401)
    assert token_required.post("new", "ci").status == 201
    assert token_required.visibility("new") == "PRIVATE"


def test_a_refusal_reveals_nothing_private_but_the_name(private: AccountsServer) -> None:
    outcome = private.post("private", "outsider").json
    assert "owner" not in str(outcome)
    assert upload(private.server, ("project", "Private"), JUNIT)["projectId"] != 0, "names are case-sensitive"
