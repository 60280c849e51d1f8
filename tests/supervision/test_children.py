"""The environment of a child, and the handling of its orphans."""

from __future__ import annotations

import json
import os
import pwd
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import changed_constants
import pytest
from conftest import Serve, Server, is_alive, python_command, tags_by_pid, wait_for
from requirements import NAMESPACES, ROOT_USER, require

RunReporter = Callable[..., dict[str, Any]]

NO_CGROUPS = ["unshare", "--mount", "sh", "-c", 'umount --all --types cgroup2 && exec "$@"', "sh"]

REPORT = """
import json, os, resource, sys
umask = os.umask(0)
json.dump({
    "argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ), "umask": umask, "nice": os.nice(0),
    "uid": os.getresuid(), "gid": os.getresgid(), "groups": os.getgroups(), "pid": os.getpid(),
    "sid": os.getsid(0), "pgid": os.getpgrp(), "stdin": sys.stdin.read(),
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")),
    "nofile": resource.getrlimit(resource.RLIMIT_NOFILE), "core": resource.getrlimit(resource.RLIMIT_CORE),
    "blocked": [int(number) for number in __import__("signal").pthread_sigmask(0, [])],
}, sys.stdout)
"""


def logged_values(server: Server, name: str, log: Path) -> dict[str, Any]:
    """The report of a child that runs REPORT."""
    assert server.do("start", name).status == 200
    server.until(name, "finished")
    return dict(json.loads(log.read_text()))


@pytest.fixture
def run_reporter(serve: Serve, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def report(environ: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
        log = tmp_path / "report"
        key = {name.replace("_", "-"): value for name, value in spec.items()}
        server = serve(
            {"reporter": {"command": python_command(REPORT), "stdout-logfile": str(log), **key}}, environ=environ
        )
        seen = logged_values(server, "reporter", log)
        seen["server"] = server
        return seen

    return report


def test_child_leads_its_own_session_without_stdin_or_inherited_descriptors(run_reporter: RunReporter) -> None:
    seen = run_reporter()
    assert seen["sid"] == seen["pgid"] == seen["pid"] == seen["server"].events("reporter")[-1]["pid"]
    assert seen["stdin"] == ""
    assert seen["fds"][:3] == [0, 1, 2]
    assert len(seen["fds"]) == 4  # the fourth belongs to os.listdir
    assert seen["blocked"] == []


WITH_SIGNALS_BLOCKED_AND_IGNORED = """
import os, signal, sys
for number in (signal.SIGQUIT, signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR2])
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.parametrize(
    "command",
    [None, [sys.executable, "-c", WITH_SIGNALS_BLOCKED_AND_IGNORED]],
    ids=["default signals", "signals blocked and ignored"],
)
def test_child_has_no_blocked_or_ignored_signals(serve: Serve, tmp_path: Path, command: list[str] | None) -> None:
    log = tmp_path / "result"
    plain = {"command": "grep -E Sig(Blk|Ign) /proc/self/status", "stdout-logfile": str(log)}
    server = serve({"plain": plain}, command=command)
    server.do("start", "plain")
    server.until("plain", "finished")
    libc_signals = 0b11 << 31  # 32 and 33 belong to the C library; the server may have inherited them ignored
    assert {int(line.split()[1], 16) & ~libc_signals for line in log.read_text().splitlines()} == {0}


def test_child_inherits_the_environment_without_server_properties_and_has_its_tag(run_reporter: RunReporter) -> None:
    environ = {
        "SERVER_PORT": "0", "SVC_SECURITY_API_KEY": "secret", "TRACKER_SECURITY_ADMIN_PASSWORD": "secret-2",
        "SERVICE_PORT": "7", "GREETING": "inherited", "OTHER": "inherited",
    }  # fmt: skip
    seen = run_reporter(
        environ, environment={"GREETING": "hello", "PERCENT": "100%s", "EMPTY": "", "PILOTHOUSE_CHILD": "forged"}
    )
    env = seen["env"]
    assert "secret" not in json.dumps(env)
    assert "SERVER_PORT" not in env
    assert {name: env[name] for name in ("SERVICE_PORT", "GREETING", "OTHER", "PERCENT", "EMPTY")} == {
        "SERVICE_PORT": "7", "GREETING": "hello", "OTHER": "inherited", "PERCENT": "100%s", "EMPTY": "",
    }  # fmt: skip
    assert env["PATH"] == os.environ["PATH"]
    assert env["PILOTHOUSE_CHILD"].split(":")[1:] == ["1", "reporter"]


def test_child_gets_its_arguments_directory_umask_nice_and_limits(run_reporter: RunReporter, tmp_path: Path) -> None:
    limits = {"nofile": {"soft": 100, "hard": 200}, "core": 0}
    args = ["two words", "%s", "$HOME", "*", "", "ü"]
    seen = run_reporter(args=args, directory=str(tmp_path), umask="027", nice=7, limits=limits)
    assert seen["argv"] == args
    assert seen["cwd"] == str(tmp_path)
    assert seen["umask"] == 0o027
    assert seen["nice"] == 7
    assert seen["nofile"] == [100, 200]
    assert seen["core"] == [0, 0]
    assert seen["sid"] == seen["pgid"] == seen["pid"]
    assert seen["stdin"] == ""


def test_unset_limits_nice_and_directory_are_inherited_from_the_server(run_reporter: RunReporter) -> None:
    seen = run_reporter()
    assert seen["nofile"] == list(resource.getrlimit(resource.RLIMIT_NOFILE))
    assert seen["nice"] == os.nice(0)
    assert seen["cwd"] == str(seen["server"].folder)


def test_nice_value_is_set_before_the_command_runs(serve: Serve, tmp_path: Path) -> None:
    log = tmp_path / "report"
    server = serve({"quick": {"command": "nice", "nice": 7, "stdout-logfile": str(log)}})
    for _ in range(40):
        server.do("start", "quick")
        server.until("quick", "finished")
    assert log.read_text().split() == ["7"] * 40


@pytest.mark.needs(ROOT_USER)
@pytest.mark.parametrize(
    ("wanted", "uid", "gid"),
    [
        ({"user": "nobody"}, "nobody", "nobody's"),
        ({"user": "nobody", "group": "0"}, "nobody", 0),
        ({"user": "nobody", "limits": {"core": 0}, "nice": 3, "umask": "077"}, "nobody", "nobody's"),
        ({"group": "12345"}, 0, 12345),
        ({"user": "0"}, 0, 0),
    ],
)
def test_child_runs_as_the_configured_user_and_group(
    serve: Serve, tmp_path: Path, wanted: dict[str, Any], uid: str | int, gid: str | int
) -> None:
    no_account = pwd.getpwnam("nobody")
    user, group = (no_account.pw_uid if uid == "nobody" else uid), (no_account.pw_gid if gid == "nobody's" else gid)
    log = tmp_path / "report"
    report = "grep -E '^([UG]id|Groups):' /proc/self/status; echo $USER $LOGNAME $HOME; umask; nice; ulimit -c"
    server = serve({"as": {"command": ["sh", "-c", report], "directory": "/", "stdout-logfile": str(log), **wanted}})
    assert server.do("start", "as").status == 200
    server.until("as", "finished")
    uids, gids, groups, account, *more = (line.split() for line in log.read_text().splitlines())
    assert uids[1:] == [str(user)] * 4
    assert gids[1:] == [str(group)] * 4
    if uid == "nobody":
        assert account == ["nobody", "nobody", no_account.pw_dir]
        assert set(groups[1:]) <= {str(group), str(no_account.pw_gid)}
    if "umask" in wanted:
        assert more == [["0077"], ["3"], ["0"]]


@pytest.mark.needs(ROOT_USER)
def test_process_of_another_user_runs_without_cap_sys_ptrace(serve: Serve) -> None:
    """As in most containers: the server is root, without CAP_SYS_PTRACE."""
    without_ptrace = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
    server = serve({"other": {"command": "sleep 1000", "user": "nobody"}}, command=without_ptrace)
    assert server.do("start", "other").status == 200
    assert server.status("other") == "running"
    assert server.do("stop", "other").status == 200


def test_output_goes_to_the_configured_files(serve: Serve, tmp_path: Path) -> None:
    both = ["sh", "-c", "echo out; echo err >&2"]
    server = serve({
        "apart": {"command": both, "stdout-logfile": str(tmp_path / "out"), "stderr-logfile": str(tmp_path / "err")},
        "merged": {"command": both, "stdout-logfile": str(tmp_path / "both"), "redirect-stderr": True},
        "half": {"command": both, "stderr-logfile": str(tmp_path / "half")},
    })  # fmt: skip
    for _ in range(2):  # the second start appends
        for name in ("apart", "merged", "half"):
            server.do("start", name)
            server.until(name, "finished")
    assert (tmp_path / "out").read_text() == "out\n" * 2
    assert (tmp_path / "err").read_text() == "err\n" * 2
    assert (tmp_path / "both").read_text() == "out\nerr\n" * 2
    assert (tmp_path / "half").read_text() == "err\n" * 2
    assert server.info("merged")["stderrLogfile"] is None
    assert server.info("half")["stdoutLogfile"] is None


def test_child_that_closes_its_output_costs_no_cpu_time(serve: Serve) -> None:
    code = "import os, time\nfor fd in (0, 1, 2): os.close(fd)\ntime.sleep(1000)"
    server = serve({"closed": {"command": python_command(code)}})
    server.do("start", "closed")
    wait_for(lambda: not os.listdir(f"/proc/{server.info('closed')['pid']}/fd"))
    before, begun = ticks(server.pid), time.monotonic()
    while time.monotonic() < begun + 1:
        server.info("closed")
        time.sleep(0.2)
    assert ticks(server.pid) - before < 0.5 * os.sysconf("SC_CLK_TCK")
    assert server.status("closed") == "running"


def ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


# Orphans

DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
        time.sleep(1000)
    os._exit(0)
os.wait()
while not (os.path.exists(sys.argv[1]) and os.path.getsize(sys.argv[1])):
    time.sleep(0.001)
"""
MEMBER = """
import os, signal, sys, time
def finish(*_):
    time.sleep(float(sys.argv[2]))
    open(sys.argv[1] + ".done", "w").close()
    os._exit(0)
if os.fork() == 0:
    signal.signal(signal.SIGTERM, finish)
    open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
    while True:
        time.sleep(1000)
while not (os.path.exists(sys.argv[1]) and os.path.getsize(sys.argv[1])):
    time.sleep(0.001)
"""


@pytest.fixture(params=["with control groups, if any", "without control groups"])
def serve_cgroups(request: pytest.FixtureRequest, serve: Serve) -> Serve:
    """`serve` with and without a cgroup v2 tree: orphans are found in both cases."""
    if request.param.startswith("without"):
        require(NAMESPACES)
        return lambda *given, **more: serve(*given, command=NO_CGROUPS, **more)
    return serve


def pids(file: Path) -> list[int]:
    return [int(line) for line in wait_for(file.read_text).split()]


def test_stop_ends_a_daemon_of_the_process(serve_cgroups: Serve, tmp_path: Path) -> None:
    file = tmp_path / "daemon"
    server = serve_cgroups({"forker": {"command": python_command(DAEMON + "time.sleep(1000)"), "args": [str(file)]}})
    server.do("start", "forker")
    wait_for(file.exists)
    (daemon,) = pids(file)
    assert is_alive(daemon)
    assert os.getsid(daemon) != server.info("forker")["pid"]
    assert server.do("stop", "forker").status == 200
    assert not is_alive(daemon)


@pytest.mark.parametrize("restart", [{}, {"restart": "always", "restart-delay": 0, "restart-limit": 3}])
def test_daemon_is_ended_after_an_unrequested_exit_of_its_parent(
    serve_cgroups: Serve, tmp_path: Path, restart: dict[str, Any]
) -> None:
    file = tmp_path / "daemon"
    server = serve_cgroups(
        {"forker": {"command": python_command(DAEMON + "sys.exit(1)"), "args": [str(file)], **restart}}
    )
    server.do("start", "forker")
    starts = 4 if restart else 1
    wait_for(lambda: server.new_statuses("forker").count("failed") == starts)
    wait_for(lambda: not any(is_alive(pid) for pid in pids(file)))
    assert 1 <= len(pids(file)) <= starts  # a daemon may be killed before it writes its pid


HIDDEN = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    os.execve(sys.executable, [sys.executable, "-c",
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print(os.getpid(), file=open('hidden', 'a'), flush=True); time.sleep(1000)"], {})
"""
"""A daemon that ignores SIGTERM, leaves the session and clears its environment; its parent continues."""


def test_stop_ends_a_daemon_that_cleared_its_environment(serve_cgroups: Serve) -> None:
    server = serve_cgroups(
        {"forker": {"command": python_command(HIDDEN + "time.sleep(1000)"), "stop-timeout": "300ms"}}
    )
    server.do("start", "forker")
    file = server.folder / "hidden"
    wait_for(lambda: file.exists() and file.read_text())
    (daemon,) = pids(file)
    assert server.do("stop", "forker").status == 200
    assert not is_alive(daemon)


@pytest.mark.parametrize("ends_first", [True, False])
def test_server_stop_ends_all_daemons(serve_cgroups: Serve, ends_first: bool) -> None:
    """Also if the process has just exited and the server is ending its daemon."""
    wait = "while not os.path.exists('hidden'): time.sleep(0.01)\n"
    code = HIDDEN + (wait if ends_first else "time.sleep(1000)")
    server = serve_cgroups({"forker": {"command": python_command(code), "stop-timeout": "1s"}})
    server.do("start", "forker")
    file = server.folder / "hidden"
    wait_for(lambda: file.exists() and file.read_text())
    (daemon,) = pids(file)
    assert server.stop() == 0
    assert not is_alive(daemon)


def test_process_that_daemonizes_is_reported_with_the_reason(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "daemon"
    server = serve({"forker": {"command": python_command(DAEMON + "sys.exit(0)"), "args": [str(file)]}})
    server.do("start", "forker")
    server.until("forker", "finished")
    wait_for(lambda: "run in the foreground" in (server.info("forker")["failedErrorLog"] or ""))
    assert "forker: it exited while processes that it had started were running" in server.log.read_text()
    assert "run in the foreground" in server.get("/processes/forker").text


def test_daemon_that_ignores_sigterm_is_killed_after_the_stop_timeout(serve_cgroups: Serve, tmp_path: Path) -> None:
    file = tmp_path / "daemon"
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + DAEMON + "time.sleep(1000)"
    server = serve_cgroups({"forker": {"command": python_command(code), "args": [str(file)], "stop-timeout": "300ms"}})
    server.do("start", "forker")
    wait_for(file.exists)
    (daemon,) = pids(file)
    requested = time.monotonic()
    assert server.do("stop", "forker").status == 200
    assert not is_alive(daemon)
    assert time.monotonic() - requested >= 0.3


def test_stop_waits_for_group_members_that_handle_sigterm(serve_cgroups: Serve, tmp_path: Path) -> None:
    file = tmp_path / "member"
    server = serve_cgroups(
        {"leader": {"command": python_command(MEMBER + "time.sleep(1000)"), "args": [str(file), "0.5"]}}
    )
    server.do("start", "leader")
    wait_for(file.exists)
    (member,) = pids(file)
    requested = time.monotonic()
    assert server.do("stop", "leader").status == 200
    assert time.monotonic() - requested >= 0.5
    assert not is_alive(member)
    assert (tmp_path / "member.done").exists()
    assert server.status("leader") == "stopped"


def test_group_members_are_killed_after_the_stop_timeout(serve_cgroups: Serve, tmp_path: Path) -> None:
    file = tmp_path / "member"
    command = python_command(MEMBER + "time.sleep(1000)")
    server = serve_cgroups({"leader": {"command": command, "args": [str(file), "100"], "stop-timeout": "400ms"}})
    server.do("start", "leader")
    wait_for(file.exists)
    (member,) = pids(file)
    requested = time.monotonic()
    assert server.do("stop", "leader").status == 200
    assert time.monotonic() - requested >= 0.4
    assert not is_alive(member)
    assert not (tmp_path / "member.done").exists()
    assert server.status("leader") == "stopped"  # not aborted: only the remaining member had to be killed


def test_group_members_of_an_exited_child_are_ended_before_its_restart(serve_cgroups: Serve, tmp_path: Path) -> None:
    file = tmp_path / "member"
    code = MEMBER + "print(os.path.exists(sys.argv[1] + '.done'), flush=True)\n"
    server = serve_cgroups({
        "leader": {
            "command": python_command(f"import os, sys\nfirst = not os.path.exists(sys.argv[1])\nif not first:\n"
                              f"    print(os.path.exists(sys.argv[1] + '.done'))\n    sys.exit(0)\n{code}sys.exit(1)"),
            "args": [str(file), "0.3"], "restart": "on-failure", "restart-delay": 0,
            "stdout-logfile": str(tmp_path / "out"),
        },
    })  # fmt: skip
    server.do("start", "leader")
    server.until("leader", "finished")
    assert (tmp_path / "out").read_text().split() == ["False", "True"]
    assert not any(is_alive(pid) for pid in pids(file))


def test_stop_does_not_end_daemons_of_other_processes(serve_cgroups: Serve, tmp_path: Path) -> None:
    names = ("one", "two")
    server = serve_cgroups({
        name: {"command": python_command(DAEMON + "time.sleep(1000)"), "args": [str(tmp_path / name)]} for name in names
    })  # fmt: skip
    assert server.post("/api/v1/processes/group/start").status == 200
    for name in names:
        wait_for((tmp_path / name).exists)
    (one,), (two,) = (pids(tmp_path / name) for name in names)
    server.do("stop", "one")
    assert (is_alive(one), is_alive(two)) == (False, True)
    assert (
        sorted(tag.split(":")[2] for pid, tag in tags_by_pid().items() if pid in (two, server.info("two")["pid"]))
        == ["two"] * 2
    )
    server.do("stop", "two")
    assert not is_alive(two)


def test_orphans_leave_no_zombies(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    code = f"""
import os, time
if os.fork() == 0:
    pids = [os.fork() or os._exit(0) for _ in range(20)]
    with open("{file}.new", "w") as file:
        print(*pids, file=file)
    os.rename("{file}.new", "{file}")
    os._exit(0)
time.sleep(1000)
"""
    quickly = changed_constants.server_command(supervisor__maintenance__INTERVAL_SECONDS=0.1)
    server = serve({"breeder": {"command": python_command(code)}}, command=quickly)
    server.do("start", "breeder")
    wait_for(file.exists)
    zombies = [Path("/proc", pid) for pid in file.read_text().split()]
    assert len(zombies) == 20
    wait_for(lambda: not any(path.exists() for path in zombies))
