"""Control groups: a child is in its group before it executes its command, so that nothing that it starts escapes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import changed_constants
import pytest
from conftest import Serve, Server, instance_of, is_alive, python_command, wait_for
from requirements import CONTROL_GROUPS

from supervisor.children import launcher
from supervisor.children.child import Children, Launch
from supervisor.children.orphans import Cgroups

pytestmark = pytest.mark.needs(CONTROL_GROUPS)

DAEMON = (
    "import os, sys\n"
    "file = open(sys.argv[1], 'a')\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        file.write(str(os.getpid()) + chr(10)); file.close()\n"
    "        os.execve('/bin/sleep', ['sleep', '1000'], {})\n"
    "    os._exit(0)\n"
)
"""Forks twice at once, and clears its environment: it has neither tag, parent, group nor session of the server."""


def daemon(file: Path, then: str = "import time; time.sleep(1000)") -> list[str]:
    return [*python_command(DAEMON + then), str(file)]


def pids_in(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


def folder_of(server: Server, name: str) -> Path:
    root = Cgroups.open(str(instance_of(server.data)))._root
    assert root is not None
    return root / Cgroups.folder(name)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "pids"
    for pid in filter(is_alive, pids_in(tmp_path / "pids")):
        os.kill(pid, signal.SIGKILL)


def groups_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


def test_command_is_in_its_group_from_its_first_instruction(serve: Serve, tmp_path: Path) -> None:
    """A shell's own commands: no program is executed in between."""
    script = f'while read -r line; do echo "$line"; done < /proc/$$/cgroup > {tmp_path}/groups'
    server = serve({"web": {"command": ["sh", "-c", script]}})
    for _ in range(5):
        assert server.do("start", "web").status == 200
        server.until("web", "finished")
        assert folder_of(server, "web").name in (tmp_path / "groups").read_text()


@pytest.mark.parametrize("end", ["stop", "SIGTERM", "killed server"])
def test_fast_daemons_end_with_their_process(serve: Serve, file: Path, end: str) -> None:
    count = 8
    server = serve({f"web{number}": {"command": daemon(file), "stop-timeout": "2s"} for number in range(count)})
    assert server.post("/api/v1/processes/group/start").status == 200
    wait_for(lambda: len(pids_in(file)) == count)
    if end == "killed server":
        server.kill()
        server.start()
    if end == "stop":
        assert server.post("/api/v1/processes/group/stop").status == 200
    else:
        assert server.stop() == 0
    assert not [pid for pid in pids_in(file) if is_alive(pid)]


def test_daemon_of_a_process_that_ended_is_ended(serve: Serve, file: Path) -> None:
    server = serve({"web": {"command": daemon(file, "os._exit(0)"), "stop-timeout": "2s"}})
    events = folder_of(server, "web") / "cgroup.events"
    for _ in range(3):
        assert server.do("start", "web").status == 200
        server.until("web", "finished")
        wait_for(lambda: "populated 0" in events.read_text())
        assert not any(map(is_alive, pids_in(file)))  # it may be ended before it has written its pid


@pytest.mark.parametrize("is_configured", [True, False])
def test_group_of_no_adopted_process_is_killed(serve: Serve, file: Path, is_configured: bool) -> None:
    """Its process ended with the server, and what is left has no tag."""
    server = serve({"web": {"command": daemon(file)}, "other": {"command": "sleep 1000"}})
    assert server.post("/api/v1/processes/group/start").status == 200
    wait_for(lambda: pids_in(file))
    (left,), main, other = pids_in(file), server.info("web")["pid"], server.info("other")["pid"]
    server.kill()
    os.kill(main, signal.SIGKILL)
    wait_for(lambda: not is_alive(main))
    assert is_alive(left)
    if not is_configured:
        server.configure({"supervisor": {"processes": {"other": {"command": "sleep 1000"}}}})
    server.start()
    wait_for(lambda: not is_alive(left))
    assert server.info("other")["pid"] == other
    assert is_alive(other)


def test_group_that_a_process_made_in_its_own_is_ended_with_it(serve: Serve, file: Path) -> None:
    server = serve({"web": {"command": daemon(file), "stop-timeout": "1s"}})
    assert server.do("start", "web").status == 200
    wait_for(lambda: pids_in(file))
    (left,) = pids_in(file)
    inner = folder_of(server, "web") / "inner"
    inner.mkdir()
    (inner / "cgroup.procs").write_text(str(left))
    assert server.do("stop", "web").status == 200
    wait_for(lambda: not is_alive(left))
    inner.rmdir()


def test_process_starts_again_after_its_group_was_killed(serve: Serve, tmp_path: Path) -> None:
    stubborn = f"trap '' TERM; : > {tmp_path}/ready; while :; do sleep 0.1; done"
    server = serve({"web": {"command": ["sh", "-c", stubborn], "stop-timeout": "100ms"}})
    for _ in range(3):
        assert server.do("start", "web").status == 200
        wait_for((tmp_path / "ready").exists)
        (tmp_path / "ready").unlink()
        assert server.do("stop", "web").status == 200
        assert server.status("web") == "aborted"


def test_process_starts_where_the_group_of_the_server_was_killed_before(serve: Serve) -> None:
    """As by `systemctl kill --signal=KILL`: kernels kill what is cloned from such a group into another one."""
    own = Cgroups.open(f"killed-{os.getpid()}")
    group = own.prepare("server")
    assert group is not None
    Path(group, "cgroup.kill").write_text("1")
    server = serve(
        {"web": {"command": "sleep 1000"}}, command=["sh", "-c", f'echo 0 > {group}/cgroup.procs; exec "$@"', "sh"]
    )
    assert group.rpartition("/pilothouse-")[2] in groups_of(server.pid)
    for _ in range(2):
        assert server.do("start", "web").status == 200
        assert server.status("web") == "running"
        assert Cgroups.folder("web") in groups_of(server.info("web")["pid"])
        assert server.do("stop", "web").status == 200
    assert server.stop() == 0
    own.close()


def test_process_starts_where_its_group_cannot_be_made(serve: Serve) -> None:
    server = serve({"web": {"command": "sleep 1000"}})
    root = folder_of(server, "web").parent
    (root / "cgroup.max.descendants").write_text("0")
    assert server.do("start", "web").status == 200
    assert root.name not in groups_of(server.info("web")["pid"])
    assert server.do("stop", "web").status == 200


WITHOUT_CLONE3 = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); import supervisor.children.launcher_process as program;"
    "program._CLONE3_NUMBER = 1_000_000; program.main()"
)


def test_child_joins_its_group_where_clone3_is_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers, and in units with RestrictNamespaces: it moves itself before it executes the command."""
    monkeypatch.setattr(launcher, "_PROGRAM", WITHOUT_CLONE3)
    groups = Cgroups.open(f"clone3-{os.getpid()}")

    async def spawned() -> tuple[str, bool]:
        children, ended = Children(), asyncio.get_running_loop().create_future()
        child = children.spawn(
            Launch(["sleep", "1000"], {"PATH": os.environ["PATH"]}, control_group=groups.prepare("web"))
        )
        children.watch(child, ended.set_result)
        assert await child.executed()
        found = groups_of(child.pid)
        child.send(signal.SIGKILL)
        await ended
        children.close()
        return found, child.is_grouped

    found, is_grouped = asyncio.run(spawned())
    groups.close()
    assert Cgroups.folder("web") in found
    assert is_grouped


async def replies(children: Children, groups: Sequence[str | None]) -> list[bool]:
    """Spawns a child in each of these groups; returns whether each was in it from its beginning."""
    launch, found = children.launcher.launch, list[bool]()

    def noted(*arguments: Any) -> tuple[int, bool, int]:
        pid, is_grouped, status = launch(*arguments)
        found.append(is_grouped)
        return pid, is_grouped, status

    with patch.object(children.launcher, "launch", noted):
        for group in groups:
            child = children.spawn(Launch(["true"], {"PATH": os.environ["PATH"]}, control_group=group))
            ended = asyncio.get_running_loop().create_future()
            children.watch(child, ended.set_result)
            await ended
    return found


def test_group_that_was_removed_leaves_the_next_children_in_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Cgroups.open(f"removed-{os.getpid()}")
    gone, kept = groups.prepare("gone"), groups.prepare("kept")
    assert gone is not None
    opened = launcher._open_group

    def removed(group: str | None, files: contextlib.ExitStack) -> int | None:
        folder = opened(group, files)
        if group == gone:
            Path(gone).rmdir()
        return folder

    monkeypatch.setattr(launcher, "_open_group", removed)

    async def spawned() -> list[bool]:
        children = Children()
        try:
            return await replies(children, [gone, kept])
        finally:
            children.close()

    assert asyncio.run(spawned()) == [False, True]
    groups.close()


def test_limit_of_processes_of_a_group_fails_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """EAGAIN is returned here by the program: the controller `pids` is rarely there."""
    full = "program._cloners = lambda of=program._cloners: (of()[0], lambda group, for_parent: -11); program.main()"
    monkeypatch.setattr(launcher, "_PROGRAM", WITHOUT_CLONE3.replace("program.main()", full))
    groups = Cgroups.open(f"full-{os.getpid()}")

    async def spawned() -> None:
        children = Children()
        try:
            with pytest.raises(BlockingIOError):
                await replies(children, [groups.prepare("web")])
        finally:
            children.close()

    asyncio.run(spawned())
    groups.close()


def test_process_in_a_unit_that_forbids_clone3_is_stopped_at_once(serve: Serve, file: Path) -> None:
    constants = {"supervisor__children__launcher___PROGRAM": WITHOUT_CLONE3}
    spec = {"command": daemon(file), "stop-timeout": "20s"}
    server = serve({"web": spec}, command=changed_constants.server_command(**constants))
    for number in range(1, 6):
        assert server.do("start", "web").status == 200
        if number == 1:
            wait_for(lambda: pids_in(file))
        begun = time.monotonic()
        assert server.do("stop", "web").status == 200
        assert time.monotonic() - begun < 10
        assert server.status("web") == "stopped"
        assert not any(map(is_alive, pids_in(file)))
