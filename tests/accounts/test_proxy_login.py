"""Accounts that a trusted proxy reports in a header (`tracker.security.proxy-login`)."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from conftest import Serve, Server, Stream, wait_for
from http_checks import read_response, running_server
from users import FormClient, bearer, cookie, create_session, create_token, ensure_user, open_accounts, post_form

from models.accounts import accounts

ME = "/api/v1/me"
USER, GROUPS = "X-Remote-User", "X-Remote-Groups"
PROXY = {"trusted-proxies": ["127.0.0.1"]}
LOGIN = {"header": USER, "groups-header": GROUPS, "admin-groups": ["ops", "root users"]}


def settings(**login: Any) -> dict[str, Any]:
    return {"server": PROXY, "tracker": {"security": {"open-mode": False, "proxy-login": {**LOGIN, **login}}}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("proxied"), **settings()) as server:
        yield server


def me(server: Server, headers: dict[str, str]) -> tuple[str, str]:
    answer = server.ask("GET", ME, headers=headers)
    assert answer.status == 200, answer
    return answer.json["username"], answer.json["role"]


def from_address(server: Server, address: str, headers: dict[str, str]) -> int:
    """The status of a request whose connection comes from another address of this machine."""
    with contextlib.closing(
        http.client.HTTPConnection("127.0.0.1", server.port, timeout=60, source_address=(address, 0))
    ) as connection:
        connection.request("GET", ME, headers=headers)
        return connection.getresponse().status


def test_an_unknown_account_is_created_at_its_first_request(server: Server) -> None:
    assert me(server, {USER: "ann"}) == ("ann", "USER")
    assert me(server, {"x-remote-user": " ann "}) == ("ann", "USER")
    wait_for(lambda: "accounts: created the user ann (USER), as reported" in server.log.read_text())
    assert post_form(server, "/login", username="ann", password="!").status == 401, "it has no password"


def test_first_requests_at_once_make_one_account(server: Server) -> None:
    with ThreadPoolExecutor(8) as people:
        found = list(people.map(lambda _: me(server, {USER: "many", GROUPS: "ops"}), range(8)))
    assert set(found) == {("many", "ADMIN")}


def test_the_name_may_have_any_letters(server: Server) -> None:
    assert me(server, {USER: "Jürgen".encode().decode("latin-1")}) == ("Jürgen", "USER")


def test_the_role_follows_the_groups_at_each_request(server: Server) -> None:
    assert me(server, {USER: "gail", GROUPS: "dev, ops"}) == ("gail", "ADMIN")
    token = create_token(server.data, "gail")
    assert me(server, bearer(token)) == ("gail", "ADMIN")
    assert me(server, {USER: "gail", GROUPS: "dev,opsy"}) == ("gail", "USER")
    assert me(server, bearer(token)) == ("gail", "USER"), "the role is the account's"
    assert me(server, {USER: "gail", GROUPS: "root users"}) == ("gail", "ADMIN")
    assert me(server, {USER: "gail"}) == ("gail", "USER"), "a missing header has no groups"


def test_a_header_of_another_peer_is_ignored(server: Server) -> None:
    assert from_address(server, "127.0.0.1", {USER: "ann"}) == 200
    assert from_address(server, "127.0.0.2", {USER: "ann"}) == 401
    forged = {USER: "ann", "X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1"}
    assert from_address(server, "127.0.0.2", forged) == 401, "a forwarding header makes no peer"
    with open_accounts(server.data):
        assert accounts.user_named("mallory") is None
    assert from_address(server, "127.0.0.2", {USER: "mallory"}) == 401
    with open_accounts(server.data):
        assert accounts.user_named("mallory") is None


def test_a_token_wins_over_the_header_and_the_header_over_a_session(server: Server) -> None:
    token, session = create_token(server.data, "tess"), create_session(server.data, "sam")
    assert me(server, {USER: "ann", **bearer(token)}) == ("tess", "USER")
    assert server.ask("GET", ME, headers={USER: "ann", **bearer("plt_unknown")}).status == 401
    assert me(server, {USER: "ann", **cookie(server, session)}) == ("ann", "USER")
    assert me(server, {USER: "", **cookie(server, session)}) == ("sam", "USER"), "a blank header counts as absent"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([f"{USER}: ann", f"{USER}: admin"], "is given twice"),
        ([f"{USER}: ann,admin"], "has a comma"),
        ([f"{USER}: ann admin"], "none a space"),
        ([f"{USER}: \xff\xfe"], "is not UTF-8"),
        ([f"{USER}: a\u202eb".encode().decode("latin-1")], "not printable"),
        ([f"{USER}: {'x' * 65}"], "1 to 64 characters"),
        ([f"{USER}: ann", f"{GROUPS}: dev", f"{GROUPS}: ops"], "is given twice"),
        ([f"{USER}: ann", f"{GROUPS}: \xff"], "is not UTF-8"),
    ],
)
def test_a_header_that_cannot_be_read_is_refused_with_the_reason(server: Server, lines: list[str], reason: str) -> None:
    head = "\r\n".join([f"GET {ME} HTTP/1.1", f"Host: 127.0.0.1:{server.port}", *lines, "", ""])
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(head.encode("latin-1"))
        answer = read_response(connection)
    assert answer.status == 400, answer
    assert reason in answer.json["detail"]


def test_other_sites_cannot_use_the_account(server: Server) -> None:
    picture = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
    assert server.ask("GET", ME, headers={USER: "ann", **picture}).status == 401
    assert post_form(server, "/profile", {USER: "ann", "Origin": "https://evil.example"}, displayName="x").status == 403
    assert post_form(server, "/profile", {USER: "ann"}, displayName="x").status == 403, "a form needs its token"


def test_forms_work_behind_the_proxy(server: Server) -> None:
    class Proxied(FormClient):
        def headers(self) -> dict[str, str]:
            return {**super().headers(), USER: "ann"}

    browser = Proxied(server)
    assert "Profile of ann" in browser.get("/profile").text
    assert browser.send("/profile", on="/profile", displayName="Ann").status == 303
    assert server.ask("GET", ME, headers={USER: "ann"}).json["displayName"] == "Ann"


def test_a_proxied_caller_is_remote_whatever_other_headers_say(serve: Serve) -> None:
    server = serve({"idle": {"command": "true"}}, server=PROXY, tracker={"security": {"proxy-login": LOGIN}})
    assert server.ask("POST", "/api/v1/processes/start/idle", headers={USER: "ann"}).status == 403
    assert server.ask("POST", "/api/v1/processes/start/idle", headers={USER: "ann", GROUPS: "ops"}).status == 200


def test_the_header_gives_no_rights_over_the_control_socket(server: Server) -> None:
    def ask(headers: str) -> int:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(server.data / "control.sock"))
            connection.sendall(f"GET /api/v1/processes HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode())
            return read_response(connection).status

    assert ask("") == 200, "an operator"
    assert ask(f"{USER}: ann\r\n{GROUPS}: ops\r\n") == 401, "no operator has such a header, and a socket is no proxy"


def test_a_socket_is_no_proxy_even_if_all_addresses_are_trusted(serve: Serve) -> None:
    security = {"open-mode": False, "proxy-login": LOGIN}
    server = serve(server={"trusted-proxies": ["0.0.0.0/0"]}, tracker={"security": security})
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(server.data / "control.sock"))
        connection.sendall(f"GET {ME} HTTP/1.1\r\nHost: localhost\r\n{USER}: ann\r\n\r\n".encode())
        assert read_response(connection).status == 401
    assert me(server, {USER: "ann"}) == ("ann", "USER")


def test_without_auto_create_an_unknown_account_is_refused(serve: Serve) -> None:
    server = serve(**settings(**{"auto-create": False}))
    ensure_user(server.data, "ann")
    assert me(server, {USER: "ann"}) == ("ann", "USER")
    answer = server.ask("GET", ME, headers={USER: "bob"})
    assert answer.status == 403
    assert "there is no account bob" in answer.json["detail"]
    assert server.ask("GET", "/", headers={USER: "bob", "Accept": "text/html"}).status == 403
    with open_accounts(server.data):
        assert accounts.user_named("bob") is None


def test_without_groups_the_role_stays_as_it_was_set(serve: Serve) -> None:
    security = {"open-mode": False, "proxy-login": {"header": USER}}
    server = serve(server=PROXY, tracker={"security": security})
    ensure_user(server.data, "root", "ADMIN")
    assert me(server, {USER: "root", GROUPS: "none"}) == ("root", "ADMIN")


def test_a_stream_ends_when_the_account_is_deleted(server: Server) -> None:
    stream = Stream(server.port, "/api/v1/processes/stream", {USER: "gone"})
    assert stream.status == 200
    with open_accounts(server.data):
        user = accounts.user_named("gone")
        assert user is not None
        accounts.delete_user(user.id)
    with contextlib.closing(stream), pytest.raises(EOFError):
        stream.next()
