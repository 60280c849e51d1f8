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

import pytest
from conftest import Serve, Server, is_alive, python_command, tags_by_pid, wait_for
from requirements import NAMESPACES, ROOT_USER, require

Teller = Callable[..., dict[str, Any]]

IS_ROOT = os.geteuid() == 0
NO_CGROUPS = ["unshare", "--mount", "sh", "-c", 'umount --all --types cgroup2 && exec "$@"', "sh"]

TELL = """
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
    """What a child that runs TELL saw of itself."""
    assert server.do("start", name).status == 200
    server.until(name, "finished")
    return dict(json.loads(log.read_text()))


@pytest.fixture
def teller(serve: Serve, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def report_of(environ: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
        log = tmp_path / "told"
        key = {name.replace("_", "-"): value for name, value in spec.items()}
        server = serve(
            {"teller": {"command": python_command(TELL), "stdout-logfile": str(log), **key}}, environ=environ
        )
        saw = logged_values(server, "teller", log)
        saw["server"] = server
        return saw

    return report_of


def test_a_child_is_alone_in_its_session_without_input_or_our_descriptors(teller: Teller) -> None:
    saw = teller()
    assert saw["sid"] == saw["pgid"] == saw["pid"] == saw["server"].events("teller")[-1]["pid"]
    assert saw["stdin"] == ""
    assert saw["fds"][:3] == [0, 1, 2]
    assert len(saw["fds"]) == 4  # the fourth is the listing's own
    assert saw["blocked"] == []


DEAF = """
import os, signal, sys
for number in (signal.SIGQUIT, signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR2])
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.parametrize("command", [None, [sys.executable, "-c", DEAF]], ids=["as we are", "by one who is deaf"])
def test_no_signal_is_blocked_or_ignored_for_it(serve: Serve, tmp_path: Path, command: list[str] | None) -> None:
    log = tmp_path / "result"
    plain = {"command": "grep -E Sig(Blk|Ign) /proc/self/status", "stdout-logfile": str(log)}
    server = serve({"plain": plain}, command=command)
    server.do("start", "plain")
    server.until("plain", "finished")
    its_own = 0b11 << 31  # 32 and 33 are the C library's; whoever started us may have left them ignored
    assert {int(line.split()[1], 16) & ~its_own for line in log.read_text().splitlines()} == {0}


def test_it_inherits_our_environment_less_our_properties_and_bears_its_mark(teller: Teller) -> None:
    environ = {
        "SERVER_PORT": "0", "SVC_SECURITY_API_KEY": "secret", "TRACKER_SECURITY_ADMIN_PASSWORD": "secret-2",
        "SERVICE_PORT": "7", "GREETING": "inherited", "OTHER": "inherited",
    }  # fmt: skip
    saw = teller(
        environ, environment={"GREETING": "hello", "PERCENT": "100%s", "EMPTY": "", "PILOTHOUSE_CHILD": "forged"}
    )
    env = saw["env"]
    assert "secret" not in json.dumps(env)
    assert "SERVER_PORT" not in env
    assert {name: env[name] for name in ("SERVICE_PORT", "GREETING", "OTHER", "PERCENT", "EMPTY")} == {
        "SERVICE_PORT": "7", "GREETING": "hello", "OTHER": "inherited", "PERCENT": "100%s", "EMPTY": "",
    }  # fmt: skip
    assert env["PATH"] == os.environ["PATH"]
    assert env["PILOTHOUSE_CHILD"].split(":")[1:] == ["1", "teller"]


def test_it_gets_its_arguments_folder_mask_niceness_and_limits(teller: Teller, tmp_path: Path) -> None:
    limits = {"nofile": {"soft": 100, "hard": 200}, "core": 0}
    args = ["two words", "%s", "$HOME", "*", "", "ü"]
    saw = teller(args=args, directory=str(tmp_path), umask="027", nice=7, limits=limits)
    assert saw["argv"] == args
    assert saw["cwd"] == str(tmp_path)
    assert saw["umask"] == 0o027
    assert saw["nice"] == 7
    assert saw["nofile"] == [100, 200]
    assert saw["core"] == [0, 0]
    assert saw["sid"] == saw["pgid"] == saw["pid"]
    assert saw["stdin"] == ""


def test_without_such_wishes_it_has_what_the_server_was_given(teller: Teller) -> None:
    saw = teller()
    assert saw["nofile"] == list(resource.getrlimit(resource.RLIMIT_NOFILE))
    assert saw["nice"] == os.nice(0)
    assert saw["cwd"] == str(saw["server"].folder)


def test_even_the_quickest_child_sees_its_niceness(serve: Serve, tmp_path: Path) -> None:
    log = tmp_path / "told"
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
def test_it_runs_as_the_user_and_group_that_it_should(
    serve: Serve, tmp_path: Path, wanted: dict[str, Any], uid: str | int, gid: str | int
) -> None:
    no_account = pwd.getpwnam("nobody")
    user, group = (no_account.pw_uid if uid == "nobody" else uid), (no_account.pw_gid if gid == "nobody's" else gid)
    log = tmp_path / "told"
    report_of = "grep -E '^([UG]id|Groups):' /proc/self/status; echo $USER $LOGNAME $HOME; umask; nice; ulimit -c"
    server = serve({"as": {"command": ["sh", "-c", report_of], "directory": "/", "stdout-logfile": str(log), **wanted}})
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
def test_another_user_is_no_riddle_to_a_server_that_may_not_trace(serve: Serve) -> None:
    """As in most containers: root, without CAP_SYS_PTRACE."""
    may_not = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
    server = serve({"other": {"command": "sleep 1000", "user": "nobody"}}, command=may_not)
    assert server.do("start", "other").status == 200
    assert server.status("other") == "running"
    assert server.do("stop", "other").status == 200


def test_output_goes_where_it_should(serve: Serve, tmp_path: Path) -> None:
    both = ["sh", "-c", "echo out; echo err >&2"]
    server = serve({
        "apart": {"command": both, "stdout-logfile": str(tmp_path / "out"), "stderr-logfile": str(tmp_path / "err")},
        "merged": {"command": both, "stdout-logfile": str(tmp_path / "both"), "redirect-stderr": True},
        "half": {"command": both, "stderr-logfile": str(tmp_path / "half")},
    })  # fmt: skip
    for _ in range(2):  # appended to, not begun anew
        for name in ("apart", "merged", "half"):
            server.do("start", name)
            server.until(name, "finished")
    assert (tmp_path / "out").read_text() == "out\n" * 2
    assert (tmp_path / "err").read_text() == "err\n" * 2
    assert (tmp_path / "both").read_text() == "out\nerr\n" * 2
    assert (tmp_path / "half").read_text() == "err\n" * 2
    assert server.info("merged")["stderrLogfile"] is None
    assert server.info("half")["stdoutLogfile"] is None


def test_a_child_that_closes_its_output_costs_nothing(serve: Serve) -> None:
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


# What it leaves behind

DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
        time.sleep(1000)
    os._exit(0)
os.wait()
while not os.path.exists(sys.argv[1]):
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
while not os.path.exists(sys.argv[1]):
    time.sleep(0.001)
"""


@pytest.fixture(params=["with control groups, if any", "without control groups"])
def anyhow(request: pytest.FixtureRequest, serve: Serve) -> Serve:
    """Servers with and without a cgroup v2 tree: what is left behind is found either way."""
    if request.param.startswith("without"):
        require(NAMESPACES)
        return lambda *given, **more: serve(*given, command=NO_CGROUPS, **more)
    return serve


def pids(file: Path) -> list[int]:
    return [int(line) for line in wait_for(file.read_text).split()]


def test_a_daemon_is_gone_after_a_stop(anyhow: Serve, tmp_path: Path) -> None:
    file = tmp_path / "daemon"
    server = anyhow({"forker": {"command": python_command(DAEMON + "time.sleep(1000)"), "args": [str(file)]}})
    server.do("start", "forker")
    wait_for(file.exists)
    (daemon,) = pids(file)
    assert is_alive(daemon)
    assert os.getsid(daemon) != server.info("forker")["pid"]
    assert server.do("stop", "forker").status == 200
    assert not is_alive(daemon)


@pytest.mark.parametrize("restart", [{}, {"restart": "always", "restart-delay": 0, "restart-limit": 3}])
def test_a_daemon_is_gone_after_its_parent_ended_by_itself(
    anyhow: Serve, tmp_path: Path, restart: dict[str, Any]
) -> None:
    file = tmp_path / "daemon"
    server = anyhow({"forker": {"command": python_command(DAEMON + "sys.exit(1)"), "args": [str(file)], **restart}})
    server.do("start", "forker")
    lives = 4 if restart else 1
    wait_for(lambda: server.new_statuses("forker").count("failed") == lives)
    wait_for(lambda: not any(is_alive(pid) for pid in pids(file)))
    assert 1 <= len(pids(file)) <= lives  # one may be gone before it could write its pid


HIDDEN = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    os.execve(sys.executable, [sys.executable, "-c",
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print(os.getpid(), file=open('hidden', 'a'), flush=True); time.sleep(1000)"], {})
"""
"""A daemon that ignores SIGTERM, leaves the session and clears its environment; its parent goes on."""


def test_a_daemon_that_cleared_its_environment_is_gone_after_a_stop(anyhow: Serve) -> None:
    server = anyhow({"forker": {"command": python_command(HIDDEN + "time.sleep(1000)"), "stop-timeout": "300ms"}})
    server.do("start", "forker")
    file = server.folder / "hidden"
    wait_for(lambda: file.exists() and file.read_text())
    (daemon,) = pids(file)
    assert server.do("stop", "forker").status == 200
    assert not is_alive(daemon)


@pytest.mark.parametrize("ends_first", [True, False])
def test_no_daemon_is_left_when_the_server_stops(anyhow: Serve, ends_first: bool) -> None:
    """Also one that left its parent long ago, and one whose process has just ended and is being cleared."""
    wait = "while not os.path.exists('hidden'): time.sleep(0.01)\n"
    server = anyhow({"forker": {"command": python_command(HIDDEN + (wait if ends_first else "time.sleep(1000)"))}})
    server.do("start", "forker")
    file = server.folder / "hidden"
    wait_for(lambda: file.exists() and file.read_text())
    (daemon,) = pids(file)
    assert server.stop() == 0
    assert not is_alive(daemon)


def test_the_reason_is_reported_for_a_process_that_goes_to_the_background(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "daemon"
    server = serve({"forker": {"command": python_command(DAEMON + "sys.exit(0)"), "args": [str(file)]}})
    server.do("start", "forker")
    server.until("forker", "finished")
    wait_for(lambda: "run in the foreground" in (server.info("forker")["failedErrorLog"] or ""))
    assert "forker: it exited while processes that it had started were running" in server.log.read_text()
    assert "run in the foreground" in server.get("/processes/forker").text


def test_a_daemon_that_ignores_the_stop_is_killed(anyhow: Serve, tmp_path: Path) -> None:
    file = tmp_path / "daemon"
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + DAEMON + "time.sleep(1000)"
    server = anyhow({"forker": {"command": python_command(code), "args": [str(file)], "stop-timeout": "300ms"}})
    server.do("start", "forker")
    wait_for(file.exists)
    (daemon,) = pids(file)
    requested = time.monotonic()
    assert server.do("stop", "forker").status == 200
    assert not is_alive(daemon)
    assert time.monotonic() - requested >= 0.3


def test_members_of_its_group_that_need_a_moment_to_finish_have_it(anyhow: Serve, tmp_path: Path) -> None:
    file = tmp_path / "member"
    server = anyhow({"leader": {"command": python_command(MEMBER + "time.sleep(1000)"), "args": [str(file), "0.5"]}})
    server.do("start", "leader")
    wait_for(file.exists)
    (member,) = pids(file)
    requested = time.monotonic()
    assert server.do("stop", "leader").status == 200
    assert time.monotonic() - requested >= 0.5
    assert not is_alive(member)
    assert (tmp_path / "member.done").exists()
    assert server.status("leader") == "stopped"


def test_but_no_longer_than_its_stop_timeout(anyhow: Serve, tmp_path: Path) -> None:
    file = tmp_path / "member"
    command = python_command(MEMBER + "time.sleep(1000)")
    server = anyhow({"leader": {"command": command, "args": [str(file), "100"], "stop-timeout": "400ms"}})
    server.do("start", "leader")
    wait_for(file.exists)
    (member,) = pids(file)
    requested = time.monotonic()
    assert server.do("stop", "leader").status == 200
    assert time.monotonic() - requested >= 0.4
    assert not is_alive(member)
    assert not (tmp_path / "member.done").exists()
    assert server.status("leader") == "stopped"  # it was: only what it left had to be killed


def test_members_left_by_a_child_that_ended_by_itself_are_ended_before_the_next_begins(
    anyhow: Serve, tmp_path: Path
) -> None:
    file = tmp_path / "member"
    code = MEMBER + "print(os.path.exists(sys.argv[1] + '.done'), flush=True)\n"
    server = anyhow({
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


def test_what_another_process_started_is_left_alone(anyhow: Serve, tmp_path: Path) -> None:
    names = ("one", "two")
    server = anyhow({
        name: {"command": python_command(DAEMON + "time.sleep(1000)"), "args": [str(tmp_path / name)]} for name in names
    })  # fmt: skip
    assert server.post("/api/v1/processes/group/start").status == 200
    for name in names:
        wait_for((tmp_path / name).exists)
    (one,), (two,) = (pids(tmp_path / name) for name in names)
    server.do("stop", "one")
    assert (is_alive(one), is_alive(two)) == (False, True)
    assert (
        sorted(mark.split(":")[2] for pid, mark in tags_by_pid().items() if pid in (two, server.info("two")["pid"]))
        == ["two"] * 2
    )
    server.do("stop", "two")
    assert not is_alive(two)


def test_orphans_leave_no_zombies(serve: Serve) -> None:
    code = """
from needs import NAMESPACES, ROOT_USER, need
import os, time
if os.fork() == 0:
    for _ in range(20):
        os.fork() or os._exit(0)
    os._exit(0)
time.sleep(1000)
"""
    server = serve({"breeder": {"command": python_command(code)}})
    server.do("start", "breeder")

    def zombies() -> list[int]:
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        return [int(pid) for pid in children if not is_alive(int(pid))]

    wait_for(lambda: not zombies(), timeout=5)
