"""`run.py user ...`, from a terminal or a script."""

from __future__ import annotations

import io
import os
import pty
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import ROOT, Serve, Server, database_of, run_verb, wait_for
from users import (
    PASSWORD,
    RAW_TOKEN,
    bearer,
    cookie,
    create_session,
    create_token,
    ensure_user,
    log_in,
    open_accounts,
    post_form,
)

import run as program
from models.accounts import accounts
from supervisor.cli import users

ME = "/api/v1/me"
Here = Callable[..., "subprocess.CompletedProcess[str]"]
of_a_file = pytest.mark.skipif(Server.is_on_postgresql, reason="about the file; a database: test_on_postgresql.py")


def database_arguments(data: Path) -> dict[str, str]:
    """The arguments for the database that replaces the file of a data directory, if it has one."""
    url = database_of(data)
    return {"SERVER_DATABASE_URL": url} if url else {}


def user(data: Path, *arguments: str, given: str | bytes | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the verb on a data directory; `given` is its standard input."""
    raw = given.encode() if isinstance(given, str) else given
    environ = {**os.environ, **database_arguments(data), "PYTHONWARNINGS": "error"}
    return run_verb("--data-dir", str(data), "user", *arguments, folder=data.parent, environ=environ, given=raw or b"")


@pytest.fixture
def run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """Runs the verb in this process."""

    def run(data: Path, *arguments: str, given: str | bytes = b"") -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(tmp_path)
        for name, value in database_arguments(data).items():
            monkeypatch.setenv(name, value)
        raw = given.encode() if isinstance(given, str) else given
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))
        try:
            code = program.main(["--data-dir", str(data), "user", *arguments])
        except SystemExit as end:
            code = int(end.code or 0)
        result = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, result.out, result.err)

    return run


def refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert done.returncode == code, done
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, done
    if code == 1:
        assert len(done.stderr.splitlines()) == 1


def role(data: Path, name: str) -> str | None:
    with open_accounts(data):
        known = accounts.user_named(name)
    return known.role if known else None


def test_a_user_is_added_to_a_new_data_directory(tmp_path: Path) -> None:
    data = tmp_path / "deep" / "data"
    (tmp_path / "deep").mkdir()
    done = user(data, "add", "bob", given=f"{PASSWORD}\n")
    assert done.returncode == 0
    assert done.stderr == (
        "" if database_arguments(data) else f"run.py user: {data} had no store, so one was created\n"
    )
    assert role(data, "bob") == "USER"
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert {stat.S_IMODE(one.stat().st_mode) for one in data.iterdir()} <= {0o600}
    assert any(data.iterdir()) == (not database_arguments(data)), "a file is only where there is no database"


@of_a_file
@pytest.mark.parametrize("arguments", [["passwd", "bob"], ["token", "bob"]])
def test_another_folder_is_reported_and_not_changed(tmp_path: Path, run_here: Here, arguments: list[str]) -> None:
    refused(run_here(tmp_path / "data", *arguments, given=PASSWORD), 1, "there is no store in", "--data-dir")
    refused(run_here(tmp_path / ("x" * 300), *arguments, given=PASSWORD), 1, "File name too long")
    assert not (tmp_path / "data").exists()


def test_a_user_added_before_the_first_start_can_log_in(serve: Serve) -> None:
    server = serve(wait=False)
    server.data.mkdir(mode=0o700)
    assert user(server.data, "add", "root", "--admin", given=f"{PASSWORD}\r\n").returncode == 0
    server.start()
    assert server.ask("GET", ME, headers=cookie(server, log_in(server, "root"))).json["role"] == "ADMIN"
    assert role(server.data, "admin") is None, "there is an ADMIN already"


def test_all_verbs_work_while_the_server_runs(serve: Serve) -> None:
    server = serve()
    assert user(server.data, "add", "bob", given=PASSWORD).returncode == 0
    session = log_in(server, "bob")
    assert server.ask("GET", ME, headers=cookie(server, session)).json["role"] == "USER"
    made = user(server.data, "token", "bob")
    assert RAW_TOKEN.fullmatch(made.stdout.removesuffix("\n")), "the token alone"
    assert made.stderr == ""
    token = made.stdout.strip()
    assert server.ask("GET", ME, headers=bearer(token)).json["username"] == "bob"
    assert user(server.data, "passwd", "bob", given="another password\nrest\n").returncode == 0
    assert server.ask("GET", ME, headers=cookie(server, session)).status == 401, "its sessions have ended"
    assert server.ask("GET", ME, headers=bearer(token)).status == 200
    assert post_form(server, "/login", username="bob", password=PASSWORD).status == 401
    assert log_in(server, "bob", "another password")


@pytest.mark.parametrize(
    ("options", "name", "scope", "length"),
    [
        ([], "ci", "FULL", None),
        (["--scope", "INGEST", "--expires", "30d", "--name", "ci job"], "ci job", "INGEST", 30 * 86_400),
        (["--scope", "FULL", "--expires", "90"], "ci", "FULL", 90),
        (["--expires=PT1H"], "ci", "FULL", 3600),
    ],
)
def test_a_token_has_a_name_a_scope_and_an_expiry(
    tmp_path: Path, run_here: Here, options: list[str], name: str, scope: str, length: int | None
) -> None:
    data = tmp_path / "data"
    bob = ensure_user(data, "bob")
    assert run_here(data, "token", "bob", *options).returncode == 0
    with open_accounts(data):
        (kept,) = accounts.tokens_of(bob.id)
    assert (kept.name, kept.scope) == (name, scope)
    assert (None if kept.expires_at is None else (kept.expires_at - kept.created_at) // 1_000_000) == length


@pytest.mark.parametrize(
    ("arguments", "given", "word"),
    [
        (["add", "bob"], PASSWORD, "the user name bob is taken"),
        (["add", "new"], "short\n", "8 to 1024"),
        (["add", "new"], "", "8 to 1024"),
        (["add", "new"], b"\xff\xfe\xff\xfe\xff\xfe\xff\xfe\n", "UTF-8"),
        (["add", "new"], "nul\0nulnul\n", "NUL"),
        (["add", "a b"], PASSWORD, "user name"),
        (["add", ""], PASSWORD, "user name"),
        (["passwd", "nobody"], PASSWORD, "no user nobody"),
        (["passwd", "bob"], "short", "8 to 1024"),
        (["token", "nobody"], "", "no user nobody"),
        (["token", "bob", "--name", " "], "", "name"),
        (["token", "bob", "--name", "a\nb"], "", "name"),
    ],
)
def test_a_failed_verb_prints_one_line_and_exits_with_1(
    tmp_path: Path, run_here: Here, arguments: list[str], given: str | bytes, word: str
) -> None:
    data = tmp_path / "data"
    ensure_user(data, "bob")
    done = run_here(data, *arguments, given=given)
    refused(done, 1, word)
    if isinstance(given, str) and len(given) >= 8:
        assert given.strip() not in done.stderr
    assert role(data, "new") is None


@pytest.mark.parametrize(
    "arguments",
    [
        [], ["nonsense"], ["add"], ["add", "a", "b"], ["token", "bob", "--scope", "ALL"], ["passwd"], ["token"],
        ["token", "bob", "--expires", "soon"], ["token", "bob", "--expires", "0"], ["add", "bob", "--root"],
    ],
)  # fmt: skip
def test_unknown_arguments_are_2_with_the_usage(tmp_path: Path, run_here: Here, arguments: list[str]) -> None:
    refused(run_here(tmp_path / "data", *arguments), 2, "usage:")
    assert not (tmp_path / "data").exists()


def test_an_invalid_configuration_is_2(tmp_path: Path, run_here: Here) -> None:
    (tmp_path / "pilothouse.yaml").write_text("server: {prot: 1}\n")
    refused(run_here(tmp_path / "data", "add", "bob", given=PASSWORD), 2, "server.prot")


@of_a_file
@pytest.mark.parametrize("what", ["file", "database", "newer"])
def test_an_unreadable_store_is_reported_in_one_line(tmp_path: Path, what: str) -> None:
    data = tmp_path / "data"
    if what == "file":
        data.write_text("x")
    else:
        data.mkdir()
        (data / "tracker.db").write_bytes(b"this is no database, but a long text" * 100 if what == "database" else b"")
        if what == "newer":
            with sqlite3.connect(data / "tracker.db") as connection:
                connection.execute("PRAGMA user_version = 999")
            connection.close()
    refused(user(data, "add", "bob", given=PASSWORD), 1, str(data))


@of_a_file
def test_user_verbs_wait_for_other_writers(tmp_path: Path) -> None:
    data = tmp_path / "data"
    ensure_user(data, "bob")
    connection = sqlite3.connect(data / "tracker.db", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "run.py"), "--data-dir", str(data), "user", "token", "bob"],
        stdout=subprocess.PIPE, cwd=tmp_path,
    )  # fmt: skip
    wait_for(lambda: "tracker.db" in str(list(open_files(process.pid))), about="the verb to open the store")
    assert process.poll() is None
    connection.execute("COMMIT")
    connection.close()
    result, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert RAW_TOKEN.fullmatch(result.decode().strip())


def open_files(pid: int) -> list[str]:
    try:
        return [os.readlink(f"/proc/{pid}/fd/{one}") for one in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return []


def test_concurrent_user_verbs_create_one_store(tmp_path: Path) -> None:
    data = tmp_path / "data"
    database_arguments(data)
    with ThreadPoolExecutor(4) as callers:
        done = list(callers.map(lambda n: user(data, "add", f"user{n}", given=PASSWORD), range(4)))
    assert [one.returncode for one in done] == [0] * 4, done
    with open_accounts(data):
        assert [one.username for one in accounts.list_users()] == [f"user{n}" for n in range(4)]


@pytest.mark.parametrize(("second", "code"), [(PASSWORD, 0), ("something else", 1)])
def test_a_terminal_reads_the_password_twice_without_echo(tmp_path: Path, second: str, code: int) -> None:
    data = tmp_path / "data"
    environ = {**os.environ, **database_arguments(data)}
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        arguments = [sys.executable, str(ROOT / "run.py"), "--data-dir", str(data), "user", "add", "bob"]
        os.execve(sys.executable, arguments, environ)  # noqa: S606 (in a terminal of its own)
    seen = read_until(terminal, "password of bob: ")
    os.write(terminal, f"{PASSWORD}\n".encode())
    seen += read_until(terminal, "repeat it: ")
    os.write(terminal, f"{second}\n".encode())
    seen += read_until(terminal, None)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == code, seen
    assert PASSWORD not in seen
    assert role(data, "bob") == ("USER" if code == 0 else None)


def test_a_store_whose_existence_cannot_be_determined_is_not_taken_for_missing(tmp_path: Path) -> None:
    """`Path.exists` returns False for such a name from Python 3.14 on."""
    with pytest.raises(OSError, match="File name too long"):
        users._exists(tmp_path / ("x" * 300))
    assert not users._exists(tmp_path / "missing")


def read_until(terminal: int, words: str | None) -> str:
    """Reads from the terminal up to `words`, or to the end."""
    seen = ""
    while words is None or words not in seen:
        try:
            seen += os.read(terminal, 4096).decode()
        except OSError:  # the other side is closed
            break
    return seen


def test_the_lock_of_a_running_server_is_not_changed(serve: Serve) -> None:
    server = serve()
    session, token = create_session(server.data, "bob"), create_token(server.data, "bob")
    assert user(server.data, "add", "eve", given=PASSWORD).returncode == 0
    assert server.ask("GET", ME, headers=cookie(server, session)).status == 200
    assert server.ask("GET", ME, headers=bearer(token)).status == 200
    assert server.stop() == 0
