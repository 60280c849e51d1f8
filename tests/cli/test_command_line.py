"""The command line: options, exit codes, and messages of a failed start."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, Serve, run_verb, wait_for

import run as program

SLEEPER = {"command": "sleep 1000"}
SECRET = "hunter2-is-no-secret"


def pilothouse(
    folder: Path, *arguments: str, config: dict[str, Any] | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Runs the program in `folder`, with the given configuration under the default name; returns when it has ended."""
    if config is not None:
        (folder / "pilothouse.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return run_verb(*arguments, folder=folder, environ={**os.environ, **environ})


def check_refused(done: subprocess.CompletedProcess[str], *words: str) -> list[str]:
    """Checks that it ended with this code and a message only; returns the lines."""
    assert done.returncode not in (0, -signal.SIGTERM), done
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr, done
    return done.stderr.splitlines()


# What it is asked


@pytest.mark.parametrize(("word", "meant"), [("status", "ctl status"), ("chek", "check"), ("RESTART", "ctl restart")])
def test_an_unknown_verb_has_a_suggestion(word: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        program.parse_arguments([word])
    assert end.value.code == 2
    assert capsys.readouterr().err.endswith(f": error: there is no verb {word}; did you mean `{meant}`?\n")


def test_the_configuration_of_supervisord_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "supervisord.conf").write_text("[program:web]\ncommand=sleep 1000\n")
    lines = check_refused(pilothouse(tmp_path, "--config", "supervisord.conf", "check"))
    assert lines[-1] == "supervisord.conf is of supervisord: import-supervisord translates it"
    lines = check_refused(pilothouse(tmp_path, "check", config={"supervisor": {"nonsense": 1}}))
    assert "import-supervisord" not in "".join(lines)


@pytest.mark.parametrize("name", ["run.py", "pilothouse"])
def test_the_usage_has_the_name_of_the_called_program(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [f"/opt/{name}"])
    with pytest.raises(SystemExit):
        program.parse_arguments(["--nonsense"])
    assert capsys.readouterr().err.startswith(f"usage: {name} ")


def test_version_is_printed(tmp_path: Path) -> None:
    done = pilothouse(tmp_path, "--version")
    assert (done.returncode, done.stdout) == (0, f"pilothouse {program.VERSION}\n")


def test_check_accepts_a_valid_configuration_and_creates_nothing(tmp_path: Path) -> None:
    done = pilothouse(tmp_path, "check", config={"supervisor": {"processes": {"web": SLEEPER, "db": SLEEPER}}})
    assert (done.returncode, done.stderr) == (0, "")
    assert "processes: 2\n" in done.stdout
    assert [one.name for one in tmp_path.iterdir()] == ["pilothouse.yaml"]


def test_check_reads_environment_files(tmp_path: Path) -> None:
    (tmp_path / "good.env").write_text("A=1\n")
    (tmp_path / "bad.env").write_text("A=1\nPASSWORD='hidden\n")
    os.mkfifo(tmp_path / "pipe.env")
    files = ["good.env", "bad.env", "pipe.env", "-absent.env"]
    web = {**SLEEPER, "env-file": [f"{'-' * (name[0] == '-')}{tmp_path / name.lstrip('-')}" for name in files]}
    done = pilothouse(tmp_path, "check", config={"supervisor": {"processes": {"web": web, "db": SLEEPER}}})
    line = f"web: env-file {tmp_path}/bad.env:2: the value of PASSWORD has no closing quote\n"
    assert (done.returncode, done.stderr) == (1, line)
    assert "processes: 2\n" in done.stdout


def test_a_misspelt_variable_is_reported(tmp_path: Path) -> None:
    done = pilothouse(tmp_path, "check", SERVER_PROT="1", SERVER_PORT="2", SERVER_NAME="example.org", PORT="3")
    line = "SERVER_PROT in the environment sets no property; did you mean SERVER_PORT?"
    assert (done.returncode, done.stderr) == (0, f"{line}\n")
    held = socket.create_server(("127.0.0.1", 0))
    with held:
        started = pilothouse(tmp_path, "--port", str(held.getsockname()[1]), SERVER_PROT="1")
    assert started.returncode == 1
    assert f"WARNING server: {line}" in started.stderr


@pytest.mark.parametrize("content", [None, "", "{}\n", "# nothing\n"])
def test_a_server_without_a_configuration_has_no_processes(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "pilothouse.yaml").write_text(content)
    done = pilothouse(tmp_path, "check")
    assert (done.returncode, done.stderr) == (0, "")
    assert "processes: 0\n" in done.stdout


def test_config_names_the_file_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(yaml.safe_dump({"supervisor": {"processes": {"web": SLEEPER}}}))
    assert "processes: 1\n" in pilothouse(tmp_path, "--config", "other.yaml", "check").stdout
    assert "processes: 1\n" in pilothouse(tmp_path, "check", "--config", "other.yaml").stdout
    assert "processes: 0\n" in pilothouse(tmp_path, "check").stdout


def test_serve_is_the_main_verb_and_takes_the_options_before_and_after_it() -> None:
    given = ["--port", "1", "--config", "a.yaml"]
    parsed = [program.parse_arguments(words) for words in (given, ["serve", *given], [*given, "serve"])]
    assert parsed[1:] == parsed[:1] * 2
    assert (parsed[0].verb, parsed[0].port, str(parsed[0].config)) == (None, "1", "a.yaml")
    assert program.parse_arguments([*given, "serve", "--port", "2"]).port == "2"
    assert re.search(r"^ +serve +run the server", program.command_parser([]).format_help(), re.MULTILINE)


@pytest.mark.parametrize("verb", [["check"], ["serve"], []], ids=["check", "serve", "no verb"])
@pytest.mark.parametrize("name", ["missing.yaml", "pilothouse.yaml", "folder"])
def test_an_unreadable_named_configuration_is_an_error(tmp_path: Path, name: str, verb: list[str]) -> None:
    (tmp_path / "folder").mkdir()
    assert len(check_refused(pilothouse(tmp_path, "--config", name, *verb), name)) == 1


@pytest.mark.parametrize("verb", [["check"], []], ids=["check", "serve"])
def test_every_error_of_a_configuration_is_one_line(tmp_path: Path, verb: list[str]) -> None:
    config = {
        "server": {"prot": 1, "max-body": "large"},
        "supervisor": {"processes": {"web": {"command": "sleep 1", "restart": "sometimes"}, "db": {}}},
        "svc": {"security": {"mode": "HALF"}},
    }
    lines = check_refused(pilothouse(tmp_path, *verb, config=config))
    assert len(lines) == 5
    for path in ("server.prot", "server.max-body", "processes.web.restart", "processes.db", "svc.security.mode"):
        assert sum(path in line for line in lines) == 1, lines
    assert "port" in next(line for line in lines if "server.prot" in line)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("arguments", [["serv"], ["--prot", "1"], ["check", "check"]])
def test_unknown_arguments_are_refused_with_the_usage(tmp_path: Path, arguments: list[str]) -> None:
    done = pilothouse(tmp_path, *arguments)
    assert done.returncode == 2
    assert "usage:" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        (["--port", "70000"], "server.port"),
        (["--port", "high"], "server.port"),
        (["--address", "nowhere at all"], "server.address"),
    ],
)
def test_an_invalid_option_is_reported_like_an_error_of_the_configuration(
    tmp_path: Path, arguments: list[str], result: str
) -> None:
    assert len(check_refused(pilothouse(tmp_path, *arguments), result)) == 1


def test_an_invalid_variable_is_reported_with_its_name_and_property(tmp_path: Path) -> None:
    done = pilothouse(tmp_path, "check", SERVER_PORT="high", SERVER_COLOUR="red", TRACKER_LIMITS_DEPTH="")
    assert len(check_refused(done, "SERVER_PORT", "server.port")) == 1


# Why it cannot start


def a_data_dir_that_is_a_file(folder: Path) -> list[str]:
    (folder / "data").touch()
    return []


def a_data_dir_below_a_file(folder: Path) -> list[str]:
    (folder / "file").touch()
    return ["--data-dir", "file/data"]


def a_data_dir_where_nothing_can_be_written(folder: Path) -> list[str]:
    return ["--data-dir", "/proc/data"]


def a_store_that_is_none(folder: Path) -> list[str]:
    (folder / "data").mkdir()
    (folder / "data" / "pilothouse.db").write_bytes(b"no database at all" * 1000)
    return []


def a_store_that_is_a_folder(folder: Path) -> list[str]:
    (folder / "data" / "pilothouse.db").mkdir(parents=True)
    return []


def a_store_of_a_newer_program(folder: Path) -> list[str]:
    (folder / "data").mkdir()
    store = sqlite3.connect(folder / "data" / "pilothouse.db")
    store.execute("PRAGMA user_version = 1000")
    store.close()
    return []


def an_address_that_is_not_ours(folder: Path) -> list[str]:
    return ["--address", "192.0.2.1"]


def a_certificate_that_is_not_there(folder: Path) -> list[str]:
    (folder / "pilothouse.yaml").write_text("server: {tls: {certificate: no.pem, key: no.key}}\n")
    return []


@pytest.mark.parametrize(
    ("hindrance", "result"),
    [
        (an_address_that_is_not_ours, "192.0.2.1"),
        (a_data_dir_that_is_a_file, "data"),
        (a_data_dir_below_a_file, "file/data"),
        (a_data_dir_where_nothing_can_be_written, "/proc/data"),
        (a_store_that_is_none, "pilothouse.db"),
        (a_store_that_is_a_folder, "pilothouse.db"),
        (a_store_of_a_newer_program, "newer"),
        (a_certificate_that_is_not_there, "no.pem"),
    ],
)
def test_a_failed_start_is_reported_in_one_line(
    tmp_path: Path, hindrance: Callable[[Path], list[str]], result: str
) -> None:
    arguments = hindrance(tmp_path)
    lines = check_refused(pilothouse(tmp_path, "--port", "0", *arguments), result)
    assert len(lines) == 1, lines
    assert "cannot start" in lines[0]


def test_a_port_in_use_fails_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        lines = check_refused(pilothouse(tmp_path, "--port", str(port)), f"127.0.0.1:{port}", "--port takes another")
    assert len(lines) == 1
    assert not (tmp_path / "data").exists()


def test_ctrl_c_during_the_start_prints_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "run.py"), "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as server:
        wait_for(lambda: "_ssl" in Path(f"/proc/{server.pid}/maps").read_text())  # in the midst of the imports
        server.send_signal(signal.SIGINT)
        try:
            result = server.communicate(timeout=60)[1]
        finally:
            server.kill()
    assert server.returncode in (0, -signal.SIGINT)
    assert "Traceback" not in result


def test_a_second_server_on_a_data_directory_is_refused(serve: Serve) -> None:
    server = serve({"web": SLEEPER})
    server.do("start", "web")
    pid = server.info("web")["pid"]
    done = pilothouse(server.folder, "--port", "0", "--data-dir", str(server.data))
    assert len(check_refused(done, "another pilothouse", str(server.data), f"(pid {server.pid})")) == 1
    assert server.info("web")["pid"] == pid
    assert int((server.data / "lock").read_text()) == server.pid


# How it runs


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_sigterm_and_sigint_end_the_server_with_code_zero(serve: Serve, number: int) -> None:
    server = serve({"web": SLEEPER | {"auto-start": True}})
    server.until("web", "running")
    assert server.stop(number) == 0
    assert server.log.read_text().endswith("INFO server: stopped\n")
    assert "Traceback" not in server.log.read_text()


def test_the_data_directory_is_private(serve: Serve) -> None:
    server = serve({"web": SLEEPER}, command=["sh", "-c", 'umask 000; exec "$@"', "sh"])
    server.do("start", "web")
    assert stat.S_IMODE(server.data.stat().st_mode) == 0o700
    modes = {one: stat.S_IMODE(one.stat().st_mode) for one in server.data.iterdir()}
    assert server.data / "pilothouse.db" in modes
    assert modes == {one: 0o700 if one.is_dir() else 0o600 for one in modes}


def test_the_log_can_be_json(serve: Serve) -> None:
    server = serve({"web": SLEEPER, "bad": {"command": "/nonexistent/a\nb"}}, server={"log-format": "json"})
    server.do("start", "web")
    server.do("start", "bad")
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
    assert any("web: starting -> running" in line["message"] for line in lines)
    assert {line["level"] for line in lines} >= {"INFO", "ERROR"}


def test_each_log_record_is_one_line(serve: Serve) -> None:
    server = serve({"bad": {"command": ["/nonexistent/a\nFORGED"]}})
    server.do("start", "bad")
    assert server.stop() == 0
    assert not any(line.startswith("FORGED") for line in server.log.read_text().splitlines())


def test_a_variable_overrides_the_file_and_an_option_overrides_both(serve: Serve, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    environ = {
        "SUPERVISOR_NODE_NAME": "from the environment",
        "SERVER_LOG_FORMAT": "json",
        "SERVER_DATA_DIR": str(elsewhere),
        "SUPERVISOR_COLOUR": "ignored",
    }
    sections = {"supervisor": {"node-name": "from the file", "description": "from the file too"}}
    server = serve({}, environ=environ, **sections)
    info = server.get("/api/v1/supervisor/info").json
    assert (info["nodeName"], info["description"]) == ("from the environment", "from the file too")
    assert all(line.startswith("{") for line in server.log.read_text().splitlines())
    assert (server.data / "pilothouse.db").exists()
    assert not elsewhere.exists()


# What it keeps to itself


@pytest.mark.parametrize("verb", [["check"], []], ids=["check", "serve"])
@pytest.mark.parametrize("value", [[SECRET], {"x": SECRET}], ids=["list", "mapping"])
def test_a_secret_of_a_wrong_type_is_not_in_its_error(tmp_path: Path, value: object, verb: list[str]) -> None:
    config = {"svc": {"security": {"api-key": value}}, "tracker": {"security": {"admin-password": value}}}
    done = pilothouse(tmp_path, *verb, config=config)
    check_refused(done, "svc.security.api-key", "tracker.security.admin-password")
    assert SECRET not in done.stderr


@pytest.mark.parametrize("given", ["file", "environment"])
def test_secrets_are_not_in_the_log_responses_or_children(serve: Serve, given: str) -> None:
    secrets = {"svc": {"security": {"api-key": SECRET}}, "tracker": {"security": {"admin-password": SECRET}}}
    variables = {"SVC_SECURITY_API_KEY": SECRET, "TRACKER_SECURITY_ADMIN_PASSWORD": SECRET}
    server = serve({"web": SLEEPER}, **({"environ": variables} if given == "environment" else secrets))
    server.do("start", "web")
    assert SECRET.encode() not in Path(f"/proc/{server.info('web')['pid']}/environ").read_bytes()
    changed = {**secrets, "svc": {"security": {"api-key": SECRET + "2"}}, "supervisor": {"processes": {"web": SLEEPER}}}
    server.configure(changed)
    answers = [server.post("/api/v1/supervisor/reload")]
    server.configure({**changed, "server": {"port": "high"}})
    answers.append(server.post("/api/v1/supervisor/reload"))
    paths = ("/api/v1/processes", "/api/v1/supervisor/info", "/metrics", "/api/v1/nothing", "/healthz")
    answers += [server.get(path) for path in paths]
    assert [answer.status for answer in answers[:2]] == [200, 400]
    assert not any(SECRET in answer.text for answer in answers)
    assert server.stop() == 0
    assert SECRET not in server.log.read_text()


def test_a_child_inherits_ignored_signals_only(serve: Serve) -> None:
    environ = {
        "SERVER_LOG_FORMAT": "text",
        "SVC_SECURITY_API_KEY": SECRET,
        "SUPERVISOR_DESCRIPTION": "ours",
        "SUPERVISORS": "not ours",
        "COLOUR": "red",
    }
    own = {"GREETING": "hello", "SUPERVISOR_NODE_NAME": "asked for"}
    server = serve({"web": SLEEPER | {"environment": own}}, environ=environ)
    server.do("start", "web")
    pid = server.info("web")["pid"]
    wait_for(lambda: sorted(os.listdir(f"/proc/{pid}/fd")) == ["0", "1", "2"], about="a program that has loaded itself")
    environ_of = Path(f"/proc/{pid}/environ")
    wait_for(lambda: environ_of.read_bytes() != b"", about="an environment, which an exec sets last")
    pairs = environ_of.read_text().rstrip("\0").split("\0")
    inherited = dict(pair.split("=", 1) for pair in pairs)
    assert {"COLOUR": "red", "SUPERVISORS": "not ours", **own}.items() <= inherited.items()
    assert not {"SERVER_LOG_FORMAT", "SVC_SECURITY_API_KEY", "SUPERVISOR_DESCRIPTION"} & set(inherited)
    assert os.readlink(f"/proc/{pid}/fd/0") == os.devnull


def test_a_restarted_server_can_bind_its_port_immediately(serve: Serve) -> None:
    server = serve({"web": SLEEPER})
    port = server.port
    stream = server.stream("/api/v1/processes/stream")
    server.kill()
    server.start()
    assert server.port == port
    wait_for(lambda: server.get("/readyz").status == 200)
    stream.close()


def test_the_server_does_not_import_modules_of_verbs() -> None:
    look = "import sys, run; print([name for name, _ in run.VERBS.values() if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("verb", program.VERBS)
def test_each_verb_prints_its_usage(verb: str, tmp_path: Path) -> None:
    done = pilothouse(tmp_path, verb, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: run.py {verb}")


def test_the_start_logs_the_path_of_the_configuration(serve: Serve) -> None:
    server = serve(processes={"one": SLEEPER, "two": SLEEPER})
    (line,) = [line for line in server.log.read_text().splitlines() if " server: configuration: " in line]
    assert line.endswith("; processes: 2"), line
    assert ".yaml; " in line


def test_a_python_without_tornado_is_refused_with_the_one_to_use(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-E", str(ROOT / "run.py"), "check"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.endswith("use .venv/bin/python, which `make run` creates\n")
    assert len(done.stderr.splitlines()) == 1
