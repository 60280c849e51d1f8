"""What `ctl` prints about processes: why and since when, next runs, both streams of logs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from conftest import Serve, python_command, wait_for
from ctl_runs import SLEEP, Ctl, by_socket, read_until, reading, terminal
from users import create_token

from models import VERSION
from supervisor.cli.ctl import COMMANDS

CRASHES = {"restart": "on-failure", "restart-delay": "0s", "restart-max-delay": "0s", "restart-limit": 2}
BOTH = {
    "command": python_command(
        "import sys, time\nfor number in range(12): print('out', number)\nsys.stdout.flush()\n"
        "print('bad', file=sys.stderr, flush=True)\ntime.sleep(1000)"
    ),
    "log": "capture",
    "auto-start": True,
}
SINCE = r"\d\d:\d\d, \d+ s ago"


def far(unit: int, counts: Sequence[int]) -> int:
    """The first of these numbers of units (in seconds) whose next multiple since 1970 is more than two units away."""
    return next(count for count in counts if -time.time() % (count * unit) > 2 * unit)


def test_status_says_why_and_since_when(serve: Serve) -> None:
    processes = {
        "crashes": {"command": ["sh", "-c", "exit 3"], "auto-start": True, **CRASHES},
        "absent": {"command": f"no-such-program-{'x' * 100}"},
        "job": {"command": "true", "type": "oneshot", "schedule": {"every": f"{far(3600, range(5, 10))}h"}},
        "web": SLEEP,
    }
    ctl = by_socket(serve(processes))
    ctl("start", "absent", "job")
    ctl.server.until("job", "finished")
    gave_up = rf"^crashes +failed +exit code 3, gave up after 2 restarts, {SINCE}$"
    wait_for(lambda: re.search(gave_up, ctl.done("status"), re.MULTILINE), about="the end of its restarts")
    shown = ctl.done("status")
    assert re.search(rf"^absent +failed_to_start +\S.*\.\.\., {SINCE}$", shown, re.MULTILINE)
    assert re.search(rf"^job +finished +exit code 0, {SINCE}, next run \d\d:\d\d, in \d+ h$", shown, re.MULTILINE)
    assert re.search(r"^web +not_started$", shown, re.MULTILINE)
    assert max(map(len, shown.splitlines())) <= 80
    ctl.done("schedule", "pause", "job")
    assert ctl.done("status", "job").endswith("s ago, schedule paused\n")
    ctl.server.configure({"supervisor": {"processes": {**processes, "crashes": {"command": "false"}}}})
    ctl.done("reload")
    ctl.done("start", "crashes")
    ctl.server.until("crashes", "failed")
    assert re.search(rf"^crashes  failed  exit code 1, {SINCE}$", ctl("status", "crashes").stdout)


def test_the_status_of_one_process_has_the_ends_of_its_logs(serve: Serve) -> None:
    ctl = by_socket(serve({"both": BOTH}))
    wait_for(lambda: "bad" in ctl.done("tail", "both"), about="the output")
    first, *lines = ctl.done("status", "both").splitlines()
    assert first.startswith("both  running")
    assert lines == [*(f"out {number}" for number in range(2, 12)), "stderr | bad"]
    assert len(ctl.done("status", "all").splitlines()) == 1


@pytest.mark.parametrize("verb", ["tail", "logs"])
def test_tail_shows_both_streams_with_a_mark(serve: Serve, verb: str) -> None:
    ctl = by_socket(serve({"both": BOTH, "joined": {**BOTH, "redirect-stderr": True}, "web": SLEEP}))
    wait_for(lambda: "bad" in ctl.done("tail", "both") and "bad" in ctl.done("tail", "joined"), about="the output")
    assert ctl.done(verb, "-n", "2", "both") == "out 10\nout 11\nstderr | bad\n"
    assert ctl.done(verb, "-n", "1", "--stdout", "both") == "out 11\n"
    assert ctl.done(verb, "--stderr", "both") == "bad\n"
    assert ctl.done(verb, "-n", "1", "joined") == "bad\n"
    assert ctl.done(verb, "-n", "1", "both,joined") == "both | out 11\nboth stderr | bad\njoined | bad\n"
    code, text = reading(ctl, verb, "web")
    assert (code, text.count("web has no file of its own")) == (1, 1)
    followed = ctl.start(verb, "-f", "-n", "1", "both")
    assert followed.stdout is not None
    assert {followed.stdout.readline() for _ in range(2)} == {"out 11\n", "stderr | bad\n"}
    followed.terminate()
    followed.communicate(timeout=60)


def test_tail_since_shows_what_was_written_since(serve: Serve) -> None:
    stamped = (
        "from datetime import datetime, timedelta\nimport time\nnow = datetime.now()\n"
        "for minutes in (90, 30, 5): print((now - timedelta(minutes=minutes)).isoformat(' '), minutes, flush=True)\n"
        "print('  and more', flush=True)\ntime.sleep(1000)"
    )
    plain = {"command": ["sh", "-c", "echo started; exec sleep 1000"], "log": "capture", "auto-start": True}
    ctl = by_socket(serve({"web": {**plain, "command": python_command(stamped)}, "bare": plain}))
    wait_for(lambda: "more" in ctl.done("tail", "web") and "started" in ctl.done("tail", "bare"), about="the output")

    def since(*words: str) -> list[str]:
        return [line.split()[-1] for line in ctl.done("tail", *words, "web").splitlines()]

    assert since("--since", "1h") == ["30", "5", "more"]
    assert since("--since", "1h", "-n", "2") == ["5", "more"]
    assert since("--since", "1m") == []
    assert since("--since", (datetime.now() - timedelta(minutes=60)).isoformat()) == ["30", "5", "more"]
    assert since("--since", "9d") == ["90", "30", "5", "more"]
    assert ctl.done("tail", "--since", "1h", "bare") == "started\n"
    ctl.done("restart", "bare")
    wait_for(lambda: ctl.done("tail", "bare").count("started") == 2, about="the second start")
    assert ctl.done("tail", "--since", "1h", "bare") == "started\nstarted\n"
    assert ctl.done("tail", "--since", "1ms", "bare") == "started\n", "from its last start on"
    followed = ctl.start("tail", "-f", "--since", "1h", "web")
    assert followed.stdout is not None
    assert followed.stdout.readline().endswith(" 30\n")
    followed.terminate()
    followed.communicate(timeout=60)
    code, text = reading(ctl, "tail", "--since", "yesterday", "web")
    assert (code, "'yesterday' is not a time such as 10m, 14:02" in text) == (2, True)


def test_a_restart_with_a_broken_environment_file_leaves_the_process_as_it_was(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "web.env"
    file.write_text("A=1\n")
    web = {**SLEEP, "env-file": str(file), "auto-start": True, "depends-on": ["db"]}
    ctl = by_socket(serve({"web": web, "db": SLEEP, "other": {**SLEEP, "auto-start": True}}))
    for name in ("web", "db", "other"):
        ctl.server.until(name, "running")
    before = {name: ctl.server.info(name)["pid"] for name in ("web", "db", "other")}
    file.write_text("A='1\n")
    for selectors in (["web"], ["db"]):
        code, text = reading(ctl, "restart", *selectors)
        assert (code, f"env-file {file}:1: the value of A has no closing quote" in text) == (1, True), selectors
    code, text = reading(ctl, "reload", "--dry-run")
    assert (code, f"failed: web: env-file {file}:1: " in text) == (1, True)
    assert ctl.server.post("/api/v1/processes/group/restart").status == 500
    assert ctl("restart", "web", "other").returncode == 1
    refused = [ctl.server.do("restart", name) for name in ("web", "db")]
    assert [(answer.status, answer.json["code"]) for answer in refused] == [(400, "INVALID_PROCESS_CONFIGURATION")] * 2
    after = {name: ctl.server.info(name)["pid"] for name in before}
    assert [name for name in before if before[name] != after[name]] == ["other"]
    file.write_text("A=2\n")
    ctl.done("restart", "db")
    assert ctl.server.info("web")["pid"] != before["web"]


def test_clear_empties_logs_and_tail_goes_on(serve: Serve, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "more")
    reads = {"command": ["sh", "-c", f"echo one; cat {tmp_path}/more; exec sleep 1000"], "log": "capture"}
    ctl = by_socket(serve({"web": {**reads, "auto-start": True}, "bare": SLEEP}))
    wait_for(lambda: ctl.done("tail", "web") == "one\n", about="the output")
    followed = ctl.start("tail", "-f", "web")
    assert followed.stdout is not None
    assert followed.stdout.readline() == "one\n"
    shown = ctl.done("clear", "web", "bare")
    assert shown == "the logs of web have been emptied\nbare has no log file of its own\n"
    assert ctl.done("tail", "web") == ""
    (tmp_path / "more").write_text("two\n")
    assert followed.stdout.readline() == "two\n"
    followed.terminate()
    followed.communicate(timeout=60)
    assert ctl.done("tail", "web") == "two\n"
    assert ctl("clear", "none").returncode == 5


def test_maintail_shows_the_log_of_the_server_and_where_it_is(serve: Serve) -> None:
    server = serve({"web": SLEEP})
    ctl = by_socket(server)
    followed = ctl.start("maintail", "-f", "-n", "1")
    assert followed.stdout is not None
    followed.stdout.readline()
    ctl.done("start", "web")
    for line in followed.stdout:
        if "supervision: web: starting -> running" in line:
            break
    followed.terminate()
    followed.communicate(timeout=60)
    done = ctl("maintail")
    assert done.returncode == 0
    assert done.stderr == f"the whole log: {Path(f'/proc/{server.pid}/fd/2').readlink()}\n"
    assert "supervision: web: starting -> running" in done.stdout
    before = server.log.read_text().splitlines()
    shown = json.loads(ctl.done("maintail", "-n", "2", "--json"))["lines"]
    log = server.log.read_text().splitlines()  # other lines may have come since
    assert shown in [log[place : place + 2] for place in range(len(before) - 2, len(log) - 1)]


def test_the_log_of_the_server_is_for_admins_and_operators(serve: Serve) -> None:
    server = serve({"web": SLEEP}, tracker={"security": {"open-mode": False}})
    url = f"http://127.0.0.1:{server.port}"
    tokens = {role: create_token(server.data, role.lower(), "FULL", role) for role in ("ADMIN", "USER")}
    for role, code in (("ADMIN", 0), ("USER", 4), ("", 4)):
        assert Ctl(server, "--url", url)("maintail", PILOTHOUSE_TOKEN=tokens.get(role, "")).returncode == code, role
    assert by_socket(server)("maintail").returncode == 0


def test_tables_hold_80_columns(serve: Serve) -> None:
    job = {"command": "true", "type": "oneshot", "schedule": {"cron": "*/15 2-4 1,15 * mon-fri", "timezone": "UTC"}}
    members = {f"a-member-{number}": {**SLEEP, "groups": ["front"]} for number in range(12)}
    ctl = by_socket(serve({"a-job-with-a-long-name": job, **members}))
    ctl.done("start", "--wait", "a-job-with-a-long-name")
    schedule, groups = ctl.done("schedule"), ctl.done("groups")
    assert max(map(len, [*schedule.splitlines(), *groups.splitlines()])) <= 80
    assert re.search(r" in \d+ [dhms] .* \d+ s ago ", schedule)
    assert groups.split()[3:] == [*(f"a-member-{number}," for number in range(11)), "a-member-11"]


def test_the_shell_has_its_own_help(serve: Serve) -> None:
    ctl = by_socket(serve({"web": SLEEP}))
    for word in ("help", "?"):
        shown = subprocess.run(
            ctl.command("shell"), input=f"{word}\n", capture_output=True, text=True, timeout=60
        ).stdout
        lines = shown.splitlines()
        assert max(map(len, lines)) <= 80
        assert [line.split()[0] for line in lines[: len(COMMANDS)]] == list(COMMANDS)
        assert "exit" in shown
        assert "--token-file" not in shown
    assert "--since" in _in_shell(ctl, "help tail")


def _in_shell(ctl: Ctl, line: str) -> str:
    command = ctl.command("shell")
    return subprocess.run(command, input=f"{line}\n", capture_output=True, text=True, timeout=60).stdout


def test_a_signal_that_reaches_no_process_is_1_and_an_unknown_signal_2(serve: Serve) -> None:
    ctl = by_socket(serve({"web": {**SLEEP, "auto-start": True}, "idle": SLEEP}))
    ctl.server.until("web", "running")
    for selectors in (["idle"], ["web,idle"], ["i*"]):
        result = ctl("signal", "CONT", *selectors)
        assert (result.returncode, "idle is not_started" in result.stderr) == (1, True), selectors
    assert ctl("signal", "CONT", "all").returncode == 0
    code, text = reading(ctl, "signal", "NONSENSE", "web")
    assert (code, "NONSENSE" in text) == (2, True)


def test_schedule_lists_all_in_local_time(serve: Serve) -> None:
    hours, days = far(3600, range(5, 10)), far(86_400, range(40, 50))
    job = {"command": "true", "type": "oneshot", "schedule": {"every": f"{hours}h"}}
    ctl = by_socket(serve({"job": job, "idle": {**job, "schedule": {"every": f"{days}d"}}, "web": SLEEP}))
    ctl.done("start", "--wait", "job")
    head, *rows = ctl.done("schedule").splitlines()
    assert head.split() == ["NAME", "SCHEDULE", "NEXT", "LAST", "OUTCOME"]
    assert re.fullmatch(rf"job   every {hours}h   +\d\d:\d\d, in \d+ h  +{SINCE}  success", rows[0])
    assert re.fullmatch(rf"idle  every {days}d  \d{{4}}-\d\d-\d\d \d\d:\d\d, in \d+ d +-  +-", rows[1])
    assert len(rows) == 2


def test_the_shell_begins_with_the_status(serve: Serve) -> None:
    with terminal(by_socket(serve({"web": SLEEP})), "shell") as (_, master):
        assert re.match(rb"web  not_started\r\n", read_until(master, b"pilothouse> "))


def test_start_wait_and_a_stop_by_sigkill_say_what_happened(serve: Serve) -> None:
    ignores = python_command(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\ntime.sleep(1000)"
    )
    deaf = {"command": ignores, "stop-timeout": "100ms", "log": "capture", "auto-start": True}
    job = {"type": "oneshot", "command": "true"}
    processes = {"deaf": deaf, "web": {**SLEEP, "auto-start": True}, "job": job, "bad": {**job, "command": "false"}}
    ctl = by_socket(serve(processes))
    shown = ctl.done("start", "--wait", "job")
    assert re.fullmatch(r"job has been started \(pid \d+\)\njob is finished \(exit code 0, after \d+s\)\n", shown)
    failed = ctl("start", "--wait", "bad")
    assert failed.returncode == 1
    assert re.search(r"^bad is failed \(exit code 1, after \d+s\)$", failed.stderr, re.MULTILINE)
    wait_for(lambda: "deaf" in ctl("tail", "deaf").stdout, about="its handler")
    stopped = ctl.done("stop", "deaf", "web")
    assert re.search(r"^deaf has been stopped \(pid \d+\), by SIGKILL$", stopped, re.MULTILINE)
    assert re.search(r"^web has been stopped \(pid \d+\)$", stopped, re.MULTILINE)


def test_info_has_the_version_pid_uptime_and_files_of_the_server(serve: Serve) -> None:
    server = serve({"web": SLEEP})
    for ctl in (by_socket(server), Ctl(server, "--data-dir", str(server.data))):
        facts = json.loads(ctl.done("info", "--json"))
        assert (facts["version"], facts["pid"]) == (VERSION, server.pid)
        assert (facts["dataDirectory"], facts["configuration"]) == (str(server.data.resolve()), str(server.file))
        assert re.fullmatch(r"(\d+m )?\d+s", facts["uptime"])
        assert facts["log"] == str(Path(f"/proc/{server.pid}/fd/2").readlink())
        assert re.search(rf"^pid: +{server.pid}$", ctl.done("info"), re.MULTILINE)
    elsewhere = Ctl(server, "--url", f"http://127.0.0.1:{server.port}/")
    (server.data / "endpoint.json").unlink()
    facts = json.loads(elsewhere.done("info", "--json"))
    assert (facts["version"], "pid" in facts) == (VERSION, False)
