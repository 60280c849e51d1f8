"""Upgrades: stores of the first version are migrated, and an older program refuses stores of a newer one.

`stores-0.1.0` holds dumps (`sqlite3 … .dump`) of the stores of version 0.1.0.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, Serve, Server, python_command

from models.charts.repositories.stored import catalogue
from models.supervision.tables import database
from models.tracker.tables import reports

VERSIONS = {"pilothouse": len(database.steps), "tracker": len(reports.steps), "charts": len(catalogue.steps)}
DUMPS = Path(__file__).parent / "stores-0.1.0"
NEWER_PROGRAM = (
    "import sys\n"
    "from models.tracker.tables import reports\n"
    "reports.steps.append(['ALTER TABLE project ADD COLUMN colour TEXT NOT NULL DEFAULT 0'])\n"
    "import run\n"
    "sys.exit(run.main(sys.argv[3:]))"
)
"""A program with one more migration of the tracker's store."""


def create_first_version(data: Path) -> None:
    data.mkdir(mode=0o700)
    for name in VERSIONS:
        with contextlib.closing(sqlite3.connect(data / f"{name}.db")) as store:
            store.executescript((DUMPS / f"{name}.sql").read_text())
            store.execute("PRAGMA user_version = 1")


def versions(data: Path) -> dict[str, int]:
    found = {}
    for name in VERSIONS:
        with contextlib.closing(sqlite3.connect(data / f"{name}.db")) as store:
            found[name] = int(store.execute("PRAGMA user_version").fetchone()[0])
    return found


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def upload_report(server: Server) -> int:
    body = (
        b'--e\r\nContent-Disposition: form-data; name="project"\r\n\r\nshop\r\n--e\r\nContent-Disposition: form-data;'
        b' name="junit"; filename="j"\r\n\r\n<testsuite><testcase name="t"/></testsuite>\r\n--e--\r\n'
    )
    answer = server.post("/api/v1/ingest", body, Content_Type="multipart/form-data; boundary=e")
    assert answer.status == 201, answer
    return int(answer.json["runId"])


def test_stores_of_the_first_version_are_migrated_completely(serve: Serve) -> None:
    server = serve({"job": {"command": "sleep 1000"}}, wait=False)
    create_first_version(server.data)
    server.start()
    assert versions(server.data) == VERSIONS
    assert server.new_statuses("job") == ["starting", "running", "finished"]
    assert server.info("job")["status"] == "finished"
    assert "FAILED" in server.get("/api/v1/gate?project=shop&branch=main").text
    assert server.get("/runs/1", Accept="text/html").status == 200
    assert not (server.data / "admin-password").exists(), "an ADMIN exists already"
    assert server.do("start", "job").status == 200
    assert server.new_statuses("job")[3:] == ["starting", "running"]
    assert upload_report(server) == 2


@pytest.fixture
def upgraded(serve: Serve, tmp_path: Path) -> Server:
    """A server whose stores were migrated by the next version; `backup` has copies from before."""
    server = serve()
    upload_report(server)
    (tmp_path / "backup").mkdir()
    for name in VERSIONS:
        with contextlib.closing(sqlite3.connect(server.data / f"{name}.db")) as store:
            store.execute("VACUUM INTO ?", (str(tmp_path / "backup" / f"{name}.db"),))
    server.stop()
    server.command, server.environ = python_command(NEWER_PROGRAM), {"PYTHONPATH": str(ROOT)}
    server.start()
    assert upload_report(server) == 2
    server.stop()
    assert versions(server.data) == {**VERSIONS, "tracker": VERSIONS["tracker"] + 1}
    server.command = []
    return server


def test_an_older_program_refuses_a_newer_store_and_starts_on_a_backup(upgraded: Server, tmp_path: Path) -> None:
    data = upgraded.data
    before = digest(data / "tracker.db")
    arguments = ["--config", str(upgraded.file), "--data-dir", str(data), "--port", "0"]
    done = subprocess.run([sys.executable, str(ROOT / "run.py"), *arguments], capture_output=True, timeout=60)
    assert done.returncode == 1
    assert b"newer than this program" in done.stderr
    assert b"Traceback" not in done.stderr
    assert digest(data / "tracker.db") == before

    for old in [*data.glob("*.db-wal"), *data.glob("*.db-shm")]:
        old.unlink()
    for name in VERSIONS:
        (data / f"{name}.db").write_bytes((tmp_path / "backup" / f"{name}.db").read_bytes())
    upgraded.start()
    assert upgraded.get("/runs/1", Accept="text/html").status == 200
    assert upload_report(upgraded) == 2, "the backup does not have the later run"
