"""The first start creates the ADMIN account."""

from __future__ import annotations

import os
import pty
import re
import select
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, Serve, wait_for
from users import (
    PASSWORD,
    bearer,
    cookie,
    create_token,
    ensure_user,
    log_in,
    open_accounts,
    post_form,
)

from models.accounts import accounts
from supervisor.accounts import passwords

ME = "/api/v1/me"


def test_first_start_creates_an_admin_with_a_generated_password(serve: Serve) -> None:
    server = serve()
    file = server.data / "admin-password"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    password = file.read_text().removesuffix("\n")
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", password)
    log = server.log.read_text()
    assert str(file) in log
    assert password not in log, "standard error is not a terminal"
    outcome = server.ask("GET", ME, headers=cookie(server, log_in(server, "admin", password))).json
    assert outcome == {"username": "admin", "displayName": "Administrator", "email": None, "role": "ADMIN"}


def test_later_start_does_not_change_the_admin(serve: Serve) -> None:
    server = serve()
    password = (server.data / "admin-password").read_text().strip()
    server.stop()
    server.configure({"tracker": {"security": {"admin-password": "something else"}}})
    server.start()
    assert (server.data / "admin-password").read_text().strip() == password
    assert post_form(server, "/login", username="admin", password="something else").status == 401
    assert log_in(server, "admin", password)


def test_configured_name_and_password_are_used_and_no_file_is_written(serve: Serve) -> None:
    server = serve(tracker={"security": {"admin-username": "chief", "admin-password": PASSWORD}})
    assert server.ask("GET", ME, headers=cookie(server, log_in(server, "chief"))).json["role"] == "ADMIN"
    assert not (server.data / "admin-password").exists()
    assert PASSWORD not in server.log.read_text()


def test_the_password_may_come_from_the_environment(serve: Serve) -> None:
    server = serve(environ={"TRACKER_SECURITY_ADMIN_PASSWORD": PASSWORD})
    assert log_in(server)


def test_existing_account_with_the_admin_name_is_not_changed(serve: Serve) -> None:
    server = serve(wait=False, tracker={"security": {"admin-password": PASSWORD}})
    ensure_user(server.data, "admin", "USER", "its own password")
    server.start()
    assert post_form(server, "/login", username="admin", password=PASSWORD).status == 401
    assert server.ask("GET", ME, headers=bearer(create_token(server.data, "admin"))).json["role"] == "USER"


def test_deleted_admin_is_not_recreated_while_another_exists(serve: Serve) -> None:
    server = serve()
    server.stop()
    ensure_user(server.data, "root", "ADMIN")
    with open_accounts(server.data):
        admin = accounts.user_named("admin")
        assert admin is not None
        accounts.delete_user(admin.id)
    server.start()
    with open_accounts(server.data):
        assert [one.username for one in accounts.list_users()] == ["root"]


@pytest.mark.parametrize(
    ("security", "setting"),
    [
        ({"admin-password": "7 chars"}, "tracker.security.admin-password"),
        ({"admin-username": "a b"}, "tracker.security.admin-username"),
    ],
)
def test_invalid_admin_settings_are_reported_in_one_line(serve: Serve, security: dict[str, str], setting: str) -> None:
    server = serve(wait=False, tracker={"security": security}).launch()
    assert server.process is not None
    assert wait_for(server.process.poll, about="the server to exit") == 1
    log = server.log.read_text()
    assert len(log.splitlines()) == 1
    assert setting in log
    assert "7 chars" not in log


def test_generated_password_is_shown_on_a_terminal(tmp_path: Path) -> None:
    primary, secondary = pty.openpty()
    arguments = ["--data-dir", str(tmp_path / "data"), "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "run.py"), *arguments], stdout=secondary, stderr=secondary, cwd=tmp_path
    )
    os.close(secondary)
    try:
        seen = ""
        while "listening on" not in seen:
            assert select.select([primary], [], [], 30)[0], seen
            seen += os.read(primary, 4096).decode()
        assert (tmp_path / "data" / "admin-password").read_text().strip() in seen
    finally:
        process.terminate()
        process.wait()
        os.close(primary)


def test_a_generated_password_is_hashed_again_at_the_first_login(serve: Serve) -> None:
    server = serve()

    def stored_hash() -> str:
        with open_accounts(server.data):
            known = accounts.password_of("admin")
        assert known is not None
        return known.hash

    before = stored_hash()
    assert not passwords.is_current(before)
    password = (server.data / "admin-password").read_text().strip()
    first = log_in(server, "admin", password)
    assert passwords.is_current(stored_hash())
    second = log_in(server, "admin", password)
    for session in (first, second):
        assert server.ask("GET", ME, headers=cookie(server, session)).status == 200
