"""Two nodes on one PostgreSQL database: shared accounts, runs and history, streams, and outages of the database."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import DATABASES, ROOT, Server, Stream, free_port, wait_for
from postgresql import PASSWORD, Postgresql, ask
from requirements import require
from run_streams import RUNS, junit, listen, next_event, post_files, upload_files
from users import FormClient, bearer, cookie, create_session, create_token, log_in

from models.supervision import events, shared_events

ADMIN = "adminadmin"
STATUSES = "/supervision/api/v1/processes/stream"
HISTORY = "/supervision/api/v1/events?size=100&sortBy=eventTime&sortDirection=asc"


class Nodes:
    """Two servers with data directories of their own, started at the same moment on an empty database."""

    def __init__(self, folder: Path, cluster: Postgresql) -> None:
        self.cluster = cluster
        self.url = cluster.fresh(tables=False)
        self.streams: list[Stream] = []
        self.all = [self._node(folder / name, name) for name in ("one", "two")]
        self.one, self.two = self.all
        for node in self.all:
            node.launch()
        for node in self.all:
            node.port = int(wait_for(node._listens, about="a node to listen"))

    def _node(self, folder: Path, name: str) -> Server:
        folder.mkdir(parents=True)
        processes = {f"{name}-{number}": {"command": "sleep 600"} for number in range(6)}
        config = {
            "server": {"database-url": self.url},
            "tracker": {"security": {"admin-password": ADMIN}},
            "supervisor": {"on-exit": "leave", "processes": processes},
        }
        return Server(folder, config, {}, [])

    def open_stream(self, node: Server, path: str = RUNS, **headers: str) -> Stream:
        """Opens a stream that is closed after the test."""
        stream = listen(node, path, **headers) if path == RUNS else node.stream(path, **headers)
        self.streams.append(stream)
        return stream

    def close(self) -> None:
        for node in self.all:
            node.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Postgresql]:
    """A separate PostgreSQL server: the tests stop and start it."""
    one = Postgresql()
    yield one
    one.close()


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, cluster: Postgresql) -> Iterator[Nodes]:
    made = Nodes(tmp_path_factory.mktemp("nodes"), cluster)
    yield made
    made.close()


@pytest.fixture
def nodes(started: Nodes) -> Iterator[Nodes]:
    yield started
    for stream in started.streams:
        stream.close()
    started.streams.clear()


def history(node: Server, process: str) -> list[tuple[int, str]]:
    """Number and new status of the events of a process."""
    answer = node.get(HISTORY)
    assert answer.status == 200, answer
    return [(one["id"], one["newStatus"]) for one in answer.json["content"] if one["processName"] == process]


def next_of(stream: Stream, process: str) -> dict[str, str]:
    """The next status event of a process."""
    while f'"processName":"{process}"' not in (event := stream.next())["data"]:
        pass
    return event


def test_concurrent_first_starts_create_the_tables_and_the_admin_once(nodes: Nodes) -> None:
    assert sorted(ask(nodes.url, "SELECT store FROM schema_version")) == [("history",), ("outbox",), ("tracker",)]
    assert ask(nodes.url, "SELECT count(*) FROM account") == [(1,)]


def test_account_created_on_one_node_logs_in_on_the_other(nodes: Nodes) -> None:
    browser = FormClient(nodes.one, log_in(nodes.one, password=ADMIN))
    made = browser.send("/users", "/users", username="vera", password="correct horse")
    assert made.status == 303, made
    session = log_in(nodes.two, "vera", "correct horse")
    assert nodes.one.ask("GET", "/tracker/api/v1/me", headers=cookie(nodes.one, session)).json["username"] == "vera"
    assert FormClient(nodes.one, session).send("/logout", "/profile").status == 303
    assert nodes.two.ask("GET", "/tracker/api/v1/me", headers=cookie(nodes.two, session)).status == 401


def test_a_report_posted_to_one_node_is_streamed_and_shown_by_the_other(nodes: Nodes) -> None:
    streams = [nodes.open_stream(node) for node in nodes.all]
    ids, run = [], {}
    for number in range(6):
        run = upload_files(nodes.all[number % 2], "shop", ("junit", junit(1 + number, 1)), branch="main")
        events = [next_event(stream) for stream in streams]
        assert events[0] == events[1]
        assert (events[0]["runId"], events[0]["totalTests"]) == (run["runId"], 2 + number)
        ids.append(events[0]["id"])
    assert ids == list(range(ids[0], ids[0] + 6))
    for node in nodes.all:
        back = nodes.open_stream(node, Last_Event_ID=str(ids[1]))
        assert [next_event(back)["id"] for _ in range(4)] == ids[2:]
        page = node.get(run["runPath"])
        assert page.status == 200, page
        assert "tf0" in page.text


def test_stream_ends_if_its_token_is_revoked_on_the_other_node(nodes: Nodes) -> None:
    token = create_token(nodes.one.data, "tess")
    stream = nodes.open_stream(nodes.two, token=token)
    path = "/tracker/api/v1/me"
    assert nodes.two.ask("GET", path, headers=bearer(token)).status == 200
    session = create_session(nodes.one.data, "tess")
    ((id,),) = ask(
        nodes.url, "SELECT id FROM token WHERE account_id = (SELECT id FROM account WHERE username = 'tess')"
    )
    FormClient(nodes.one, session).send(f"/profile/tokens/{id}/revoke", "/profile")
    with pytest.raises(EOFError):
        stream.next()
    assert nodes.two.ask("GET", path, headers=bearer(token)).status == 401


def test_both_nodes_have_the_same_history(nodes: Nodes) -> None:
    streams = [nodes.open_stream(node, STATUSES) for node in nodes.all]
    seen: list[Any] = []
    assert nodes.one.do("start", "one-0").status == 200
    assert nodes.two.do("start", "two-0").status == 200
    for process in ("one-0", "two-0"):
        received = [[next_of(stream, process)["id"] for _ in range(2)] for stream in streams]
        streams = [nodes.open_stream(node, STATUSES, Last_Event_ID="0") for node in nodes.all]
        assert received[0] == received[1]
        seen = [history(node, process) for node in nodes.all]
        assert seen[0] == seen[1]
        assert [status for _, status in seen[0]] == ["starting", "running"]
        assert [str(id) for id, _ in seen[0]] == received[0]
    first, second = (node.get("/supervision/api/v1/events/count").json for node in nodes.all)
    assert first == second
    assert nodes.two.get("/supervision/api/v1/events/by-process/one-0").json["totalElements"] == 2
    assert nodes.one.get(f"/supervision/api/v1/events/{seen[0][0][0]}").json["processName"] == "two-0"
    assert "one-0" in nodes.two.get("/history").text


@pytest.fixture
def proxy(nodes: Nodes, tmp_path: Path) -> Iterator[Server]:
    """nginx in front of both nodes, with the configuration in docs/operations.md. The Server is only for requests."""
    require("nginx")
    front = Server(tmp_path, {}, {}, [])
    front.port = free_port()
    DATABASES[front.data] = nodes.url
    document = (ROOT / "docs" / "operations.md").read_text()
    text = document.partition("```nginx\n")[2].partition("```")[0]
    for place, node in enumerate(nodes.all, 1):
        text = text.replace(f"10.0.0.{place}:8080", f"127.0.0.1:{node.port}")
    text = text.replace("listen 80;", f"listen 127.0.0.1:{front.port}; chunked_transfer_encoding off;")
    head = "error_log stderr; pid nginx.pid; daemon off; master_process off; events {}"
    (tmp_path / "nginx.conf").write_text(f"{head}\nhttp {{ access_log off;\n{text}}}\n")
    process = subprocess.Popen(["nginx", "-p", str(tmp_path), "-c", "nginx.conf"])
    wait_for(lambda: reachable(front), about="nginx")
    yield front
    process.terminate()
    process.wait()


def reachable(server: Server) -> bool:
    try:
        return server.get("/healthz").status == 200
    except OSError:
        return False


def test_nodes_behind_a_proxy_share_sessions_streams_and_runs(nodes: Nodes, proxy: Server) -> None:
    browser = FormClient(proxy, log_in(proxy, password=ADMIN))
    assert [browser.get("/tracker/api/v1/me").status for _ in range(6)] == [200] * 6
    assert browser.send("/users", "/users", username="otto", password="correct horse").status == 303
    streams = [nodes.open_stream(proxy) for _ in range(4)]
    runs = [upload_files(proxy, "fronted")["runId"] for _ in range(4)]
    assert [[next_event(stream)["runId"] for _ in range(4)] for stream in streams] == [runs] * 4
    assert [proxy.get(f"/tracker/api/v1/runs/{run}").status for run in runs for _ in range(2)] == [200] * 8


def test_kill_9_of_a_node_loses_nothing_acknowledged(nodes: Nodes) -> None:
    run = upload_files(nodes.one, "killed")
    assert nodes.one.do("start", "one-1").status == 200
    nodes.one.kill()
    assert nodes.two.get(f"/tracker/api/v1/runs/{run['runId']}").status == 200
    nodes.one.start()
    for node in nodes.all:
        assert [status for _, status in history(node, "one-1")][:2] == ["starting", "running"]


def test_events_of_a_database_outage_are_copied_afterwards(nodes: Nodes) -> None:
    nodes.cluster.stop()
    try:
        assert nodes.two.do("start", "two-1").status == 200
        assert nodes.two.status("two-1") == "running"
        assert nodes.two.get(HISTORY).status == 503
        refused = post_files(nodes.two, "away")
        assert refused.status == 503
        assert PASSWORD not in refused.text
        assert nodes.two.ask("GET", "/tracker/api/v1/me", headers=bearer("plt_unknown")).status == 503
        assert nodes.two.get("/healthz").status == 200
        wait_for(lambda: nodes.two.get("/readyz").status == 503, about="the node to be not ready")
        nodes.two.kill()
    finally:
        nodes.cluster.start()
    nodes.two.start()
    assert [status for _, status in history(nodes.two, "two-1")][:2] == ["starting", "running"]
    wait_for(
        lambda: history(nodes.one, "two-1") == history(nodes.two, "two-1"), about="the other node to have the events"
    )
    assert len({id for id, _ in history(nodes.one, "two-1")}) == len(history(nodes.one, "two-1"))
    wait_for(lambda: nodes.one.get("/readyz").status == 200, about="the node to be ready again")
    stream = nodes.open_stream(nodes.one)
    run = upload_files(nodes.two, "back")
    assert next_event(stream)["runId"] == run["runId"]


def test_hanging_database_is_handled_like_an_outage(nodes: Nodes) -> None:
    token = bearer(create_token(nodes.one.data, "hank"))
    assert nodes.one.ask("GET", "/tracker/api/v1/me", headers=token).status == 200
    stream = nodes.open_stream(nodes.two)
    with nodes.cluster.hung():
        refused = threading.Thread(target=lambda: nodes.one.ask("GET", "/tracker/api/v1/me", headers=token))
        refused.start()
        assert nodes.one.do("start", "one-5").status == 200
        wait_for(lambda: nodes.one.get("/readyz").status == 503, about="the node to be not ready")
        refused.join()
        assert nodes.one.ask("GET", "/tracker/api/v1/me", headers=token).status in (503, 504)
        assert nodes.one.do("stop", "one-5").status == 200
    for node in nodes.all:
        wait_for(lambda: node.get("/readyz").status == 200, about="the node to be ready again")  # noqa: B023
    run = wait_for(lambda: (answer := post_files(nodes.one, "hung")).status == 201 and answer.json)  # 503 at first
    assert next_event(stream)["runId"] == run["runId"]
    begun = ["starting", "running"]
    wait_for(
        lambda: [status for _, status in history(nodes.two, "one-5")][:2] == begun, about="the events to be copied"
    )


def test_database_restart_under_load_gives_503_and_loses_no_stored_run(nodes: Nodes) -> None:
    stored, answers = [], set()
    over = threading.Event()

    def upload(node: Server) -> None:
        while not over.is_set():
            answer = post_files(node, "load", ("junit", junit(3)))
            answers.add(answer.status)
            if answer.status == 201:
                stored.append(answer.json["runId"])

    threads = [threading.Thread(target=upload, args=(node,)) for node in nodes.all]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: len(stored) > 4)
        for how in ("immediate", "fast"):
            nodes.cluster.stop(how)
            wait_for(lambda: 503 in answers, about="a 503")
            nodes.cluster.start()
            enough = len(stored) + 4
            wait_for(lambda: len(stored) > enough, about="uploads to be stored again")  # noqa: B023 (called here)
            answers.discard(503)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert answers <= {201, 503}
    kept = dict(ask(nodes.url, "SELECT r.id, (SELECT count(*) FROM result WHERE run_id = r.id) FROM run r"))
    assert {kept[id] for id in stored} == {3}
    found: list[Any] = ask(nodes.url, "SELECT id FROM run_event ORDER BY id")
    assert [id for (id,) in found] == list(range(found[0][0], found[-1][0] + 1))
    last = nodes.open_stream(nodes.one, Last_Event_ID=str(found[-2][0]))
    assert next_event(last)["id"] == found[-1][0]


def test_client_that_resumes_at_a_deleted_event_gets_the_later_events(nodes: Nodes) -> None:
    store = shared_events.open_history(nodes.url)
    while store.run_with_timeout(lambda: events.prune(2**60, 10**6, store=store), 20):
        pass
    store.close_all()
    streams = [nodes.open_stream(node, STATUSES, Last_Event_ID="1") for node in nodes.all]
    assert nodes.one.do("start", "one-2").status == 200
    assert len({next_of(stream, "one-2")["id"] for stream in streams}) == 1
    assert [len(history(node, "one-2")) for node in nodes.all] == [
        2,
        2,
    ]  # one's own history is first: it waits for the copy


def test_events_that_a_failover_lost_are_copied_again(nodes: Nodes) -> None:
    """As after a failover to a replica that was behind: the last copied events are missing."""
    with contextlib.closing(sqlite3.connect(nodes.one.data / "pilothouse.db")) as own:
        ((instance,),) = own.execute("SELECT value FROM house WHERE key = 'instance'").fetchall()
    assert nodes.one.do("start", "one-3").status == 200
    wait_for(lambda: len(history(nodes.two, "one-3")) == 2)
    ask(nodes.url, "DELETE FROM event WHERE process = ?", ("one-3",))
    ask(nodes.url, "UPDATE node SET copied = copied - 2 WHERE instance = ?", (instance,))
    assert nodes.one.do("start", "one-4").status == 200
    for process in ("one-3", "one-4"):
        assert [status for _, status in history(nodes.one, process)] == ["starting", "running"]
