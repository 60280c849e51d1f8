"""The list of accounts for an ADMIN: pages, search, order and forms."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
import users
from conftest import Answer, Server
from http_checks import running_server

from models.accounts import accounts

PEOPLE = 119


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the ADMIN `admin` and many other accounts."""
    with running_server(tmp_path_factory.mktemp("users")) as one:
        users.create_session(one.data, "admin", "ADMIN")
        with users.open_accounts(one.data):
            for number in range(PEOPLE):
                accounts.create_user(f"person-{number:03}", "none", "USER", time.time_ns() // 1000)
        yield one


@pytest.fixture(scope="module")
def admin(server: Server) -> users.FormClient:
    return users.FormClient(server, users.create_session(server.data, "admin", "ADMIN"))


def names(answer: Answer) -> list[str]:
    assert answer.status == 200, answer
    return re.findall(r'<th scope="row">([a-z0-9-]+)', answer.text)


def links(answer: Answer) -> list[str]:
    return re.findall(r'href="([^"]+page=[^"]*)"', answer.text)


def test_accounts_are_listed_in_pages_of_fifty(admin: users.FormClient) -> None:
    pages = [admin.get(f"/users?page={number}") for number in range(3)]
    assert [len(names(page)) for page in pages] == [50, 50, 20]
    assert [name for page in pages for name in names(page)] == [
        "admin",
        *(f"person-{number:03}" for number in range(PEOPLE)),
    ]
    assert [links(page) for page in pages] == [["/users?page=1"], ["/users?page=2"], ["/users?page=1"]]
    assert all(
        f"{PEOPLE + 1} accounts" in page.text and f"page {n} of 3" in page.text for n, page in enumerate(pages, 1)
    )
    assert names(admin.get("/users")) == names(pages[0])


def test_accounts_are_found_sorted_and_filtered_by_role(admin: users.FormClient) -> None:
    assert names(admin.get("/users?q=PERSON-11")) == [f"person-{number}" for number in range(110, PEOPLE)]
    assert names(admin.get("/users?role=ADMIN")) == ["admin"]
    assert names(admin.get("/users?sort=-name&size=25"))[0] == f"person-{PEOPLE - 1:03}"
    assert names(admin.get("/users?q=nobody")) == []
    assert "No account matches." in admin.get("/users?q=nobody").text
    action = re.findall(r'action="([^"]+/role[^"]*)"', admin.get("/users?q=person-11&size=25").text)[0]
    answer = admin.send(action.replace("&amp;", "&"), on="/users", role="USER")
    assert answer.headers["Location"] == "/users?q=person-11&size=25"


def test_a_page_beyond_the_last_is_the_last_and_an_invalid_page_is_ignored(admin: users.FormClient) -> None:
    assert names(admin.get("/users?page=99"))[-1] == f"person-{PEOPLE - 1:03}"
    assert "Ignored: role ROOT, page x." in admin.get("/users?page=x&role=ROOT").text


def test_a_form_redirects_to_its_own_page_of_the_list(server: Server, admin: users.FormClient) -> None:
    page = admin.get("/tracker/users?page=1")
    action = re.findall(r'action="([^"]+/role\?page=1)"', page.text)[0]
    answer = admin.send(action, on="/users", role="USER")
    assert (answer.status, answer.headers["Location"]) == (303, "/tracker/users?page=1")
    answer = admin.send(action.replace("/role", "/delete"), on="/users")
    assert (answer.status, answer.headers["Location"]) == (303, "/tracker/users?page=1")
    assert f"{PEOPLE} accounts" in admin.get(answer.headers["Location"]).text


def test_a_refused_form_links_back_to_its_page(admin: users.FormClient) -> None:
    answer = admin.send("/tracker/users", on="/users", username="jo", password="correct horse", _xsrf="none of ours")
    assert answer.status == 403
    assert '<a href="/tracker/users">Back</a>' in answer.text
