"""`run.py import-supervisord`: its output passes `check`, and every key is translated or listed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from conftest import run_verb

from models.config.loader import load
from models.supervision.process import LogMode, Restart
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
    assert f"{more}:5: [include]: left out (of an included file, as supervisord does)" in left_out


def test_programs_without_a_priority_come_last(file: Path) -> None:
    programs = yaml.safe_load(written(file)[0])["supervisor"]["processes"]
    assert [int(programs[name]["order"]) for name in ("web", "plain", "more")] == [0, 2, 1], "the group has 3"
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
    assert (web.directory, web.order, web.auto_start, web.umask) == (str(tmp_path), 0, False, 0o027)
    assert (web.restart, web.start_retries, web.start_seconds, web.stop_timeout) == (Restart.ALWAYS, 7, 3.0, 20.0)
    assert (web.stop_signal.name, web.stdout_logfile, web.redirect_stderr) == ("SIGQUIT", "/var/log/web_2.log", True)
    assert (web.log_max_bytes, web.log_backups) == (1024 * 1024, 2)
    assert web.environment == {"COMMON": "yes", "NAME": "main", "A": "1, 2", "PATH": "/home/me/bin", "B": "3"}
    plain = specs["plain"]
    assert (plain.auto_start, plain.restart, plain.start_retries) == (True, Restart.ON_FAILURE, 3)
    assert (plain.restart_limit, web.restart_limit) == (0, 0), "only failed starts are limited"
    assert (plain.start_seconds, plain.log_backups, plain.stderr_logfile) == (1.0, 10, "/var/log/plain.err")
    assert (plain.success_exit_codes, plain.log, plain.log_forward) == (("2",), LogMode.NONE, None)
    assert specs["more"].log is LogMode.CAPTURE
    assert specs["more"].command == ("echo", "${{", "x", "}}")
    assert config.supervisor.groups == {"all": ("web", "more")}
    assert (config.server.address, config.server.port) == (("0.0.0.0",), 9001)
    socket = config.server.unix_socket
    assert (socket.path, socket.mode, socket.group) == ("/run/supervisor.sock", "0660", "nogroup")
    assert config.supervisor.node_name == "lab"
    named = {line.split(": ")[1] for line in left_out}
    assert {"[eventlistener:mail]", "[fcgi-program:php]", "[rpcinterface:supervisor]"} <= named
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
            "stdout_logfile=NONE\nredirect_stderr=no\nstderr_logfile=/e\nstderr_logfile_maxbytes=1MB",
            {"stderr-logfile": "/e", "log": "none", "log-max-bytes": "1MB", "log-backups": 10},
            set(),
        ),
        (
            "stdout_logfile=/o\nstderr_logfile=/e\nstdout_logfile_maxbytes=1MB\nstderr_logfile_backups=2",
            {"stdout-logfile": "/o", "stderr-logfile": "/e", "log-max-bytes": "1MB", "log-backups": 10},
            {"stderr_logfile_maxbytes", "stderr_logfile_backups"},
        ),
        (
            "stdout_syslog=true\nstdout_logfile=/o\nredirect_stderr=true",
            {"stdout-logfile": "/o", "log-backups": 10, "log-forward": "syslog", "redirect-stderr": True},
            set(),
        ),
        (
            "stdout_logfile=/dev/stdout\nstdout_logfile_maxbytes=0\nstderr_logfile=/dev/stderr\nstderr_logfile_maxbytes=0",
            {"log": "inherit"},
            set(),
        ),
        ("stdout_logfile=/dev/fd/1\nredirect_stderr=true", {"log": "inherit", "redirect-stderr": True}, set()),
        ("stdout_logfile=/dev/stdout", {"log": "inherit"}, {"stderr_logfile"}),
        (
            "stdout_logfile=/o\nstderr_logfile=/dev/stderr",
            {"stdout-logfile": "/o", "log": "inherit", "log-backups": 10},
            set(),
        ),
        (
            "stdout_logfile=/dev/stdout\nstdout_logfile_maxbytes=0\nstderr_logfile=/e\nstderr_logfile_maxbytes=1MB",
            {"stderr-logfile": "/e", "log": "inherit", "log-max-bytes": "1MB", "log-backups": 10},
            set(),
        ),
        ("stderr_logfile_maxbytes=1MB", {"log": "capture"}, {"stderr_logfile_maxbytes"}),
    ],
)
def test_log_files_become_captured_and_forwarded_logs(
    tmp_path: Path, keys: str, expected: dict[str, object], named: set[str]
) -> None:
    (tmp_path / "s.conf").write_text(f"[program:web]\ncommand=cat\n{keys}\n")
    text, left_out = written(tmp_path / "s.conf")
    process = yaml.safe_load(text)["supervisor"]["processes"]["web"]
    assert {key: value for key, value in process.items() if "log" in key or key == "redirect-stderr"} == expected
    assert {line.split(": ")[1].rpartition(" ")[2] for line in left_out} == named


@pytest.mark.parametrize(
    ("keys", "commands"),
    [
        ("numprocs=1\ncommand=run", {"web": "run"}),
        ("numprocs=1\nprocess_name=%(program_name)s\ncommand=run", {"web": "run"}),
        ("numprocs=1\nprocess_name=%(program_name)s_%(process_num)02d\ncommand=run", {"web_00": "run"}),
        ("command=run %(process_num)d of %(numprocs)s", {"web": "run 0 of 1"}),
        ("numprocs_start=5\ncommand=run", {"web": "run"}),
        ("command=run\nstdout_logfile=/l/%(process_num)d\nenvironment=N='%(process_num)d'", {"web": "run"}),
    ],
)
def test_a_program_of_one_process_keeps_its_name(tmp_path: Path, keys: str, commands: dict[str, str]) -> None:
    (tmp_path / "s.conf").write_text(f"[program:web]\n{keys}\n")
    (tmp_path / "p.yaml").write_text(written(tmp_path / "s.conf")[0])
    specs = load(tmp_path / "p.yaml", {}).supervisor.processes
    assert {name: " ".join(spec.command) for name, spec in specs.items()} == commands


def test_variables_of_the_file_are_known_to_its_programs(tmp_path: Path) -> None:
    (tmp_path / "s.conf").write_text(
        "[program:web]\ncommand=%(ENV_ROOT)s/web %(ENV_OWN)s %(ENV_HOME)s\nenvironment=OWN='%(ENV_ROOT)s/own'\n"
        "stdout_logfile=%(ENV_ROOT)s/web.log\n[program:other]\ncommand=run\n[supervisord]\nenvironment=ROOT='/srv'\n"
    )
    (tmp_path / "p.yaml").write_text(written(tmp_path / "s.conf")[0])
    web = load(tmp_path / "p.yaml", {"HOME": "/home/me"}).supervisor.processes["web"]
    assert (web.command, web.stdout_logfile) == (("/srv/web", "/srv/own", "/home/me"), "/srv/web.log")
    assert web.environment == {"ROOT": "/srv", "OWN": "/srv/own"}


def test_patterns_of_included_files_are_expanded_and_one_without_a_file_is_named(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONF_FOLDER", str(file.parent / "conf.d"))
    file.write_text("[include]\nfiles = %(ENV_CONF_FOLDER)s/*.ini %(here)s/none/*.ini\n    %(ENV_UNSET_X)s/*.ini\n")
    text, left_out = written(file)
    assert list(yaml.safe_load(text)["supervisor"]["processes"]) == ["more"]
    assert left_out == [
        f"{file}:2: [include] files: left out (no file matches {file.parent}/none/*.ini)",
        f"{file}:2: [include] files: left out (no file matches %(ENV_UNSET_X)s/*.ini)",
    ]


def test_the_programs_of_a_group(tmp_path: Path) -> None:
    (tmp_path / "s.conf").write_text(
        "[program:web]\ncommand=run %(group_name)s\n[program:own]\ncommand=run %(group_name)s\n"
        "[fcgi-program:php]\ncommand=php\nsocket=tcp://localhost:9000\n"
        "[group:site]\nprograms=web, php,missing\n[group:none]\nprograms=php\n"
    )
    path = tmp_path / "s.conf"
    text, left_out = written(path)
    (tmp_path / "p.yaml").write_text(text)
    config = load(tmp_path / "p.yaml", {}).supervisor
    assert [spec.command[1] for spec in config.processes.values()] == ["site", "own"]
    assert config.groups == {"site": ("web",)}
    assert [line for line in left_out if "[group:" in line] == [
        f"{path}:9: [group:site] programs: left out (there is no [program:php])",
        f"{path}:9: [group:site] programs: left out (there is no [program:missing])",
        f"{path}:11: [group:none] programs: left out (there is no [program:php])",
    ]


@pytest.mark.parametrize(
    ("port", "address"),
    [("9001", "0.0.0.0"), (":9001", "0.0.0.0"), ("[::1]:9001", "::1"), ("localhost:9001", "localhost")],
)
def test_the_address_of_the_server(tmp_path: Path, port: str, address: str) -> None:
    (tmp_path / "s.conf").write_text(f"[inet_http_server]\nport={port}\n")
    text, left_out = written(tmp_path / "s.conf")
    server = yaml.safe_load(text)["server"]
    assert (server["address"], int(server["port"]), left_out) == (address, 9001, [])


def test_settings_that_have_a_part_without_a_counterpart_are_named(tmp_path: Path) -> None:
    (tmp_path / "s.conf").write_text(
        "[unix_http_server]\nfile=/run/s.sock\nchown=web:www\n[program:web]\ncommand=run\nexitcodes=2,3\n"
    )
    path = tmp_path / "s.conf"
    assert written(path)[1] == [
        f"{path}:3: [unix_http_server] chown: left out (the socket belongs to the user of the server)",
        f"{path}:6: [program:web] exitcodes: left out (0 always counts as a success)",
    ]


def test_replicas_with_one_log_file_have_a_file_each(tmp_path: Path) -> None:
    """Laravel's documentation has such a program."""
    (tmp_path / "s.conf").write_text(
        "[program:worker]\nprocess_name=%(program_name)s_%(process_num)02d\ncommand=php artisan work\nnumprocs=2\n"
        "stdout_logfile=/srv/app.com/worker.log\nstderr_logfile=/dev/stderr\n"
    )
    text, left_out = written(tmp_path / "s.conf")
    (tmp_path / "p.yaml").write_text(text)
    specs = load(tmp_path / "p.yaml", {}).supervisor.processes
    assert {name: (spec.stdout_logfile, spec.stderr_logfile) for name, spec in specs.items()} == {
        "worker_00": ("/srv/app.com/worker-0.log", None),
        "worker_01": ("/srv/app.com/worker-1.log", None),
    }
    assert left_out == [
        f"{tmp_path / 's.conf'}:5: [program:worker] stdout_logfile: changed to /srv/app.com/worker-${{{{ num }}}}.log"
        " (each replica has a file of its own)"
    ]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("[unix_http_server]\nusername=u\n", ["1: [unix_http_server]: left out (it has no file)"]),
        ("[program:a]\n\ncommand=a\nenvironment=A='b\n",
         ["4: [program:a] environment: left out (is not KEY=value,KEY=value)"]),
        ("[program:a]\ncommand=a\nenvironment=\n    A=1,\n    B=2\n; x\ncolour=red\n",
         ["7: [program:a] colour: left out (is not known)"]),
        ("[program:a]\ncommand=a\nautostart=maybe\n",
         ["1: check this: supervisor.processes.a.auto-start: 'maybe' is not true or false"]),
        ("[program:a]\ncommand=a\n[program:a.b]\ncommand=a\nstartretries=x\n",
         ["3: check this: supervisor.processes.a.b.start-retries: 'x' is not a whole number"]),
        ("[program:a] ; the [main] one\ncommand=a\nautostart=maybe\n",
         ["1: check this: supervisor.processes.a.auto-start: 'maybe' is not true or false"]),
        ("[supervisord]\n; \x0c\n  [program:a]\ncommand=a\ncolour=red\n",
         ["5: [program:a] colour: left out (is not known)"]),
        ("[program:a]\ncommand=a\nautorestart=maybe\n",
         ["1: check this: supervisor.processes.a.restart: 'maybe' is not one of never, on-failure, always"]),
    ],
)  # fmt: skip
def test_each_message_has_the_file_and_the_line(tmp_path: Path, text: str, lines: list[str]) -> None:
    path = tmp_path / "s.conf"
    path.write_text(text)
    assert [line.removeprefix(f"{path}:") for line in written(path)[1] if "username" not in line] == lines


DOCUMENTED = {
    "unix_http_server": {"file": "/run/s.sock", "chmod": "0770", "chown": "web:web", "username": "u", "password": "p"},
    "inet_http_server": {"port": "127.0.0.1:9001", "username": "u", "password": "p"},
    "supervisord": {
        "logfile": "/l", "logfile_maxbytes": "1MB", "logfile_backups": "1", "loglevel": "info", "pidfile": "/p",
        "umask": "022", "nodaemon": "false", "silent": "false", "minfds": "1024", "minprocs": "200",
        "nocleanup": "false", "childlogdir": "/tmp", "user": "web", "directory": "/", "strip_ansi": "false",
        "environment": "A=1", "identifier": "lab",
    },
    "supervisorctl": {
        "serverurl": "http://localhost:9001", "username": "u", "password": "p", "prompt": "s", "history_file": "/h",
    },
    "program:x": {
        "command": "serve", "process_name": "y_%(process_num)d", "numprocs": "2", "numprocs_start": "1",
        "priority": "5", "autostart": "false", "startsecs": "2", "startretries": "5", "autorestart": "true",
        "exitcodes": "0,2", "stopsignal": "QUIT", "stopwaitsecs": "3", "stopasgroup": "false", "killasgroup": "false",
        "user": "nobody",
        "redirect_stderr": "true", "stdout_logfile": "/o", "stdout_logfile_maxbytes": "1MB",
        "stdout_logfile_backups": "3", "stdout_capture_maxbytes": "1MB", "stdout_events_enabled": "false",
        "stdout_syslog": "true", "stderr_logfile": "/e", "stderr_logfile_maxbytes": "1MB",
        "stderr_logfile_backups": "3", "stderr_capture_maxbytes": "1MB", "stderr_events_enabled": "false",
        "stderr_syslog": "true", "environment": "A=1", "directory": "/", "umask": "022", "serverurl": "AUTO",
    },
    "include": {"files": "missing/*.ini"},
    "group:g": {"programs": "x", "priority": "1"},
    "fcgi-program:f": {"command": "run", "socket": "tcp://localhost:1", "socket_backlog": "1", "socket_owner": "web",
                       "socket_mode": "0700"},
    "eventlistener:e": {"command": "run", "buffer_size": "1", "events": "EVENT", "result_handler": "a:b"},
    "rpcinterface:r": {"supervisor.rpcinterface_factory": "a:b"},
}  # fmt: skip
"""Each key of "Configuration File" in the documentation of supervisord 4.3, with a value."""

MAPPED = {
    "unix_http_server": {"file", "chmod"},
    "inet_http_server": {"port"},
    "supervisord": {"umask", "directory", "environment", "identifier"},
    "program:x": {
        "command", "process_name", "numprocs", "numprocs_start", "priority", "autostart", "startsecs", "startretries",
        "autorestart", "exitcodes", "stopsignal", "stopwaitsecs", "user", "redirect_stderr", "stdout_logfile",
        "stdout_logfile_maxbytes", "stdout_logfile_backups", "stdout_syslog", "stderr_logfile", "stderr_syslog",
        "environment", "directory", "umask",
    },
    "group:g": {"programs", "priority"},
}  # fmt: skip
"""Those whose value the translation has; all others are named."""


def needed(section: str, key: str) -> dict[str, dict[str, str]]:
    """The sections without which a key of a section means nothing."""
    sections = {"program:x": {"command": "run", "process_name": "x_%(process_num)d"}}
    sections.setdefault(section, {})
    if section == "unix_http_server":
        sections[section] = {"file": "/run/other.sock"}
    elif section == "inet_http_server":
        sections[section] = {"port": "127.0.0.1:9002"}
    elif section == "group:g" and key == "priority":
        sections[section] = {"programs": "x"}
    return sections


def translated(path: Path, sections: dict[str, dict[str, str]]) -> tuple[str, list[str]]:
    path.write_text("".join(
        f"[{section}]\n" + "".join(f"{key}={value}\n" for key, value in keys.items())
        for section, keys in sections.items()
    ))  # fmt: skip
    text, left_out = written(path)
    return text.partition("# Made from s.conf, a configuration of supervisord.\n")[2], left_out


@pytest.mark.parametrize(("section", "key"), [(section, key) for section, keys in DOCUMENTED.items() for key in keys])
def test_every_documented_key_is_mapped_or_named(tmp_path: Path, section: str, key: str) -> None:
    sections = needed(section, key)
    before, before_named = translated(tmp_path / "s.conf", sections)
    sections[section] = {**sections[section], key: DOCUMENTED[section][key]}
    after, named = translated(tmp_path / "s.conf", sections)
    whole = section.partition(":")[0] in ("fcgi-program", "eventlistener", "rpcinterface")
    what = f"[{section}]:" if whole else f"[{section}] {key}:"
    if key in MAPPED.get(section, ()):
        assert yaml.safe_load(after) != yaml.safe_load(before)
        assert not any(what in line for line in named)
    else:
        assert any(what in line for line in named)
        assert all(f"# {line}\n" in f"{after}" for line in named)
    assert whole or not any(what in line for line in before_named if key not in needed(section, key)[section])


@pytest.mark.parametrize("key", ["stopasgroup", "killasgroup"])
def test_a_program_may_be_stopped_with_its_group(tmp_path: Path, key: str) -> None:
    assert translated(tmp_path / "s.conf", {"program:x": {"command": "run", key: "true"}})[1] == []


@pytest.mark.parametrize(
    ("value", "restart"),
    [
        ("true", Restart.ALWAYS),
        ("unexpected", Restart.ON_FAILURE),
        ("false", Restart.NEVER),
        ("always", Restart.ALWAYS),
    ],
)
def test_variables_of_the_environment_are_read_by_the_server(tmp_path: Path, value: str, restart: Restart) -> None:
    keys = {
        "command": "run", "autorestart": "%(ENV_RESTART)s", "numprocs": "%(ENV_COUNT)s", "autostart": "%(ENV_AUTO)s",
        "process_name": "%(program_name)s_%(process_num)02d", "startretries": "%(ENV_RETRIES)s",
        "exitcodes": "0,%(ENV_CODE)s",
    }  # fmt: skip
    (tmp_path / "p.yaml").write_text(translated(tmp_path / "s.conf", {"program:web": keys})[0])
    environment = {"RESTART": value, "COUNT": "2", "AUTO": "false", "RETRIES": "4", "CODE": "7"}
    specs = load(tmp_path / "p.yaml", environment).supervisor.processes
    assert list(specs) == ["web_00", "web_01"]
    web = specs["web_01"]
    assert (web.restart, web.auto_start, web.start_retries) == (restart, False, 4)
    assert web.success_exit_codes == ("7",)


@pytest.mark.parametrize(
    ("priorities", "groups", "orders"),
    [
        ({"a": "2", "b": "1"}, {}, {"a": 2, "b": 1}),
        ({"a": "2", "b": ""}, {"g": ("a,b", "")}, {"a": 2, "b": 999}),
        ({"a": "", "b": "", "c": ""}, {"g": ("b,c", "5")}, {"a": 999, "b": 5, "c": 5}),
        ({"a": "1", "b": "2", "c": "50"}, {"g": ("a,b", "60")}, {"a": 1, "b": 2, "c": 0}),
    ],
)
def test_the_priority_of_a_group_comes_before_that_of_its_programs(
    tmp_path: Path, priorities: dict[str, str], groups: dict[str, tuple[str, str]], orders: dict[str, int]
) -> None:
    sections = {
        f"program:{name}": {"command": "run", **({"priority": own} if own else {})} for name, own in priorities.items()
    }
    for name, (programs, priority) in groups.items():
        sections[f"group:{name}"] = {"programs": programs, **({"priority": priority} if priority else {})}
    text, left_out = translated(tmp_path / "s.conf", sections)
    processes = yaml.safe_load(text)["supervisor"]["processes"]
    assert ({name: int(process["order"]) for name, process in processes.items()}, left_out) == (orders, [])


def imported(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_verb("import-supervisord", *arguments, folder=folder)


def test_exit_codes(tmp_path: Path, file: Path) -> None:
    (tmp_path / "simple.conf").write_text("[program:web]\ncommand=cat\n")
    done = imported(tmp_path, "simple.conf", "-o", "pilothouse.yaml")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert yaml.safe_load((tmp_path / "pilothouse.yaml").read_text())["supervisor"]["processes"]["web"] == {
        "command": "cat", "auto-start": True, "start-seconds": 1, "restart": "on-failure", "restart-limit": 0,
        "start-retries": 3, "log": "capture",
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
    (tmp_path / "template.conf").write_text("[program:web]\n{% if x %}\n")
    for arguments, message in (
        (["missing.conf"], "missing.conf: No such file or directory\n"),
        (["simple.conf", "-o", "missing/out.yaml"], "missing/out.yaml: No such file or directory\n"),
        (["template.conf"], "template.conf:2: key=value is expected, not '{% if x %}\\n'\n"),
        (["pilothouse.yaml"], "pilothouse.yaml:2: a section such as [program:web] is expected\n"),
    ):
        assert imported(tmp_path, *arguments).stderr == message
