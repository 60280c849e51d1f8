"""Reading, starting, stopping and restarting one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import changed_constants
import pytest
from conftest import Serve, Server, is_alive, python_command, wait_for
from http_checks import DURATION, PROCESS_FIELDS, TIMESTAMP, UPTIME, check_error, json_body, running_server

API = "/api/v1/processes"
UNUSUAL_NAMES = [
    "two words",
    "a/b",
    "ünï-köde ☃",
    "100%",
    "a+b",
    "q?x=1&y",
    "..",
    ".",
    "a%2Fb",
    '"><script>',
    "start",
    "x" * 255,
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("processes")
    processes: dict[str, Any] = {
        "zebra": {"command": "sleep 1000"},
        "idle": {"command": "sleep 1000", "stdout-logfile": str(folder / "idle.log"), "redirect-stderr": True},
        "both": {"command": "true", "stdout-logfile": str(folder / "o.log"), "stderr-logfile": str(folder / "e.log")},
        "absent": {"command": "no-such-program-anywhere"},
        "homeless": {"command": "true", "directory": str(folder / "nowhere")},
        "nobody": {"command": "true", "user": "no-such-user-here"},
        "hasty": {
            "command": python_command("import sys; sys.exit('my last words')"),
            "start-seconds": "30s",
            "stderr-logfile": str(folder / "hasty.log"),
        },
        "five": {"command": python_command("raise SystemExit(5)")},
        "apple": {"command": "sleep 1000"},
        **{name: {"command": "sleep 1000"} for name in UNUSUAL_NAMES},
    }
    with running_server(folder, processes) as server:
        yield server


@pytest.fixture(params=["", "/supervision"])
def base(request: pytest.FixtureRequest) -> str:
    return f"{request.param}{API}"


# Reading


def test_all_processes_are_listed_in_the_order_of_the_configuration(server: Server, base: str) -> None:
    listed = json_body(server.get(base))
    names = [process["name"] for process in listed]
    assert names == ["zebra", "idle", "both", "absent", "homeless", "nobody", "hasty", "five", "apple", *UNUSUAL_NAMES]
    assert all(set(process) == PROCESS_FIELDS for process in listed)


def test_without_processes_the_list_is_empty(serve: Serve) -> None:
    assert serve().get(API).body == b"[]"


def test_process_never_started_has_null_fields(server: Server, base: str) -> None:
    assert json_body(server.get(f"{base}/info/apple")) == {
        "name": "apple",
        "status": "not_started",
        "pid": None,
        "startTime": None,
        "endTime": None,
        "exitCode": None,
        "processRuntime": "PT0S",
        "processUptime": "",
        "stdoutLogfile": None,
        "stderrLogfile": None,
        "failedErrorLog": None,
    }


def test_live_process_has_a_pid_and_no_end_time(server: Server, base: str) -> None:
    server.do("start", "zebra")
    info = json_body(server.get(f"{base}/info/zebra"))
    assert set(info) == PROCESS_FIELDS
    assert is_alive(info["pid"])
    assert TIMESTAMP.fullmatch(info["startTime"])
    assert (info["endTime"], info["exitCode"]) == (None, None)
    assert DURATION.fullmatch(info["processRuntime"])
    assert UPTIME.fullmatch(info["processUptime"])


def test_the_runtime_of_a_live_process_grows(server: Server) -> None:
    server.do("start", "zebra")
    before = server.info("zebra")["processRuntime"]
    wait_for(lambda: server.info("zebra")["processRuntime"] != before, about="a runtime that grows")


def test_ended_process_has_an_end_time_and_no_pid(server: Server) -> None:
    server.do("start", "five")
    info = server.until("five", "failed")
    assert (info["pid"], info["exitCode"]) == (None, 5)
    assert TIMESTAMP.fullmatch(info["startTime"])
    assert TIMESTAMP.fullmatch(info["endTime"])
    assert info["startTime"] <= info["endTime"]
    assert info["processRuntime"] == server.info("five")["processRuntime"]
    assert info["failedErrorLog"] is None


@pytest.mark.parametrize("name", ["zebra", "five", "apple", "idle", UNUSUAL_NAMES[2]])
def test_the_list_reports_the_same_as_the_single_process(server: Server, name: str) -> None:
    changing = {"processRuntime", "processUptime"}
    listed = next(process for process in json_body(server.get(API)) if process["name"] == name)
    info = server.info(name)
    assert list(listed) == list(info)
    assert {key: listed[key] for key in PROCESS_FIELDS - changing} == {
        key: info[key] for key in PROCESS_FIELDS - changing
    }
    assert DURATION.fullmatch(listed["processRuntime"])
    assert listed["processUptime"] == "" or UPTIME.fullmatch(listed["processUptime"])


def test_log_files_are_shown_as_configured(server: Server) -> None:
    idle, both = server.info("idle"), server.info("both")
    assert (idle["stdoutLogfile"], idle["stderrLogfile"]) == (str(server.folder / "idle.log"), None)
    assert (both["stdoutLogfile"], both["stderrLogfile"]) == (
        str(server.folder / "o.log"),
        str(server.folder / "e.log"),
    )


@pytest.mark.parametrize("name", UNUSUAL_NAMES)
def test_process_with_an_unusual_name_can_be_read_started_and_stopped(server: Server, name: str) -> None:
    assert server.info(name)["name"] == name
    assert server.do("start", name).status == 200
    assert server.do("stop", name).status == 200
    assert server.new_statuses(name) == ["starting", "running", "stopping", "stopped"]


# Start


def test_a_start_reports_name_and_pid(server: Server, base: str) -> None:
    server.do("stop", "apple")
    answer = server.post(f"{base}/start/apple")
    outcome = json_body(answer)
    assert (answer.status, set(outcome)) == (200, {"message"})
    assert "apple" in outcome["message"]
    assert str(server.info("apple")["pid"]) in outcome["message"]
    server.do("stop", "apple")


def test_a_start_of_a_live_process_reports_it_and_writes_no_event(server: Server) -> None:
    server.do("start", "zebra")
    pid, statuses = server.info("zebra")["pid"], server.new_statuses("zebra")
    answer = server.do("start", "zebra")
    assert answer.status == 200
    assert "already" in json_body(answer)["message"]
    assert str(pid) in json_body(answer)["message"]
    assert server.new_statuses("zebra") == statuses


def test_a_start_of_an_unknown_process_is_400(server: Server, base: str) -> None:
    check_error(server.post(f"{base}/start/nosuch"), 400, f"{base}/start/nosuch", "PROCESS_NOT_FOUND")


@pytest.mark.parametrize(("name", "expected_text"), [("homeless", "nowhere"), ("nobody", "no-such-user-here")])
@pytest.mark.parametrize("verb", ["start", "restart"])
def test_invalid_configuration_is_400_and_leaves_the_status(
    server: Server, name: str, expected_text: str, verb: str
) -> None:
    outcome = check_error(server.do(verb, name), 400, f"{API}/{verb}/{name}", "INVALID_PROCESS_CONFIGURATION")
    assert expected_text in outcome["message"]
    assert server.status(name) == "not_started"
    assert server.new_statuses(name) == []


@pytest.mark.parametrize("verb", ["start", "restart"])
def test_start_of_a_missing_command_is_500(server: Server, verb: str) -> None:
    outcome = check_error(server.do(verb, "absent"), 500, f"{API}/{verb}/absent", "START_FAILED")
    assert "absent" in outcome["message"]
    info = server.info("absent")
    assert (info["status"], info["pid"], info["exitCode"]) == ("failed_to_start", None, None)
    assert "no-such-program-anywhere" in info["failedErrorLog"]
    assert str(server.folder) in info["failedErrorLog"]
    assert server.new_statuses("absent")[-2:] == ["starting", "failed_to_start"]


def test_exit_within_start_seconds_is_500_with_the_last_output(server: Server) -> None:
    check_error(server.do("start", "hasty"), 500, f"{API}/start/hasty", "START_FAILED")
    info = server.info("hasty")
    assert info["status"] == "failed_to_start"
    assert "my last words" in info["failedErrorLog"]
    assert "exit code 1" in info["failedErrorLog"]


def test_failed_error_log_is_null_after_a_successful_start(serve: Serve) -> None:
    server = serve({"late": {"command": "./program"}})
    assert server.do("start", "late").status == 500
    assert server.info("late")["failedErrorLog"]
    program = server.folder / "program"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    assert server.do("start", "late").status == 200
    assert server.info("late")["failedErrorLog"] is None


def test_start_responds_after_start_seconds(serve: Serve) -> None:
    server = serve({"slow": {"command": "sleep 1000", "start-seconds": "300ms"}})
    began = time.monotonic()
    assert server.do("start", "slow").status == 200
    assert time.monotonic() - began >= 0.3
    assert server.new_statuses("slow") == ["starting", "running"]


# Stop


def test_stop_reports_name_and_pid_after_the_process_has_ended(server: Server, base: str) -> None:
    server.do("start", "apple")
    pid = server.info("apple")["pid"]
    answer = server.post(f"{base}/stop/apple")
    assert not is_alive(pid)
    outcome = json_body(answer)
    assert (answer.status, set(outcome)) == (200, {"message"})
    assert "apple" in outcome["message"]
    assert str(pid) in outcome["message"]


def test_a_stop_of_an_unknown_process_is_404(server: Server, base: str) -> None:
    check_error(server.post(f"{base}/stop/nosuch"), 404, f"{base}/stop/nosuch", "PROCESS_NOT_FOUND")


def test_stop_of_a_process_that_is_not_live_is_200_and_writes_no_event(server: Server) -> None:
    assert json_body(server.do("stop", "both"))["message"]
    assert server.new_statuses("both") == []
    assert server.status("both") == "not_started"


# Restart


def test_a_restart_reports_name_and_the_new_pid(server: Server, base: str) -> None:
    server.do("start", "zebra")
    old = server.info("zebra")["pid"]
    answer = server.post(f"{base}/restart/zebra")
    new = server.info("zebra")["pid"]
    assert new != old
    assert not is_alive(old)
    assert (answer.status, set(json_body(answer))) == (200, {"message"})
    assert "zebra" in json_body(answer)["message"]
    assert str(new) in json_body(answer)["message"]


def test_restart_of_a_process_that_is_not_live_starts_it(server: Server) -> None:
    server.do("stop", "apple")
    assert server.do("restart", "apple").status == 200
    assert server.status("apple") == "running"
    assert server.new_statuses("apple")[-2:] == ["starting", "running"]
    server.do("stop", "apple")


def test_a_restart_of_an_unknown_process_is_404(server: Server, base: str) -> None:
    check_error(server.post(f"{base}/restart/nosuch"), 404, f"{base}/restart/nosuch", "PROCESS_NOT_FOUND")


def test_info_of_an_unknown_process_is_404(server: Server, base: str) -> None:
    check_error(server.get(f"{base}/info/nosuch"), 404, f"{base}/info/nosuch", "PROCESS_NOT_FOUND")


# Concurrent requests


def test_slow_stop_delays_no_other_request(serve: Serve) -> None:
    stubborn = python_command(
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(1000)"
    )
    log = "stubborn.log"
    server = serve(
        {"stubborn": {"command": stubborn, "stop-timeout": "5s", "stdout-logfile": log}, "other": {"command": "true"}}
    )
    server.do("start", "stubborn")
    wait_for(lambda: (server.folder / log).read_bytes(), about="a child that ignores SIGTERM")
    answers: list[int] = []
    stopping = threading.Thread(target=lambda: answers.append(server.do("stop", "stubborn").status))
    stopping.start()
    wait_for(lambda: server.status("stubborn") == "stopping")
    assert server.do("start", "other").status == 200
    assert server.get(API).status == 200
    assert server.status("stubborn") == "stopping"
    stopping.join()
    assert answers == [200]
    assert server.info("stubborn")["exitCode"] == 137
    assert server.status("stubborn") == "aborted"


def test_concurrent_restarts_of_one_process_run_one_after_another(serve: Serve) -> None:
    patient = changed_constants.server_command(supervisor__children__child___EXEC_MILLISECONDS=20_000)
    server = serve({"one": {"command": "sleep 1000"}}, command=patient)  # else a later one may end a late exec: 409
    server.do("start", "one")
    answers: list[int] = []
    callers = [threading.Thread(target=lambda: answers.append(server.do("restart", "one").status)) for _ in range(5)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert answers == [200] * 5
    assert server.new_statuses("one") == ["starting", "running"] + ["stopping", "stopped", "starting", "running"] * 5


# Logs


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    code = "import sys; print(*range(1000), sep='\\n'); print('mist', file=sys.stderr)"
    files = {"stdout-logfile": "out.log", "stderr-logfile": "err.log"}
    processes = {
        "talker": {"command": python_command(code), **files},
        "quiet": {"command": "true", "stdout-logfile": "quiet.log"},
        "merged": {"command": "true", "stdout-logfile": "merged.log", "redirect-stderr": True},
        "mute": {"command": "true"},
    }
    with running_server(tmp_path_factory.mktemp("logs"), processes) as server:
        server.do("start", "talker")
        server.until("talker", "finished")
        yield server


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", [str(number) for number in range(800, 1000)]),
        ("?lines=3", ["997", "998", "999"]),
        ("?lines=1&stream=stdout", ["999"]),
        ("?lines=10000", [str(number) for number in range(1000)]),
        ("?lines=&stream=", [str(number) for number in range(800, 1000)]),
        ("?stream=stderr", ["mist"]),
    ],
)
def test_the_end_of_a_log_is_plain_text(logs: Server, query: str, expected: list[str]) -> None:
    answer = logs.get(f"{API}/logs/talker{query}")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    assert answer.text.splitlines() == expected


def test_the_frame_of_a_log_has_the_lines_since_a_time(logs: Server) -> None:
    file = logs.folder / "merged.log"
    file.write_text("2026-11-25T10:00:00Z old\n2026-11-25T10:10:00Z new\n")
    try:
        pages = [logs.get(f"/processes/merged/log{query}").text for query in ("", "?since=2026-11-25T10:05:00Z")]
    finally:
        file.unlink()
    assert [("00Z old" in page, "00Z new" in page) for page in pages] == [(True, True), (False, True)]


def test_log_of_a_process_never_started_is_empty(logs: Server) -> None:
    answer = logs.get(f"{API}/logs/quiet")
    assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("lines=0", "lines"), ("lines=10001", "lines"), ("lines=-1", "lines"), ("lines=x", "lines"),
        ("lines=1.5", "lines"),
        ("stream=neither", "stream"), ("stream=STDOUT", "stream"),
    ],
)  # fmt: skip
def test_invalid_log_parameter_is_400_and_is_named(logs: Server, query: str, name: str) -> None:
    assert name in check_error(logs.get(f"{API}/logs/talker?{query}"), 400, f"{API}/logs/talker")["message"]


@pytest.mark.parametrize("what", ["mute", "mute?stream=stderr", "quiet?stream=stderr", "merged?stream=stderr"])
def test_log_of_a_stream_without_a_file_is_404(logs: Server, what: str) -> None:
    check_error(logs.get(f"{API}/logs/{what}"), 404, f"{API}/logs/{what.partition('?')[0]}")


def test_the_log_of_an_unknown_process_is_404(logs: Server) -> None:
    check_error(logs.get(f"{API}/logs/nosuch"), 404, f"{API}/logs/nosuch", "PROCESS_NOT_FOUND")
