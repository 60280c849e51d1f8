"""`run.py ctl` against real servers: over the control socket, TCP and TLS."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import changed_constants
import pytest
import trustme
from conftest import ROOT, TIMEOUT_SECONDS, Serve, wait_for
from ctl_runs import PROCESSES, SLEEP, Ctl, by_socket, reading
from requirements import ROOT_USER
from users import create_token

from models import VERSION
from supervisor.cli.ctl.errors import FAILED, REFUSED, CtlError
from supervisor.cli.ctl.logs import _follow
from supervisor.cli.ctl.main import main


@pytest.fixture
def ctl(serve: Serve) -> Ctl:
    return by_socket(serve(PROCESSES))


@pytest.fixture(params=["socket", "tcp", "tls"])
def by_each_way(request: pytest.FixtureRequest, serve: Serve, tmp_path: Path) -> Ctl:
    if request.param != "tls":
        server = serve(PROCESSES)
        return (
            by_socket(server) if request.param == "socket" else Ctl(server, "--url", f"http://127.0.0.1:{server.port}")
        )
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "chain.pem"))
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    server = serve(
        PROCESSES, server={"tls": {"certificate": str(tmp_path / "chain.pem"), "key": str(tmp_path / "key.pem")}}
    )
    return Ctl(server, "--url", f"https://127.0.0.1:{server.port}", "--ca", str(tmp_path / "ca.pem"))


def test_every_command_works_over_every_transport(by_each_way: Ctl) -> None:
    ctl = by_each_way
    assert re.fullmatch(
        r"web has been started \(pid \d+\)\ndb has been started \(pid \d+\)\n", ctl.done("start", "web", "db")
    )
    assert ctl.done("start", "web") == "web is running\n"
    assert re.search(r"^web +running +pid \d+, uptime \d+s$", ctl.done("status"), re.MULTILINE)
    assert re.fullmatch(r"web  running  pid \d+, uptime \d+s\n", ctl.done("status", "@front"))
    assert json.loads(ctl.done("status", "--json", "web"))[0]["groups"] == ["front"]
    pid = ctl.done("pid", "web").strip()
    assert ctl.done("restart", "env=test").startswith("web has been restarted (pid ")
    assert ctl.done("pid", "web").strip() != pid
    assert ctl.done("signal", "CONT", "web").startswith("SIGCONT has been sent to web")
    assert ctl.done("groups") == "front  1/1 live  web\n"
    assert "operatingSystem:" in ctl.done("info")
    assert ctl.done("wait", "web") == ""
    assert ctl.done("start", "lines").startswith("lines has been started")
    wait_for(lambda: ctl.done("tail", "lines").startswith("one\ntwo\n"))
    assert ctl.done("tail", "--stderr", "lines") == ""
    events = [json.loads(line)["newStatus"] for line in ctl.done("events", "--json", "-n", "3", "web").splitlines()]
    assert events == ["stopped", "starting", "running"]
    assert "NAME" in ctl.done("top")
    assert ctl.done("reload", "--dry-run") == "a reload would do this: nothing changed\n"
    assert ctl.done("reload") == "the configuration has been read: nothing changed\n"
    assert set(ctl.done("names").splitlines()) == {*PROCESSES, "@front"}
    assert re.fullmatch(r"web has been stopped \(pid \d+\)\n", ctl.done("stop", "web"))
    followed = ctl.start("tail", "-f", "lines")
    changes = ctl.start("events", "-f", "-n", "1", "db")
    assert followed.stdout is not None
    assert changes.stdout is not None
    assert [followed.stdout.readline() for _ in range(2)] == ["one\n", "two\n"]
    assert "db" in changes.stdout.readline()
    ctl.done("stop", "all")
    assert "stopping" in changes.stdout.readline()
    for process in (followed, changes):
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == 130


def test_names_that_look_like_options_and_globs_are_names(ctl: Ctl) -> None:
    assert ctl.done("start", "--", "--help").startswith("--help has been started")
    assert ctl.done("start", "a*").startswith("a* has been started")
    assert ctl.server.status("abc") == "not_started"
    assert ctl.done("stop", "--json", "--", "--help").startswith('{"message"')
    assert {one["name"] for one in json.loads(ctl("status", "--json", "ab*,!absent").stdout)} == {"abc"}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["status"], 0),
        (["status", "web"], 3),
        (["status", "none"], 4),
        (["start"], 2),
        (["start", "all,!all", "--nonsense"], 2),
        (["stop", "!web"], 2),
        (["wait", "web", "--for", "nonsense"], 2),
        (["tail", "-n", "0", "web"], 2),
        (["--timeout", "soon", "status"], 2),
        (["--timeout", "0", "status"], 2),
        (["--timeout", "99999999d", "status"], 2),
        (["top", "-d", "0"], 2),
        (["tail", "-f", "web", "a*"], 1),
        (["start", "absent"], 1),
        (["tail", "web"], 1),
        (["pid", "web"], 1),
        (["start", "none"], 5),
        (["signal", "NONSENSE", "web"], 2),
        (["events", "none"], 5),
        (["wait", "web", "--timeout", "50ms"], 124),
    ],
)
def test_exit_codes(ctl: Ctl, arguments: list[str], code: int) -> None:
    result = ctl(*arguments)
    assert result.returncode == code, result
    assert bool(result.stderr) == (code not in (0, 3))
    assert "Traceback" not in result.stderr


def test_a_redirect_names_its_destination(ctl: Ctl) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:

        def redirect() -> None:
            for _ in range(3):
                connection, _ = proxy.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: /login\x1b[2J\r\nContent-Length: 0\r\n\r\n")

        threading.Thread(target=redirect, daemon=True).start()
        to_proxy = Ctl(ctl.server, "--url", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        for arguments, code in ((["status"], 4), (["stop", "web"], 1), (["events", "-f"], 1)):
            result = to_proxy(*arguments)
            assert (result.returncode, result.stdout) == (code, "")
            assert "the server redirects to /login\\x1b[2J" in result.stderr


def test_options_are_accepted_before_and_after_the_command(serve: Serve) -> None:
    server = serve({"web": SLEEP})
    way = ["--url", f"http://127.0.0.1:{server.port}"]
    assert Ctl(server)("--url", "ftp://x", "status").returncode == 2
    assert Ctl(server).done(*way, "status") == Ctl(server).done("status", *way) == "web  not_started\n"


def test_a_refusal_is_4_and_an_unreachable_server_is_7(serve: Serve, tmp_path: Path) -> None:
    server = serve({"web": SLEEP}, tracker={"security": {"open-mode": False}})
    url = f"http://127.0.0.1:{server.port}"
    assert Ctl(server, "--url", url)("groups").returncode == 4
    assert Ctl(server, "--url", url)("groups", PILOTHOUSE_TOKEN="plt_wrong").returncode == 4
    assert by_socket(server).done("status") == "web  not_started\n", "who may open the socket is an operator"
    token = create_token(server.data, "ann", "FULL", "ADMIN")
    (tmp_path / "token").write_text(f"{token}\n")
    assert Ctl(server, "--url", url, "--token-file", str(tmp_path / "token")).done("start", "web")
    path = server.data / "control.sock"
    server.stop()
    for arguments, code in ((["groups"], 7), (["status"], 4), (["start", "web"], 7), (["names"], 5)):
        assert Ctl(server, "--socket", str(path))(*arguments).returncode == code
    nowhere = Ctl(server)("groups")
    assert nowhere.returncode == 7
    assert "data directory data: no server runs on it (it has no endpoint.json)" in nowhere.stderr
    missing = Ctl(server, "--data-dir", str(tmp_path / "missing"))("groups")
    assert f"data directory {tmp_path}/missing: No such file or directory" in missing.stderr
    assert "/var/lib/pilothouse" in nowhere.stderr
    assert "\n  http://127.0.0.1:8080: Connection" in nowhere.stderr


def test_the_server_is_found_by_its_data_directory(serve: Serve, tmp_path: Path) -> None:
    server = serve({"web": SLEEP})
    for options in (
        ["--data-dir", str(server.data)],
        ["--config", str(server.file), "--data-dir", str(server.data)],
        [],
    ):
        assert Ctl(server, *options).done("status") == "web  not_started\n", options
    endpoint = json.loads((server.data / "endpoint.json").read_text())
    assert endpoint == {
        "pid": server.pid, "socket": str(server.data / "control.sock"), "urls": [f"http://127.0.0.1:{server.port}"],
    }  # fmt: skip
    assert (server.data / "endpoint.json").stat().st_mode & 0o777 == 0o600
    elsewhere = tmp_path / "elsewhere.yaml"
    elsewhere.write_text(f"server: {{data-dir: {server.data}}}")
    (tmp_path / "empty").mkdir()  # a `data` in the current folder would be preferred
    for config in (elsewhere, server.file):
        before = [sys.executable, str(ROOT / "run.py"), "--config", str(config), "ctl", "status"]
        done = subprocess.run(before, cwd=tmp_path / "empty", capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
        assert done.stdout == "web  not_started\n"
    url = f"unix://{server.data}/control.sock"
    by_variable = Ctl(server)("status", "--timeout", "5s", PILOTHOUSE_URL=url)
    assert (by_variable.stdout, by_variable.stderr) == ("web  not_started\n", "")
    by_both = Ctl(server, "--data-dir", str(tmp_path))("status", PILOTHOUSE_URL=url)
    assert by_both.stdout == "web  not_started\n"
    assert by_both.stderr == "pilothouse ctl: PILOTHOUSE_URL is set, so --data-dir is not used\n"
    server.kill()
    assert "no server runs on it" in Ctl(server)("status").stderr


def test_the_version_is_that_of_the_client(serve: Serve) -> None:
    assert Ctl(serve({"web": SLEEP})).done("--version") == f"pilothouse {VERSION}\n"


def test_a_port_in_use_says_whose_it_is(serve: Serve) -> None:
    server = serve({"web": SLEEP})
    command = [sys.executable, str(ROOT / "run.py"), "--port", str(server.port)]
    for folder, reason in (
        (server.data, f"in use: pilothouse runs there already (pid {server.pid}, data directory {server.data})"),
        (server.folder / "other", "in use (SERVER_PORT or --port takes another)"),
    ):
        done = subprocess.run([*command, "--data-dir", str(folder)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert f"127.0.0.1:{server.port}: Address already {reason}" in done.stderr


@pytest.mark.needs(ROOT_USER)
def test_a_data_directory_of_another_user_is_not_trusted(serve: Serve) -> None:
    server = serve({"web": SLEEP})
    os.chown(server.data / "endpoint.json", 65534, -1)
    assert "belongs to another user (uid 65534)" in Ctl(server, "--data-dir", str(server.data))("status").stderr


@pytest.mark.parametrize("codes", [(REFUSED,), (REFUSED, FAILED), (FAILED, REFUSED)])
def test_a_tail_that_follows_no_log_ends_with_the_last_failure(codes: tuple[int, ...]) -> None:
    client = Mock()
    client.stream.side_effect = [CtlError("no", code) for code in codes]
    found = [(f"/processes/logs/{name}", name, [("lines", "10")]) for name in ("web", "db")]
    assert _follow(client, found[: len(codes)], Mock()) == codes[-1]


def test_a_change_of_no_process_is_reported(ctl: Ctl) -> None:
    result = ctl("restart", "w*", "!web")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "no process is selected\n")


def test_a_quiet_log_is_followed_for_longer_than_a_request_may_take(serve: Serve, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "more")
    command = ["sh", "-c", f"echo one; cat {tmp_path}/more; exec sleep 1000"]
    ctl = by_socket(serve({"web": {"command": command, "log": "capture", "auto-start": True}}))
    tail = ctl.start("--timeout", "3s", "tail", "-f", "web")
    assert tail.stdout is not None
    first = tail.stdout.readline()
    assert ctl("wait", "web", "--for", "ended", "--timeout", "3500ms").returncode == 124
    with (tmp_path / "more").open("w") as more:
        more.write("two\n")
    second = tail.stdout.readline()
    tail.terminate()
    tail.communicate(timeout=TIMEOUT_SECONDS)
    assert (first, second) == ("one\n", "two\n")


def test_wait_ends_with_its_own_timeout_on_a_quiet_server(serve: Serve) -> None:
    command = changed_constants.server_command(handlers__http__sse__HEARTBEAT_SECONDS=3600)
    ctl = by_socket(serve({"web": SLEEP}, command=command))
    assert ctl("--timeout", "1h", "wait", "web", "--timeout", "50ms").returncode == 124


def test_a_tail_ends_with_7_when_the_server_dies(ctl: Ctl) -> None:
    ctl.done("start", "lines")
    process = ctl.start("tail", "-f", "lines")
    assert process.stdout is not None
    assert process.stdout.readline() == "one\n"
    ctl.server.kill()
    _, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 7
    assert "the connection was lost" in errors


def test_events_continue_without_a_gap_after_a_server_restart(ctl: Ctl) -> None:
    ctl.done("start", "web")
    process = ctl.start("events", "-f", "-n", "2", "web", "--json")
    assert process.stdout is not None
    first = [json.loads(process.stdout.readline()) for _ in range(2)]
    ctl.server.kill()
    ctl.server.start()
    ctl.done("stop", "web")
    later = [json.loads(process.stdout.readline()) for _ in range(2)]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=TIMEOUT_SECONDS)
    assert [one["newStatus"] for one in [*first, *later]] == ["starting", "running", "stopping", "stopped"]
    assert len({one["id"] for one in [*first, *later]}) == 4


class ChangesAfterARead(BaseHTTPRequestHandler):
    """A server whose process finishes as soon as its details were read so often: only open streams learn it."""

    after: ClassVar = 0
    reads: ClassVar = 0
    streams: ClassVar[list[Any]] = []

    def do_GET(self) -> None:
        if self.path.startswith("/api/v1/processes/stream"):
            self.streams.append(self)  # before the client knows that it is open, and reads
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        if self.path.startswith("/api/v1/processes/stream"):
            self.wfile.write(b": open\n\n")
            self.wfile.flush()
            return
        type(self).reads += 1
        status = "running" if self.reads <= self.after else "finished"
        fields = {"name": "job", "type": "oneshot", "status": status, "schedule": None, "waitingFor": None}
        self.wfile.write(json.dumps([fields]).encode())
        for stream in self.streams if self.reads == self.after else ():
            stream.wfile.write(b'event: status\ndata: {"processName": "job"}\n\n')
            stream.wfile.flush()

    def finish(self) -> None:
        if self not in self.streams:
            super().finish()

    def log_message(self, *_: object) -> None:
        pass


class KeepsStreams(ThreadingHTTPServer):
    daemon_threads = True

    def shutdown_request(self, request: Any) -> None:
        if not any(stream.connection is request for stream in ChangesAfterARead.streams):
            super().shutdown_request(request)


@pytest.mark.parametrize("after", [1, 2])
def test_wait_subscribes_before_it_reads(after: int) -> None:
    """A change after the last read is lost where the stream is opened later, and the wait times out."""
    ChangesAfterARead.after, ChangesAfterARead.reads = after, 0
    ChangesAfterARead.streams.clear()
    with KeepsStreams(("127.0.0.1", 0), ChangesAfterARead) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        code = main(["--url", url, "wait", "job", "--for", "finished", "--timeout", "30s"])
        server.shutdown()
        thread.join()
        for stream in ChangesAfterARead.streams:
            stream.wfile.close()
            stream.rfile.close()
            stream.connection.close()
    assert code == 0
    assert ChangesAfterARead.reads == after + 1


def test_wait_misses_no_change(serve: Serve) -> None:
    """`wait` subscribes before it reads the status, so no change between is lost."""
    quick = {"command": "true"}
    checked = {**SLEEP, "health-check": {"exec": {"command": "true"}, "interval": "50ms"}}
    server = serve({"quick": quick, "web": SLEEP, "checked": checked, "fails": {"command": "false"}})
    ctl = by_socket(server)
    for _ in range(3):
        waiting = ctl.start("wait", "quick", "--for", "finished")
        server.do("start", "quick")
        waiting.communicate(timeout=TIMEOUT_SECONDS)
        assert waiting.returncode == 0
    waiting = ctl.start("wait", "web", "checked", "--json")
    server.do("start", "checked")
    server.do("start", "web")
    output, _ = waiting.communicate(timeout=TIMEOUT_SECONDS)
    assert [one["status"] for one in json.loads(output)] == ["running", "healthy"]
    server.do("start", "fails")
    assert reading(ctl, "wait", "fails") == (1, "the state can no longer be reached: fails is failed\n")
    assert ctl("wait", "fails", "web", "--any").returncode == 0
    assert ctl("wait", "fails", "--for", "ended").returncode == 0
    never = "the state can no longer be reached: web is running (web: no health check)\n"
    assert reading(ctl, "wait", "web", "--for", "healthy") == (1, never)
    assert ctl("wait", "web", "--for", "ended", "--timeout", "0.1s").returncode == 124


def test_a_scheduled_restart_is_shown_and_awaited(serve: Serve) -> None:
    crashes = {"command": "false", "restart": "on-failure", "restart-delay": "1h", "restart-max-delay": "1h"}
    ctl = by_socket(serve({"crashes": {**crashes, "auto-start": True}}))
    ctl.server.until("crashes", "failed")
    wait_for(lambda: re.search(r"^crashes +failed +exit code 1, restart in (1h|59m)", ctl("status").stdout))
    assert ctl("wait", "crashes", "--timeout", "100ms").returncode == 124


def test_several_logs_have_prefixes_and_one_log_is_written_raw(ctl: Ctl) -> None:
    ctl.done("start", "lines", "db")
    wait_for(lambda: "red" in ctl.done("tail", "lines"))
    assert ctl.done("tail", "-n", "1", "lines") == "\x1b[31mred\x1b[0m \x1b]0;title\x07\n"
    assert ctl.done("tail", "-n", "2", "db,lines") == "lines | two\nlines | \x1b[31mred\x1b[0m \x1b]0;title\x07\n"
    assert reading(ctl, "tail", "web")[1].startswith("web has no file of its own")


def test_a_missing_log_does_not_keep_others_from_being_followed(ctl: Ctl) -> None:
    ctl.done("start", "lines")
    tail = ctl.start("tail", "-f", "web", "lines")
    assert tail.stdout is not None
    first = tail.stdout.readline()
    tail.terminate()
    _, errors = tail.communicate(timeout=TIMEOUT_SECONDS)
    assert first == "lines | one\n"
    assert "web" in errors


def test_json_output_of_a_failure_is_the_response_of_the_server(ctl: Ctl) -> None:
    result = ctl("start", "web", "absent", "--json")
    assert result.returncode == 1
    assert [one["outcome"] for one in json.loads(result.stdout)["results"]] == ["started", "failed"]


def test_shutdown_ends_the_server_and_waits(serve: Serve) -> None:
    server = serve({"web": {**SLEEP, "auto-start": True}})
    server.until("web", "running")
    assert Ctl(server, "--data-dir", str(server.data)).done("shutdown") == f"pilothouse (pid {server.pid}) has ended\n"
    assert server.process is not None
    assert server.process.wait(TIMEOUT_SECONDS) == 0
    assert not (server.data / "control.sock").exists()
    assert not (server.data / "endpoint.json").exists()
    assert Ctl(server, "--data-dir", str(server.data))("shutdown").returncode == 7


def test_a_reload_that_needs_a_restart_reports_it_and_a_dry_run_does_nothing(ctl: Ctl) -> None:
    server = ctl.server
    server.configure(
        {"server": {"max-streams": 5}, "supervisor": {"processes": {"new": {**SLEEP, "auto-start": True}}}}
    )
    observed = ctl.done("reload", "--dry-run")
    assert "added: new" in observed
    assert "started: new" in observed
    assert "server.max-streams" in observed
    assert len(server.get("/api/v1/processes").json) == len(PROCESSES)
    assert "started: new" in ctl.done("reload")
    assert server.status("new") == "running"
    server.configure({"supervisor": {"processes": {"bad": {"command": "no-such-program", "auto-start": True}}}})
    result = ctl("--json", "reload")
    assert (result.returncode, len(json.loads(result.stdout)["failed"])) == (1, 1)
    server.file.write_text("supervisor: {processes: {a: {}}}")
    code, text = reading(ctl, "reload", "--dry-run")
    assert (code, "supervisor.processes.a.command: is required" in text) == (1, True)
