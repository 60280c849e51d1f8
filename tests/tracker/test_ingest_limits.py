"""Limits of an upload: each is a setting, is reported as early as possible, and leaves no files."""

from __future__ import annotations

import asyncio
import gzip
import os
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import changed_constants
import pytest
from conftest import Answer, Serve, Server, wait_for
from http_checks import check_problem, connect, read_response, running_server
from uploads import (
    FORM,
    INGEST,
    body,
    form,
    incoming_files,
    junit,
    part,
    post,
    query_store,
    send,
    upload,
)

from models.config.settings import Config, WorkerSettings
from models.errors import TimedOut, Unavailable, Unprocessable
from models.tracker.reports.upload_folder import Received
from models.tracker.runs.store import Upload
from supervisor.children.child import Children
from supervisor.clock import Clock
from supervisor.tracker import ingest
from supervisor.tracker.attachments import Attachments
from supervisor.tracker.disk_space import DiskSpace
from supervisor.workers.pool import WorkerPool

KIB = 1024
LIMITS = {
    "file": "100K", "request": "1M", "inflated": "200K", "inflated-request": "500K",
    "parts": 20, "depth": 10, "output-per-case": "1K",
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("limits"), tracker={"limits": LIMITS}) as server:
        yield server


@pytest.fixture(autouse=True)
def no_incoming_files_remain(server: Server) -> Iterator[None]:
    yield
    wait_for(lambda: not incoming_files(server), about="the incoming files to be removed")
    assert "Traceback" not in server.log.read_text()


@pytest.fixture(scope="module", autouse=True)
def stalled_client(server: Server) -> Iterator[Future[Answer]]:
    """A client that stops sending after a too large file; takes ten seconds, in parallel with the other tests."""

    def wait() -> Answer:
        sent = form([("project", "limits"), ("junit", sized(900 * KIB))])
        with connect(server) as connection:
            head = f"POST {INGEST} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(sent)}\r\nContent-Type: {FORM}"
            connection.sendall(f"{head}\r\n\r\n".encode() + sent[: 600 * KIB])
            return read_response(connection)

    with ThreadPoolExecutor(1) as one:
        yield one.submit(wait)


def sized(size: int) -> str:
    """A report of exactly `size` bytes."""
    start, end = "<testsuite><testcase name='a'/><!--", "--></testsuite>"
    return start + "x" * (size - len(start) - len(end)) + end


def refused(server: Server, status: int, *parts: tuple[str, str | bytes]) -> str:
    outcome = check_problem(post(server, ("project", "limits"), *parts), status, INGEST, has_timestamp=False)
    assert query_store(server, "SELECT 1 FROM project WHERE name = 'limits'") == []
    return str(outcome["detail"])


def test_a_file_of_exactly_the_limit_passes_and_a_byte_more_is_413(server: Server) -> None:
    assert upload(server, ("project", "file"), ("junit", sized(100 * KIB)))["tests"] == 1
    assert "junit" in refused(server, 413, ("junit", junit(passed=1)), ("junit", sized(100 * KIB + 1)))
    assert "jacoco" in refused(server, 413, ("junit", junit(passed=1)), ("jacoco", "x" * (100 * KIB + 1)))


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
def test_a_request_over_its_limit_is_413(server: Server, chunked: bool) -> None:
    sent = form([("project", "limits"), *[("junit", junit(passed=1, prefix="x" * 90_000))] * 12])
    assert len(sent) > KIB * KIB
    with connect(server) as connection:
        framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(sent)}"
        head = f"POST {INGEST} HTTP/1.1\r\nHost: localhost\r\n{framing}\r\nContent-Type: {FORM}\r\n\r\n"
        connection.sendall(head.encode())
        connection.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(sent), sent) if chunked else sent)
        outcome = check_problem(read_response(connection), 413, INGEST, has_timestamp=False)
    assert str(KIB * KIB) in outcome["detail"]


def test_a_request_of_exactly_the_limit_passes(server: Server) -> None:
    start = [part("project", "just"), part("junit", junit(passed=1), "a.xml")]
    rest = KIB * KIB - len(body([*start, *[part("other", "")] * 11]))
    others = [part("other", "x" * (rest // 11 + (rest % 11 if number == 0 else 0))) for number in range(11)]
    sent = body([*start, *others])
    assert len(sent) == KIB * KIB
    assert send(server, sent).status == 201


def test_inflated_size_of_a_report_is_bounded(server: Server) -> None:
    assert upload(server, ("project", "inflated"), ("junit", gzip.compress(sized(200 * KIB).encode())))["tests"] == 1
    detail = refused(server, 413, ("junit", gzip.compress(sized(200 * KIB + 1).encode())))
    assert detail.startswith("junit junit1.xml: ")
    bomb = gzip.compress(b"<testsuite>" + b" " * 50_000_000)
    refused(server, 413, ("junit", junit(passed=1)), ("jacoco", bomb))


def test_the_number_of_parts_is_bounded(server: Server) -> None:
    many = [("junit", junit(passed=1, prefix=f"f{number}")) for number in range(19)]
    assert upload(server, ("project", "parts"), *many)["tests"] == 19
    assert "20 parts" in refused(server, 413, *many, ("other", ""))


def test_the_depth_of_a_report_is_bounded(server: Server) -> None:
    def nested(depth: int) -> str:
        return "<testsuite>" * (depth - 1) + "<testcase name='a'/>" + "</testsuite>" * (depth - 1)

    assert upload(server, ("project", "depth"), ("junit", nested(10)))["tests"] == 1
    assert refused(server, 400, ("junit", nested(11))).startswith("junit junit1.xml: line 1, ")


def test_output_of_a_case_is_truncated_with_a_note(server: Server) -> None:
    long = f"<testsuite><testcase name='a'><system-out>{'x' * 5000}</system-out></testcase></testsuite>"
    run = upload(server, ("project", "output"), ("junit", long))["runId"]
    query = "SELECT out FROM output o JOIN result r ON r.id = o.result_id WHERE r.run_id = ?"
    ((out,),) = query_store(server, query, run)
    assert out.startswith("x" * 900)
    assert len(out) < 1200
    assert not out.endswith("x")


def test_long_names_are_truncated_and_not_refused(server: Server) -> None:
    long = f"<testsuite name='{'s' * 9000}'><testcase classname='{'c' * 9000}' name='{'n' * 9000}'/></testsuite>"
    run = upload(server, ("project", "names"), ("junit", long))["runId"]
    query = "SELECT class_name, t.name FROM test t JOIN result r ON r.test_id = t.id WHERE r.run_id = ?"
    ((class_name, name),) = query_store(server, query, run)
    assert 100 < len(class_name) < 9000
    assert 100 < len(name) < 9000


def test_text_parts_are_bounded_while_they_are_received(server: Server) -> None:
    sent = form([("project", "limits"), ("branch", "x" * 900_000), ("junit", junit(passed=1))])
    check_problem(send(server, sent), 400, INGEST, has_timestamp=False)
    check_problem(
        send(server, form([("branch", "x" * 600_000), ("commit", "x" * 400_000)])),
        400,
        INGEST,
        has_timestamp=False,
    )


def test_refused_file_is_deleted_before_the_rest_is_received(server: Server) -> None:
    sent = form([("project", "limits"), ("junit", sized(900 * KIB))])
    with connect(server) as connection:
        head = (
            f"POST {INGEST} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(sent)}\r\nContent-Type: {FORM}\r\n\r\n"
        )
        connection.sendall(head.encode() + sent[: 600 * KIB])
        wait_for(lambda: server.get("/healthz").status == 200 and not incoming_files(server))
        connection.sendall(sent[600 * KIB :])
        check_problem(read_response(connection), 413, INGEST, has_timestamp=False)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_response(connection).status == 200, "the connection can be used again"


def test_max_body_of_the_server_applies_to_uploads(serve: Serve) -> None:
    server = serve(server={"max-body": "10K"})
    sent = body([part("project", "p"), part("junit", sized(20 * KIB), "a.xml")])
    check_problem(send(server, sent), 413, INGEST, has_timestamp=False)
    assert send(server, form([("project", "p"), ("junit", junit(passed=1))])).status == 201


def test_ten_thousand_parts_are_accepted_and_one_more_is_413(serve: Serve) -> None:
    server = serve()
    files = [part("junit", junit(passed=1, prefix=f"f{number}"), f"{number}.xml") for number in range(200)]
    texts = [part("branch", str(number)) for number in range(9_799)]
    answer = send(server, body([part("project", "p"), *files, *texts]))
    assert answer.status == 201, answer
    assert (answer.json["tests"], answer.json["branch"]) == (200, "9798")
    outcome = check_problem(
        send(server, body([part("project", "p"), *files, *texts, texts[0]])),
        413,
        INGEST,
        has_timestamp=False,
    )
    assert "10000 parts" in outcome["detail"]


def test_client_that_stalls_after_a_refusal_is_answered(stalled_client: Future[Answer]) -> None:
    check_problem(stalled_client.result(), 413, INGEST, has_timestamp=False)


def test_total_inflated_size_of_a_request_is_bounded(server: Server) -> None:
    reports = [("junit", gzip.compress(sized(190 * KIB).replace("'a'", f"'a{n}'").encode())) for n in range(3)]
    detail = refused(server, 413, *reports)
    assert detail.startswith("junit junit3.xml: the reports of the request have more than 512000 bytes when inflated")
    assert post(server, ("project", "two of them"), *reports[:2]).status == 201


def many_cases(count: int) -> bytes:
    rows = "".join(f"<testcase classname='A' name='c{n}'/>" for n in range(count))
    return gzip.compress(f"<testsuite name='s'>{rows}</testsuite>".encode(), 1)


def test_reading_ends_when_the_client_disconnects(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        sent = form([("project", "gone"), ("junit", many_cases(600_000))])
        with connect(server) as connection:
            head = f"POST {INGEST} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(sent)}\r\nContent-Type: {FORM}"
            connection.sendall(f"{head}\r\n\r\n".encode() + sent)
            wait_for(lambda: any(server.data.glob("incoming/*/rows")), about="the report to be read")
        wait_for(lambda: not incoming_files(server), about="the upload to be removed")
        assert query_store(server, "SELECT 1 FROM project WHERE name = 'gone'") == []


async def read_large(folder: Path, then: Callable[[ingest.Ingest], Awaitable[None]]) -> None:
    """Uploads a report that takes seconds; calls `then` once it is being read. Raises what the upload raises."""
    clock, children = Clock(), Children()
    attachments = Attachments(folder / "attachments", Config().tracker.attachments, clock, asyncio.to_thread)
    pool = WorkerPool(WorkerSettings(), children, "test", os.environ, 10)
    made = ingest.Ingest(folder / "incoming", Config(), clock, lambda _: None, attachments, pool, DiskSpace(folder, 0))
    try:
        made.sweep()
        request = made.folder()
        request.mkdir()
        (request / "0").write_bytes(many_cases(600_000))
        received = Received("junit", "a.xml", "0")
        upload = asyncio.create_task(made.run(request, Upload("p"), [received], None, "me", lambda _: None))
        while not (request / "rows").exists() and not upload.done():
            await asyncio.sleep(0.01)
        await then(made)
        await upload
    finally:
        await made.close(60)
        children.close()


async def nothing(_: ingest.Ingest) -> None:
    """Lets the upload go on."""


def test_reading_is_limited_in_cpu_time_and_elapsed_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "_MAX_READ_CPU_SECONDS", 1)
    with pytest.raises(Unprocessable, match="more than 1 s of CPU time"):
        asyncio.run(read_large(tmp_path, nothing))
    monkeypatch.setattr(ingest, "_MAX_READ_SECONDS", 0.5)
    with pytest.raises(TimedOut, match=r"could not be read within 0\.5 s"):
        asyncio.run(read_large(tmp_path, nothing))
    wait_for(lambda: not list((tmp_path / "incoming").iterdir()), about="the folder to be removed")


def test_an_upload_that_is_not_read_in_time_is_504_and_leaves_nothing(serve: Serve) -> None:
    command = changed_constants.server_command(supervisor__tracker__ingest___MAX_READ_SECONDS=0.2)
    server = serve(command=command)
    refused = post(server, ("project", "slow"), ("junit", many_cases(600_000)))
    assert refused.status == 504
    assert "could not be read within 0.2 s" in refused.json["detail"]
    assert server.get("/api/v1/projects").json == []
    wait_for(lambda: not incoming_files(server), about="the folder to be removed")


def test_reading_ends_when_the_server_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "_STOP_GRACE_SECONDS", 0.0)
    with pytest.raises(Unavailable, match="stopping"):
        asyncio.run(read_large(tmp_path, lambda made: made.close(60)))
    wait_for(lambda: not list((tmp_path / "incoming").iterdir()), about="the folder to be removed")
