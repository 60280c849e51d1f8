"""Credentials: which are accepted, their precedence, and the responses to invalid, expired or limited ones."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import changed_constants
import pytest
from conftest import Serve, Server, wait_for
from http_checks import check_problem, check_service_error, json_body, running_server
from users import (
    RAW_TOKEN,
    bearer,
    cookie,
    cookies_of,
    create_session,
    create_token,
    ensure_user,
    log_in,
    now,
    open_accounts,
)

from models.accounts import accounts

ME = "/api/v1/me"
READ = "/api/v1/processes"
IDLE = {"idle": {"command": "true", "stdout-logfile": "idle.log"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("credentials"), IDLE) as server:
        yield server


@pytest.fixture(scope="module")
def token(server: Server) -> str:
    return create_token(server.data, "tess")


@pytest.fixture(scope="module")
def other(server: Server) -> str:
    return create_token(server.data, "otto")


# /me


@pytest.mark.parametrize("path", [ME, "/tracker/api/v1/me"])
def test_me_returns_the_account_with_the_specified_fields_in_order(server: Server, path: str, token: str) -> None:
    outcome = json_body(server.ask("GET", path, headers=bearer(token)))
    assert outcome == {"username": "tess", "displayName": None, "email": None, "role": "USER"}
    assert list(outcome) == ["username", "displayName", "email", "role"]


def test_me_returns_the_data_of_the_profile(server: Server) -> None:
    token, user = create_token(server.data, "dora", role="ADMIN"), ensure_user(server.data, "dora")
    with open_accounts(server.data):
        accounts.set_profile(user.id, " Dora Ü ", "dora@example.org")
    outcome = json_body(server.ask("GET", ME, headers=bearer(token)))
    assert outcome == {"username": "dora", "displayName": "Dora Ü", "email": "dora@example.org", "role": "ADMIN"}


@pytest.mark.parametrize("path", [ME, "/tracker/api/v1/me"])
def test_me_needs_an_account_in_open_mode_too(server: Server, path: str) -> None:
    answer = server.get(path)
    check_problem(answer, 401, path, has_timestamp=False)
    assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_me_accepts_a_session_cookie(server: Server) -> None:
    assert (
        json_body(server.ask("GET", ME, headers=cookie(server, create_session(server.data, "sam"))))["username"]
        == "sam"
    )


def test_head_of_me_requires_a_credential_too(server: Server, token: str) -> None:
    assert server.ask("HEAD", ME).status == 401
    assert server.ask("HEAD", ME, headers=bearer(token)).status == 200


# Precedence


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer {token}"}, {"Authorization": "bearer {token}"}, {"Authorization": "BEARER  {token}"},
        {"X-Tracker-Token": "{token}"}, {"x-tracker-token": " {token} "},
        {"X-Tracker-Token": "{token}", "Authorization": "Bearer {other}"},
        {"X-Tracker-Token": "{token}", "Authorization": "Bearer nonsense"},
        {"X-Tracker-Token": "{token}", "Authorization": "Basic eDp5"},
        {"X-Tracker-Token": "", "Authorization": "Bearer {token}"},
        {"Authorization": "Bearer {token}", "Cookie": "{cookie}={session}"},
        {"Authorization": "Bearer {token}", "Cookie": "{cookie}=dead"},
    ],
)  # fmt: skip
def test_token_in_either_header_takes_precedence(
    server: Server, token: str, other: str, headers: dict[str, str]
) -> None:
    session = create_session(server.data, "sam")
    filled = {
        name: value.format(token=token, other=other, session=session, cookie=server.cookie)
        for name, value in headers.items()
    }
    assert json_body(server.ask("GET", ME, headers=filled))["username"] == "tess"


@pytest.mark.parametrize("scheme", ["Basic", "Token", "Negotiate", "Bear"])
def test_other_authorization_schemes_are_ignored(server: Server, token: str, scheme: str) -> None:
    headers = {"Authorization": f"{scheme} {token}"}
    assert server.ask("GET", READ, headers=headers).status == 200
    assert server.ask("GET", ME, headers=headers).status == 401
    session = cookie(server, create_session(server.data, "sam"))
    assert json_body(server.ask("GET", ME, headers=headers | session))["username"] == "sam"


def test_a_cookie_of_another_port_is_ignored(server: Server) -> None:
    session = create_session(server.data, "sam")
    for name in ("pilothouse", f"pilothouse_{server.port + 1}", "session"):
        assert server.get(ME, Cookie=f"{name}={session}").status == 401


# Invalid tokens


def altered(token: str) -> str:
    return token[:-1] + ("A" if token[-1] != "A" else "B")


PATHS = [
    (ME, "tracker"), (READ, "supervision"), ("/api/v1/events", "supervision"), ("/tracker/api/v1/events", "tracker"),
    ("/", None), ("/login", None), ("/profile", None), ("/healthz", None), ("/metrics", None),
    ("/static/app.css", None), ("/api/v1/processes/stream", "supervision"), ("/tracker/login", None),
]  # fmt: skip


@pytest.mark.parametrize(("path", "service"), PATHS)
@pytest.mark.parametrize("kind", ["altered", "expired", "revoked", "deleted", "session"])
def test_invalid_token_is_401_on_every_path(server: Server, path: str, service: str | None, kind: str) -> None:
    answer = server.ask("GET", path, headers=bearer(invalid_token(server, kind)))
    assert answer.status == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert not RAW_TOKEN.search(answer.text)
    if service:
        check_service_error(service, answer, 401, path)


_cached_tokens: dict[tuple[int, str], str] = {}


def invalid_token(server: Server, kind: str) -> str:
    """Returns a token of this kind; the same one at each call for a server."""
    if (server.port, kind) not in _cached_tokens:
        _cached_tokens[server.port, kind] = _create_invalid_token(server, kind)
    return _cached_tokens[server.port, kind]


def _create_invalid_token(server: Server, kind: str) -> str:
    if kind == "expired":
        return create_token(server.data, "bad", expires_at=now() - 1)
    if kind == "session":
        return create_session(server.data, "bad")
    raw = create_token(server.data, f"bad-{kind}", role="ADMIN")
    user = ensure_user(server.data, f"bad-{kind}")
    with open_accounts(server.data):
        if kind == "revoked":
            accounts.revoke_token(user.id, accounts.tokens_of(user.id)[0].id, now())
        elif kind == "deleted":
            accounts.delete_user(user.id)
    return altered(raw) if kind == "altered" else raw


def test_token_expires_at_its_expiry_time(server: Server) -> None:
    end = now() + 3600 * 1_000_000
    token = create_token(server.data, "tess", expires_at=end)
    assert server.ask("GET", ME, headers=bearer(token)).status == 200
    with open_accounts(server.data):
        assert accounts.by_token(token, end - 1) is not None
        assert accounts.by_token(token, end) is None


def test_revoked_token_is_refused_at_once(server: Server) -> None:
    token, user = create_token(server.data, "rita"), ensure_user(server.data, "rita")
    assert server.ask("GET", ME, headers=bearer(token)).status == 200
    with open_accounts(server.data):
        accounts.revoke_token(user.id, accounts.tokens_of(user.id)[0].id, now())
    assert server.ask("GET", ME, headers=bearer(token)).status == 401


def test_role_change_applies_to_existing_tokens(server: Server) -> None:
    token, user = create_token(server.data, "rolf"), ensure_user(server.data, "rolf")
    assert json_body(server.ask("GET", ME, headers=bearer(token)))["role"] == "USER"
    with open_accounts(server.data):
        accounts.set_role(user.id, "ADMIN")
    assert json_body(server.ask("GET", ME, headers=bearer(token)))["role"] == "ADMIN"


# Invalid session cookies


@pytest.mark.parametrize("path", [READ, "/", "/login", "/healthz", "/api/v1/nope"])
@pytest.mark.parametrize("kind", ["unknown", "expired"])
def test_invalid_session_cookie_is_cleared_and_anonymous(server: Server, path: str, kind: str) -> None:
    session = "unknown" if kind == "unknown" else create_session(server.data, "sam", lifetime=-1)
    answer, without = server.ask("GET", path, headers=cookie(server, session)), server.get(path)
    assert answer.status == without.status
    cleared = cookies_of(answer)[server.cookie]
    assert cleared.startswith('"";')
    assert "expires=" in cleared.lower()
    assert "Path=/" in cleared


def test_invalid_session_cookie_is_cleared_where_an_account_is_required(server: Server) -> None:
    answer = server.ask("GET", ME, headers=cookie(server, "dead"))
    check_problem(answer, 401, ME, has_timestamp=False)
    assert cookies_of(answer)[server.cookie].startswith('""')
    answer = server.ask("GET", "/profile", headers=cookie(server, "dead"))
    assert (answer.status, answer.headers["Location"]) == (302, "/login?next=%2Fprofile")
    assert cookies_of(answer)[server.cookie].startswith('""')


@pytest.mark.parametrize("path", ["/tracker/api/v1/events", "/api/v1/processes/stream"])
def test_invalid_session_cookie_is_cleared_by_a_stream(server: Server, path: str) -> None:
    stream = server.stream(path, **cookie(server, "dead"))
    try:
        assert stream.status == 200
        assert stream.headers.get_all("Set-Cookie") == [f'{server.cookie}=""; Max-Age=0; Path=/']
    finally:
        stream.close()


def test_valid_session_cookie_is_not_set_again(server: Server) -> None:
    answer = server.ask("GET", READ, headers=cookie(server, create_session(server.data, "sam")))
    assert (answer.status, cookies_of(answer)) == (200, {})


# The scope INGEST


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ME), ("GET", READ), ("GET", "/api/v1/events"), ("GET", "/tracker/api/v1/events"), ("GET", "/"),
        ("GET", "/profile"), ("GET", "/metrics"), ("POST", "/profile/tokens"), ("GET", "/tracker/api/v1/me"),
        ("GET", "/api/v1/gate?project=p&branch=b"), ("POST", "/api/v1/processes/stop/idle"), ("GET", "/users"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("role", ["USER", "ADMIN"])
def test_a_token_of_scope_ingest_may_only_post_reports(server: Server, method: str, path: str, role: str) -> None:
    token = _cached_tokens.setdefault(
        (server.port, f"ingest-{role}"),
        create_token(server.data, f"ci-{role}", "INGEST", "ADMIN" if role == "ADMIN" else "USER"),
    )
    answer = server.ask(method, path, headers=bearer(token))
    assert answer.status == 403
    assert "INGEST" in answer.text


# Stored secrets


def test_secrets_are_in_no_file_or_log_in_plain_text(serve: Serve) -> None:
    password = "a very secret password"
    server = serve({}, tracker={"security": {"admin-password": password}})
    session, token = log_in(server, "admin", password), create_token(server.data, "admin")
    assert server.ask("GET", ME, headers=cookie(server, session)).status == 200
    assert server.ask("GET", ME, headers=bearer(token)).status == 200
    assert server.ask("GET", ME, headers=bearer(altered(token))).status == 401
    server.stop()
    for file in [*(one for one in server.data.rglob("*") if one.is_file()), server.log]:
        content = file.read_bytes()
        for secret in (session, token, altered(token), password):
            assert secret.encode() not in content, file


def test_last_use_of_a_token_is_stored_once_a_minute(serve: Serve) -> None:
    server = serve({})
    token, user = create_token(server.data, "tess"), ensure_user(server.data, "tess")

    def used() -> int | None:
        with open_accounts(server.data):
            return accounts.tokens_of(user.id)[0].last_used_at

    assert used() is None
    before = now()
    assert server.ask("GET", ME, headers=bearer(token)).status == 200
    first = wait_for(used)
    assert before <= first <= now()
    for _ in range(5):
        assert server.ask("GET", ME, headers=bearer(token)).status == 200
    server.stop()  # flushes pending writes
    assert used() == first
    with open_accounts(server.data):
        accounts.write_uses([(accounts.tokens_of(user.id)[0].id, now() - 61_000_000)])
    server.start()
    assert server.ask("GET", ME, headers=bearer(token)).status == 200
    assert server.stop() == 0
    last = used()
    assert last is not None
    assert last > first


def test_locked_store_does_not_delay_authentication(serve: Serve) -> None:
    patient = changed_constants.server_command(models__storage__sqlite___PATIENCE=600_000)  # longer than a request
    server = serve({}, command=patient)
    token = create_token(server.data, "tess")
    with sqlite3.connect(server.data / "tracker.db", isolation_level=None) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for _ in range(3):
            assert server.ask("GET", ME, headers=bearer(token)).status == 200
        connection.execute("ROLLBACK")
    connection.close()
