"""The store in PostgreSQL, in addition to the tests that run on both stores: faults, limits, concurrent writers."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import peewee
import pytest
import records
import yaml
from conftest import ROOT, wait_for
from postgresql import PASSWORD, Postgresql, ask

from models.accounts import accounts, permissions
from models.errors import CannotUse, Conflict, TimedOut
from models.storage import dialect, postgres
from models.tracker import queries, tables
from models.tracker.runs import retention
from models.tracker.tables import Project, reports


@pytest.fixture
def store(postgresql: Postgresql) -> Iterator[str]:
    """Opens the store in an empty database; yields its URL."""
    url = postgresql.emptied()
    reports.open(Path("/nowhere"), url)
    yield url
    reports.close_all()


@pytest.fixture
def stoppable_postgresql(postgresql: Postgresql) -> Iterator[Postgresql]:
    """A PostgreSQL server that tests may stop; it is started again afterwards."""
    yield postgresql
    if not postgresql.is_running:
        postgresql.start()


def run_at_once(*works: Callable[[], Any]) -> list[Any]:
    """Runs each in a thread, all starting together; returns what they return or raise."""
    found: list[Any] = [None] * len(works)
    barrier = threading.Barrier(len(works))

    def run(place: int, work: Callable[[], Any]) -> None:
        barrier.wait()
        try:
            found[place] = reports.run_with_timeout(work, 20)
        except Exception as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=item) for item in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.usefixtures("store")
def test_concurrent_demotions_keep_one_admin() -> None:
    one, two = (accounts.create_user(name, "!", "ADMIN", 1) for name in ("ada", "bea"))
    reports.close()
    for _ in range(5):
        found = run_at_once(lambda: accounts.set_role(one.id, "USER"), lambda: accounts.set_role(two.id, "USER"))
        assert [type(error) for error in found if error is not None] == [Conflict]
        for user in (one, two):
            accounts.set_role(user.id, "ADMIN")
        reports.close()


@pytest.mark.usefixtures("store")
def test_names_too_long_for_an_index_and_nul_characters_are_stored() -> None:
    project = Project.create(name="p", visibility="PUBLIC", created_at=1)
    names = ["".join(chr(0x4E00 + (7919 * number + place) % 20000) for number in range(512)) for place in range(3)]
    for place, name in enumerate(names):
        tables.Test.create(id=place + 1, project=project, class_name=name, name=name)
    assert [queries.test_id(project.id, name, name) for name in names] == [1, 2, 3]
    with pytest.raises(peewee.IntegrityError):
        tables.Test.create(id=9, project=project, class_name=names[0], name=names[0])
    assert Project.create(name="a\0b", visibility="PUBLIC", created_at=1).id
    assert Project.get(Project.name == "a\0b").name == "a\ufffdb"


@pytest.mark.usefixtures("store")
def test_the_revision_of_a_project_counts_the_changes_of_its_runs() -> None:
    project = Project.create(name="p", visibility="PUBLIC", created_at=1)
    revisions = []
    for change in (
        lambda: records.create_run(project),
        lambda: tables.Run.update(status="FAILED").execute(),
        lambda: reports.execute_sql("INSERT INTO upload (run_id, job_key, job_instance, attempt, created_at)"
                                    " SELECT id, '', '', 0, 1 FROM run"),
        lambda: retention.delete_some(tables.Run.get().id),
    ):  # fmt: skip
        change()
        revisions.append(Project.get().revision)
    assert revisions == sorted(set(revisions))
    assert revisions[0] > 0
    project.delete_instance()


@pytest.mark.usefixtures("store")
def test_texts_are_sorted_as_in_sqlite() -> None:
    names = ["ä", "b", "B", "a", "_", "Z", "\U0001f600", "\uffff", "aa", "a b", "a-b"]
    for name in names:
        Project.create(name=name, visibility="PUBLIC", created_at=1)
    assert [one.name for one in Project.select().order_by(Project.name)] == sorted(names)


@pytest.mark.usefixtures("store")
def test_work_over_its_timeout_is_cancelled() -> None:
    reports.close()
    with pytest.raises(TimedOut, match=r"longer than 0\.2 s"):
        reports.run_with_timeout(lambda: reports.execute_sql("SELECT pg_sleep(20)"), 0.2)

    def many() -> None:
        while True:
            reports.execute_sql("SELECT 1")

    with pytest.raises(TimedOut):
        reports.run_with_timeout(many, 0.2)
    assert reports.run_with_timeout(lambda: reports.execute_sql("SELECT 7").fetchone(), 20) == (7,)


def test_writer_that_cannot_get_the_lock_has_a_lock_timeout(store: str) -> None:
    reports.close()
    with reports.obj._connect_listener() as other:  # type: ignore[union-attr]
        other.execute(f"SELECT pg_advisory_lock({reports.obj.lock_id()})".encode())  # type: ignore[union-attr]
        with pytest.raises(peewee.OperationalError, match="lock timeout"):
            reports.run_with_timeout(lambda: retention.forget_tests(0), 2)
        user = reports.run_with_timeout(
            lambda: accounts.create_user("ada", "!", "USER", 1), 2
        )  # accounts do not need this lock
        reports.run_with_timeout(lambda: accounts.create_token(user.id, "ci", "FULL", None, 1), 2)
        other.execute(b"SELECT pg_advisory_unlock_all()")
    assert ask(store, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [(0,)]
    reports.run_with_timeout(lambda: retention.forget_tests(0), 2)


def test_writer_sees_what_was_committed_while_it_waited_for_the_lock(store: str) -> None:
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    reports.close()
    names: list[list[str]] = []

    def write() -> None:
        reports.execute_sql("SET default_transaction_isolation = serializable")
        with reports.atomic():
            names.append([project.name for project in Project.select()])

    with reports.connection_context(), reports.atomic():
        thread = threading.Thread(target=lambda: reports.run_with_timeout(write, 20))
        thread.start()
        wait_for(lambda: ask(store, waiting) == [(1,)], about="a writer that waits")
        Project.create(name="p", visibility="PUBLIC", created_at=1)
    thread.join()
    assert names == [["p"]]
    reports.close_all()  # with the changed connection


@pytest.mark.usefixtures("store")
def test_reference_to_a_concurrently_deleted_row_is_an_operational_error() -> None:
    project = Project.create(name="p", visibility="PUBLIC", created_at=1)
    reports.close()
    with pytest.raises(peewee.OperationalError, match="was deleted concurrently"):
        reports.run_with_timeout(lambda: permissions.grant(project.id, 99, "OWNER", 1), 20)


def test_staged_bytes_are_copied_whatever_the_setting_for_backslashes(postgresql: Postgresql, tmp_path: Path) -> None:
    url, content = postgresql.fresh(), bytes(range(256))
    ask(url, f"ALTER DATABASE {url.rpartition('/')[2]} SET standard_conforming_strings = off")
    with contextlib.closing(sqlite3.connect(tmp_path / "staged")) as staged:
        staged.execute("CREATE TABLE files (covered BLOB)")
        staged.execute("INSERT INTO files VALUES (?)", (content,))
        staged.commit()
    reports.open(Path("/nowhere"), url)
    with reports.spooled(tmp_path / "staged"):
        assert reports.execute_sql("SELECT covered FROM files").fetchone() == (content,)
    reports.close_all()


def test_runs_are_read_while_a_newer_node_adds_columns(postgresql: Postgresql) -> None:
    url = postgresql.fresh()
    reports.open(Path("/nowhere"), url)
    run = records.create_run(Project.create(name="p", visibility="PUBLIC", created_at=1))

    def read() -> list[object]:
        return [queries.run(run.id)[0], *queries.runs_by_id([run.id]).values(), queries.listing(run.project_id, 1)[0]]

    for _ in range(8):  # the driver prepares a statement that it has run several times
        read()
    for table in ("run", "project"):
        ask(url, f"ALTER TABLE {table} ADD COLUMN later BIGINT")
    assert len(read()) == 3
    reports.close_all()


@pytest.mark.usefixtures("store")
def test_reads_of_a_transaction_see_one_snapshot() -> None:
    user = accounts.create_user("ada", "!", "USER", 1)
    with reports.atomic("DEFERRED"):
        before = accounts.user_by_id(user.id)
        thread = threading.Thread(
            target=lambda: reports.run_with_timeout(lambda: accounts.set_role(user.id, "ADMIN"), 20)
        )
        thread.start()
        thread.join()
        assert accounts.user_by_id(user.id) == before
        with pytest.raises(peewee.PeeweeException, match="read-only"):
            reports.execute_sql("DELETE FROM account")
    assert accounts.user_by_id(user.id).role == "ADMIN"


@pytest.mark.usefixtures("store")
def test_store_reconnects_after_a_restart_of_the_database(stoppable_postgresql: Postgresql) -> None:
    reports.close()
    reports.run_with_timeout(lambda: accounts.create_user("ada", "!", "USER", 1), 20)

    def lose() -> None:
        with reports.atomic():
            accounts.create_user("bea", "!", "USER", 1)
            stoppable_postgresql.stop()
            accounts.create_user("cleo", "!", "USER", 1)

    with pytest.raises(peewee.OperationalError):
        reports.run_with_timeout(lose, 20)
    with pytest.raises(peewee.OperationalError, match="database is unavailable"):
        reports.run_with_timeout(accounts.list_users, 20)
    stoppable_postgresql.start()
    assert [user.username for user in reports.run_with_timeout(accounts.list_users, 20)] == ["ada"]


@pytest.mark.usefixtures("store")
def test_hung_database_is_reported_as_unavailable(postgresql: Postgresql, monkeypatch: pytest.MonkeyPatch) -> None:
    reports.close()
    run_at_once(*[accounts.list_users] * 4)  # leaves four idle connections
    monkeypatch.setattr(postgres, "_RESPONSE_GRACE_SECONDS", 0.5)

    def begin() -> None:
        reports.execute_sql("SELECT 1")
        with postgresql.hung():
            reports.execute_sql("SELECT 1")

    with pytest.raises(peewee.OperationalError, match="database is unavailable"):
        reports.run_with_timeout(begin, 0.5)
    assert reports.run_with_timeout(accounts.list_users, 20) == []
    attempts: list[None] = []
    connect = postgres._Adapter.connect

    def counted(adapter: postgres._Adapter, db: object, **options: object) -> postgres.Connection:
        attempts.append(None)
        return connect(adapter, db, **options)

    with postgresql.hung(), monkeypatch.context() as patch:
        patch.setattr(postgres._Adapter, "connect", counted)
        found = run_at_once(*[accounts.list_users] * 8)
        assert {str(error) for error in found} == {"the database is unavailable"}
        assert len(attempts) == 1, "callers that waited for the failed attempt do not connect again"
    assert run_at_once(accounts.list_users) == [[]]  # the next caller after a failed attempt connects


def test_transaction_that_the_server_ended_as_idle_is_reported_as_unavailable(store: str) -> None:
    reports.close()
    backend = "SELECT count(*) FROM pg_stat_activity WHERE pid = ?"

    def idle() -> None:
        (pid,) = reports.execute_sql("SELECT pg_backend_pid()").fetchone()
        with reports.atomic():
            reports.execute_sql("SET idle_in_transaction_session_timeout = 1")
            wait_for(lambda: ask(store, backend, (pid,)) == [(0,)], about="the end of the connection")
            accounts.create_user("ada", "!", "USER", 1)

    with pytest.raises(peewee.OperationalError, match="database is unavailable"):
        reports.run_with_timeout(idle, 20)
    assert reports.run_with_timeout(accounts.list_users, 20) == []


@pytest.mark.usefixtures("store")
def test_connection_to_a_former_primary_is_discarded() -> None:
    reports.close()
    reports.run_with_timeout(lambda: reports.execute_sql("SET default_transaction_read_only = on"), 20)
    with pytest.raises(peewee.OperationalError, match="database is unavailable"):
        reports.run_with_timeout(lambda: accounts.create_user("ada", "!", "USER", 1), 20)
    assert reports.run_with_timeout(lambda: accounts.create_user("ada", "!", "USER", 1), 20).username == "ada"


# The start


def start(folder: Path, url: str, *verb: str, code: str = "", typed: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a server that fails to start, or a command."""
    config = folder / "pilothouse.yaml"
    config.write_text(yaml.safe_dump({"server": {"database-url": url}}))
    run = f"import sys\n{code}\nimport run\nsys.exit(run.main(sys.argv[1:]))"
    arguments = ["--config", str(config), "--port", "0", "--data-dir", str(folder / "data"), *verb]
    return subprocess.run(
        [sys.executable, "-c", run, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        input=typed,
        check=False,
    )


REFUSED = {
    "nobody there": ("postgresql://u:hunter2@127.0.0.1:9/d", "server.database-url: the store cannot be opened: "),
    "no such host": (
        "postgresql://u:hunter2@pilothouse.invalid/d",
        "server.database-url: the store cannot be opened: ",
    ),
    "no url": ("postgresql://u:hunter2%zz@127.0.0.1/d", "server.database-url: this is not understood"),
    "no option": ("postgresql://u:hunter2@127.0.0.1/d?colour=red", "server.database-url: this is not understood"),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("verb", [(), ("user", "token", "ada")], ids=["serve", "user"])
def test_unusable_database_is_reported_in_one_line_without_the_password(
    tmp_path: Path, what: str, verb: tuple[str, ...]
) -> None:
    url, words = REFUSED[what]
    done = start(tmp_path, url, *verb)
    assert done.returncode == 1
    output = done.stderr + done.stdout
    assert (words if not verb else words.partition(": the store")[0]) in output
    assert "hunter2" not in output
    assert "Traceback" not in output
    assert len(output.strip().splitlines()) == 1


def test_wrong_password_is_not_shown_in_the_error(tmp_path: Path, postgresql: Postgresql) -> None:
    done = start(tmp_path, postgresql.url("postgres", "wr0ng"))
    assert done.returncode == 1
    assert "password authentication failed" in done.stderr
    assert "wr0ng" not in done.stderr
    assert PASSWORD not in done.stderr


def test_users_are_created_from_the_command_line_of_any_node(tmp_path: Path, store: str) -> None:
    made = start(tmp_path, store, "user", "add", "zoe", "--admin", typed="correct horse\n")
    assert (made.returncode, made.stdout) == (0, "created user zoe (ADMIN)\n"), made
    token = start(tmp_path, store, "user", "token", "zoe")
    known = accounts.by_token(token.stdout.strip(), time.time_ns() // 1000)
    assert known is not None
    assert known.user.username == "zoe"
    again = start(tmp_path, store, "user", "add", "zoe", typed="correct horse\n")
    assert (again.returncode, again.stderr) == (1, "run.py user: the user name zoe is taken\n")
    assert not (tmp_path / "data" / "tracker.db").exists()


def test_user_command_waits_for_the_write_lock(tmp_path: Path, store: str) -> None:
    user = accounts.create_user("ada", "!", "USER", 1)
    lock = reports.obj.lock_id("accounts")  # type: ignore[union-attr]
    found: list[subprocess.CompletedProcess[str]] = []
    with reports.obj._connect_listener() as other:  # type: ignore[union-attr]
        other.execute(f"SELECT pg_advisory_lock({lock})".encode())
        thread = threading.Thread(target=lambda: found.append(start(tmp_path, store, "user", "token", "ada")))
        thread.start()
        wait_for(lambda: ask(store, "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))
        assert not found
    thread.join()
    assert found[0].returncode == 0, found
    assert len(accounts.tokens_of(user.id)) == 1


def test_missing_driver_error_names_the_extra(tmp_path: Path) -> None:
    done = start(tmp_path, "postgresql://u@127.0.0.1/d", code="sys.modules['psycopg'] = None")
    assert done.returncode == 1
    assert "install the extra `postgres`" in done.stderr
    assert "Traceback" not in done.stderr


def test_newer_schema_version_is_refused(store: str) -> None:
    reports.execute_sql("UPDATE schema_version SET version = 99 WHERE store = 'tracker'")
    try:
        with pytest.raises(peewee.DatabaseError, match="of version 99, newer than this program"):
            reports.open(Path("/nowhere"), store)
    finally:
        ask(store, "UPDATE schema_version SET version = ? WHERE store = 'tracker'", (len(reports.steps),))


def test_password_of_an_invalid_url_is_not_shown_in_the_error() -> None:
    with pytest.raises(CannotUse) as caught:
        reports.open(Path("/nowhere"), "postgresql://u:hunter2@[h/d")
    assert "hunter2" not in str(caught.value)


def test_driver_is_imported_only_if_it_is_used() -> None:
    drivers = "('psycopg', 'models.storage.postgres')"
    code = f"import sys, run; print([name for name in sys.modules if name.startswith({drivers})])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# Statements


@pytest.mark.parametrize(
    ("sqlite_sql", "postgresql_sql", "names"),
    [
        ("SELECT ? + ?", "SELECT $1 + $2", None),
        ("SELECT :b, :a, :b", "SELECT $1, $2, $1", ("b", "a")),
        ("SELECT '?', ':a', 'it''s ?', \"a?\" WHERE x = ?", "SELECT '?', ':a', 'it''s ?', \"a?\" WHERE x = $1", None),
        ("a IS ? AND b IS NOT ?", "a IS NOT DISTINCT FROM $1 AND b IS DISTINCT FROM $2", None),
        ("a IS NULL AND b IS NOT NULL", "a IS NULL AND b IS NOT NULL", None),
        ("a IS r.a", "a IS NOT DISTINCT FROM r.a", None),
        ("FROM t INDEXED BY i WHERE", "FROM t WHERE", None),
        ("a CROSS JOIN b c ON x", "a JOIN b c ON x", None),
        ("a CROSS JOIN b c WHERE x", "a CROSS JOIN b c WHERE x", None),
    ],
)
def test_statement_is_translated_to_postgresql(
    sqlite_sql: str, postgresql_sql: str, names: tuple[str, ...] | None
) -> None:
    assert dialect.statement(sqlite_sql) == (postgresql_sql, names)
