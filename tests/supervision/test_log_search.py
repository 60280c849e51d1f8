"""A log file searched in a worker process, and read backwards from a place."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from conftest import Server, wait_for
from http_checks import running_server
from uploads import junit, post

from models.errors import Invalid, NotFound
from models.supervision.log_search import MAX_FOUND, level_of, search
from supervisor.processes.logs.files import LogFile, LogFiles
from supervisor.processes.logs.log_search import LogSearch, _job
from supervisor.processes.logs.process_logs import ProcessLogs
from supervisor.workers.pool import WorkerPool

LONG = b"one\n" + b"x" * 600_000 + b"\ntwo\n"
LINES = [f"ünder {number}" for number in range(3000)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("search")
    (folder / "web.log").write_text("".join(f"{line}\n" for line in LINES))
    (folder / "long.log").write_bytes(LONG)
    lines = "while [ $i -lt $n ]; do echo line $i of this; i=$((i+1)); done"
    chatty = f"i=0; n=200; {lines}; while [ ! -e {folder}/go ]; do sleep 0.05; done; n=400; {lines}; exec sleep 1000"
    processes = {
        "web": {"command": "sleep 1000", "stdout-logfile": str(folder / "web.log")},
        "long": {"command": "sleep 1000", "stdout-logfile": str(folder / "long.log")},
        "turning": {
            "command": ["sh", "-c", chatty], "stdout-logfile": str(folder / "turning.log"),
            "log-max-bytes": "4K", "log-backups": 1,
        },
    }  # fmt: skip
    with running_server(folder, processes) as one:
        yield one


def path_of(what: str, name: str = "web") -> str:
    return f"/api/v1/processes/logs/{name}/{what}"


def test_a_search_counts_the_whole_file(server: Server) -> None:
    found = server.get(path_of("search?q=%C3%9CNDER%2027")).json
    assert (found["lines"], found["matches"]) == (3000, 111)
    assert [line["text"] for line in found["found"]] == [line for line in LINES if "ünder 27" in line]
    text = "".join(f"{line}\n" for line in LINES).encode()
    assert text[found["found"][-1]["at"] :].startswith("ünder 2799\n".encode())


def test_an_expression_that_takes_too_long_ends_its_worker_and_is_422(server: Server) -> None:
    with (server.folder / "web.log").open("a") as file:
        file.write("x" * 60 + "\n")
    try:
        answer = server.get(path_of("search?q=(x%2Bx%2B)%2By&regex=true"))
        assert answer.status in (422, 504), answer  # 504 only on a machine with too much to do
        assert server.get(path_of("search?q=%5Ex%2B%24&regex=true")).json["matches"] == 1
    finally:
        (server.folder / "web.log").write_text("".join(f"{line}\n" for line in LINES))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("q=(&regex=true", "q is not a regular expression"),
        ("q=a&level=loud", "level"),
        (f"q={'a' * 1001}", "q has more than 1,000 characters"),
        ("before=x", "before is not the cursor of a log"),
        ("stream=stdin", "stream"),
    ],
)
def test_bad_searches_are_refused(server: Server, query: str, message: str) -> None:
    answer = server.get(path_of(f"search?{query}"))
    assert (answer.status, message in answer.json["message"]) == (400, True)
    assert server.get(path_of("search?q=a", "nobody")).status == 404


def test_pages_of_lines_go_back_to_the_first(server: Server) -> None:
    part = server.get(path_of("lines?lines=700")).json
    texts = [part["text"]]
    while part["start"]:
        part = server.get(path_of(f"lines?lines=700&before={part['cursor']}")).json
        texts.insert(0, part["text"])
    assert "".join(texts).splitlines() == LINES
    assert [len(text.splitlines()) for text in texts] == [200, 700, 700, 700, 700]
    found = server.get(
        path_of(f"search?q=%C3%BCnder&before={server.get(path_of('lines?lines=1')).json['cursor']}")
    ).json
    assert (found["lines"], found["matches"], len(found["found"])) == (2999, 2999, MAX_FOUND)


def test_pages_go_back_through_a_line_longer_than_a_page(server: Server) -> None:
    part = server.get(path_of("lines", "long")).json
    texts = [part["text"]]
    while part["start"] and len(texts) < 10:
        part = server.get(path_of(f"lines?before={part['cursor']}", "long")).json
        texts.insert(0, part["text"])
    assert "".join(texts).encode() == LONG


def test_lines_before_a_cursor_that_was_cleared_are_gone(server: Server) -> None:
    cursor = server.get(path_of("lines?lines=1", "long")).json["cursor"]
    assert server.post("/api/v1/processes/clear-logs?select=long").status == 200
    try:
        (server.folder / "long.log").write_bytes(b"new\n" * 200_000)
        for path in (f"lines?before={cursor}", f"search?q=new&before={cursor}"):
            answer = server.get(path_of(path, "long"))
            assert (answer.status, answer.json["message"]) == (404, "this part of the log has been rotated away")
    finally:
        (server.folder / "long.log").write_bytes(LONG)


def test_a_cursor_stays_valid_through_a_rotation_until_its_backup_is_gone(server: Server) -> None:
    server.do("start", "turning")
    wait_for(lambda: "line 199" in server.get("/api/v1/processes/logs/turning").text)
    cursor = server.get(path_of("lines?lines=10", "turning")).json["cursor"]
    (server.folder / "go").touch()
    wait_for(lambda: (server.folder / "turning.log.1").exists(), 60)
    part = server.get(path_of(f"lines?lines=2&before={cursor}", "turning")).json
    assert part["text"] == "line 188 of this\nline 189 of this\n"
    assert server.get(path_of(f"search?q=line&before={cursor}", "turning")).json["matches"] == 190
    run_id, _, offset, inode = cursor.split(".")
    gone = server.get(path_of(f"lines?before={run_id}.0.{int(offset) * 100}.{inode}", "turning"))
    assert (gone.status, gone.json["message"]) == (404, "this part of the log has been rotated away")


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("plain", -1), ("2026-01-01 INFO started", 2), ("level=error msg=x", 0), ('{"level": "warn"}', 1), ("<3>x", 0),
        ("<7>x", 3), ("[debug] x", 3), ("an information", -1),
    ],
)  # fmt: skip
def test_the_level_of_a_line(line: str, level: int) -> None:
    assert level_of(line) == level


def test_lines_without_a_level_have_that_of_the_line_before(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    file.write_bytes(b"begun\nINFO one\nERROR two\n  at three\nWARN f\x1b[1mo\x1b[0mur\r\nDEBUG five")
    found = search(str(file), 1000, "", False, 1)
    assert found == {"lines": 6, "matches": 3, "found": [(15, 10), (25, 11), (36, 19)]}
    assert search(str(file), 1000, "four$", True, 3)["matches"] == 1
    assert search(str(file), 15, "two", False, 3) == {"lines": 2, "matches": 0, "found": []}
    assert len(json.dumps(search(str(file), 1000, "x" * 1000, False, 3))) < 100
    with pytest.raises(Invalid):
        search(str(file), 1000, "[", True, 3)


@pytest.mark.parametrize(
    "answer",
    [
        {"lines": 1, "matches": 1, "found": [(2**63, 1)]}, {"lines": 1, "matches": 1, "found": [(0, 2**63)]},
        {"lines": 1, "matches": 1, "found": [(90, 11)]}, {"lines": 1, "matches": 2, "found": []},
        {"lines": 2, "matches": 1, "found": [(0, 1), (1, 1)]}, {"lines": -1, "matches": -1, "found": []},
    ],
)  # fmt: skip
def test_an_answer_that_no_search_gives_is_refused(answer: Any) -> None:
    read = _job("/x", 100, "", False, 3).read
    assert read({"lines": 2, "matches": 1, "found": [(90, 10)]}) == {"lines": 2, "matches": 1, "found": [(90, 10)]}
    with pytest.raises(ValueError, match=r"numbers|places"):
        read(answer)


class Rotating:
    """A pool that searches where it is called. After the first search the file is rotated."""

    def __init__(self, files: LogFiles) -> None:
        self.files = files
        self.ends: list[int] = []

    async def run(self, job: Any, caller: str) -> Any:
        answer = search(**job.arguments)
        self.ends.append(job.arguments["end"])
        if len(self.ends) == 1:
            await self.files.rotate()
        return job.read(answer)


@pytest.mark.parametrize("backups", [0, 1])
def test_a_log_that_is_rotated_during_its_search_is_searched_again(tmp_path: Path, backups: int) -> None:
    async def check() -> None:
        file = LogFile(str(tmp_path / "web.log"), 1, backups)
        files = LogFiles(lambda: [file])
        pool = Rotating(files)
        (tmp_path / "web.log").write_text("one\ntwo\nthree\n")
        logs = cast("ProcessLogs", type("Source", (), {"files": files}))
        searching = LogSearch(logs, cast("WorkerPool", pool)).search(file, "t", False, 3, None, "me")
        if not backups:
            with pytest.raises(NotFound, match="rotated away"):
                await searching
            return
        found = await searching
        assert [(line.at, line.text) for line in found.found] == [(4, "two"), (8, "three")]
        assert pool.ends == [14, 14]

    asyncio.run(check())


def searches(server: Server) -> list[psutil.Process]:
    """The worker processes that have used half a second of CPU time."""
    busy = list[psutil.Process]()
    for child in psutil.Process(server.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            is_worker = any("supervisor.workers.program" in word for word in child.cmdline())
            busy += [child] if is_worker and child.cpu_times().user > 0.5 else []
    return busy


def test_an_upload_does_not_wait_for_searches(tmp_path: Path) -> None:
    (tmp_path / "web.log").write_text("x" * 60 + "y\n")
    processes = {"web": {"command": "sleep 1000", "stdout-logfile": str(tmp_path / "web.log")}}
    ended = threading.Event()

    def search_for_long(port: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("GET", path_of("search?q=(x%2Bx%2B)%2Bz&regex=true"))
        connection.getresponse().read()
        ended.set()
        connection.close()

    with running_server(tmp_path, processes, server={"workers": {"processes": 1}}) as one:
        thread = threading.Thread(target=search_for_long, args=(one.port,))
        thread.start()
        wait_for(lambda: searches(one))
        assert post(one, ("project", "shop"), ("junit", junit(passed=1))).status == 201
        assert not ended.is_set()
        thread.join()
