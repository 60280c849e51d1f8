"""Logins by a real identity provider: accounts, roles, links, and what a browser may do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest
from conftest import ROOT, TIMEOUT_SECONDS, Serve, Server, wait_for
from http_checks import running_server
from identity_providers import (
    CALLBACK,
    CLIENT_ID,
    HOST,
    PUBLIC_URL,
    SECRET,
    Browser,
    RealProvider,
    query_of,
    real_provider,
    secrets_in,
    settings,
)
from postgresql import Postgresql
from users import FormClient, bearer, create_session, create_token, ensure_user, open_accounts

from models.accounts import accounts
from models.accounts.tables import database as reports

GROUPS = {"admin-groups": ["ops"], "user-groups": ["dev"]}


@pytest.fixture(scope="module")
def provider() -> Iterator[RealProvider]:
    with real_provider() as provider:
        yield provider


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, provider: RealProvider) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("oidc"), **settings(provider.issuer, **GROUPS)) as server:
        yield server


def test_a_person_logs_in_and_gets_an_account(server: Server, provider: RealProvider) -> None:
    provider.log_in("s-ann", "ann", "dev")
    browser = Browser(server)
    answer = browser.log_in("/projects?q=a")
    assert (answer.status, answer.headers["Location"]) == (303, "/projects?q=a")
    cookie = str(answer.headers["Set-Cookie"])
    assert {"HttpOnly", "SameSite=Lax", "Max-Age=43200"} <= {part.strip() for part in cookie.split(";")}
    assert browser.me() == ("ann", "USER")
    lines = "created the user ann (USER), as reported", f"ann logged in, from {browser.address}"
    wait_for(lambda: all(f"accounts: {line}" in server.log.read_text() for line in lines))


def test_first_logins_at_once_make_one_account(server: Server, provider: RealProvider) -> None:
    provider.log_in("s-many", "many", "dev")
    browsers = [Browser(server) for _ in range(6)]
    with ThreadPoolExecutor(6) as people:
        assert [answer.status for answer in people.map(Browser.log_in, browsers)] == [303] * 6
    assert {browser.me() for browser in browsers} == {("many", "USER")}


@pytest.mark.parametrize("algorithm", ["PS256", "ES256"])
@pytest.mark.parametrize(("auth", "secret"), [("client_secret_post", SECRET), ("none", None)])
def test_other_algorithms_and_clients_log_in(serve: Serve, algorithm: str, auth: str, secret: str | None) -> None:
    with real_provider(algorithm, auth) as provider:
        server = serve(**settings(provider.issuer, **{"client-secret": secret}))
        provider.log_in("s-ann", "ann")
        browser = Browser(server)
        assert browser.log_in().status == 303
        assert browser.me() == ("ann", "USER")


def test_claims_that_only_userinfo_has_are_used(serve: Serve) -> None:
    with real_provider(claims_in="userinfo") as provider:
        server = serve(**settings(provider.issuer, **GROUPS))
        provider.log_in("s-ann", "ann", "ops")
        browser = Browser(server)
        assert browser.log_in().status == 303
        assert browser.me() == ("ann", "ADMIN")


def test_the_role_follows_the_groups_at_each_login(server: Server, provider: RealProvider) -> None:
    for groups, role in ((("ops", "dev"), "ADMIN"), (("dev",), "USER"), (("ops",), "ADMIN")):
        provider.log_in("s-gail", "gail", *groups)
        browser = Browser(server)
        assert browser.log_in().status == 303
        assert browser.me() == ("gail", role)


def test_a_person_who_lost_the_groups_is_refused_and_loses_role_and_sessions(
    server: Server, provider: RealProvider
) -> None:
    provider.log_in("s-lena", "lena", "ops")
    before, after = Browser(server), Browser(server)
    assert before.log_in().status == 303
    token = create_token(server.data, "lena")
    assert before.me() == ("lena", "ADMIN")
    provider.log_in("s-lena", "lena", "sales")
    answer = after.log_in()
    assert answer.status == 403
    assert "in none of the groups that may log in" in answer.text
    assert (before.me(), after.me()) == (401, 401)
    assert server.ask("GET", "/api/v1/me", headers=bearer(token)).json["role"] == "USER"


def test_a_person_in_no_group_gets_no_account(server: Server, provider: RealProvider) -> None:
    provider.log_in("s-nora", "nora", "sales")
    assert Browser(server).log_in().status == 403
    with open_accounts(server.data):
        assert accounts.user_named("nora") is None


def test_the_subject_is_the_identity_and_not_the_name(server: Server, provider: RealProvider) -> None:
    provider.log_in("s-iris", "iris", "dev")
    assert Browser(server).log_in().status == 303
    provider.log_in("s-iris", "iris-renamed", "dev")
    renamed = Browser(server)
    assert renamed.log_in().status == 303
    assert renamed.me() == ("iris", "USER")
    provider.log_in("s-other", "iris", "dev")
    other = Browser(server)
    assert other.log_in().status == 409, "the name is the account of somebody else"
    assert other.me() == 401


@pytest.mark.parametrize("name", ["local", "LOCAL"])
def test_a_taken_name_is_refused_until_an_admin_links_it(server: Server, provider: RealProvider, name: str) -> None:
    local, subject = ensure_user(server.data, "local"), f"s-{name}"
    admin = bearer(create_token(server.data, "chief", role="ADMIN"))
    provider.log_in(subject, name, "dev")
    answer = Browser(server).log_in()
    assert answer.status == 409
    assert subject in answer.text, "the ADMIN needs it"
    path = "/api/v1/users/local/identities"
    assert server.ask("POST", path, b"{}", admin).status == 400
    made = server.ask("POST", path, b'{"subject":"%s"}' % subject.encode(), admin)
    assert made.status == 201
    assert (made.json["issuer"], made.json["subject"]) == (provider.issuer, subject)
    assert server.ask("POST", path, b'{"subject":"%s"}' % subject.encode(), admin).status == 409
    linked = Browser(server)
    assert linked.log_in().status == 303
    assert linked.me() == ("local", "USER")
    assert [one["id"] for one in server.ask("GET", path, headers=admin).json] == [made.json["id"]]
    assert server.ask("DELETE", f"{path}/{made.json['id']}", headers=admin).status == 204
    assert server.ask("DELETE", f"{path}/{made.json['id']}", headers=admin).status == 404
    assert linked.me() == 401, "its sessions have ended"
    assert Browser(server).log_in().status == 409
    assert local.username == "local"


def test_only_an_admin_links(server: Server) -> None:
    path, user = "/api/v1/users/chief/identities", bearer(create_token(server.data, "plain"))
    ensure_user(server.data, "chief", "ADMIN")
    for method, where in (("GET", path), ("POST", path), ("DELETE", f"{path}/1")):
        assert server.ask(method, where, b'{"subject":"x"}' if method == "POST" else None).status == 401
        assert server.ask(method, where, b'{"subject":"x"}' if method == "POST" else None, user).status == 403
    admin = bearer(create_token(server.data, "chief", role="ADMIN"))
    assert server.ask("POST", "/api/v1/users/nobody/identities", b'{"subject":"x"}', admin).status == 404


def test_an_admin_links_on_the_page_of_users(server: Server, provider: RealProvider) -> None:
    user = ensure_user(server.data, "paged")
    admin = FormClient(server, create_session(server.data, "chief", "ADMIN"))
    page = f"/users/{user.id}/identities"
    assert admin.send(page, on="/users", subject="s-paged").status == 303
    assert "s-paged" in admin.get("/users").text
    again = admin.send(page, on="/users", subject="s-paged")
    assert again.status == 409
    assert "is linked to paged already" in again.text
    provider.log_in("s-paged", "whatever", "dev")
    browser = Browser(server)
    assert browser.log_in().status == 303
    assert browser.me() == ("paged", "USER")
    identity = admin.server.ask(
        "GET", "/api/v1/users/paged/identities", headers=bearer(create_token(server.data, "chief"))
    ).json[0]["id"]
    assert admin.send(f"{page}/{identity}/unlink", on="/users").status == 303
    assert browser.me() == 401


def test_without_auto_create_only_linked_people_log_in(serve: Serve, provider: RealProvider) -> None:
    server = serve(**settings(provider.issuer, **{"auto-create": False}))
    provider.log_in("s-uma", "uma")
    answer = Browser(server).log_in()
    assert answer.status == 403
    assert "s-uma" in answer.text
    ensure_user(server.data, "uma")
    assert Browser(server).log_in().status == 403, "an equal name is no link"
    admin = bearer(create_token(server.data, "chief", role="ADMIN"))
    assert server.ask("POST", "/api/v1/users/uma/identities", b'{"subject":"s-uma"}', admin).status == 201
    browser = Browser(server)
    assert browser.log_in().status == 303
    assert browser.me() == ("uma", "USER")


@pytest.mark.parametrize("name", ["", "two words", "x" * 65, "tab\tbed"])
def test_an_unusable_name_is_refused(server: Server, provider: RealProvider, name: str) -> None:
    provider.log_in(f"s-unusable-{len(name)}", name, "dev")
    answer = Browser(server).log_in()
    assert answer.status == 403
    assert "preferred_username is not usable" in answer.text


def test_rotated_keys_are_fetched(serve: Serve) -> None:
    with real_provider() as provider:
        server = serve(**settings(provider.issuer))
        provider.log_in("s-ann", "ann")
        assert Browser(server).log_in().status == 303
        provider.rotate_keys()
        assert Browser(server).log_in().status == 303


def test_a_refusal_of_the_provider_is_shown(server: Server, provider: RealProvider) -> None:
    provider.refuse("access_denied")
    answer = Browser(server).log_in()
    assert answer.status == 403
    assert "refused the login (access_denied)" in answer.text


def test_local_accounts_keep_the_login_which_offers_single_sign_on(server: Server) -> None:
    page = server.ask("GET", "/login?next=/runs/1", headers={"Accept": "text/html"})
    assert f'href="{PUBLIC_URL}/login/oidc?next=%2Fruns%2F1"' in page.text
    session = create_session(server.data, "local-user")
    assert server.ask("GET", "/api/v1/me", headers={"Cookie": f"{server.cookie}={session}"}).status == 200


def test_without_a_provider_there_is_no_single_sign_on(serve: Serve) -> None:
    server = serve()
    assert "single sign-on" not in server.get("/login").text
    for path in ("/login/oidc", "/login/oidc/callback"):
        assert server.ask("GET", path).status == 404
    admin = bearer(create_token(server.data, "chief", role="ADMIN"))
    assert server.ask("POST", "/api/v1/users/chief/identities", b'{"subject":"x"}', admin).status == 409


# State


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "/login",
        "/login/oidc",
        "/tracker/login/oidc?next=/",
        "/login/oidc/callback?state=x",
        "javascript:alert(1)",
        "%0d%0ax",
    ],
)
def test_a_login_leads_to_own_pages_only(server: Server, provider: RealProvider, target: str) -> None:
    provider.log_in("s-ann", "ann", "dev")
    answer = Browser(server).log_in(target)
    assert (answer.status, answer.headers["Location"]) == (303, "/")


def test_a_state_is_used_once_and_only_by_the_browser_that_began(server: Server, provider: RealProvider) -> None:
    provider.log_in("s-ann", "ann", "dev")
    victim, attacker = Browser(server), Browser(server)
    victim.begin()
    _, url = attacker.follow(attacker.begin(), CALLBACK)
    forced = victim.request(url)
    assert forced.status == 400, "a login of somebody else cannot be forced on a browser"
    assert "not begun in this browser" in forced.text
    assert victim.me() == 401
    assert attacker.request(url).status == 303
    assert attacker.request(url).status == 400, "it was used"


def test_several_logins_of_a_browser_can_be_open(server: Server, provider: RealProvider) -> None:
    provider.log_in("s-ann", "ann", "dev")
    browser = Browser(server)
    first, second = browser.begin("/runs"), browser.begin("/projects")
    assert query_of(first)["nonce"] != query_of(second)["nonce"]
    for url, target in ((second, "/projects"), (first, "/runs")):
        _, back = browser.follow(url, CALLBACK)
        answer = browser.request(back)
        assert (answer.status, answer.headers["Location"]) == (303, target)


@pytest.mark.parametrize("state", ["", "x", "A" * 43, "\u20ac" * 43])
def test_an_unknown_state_is_refused(server: Server, state: str) -> None:
    browser = Browser(server)
    browser.begin()
    assert browser.request(f"/login/oidc/callback?code=c&state={quote(state)}").status == 400


def test_a_state_expires(server: Server, provider: RealProvider) -> None:
    provider.log_in("s-ann", "ann", "dev")
    browser = Browser(server)
    _, url = browser.follow(browser.begin(), CALLBACK)
    with open_accounts(server.data):
        reports.execute_sql("UPDATE login_attempt SET expires_at = expires_at - 600000000")
    assert browser.request(url).status == 400


def test_the_request_has_pkce_and_everything_that_the_flow_needs(server: Server, provider: RealProvider) -> None:
    url = Browser(server).begin()
    sent = query_of(url)
    assert url.startswith(provider.discovery()["authorization_endpoint"] + "?")
    assert sent.pop("state") != sent.pop("nonce")
    assert len(sent.pop("code_challenge")) == 43
    assert sent == {
        "response_type": "code",
        "client_id": CLIENT_ID,
        "redirect_uri": CALLBACK,
        "scope": "openid profile email",
        "code_challenge_method": "S256",
    }


def test_a_login_is_not_begun_within_a_page_of_another_site(server: Server) -> None:
    picture = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert server.ask("GET", "/login/oidc", headers={"Host": HOST, **picture}).status == 403
    assert server.ask("GET", "/login/oidc", headers={"Host": HOST, **link}).status == 303


def test_begun_logins_of_an_address_are_limited(server: Server) -> None:
    one, other = {"X-Forwarded-For": "203.0.113.7"}, {"X-Forwarded-For": "203.0.113.8"}
    assert {server.ask("GET", "/login/oidc", headers=one).status for _ in range(100)} == {303}
    answer = server.ask("GET", "/login/oidc", headers=one)
    assert answer.status == 429
    assert answer.headers["Retry-After"] == "60"
    assert server.ask("GET", "/login/oidc", headers=other).status == 303


def test_failed_callbacks_of_an_address_are_limited(server: Server) -> None:
    headers = {"X-Forwarded-For": "203.0.113.9"}
    path = f"/login/oidc/callback?code=c&state={'A' * 43}"
    statuses = [server.ask("GET", path, headers=headers).status for _ in range(20)]
    assert set(statuses) == {400}
    assert server.ask("GET", path, headers=headers).status == 429
    assert server.ask("GET", path, headers={"X-Forwarded-For": "203.0.113.10"}).status == 400


def test_no_secret_is_shown_or_stored(server: Server, provider: RealProvider) -> None:
    provider.log_in("s-ann", "ann", "dev")
    browser = Browser(server)
    url = browser.begin()
    browser_id = browser.jars[server.port][f"{server.cookie}_oidc"]
    _, back = browser.follow(url, CALLBACK)
    assert browser.request(back).status == 303
    sent = query_of(url)
    assert SECRET in server.file.read_text()
    assert secrets_in(server.data, SECRET, browser_id, sent["nonce"]) == []
    log = server.log.read_text()
    assert [text for text in (SECRET, browser_id, sent["nonce"], query_of(back)["code"]) if text in log] == []


# Two nodes


def test_a_login_may_end_at_another_node(serve: Serve, provider: RealProvider, postgresql: Postgresql) -> None:
    config = settings(provider.issuer)
    config["server"]["database-url"] = postgresql.fresh()
    first, second = serve(**config), serve(**config)
    provider.log_in("s-ann", "ann")
    browser = Browser(first)
    _, url = browser.follow(browser.begin(), CALLBACK)
    browser.jars[second.port], browser.server = browser.jars[first.port], second
    assert browser.request(url).status == 303
    assert browser.me() == ("ann", "USER")
    browser.server = first
    assert browser.request(url).status == 400, "it was used at the other node"
    provider.log_in("s-other", "ann")
    assert Browser(second).log_in().status == 409


# The start


def test_a_server_without_the_extra_does_not_start(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "missing").mkdir()
    (tmp_path / "missing" / "jwt.py").write_text("raise ImportError('it is not installed')")
    environ = {"PYTHONPATH": str(tmp_path / "missing")}
    config = settings("https://login.example")
    server = serve(**config, environ=environ, wait=False).launch()
    assert server.process is not None
    assert server.process.wait(TIMEOUT_SECONDS) == 1
    assert "tracker.security.oidc needs the extra `crypto`" in server.log.read_text()


def test_the_library_is_loaded_only_where_a_provider_is_configured() -> None:
    probe = "import sys, handlers.app, supervisor.services; print(sorted({'jwt', 'cryptography'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_secret_may_stand_in_a_file(serve: Serve, provider: RealProvider, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    server = serve(**settings(provider.issuer, **{"client-secret": None, "client-secret-file": str(file)}))
    provider.log_in("s-ann", "ann")
    assert Browser(server).log_in().status == 303
    file.write_text("another\n")
    answer = Browser(server).log_in()
    assert answer.status == 403
    assert "refused the login (401, invalid_client)" in answer.text
