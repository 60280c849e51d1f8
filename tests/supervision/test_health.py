"""Probes by HTTP, TCP and command: successes, thresholds, and the handling of unhealthy processes."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import Serve, free_port, is_alive, launcher_of, wait_for

from models.supervision.process import ExecProbe, HealthCheck, HttpProbe, ProcessSpec, Seconds, TcpProbe
from supervisor.children.child import Children, Launch
from supervisor.children.tags import TAG_VARIABLE
from supervisor.processes.process.health import Prober

SLEEPER: dict[str, Any] = {"command": "sleep 1000"}
WELL = {"exec": {"command": "test -e well"}, "interval": "20ms"}


class Web(BaseHTTPRequestHandler):
    """`/204` responds with 204; `/302` redirects to /200; `/slow` waits a second; `/drip` sends its body slowly."""

    seen: list[tuple[str, str, dict[str, str]]] = []

    def answer(self) -> None:
        self.seen.append((self.command, self.path, {name.lower(): value for name, value in self.headers.items()}))
        target = self.path.strip("/")
        if target == "slow":
            time.sleep(1)
        self.send_response(int(target) if target.isdigit() else 200)
        if target == "302":
            self.send_header("Location", "/200")
        if target == "drip":
            self.end_headers()
            for _ in range(20):
                self.wfile.write(b".")
                time.sleep(0.1)
            return
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD = do_POST = do_PUT = answer  # noqa: N815 (http.server's names)

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


class QuietServer(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Ignores a prober that closes its connection."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = QuietServer(("127.0.0.1", 0), Web)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def probe(check: HealthCheck, **launch: Any) -> bool:
    async def run() -> bool:
        children = Children()
        prober = Prober(children)
        try:
            return not await prober.probe(check, Launch(["true"], {**os.environ, TAG_VARIABLE: "test:1:p"}, **launch))
        finally:
            prober.close()
            while children.pids:
                await asyncio.sleep(0.005)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "status", "well"),
    [
        ("200", ((200, 399),), True),
        ("204", ((200, 399),), True),
        ("302", ((200, 399),), True),
        ("302", ((200, 299),), False),  # the redirect is not followed
        ("399", ((200, 399),), True),
        ("400", ((200, 399),), False),
        ("404", ((200, 399),), False),
        ("500", ((200, 399),), False),
        ("503", ((200, 204), (503, 503)), True),
        ("205", ((200, 204), (503, 503)), False),
    ],
)
def test_http_probe_checks_only_the_status(port: int, path: str, status: Any, well: bool) -> None:
    assert probe(HealthCheck(http=HttpProbe(f"http://127.0.0.1:{port}/{path}", status=status))) is well


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT"])
def test_http_probe_sends_its_method_and_headers_and_follows_no_redirect(port: int, method: str) -> None:
    Web.seen.clear()
    http = HttpProbe(f"http://127.0.0.1:{port}/302", method=method, headers={"X-Probe": "yes", "Host": "name.test"})
    assert probe(HealthCheck(http=http))
    ((seen, path, headers),) = Web.seen
    assert (seen, path) == (method, "/302")
    assert (headers["x-probe"], headers["host"]) == ("yes", "name.test")


@pytest.mark.parametrize("path", ["slow", "drip"])
def test_http_probe_fails_after_its_timeout(port: int, path: str) -> None:
    begun = time.monotonic()
    check = HealthCheck(http=HttpProbe(f"http://127.0.0.1:{port}/{path}"), timeout=Seconds(0.2))
    assert not probe(check)
    assert time.monotonic() - begun >= 0.2


def test_probe_fails_if_the_connection_is_refused(port: int) -> None:
    closed_port = free_port()
    assert not probe(HealthCheck(http=HttpProbe(f"http://127.0.0.1:{closed_port}/", status=((100, 599),))))
    assert not probe(HealthCheck(http=HttpProbe("http://name.invalid/"), timeout=Seconds(2)))
    assert not probe(HealthCheck(tcp=TcpProbe(closed_port)))
    assert probe(HealthCheck(tcp=TcpProbe(port)))
    assert probe(HealthCheck(tcp=TcpProbe(port, "localhost")))


@pytest.mark.parametrize(
    ("command", "well"),
    [
        (("true",), True),
        (("false",), False),
        (("sh", "-c", "exit 2"), False),
        (("sh", "-c", "kill -9 $$"), False),
        (("/no/such/program",), False),
        (("sh", "-c", "test -z \"$(cat)\""), True),  # stdin is empty
    ],
)  # fmt: skip
def test_command_probe_succeeds_if_it_exits_with_0(command: tuple[str, ...], well: bool) -> None:
    assert probe(HealthCheck(exec=ExecProbe(command))) is well


def test_command_probe_runs_in_the_directory_of_the_process(tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    assert probe(HealthCheck(exec=ExecProbe(("test", "-e", "here"))), directory=str(tmp_path))
    assert not probe(HealthCheck(exec=ExecProbe(("test", "-e", "here"))), directory="/")


def test_command_probe_and_its_process_group_are_killed_after_the_timeout(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    command = ("sh", "-c", f"sleep 100 & echo $! $$ > {file}; wait")  # it exits with 0 unless it is killed
    assert not probe(HealthCheck(exec=ExecProbe(command), timeout=Seconds(2)))  # it has written them before
    wait_for(lambda: not any(is_alive(int(pid)) for pid in file.read_text().split()))


class EndOfAnswers(BaseException):
    """Ends the watch; an `Exception` of a probe does not."""


def changes_for(answers: list[bool], success: int, failure: int) -> list[bool]:
    """Returns the reported changes of health for these results of probes."""

    class ScriptedProber(Prober):
        async def probe(self, check: HealthCheck, launch: Launch) -> str:
            if not answers:
                raise EndOfAnswers
            return "" if answers.pop(0) else "something"

    received: list[bool] = []

    async def watch() -> None:
        check = HealthCheck(
            exec=ExecProbe(("true",)), interval=Seconds(0), success_threshold=success, failure_threshold=failure
        )
        spec = ProcessSpec("p", ("true",), health_check=check)
        with pytest.raises(EndOfAnswers):
            await ScriptedProber(Children()).watch(spec, Launch(["true"], {}), received.append)

    asyncio.run(watch())
    return received


@pytest.mark.parametrize(
    ("answers", "success", "failure", "result"),
    [
        ("y", 1, 3, "y"),
        ("yyyy", 1, 3, "y"),
        ("nn", 1, 3, ""),
        ("nnn", 1, 3, "n"),
        ("ynnynnynnn", 1, 3, "yn"),
        ("yyy", 3, 1, "y"),
        ("yynyyny", 3, 1, "n"),
        ("nyyyn", 3, 1, "nyn"),
        ("ynynyn", 1, 1, "ynynyn"),
        ("ynynyn", 2, 2, ""),
        ("nynnyy", 2, 2, "ny"),
    ],
)
def test_health_is_reported_when_a_threshold_is_reached_and_when_it_changes(
    answers: str, success: int, failure: int, result: str
) -> None:
    assert changes_for([one == "y" for one in answers], success, failure) == [one == "y" for one in result]


# Health and the status of a process


@pytest.mark.parametrize("kind", ["http", "tcp", "exec"])
def test_process_becomes_healthy_by_each_kind_of_probe(serve: Serve, port: int, kind: str) -> None:
    probes: dict[str, Any] = {
        "http": {"url": f"http://127.0.0.1:{port}/200"}, "tcp": {"port": port}, "exec": {"command": "true"},
    }  # fmt: skip
    server = serve({"watched": {**SLEEPER, "health-check": {kind: probes[kind], "interval": "20ms"}}})
    assert server.do("start", "watched").status == 200
    server.until("watched", "healthy")
    assert server.new_statuses("watched") == ["starting", "running", "healthy"]
    assert server.do("start", "watched").json["message"].startswith("watched is already healthy")
    assert server.do("stop", "watched").status == 200


def test_the_first_probe_comes_after_the_initial_delay(serve: Serve) -> None:
    server = serve({
        "watched": {**SLEEPER, "health-check": {"exec": {"command": "true"}, "initial-delay": "400ms"}},
    })  # fmt: skip
    begun = time.monotonic()
    server.do("start", "watched")
    server.until("watched", "healthy")
    assert time.monotonic() - begun >= 0.4


def test_unhealthy_process_is_not_restarted_by_default(serve: Serve) -> None:
    server = serve({
        "web": {**SLEEPER, "restart": "always", "restart-delay": 0, "health-check": {**WELL, "failure-threshold": 2}},
    })  # fmt: skip
    server.do("start", "web")
    server.until("web", "unhealthy")
    pid = server.info("web")["pid"]
    (server.folder / "well").touch()
    server.until("web", "healthy")
    assert server.info("web")["pid"] == pid
    assert server.new_statuses("web") == ["starting", "running", "unhealthy", "healthy"]


def test_on_unhealthy_restart_does_not_depend_on_the_restart_policy(serve: Serve) -> None:
    check = {**WELL, "failure-threshold": 1, "on-unhealthy": "restart"}
    server = serve({"ill": {**SLEEPER, "health-check": check, "restart-delay": "20ms", "restart-limit": 2}})
    server.do("start", "ill")
    first = server.info("ill")["pid"]
    wait_for(lambda: "is not restarted again" in server.log.read_text())
    cycle = ["starting", "running", "unhealthy", "stopping", "stopped"]
    assert server.status("ill") == "stopped"  # the log line precedes the commit, the status follows it
    assert server.new_statuses("ill") == cycle * 3
    assert not is_alive(first)


def test_a_stopped_unhealthy_process_is_not_restarted(serve: Serve) -> None:
    check = {**WELL, "failure-threshold": 1, "on-unhealthy": "restart"}
    code = "trap '' TERM; while :; do sleep 0.02; done"
    server = serve({
        "ill": {"command": ["sh", "-c", code], "stop-timeout": "400ms", "health-check": check, "restart-delay": "50ms"},
    })  # fmt: skip
    server.do("start", "ill")
    server.until("ill", "stopping")  # the server stops it because it is unhealthy
    assert server.do("stop", "ill").status == 200
    before = server.new_statuses("ill")
    time.sleep(0.3)
    assert server.new_statuses("ill") == before


def test_a_start_while_an_unhealthy_process_is_stopped_starts_it_once(serve: Serve) -> None:
    probe = {"exec": {"command": ["sh", "-c", "test -e well || test ! -e up"]}}  # unhealthy when it ignores SIGTERM
    check = {**WELL, **probe, "failure-threshold": 1, "on-unhealthy": "restart"}
    code = "test -e well && exec sleep 1000; trap '' TERM; : > up; while :; do sleep 0.02; done"
    server = serve({
        "ill": {"command": ["sh", "-c", code], "stop-timeout": "1s", "health-check": check, "restart-delay": "50ms"},
    })  # fmt: skip
    server.do("start", "ill")
    server.until("ill", "stopping")
    (server.folder / "well").touch()
    assert server.do("start", "ill").status == 200
    server.until("ill", "healthy")
    time.sleep(0.2)
    assert server.new_statuses("ill")[-3:] == ["starting", "running", "healthy"]
    assert server.new_statuses("ill").count("starting") == 2
    server.do("stop", "ill")
    assert server.do("stop", "ill").json["message"] == "ill is not running"


def test_late_probe_result_of_an_earlier_child_is_ignored(serve: Serve) -> None:
    """The first probe of each child hangs until the test lets it fail; the first child has ended before."""
    command = ["sh", "-c", "echo $$ >> probes; while test ! -e go; do sleep 0.02; done; exit 1"]
    check = {"exec": {"command": command}, "interval": 60, "timeout": 60, "failure-threshold": 1}
    server = serve({"watched": {**SLEEPER, "health-check": check}})

    def probes() -> list[str]:
        file = server.folder / "probes"
        return file.read_text().splitlines() if file.exists() else []

    server.do("start", "watched")
    wait_for(lambda: len(probes()) == 1, about="the first probe to be under way")
    server.do("restart", "watched")
    wait_for(lambda: len(probes()) == 2 and not is_alive(int(probes()[0])), about="the end of the first probe")
    for _ in range(20):
        assert server.status("watched") == "running"
    (server.folder / "go").touch()
    server.until("watched", "unhealthy")
    assert server.new_statuses("watched") == [
        "starting",
        "running",
        "stopping",
        "stopped",
        "starting",
        "running",
        "unhealthy",
    ]


def test_probes_end_with_the_process(serve: Serve) -> None:
    command = ["sh", "-c", "echo >> probes; sleep 1000"]
    server = serve({"watched": {**SLEEPER, "health-check": {"exec": {"command": command}, "timeout": 100}}})
    server.do("start", "watched")
    wait_for(lambda: (server.folder / "probes").exists() and (server.folder / "probes").read_text())
    server.do("stop", "watched")

    def remaining() -> list[int]:
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        return [int(pid) for pid in children if is_alive(int(pid))]

    wait_for(lambda: remaining() == [launcher_of(server.pid)])
    assert (server.folder / "probes").read_text() == "\n"
