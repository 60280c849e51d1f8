"""Login and logout by form: cookies, the XSRF token, redirects, and limits of failed logins."""

from __future__ import annotations

import contextlib
import http.client
import ssl
from collections.abc import Iterator
from html import escape
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
import trustme
from conftest import Answer, Serve, Server
from http_checks import running_server, send_raw
from users import (
    FORM,
    PASSWORD,
    FormClient,
    bearer,
    cookie,
    cookies_of,
    create_session,
    create_token,
    ensure_user,
    log_in,
    open_accounts,
    post_form,
)

from handlers.accounts.account import local_path
from models.accounts import accounts

ME = "/api/v1/me"
ERROR_MESSAGE = "The user name or the password is not right."
ADMIN = {"admin-password": PASSWORD}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    # high limits: only the tests of throttling reach them
    security = {**ADMIN, "login-failures": {"per-minute": 1000, "per-name-per-hour": 1000}}
    with running_server(tmp_path_factory.mktemp("login"), tracker={"security": security}) as server:
        yield server


def user_of(server: Server, session: str) -> str | None:
    answer = server.ask("GET", ME, headers=cookie(server, session))
    return str(answer.json["username"]) if answer.status == 200 else None


# The form


@pytest.mark.parametrize("path", ["/login", "/tracker/login", "/charts/login", "/supervision/login"])
def test_login_form_has_labels_an_xsrf_token_and_its_prefix(server: Server, path: str) -> None:
    answer = server.get(path)
    assert answer.status == 200
    for part in (
        'name="username"', 'name="password"', 'type="password"', 'name="_xsrf"', '<label for="username"',
        '<label for="password"', f'action="{path}"', 'method="post"',
    ):  # fmt: skip
        assert part in answer.text
    assert "<script>" not in answer.text
    assert answer.headers["Cache-Control"] == "no-store"


def test_login_outside_a_browser_needs_no_xsrf_token(server: Server) -> None:
    answer = post_form(server, "/login", username="admin", password=PASSWORD)
    assert (answer.status, answer.headers["Location"], answer.body) == (303, "/", b"")
    session = cookies_of(answer)[server.cookie].partition(";")[0]
    assert len(session) == 43
    assert user_of(server, session) == "admin"


def test_a_browser_logs_in_and_out(server: Server) -> None:
    browser = FormClient(server)
    answer = browser.send("/login", on="/login", username="admin", password=PASSWORD, next="/profile")
    assert (answer.status, answer.headers["Location"]) == (303, "/profile")
    assert "admin" in browser.get("/profile").text
    session = browser.jar[server.cookie]
    answer = browser.send("/logout", on="/profile")
    assert (answer.status, answer.headers["Location"]) == (303, "/login")
    assert server.cookie not in browser.jar
    assert user_of(server, session) is None
    assert browser.get("/profile").status == 302


def test_session_cookie_is_http_only_and_same_site(server: Server) -> None:
    outcome = cookies_of(post_form(server, "/login", username="admin", password=PASSWORD))
    assert list(outcome) == [server.cookie]
    attributes = {word.strip() for word in outcome[server.cookie].split(";")[1:]}
    assert attributes == {"HttpOnly", "SameSite=Lax", "Path=/", "Max-Age=2592000"}


def test_xsrf_cookie_is_named_after_the_port(server: Server) -> None:
    outcome = cookies_of(server.get("/login"))
    assert list(outcome) == [f"{server.cookie}_xsrf"]
    attributes = {word.strip() for word in outcome[f"{server.cookie}_xsrf"].split(";")[1:]}
    assert attributes == {"HttpOnly", "SameSite=Lax", "Path=/"}


def test_login_creates_a_new_session_and_ends_the_presented_one(server: Server) -> None:
    first, second = log_in(server), log_in(server)
    assert first != second
    assert (user_of(server, first), user_of(server, second)) == ("admin", "admin")
    answer = FormClient(server, first).send("/login", on="/login", username="admin", password=PASSWORD)
    third = cookies_of(answer)[server.cookie].partition(";")[0]
    assert third not in (first, second)
    assert (user_of(server, first), user_of(server, second), user_of(server, third)) == (None, "admin", "admin")


def test_session_id_chosen_by_the_client_is_not_adopted(server: Server) -> None:
    answer = post_form(server, "/login", cookie(server, "planted"), username="admin", password=PASSWORD)
    assert cookies_of(answer)[server.cookie].partition(";")[0] != "planted"
    assert user_of(server, "planted") is None


@pytest.mark.parametrize(
    "fields",
    [
        {"username": "admin", "password": "wrong password"}, {"username": "nobody", "password": PASSWORD},
        {"username": "admin"}, {"password": PASSWORD}, {}, {"username": "admin", "password": PASSWORD + " "},
        {"username": "Admin", "password": PASSWORD}, {"username": "admin", "password": PASSWORD.upper()},
        {"username": "' OR 1=1 --", "password": "x"}, {"username": "a" * 20_000, "password": "b" * 20_000},
        {"username": "<script>alert(1)</script>", "password": "x"}, {"username": "ü", "password": "日本"},
    ],
)  # fmt: skip
def test_failed_login_is_401_with_the_form_and_a_generic_message(server: Server, fields: dict[str, str]) -> None:
    answer = post_form(server, "/login", **fields)
    assert answer.status == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert ERROR_MESSAGE in answer.text
    assert 'name="password"' in answer.text
    assert server.cookie not in cookies_of(answer)
    assert "<script>alert" not in answer.text
    assert f'value="{fields.get("password", PASSWORD)}"' not in answer.text


def test_user_name_is_trimmed_and_password_is_not(server: Server) -> None:
    ensure_user(server.data, "spacy", password=" with spaces ")
    assert log_in(server, " spacy ", " with spaces ")
    assert post_form(server, "/login", username="spacy", password="with spaces").status == 401


def test_login_form_may_be_multipart(server: Server) -> None:
    parts = "".join(
        f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in {"username": "admin", "password": PASSWORD}.items()
    )
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    assert server.ask("POST", "/login", f"{parts}--b--\r\n".encode(), headers).status == 303


def test_login_form_over_its_size_limit_is_413(server: Server) -> None:
    assert post_form(server, "/login", username="admin", password="x" * 70_000).status == 413


@pytest.mark.parametrize("body", [b"username=%FF%FE&password=x", b"username=a%00b&password=x"])
def test_login_form_with_invalid_text_is_400(server: Server, body: bytes) -> None:
    assert server.ask("POST", "/login", body, {"Content-Type": FORM}).status == 400


def test_wrong_methods_are_405(server: Server) -> None:
    assert server.ask("PUT", "/login").headers["Allow"] == "GET, POST, HEAD, OPTIONS"
    assert server.ask("GET", "/logout").headers["Allow"] == "POST, OPTIONS"
    assert server.ask("OPTIONS", "/login").status == 204
    assert server.ask("HEAD", "/login").body == b""


# Redirects


@pytest.mark.parametrize(
    "path",
    ["/", "/profile", "/runs/5", "/projects/1?branch=a%2Fb&x=1", "/tracker/profile", "/a//b", "/x#y", "/?next=//evil",
     "/processes/login"],
)  # fmt: skip
def test_login_redirects_to_a_local_path(server: Server, path: str) -> None:
    assert f'name="next" value="{escape(path)}"' in server.get(f"/login?next={quote(path, safe='')}").text
    assert local_path(path) == path


@pytest.mark.parametrize("path", ["/login", "/login?next=%2Fprofile", "/tracker/login", "/logout", "/charts/logout#x"])
def test_a_login_does_not_redirect_to_the_login_or_the_logout(path: str) -> None:
    assert local_path(path) == "/"


@pytest.mark.parametrize("where", ["body", "query"])
def test_redirect_target_is_a_form_field_or_a_query_parameter(server: Server, where: str) -> None:
    path = "/projects/1?branch=a%2Fb&x=1"
    uri, fields = ("/login", {"next": path}) if where == "body" else (f"/login?next={quote(path, safe='')}", {})
    answer = post_form(server, uri, username="admin", password=PASSWORD, **fields)
    assert (answer.status, answer.headers["Location"]) == (303, path)


@pytest.mark.parametrize(
    "path",
    [
        "//evil.example", "/\\evil.example", "\\\\evil.example", "https://evil.example/", "http:evil", "evil.example",
        "javascript:alert(1)", "/a\\b", "/\t/evil.example", "/\n/evil.example", "\t//evil.example", "/a\r\nX-Y: z",
        "/ü", "/a b", "", " ", "///evil.example", "/" + "a" * 3000, "/\x7f", "profile", "?x", "data:text/html,x",
    ],
)  # fmt: skip
def test_login_form_replaces_foreign_redirect_targets(server: Server, path: str) -> None:
    assert local_path(path) == "/"
    page = server.get(f"/login?next={quote(path, safe='')}")
    assert 'name="next" value="/"' in page.text


@pytest.mark.parametrize("path", ["//evil.example", "https://evil.example/", "/a\r\nX-Y: z"])
def test_login_with_a_foreign_target_redirects_to_the_start_page(server: Server, path: str) -> None:
    answer = post_form(server, "/login", username="admin", password=PASSWORD, next=path)
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    assert "X-Y" not in answer.headers


def test_failed_login_keeps_the_redirect_target(server: Server) -> None:
    answer = post_form(server, "/login", username="admin", password="wrong", next="/runs/5?a=1&b=2")
    assert 'name="next" value="/runs/5?a=1&amp;b=2"' in answer.text


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/profile", "/login?next=%2Fprofile"),
        ("/tracker/profile", "/tracker/login?next=%2Ftracker%2Fprofile"),
        ("/charts/profile?a=b", "/charts/login?next=%2Fcharts%2Fprofile%3Fa%3Db"),
        ("/users", "/login?next=%2Fusers"),
    ],
)
@pytest.mark.parametrize("accept", ["text/html", "*/*", "application/json"])
def test_page_that_requires_a_session_redirects_to_the_login_and_back(
    server: Server, path: str, location: str, accept: str
) -> None:
    answer = server.get(path, Accept=accept)
    assert (answer.status, answer.headers["Location"]) == (302, location)
    session = log_in(server)
    answer = post_form(server, location, username="admin", password=PASSWORD)
    assert answer.headers["Location"] == path
    assert server.ask("GET", path, headers=cookie(server, session)).status == 200


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/profile/tokens", "/login?next=%2Fprofile"),
        ("/tracker/profile/password", "/tracker/login?next=%2Ftracker%2Fprofile"),
        ("/users/1/delete", "/login?next=%2Fusers"),
    ],
)
def test_form_without_a_session_redirects_to_the_login_for_its_page(server: Server, path: str, location: str) -> None:
    answer = post_form(server, path, name="x")
    assert (answer.status, answer.headers["Location"]) == (302, location)


def test_logging_out_keeps_the_prefix_and_needs_no_session(server: Server) -> None:
    answer = post_form(server, "/tracker/logout")
    assert (answer.status, answer.headers["Location"]) == (303, "/tracker/login")


# The XSRF token


@pytest.mark.parametrize("fetch_headers", [{"Sec-Fetch-Site": "same-origin"}, {"Origin": "http://127.0.0.1:{port}"}])
@pytest.mark.parametrize("given", ["none", "wrong", "without its cookie"])
def test_login_in_a_browser_requires_the_xsrf_token(server: Server, fetch_headers: dict[str, str], given: str) -> None:
    browser = FormClient(server)
    fields = {"username": "admin", "password": PASSWORD}
    headers = {name: value.format(port=server.port) for name, value in fetch_headers.items()}
    token = browser.xsrf("/login")
    if given == "wrong":
        fields["_xsrf"] = token[:-12] + "000000000000"
        headers["Cookie"] = f"{server.cookie}_xsrf=2|00000000|11111111111111111111111111111111|1"
    elif given == "without its cookie":
        fields["_xsrf"] = token
    answer = post_form(server, "/login", headers, **fields)
    assert answer.status == 403
    assert server.cookie not in cookies_of(answer)


FORMS = [
    "/logout", "/profile", "/profile/mails", "/profile/password", "/profile/tokens", "/profile/tokens/1/revoke",
    "/profile/sessions/1/end", "/users", "/users/1/role", "/users/1/password", "/users/1/delete",
]  # fmt: skip


@pytest.mark.parametrize("path", FORMS)
@pytest.mark.parametrize("browser", [True, False])
def test_every_form_with_a_session_requires_the_xsrf_token(server: Server, path: str, browser: bool) -> None:
    session = create_session(server.data, "xena", "ADMIN")
    headers = cookie(server, session) | ({"Sec-Fetch-Site": "same-origin"} if browser else {})
    for fields in ({}, {"_xsrf": ""}, {"_xsrf": "2|a|b|c"}, {"_xsrf": "x"}):
        assert post_form(server, path, headers, **fields).status == 403
    assert user_of(server, session) == "xena"


@pytest.mark.parametrize("path", [*FORMS, "/login"])
@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}])
def test_forms_posted_by_another_site_are_refused(server: Server, path: str, headers: dict[str, str]) -> None:
    session = create_session(server.data, "xena", "ADMIN")
    fields = {"username": "admin", "password": PASSWORD}
    assert post_form(server, path, headers | cookie(server, session), **fields).status == 403
    assert user_of(server, session) == "xena"


def test_form_with_a_bearer_token_outside_a_browser_needs_no_xsrf_token(server: Server) -> None:
    token = create_token(server.data, "toby")
    assert post_form(server, "/profile", bearer(token), displayName="Toby").status == 303
    headers = bearer(token) | {"Sec-Fetch-Site": "same-origin"}
    assert post_form(server, "/profile", headers, displayName="Else").status == 403
    assert server.ask("GET", ME, headers=bearer(token)).json["displayName"] == "Toby"


# Limits of failed logins


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Has low limits; each test uses its own user names."""
    security = {**ADMIN, "login-failures": {"per-minute": 3, "per-name-per-hour": 5}}
    proxies = {"trusted-proxies": ["127.0.0.0/8"]}
    with running_server(tmp_path_factory.mktemp("strict"), server=proxies, tracker={"security": security}) as server:
        for name in ("sam", "sim", "som", "known"):
            ensure_user(server.data, name)
        yield server


def try_login(server: Server, name: str, address: str, password: str = "wrong") -> Answer:  # noqa: S107 (a wrong one)
    headers = {"X-Forwarded-For": f"203.0.113.9, {address}"}
    return post_form(server, "/login", headers, username=name, password=password)


@pytest.mark.parametrize("name", ["known", "nobody"])
def test_failed_logins_are_throttled_for_known_and_unknown_names(strict: Server, name: str) -> None:
    assert [try_login(strict, name, "10.0.0.1").status for _ in range(4)] == [401, 401, 401, 429]
    answer = try_login(strict, name, "10.0.0.1", PASSWORD)
    assert answer.status == 429, "the right password too"
    assert 1 <= int(answer.headers["Retry-After"]) <= 60
    assert log_in(strict, "sam"), "another name is not throttled"
    assert [try_login(strict, name, "10.0.0.2").status for _ in range(3)] == [401, 401, 429], "throttled by name"
    answer = try_login(strict, name, "10.0.0.3")
    assert answer.status == 429
    assert 60 < int(answer.headers["Retry-After"]) <= 3600


def test_successful_logins_do_not_count_as_failures(strict: Server) -> None:
    for _ in range(6):
        assert log_in(strict, "sim")
    assert [try_login(strict, "sim", "127.0.0.1").status for _ in range(2)] == [401, 401]
    assert log_in(strict, "sim")


def test_wrong_current_passwords_count_as_failed_logins(strict: Server) -> None:
    browser = FormClient(strict, create_session(strict.data, "som"))
    fields = {"currentPassword": "wrong", "newPassword": "another password"}
    result = [browser.send("/profile/password", on="/profile", **fields).status for _ in range(4)]
    assert result == [400, 400, 400, 429]


def test_a_forwarding_header_of_an_untrusted_client_is_ignored(serve: Serve) -> None:
    limits = {"per-minute": 2, "per-name-per-hour": 1000}
    server = serve(tracker={"security": {**ADMIN, "login-failures": limits}})
    assert [try_login(server, "admin", f"10.0.0.{n}").status for n in range(3)] == [401, 401, 429]


def test_concurrent_logins_do_not_exceed_the_limit(strict: Server) -> None:
    body = urlencode({"username": "many", "password": "wrong"})
    request = (
        f"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Content-Type: {FORM}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    )
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(12) as callers:
        result = sorted(one.status for one in callers.map(lambda _: send_raw(strict, request), range(12)))
    assert result == [401] * 3 + [429] * 9


# TLS


def test_cookies_are_secure_if_a_trusted_proxy_reports_https(strict: Server) -> None:
    for proto, secure in (("https", True), ("http, https", True), ("http", False), ("https, http", False)):
        outcome = cookies_of(
            post_form(strict, "/login", {"X-Forwarded-Proto": proto}, username="admin", password=PASSWORD)
        )
        assert ("Secure" in outcome[strict.cookie]) is secure
    assert "Secure" in cookies_of(strict.get("/login", X_Forwarded_Proto="https"))[f"{strict.cookie}_xsrf"]


def test_an_untrusted_client_does_not_make_cookies_secure(server: Server) -> None:
    outcome = cookies_of(
        post_form(server, "/login", {"X-Forwarded-Proto": "https"}, username="admin", password=PASSWORD)
    )
    assert "Secure" not in outcome[server.cookie]


def test_cookies_are_secure_under_tls(serve: Serve, tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(str(chain))
    issued.private_key_pem.write_to_path(str(key))
    server = serve(server={"tls": {"certificate": str(chain), "key": str(key)}}, tracker={"security": ADMIN})
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with contextlib.closing(http.client.HTTPSConnection("127.0.0.1", server.port, context=context)) as connection:
        body = urlencode({"username": "admin", "password": PASSWORD})
        connection.request("POST", "/login", body, {"Content-Type": FORM})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 303
        assert "; Secure" in (answer.headers["Set-Cookie"] or "")
        connection.request("GET", "/login")
        assert "; Secure" in (connection.getresponse().headers["Set-Cookie"] or "")


# Sessions


def test_session_expires_after_the_configured_lifetime(serve: Serve) -> None:
    server = serve(tracker={"security": {**ADMIN, "session-lifetime": "2h"}})
    outcome = cookies_of(post_form(server, "/login", username="admin", password=PASSWORD))[server.cookie]
    assert "Max-Age=7200;" in outcome
    with open_accounts(server.data):
        (kept,) = accounts.sessions_of(get_user_id("admin"), 0)
        assert kept.expires_at - kept.created_at == 7200 * 1_000_000
        session = outcome.partition(";")[0]
        assert accounts.by_session(session, kept.expires_at - 1) is not None
        assert accounts.by_session(session, kept.expires_at) is None


def test_session_survives_a_restart_of_the_server(serve: Serve) -> None:
    server = serve(tracker={"security": ADMIN})
    session = log_in(server)
    server.kill()
    server.start()
    assert user_of(server, session) == "admin"


def test_sessions_of_one_account_are_bounded(server: Server) -> None:
    first = create_session(server.data, "many")
    later = [create_session(server.data, "many") for _ in range(accounts.MAX_SESSIONS_OF_ACCOUNT)]
    assert (user_of(server, first), user_of(server, later[-1])) == (None, "many")
    with open_accounts(server.data):
        assert len(accounts.sessions_of(get_user_id("many"), 0)) == accounts.MAX_SESSIONS_OF_ACCOUNT


def get_user_id(name: str) -> int:
    user = accounts.user_named(name)
    assert user is not None
    return user.id


def test_session_cookie_is_named_after_the_port_chosen_by_the_system(serve: Serve) -> None:
    one, two = (serve(tracker={"security": ADMIN}) for _ in range(2))
    assert one.port != two.port
    session = log_in(one)
    assert user_of(one, session) == "admin"
    assert two.get(ME, Cookie=f"{two.cookie}={session}").status == 401
