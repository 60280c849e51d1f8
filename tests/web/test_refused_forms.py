"""A refused form is shown again with the reason and the entered values, except passwords."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

import pytest
import uploads
import users
from conftest import Answer, Server
from http_checks import running_server

GREEN = "<testsuite name='s'><testcase classname='c.A' name='fine'/></testsuite>"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("refused")) as one:
        uploads.upload(one, ("project", "shop"), ("junit", GREEN))
        yield one


@pytest.fixture(scope="module")
def admin(server: Server) -> users.FormClient:
    return users.FormClient(server, users.create_session(server.data, "admin", "ADMIN"))


def reason(answer: Answer, status: int) -> str:
    """The reason at the top of the page that is shown again."""
    assert answer.status == status, answer
    found = re.search(r'class="note bad" role="alert"><span id="reason">([^<]+)<', answer.text)
    assert found, answer.text
    return unescape(found[1])


def field_value(answer: Answer, name: str) -> str:
    """The value of a text field."""
    tag = re.search(rf'<input[^>]* name="{name}"[^>]*>', answer.text)
    assert tag, name
    return unescape(tag[0].partition(' value="')[2].partition('"')[0])


def test_a_login_keeps_the_name_and_not_the_password(server: Server) -> None:
    answer = users.FormClient(server).send(
        "/login", "/login", username='<b>"jo"</b>', password="secret words", next="/users"
    )
    assert "not right" in reason(answer, 401)
    assert (field_value(answer, "username"), field_value(answer, "password")) == ('<b>"jo"</b>', "")
    assert field_value(answer, "next") == "/users"
    assert "secret words" not in answer.text


def test_a_refused_profile_keeps_the_entered_values(admin: users.FormClient) -> None:
    answer = admin.send("/profile", "/profile", displayName="x" * 300, email="jo@example.org")
    assert reason(answer, 400)
    assert (field_value(answer, "displayName"), field_value(answer, "email")) == ("x" * 300, "jo@example.org")
    assert field_value(admin.get("/profile"), "email") == ""


def test_a_token_keeps_its_name_and_scope(admin: users.FormClient) -> None:
    answer = admin.send("/profile/tokens", "/profile", name="ci", scope="INGEST", expiresDays="forever")
    assert "expiresDays" in reason(answer, 400)
    assert (field_value(answer, "name"), field_value(answer, "expiresDays")) == ("ci", "forever")
    assert '<option value="INGEST" selected>' in answer.text


def test_a_password_that_is_refused_is_not_shown(admin: users.FormClient) -> None:
    answer = admin.send("/profile/password", "/profile", currentPassword="not this one", newPassword="but this one")
    assert reason(answer, 400)
    assert "this one" not in answer.text.partition('id="password"')[2].partition("</section>")[0]


def test_a_new_user_keeps_name_and_role(admin: users.FormClient) -> None:
    answer = admin.send("/users", "/users", username="jo", password="qwxz", role="ADMIN")
    assert reason(answer, 400)
    assert field_value(answer, "username") == "jo"
    assert "<option selected>ADMIN</option></select></div>" in answer.text
    assert "qwxz" not in answer.text


def test_the_page_shows_why_an_account_cannot_be_deleted(admin: users.FormClient) -> None:
    users = admin.get("/users").text
    assert "jo" not in re.findall(r'<th scope="row">([a-z]+)', users)
    answer = admin.send("/users/1/role", "/users", role="USER")
    assert reason(answer, 409)
    assert "<option>USER</option><option>ADMIN</option></select></div>" in answer.text  # of the form beside it


def test_refused_settings_keep_the_entered_values(admin: users.FormClient) -> None:
    typed = {"repo_url": "https://example.org/", "base_branch": "trunk", "min_line_coverage": "a lot"}
    answer = admin.send("/projects/1/settings", "/projects/1/settings", **typed, fail_on_new_failures="false")
    assert reason(answer, 400)
    assert {name: field_value(answer, name) for name in typed} == typed
    assert '<option value="false" selected>' in answer.text
    assert field_value(admin.get("/projects/1/settings"), "base_branch") == ""


def test_a_member_that_is_missing_stays_in_the_field(admin: users.FormClient) -> None:
    answer = admin.send("/projects/1/members", "/projects/1/settings", username="nobody", role="OWNER")
    assert "nobody" in reason(answer, 400)
    assert field_value(answer, "username") == "nobody"
    assert "<option selected>OWNER</option>" in answer.text


def test_a_caller_without_permission_does_not_get_the_page(server: Server) -> None:
    outsider = users.FormClient(server, users.create_session(server.data, "outsider"))
    token = outsider.xsrf("/profile")
    answer = users.post_form(server, "/projects/1/settings", outsider.headers(), _xsrf=token, base_branch="trunk")
    assert answer.status == 403
    assert "trunk" not in answer.text
