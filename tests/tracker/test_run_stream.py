"""The tracker's stream: contents of `run` events, receivers, replay and dropped clients."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from attrs import frozen
from conftest import Serve, Server, Stream, wait_for
from http_checks import TIMESTAMP, check_problem, running_server
from run_streams import (
    COVERAGE,
    NOW,
    RUN_EVENT,
    RUNS,
    commits,
    create_accounts,
    junit,
    listen,
    next_event,
    open_store,
    post_files,
    upload_files,
)
from stream_pairs import stream_pair

from handlers.tracker.stream import RunFeed
from models.accounts import accounts, permissions
from models.tracker.runs.run_events import record
from models.tracker.tables import Project, Run, reports
from supervisor.clock import Clock
from supervisor.tracker import service

SHA = "0123456789abcdef0123456789abcdef01234567"


@frozen
class Tracker:
    server: Server
    tokens: Mapping[str, str]


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracker]:
    folder = tmp_path_factory.mktemp("runs")
    tokens = create_accounts(folder / "data", ["owner", "member", "outsider", "boss"], admins=["boss"])
    with running_server(folder) as server:
        yield Tracker(server, tokens)


@pytest.fixture
def server(tracker: Tracker) -> Server:
    return tracker.server


def make_private(server: Server, project: str, members: Mapping[str, permissions.ProjectRole]) -> None:
    with open_store(server.data):
        one = Project.get(Project.name == project)
        reports.execute_sql("UPDATE project SET visibility = 'PRIVATE' WHERE id = ?", (one.id,))
        for name, role in members.items():
            user = accounts.user_named(name)
            assert user
            permissions.grant(one.id, user.id, role, NOW)


def drop_member(server: Server, project: str, name: str) -> None:
    with open_store(server.data):
        user = accounts.user_named(name)
        assert user
        assert permissions.remove_member(Project.get(Project.name == project).id, user.id)


def ended(stream: Stream) -> bool:
    with pytest.raises(EOFError):
        stream.next()
    return True


# Events


def test_run_event_has_its_fields_in_order(server: Server) -> None:
    stream = listen(server)
    made = upload_files(
        server,
        "fields ü",
        ("junit", junit(5, 2, 3)),
        ("jacoco", COVERAGE),
        branch="main",
        commit=SHA,
        flag="api",
    )
    event = stream.next()
    assert list(event) == ["event", "id", "data"]
    data = json.loads(event["data"])
    assert list(data) == RUN_EVENT
    assert TIMESTAMP.fullmatch(data.pop("createdAt"))
    assert data == {
        "projectId": made["projectId"], "runId": made["runId"], "branch": "main", "flag": "api", "status": "FAILED",
        "totalTests": 10, "failed": 2, "skipped": 3, "passRatePct": 500 / 7, "lineCoveragePct": 50.0,
        "durationMs": 2500, "shortSha": "0123456", "project": "fields ü", "gateStatus": "FAILED",
        "gatePassed": False, "uploads": 1,
    }  # fmt: skip
    stream.close()


def test_omitted_fields_of_an_upload_are_null_or_empty_in_the_event(server: Server) -> None:
    stream = listen(server)
    upload_files(server, "bare", ("junit", junit(0, 0, 2)))
    data = next_event(stream)
    assert (data["branch"], data["lineCoveragePct"], data["shortSha"]) == (None, None, "")
    assert (data["flag"], data["status"], data["passRatePct"]) == ("default", "PASSED", 0)
    assert (data["gateStatus"], data["gatePassed"]) == ("PASSED", True)
    stream.close()


def test_each_shard_publishes_the_merged_run(server: Server) -> None:
    stream = listen(server)
    first = upload_files(server, "shards", ("junit", junit(2, mark="a")), runKey="k")
    second = upload_files(server, "shards", ("junit", junit(3, 1, mark="b")), runKey="k")
    found = [next_event(stream), next_event(stream)]
    assert first["runId"] == second["runId"] == found[0]["runId"] == found[1]["runId"]
    assert [(one["totalTests"], one["failed"], one["uploads"]) for one in found] == [(2, 0, 1), (6, 1, 2)]
    assert found[1]["id"] == found[0]["id"] + 1
    stream.close()


def test_refused_upload_is_not_published(server: Server) -> None:
    stream = listen(server)
    assert post_files(server, "refused", ("junit", b"<nonsense")).status == 400
    upload_files(server, "taken")
    assert next_event(stream)["project"] == "taken"
    stream.close()


def test_event_line_is_first_in_every_block(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(f"GET {RUNS} HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: 987654\r\n\r\n".encode())
        received = b""
        while received.count(b"\n\n") < 2:
            received += connection.recv(4096)
        upload_files(server, "blocks")
        while received.count(b"\n\n") < 3:
            received += connection.recv(4096)
    blocks = received.partition(b"\r\n\r\n")[2].split(b"\n\n")[:3]
    assert [block.splitlines()[0] for block in blocks] == [b"event: connected", b"event: reset", b"event: run"]


# Receivers


def test_events_of_a_private_project_are_sent_to_its_readers_only(tracker: Tracker) -> None:
    server, tokens = tracker.server, tracker.tokens
    upload_files(server, "secret")
    make_private(server, "secret", {"owner": "OWNER", "member": "READ"})
    readers = [listen(server, token=tokens[name]) for name in ("owner", "member", "boss")]
    others = [listen(server), listen(server, token=tokens["outsider"])]
    secret = upload_files(server, "secret", token=tokens["owner"], commit="5ec4e7")
    upload_files(server, "open to all", commit="0be")
    for stream in readers:
        assert next_event(stream)["runId"] == secret["runId"]
        assert commits(stream, 1) == ["0be"]
    for stream in others:
        assert commits(stream, 1) == ["0be"]
    for stream in [*readers, *others]:
        stream.close()


def test_creator_of_a_private_project_receives_its_first_run(serve: Serve) -> None:
    server = serve(wait=False, tracker={"security": {"default-visibility": "PRIVATE"}})
    tokens = create_accounts(server.data, ["creator", "other"])
    server.start()
    mine, theirs = (listen(server, token=tokens[name]) for name in ("creator", "other"))
    upload_files(server, "new", token=tokens["creator"], commit="abc")
    assert commits(mine, 1) == ["abc"]
    upload_files(server, "newer", token=tokens["other"], commit="def")
    assert commits(theirs, 1) == ["def"]
    mine.close()
    theirs.close()


def test_removed_member_receives_no_further_events(tracker: Tracker) -> None:
    server, tokens = tracker.server, tracker.tokens
    upload_files(server, "lost")
    make_private(server, "lost", {"owner": "OWNER", "member": "READ"})
    stream = listen(server, token=tokens["member"])
    upload_files(server, "lost", token=tokens["owner"], commit="1")
    assert commits(stream, 1) == ["1"]
    drop_member(server, "lost", "member")
    upload_files(server, "lost", token=tokens["owner"], commit="2")
    upload_files(server, "open", commit="3")
    assert commits(stream, 1) == ["3"]
    stream.close()


@pytest.mark.parametrize("how", ["revoked", "expired", "deleted"])
def test_streams_end_with_their_credential_and_no_others_do(tracker: Tracker, how: str) -> None:
    server = tracker.server
    with open_store(server.data):
        user = accounts.create_user(how, "!", "USER", NOW)
        token, other = (accounts.create_token(user.id, "t", "FULL", None, NOW) for _ in range(2))
        id = accounts.tokens_of(user.id)[1].id
    streams = [listen(server, token=token) for _ in range(3)]
    kept = listen(server, token=other)
    with open_store(server.data):
        if how == "revoked":
            accounts.revoke_token(user.id, id, NOW)
        elif how == "expired":
            reports.execute_sql("UPDATE token SET expires_at = 1 WHERE id = ?", (id,))
        else:
            accounts.delete_user(user.id)
    assert all(ended(stream) for stream in streams)
    if how == "deleted":
        assert ended(kept)
    else:
        upload_files(server, "goes on", commit="60e5")
        assert commits(kept, 1) == ["60e5"]
    for stream in [*streams, kept]:
        stream.close()


def test_revoked_token_receives_no_events_of_a_private_project(tracker: Tracker) -> None:
    server, tokens = tracker.server, tracker.tokens
    upload_files(server, "private")
    make_private(server, "private", {"owner": "OWNER"})
    with open_store(server.data):
        user = accounts.user_named("owner")
        assert user
        token = accounts.create_token(user.id, "t", "FULL", None, NOW)
    stream = listen(server, token=token)
    with open_store(server.data):
        accounts.revoke_token(user.id, accounts.tokens_of(user.id)[0].id, NOW)
    upload_files(server, "private", token=tokens["owner"])
    assert ended(stream)
    stream.close()


def test_streams_end_with_their_session(tracker: Tracker) -> None:
    server = tracker.server
    with open_store(server.data):
        user = accounts.create_user("visitor", "!", "USER", NOW)
        known = accounts.password_of("visitor")
        assert known
        raw = accounts.log_in(known, 10**15, NOW)
    stream = listen(server, Cookie=f"{server.cookie}={raw}")
    with open_store(server.data):
        accounts.set_password(user.id, "!!")
    assert ended(stream)
    stream.close()


def test_in_closed_mode_streams_require_an_account(serve: Serve) -> None:
    server = serve(wait=False, tracker={"security": {"open-mode": False}})
    tokens = create_accounts(server.data, ["reader"])
    server.start()
    refused = server.get(RUNS)
    check_problem(refused, 401, RUNS, has_timestamp=False)
    listen(server, token=tokens["reader"]).close()


def test_stream_with_an_invalid_token_is_401(server: Server) -> None:
    assert server.get(RUNS, X_Tracker_Token="plt_" + "x" * 43).status == 401


# Replay


@pytest.fixture(scope="module")
def past_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracker]:
    """Ten runs, the even ones of a private project."""
    folder = tmp_path_factory.mktemp("past")
    tokens = create_accounts(folder / "data", ["owner", "outsider"])
    with running_server(folder, server={"stream-replay": 8}) as server:
        for number in range(1, 11):
            if number == 3:
                make_private(server, "even", {"owner": "OWNER"})
            name = "odd" if number % 2 else "even"
            upload_files(server, name, token=tokens["owner"], commit=f"{number:07}")
        yield Tracker(server, tokens)


@pytest.mark.parametrize("last", [2, 3, 8, 9, 10])
@pytest.mark.parametrize("how", ["header", "query"])
def test_missed_events_are_replayed_in_order_to_permitted_callers(past_runs: Tracker, last: int, how: str) -> None:
    server = past_runs.server
    path = RUNS if how == "header" else f"{RUNS}?lastEventId={last}"
    headers = {"Last-Event-ID": str(last)} if how == "header" else {}
    mine = listen(server, path, token=past_runs.tokens["owner"], **headers)
    wanted = list(range(last + 1, 11))
    assert [next_event(mine)["id"] for _ in wanted] == wanted
    mine.close()
    for token in ("", past_runs.tokens["outsider"]):
        stream = listen(server, path, token=token, **headers)
        wanted = [number for number in range(last + 1, 11) if number % 2]
        assert [next_event(stream)["id"] for _ in wanted] == wanted
        stream.close()


@pytest.mark.parametrize("last", ["0", "1", "11", "999999999999999999"])
def test_gap_that_cannot_be_replayed_is_reported_as_a_reset(past_runs: Tracker, last: str) -> None:
    stream = listen(past_runs.server, Last_Event_ID=last)
    assert stream.next() == {"event": "reset", "id": "10", "data": "{}"}
    stream.close()


@pytest.mark.parametrize("last", ["", "x", "-1", "1.5", "9" * 30, "٣", "1 2", "0x1", "null"])
def test_invalid_last_event_id_counts_as_absent(past_runs: Tracker, last: str) -> None:
    with socket.create_connection(("127.0.0.1", past_runs.server.port), timeout=30) as connection:
        connection.sendall(f"GET {RUNS} HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: {last}\r\n\r\n".encode())
        received = b""
        while b"data: {}\n\n" not in received:
            received += connection.recv(4096)
    assert received.partition(b"\r\n\r\n")[2] == b"event: connected\nretry: 3000\ndata: {}\n\n"


def test_stream_continues_after_a_reset(serve: Serve) -> None:
    server = serve(server={"stream-replay": 0})
    upload_files(server, "p", commit="1")
    first, second = listen(server, Last_Event_ID="0"), listen(server, Last_Event_ID="1")
    assert first.next() == {"event": "reset", "id": "1", "data": "{}"}
    upload_files(server, "p", commit="2")
    assert next_event(first)["id"] == next_event(second)["id"] == 2
    first.close()
    second.close()


def test_events_survive_a_kill(serve: Serve) -> None:
    server = serve()
    upload_files(server, "p", commit="1")
    upload_files(server, "p", commit="2")
    server.kill()
    server.start()
    upload_files(server, "p", commit="3")
    stream = listen(server, Last_Event_ID="1")
    assert commits(stream, 2) == ["2", "3"]
    stream.close()


def test_reconnecting_clients_receive_every_event_exactly_once(serve: Serve) -> None:
    server, total = serve(), 80
    seen: dict[int, list[int]] = {number: [] for number in range(4)}

    def watch(number: int) -> None:
        while not seen[number] or seen[number][-1] < total:
            last = seen[number][-1] if seen[number] else 0
            stream = listen(server, Last_Event_ID=str(last))
            seen[number] += [int(next_event(stream)["id"]) for _ in range(min(number + 3, total - last))]
            stream.close()

    def upload(number: int) -> None:
        for _ in range(total // 4):
            upload_files(server, f"p{number}")

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for work in (watch, upload) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(found == list(range(1, total + 1)) for found in seen.values())


# Limits and slow clients


def test_stream_over_the_limit_is_503_with_retry_after(serve: Serve) -> None:
    server = serve(server={"max-streams": 1})
    stream = listen(server)
    refused = server.get(RUNS)
    check_problem(refused, 503, RUNS, has_timestamp=False)
    assert int(refused.headers["Retry-After"]) > 0
    stream.close()
    wait_for(lambda: "pilothouse_streams_open 0" in server.get("/metrics").text)
    listen(server).close()


def test_client_that_does_not_read_is_dropped_without_affecting_others(serve: Serve) -> None:
    server = serve(server={"stream-buffer": "16K"})
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(("127.0.0.1", server.port))
    slow.sendall(f"GET {RUNS} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    fast = listen(server)
    wait_for(lambda: "pilothouse_streams_open 2" in server.get("/metrics").text)
    for last in range(1, 2000):
        upload_files(server, "flood", branch="b" * 255)
        assert next_event(fast)["id"] == last
        if last % 20 == 0 and "pilothouse_streams_open 1" in server.get("/metrics").text:
            break
    else:
        pytest.fail("the slow client was not dropped")
    slow.close()
    fast.close()


def test_runs_published_out_of_order_are_sent_in_the_order_of_their_commits(tmp_path: Path) -> None:
    """Of two uploads that commit in order, the second one may be published first."""

    async def publish_out_of_order() -> bytes:
        async def read_fast(query: Callable[[], Any]) -> Any:
            return query()

        tracker = SimpleNamespace(last_update=0, read_fast=read_fast)
        runs = RunFeed(cast("service.Tracker", tracker), Clock())
        stream, client = stream_pair()
        runs.add(stream, None, 0)
        with reports.atomic():
            project = Project.create(name="p", visibility="PUBLIC", created_at=NOW)
            run = Run.create(
                project=project, flag="default", created_at=NOW, updated_at=NOW, status="PASSED", tests=1, passed=1,
                failed=0, errors=0, skipped=0, flaky=0, duration_ms=0, uploads=1,
            )  # fmt: skip
            updates = [record(run, project, True, 0) for _ in range(4)]
        for number in (1, 0, 3, 2):
            runs.publish(updates[number])
            await asyncio.sleep(0.01)
        stream.close()
        await asyncio.sleep(0.01)
        with client:
            return client.recv(65536)

    with open_store(tmp_path):
        lines = asyncio.run(publish_out_of_order()).decode().splitlines()
    assert [line for line in lines if line.startswith("id:")] == ["id: 1", "id: 2", "id: 3", "id: 4"]
