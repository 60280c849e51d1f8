"""`run.py import-supervisord`: its output passes `check`, and every key is translated or listed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, TIMEOUT_SECONDS

from models.config.loader import load
from models.supervision.process import LogMode, Restart
from supervisor.cli import import_supervisord
from supervisor.cli.import_supervisord import written

MAIN = """
[unix_http_server]
file=/run/supervisor.sock   ; the path to the socket file
chmod=0770                  ; socket file mode
chown=nobody:nogroup
username=user
password=wr0ng-s3cret
[inet_http_server]
port=*:9001
[supervisord]
logfile=/tmp/supervisord.log
nodaemon=false
minfds=1024
identifier=lab
umask=027
environment=COMMON="yes",NAME='main'
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix:///tmp/supervisor.sock
[include]
files = conf.d/*.ini
[program:web]
command=/usr/bin/web --port 80%(process_num)02d --name %(program_name)s --rate 5%%
process_name=%(program_name)s_%(process_num)02d
numprocs=2
numprocs_start=1
directory=%(here)s
priority=5
autostart=false
autorestart=true
startsecs=3
startretries=7
stopsignal=QUIT
stopwaitsecs=20
stopasgroup=true
killasgroup=true
stdout_logfile=/var/log/%(program_name)s_%(process_num)d.log
stdout_logfile_maxbytes=1MB
stdout_logfile_backups=2
redirect_stderr=true
environment=A="1, 2",PATH="%(ENV_HOME)s/bin",B=3
[program:plain]
command=/bin/cat
exitcodes=0,2
stdout_logfile=NONE
stderr_logfile=/var/log/plain.err
stdout_events_enabled=true
[eventlistener:mail]
command=/bin/listener
events=PROCESS_STATE
[fcgi-program:php]
command=/bin/php
socket=unix:///x
[group:all]
programs=web,more
priority=3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "more.ini").write_text("[program:more]\ncommand=echo ${{ x }} ; a comment\n")
    path = tmp_path / "supervisord.conf"
    path.write_text(MAIN)
    return path


def test_an_included_file_is_read_as_supervisord_reads_it(file: Path) -> None:
    """Its `%(here)s` is its own folder, its sections add to those of the same name, and its `include` is ignored."""
    more = file.parent / "conf.d" / "more.ini"
    more.write_text(
        "[program:more]\ncommand=%(here)s/run\n[program:plain]\ndirectory=%(here)s\n[include]\nfiles=*.ini\n"
    )
    text, left_out = written(file)
    programs = yaml.safe_load(text)["supervisor"]["processes"]
    assert programs["more"]["command"] == f"{more.parent}/run"
    assert (programs["plain"]["command"], programs["plain"]["directory"]) == ("/bin/cat", str(more.parent))
    assert f"[include]: left out (of the included file {more}, as supervisord does)" in left_out


def test_programs_without_a_priority_come_last(file: Path) -> None:
    programs = yaml.safe_load(written(file)[0])["supervisor"]["processes"]
    assert [int(programs[name]["order"]) for name in ("web", "plain", "more")] == [5, 999, 999]
    file.write_text("[program:plain]\ncommand=/bin/cat\n")
    assert "order" not in written(file)[0]


def test_a_configuration_is_translated(file: Path, tmp_path: Path) -> None:
    text, left_out = written(file)
    (tmp_path / "pilothouse.yaml").write_text(text)
    config = load(tmp_path / "pilothouse.yaml", {"HOME": "/home/me"})
    specs = config.supervisor.processes
    assert list(specs) == ["web_01", "web_02", "plain", "more"]
    web = specs["web_02"]
    assert web.command == ("/usr/bin/web", "--port", "8002", "--name", "web", "--rate", "5%")
    assert (web.directory, web.order, web.auto_start, web.umask) == (str(tmp_path), 5, False, 0o027)
    assert (web.restart, web.restart_limit, web.start_seconds, web.stop_timeout) == (Restart.ALWAYS, 7, 3.0, 20.0)
    assert (web.stop_signal.name, web.stdout_logfile, web.redirect_stderr) == ("SIGQUIT", "/var/log/web_2.log", True)
    assert (web.log_max_bytes, web.log_backups) == (1024 * 1024, 2)
    assert web.environment == {"COMMON": "yes", "NAME": "main", "A": "1, 2", "PATH": "/home/me/bin", "B": "3"}
    plain = specs["plain"]
    assert (plain.auto_start, plain.restart, plain.restart_limit) == (True, Restart.ON_FAILURE, 3)
    assert (plain.start_seconds, plain.log_backups, plain.stderr_logfile) == (1.0, 10, "/var/log/plain.err")
    assert (plain.success_exit_codes, plain.log, plain.log_forward) == (("2",), LogMode.NONE, None)
    assert specs["more"].log is LogMode.CAPTURE
    assert specs["more"].command == ("echo", "${{", "x", "}}")
    assert config.supervisor.groups == {"all": ("web", "more")}
    assert (config.server.address, config.server.port) == (("0.0.0.0",), 9001)
    socket = config.server.unix_socket
    assert (socket.path, socket.mode, socket.group) == ("/run/supervisor.sock", "0660", "nogroup")
    assert config.supervisor.node_name == "lab"
    named = {line.partition(": ")[0] for line in left_out}
    assert {"[eventlistener:mail]", "[fcgi-program:php]", "[group:all] priority"} <= named
    assert {"[unix_http_server] username", "[unix_http_server] password"} <= named
    assert "[program:plain] stdout_events_enabled" in named
    assert "wr0ng-s3cret" not in text, "a password"
    assert all(f"# {line}\n" in text for line in left_out)


@pytest.mark.parametrize(
    ("keys", "expected", "named"),
    [
        ("", {"log": "capture"}, set()),
        ("stdout_logfile=NONE\nstderr_logfile=none", {"log": "none"}, set()),
        ("stdout_logfile=NONE", {"log": "capture"}, {"stdout_logfile"}),
        (
            "stdout_logfile=/o\nstderr_logfile=/e",
            {"stdout-logfile": "/o", "stderr-logfile": "/e", "log-backups": 10},
            set(),
        ),
        ("stdout_logfile=NONE\nredirect_stderr=true", {"log": "none", "redirect-stderr": True}, set()),
        ("stdout_syslog=true\nstderr_syslog=true", {"log": "capture", "log-forward": "syslog"}, set()),
        (
            "stdout_logfile=syslog\nredirect_stderr=1",
            {"log": "capture", "log-forward": "syslog", "redirect-stderr": True},
            set(),
        ),
        ("stdout_syslog=true", {"log": "capture", "log-forward": "syslog"}, {"stderr_syslog"}),
        (
            "stdout_syslog=true\nstdout_logfile=/o\nredirect_stderr=true",
            {"stdout-logfile": "/o", "log-backups": 10, "log-forward": "syslog", "redirect-stderr": True},
            set(),
        ),
    ],
)
def test_log_files_become_captured_and_forwarded_logs(
    tmp_path: Path, keys: str, expected: dict[str, object], named: set[str]
) -> None:
    (tmp_path / "s.conf").write_text(f"[program:web]\ncommand=cat\n{keys}\n")
    text, left_out = written(tmp_path / "s.conf")
    process = yaml.safe_load(text)["supervisor"]["processes"]["web"]
    assert {key: value for key, value in process.items() if "log" in key or key == "redirect-stderr"} == expected
    assert {line.partition(": ")[0].rpartition(" ")[2] for line in left_out} == named


PROGRAM_KEYS = [
    "command", "process_name", "numprocs", "numprocs_start", "priority", "autostart", "startsecs", "startretries",
    "autorestart", "exitcodes", "stopsignal", "stopwaitsecs", "stopasgroup", "killasgroup", "user", "redirect_stderr",
    "stdout_logfile", "stdout_logfile_maxbytes", "stdout_logfile_backups", "stdout_capture_maxbytes",
    "stdout_events_enabled", "stdout_syslog", "stderr_logfile", "stderr_logfile_maxbytes", "stderr_logfile_backups",
    "stderr_capture_maxbytes", "stderr_events_enabled", "stderr_syslog", "environment", "directory", "umask",
    "serverurl",
]  # fmt: skip


@pytest.mark.parametrize("key", PROGRAM_KEYS)
def test_every_documented_key_of_a_program_is_known(key: str) -> None:
    module = import_supervisord
    known = (module._SAME.keys(), module._SPECIAL, module._ALWAYS_SO, module._LEFT_OUT.keys())
    assert sum(key in names for names in known) == 1


def imported(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "run.py"), "import-supervisord", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)


def test_exit_codes(tmp_path: Path, file: Path) -> None:
    (tmp_path / "simple.conf").write_text("[program:web]\ncommand=cat\n")
    done = imported(tmp_path, "simple.conf", "-o", "pilothouse.yaml")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert yaml.safe_load((tmp_path / "pilothouse.yaml").read_text())["supervisor"]["processes"]["web"] == {
        "command": "cat", "auto-start": True, "start-seconds": 1, "restart": "on-failure", "restart-limit": 3,
        "log": "capture",
    }  # fmt: skip
    lossy = imported(tmp_path, "supervisord.conf")
    assert lossy.returncode == 3
    assert "[eventlistener:mail]: left out" in lossy.stderr
    assert "[eventlistener:mail]: left out" in lossy.stdout
    for content in (None, "no section\n", "\xff"):
        broken = tmp_path / "broken.conf"
        if content is not None:
            broken.write_bytes(content.encode("latin-1"))
        failed = imported(tmp_path, "broken.conf")
        assert (failed.returncode, failed.stdout) == (2, "")
        assert failed.stderr.startswith(("broken.conf: ", "broken.conf:1: ")), failed
    for arguments, message in (
        (["missing.conf"], "missing.conf: No such file or directory\n"),
        (["simple.conf", "-o", "missing/out.yaml"], "missing/out.yaml: No such file or directory\n"),
        (["pilothouse.yaml"], "pilothouse.yaml:2: a section such as [program:web] is expected\n"),
    ):
        assert imported(tmp_path, *arguments).stderr == message
