"""The status after each kind of exit, and the reason for a command that cannot be executed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import IS_PROOF, Serve, Server, is_alive, wait_for
from requirements import ROOT_USER, missing_part, require

SIGNALS = {
    "SIGTERM": ("stopped", 143),
    "SIGINT": ("stopped", 130),
    "SIGKILL": ("aborted", 137),
    "SIGSEGV": ("aborted", 139),
    "SIGHUP": ("aborted", 129),
    "SIGUSR1": ("aborted", 138),
}
CODES = {
    0: "finished",
    1: "failed",
    2: "failed",
    126: "failed",
    127: "failed",
    137: "failed",
    143: "failed",
    255: "failed",
}
STOP_SIGNALS = {"QUIT": 3, "hup": 1, "SIGUSR1": 10, "INT": 2, "KILL": 9, "12": 12, "SIGTERM": 15}
STUBBORN = "trap '' TERM; echo ready; while :; do sleep 0.02; done"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("exits")
    shell: dict[str, str] = {f"exits-{code}": f"exit {code}" for code in CODES}
    shell |= {f"dies-of-{name}": "exec sleep 1000" for name in SIGNALS}
    shell |= {f"kills-itself-{name}": f"kill -{name[3:]} $$" for name in SIGNALS}
    processes: dict[str, dict[str, Any]] = {name: {"command": ["sh", "-c", code]} for name, code in shell.items()}
    for code in CODES:
        processes[f"chained-exits-{code}"] = {"command": ["sh", "-c", f"exit {code}"], "limits": {"core": 0}}
    for signal_name in STOP_SIGNALS:
        processes[f"stops-by-{signal_name}"] = {"command": "sleep 1000", "stop-signal": signal_name}
    server = Server(folder, {"supervisor": {"processes": processes}}, {}, [])
    server.start()
    yield server
    server.close()


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("how", ["exits", "chained-exits"])
def test_the_code_of_an_unrequested_exit_determines_the_status(server: Server, how: str, code: int) -> None:
    """143 is not a stop, because no signal was sent. 127 is not a failed exec, although `prlimit` exits with it."""
    name = f"{how}-{code}"
    assert server.do("start", name).status == 200
    assert server.until(name, "finished", "failed", "failed_to_start")["exitCode"] == code
    assert server.new_statuses(name) == ["starting", "running", CODES[code]]


@pytest.mark.parametrize("name", SIGNALS)
def test_signal_from_outside_determines_the_status(server: Server, name: str) -> None:
    process, (status, code) = f"dies-of-{name}", SIGNALS[name]
    server.do("start", process)
    os.kill(server.info(process)["pid"], getattr(signal, name))
    assert server.until(process, status)["exitCode"] == code
    assert server.new_statuses(process) == ["starting", "running", status]


@pytest.mark.parametrize("name", SIGNALS)
def test_signal_that_a_process_sends_itself_has_the_same_status(server: Server, name: str) -> None:
    process, (status, code) = f"kills-itself-{name}", SIGNALS[name]
    server.do("start", process)
    assert server.until(process, status)["exitCode"] == code


# Stopping


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("trap 'exit 0' TERM", 0), ("trap 'exit 7' TERM", 7), ("trap 'kill -9 $$' TERM", 137), ("", 143)],
)
def test_process_that_exits_before_the_stop_timeout_is_stopped_with_any_exit_code(
    serve: Serve, tmp_path: Path, code: str, exit_code: int
) -> None:
    log = tmp_path / "log"
    server = serve({
        "polite": {
            "command": ["sh", "-c", f"{code}\necho ready; while :; do sleep 1000 & wait; done"],
            "stdout-logfile": str(log),
        }
    })  # fmt: skip
    server.do("start", "polite")
    wait_for(log.read_text)
    assert server.do("stop", "polite").status == 200
    info = server.info("polite")
    assert (info["status"], info["exitCode"], info["pid"]) == ("stopped", exit_code, None)
    assert server.new_statuses("polite") == ["starting", "running", "stopping", "stopped"]


def test_process_that_ignores_its_stop_signal_is_killed_after_the_stop_timeout(serve: Serve, tmp_path: Path) -> None:
    log = tmp_path / "log"
    server = serve({
        "stubborn": {"command": ["sh", "-c", STUBBORN], "stop-timeout": "300ms", "stdout-logfile": str(log)}
    })  # fmt: skip
    server.do("start", "stubborn")
    wait_for(log.read_text)
    pid, requested = server.info("stubborn")["pid"], time.monotonic()
    assert server.do("stop", "stubborn").status == 200
    assert time.monotonic() - requested >= 0.3
    assert not is_alive(pid)
    info = server.info("stubborn")
    assert (info["status"], info["exitCode"]) == ("aborted", 137)
    assert server.new_statuses("stubborn") == ["starting", "running", "stopping", "aborted"]


def test_process_halted_by_sigstop_handles_its_stop_signal(serve: Serve, tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done"
    server = serve({"halted": {"command": ["sh", "-c", code], "stdout-logfile": str(log)}})
    server.do("start", "halted")
    wait_for(log.read_text)
    pid = server.info("halted")["pid"]
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    assert server.status("halted") == "running"
    assert server.do("stop", "halted").status == 200
    assert (server.status("halted"), server.info("halted")["exitCode"]) == ("stopped", 7)


@pytest.mark.parametrize("signal_name", STOP_SIGNALS)
def test_process_ended_by_its_configured_stop_signal_is_stopped(server: Server, signal_name: str) -> None:
    """The status is stopped, not aborted, whatever the signal."""
    name = f"stops-by-{signal_name}"
    server.do("start", name)
    assert server.do("stop", name).status == 200
    info = server.info(name)
    assert (info["status"], info["exitCode"]) == ("stopped", 128 + STOP_SIGNALS[signal_name])


def test_a_process_that_dies_of_another_cause_during_a_stop_is_stopped(serve: Serve, tmp_path: Path) -> None:
    log = tmp_path / "log"
    server = serve({"dying": {"command": ["sh", "-c", STUBBORN], "stop-timeout": 60, "stdout-logfile": str(log)}})
    server.do("start", "dying")
    wait_for(log.read_text)
    pid = server.info("dying")["pid"]
    requested = threading.Thread(target=server.do, args=("stop", "dying"))
    requested.start()
    server.until("dying", "stopping")
    os.kill(pid, signal.SIGKILL)
    requested.join(30)
    assert (server.status("dying"), server.info("dying")["exitCode"]) == ("stopped", 137)


def test_a_stop_right_after_a_start_reaches_the_child_each_time(serve: Serve) -> None:
    """The child exits by its handler (7) or, before that is installed, by the signal (143). It is never killed."""
    code = "trap 'exit 7' TERM; while :; do sleep 1000 & wait; done"
    server = serve({"hasty": {"command": ["sh", "-c", code], "stop-timeout": 20}})
    codes = set()
    for _ in range(1000 if IS_PROOF else 150):
        assert server.do("start", "hasty").status == 200
        assert server.do("stop", "hasty").status == 200
        info = server.info("hasty")
        assert info["status"] == "stopped"
        codes.add(info["exitCode"])
    assert codes <= {7, 143}


def test_exit_before_the_child_is_watched_is_always_noticed(serve: Serve) -> None:
    names = [f"brief{number}" for number in range(30)]
    server = serve({name: {"command": "true"} for name in names})
    for _ in range(10):
        assert server.post("/api/v1/processes/group/start").status in (200, 409)
        for name in names:
            assert server.until(name, "finished")["exitCode"] == 0
    counts = server.get("/api/v1/events/count").json
    assert counts["starting"] == counts["running"] == counts["finished"] >= 300
    assert all(server.new_statuses(name) == ["starting", "running", "finished"] * 10 for name in names)


# Commands that cannot be executed


def folder_of_programs(folder: Path) -> dict[str, str]:
    for name, text, mode in [
        ("not-executable", "#!/bin/sh\n", 0o644),
        ("without-shebang", "exit 0\n", 0o755),
        ("bad-interpreter", "#!/no/such/interpreter\n", 0o755),
        ("empty", "", 0o755),
    ]:
        (folder / name).write_text(text)
        (folder / name).chmod(mode)
    (folder / "directory").mkdir()
    (folder / "circle").symlink_to("circle")
    return {
        "missing": "No such file or directory",
        "not-executable": "Permission denied: it is not executable (chmod +x)",
        "without-shebang": "Exec format error",
        "bad-interpreter": "No such file or directory",
        "empty": "Exec format error",
        "directory": "Permission denied: it is a directory",
        "circle": "Too many levels of symbolic links",
    }


def test_a_command_that_cannot_be_executed_is_failed_to_start_and_reports_why(serve: Serve, tmp_path: Path) -> None:
    reasons = folder_of_programs(tmp_path)
    server = serve({name: {"command": [str(tmp_path / name)]} for name in reasons})
    for name, reason in reasons.items():
        answer = server.do("start", name)
        assert (answer.status, answer.json["code"]) == (500, "START_FAILED"), name
        info = server.info(name)
        assert reason in info["failedErrorLog"]
        assert [info[key] for key in ("status", "pid", "exitCode")] == ["failed_to_start", None, None]
        assert server.new_statuses(name) == ["starting", "failed_to_start"]


@pytest.mark.parametrize("more", [{"limits": {"core": 0}}, {"nice": 5}, {"user": "nobody"}, {"start-seconds": "5s"}])
def test_command_that_the_launcher_cannot_execute_is_failed_to_start(
    serve: Serve, open_folder: Path, more: dict[str, Any]
) -> None:
    if "user" in more:
        require(ROOT_USER)
    reasons = folder_of_programs(open_folder)
    names = [name for name in reasons if name not in ("without-shebang", "empty")]
    server = serve({name: {"command": [str(open_folder / name)], **more} for name in names})
    for name in names:
        answer = server.do("start", name)
        assert (answer.status, answer.json["code"]) == (500, "START_FAILED"), name
        assert str(open_folder / name) in server.info(name)["failedErrorLog"]
        assert name not in ("not-executable", "directory") or reasons[name] in server.info(name)["failedErrorLog"]
        assert server.new_statuses(name) == ["starting", "failed_to_start"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("exec sleep 1000\n", "Exec format error: it is no program, and a script needs a first line such as #!/bin/sh"),
        ("#!/no/such/interpreter -x\nexit 0\n", "its interpreter /no/such/interpreter is missing"),
        ("#!/bin/sh\r\nexec sleep 1000\r\n", "its first line ends with CR LF"),
    ],
)
@pytest.mark.parametrize("more", [{}, {"limits": {"core": 0}}, {"user": "nobody"}], ids=["plain", "limits", "user"])
def test_a_script_that_cannot_be_executed_has_the_same_reason_with_and_without_the_launcher(
    serve: Serve, open_folder: Path, content: str, reason: str, more: dict[str, Any]
) -> None:
    if "user" in more:
        require(ROOT_USER)
    script = open_folder / "script"
    script.write_text(content)
    script.chmod(0o755)
    server = serve({"web": {"command": str(script), **more}})
    answer = server.do("start", "web")
    assert (answer.status, answer.json["code"]) == (500, "START_FAILED")
    assert reason in server.info("web")["failedErrorLog"]
    assert server.new_statuses("web") == ["starting", "failed_to_start"]


@pytest.mark.needs(ROOT_USER)
def test_folder_that_the_user_may_not_enter_is_named(serve: Serve, open_folder: Path) -> None:
    closed = open_folder / "closed"
    closed.mkdir(mode=0o700)
    (closed / "program").write_text("#!/bin/sh\n")
    (closed / "program").chmod(0o755)
    server = serve({"web": {"command": str(closed / "program"), "user": "nobody"}})
    assert server.do("start", "web").status == 500
    assert f"the user of the process may not enter {closed}" in server.info("web")["failedErrorLog"]


def test_limit_that_cannot_be_set_is_in_the_failed_error_log(serve: Serve) -> None:
    server = serve({"web": {"command": "sleep 1000", "limits": {"nofile": "999999999999"}}})
    assert server.do("start", "web").status == 500
    assert "the limit nofile cannot be set to 999999999999:999999999999" in server.info("web")["failedErrorLog"]


def test_a_limit_of_memory_may_be_written_as_a_size(serve: Serve) -> None:
    server = serve({"web": {"command": "sleep 1000", "limits": {"as": "200M", "nofile": 64}}})
    assert server.do("start", "web").status == 200
    limits = Path(f"/proc/{server.info('web')['pid']}/limits").read_text()
    assert str(200 * 1024 * 1024) in limits


def test_command_is_looked_up_on_the_path_of_the_process(serve: Serve, tmp_path: Path) -> None:
    program = tmp_path / "only-here"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    server = serve({
        "found": {"command": "only-here", "environment": {"PATH": path}},
        "found-by-chain": {"command": "only-here", "environment": {"PATH": path}, "limits": {"core": 0}},
        "chain-off-it": {"command": "/bin/sleep 9", "environment": {"PATH": "/nowhere"}, "limits": {"core": 0}},
        "lost": {"command": "only-here"},
        "lost-by-chain": {"command": "only-here", "limits": {"core": 0}},
    })  # fmt: skip
    started = {
        name: server.do("start", name).status
        for name in (info["name"] for info in server.get("/api/v1/processes").json)
    }
    assert started == {
        "found": 200, "found-by-chain": 200, "chain-off-it": 200, "lost": 500, "lost-by-chain": 500,
    }  # fmt: skip


def test_start_fails_if_a_log_file_cannot_be_opened(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "unread")
    server = serve({
        "directory": {"command": "true", "stdout-logfile": str(tmp_path / "directory")},
        "below-a-file": {"command": "true", "stderr-logfile": str(tmp_path / "file" / "log")},
        "unread-pipe": {"command": "true", "stdout-logfile": str(tmp_path / "unread")},
        "well": {"command": ["sh", "-c", "echo out; echo err >&2"],
                 "stdout-logfile": str(tmp_path / "new" / "deep" / "out"),
                 "stderr-logfile": str(tmp_path / "new" / "err")},
    })  # fmt: skip
    for name, reason in {"directory": "Is a directory", "below-a-file": "", "unread-pipe": "No such device"}.items():
        assert server.do("start", name).status == 500
        message = server.info(name)["failedErrorLog"]
        assert reason in message
        assert str(tmp_path) in message
    assert server.do("start", "well").status == 200
    server.until("well", "finished")
    assert (tmp_path / "new" / "deep" / "out").read_text() == "out\n"
    assert (tmp_path / "new" / "err").read_text() == "err\n"


# start-seconds


def test_process_is_running_only_after_start_seconds(serve: Serve) -> None:
    server = serve({"slow": {"command": "sleep 1000", "start-seconds": "400ms"}})
    requested = time.monotonic()
    answer = server.do("start", "slow")
    assert answer.status == 200
    assert time.monotonic() - requested >= 0.4
    starting, running = server.events("slow")
    assert (starting["newStatus"], running["newStatus"]) == ("starting", "running")
    assert str(server.info("slow")["pid"]) in answer.json["message"]


@pytest.mark.parametrize(("code", "exit_code"), [("exit 3", 3), ("exit 0", 0), ("kill -9 $$", 137), ("exit 127", 127)])
def test_exit_within_start_seconds_is_failed_to_start_and_reports_the_last_output(
    serve: Serve, tmp_path: Path, code: str, exit_code: int
) -> None:
    noise = "i=0; while [ $i -lt 300 ]; do echo line $i of the standard error output >&2; i=$((i+1)); done"
    server = serve({
        "weak": {"command": ["sh", "-c", f"{noise}; {code}"], "start-seconds": 60,
                 "stderr-logfile": str(tmp_path / "err")},
        "mute": {"command": ["sh", "-c", code], "start-seconds": 60},
        "merged": {"command": ["sh", "-c", code], "start-seconds": 60, "redirect-stderr": True,
                   "stdout-logfile": str(tmp_path / "both")},
    })  # fmt: skip
    for name in ("weak", "mute", "merged"):
        answer = server.do("start", name)
        assert (answer.status, answer.json["code"]) == (500, "START_FAILED")
        info = server.info(name)
        assert (info["status"], info["exitCode"], info["pid"]) == ("failed_to_start", exit_code, None)
        assert server.new_statuses(name) == ["starting", "failed_to_start"]
        assert server.events(name)[-1]["endTime"] is not None
        assert ("signal 9" if exit_code == 137 else f"exit code {exit_code}") in info["failedErrorLog"]
    text = server.info("weak")["failedErrorLog"]
    assert text.endswith("line 299 of the standard error output")
    assert 3000 < len(text) < 4096 + 200


@pytest.mark.parametrize("stderr", ["/dev/stderr", "/dev/null"])
def test_unreadable_last_output_delays_no_other_process(serve: Serve, stderr: str) -> None:
    """The server's standard error is a pipe, as in most container runtimes."""
    server = serve(
        {
            "weak": {"command": ["sh", "-c", "sleep 0.1; exit 3"], "start-seconds": 60, "stderr-logfile": stderr},
            "other": {"command": "sleep 1000"},
        },
        command=["bash", "-c", 'exec "$@" 2> >(cat >&2)', "bash"],
    )
    assert server.do("start", "weak").status == 500
    assert server.status("weak") == "failed_to_start"
    assert server.do("start", "other").status == 200
    assert server.do("stop", "other").status == 200


TRACER = """
import ctypes, os, sys
pid = int(sys.argv[1])
print(ctypes.CDLL(None).ptrace(16, pid, 0, 0) or (os.waitpid(pid, 0x40000000) and 0), flush=True)
sys.stdin.read()
"""


def test_process_that_ended_under_a_debugger_delays_no_other_process(serve: Serve) -> None:
    server = serve({"web": {"command": "sleep 1000"}, "db": {"command": "sleep 1000"}})
    server.do("start", "web")
    pid = server.info("web")["pid"]
    with subprocess.Popen(
        [sys.executable, "-c", TRACER, str(pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as tracer:
        assert tracer.stdin is not None
        assert tracer.stdout is not None
        if tracer.stdout.readline() != b"0\n":
            missing_part("ptrace of another process", "not in Debian: a container without a seccomp filter")
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not is_alive(pid))
        assert server.do("start", "db").status == 200
        line = f"pid {pid} has ended, but the debugger pid {tracer.pid} holds it"
        wait_for(lambda: line in server.log.read_text(), about="the line of the log")
        assert server.info("web")["status"] == "running"
        tracer.stdin.close()
    assert server.until("web", "aborted")["exitCode"] == 137
