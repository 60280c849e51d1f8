"""Uploads under faults: acknowledged ones are durable, failed ones leave nothing, concurrent shards are one run."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from conftest import Answer, Serve, Server, wait_for, workers_of
from http_checks import check_problem, running_server
from requirements import MOUNTING
from run_streams import listen, next_event
from uploads import (
    FORM,
    INGEST,
    form,
    incoming_files,
    jacoco,
    junit,
    post,
    query_store,
    send,
    upload,
)

JUNIT = ("junit", junit(passed=1))
sqlite_only = pytest.mark.skipif(Server.is_on_postgresql, reason="about the file; see test_on_postgresql.py")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("faults")) as server:
        yield server
        assert "Traceback" not in server.log.read_text()


def partial_request(server: Server, sent: bytes, upto: int) -> socket.socket:
    """Sends a request with only the first `upto` bytes of its body."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    head = f"POST {INGEST} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(sent)}\r\nContent-Type: {FORM}\r\n\r\n"
    connection.sendall(head.encode() + sent[:upto])
    return connection


LARGE = form([("project", "large"), ("junit", b"<testsuite>" + b" " * 3_000_000)])


# SIGKILL


def test_acknowledged_uploads_survive_sigkill(serve: Serve) -> None:
    server = serve()
    for number in range(3):
        outcome = upload(
            server, ("project", "kept"), ("runKey", str(number)), ("junit", junit(passed=50, failed=number))
        )
        server.kill()
        assert query_store(server, "SELECT tests, failed FROM run WHERE id = ?", outcome["runId"]) == [
            (50 + number, number)
        ]
        server.start()
        again = upload(server, ("project", "kept"), ("runKey", str(number)), ("junit", junit(passed=50, failed=number)))
        assert again == outcome


def test_incoming_files_of_a_killed_server_are_removed_at_its_next_start(serve: Serve) -> None:
    server = serve()
    with partial_request(server, LARGE, 2_000_000):
        wait_for(lambda: incoming_files(server))
        server.kill()
    assert incoming_files(server)
    server.start()
    assert incoming_files(server) == []
    assert query_store(server, "SELECT count(*) FROM run") == [(0,)]
    assert post(server, ("project", "p"), JUNIT).status == 201


def test_upload_that_is_being_stored_is_answered_during_a_shutdown(serve: Serve) -> None:
    server = serve()
    with locked(server) as unlock:
        answers: list[Answer] = []
        poster = threading.Thread(target=lambda: answers.append(post(server, ("project", "p"), JUNIT)))
        poster.start()
        wait_for(lambda: any((folder / "rows").exists() for folder in incoming_files(server)))
        assert server.process is not None
        server.process.terminate()
        wait_for(lambda: "stopping" in server.log.read_text())
        unlock()
        poster.join(30)
    assert [answer.status for answer in answers] == [201]
    assert server.process.wait(30) == 0
    assert query_store(server, "SELECT count(*) FROM run") == [(1,)]


def test_upload_that_still_arrives_during_a_shutdown_causes_no_traceback(serve: Serve) -> None:
    server = serve()
    with partial_request(server, LARGE, 1_000_000) as connection:
        wait_for(lambda: incoming_files(server))
        assert server.process is not None
        server.process.terminate()
        with contextlib.suppress(OSError):  # it may be closed already
            connection.sendall(LARGE[1_000_000:])
        assert server.process.wait(30) == 0
    assert "Traceback" not in server.log.read_text()
    assert query_store(server, "SELECT count(*) FROM run") == [(0,)]


# Clients that disconnect


@pytest.mark.parametrize("upto", [10, 1000, 1_000_000, 2_900_000])
def test_client_that_disconnects_midway_leaves_no_files(server: Server, upto: int) -> None:
    with partial_request(server, LARGE, upto):
        if upto > 300_000:
            wait_for(lambda: incoming_files(server), about="an incoming file")
    wait_for(lambda: not incoming_files(server), about="the incoming files to be removed")
    assert query_store(server, "SELECT 1 FROM project WHERE name = 'large'") == []


def test_client_that_half_closes_the_connection_leaves_no_files(server: Server) -> None:
    with partial_request(server, LARGE, 1_000_000) as connection:
        wait_for(lambda: incoming_files(server))
        connection.shutdown(socket.SHUT_WR)
        wait_for(lambda: not incoming_files(server))


@sqlite_only
def test_parsed_upload_is_stored_though_its_client_disconnects(server: Server) -> None:
    """Only once it is parsed and its files are removed: parsing itself stops when the client disconnects."""
    sent = form([("project", "gone"), JUNIT])
    with locked(server) as unlock:
        with partial_request(server, sent, len(sent)):
            wait_for(lambda: [path.name for folder in incoming_files(server) for path in folder.glob("*")] == ["rows"])
        unlock()
        wait_for(lambda: not incoming_files(server))
    assert (
        len(query_store(server, "SELECT 1 FROM run r JOIN project p ON p.id = r.project_id WHERE p.name = 'gone'")) == 1
    )


def test_an_upload_whose_client_leaves_while_it_is_read_is_refused_not_failed(serve: Serve) -> None:
    server = serve(server={"workers": {"processes": 1, "idle": "1h"}})
    assert post(server, ("project", "read"), JUNIT).status == 201
    (worker,) = workers_of(server)
    os.kill(worker, signal.SIGSTOP)
    sent = form([("project", "gone"), JUNIT])
    with partial_request(server, sent, len(sent)):
        wait_for(lambda: "pilothouse_uploads_waiting 1.0" in server.get("/metrics").text)
    wait_for(lambda: 'pilothouse_uploads_total{outcome="refused"} 1.0' in server.get("/metrics").text)
    assert 'pilothouse_uploads_total{outcome="failed"} 0.0' in server.get("/metrics").text
    wait_for(lambda: not incoming_files(server))
    assert " ERROR " not in server.log.read_text()


def test_a_stop_removes_an_upload_that_has_not_arrived_whole(serve: Serve) -> None:
    server = serve()
    with partial_request(server, LARGE, len(LARGE) // 2):
        wait_for(lambda: incoming_files(server))
        server.stop()
        assert incoming_files(server) == []


def test_slow_uploads_do_not_block_other_callers(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(partial_request(server, LARGE, 500_000))
        assert post(server, ("project", "quick"), JUNIT).status == 201
        assert server.get("/healthz").status == 200
    wait_for(lambda: not incoming_files(server))


# The store and the disk


@contextlib.contextmanager
def locked(server: Server) -> Iterator[Callable[[], None]]:
    """Another connection holds the write lock of the store until `unlock` is called."""
    with contextlib.closing(sqlite3.connect(server.data / "tracker.db", isolation_level=None, timeout=30)) as other:
        other.execute("BEGIN IMMEDIATE")

        def unlock() -> None:
            other.execute("COMMIT")

        yield unlock


def test_upload_waits_for_a_locked_store(server: Server) -> None:
    with locked(server) as unlock, ThreadPoolExecutor(1) as one:
        answer = one.submit(post, server, ("project", "locked"), JUNIT)
        wait_for(lambda: incoming_files(server))
        assert server.get("/healthz").status == 200
        unlock()
        assert answer.result().status == 201


@sqlite_only
def test_store_that_stays_locked_is_503_and_leaves_no_files(server: Server) -> None:
    with locked(server):
        answer = post(server, ("project", "stays locked"), JUNIT)
    check_problem(answer, 503, INGEST, has_timestamp=False)
    assert answer.headers["Retry-After"]
    wait_for(lambda: not incoming_files(server))
    assert query_store(server, "SELECT 1 FROM project WHERE name = 'stays locked'") == []


def limit_file_size(server: Server, size: str) -> None:
    subprocess.run(["prlimit", f"--pid={server.pid}", f"--fsize={size}:"], check=True)


@pytest.mark.parametrize("size", ["0", "4096", "70000", pytest.param("300000", marks=sqlite_only)])
def test_file_size_limit_is_503_and_leaves_no_files(serve: Serve, size: str) -> None:
    """Like a full disk: at the first byte, in the middle of a file, when rows are read, when they are stored."""
    server = serve()
    file = ("junit", junit(passed=3000))
    upload(server, ("project", "before"), JUNIT)
    limit_file_size(server, size)
    answer = post(server, ("project", "full"), file)
    check_problem(answer, 503, INGEST, has_timestamp=False)
    wait_for(lambda: not incoming_files(server))
    limit_file_size(server, "unlimited")
    assert query_store(server, "SELECT 1 FROM project WHERE name = 'full'") == []
    assert upload(server, ("project", "full"), file)["tests"] == 3000


@pytest.mark.needs(MOUNTING)
def test_full_disk_is_507_and_later_uploads_succeed(serve: Serve) -> None:
    server = serve(wait=False)
    server.data.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(server.data)], check=True)
    try:
        server.start()
        upload(server, ("project", "before"), JUNIT)
        large = "<testsuite>" + "<testcase name='x'/>" * 200_000 + "</testsuite>"
        check_problem(post(server, ("project", "full"), ("junit", large)), 507, INGEST, has_timestamp=False)
        wait_for(lambda: not incoming_files(server))
        assert query_store(server, "SELECT name FROM project") == [("before",)]
        assert upload(server, ("project", "after"), JUNIT)["tests"] == 1
        assert "Traceback" not in server.log.read_text()
    finally:
        server.close()
        subprocess.run(["umount", "-l", str(server.data)], check=True)


# Concurrency


def test_concurrent_shards_are_one_run_with_exact_totals(server: Server) -> None:
    def shard(number: int) -> list[tuple[str, str]]:
        lines = {line: line % 20 == number for line in range(1, 101)}
        return [
            ("project", "shards"), ("runKey", "build 1"), ("branch", "main"),
            ("junit", junit(passed=10, failed=1, skipped=2, prefix=f"s{number}-")),
            ("jacoco", jacoco({"Shared.java": lines, f"Own{number}.java": {1: True, 2: False}})),
        ]  # fmt: skip

    stream = listen(server)
    posts = [*range(20), *range(0, 20, 3)]
    random.Random(7).shuffle(posts)
    with ThreadPoolExecutor(len(posts)) as at_once:
        answers = list(at_once.map(lambda number: post(server, *shard(number)), posts))
    assert {answer.status for answer in answers} == {201}
    assert len({answer.json["runId"] for answer in answers}) == 1
    final = upload(server, *shard(0))
    assert (final["tests"], final["passed"], final["failed"], final["skipped"]) == (260, 200, 20, 40)
    assert final["lineCoveragePct"] == (100 + 20) * 100 / (100 + 40)
    assert final["uploads"] == 20
    assert query_store(server, "SELECT count(*) FROM result WHERE run_id = ?", final["runId"]) == [(260,)]
    last: dict[str, Any] = {}
    while last.get("totalTests") != 260:
        last = next_event(stream)
    assert (last["runId"], last["failed"], last["skipped"]) == (final["runId"], 20, 40)
    stream.close()


def test_concurrent_first_uploads_create_one_project(server: Server) -> None:
    with ThreadPoolExecutor(10) as at_once:
        answers = list(at_once.map(lambda _: post(server, ("project", "at once"), JUNIT), range(10)))
    assert {answer.status for answer in answers} == {201}
    assert len({answer.json["runId"] for answer in answers}) == 10
    assert len({answer.json["projectId"] for answer in answers}) == 1


def test_invalid_shards_among_valid_ones_change_nothing(server: Server) -> None:
    def shard(number: int) -> Answer:
        content = "<testsuite>" if number % 2 else junit(passed=5, prefix=f"s{number}-")
        return post(
            server, ("project", "bad ones"), ("runKey", "k"), ("junit", junit(1, prefix="x")), ("junit", content)
        )

    with ThreadPoolExecutor(8) as at_once:
        answers = list(at_once.map(shard, range(8)))
    assert sorted(answer.status for answer in answers) == [201] * 4 + [400] * 4
    final = upload(server, ("project", "bad ones"), ("runKey", "k"), ("junit", junit(1, prefix="x")))
    assert (final["tests"], final["uploads"]) == (21, 4)


def test_upload_of_a_hundred_thousand_cases_takes_little_memory(serve: Serve) -> None:
    server = serve()
    upload(server, ("project", "warm"), JUNIT)
    before = peak_memory_kib(server)
    case = (
        "<testcase classname='com.example.project.ClassName%d' name='does what it should %d' time='0.01'>%s</testcase>"
    )
    rest = "<system-out>" + "what it wrote; " * 20 + "</system-out>"
    many = "".join(case % (n // 50, n, rest if n % 3 == 0 else "") for n in range(100_000))
    assert upload(server, ("project", "many"), ("junit", f"<testsuite name='s'>{many}</testsuite>"))["tests"] == 100_000
    assert peak_memory_kib(server) - before < 30 * 1024


def peak_memory_kib(server: Server) -> int:
    """The peak resident memory of the server."""
    with open(f"/proc/{server.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def test_upload_under_the_tracker_prefix_is_published_to_the_stream(server: Server) -> None:
    stream = listen(server)
    outcome = send(server, form([("project", "pre"), ("commit", "0123456789"), JUNIT]), path=f"/tracker{INGEST}").json
    event = next_event(stream)
    assert (event["runId"], event["project"], event["shortSha"]) == (outcome["runId"], "pre", "0123456")
    stream.close()
