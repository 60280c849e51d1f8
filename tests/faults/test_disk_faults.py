"""A full disk and a read-only disk: callers get the reason, and acknowledged data is not lost."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from chart_servers import WebServer, web_server
from conftest import Answer, Serve, Server, wait_for
from fault_injection import (
    API,
    PULL,
    SLEEPER,
    TEMPLATE,
    UPDATE,
    FailingDisk,
    ParallelRequests,
    PreparedRequest,
    add_repository_request,
    charts_settings,
    check_failure,
    check_no_traceback,
    check_reads,
    create_records,
    fill_disk,
    is_swept,
    send_prepared,
    small_disk,
    template_request,
    upload_request,
)  # fmt: skip
from http_checks import ready
from identity_providers import CALLBACK, Browser, query_of, real_provider, settings
from receivers import Admin
from uploads import query_store
from users import PASSWORD, FormClient, log_in

from models.accounts.accounts import digest
from supervisor.processes.logs.access import LogFile
from supervisor.processes.logs.rotation import Rotation, rotate

ADMIN = {"security": {"admin-password": PASSWORD}}


@pytest.fixture
def repository() -> Iterator[WebServer]:
    with web_server() as one:
        yield one


def writes(repository: WebServer) -> list[PreparedRequest]:
    """Requests of each service that write to the disk."""
    start: PreparedRequest = ("POST", "/api/v1/processes/start/other", None, {})
    return [
        upload_request("full", 3000),
        add_repository_request("other", repository),
        UPDATE,
        template_request(200_000),
        PULL,
        TEMPLATE,
        start,
    ]


def check_all_writes(server: Server, repository: WebServer) -> None:
    """Checks that all writes succeed without a restart of the server."""
    wait_for(lambda: server.get("/readyz").status == 200)
    for request in writes(repository):
        answer = send_prepared(server, request)
        assert answer.status in (200, 201), (request[1], answer)
    assert server.do("stop", "web").status == 200
    query = "SELECT name, tests FROM run JOIN project ON project.id = project_id ORDER BY run.id"
    assert query_store(server, query)[0] == ("before", 3)
    check_no_traceback(server)


def wait_for_cleanup(server: Server, temp: Path) -> None:
    wait_for(lambda: not list((server.data / "incoming").iterdir()), about="uploads to be removed")
    wait_for(lambda: is_swept(temp), about="the sweep")


def test_on_a_full_disk_every_caller_gets_the_reason_and_acknowledged_data_stays(
    serve: Serve, tmp_path: Path, repository: WebServer
) -> None:
    with small_disk(tmp_path / "disk", "3m") as disk:
        server = serve(
            {"web": SLEEPER, "other": SLEEPER}, wait=False, svc=charts_settings(repository, disk / "temp"),
            server={"data-dir": str(disk / "data")},
        )  # fmt: skip
        server.data = disk / "data"
        try:
            create_records(server.start(), repository)
            filler = fill_disk(disk)
            for request, answer in zip(
                writes(repository), ParallelRequests(server, writes(repository)).start().answers(), strict=True
            ):
                message = check_failure(answer, 500, 503, 507)
                assert "full" in message or "space" in message or "written" in message, (request[1], message)
            assert server.status("other") == "running"  # supervision continues; only its history waits
            check_reads(server)
            assert server.get("/readyz").status == 503
            filler.unlink()
            wait_for_cleanup(server, disk / "temp")
            server.do("stop", "other")
            check_all_writes(server, repository)
        finally:
            server.close()


def test_full_disk_is_reported_before_anything_is_written(serve: Serve, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "3m") as disk:
        server = serve({"web": SLEEPER, "other": SLEEPER}, wait=False, server={"data-dir": str(disk / "data")})
        server.data = disk / "data"
        try:
            server.start()
            assert [ready(server).json[part] for part in ("store", "disk")] == ["UP", "UP"]
            filler = fill_disk(disk)
            answer = wait_for(lambda: (found := server.get("/readyz")).status == 503 and found)
            assert "the disk of the data directory is full" in answer.text
            assert "the disk of the data directory is full" in server.log.read_text()
            began = time.monotonic()
            message = check_failure(server.do("start", "web"), 503)
            assert time.monotonic() - began < 3  # it waited 5 s
            assert "the disk is full" in message
            assert server.status("web") == "running"
            filler.unlink()
            wait_for(lambda: server.get("/readyz").status == 200)
            assert "has enough free space again" in server.log.read_text()
        finally:
            server.close()


def test_a_log_is_rotated_on_a_full_disk_without_its_oldest_backups(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        log = disk / "web.log"
        for name, size in {"web.log": 480_000, "web.log.1": 50_000, "web.log.2": 350_000}.items():
            (disk / name).write_bytes(bytes(size))
        assert rotate(LogFile(str(log), 400_000, 3)).result is Rotation.ROTATED
        sizes = {file.name: file.stat().st_size for file in disk.iterdir()}
        assert sizes == {"web.log": 0, "web.log.1": 480_000, "web.log.2": 50_000}
        (disk / "web.log.1").unlink()
        log.write_bytes(bytes(700_000))
        assert rotate(LogFile(str(log), 400_000, 3)).result is Rotation.TRUNCATED
        assert {file.name: file.stat().st_size for file in disk.iterdir()} == {"web.log": 0}


@pytest.mark.parametrize("min_free", ["2M", None])
def test_uploads_are_refused_with_too_little_free_space_and_all_else_continues(
    serve: Serve, tmp_path: Path, min_free: str | None
) -> None:
    storage = {"storage": {"min-free": min_free}} if min_free else {}
    with small_disk(tmp_path / "disk", "40m") as disk:
        server = serve({"web": SLEEPER}, wait=False, server={"data-dir": str(disk / "data"), **storage}, tracker=ADMIN)
        server.data = disk / "data"
        try:
            server.start()
            assert send_prepared(server, upload_request("before")).status == 201
            filler = fill_disk(disk, leave=1024 * 1024)
            answer = send_prepared(server, upload_request("refused"))
            assert answer.status == 507, answer
            assert "1.0 MiB free; server.storage.min-free is 2.0 MiB" in answer.json["detail"]
            assert ready(server).json["disk"] == "LOW"
            assert "server.storage.min-free" in server.log.read_text()
            assert server.do("start", "web").status == 200
            assert log_in(server)  # a new session is stored
            filler.unlink()
            assert send_prepared(server, upload_request("after")).status == 201
            assert query_store(server, "SELECT name FROM project ORDER BY id") == [("before",), ("after",)]
        finally:
            server.close()


def session_in_memory(server: Server, disk: Path) -> str | None:
    """Logs in on a full disk; None if the session was stored, in what a shortened write-ahead log has left."""
    fill_disk(disk)
    session = log_in(server)
    is_kept = "the session of admin is kept in memory only: the disk is full" in server.log.read_text()
    return session if is_kept else None


def refused_profile(client: FormClient, disk: Path) -> Answer | None:
    """Writes on a full disk; None if that was stored, in what a shortened write-ahead log has left."""
    fill_disk(disk)
    answer = client.send("/profile", on="/profile", displayName="Ada" * 80)
    return None if answer.status == 303 else answer


def test_on_a_full_disk_an_admin_logs_in_and_deletes(serve: Serve, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "24m") as disk:
        server = serve({"web": SLEEPER}, wait=False, server={"data-dir": str(disk / "data")}, tracker=ADMIN)
        server.data = disk / "data"
        try:
            server.start()
            for count in (20, 3000, 3000):
                assert send_prepared(server, upload_request("big", count)).status == 201
            before = FormClient(server, log_in(server))
            assert before.send("/profile/tokens", on="/profile", name="ci").status == 200
            assert before.send("/users", on="/users", username="tim", password="correct horse battery").status == 303
            assert before.send("/projects/1/members", on="/projects/1/settings", username="tim").status == 303
            for name in ("flaky", "slow"):
                rule = {"name": name, "category": "bug", "pattern": name}
                body, headers = json.dumps(rule).encode(), {**before.headers(), "Content-Type": "application/json"}
                assert server.ask("POST", f"{API}/projects/1/triage-rules", body, headers).status == 201
            wait_for((disk / "data" / "reserve").exists)
            filler = fill_disk(disk)
            wait_for(lambda: server.get("/readyz").status == 503)
            began = time.monotonic()
            log_in(server)
            assert time.monotonic() - began < 5
            session = wait_for(lambda: session_in_memory(server, disk), about="a session that is not stored")
            client = FormClient(server, session)
            assert client.get(f"{API}/me").json["username"] == "admin"
            refused = wait_for(lambda: refused_profile(client, disk), about="a profile that is not stored")
            assert (refused.status, "the disk is full" in refused.text) == (503, True), refused
            fill_disk(disk)
            assert client.send("/profile/tokens/1/revoke", on="/profile").status == 303
            fill_disk(disk)
            assert client.send("/projects/1/members/2/remove", on="/projects/1/settings").status == 303
            fill_disk(disk)
            assert client.send("/projects/1/triage/1/delete", on="/projects/1/triage").status == 303
            fill_disk(disk)
            assert server.ask("DELETE", f"{API}/projects/1/triage-rules/2", headers=client.headers()).status == 204
            left = "SELECT (SELECT count(*) FROM triage_rule), (SELECT count(*) FROM membership)"
            assert query_store(server, left) == [(0, 0)]
            fill_disk(disk)
            assert client.send("/users/2/delete", on="/users").status == 303
            fill_disk(disk)
            assert client.send("/profile/sessions/1/end", on="/profile").status == 303
            left = "SELECT (SELECT count(*) FROM account), (SELECT count(*) FROM session WHERE id = 1), revoked_at > 0"
            assert query_store(server, f"{left} FROM token") == [(1, 0, 1)]
            for run in (1, 2, 3):
                answer = server.ask("DELETE", f"{API}/runs/{run}", headers=client.headers())
                assert answer.status == 204, answer
            assert query_store(server, "SELECT count(*) FROM run") == [(0,)]
            assert FormClient(server, session[:-1] + "-").get(f"{API}/me").status == 401
            wal = disk / "data" / "tracker.db-wal"
            wait_for(lambda: wal.stat().st_size <= 256 * 1024, about="the write-ahead log to shrink")
            filler.unlink()
            wait_for((disk / "data" / "reserve").exists, about="the reserve to be made again")
            assert send_prepared(server, upload_request("after")).status == 201
            assert client.send("/logout", on="/profile").status == 303
            client.jar[server.cookie] = session
            assert client.get(f"{API}/me").status == 401
            check_no_traceback(server)
        finally:
            server.close()


def login_in_memory(server: Server, disk: Path) -> tuple[Browser, str] | None:
    """Begins a login on a full disk; None if it was stored, in what a shortened write-ahead log has left."""
    fill_disk(disk)
    browser = Browser(server)
    url = browser.begin()
    stored = query_store(server, "SELECT state FROM login_attempt")
    return None if (digest(query_of(url)["state"]),) in stored else (browser, url)


def test_on_a_full_disk_an_admin_logs_in_by_the_identity_provider(serve: Serve, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "24m") as disk, real_provider() as provider:
        sections = settings(provider.issuer, **{"admin-groups": ["ops"]})
        sections["server"]["data-dir"] = str(disk / "data")
        server = serve({}, wait=False, **sections)
        server.data = disk / "data"
        try:
            server.start()
            provider.log_in("s-ann", "ann", "ops")
            assert Browser(server).log_in().status == 303
            stored = Browser(server)
            begun_before = stored.begin()
            wait_for((disk / "data" / "reserve").exists)
            fill_disk(disk)
            wait_for(lambda: server.get("/readyz").status == 503)
            browser, begun = wait_for(lambda: login_in_memory(server, disk), about="a login that is not stored")
            for one, url in ((stored, begun_before), (browser, begun)):
                fill_disk(disk)
                _, callback = one.follow(url, CALLBACK)
                assert one.request(callback).status == 303
                assert one.me() == ("ann", "ADMIN")
                assert one.request(callback).status == 400
            check_no_traceback(server)
        finally:
            server.close()


def make_records(admin: Admin, suffix: str = "") -> list[str]:
    """Makes channels with secrets and a rule of the server; returns their paths in an order in which they can go."""
    hook = {"name": f"hook{suffix}", "type": "webhook", "url": "http://127.0.0.1:9/hook"}
    rule = {"name": f"all{suffix}", "channels": [hook["name"]], "events": ["process.*"], "groupWait": 0}
    paths: list[str] = []
    for path, body in (
        ("/projects/1/notify/channels", hook),
        ("/notify/channels", hook),
        ("/notify/rules", rule),
    ):
        answer = admin.ask("POST", path, body)
        assert answer.status == 201, answer
        paths.insert(0, f"{path}/{answer.json['id']}")
    return paths


def test_on_a_full_disk_an_admin_deletes_messages_channels_and_rules(serve: Serve, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "24m") as disk:
        boom = {"command": ["sh", "-c", "exit 3"], "restart": "never", "auto-start": False}
        server = serve({"boom": boom}, wait=False, server={"data-dir": str(disk / "data")}, tracker=ADMIN)
        server.data = disk / "data"
        try:
            server.start()
            assert send_prepared(server, upload_request("big")).status == 201
            admin = Admin(server)
            paths, remaining = make_records(admin), make_records(admin, "-2")
            assert server.do("start", "boom").status == 200
            messages = wait_for(lambda: len(found := admin.outbox("?state=DEAD")) == 2 and found)
            paths.insert(0, f"/outbox/{messages[0]['id']}")
            remaining.insert(0, f"/outbox/{messages[1]['id']}")
            wait_for((disk / "data" / "reserve").exists)
            fill_disk(disk)
            wait_for(lambda: server.get("/readyz").status == 503)
            check_deleted(admin, paths, disk)
            server.kill()
            for name in ("outbox", "secrets"):  # without write-ahead logs, as after a stop
                with closing(sqlite3.connect(disk / "data" / f"{name}.db")) as store:
                    store.execute("PRAGMA user_version").fetchall()
                assert not (disk / "data" / f"{name}.db-wal").exists()
            fill_disk(disk)
            server.start()
            check_deleted(admin, remaining, disk)
            assert admin.ask("GET", "/notify/channels").json == []
            check_no_traceback(server)
        finally:
            server.close()


def check_deleted(admin: Admin, paths: list[str], disk: Path) -> None:
    for path in paths:
        fill_disk(disk)
        assert admin.ask("GET", path.rpartition("/")[0]).status == 200
        answer = admin.ask("DELETE", path)
        assert answer.status == 204, (path, answer)
        fill_disk(disk)
        assert admin.ask("DELETE", path).status == 404


def test_disk_that_becomes_read_only_is_reported_and_loses_no_acknowledged_data(
    serve: Serve, tmp_path: Path, repository: WebServer
) -> None:
    disk = FailingDisk(tmp_path / "disk", tmp_path / "image")
    svc = charts_settings(repository, disk.folder / "temp")
    server = serve({"web": SLEEPER, "other": SLEEPER}, wait=False, svc=svc, server={"shutdown-timeout": "1s"})
    server.data = disk.folder / "data"
    try:
        create_records(server.start(), repository)
        disk.fail()
        for request, answer in zip(
            writes(repository), ParallelRequests(server, writes(repository)).start().answers(), strict=True
        ):
            message = check_failure(answer, 500, 503).lower()
            assert "read-only" in message or "readonly" in message or "written" in message or "i/o" in message, (
                request[1],
                message,
            )
        assert server.status("other") == "running"
        check_reads(server)
        assert server.stop() == 0
        assert "the store cannot be written" in server.log.read_text()
        disk.repair()
        server.start()
        wait_for_cleanup(server, disk.folder / "temp")
        server.do("stop", "other")
        check_all_writes(server, repository)
    finally:
        server.close()
        disk.close()


def test_read_only_disk_at_the_start_is_reported_in_one_line(serve: Serve, tmp_path: Path) -> None:
    disk = FailingDisk(tmp_path / "disk", tmp_path / "image")
    server = serve(wait=False)
    server.data = disk.folder / "data"
    try:
        disk.fail()
        server.launch()
        assert server.process is not None
        assert server.process.wait(30) == 1
        assert [line for line in server.log.read_text().splitlines() if "cannot start" in line][-1].endswith(
            "the data directory cannot be written: Read-only file system"
        )
        disk.repair()
        server.start()
    finally:
        server.close()
        disk.close()
