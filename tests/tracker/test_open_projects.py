"""Projects that are created without an account: how many, and how an ADMIN deletes them."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from conftest import Answer, Serve, Server
from run_streams import NOW, create_accounts, open_store
from uploads import junit, post, query_store, upload

from models.accounts import accounts, permissions
from models.config.settings import ReportLimits
from models.tracker.tables import Project

DEFAULTS = ReportLimits()
JUNIT = ("junit", junit(passed=1))
FORWARDED = {"server": {"trusted-proxies": ["127.0.0.1"]}}
LIST, DELETE, PAGE = "/api/v1/open-projects", "/api/v1/open-projects/delete", "/projects/open"


def limited(serve: Serve, in_all: int, per_hour: int, **sections: Any) -> tuple[Server, str]:
    """A server with these limits, and the token of an ADMIN."""
    limits = {"open-projects": in_all, "open-projects-per-hour": per_hour}
    server = serve(wait=False, tracker={"limits": limits, **sections.pop("tracker", {})}, **sections)
    token = create_accounts(server.data, ["boss"], admins=["boss"])["boss"]
    return server.start(), f"Bearer {token}"


def create(server: Server, name: str, **headers: str) -> Answer:
    return post(server, ("project", name), JUNIT, **headers)


def names(server: Server) -> list[str]:
    return [row[0] for row in query_store(server, "SELECT name FROM project ORDER BY name")]


def test_the_defaults_are_200_projects_and_20_an_hour_for_each_address() -> None:
    assert (DEFAULTS.open_projects, DEFAULTS.open_projects_per_hour) == (200, 20)


def test_with_the_defaults_an_address_creates_20_projects_an_hour_and_uploads_to_them(serve: Serve) -> None:
    server, boss = limited(serve, DEFAULTS.open_projects, DEFAULTS.open_projects_per_hour, **FORWARDED)
    for number in range(20):
        assert create(server, f"p{number}").status == 201
    refused = create(server, "one-more")
    assert refused.status == 403, refused
    assert "20 projects an hour (tracker.limits.open-projects-per-hour)" in refused.json["detail"]
    assert "create it with an account" in refused.json["detail"]
    assert create(server, "p7").status == 201, "it exists"
    assert create(server, "elsewhere", X_Forwarded_For="198.51.100.7").status == 201
    assert create(server, "with-an-account", Authorization=boss).status == 201
    assert "one-more" not in names(server)


def test_the_limit_of_an_address_is_that_of_the_client_behind_a_trusted_proxy_only(serve: Serve) -> None:
    server, _ = limited(serve, 100, 1, **FORWARDED)
    for number, address in enumerate(("198.51.100.7", "198.51.100.8", "2001:db8::1", "2001:db8:0:1::1")):
        assert create(server, f"p{number}", X_Forwarded_For=address).status == 201
        assert create(server, f"q{number}", X_Forwarded_For=f"192.0.2.1, {address}").status == 403
    assert create(server, "same-network", X_Forwarded_For="2001:db8::2").status == 403
    untrusting, _ = limited(serve, 100, 1)
    assert create(untrusting, "a", X_Forwarded_For="198.51.100.7").status == 201
    assert create(untrusting, "b", X_Forwarded_For="198.51.100.8").status == 403


def test_an_hour_later_the_address_may_create_again(serve: Serve) -> None:
    server, _ = limited(serve, 100, 1)
    assert create(server, "first").status == 201
    assert create(server, "second").status == 403
    with open_store(server.data):
        Project.update(created_at=Project.created_at - 3601 * 1_000_000).execute()
    assert create(server, "second").status == 201


def test_projects_without_a_member_are_limited_in_all(serve: Serve) -> None:
    server, boss = limited(serve, 3, 0)
    for number in range(3):
        assert create(server, f"p{number}").status == 201
    refused = create(server, "one-more")
    assert refused.status == 403
    assert "3 projects (tracker.limits.open-projects)" in refused.json["detail"]
    assert create(server, "mine", Authorization=boss).status == 201
    with open_store(server.data):  # the project of an account is no open one
        user = accounts.user_named("boss")
        assert user is not None
        permissions.grant(Project.get(Project.name == "p0").id, user.id, "OWNER", NOW)
    assert create(server, "one-more").status == 201
    assert create(server, "two-more").status == 403


def test_uploads_at_the_same_time_create_no_more_than_the_limit(serve: Serve) -> None:
    server, _ = limited(serve, 4, 0)
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda number=number: statuses.append(create(server, f"p{number}").status))
        for number in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [201] * 4 + [403] * 8
    assert len(names(server)) == 4


@pytest.mark.parametrize("limits", [(1, 0), (100, 1)])
def test_beyond_a_limit_the_name_of_a_private_project_gets_the_answer_of_a_new_one(
    serve: Serve, limits: tuple[int, int]
) -> None:
    server, boss = limited(serve, *limits)
    assert create(server, "hidden", Authorization=boss).status == 201
    with open_store(server.data):
        Project.update(visibility="PRIVATE").execute()
    assert create(server, "hidden").status == 401, "as tracker.md says, while the caller may create"
    assert create(server, "first").status == 201
    assert same_answer(server, "hidden", "absent") == 403


def same_answer(server: Server, private: str, new: str, **headers: str) -> int:
    """Asserts that both names get the same answer; returns its status."""
    answers = [create(server, name, **headers) for name in (private, new)]
    texts = [answer.text.replace(name, "NAME") for answer, name in zip(answers, (private, new), strict=True)]
    assert texts[0] == texts[1]
    assert answers[0].status == answers[1].status
    assert [answer.headers["WWW-Authenticate"] for answer in answers] == [answers[0].headers["WWW-Authenticate"]] * 2
    return answers[0].status


@pytest.mark.parametrize("security", [{"open-mode": False}, {"require-ingest-token": True}])
def test_without_a_token_a_private_and_a_new_name_get_the_same_answer(serve: Serve, security: dict[str, Any]) -> None:
    server, boss = limited(serve, 100, 0, tracker={"security": {**security, "default-visibility": "PRIVATE"}})
    assert create(server, "hidden", Authorization=boss).status == 201
    assert same_answer(server, "hidden", "absent") == 401
    assert names(server) == ["hidden"]


@pytest.fixture
def many(serve: Serve) -> tuple[Server, str]:
    """A server with the open projects `a`, `b` and `empty` (without a run), and `mine` of an ADMIN."""
    server, boss = limited(serve, 100, 0)
    for name in ("a", "b", "empty"):
        upload(
            server,
            ("project", name),
            ("junit", junit(passed=2, failed=1)),
            ("jacoco", "SF:x.py\nDA:1,1\nend_of_record"),
        )
    upload(server, ("project", "mine"), JUNIT, Authorization=boss)
    run = query_store(server, "SELECT r.id FROM run r JOIN project p ON p.id = r.project_id WHERE p.name = 'empty'")
    assert server.post(f"/runs/{run[0][0]}/delete", Authorization=boss).status == 303
    return server, boss


def ids(server: Server) -> dict[str, int]:
    return dict(query_store(server, "SELECT name, id FROM project"))


def test_an_admin_lists_open_projects_and_deletes_many_at_once(many: tuple[Server, str]) -> None:
    server, boss = many
    found = server.get(LIST, Authorization=boss).json
    assert [(one["name"], one["runCount"], one["createdFrom"]) for one in found] == [
        ("a", 1, "127.0.0.1"),
        ("b", 1, "127.0.0.1"),
        ("empty", 0, "127.0.0.1"),
    ]
    first = server.get(f"{LIST}?limit=2", Authorization=boss)
    assert [one["name"] for one in first.json] == ["a", "b"]
    assert 'rel="next"' in first.headers["Link"]
    known = ids(server)
    body = f'{{"ids": [{known["a"]}, {known["empty"]}, {known["mine"]}, 999]}}'.encode()
    outcome = server.post(DELETE, body, Authorization=boss)
    assert outcome.status == 200, outcome
    assert outcome.json == {"deleted": [known["a"], known["empty"]], "kept": [known["mine"], 999]}
    assert names(server) == ["b", "mine"]
    for table in ("run", "report", "test", "result", "coverage"):
        column = "project_id" if table in ("run", "test") else "run_id"
        owners = "project" if column == "project_id" else "run"
        query = f"SELECT count(*) FROM {table} WHERE {column} NOT IN (SELECT id FROM {owners})"  # noqa: S608
        assert query_store(server, query)[0][0] == 0, table


@pytest.mark.parametrize("body", [b"{}", b'{"ids": []}', b'{"ids": ["1"]}', b'{"ids": 1}', b'{"ids": [true]}'])
def test_a_list_of_ids_that_is_none_is_400(many: tuple[Server, str], body: bytes) -> None:
    server, boss = many
    assert server.post(DELETE, body, Authorization=boss).status == 400


def test_others_neither_list_nor_delete_them(many: tuple[Server, str]) -> None:
    server, _ = many
    user = "Bearer " + create_accounts(server.data, ["user"])["user"]
    for headers, status in (({}, 401), ({"Authorization": user}, 403)):
        assert server.get(LIST, **headers).status == status
        assert server.post(DELETE, b'{"ids": [1]}', **headers).status == status
        assert server.post(PAGE, b"id=1", Content_Type="application/x-www-form-urlencoded", **headers).status in (
            302,
            status,
        )
        assert PAGE not in server.get("/projects", **headers).text
    assert len(names(server)) == 4


def test_the_page_selects_projects_without_a_run_and_deletes_the_selected(many: tuple[Server, str]) -> None:
    server, boss = many
    assert PAGE in server.get("/projects", Authorization=boss).text
    page = server.get(PAGE, Authorization=boss).text
    known = ids(server)
    assert f'value="{known["empty"]}" aria-label="Delete empty" checked' in page
    assert f'value="{known["a"]}" aria-label="Delete a">' in page
    assert "mine" not in page
    form = {"Content_Type": "application/x-www-form-urlencoded", "Authorization": boss}
    assert server.post(PAGE, b"", **form).status == 400
    assert server.post(PAGE, b"id=x", **form).status == 400
    sent = f"id={known['empty']}&id={known['b']}&id={known['mine']}".encode()
    assert server.post(PAGE, sent, **form).status == 303
    assert names(server) == ["a", "mine"]
    assert server.post(PAGE, f"id={known['a']}".encode(), **form).status == 303
    assert "Every project has a member" in server.get(PAGE, Authorization=boss).text
