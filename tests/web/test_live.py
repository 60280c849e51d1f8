"""The live stream: one connection that subscribes to topics by name."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import records
import users
from conftest import Answer, Serve, Server, Stream, is_alive, wait_for
from http_checks import running_server
from uploads import upload

from models.tracker.tables import Project

GREEN = "<testsuite name='s'><testcase classname='c.A' name='fine' time='0.2'/></testsuite>"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("live")
    (folder / "web.log").write_text("".join(f"line {number}\n" for number in range(1000)))
    processes = {
        "web": {"command": "sleep 1000", "stdout-logfile": str(folder / "web.log"), "auto-start": True},
        "odd name / ü": {"command": "sleep 1000"},
    }
    with running_server(folder, processes) as one:
        one.until("web", "running")
        yield one


def opened(server: Server, **headers: str) -> tuple[Stream, str]:
    stream = server.stream("/api/v1/live", **headers)
    hello = stream.next()
    assert hello["event"] == "hello"
    return stream, str(json.loads(hello["data"])["id"])


def choose(server: Server, id: str, add: Any = (), remove: Any = (), **headers: str) -> Answer:
    body = json.dumps({"add": list(add), "remove": list(remove)}).encode()
    return server.post(f"/api/v1/live/{id}", body, Content_Type="application/json", **headers)


def next_event(stream: Stream, event: str) -> Any:
    """The data of the next event with this name."""
    while (found := stream.next())["event"] != event:
        pass
    return json.loads(found["data"])


def test_a_topic_sends_events_until_it_is_removed(server: Server) -> None:
    stream, id = opened(server)
    assert choose(server, id, ["status", "runs"]).status == 204
    server.do("start", "odd name / ü")
    assert next_event(stream, "status")["processName"] == "odd name / ü"
    upload(server, ("project", "shop"), ("junit", GREEN))
    assert next_event(stream, "runs")["runId"]
    assert choose(server, id, remove=["status"]).status == 204
    server.do("stop", "odd name / ü")
    upload(server, ("project", "shop"), ("junit", GREEN))
    while (event := stream.next())["event"] != "runs":  # what was sent before the topic was removed comes first
        assert json.loads(event["data"])["newStatus"] in ("starting", "running")
    stream.close()


def test_a_log_is_sent_with_offsets_and_without_a_gap(server: Server) -> None:
    log = server.folder / "web.log"
    stream, id = opened(server)
    assert choose(server, id, ["log/web/stdout?lines=10"]).status == 204
    first = next_event(stream, "log/web/stdout")
    assert first["text"] == "".join(f"line {number}\n" for number in range(990, 1000))
    assert (first["to"], first["dropped"]) == (log.stat().st_size, 0)
    text, end = "", first["to"]
    with log.open("a") as file:
        for number in range(2000):
            file.write(f"more {number}\n")
    while not text.endswith("more 1999\n"):
        chunk = next_event(stream, "log/web/stdout")
        assert chunk["from"] == end
        assert chunk["to"] - chunk["from"] == len(chunk["text"].encode())
        text, end = text + chunk["text"], chunk["to"]
    assert text == "".join(f"more {number}\n" for number in range(2000))
    stream.close()


def test_a_flood_of_lines_is_cut_and_the_lines_are_counted(serve: Serve, tmp_path: Path) -> None:
    log = tmp_path / "flood.log"
    log.write_text("")
    one = serve({"flood": {"command": "sleep 1000", "stdout-logfile": str(log)}})
    stream, id = opened(one)
    assert choose(one, id, ["log/flood/stdout"]).status == 204
    assert next_event(stream, "log/flood/stdout")["text"] == ""
    lines = 60_000  # more than are sent late
    with log.open("a") as file:
        file.write("".join(f"{number:099}\n" for number in range(lines)))
    shown, dropped, last = 0, 0, ""
    while shown + dropped < lines:
        chunk = next_event(stream, "log/flood/stdout")
        assert len(chunk["text"]) <= 256 * 1024
        shown, dropped, last = shown + chunk["text"].count("\n"), dropped + chunk["dropped"], chunk["text"]
    assert shown + dropped == lines
    assert dropped > 0
    assert last.endswith(f"{lines - 1:099}\n")
    stream.close()


def test_an_exit_while_no_server_was_running_is_marked(serve: Serve, tmp_path: Path) -> None:
    one = serve({"job": {"command": ["sh", "-c", "echo begun; sleep 1000"], "stdout-logfile": str(tmp_path / "l")}})
    one.do("start", "job")
    pid = one.until("job", "running")["pid"]
    wait_for(lambda: (tmp_path / "l").read_text() == "begun\n")
    one.kill()
    os.killpg(pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(pid))
    for _ in range(2):  # the second start finds an end that is marked already
        one.start()
        stream, id = opened(one)
        assert choose(one, id, ["log/job/stdout"]).status == 204
        marks = next_event(stream, "log/job/stdout")["marks"]
        assert [(mark["kind"], mark["at"], mark["pid"]) for mark in marks] == [("started", 0, pid), ("exited", 6, pid)]
        assert marks[1]["exitCode"] is None
        assert one.get("/api/v1/processes/logs/job/lines").json["marks"] == marks
        stream.close()
        one.stop()


def test_starts_and_exits_stay_in_the_log_after_a_restart(serve: Serve, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    one = serve({"job": {"command": ["sh", "-c", "echo done; exit 4"], "stdout-logfile": str(log)}})
    one.do("start", "job")
    one.until("job", "failed")
    one.close()
    log.write_bytes(log.read_bytes() + b"b\xff\n")
    one.start()
    stream, id = opened(one)
    assert choose(one, id, ["log/job/stdout"]).status == 204
    chunk = next_event(stream, "log/job/stdout")
    started, exited = chunk["marks"]
    assert (started["kind"], started["at"]) == ("started", 0)
    assert (exited["kind"], exited["at"], exited["exitCode"]) == ("exited", 5, 4)
    assert started["pid"] == exited["pid"] > 1
    assert (chunk["text"], chunk["lengths"], chunk["beginning"]) == ("done\nb\ufffd\n", [5, 3], True)
    assert choose(one, id, remove=["log/job/stdout"]).status == 204
    assert choose(one, id, [f"log/job/stdout?after={chunk['cursor']}"]).status == 204
    assert next_event(stream, "log/job/stdout")["text"] == ""
    stream.close()


@pytest.mark.parametrize("topic", ["metrics/host", "metrics/web"])
def test_metrics_are_sent(server: Server, topic: str) -> None:
    stream, id = opened(server)
    assert choose(server, id, [topic]).status == 204
    assert next_event(stream, topic)
    stream.close()


@pytest.mark.parametrize(
    ("topics", "status"),
    [
        (["nothing"], 400), (["status/x"], 400), (["log/web/stdin"], 400), (["log/web/stdout?lines=x"], 400),
        (["log/web/stdout?after=x"], 400), (["log/web/stdout?at=-1"], 400), (["log/web/stdout?from=1"], 400),
        (["log/nobody/stdout"], 404), (["metrics/nobody"], 404), (["status", "nothing"], 400),
        ([f"metrics/{number}" for number in range(65)], 400), ([7], 400), ("status", 400), (["\ud800"], 400),
    ],
)  # fmt: skip
def test_a_topic_that_does_not_exist_is_refused_and_nothing_is_added(server: Server, topics: Any, status: int) -> None:
    stream, id = opened(server)
    body = json.dumps({"add": topics}).encode()
    assert server.post(f"/api/v1/live/{id}", body, Content_Type="application/json").status == status
    server.do("start", "odd name / ü")
    server.do("stop", "odd name / ü")
    assert choose(server, id, ["metrics/host"]).status == 204
    assert stream.next()["event"] == "metrics/host"
    stream.close()


@pytest.mark.parametrize("body", [b"", b"{}", b'{"add":null}', b'{"add":["runs"],"remove":null}'])
def test_a_list_of_topics_that_is_null_counts_as_absent(server: Server, body: bytes) -> None:
    stream, id = opened(server)
    assert server.post(f"/api/v1/live/{id}", body, Content_Type="application/json").status == 204
    stream.close()


def test_a_body_that_is_nested_too_deeply_is_refused(server: Server) -> None:
    answer = server.post("/api/v1/live/unknown", b"[" * 60_000, Content_Type="application/json")
    assert (answer.status, answer.json["message"]) == (400, "the body is nested too deeply")


def test_an_unknown_stream_id_and_that_of_another_caller_are_not_found(server: Server) -> None:
    assert choose(server, "unknown", ["status"]).json["code"] == "STREAM_NOT_FOUND"
    token = users.create_token(server.data, "owner")
    stream, id = opened(server, **users.bearer(token))
    assert choose(server, id, ["status"]).json["code"] == "STREAM_NOT_FOUND"
    assert choose(server, id, ["status"], **users.bearer(token)).status == 204
    stream.close()


def test_a_client_that_has_left_has_no_stream(server: Server) -> None:
    stream, id = opened(server)
    assert choose(server, id, ["log/web/stdout"]).status == 204
    stream.close()
    wait_for(lambda: choose(server, id, ["status"]).status == 404)


def test_logs_need_the_permission_of_logs(serve: Serve, tmp_path: Path) -> None:
    process = {"command": "sleep 1000", "stdout-logfile": str(tmp_path / "web.log")}
    beyond = serve({"web": process}, server={"address": ["0.0.0.0"]})
    stream, id = opened(beyond)
    assert choose(beyond, id, ["log/web/stdout"]).status in (401, 403)
    assert choose(beyond, id, ["status"]).status == 204
    stream.close()


def test_runs_of_a_private_project_are_sent_to_its_readers_only(server: Server) -> None:
    token = users.create_token(server.data, "owner")
    upload(server, ("project", "hidden"), ("junit", GREEN), **users.bearer(token))
    with records.store_of(server):
        Project.update(visibility="PRIVATE").where(Project.name == "hidden").execute()
    stream, id = opened(server)
    assert choose(server, id, ["runs"]).status == 204
    upload(server, ("project", "hidden"), ("junit", GREEN), **users.bearer(token))
    public = upload(server, ("project", "shop"), ("junit", GREEN))
    assert next_event(stream, "runs")["runId"] == public["runId"]
    stream.close()
