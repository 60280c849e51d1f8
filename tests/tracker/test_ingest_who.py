"""Permissions to post reports, and the creation of projects."""

from __future__ import annotations

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
NAMES = ("owner", "writer", "reader", "stranger", "boss")


@frozen
class Place:
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


def place(folder: pytest.TempPathFactory, security: dict[str, object]) -> Iterator[Place]:
    where = folder.mktemp("who")
    tokens = dict(create_accounts(where / "data", NAMES, admins=["boss"]))
    with open_store(where / "data"):
        user = accounts.user_named("owner")
        assert user
        tokens["ci"] = accounts.create_token(user.id, "ci", "INGEST", None, NOW)
    with running_server(where, tracker={"security": security}) as server:
        yield Place(server, tokens)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    yield from place(tmp_path_factory, {})


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    yield from place(tmp_path_factory, {"open-mode": False})


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    yield from place(tmp_path_factory, {"require-ingest-token": True, "default-visibility": "PRIVATE"})


@pytest.fixture(scope="module")
def private(opened: Place) -> Place:
    """There is a PRIVATE project of that name, with a member of each role."""
    assert opened.post("private", "owner").status == 201
    with open_store(opened.server.data):
        Project.update(visibility="PRIVATE").where(Project.name == "private").execute()
        for name, role in (("writer", "WRITE"), ("reader", "READ")):
            user = accounts.user_named(name)
            assert user
            permissions.grant(Project.get(Project.name == "private").id, user.id, role, NOW)  # type: ignore[arg-type]
    return opened


def refused(answer: Answer, status: int) -> None:
    check_problem(answer, status, INGEST, has_timestamp=False)
    assert answer.headers["WWW-Authenticate"] == ("Bearer" if status == 401 else None)


def test_in_open_mode_any_caller_may_post_and_the_project_is_public(opened: Place) -> None:
    assert opened.post("new").status == 201
    assert opened.visibility("new") == "PUBLIC"
    assert opened.members("new") == []
    assert opened.post("new", "stranger").status == 201
    assert opened.members("new") == [], "it has an owner only from the one who made it"


@pytest.mark.parametrize("name", ["owner", "ci", "boss"])
def test_who_is_known_owns_the_project_that_he_makes(opened: Place, name: str) -> None:
    assert opened.post(f"of {name}", name).status == 201
    assert opened.members(f"of {name}") == [("owner" if name == "ci" else name, "OWNER")]


@pytest.mark.parametrize(
    ("name", "status"),
    [(None, 401), ("stranger", 403), ("reader", 403), ("writer", 201), ("owner", 201), ("ci", 201), ("boss", 201)],
)
def test_who_may_post_to_a_private_project(private: Place, name: str | None, status: int) -> None:
    before = query_store(private.server, "SELECT count(*) FROM run")
    answer = private.post("private", name)
    if status == 201:
        assert answer.status == 201
    else:
        refused(answer, status)
        assert query_store(private.server, "SELECT count(*) FROM run") == before


@pytest.mark.parametrize("name", [None, "stranger"])
def test_the_largest_upload_to_a_private_project_is_refused_before_it_is_read(private: Place, name: str | None) -> None:
    sent = form([("project", "private"), ("junit", b"\0" * 8_000_000)])
    token = f"Authorization: Bearer {private.tokens[name]}\r\n" if name else ""
    with connect(private.server) as connection:
        head = (
            f"POST {INGEST} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(sent)}\r\n{token}Content-Type: {FORM}"
        )
        connection.sendall(f"{head}\r\n\r\n".encode() + sent[:2_000_000])
        wait_for(lambda: private.server.get("/healthz").status == 200 and not incoming_files(private.server))
        connection.sendall(sent[2_000_000:])
        refused(read_response(connection), 403 if name else 401)


def test_an_invalid_token_is_never_anonymous(opened: Place) -> None:
    for headers in ({"Authorization": "Bearer plt_bad"}, {"X_Tracker_Token": "bad"}):
        refused(opened.post("new", **headers), 401)


def test_the_header_of_the_tracker_wins(private: Place) -> None:
    good, bad = private.tokens["owner"], private.tokens["stranger"]
    assert private.post("private", X_Tracker_Token=good, Authorization=f"Bearer {bad}").status == 201
    refused(private.post("private", X_Tracker_Token=bad, Authorization=f"Bearer {good}"), 403)


def test_a_page_of_another_site_may_not_post(opened: Place) -> None:
    refused(opened.post("new", Sec_Fetch_Site="cross-site"), 403)
    refused(opened.post("new", Origin="http://evil.example"), 403)


def test_in_closed_mode_who_posts_is_known_and_the_project_is_private(closed: Place) -> None:
    refused(closed.post("new"), 401)
    assert closed.visibility("new") is None
    assert closed.post("new", "ci").status == 201
    assert closed.visibility("new") == "PRIVATE"
    assert closed.members("new") == [("owner", "OWNER")]
    refused(closed.post("new", "stranger"), 403)


def test_where_a_token_is_required_no_other_caller_posts(guarded: Place) -> None:
    refused(guarded.post("new"), 401)
    assert guarded.post("new", "ci").status == 201
    assert guarded.visibility("new") == "PRIVATE"


def test_a_refusal_reveals_nothing_private_but_the_name(private: Place) -> None:
    outcome = private.post("private", "stranger").json
    assert "owner" not in str(outcome)
    assert upload(private.server, ("project", "Private"), JUNIT)["projectId"] != 0, "names are told apart by case"
