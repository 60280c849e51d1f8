"""Log files on a file system that does not answer: nothing else waits for them, and callers get the reason."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import changed_constants
import pytest
from chart_servers import WebServer, web_server
from conftest import Serve, wait_for
from fault_injection import (
    API,
    TEMPLATE,
    ParallelRequests,
    PreparedRequest,
    charts_settings,
    check_failure,
    check_no_traceback,
    check_reads,
    create_records,
    send_prepared,
    upload_request,
)

COUNT = 12
"""More than the threads of the default pool."""
REASON = "cannot be read: the file system does not answer"


@pytest.fixture
def repository() -> Iterator[WebServer]:
    with web_server() as one:
        yield one


class HangingFolder:
    """A folder whose log files can hang, and a server with processes that write to them."""

    def __init__(self, serve: Serve, folder: Path, repository: WebServer, **constants: Any) -> None:
        self.folder = folder
        folder.mkdir()
        for number in range(COUNT):  # not by the processes: no rotation is about to begin when the files hang
            (folder / f"{number}.log").write_text("one\n")
        hung = {
            f"hung{number}": {
                "command": "sleep 1000",
                "stdout-logfile": str(folder / f"{number}.log"),
                "log-max-bytes": "1M",
                **({"log-forward": "stdout"} if number < 2 else {}),
            }
            for number in range(COUNT)
        }
        web = {"command": ["sh", "-c", "echo one; exec sleep 1000"], "stdout-logfile": str(folder.parent / "web.log")}
        self.server = serve(
            {"web": web, **hung}, wait=False, svc=charts_settings(repository, folder.parent / "temp"),
            command=changed_constants.server_command(hangs=str(folder), **constants),
        )  # fmt: skip
        create_records(self.server.start(), repository)
        for number in range(COUNT):
            assert self.server.do("start", f"hung{number}").status == 200

    def hang(self) -> None:
        os.mkfifo(self.folder / "hangs")

    def answer(self) -> None:
        """Every file answers from now on, and so does every use that waits."""
        (self.folder / "hangs").rename(self.folder / "answers")
        self._writer = os.open(self.folder / "answers", os.O_RDWR)

    def requests(self) -> list[PreparedRequest]:
        paths = [f"{API}/processes/logs/hung{number}" for number in range(COUNT)]
        paths += ["/processes/hung1/log", f"{API}/processes/logs/hung2/lines", f"{API}/processes/logs/hung3/search?q=o"]
        paths += [f"{API}/processes/logs/hung4?stream=both", f"{API}/processes/logs/hung5?since=2026-01-01T00:00:00Z"]
        return [("GET", path, None, {}) for path in paths]


def test_log_files_that_hang_hold_up_nothing_else_and_no_stop(
    serve: Serve, tmp_path: Path, repository: WebServer
) -> None:
    one = HangingFolder(serve, tmp_path / "logs", repository, supervisor__processes__logs__threads__ANSWER_SECONDS=3600)
    server = one.server
    one.hang()
    waiting = ParallelRequests(server, one.requests()).start()
    wait_for(lambda: server.get("/metrics").status == 200)
    assert send_prepared(server, upload_request("beside")).status == 201
    assert send_prepared(server, TEMPLATE).status == 200
    check_reads(server)
    assert server.get("/processes/hung0").status == 200
    assert server.do("stop", "web").status == 200
    assert not waiting._answers
    assert server.stop() == 0
    check_no_traceback(server)
    one.answer()


def test_reader_of_a_log_file_that_hangs_gets_the_reason(serve: Serve, tmp_path: Path, repository: WebServer) -> None:
    one = HangingFolder(
        serve, tmp_path / "logs", repository, supervisor__processes__logs__threads__ANSWER_SECONDS=0.5,
        handlers__web__live___AGAIN_SECONDS=0.1,
    )  # fmt: skip
    server = one.server
    one.hang()
    for request, answer in zip(one.requests(), ParallelRequests(server, one.requests()).start().answers(), strict=True):
        assert REASON in check_failure(answer, 500), (request[1], answer)
    wait_for(lambda: server.get(f"{API}/processes/logs/web").text == "one\n")
    with closing(server.stream(f"{API}/live")) as stream:
        topics = {"add": ["log/hung0/stdout?lines=10"]}
        id = stream.next()["data"].split('"')[3]
        send = (
            "POST",
            f"{API}/live/{id}",
            repr(topics).replace("'", '"').encode(),
            {"Content-Type": "application/json"},
        )
        assert send_prepared(server, send).status == 204
        assert REASON in stream.next()["data"]
        one.answer()
        while "problem" in (data := stream.next()["data"]):
            pass
        assert '"text":"one\\n"' in data.replace(" ", "")
    wait_for(lambda: server.get(f"{API}/processes/logs/hung0").text == "one\n")
    check_reads(server)
    check_no_traceback(server)
