"""A real PostgreSQL server (Debian's) for tests, run by an unprivileged user, and new databases in it."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from conftest import TIMEOUT_SECONDS, free_port, wait_for
from requirements import POSTGRESQL, require

from models.storage import dialect
from models.tracker.tables import reports

USER, PASSWORD = "pilot", "s3cret-of-the-database"
_EMPTY = """
    DO $$ DECLARE name TEXT; BEGIN
        SET LOCAL session_replication_role = replica;
        FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'schema_version' LOOP
            EXECUTE format('DELETE FROM %I', name);
        END LOOP;
        FOR name IN SELECT sequencename FROM pg_sequences WHERE schemaname = 'public' LOOP
            PERFORM setval(name, 1, false);
        END LOOP;
    END $$"""


def programs() -> Path:
    """The folder of the newest server's programs, which Debian does not put on the path."""
    require(POSTGRESQL)
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda one: int(one.parts[-3]))
    return found[-1].parent


def ask(url: str, sql: str, values: Sequence[object] = ()) -> list[Any]:
    """Runs a statement in the store's notation on a connection of its own; returns the rows."""
    import psycopg

    with psycopg.connect(url, autocommit=True, cursor_factory=psycopg.RawCursor) as connection:
        done = connection.execute(dialect.statement(sql)[0].encode() if values else sql.encode(), values or None)
        return done.fetchall() if done.description else []


@functools.cache
def shared_cluster() -> Postgresql:
    """One server for all tests of this process."""
    one = Postgresql()
    atexit.register(one.close)
    return one


class Postgresql:
    """A PostgreSQL server with its data in a temporary folder, which `close` removes."""

    def __init__(self) -> None:
        self._bin = programs()
        self._folder = Path(tempfile.mkdtemp(prefix="pg-"))
        self._as: list[str] = []
        if os.geteuid() == 0:  # the server refuses to be root
            user = pwd.getpwnam("postgres")
            self._as = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
            os.chown(self._folder, user.pw_uid, user.pw_gid)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._has_template = False
        self._common = ""
        word = self._folder / "word"
        word.write_text(PASSWORD)
        word.chmod(0o644)
        self._run(
            "initdb", "-D", str(self._data), "-U", USER, "-A", "scram-sha-256", f"--pwfile={word}",
            "-N", "--locale=C.UTF-8", "-E", "UTF8",
        )  # fmt: skip
        self.start()

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run([*self._as, str(self._bin / program), *arguments], check=True, capture_output=True, cwd="/")

    def start(self) -> None:
        settings = {
            "port": str(self.port), "listen_addresses": "127.0.0.1", "unix_socket_directories": str(self._folder),
            "fsync": "off", "shared_buffers": "32MB", "max_connections": "60", "autovacuum": "off",
        }  # fmt: skip
        arguments = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        until_we_end = [*(self._as or ["setpriv"]), "--pdeathsig=QUIT"]  # also where this process is killed
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*until_we_end, str(self._bin / "postgres"), "-D", str(self._data), *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True,
            )  # fmt: skip
        wait_for(self._answers, about=f"PostgreSQL; its log: {self._folder / 'log'}")

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self, how: str = "immediate") -> None:
        """Stops the server. `fast` ends the sessions with a message, `immediate` without."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT if how == "fast" else signal.SIGQUIT)
        self._process.wait(TIMEOUT_SECONDS)
        self._process = None

    @contextlib.contextmanager
    def hung(self) -> Iterator[None]:
        """Suspends all its processes: connections stay open without responses."""
        assert self._process is not None
        root = psutil.Process(self._process.pid)
        root.suspend()  # first, so that there are no new ones
        processes = [root, *root.children()]
        for one in processes:
            one.suspend()
        try:
            yield
        finally:
            for one in reversed(processes):  # those that ended meanwhile wait for the first of them
                one.resume()

    def url(self, name: str, password: str = PASSWORD) -> str:
        return f"postgresql://{USER}:{password}@127.0.0.1:{self.port}/{name}"

    def ask(self, sql: str, name: str = "postgres") -> list[Any]:
        return ask(self.url(name), sql)

    def fresh(self, tables: bool = True) -> str:
        """Creates a database, with or without the tables of the tracker; returns its URL."""
        name, template = f"t{secrets.token_hex(6)}", self._template() if tables else "template1"
        self.ask(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        return self.url(name)

    def emptied(self) -> str:
        """Empties the database that tests share in turn, cheaper than a new one; returns its URL."""
        if not self._common:
            self._common = self.fresh()
        ask(self._common, _EMPTY)
        return self._common

    def _template(self) -> str:
        if not self._has_template:
            from models.storage.postgres import Postgres

            self.ask("CREATE DATABASE tables")
            for store in (reports,):
                made = Postgres(store.name, store.steps)
                made.open(self.url("tables"))
                made.close_all()
            self._has_template = True
        return "tables"

    def close(self) -> None:
        if self._process is not None:
            self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
