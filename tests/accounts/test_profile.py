"""Changes to the caller's own account, and to all accounts by an ADMIN."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conftest import Server
from http_checks import running_server
from users import (
    PASSWORD,
    RAW_TOKEN,
    FormClient,
    bearer,
    cookie,
    create_session,
    create_token,
    ensure_user,
    log_in,
    open_accounts,
    post_form,
)

from models.accounts import accounts

ME = "/api/v1/me"
NEW = "another good password"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("profile")) as server:
        yield server


def browser_of(server: Server, name: str, admin: bool = False) -> FormClient:
    return FormClient(server, create_session(server.data, name, "ADMIN" if admin else "USER"))


def create_token_by_form(browser: FormClient, **fields: str) -> str:
    """Creates a token by the form and returns it."""
    answer = browser.send("/profile/tokens", on="/profile", **fields)
    assert answer.status == 200, answer
    assert answer.headers["Cache-Control"] == "no-store"
    found: list[str] = RAW_TOKEN.findall(answer.text)
    assert len(found) == 1
    return found[0]


def id_of(server: Server, name: str) -> int:
    return ensure_user(server.data, name).id


# The account


@pytest.mark.parametrize("prefix", ["", "/tracker", "/charts", "/supervision"])
def test_profile_is_served_under_every_prefix_and_its_forms_keep_the_prefix(server: Server, prefix: str) -> None:
    page = browser_of(server, "petra").get(f"{prefix}/profile")
    assert page.status == 200
    assert "petra" in page.text
    assert page.text.count(f'action="{prefix}/profile') >= 4
    assert "Content-Security-Policy" in page.headers
    for field in ("displayName", "email", "currentPassword", "newPassword", "name", "scope", "expiresDays"):
        assert f'for="{field}"' in page.text


def test_display_name_and_email_are_stored_and_blank_clears_them(server: Server) -> None:
    browser = browser_of(server, "dana")
    fields = {"displayName": ' <b>"Dana"</b> ', "email": "dana@example.org"}
    assert browser.send("/profile", on="/profile", **fields).status == 303
    outcome = browser.get(ME).json
    assert (outcome["displayName"], outcome["email"]) == ('<b>"Dana"</b>', "dana@example.org")
    assert '<b>"Dana"' not in browser.get("/profile").text
    assert browser.send("/profile", on="/profile", displayName=" ", email="").status == 303
    outcome = browser.get(ME).json
    assert (outcome["displayName"], outcome["email"]) == (None, None)


@pytest.mark.parametrize(
    "fields",
    [{"email": "nobody"}, {"email": "a@b@c"}, {"email": "@x"}, {"displayName": "a" * 256}, {"displayName": "a\nb"}],
)
def test_invalid_display_name_or_email_is_400(server: Server, fields: dict[str, str]) -> None:
    assert browser_of(server, "dana").send("/profile", on="/profile", **fields).status == 400


# The password


def test_password_change_ends_other_sessions_and_keeps_tokens(server: Server) -> None:
    browser, token = browser_of(server, "nora"), create_token(server.data, "nora")
    others, outsider = [create_session(server.data, "nora") for _ in range(2)], create_session(server.data, "dana")
    fields = {"currentPassword": PASSWORD, "newPassword": NEW}
    assert browser.send("/profile/password", on="/profile", **fields).status == 303
    assert browser.get(ME).status == 200, "this session stays"
    assert [server.ask("GET", ME, headers=cookie(server, one)).status for one in others] == [401, 401]
    assert server.ask("GET", ME, headers=cookie(server, outsider)).status == 200
    assert server.ask("GET", ME, headers=bearer(token)).status == 200
    assert post_form(server, "/login", username="nora", password=PASSWORD).status == 401
    assert log_in(server, "nora", NEW)


@pytest.mark.parametrize(
    ("current", "new", "result"),
    [
        ("wrong", NEW, "not right"), ("", NEW, "not right"), (PASSWORD, "7 chars", "8 to 1024"),
        (PASSWORD, "", "8 to 1024"), (PASSWORD, "a" * 1025, "8 to 1024"),
    ],
)  # fmt: skip
def test_invalid_password_change_is_400_and_changes_nothing(
    server: Server, current: str, new: str, result: str
) -> None:
    browser, other = browser_of(server, "olga"), create_session(server.data, "olga")
    fields = {"currentPassword": current, "newPassword": new}
    answer = browser.send("/profile/password", on="/profile", **fields)
    assert answer.status == 400
    assert result in answer.text
    assert server.ask("GET", ME, headers=cookie(server, other)).status == 200


# Tokens


def test_token_is_shown_once_and_authenticates_its_owner(server: Server) -> None:
    browser = browser_of(server, "tina")
    token = create_token_by_form(browser, name="laptop")
    assert server.ask("GET", ME, headers=bearer(token)).json["username"] == "tina"
    page = browser.get("/profile").text
    assert token not in page
    assert f"{token[:10]}…" in page
    assert "laptop" in page
    with open_accounts(server.data):
        (kept,) = accounts.tokens_of(get_user_id("tina"))
    assert (kept.scope, kept.expires_at, kept.revoked_at) == ("FULL", None, None)


def get_user_id(name: str) -> int:
    user = accounts.user_named(name)
    assert user is not None
    return user.id


def test_token_has_a_scope_and_an_expiry_time(server: Server) -> None:
    browser = browser_of(server, "tom")
    token = create_token_by_form(browser, name="ci", scope="INGEST", expiresDays="30")
    assert server.ask("GET", ME, headers=bearer(token)).status == 403
    with open_accounts(server.data):
        (kept,) = accounts.tokens_of(get_user_id("tom"))
    assert kept.scope == "INGEST"
    assert kept.expires_at is not None
    assert kept.expires_at - kept.created_at == 30 * 86_400 * 1_000_000


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"name": ""}, {"name": "  "}, {"name": "a" * 256}, {"name": "a\tb"}, {"name": "x", "scope": "ALL"},
        {"name": "x", "scope": "full"}, {"name": "x", "expiresDays": "0"}, {"name": "x", "expiresDays": "-1"},
        {"name": "x", "expiresDays": "1.5"}, {"name": "x", "expiresDays": "soon"},
        {"name": "x", "expiresDays": "36501"}, {"name": "x", "expiresDays": "9" * 400},
        {"name": "x", "expiresDays": "٣"},
    ],
)  # fmt: skip
def test_invalid_token_form_is_400(server: Server, fields: dict[str, str]) -> None:
    answer = browser_of(server, "tim").send("/profile/tokens", on="/profile", **fields)
    assert answer.status == 400
    assert not RAW_TOKEN.search(answer.text)
    with open_accounts(server.data):
        assert accounts.tokens_of(get_user_id("tim")) == []


def test_token_can_be_revoked_by_its_owner_only(server: Server) -> None:
    owner, other = browser_of(server, "tess"), browser_of(server, "mallory", admin=True)
    token = create_token_by_form(owner, name="ci")
    with open_accounts(server.data):
        (kept,) = accounts.tokens_of(get_user_id("tess"))
    path = f"/profile/tokens/{kept.id}/revoke"
    assert other.send(path, on="/profile").status == 404
    assert server.ask("GET", ME, headers=bearer(token)).status == 200
    assert owner.send(path, on="/profile").status == 303
    assert server.ask("GET", ME, headers=bearer(token)).status == 401
    assert "revoked" in owner.get("/profile").text
    assert owner.send(path, on="/profile").status == 303, "revoking twice has no effect"
    assert owner.send("/profile/tokens/999999/revoke", on="/profile").status == 404


def test_tokens_of_one_account_are_bounded(server: Server) -> None:
    browser = browser_of(server, "hoarder")
    with open_accounts(server.data):
        user = get_user_id("hoarder")
        for number in range(accounts.MAX_TOKENS_OF_ACCOUNT + 5):
            accounts.create_token(user, f"t{number}", "FULL", None, 1)
            accounts.revoke_token(user, accounts.tokens_of(user)[0].id, 2)
        for number in range(accounts.MAX_TOKENS_OF_ACCOUNT):
            accounts.create_token(user, f"u{number}", "FULL", None, 1)
        assert len(accounts.tokens_of(user)) == 2 * accounts.MAX_TOKENS_OF_ACCOUNT
    assert browser.send("/profile/tokens", on="/profile", name="one more").status == 409


# Sessions


def test_session_can_be_ended_by_its_owner_only(server: Server) -> None:
    browser, second = browser_of(server, "sara"), create_session(server.data, "sara")
    with open_accounts(server.data):
        newest = accounts.sessions_of(get_user_id("sara"), 0)[0]
    path = f"/profile/sessions/{newest.id}/end"
    assert browser_of(server, "mallory", admin=True).send(path, on="/profile").status == 404
    assert server.ask("GET", ME, headers=cookie(server, second)).status == 200
    assert browser.send(path, on="/profile").status == 303
    assert server.ask("GET", ME, headers=cookie(server, second)).status == 401
    assert browser.get(ME).status == 200


# Users (ADMIN only)


@pytest.mark.parametrize("path", ["/users", "/tracker/users"])
def test_users_page_requires_an_admin(server: Server, path: str) -> None:
    assert server.get(path).status == 302
    assert browser_of(server, "ulla").get(path).status == 403
    assert post_form(server, path, bearer(create_token(server.data, "ulla")), username="x", password=NEW).status == 403
    page = browser_of(server, "root", admin=True).get(path)
    assert page.status == 200
    assert "ulla" in page.text


def test_admin_creates_changes_and_deletes_users(server: Server) -> None:
    root = browser_of(server, "root", admin=True)
    assert root.send("/users", on="/users", username="newbie", password=NEW, role="USER").status == 303
    session = log_in(server, "newbie", NEW)
    user = id_of(server, "newbie")
    assert root.send(f"/users/{user}/role", on="/users", role="ADMIN").status == 303
    assert server.ask("GET", ME, headers=cookie(server, session)).json["role"] == "ADMIN"
    assert root.send(f"/users/{user}/password", on="/users", password="yet another one").status == 303
    assert server.ask("GET", ME, headers=cookie(server, session)).status == 401
    assert log_in(server, "newbie", "yet another one")
    token = create_token(server.data, "newbie")
    assert root.send(f"/users/{user}/delete", on="/users").status == 303
    assert server.ask("GET", ME, headers=bearer(token)).status == 401
    assert post_form(server, "/login", username="newbie", password="yet another one").status == 401
    for act in ("role", "password", "delete"):
        assert root.send(f"/users/{user}/{act}", on="/users", password=NEW).status == 404


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"username": "", "password": NEW}, 400), ({"username": "a b", "password": NEW}, 400),
        ({"username": "a" * 65, "password": NEW}, 400), ({"username": "a\u200bb", "password": NEW}, 400),
        ({"username": "short", "password": "1234567"}, 400), ({"username": "none"}, 400),
        ({"username": "odd", "password": NEW, "role": "GOD"}, 400), ({"username": "root", "password": NEW}, 409),
    ],
)  # fmt: skip
def test_invalid_new_user_is_refused(server: Server, fields: dict[str, str], status: int) -> None:
    root = browser_of(server, "root", admin=True)
    assert root.send("/users", on="/users", **fields).status == status


def test_last_admin_cannot_be_demoted_or_deleted(tmp_path_factory: pytest.TempPathFactory) -> None:
    security = {"admin-password": PASSWORD}
    with running_server(tmp_path_factory.mktemp("last"), tracker={"security": security}) as server:
        root = FormClient(server, log_in(server))
        user = id_of(server, "admin")
        assert root.send(f"/users/{user}/role", on="/users", role="USER").status == 409
        assert root.send(f"/users/{user}/delete", on="/users").status == 409
        assert root.get("/users").status == 200
