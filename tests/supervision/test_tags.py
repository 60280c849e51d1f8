"""The tag of a process is a hint: a copied or invented one adopts nothing and stops nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Serve, Server, instance_of, is_alive, wait_for
from requirements import ROOT_USER

from models.supervision.process import Status
from supervisor.children import tags
from supervisor.children.launcher_process import proof as proof_of
from supervisor.children.proc import boot_id, stat

NOBODY = 65534
KEY = b"0123456789abcdef" * 2

Forge = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def forge() -> Iterator[Forge]:
    """Starts a process of `nobody` that leads its session, with these variables."""
    started: list[subprocess.Popen[bytes]] = []

    def start(tag: str, uid: int = NOBODY, **more: str) -> subprocess.Popen[bytes]:
        environ = {"PATH": os.environ["PATH"], tags.TAG_VARIABLE: tag, **more}
        rights: dict[str, Any] = {"user": uid, "group": uid, "extra_groups": []}
        process = subprocess.Popen(["sleep", "1000"], env=environ, start_new_session=True, **rights)
        started.append(process)
        wait_for(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n" and variables_of(process.pid))
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()


def variables_of(pid: int) -> dict[str, str]:
    """They are empty for a moment after the process has executed its command."""
    content = Path(f"/proc/{pid}/environ").read_bytes()
    return dict(entry.decode().split("=", 1) for entry in content.split(b"\0") if entry)


def tagged_variables(server: Server) -> dict[str, str]:
    """The variables of the process `web`."""
    pid = server.info("web")["pid"]
    return dict(wait_for(lambda: variables_of(pid)))


def messages_about_tags(server: Server) -> list[str]:
    """Those of the notices that are stored; while another writer holds the store, the newest wait for it."""
    notices = server.get("/api/v1/processes/notices").json["content"]
    return [one["message"] for one in notices if one["name"] == "process.tag_ignored"]


@pytest.mark.needs(ROOT_USER)
@pytest.mark.parametrize("generation", ["²", "1" * 20, "1" * 5000, "-1", "", "x"])
def test_bad_tag_stops_neither_a_stop_nor_a_start_of_the_server(serve: Serve, forge: Forge, generation: str) -> None:
    server = serve({"web": {"command": "sleep 1000", "user": "nobody"}})
    forged = forge(f"{instance_of(server.data)}:{generation}:web")
    own = forge(f"{instance_of(server.data)}:{generation}:web", uid=0)
    assert server.do("start", "web").status == 200
    begun = time.monotonic()
    assert server.do("stop", "web").status == 200
    assert time.monotonic() - begun < 5
    assert server.stop() == 0
    server.start()
    assert server.do("start", "web").status == 200
    assert is_alive(forged.pid)
    assert is_alive(own.pid)


@pytest.mark.needs(ROOT_USER)
@pytest.mark.parametrize("forger", [0, NOBODY])
@pytest.mark.parametrize("user", [None, "nobody"])
def test_process_with_a_forged_tag_is_not_adopted(serve: Serve, forge: Forge, user: str | None, forger: int) -> None:
    """Not even where it has the user of the process, a generation that is due and a session of its own."""
    spec = {"command": "sleep 1000", **({} if user is None else {"user": user})}
    server = serve({"web": spec})
    assert server.do("start", "web").status == 200
    genuine = tagged_variables(server)
    os.kill(server.info("web")["pid"], signal.SIGKILL)
    server.until("web", "aborted", "failed")
    server.kill()
    proof = {tags.PROOF_VARIABLE: genuine[tags.PROOF_VARIABLE]}
    copied = forge(genuine[tags.TAG_VARIABLE], forger, **proof)
    later = forge(f"{instance_of(server.data)}:7:web", forger)
    claimed = forge(f"{instance_of(server.data)}:2:web", forger, **proof)
    forget_pid(server)
    server.start()
    assert server.status("web") != "running"
    assert server.info("web")["pid"] not in (copied.pid, later.pid, claimed.pid)
    assert is_alive(later.pid)
    assert is_alive(claimed.pid)
    wait_for(lambda: messages_about_tags(server))
    assert server.do("start", "web").status == 200
    assert tagged_variables(server)[tags.TAG_VARIABLE].split(":")[1] == "2"


IN_A_SESSION = "sleep 1000 & echo $! > {file}.new; mv {file}.new {file}; {then}"
"""A shell that leads a session starts a process in it."""


def pid_in(file: Path) -> int:
    wait_for(file.exists)
    return int(file.read_text())


@pytest.mark.needs(ROOT_USER)
def test_copy_of_a_tag_in_a_session_of_others_is_ignored(serve: Serve, tmp_path: Path) -> None:
    """A user of the process can read its tag and proof, and give them to what runs in a session of another service."""
    server = serve({"web": {"command": "sleep 1000", "user": "nobody"}})
    assert server.do("start", "web").status == 200
    genuine = tagged_variables(server)
    copied = " ".join(f"{name}={genuine[name]}" for name in (tags.TAG_VARIABLE, tags.PROOF_VARIABLE))
    script = f"env {copied} {IN_A_SESSION.format(file=tmp_path / 'pid', then='wait')}"
    with subprocess.Popen(["sh", "-c", script], start_new_session=True) as leader:
        try:
            pid = pid_in(tmp_path / "pid")
            wait_for(lambda: tags.TAG_VARIABLE in variables_of(pid))
            os.kill(server.info("web")["pid"], signal.SIGKILL)
            server.until("web", "aborted", "failed")
            server.kill()
            server.start()
            ignored = wait_for(lambda: messages_about_tags(server))
            assert [message.endswith(f": pid {pid}") for message in ignored] == [True]
            assert server.do("start", "web").status == 200
            assert server.stop() == 0
            assert is_alive(pid)
        finally:
            os.killpg(leader.pid, signal.SIGKILL)


@pytest.mark.parametrize("then", ["wait", "exit", "exec env -i sleep 1000"])
def test_tag_counts_in_a_session_of_a_tagged_process(tmp_path: Path, then: str) -> None:
    """As of a daemon; who made the session may have ended, or is the child itself and has cleared its environment."""
    inner = IN_A_SESSION.format(file=tmp_path / "pid", then=then)
    script = f"read proof; export {tags.PROOF_VARIABLE}=$proof; exec sh -c '{inner}'"
    environ = {"PATH": os.environ["PATH"], tags.TAG_VARIABLE: "id:3:web"}
    leader = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, start_new_session=True, env=environ)
    try:
        facts = stat(leader.pid)
        assert facts is not None
        is_child = then.startswith("exec")
        proof = proof_of(KEY, boot_id().encode(), b"id:3:web", *((leader.pid, facts[3]) if is_child else (0, 0)))
        assert leader.stdin is not None
        leader.stdin.write(proof + b"\n")
        leader.stdin.close()
        pid = pid_in(tmp_path / "pid")
        wait_for(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n" and variables_of(pid))
        if then == "exit":
            leader.wait()
        if is_child:
            wait_for(lambda: Path(f"/proc/{leader.pid}/comm").read_text() == "sleep\n" and not variables_of(leader.pid))
        found = tags.tagged_process("id", pid, KEY)
        assert found is not None
        assert not found.leads_session
    finally:
        os.killpg(leader.pid, signal.SIGKILL)
        leader.wait()


@pytest.mark.needs(ROOT_USER)
@pytest.mark.parametrize("more", [{}, {"user": "nobody"}], ids=["the server's user", "another user"])
def test_child_is_adopted_by_its_proof(serve: Serve, more: dict[str, str]) -> None:
    """The server was killed between the spawn and the commit of the pid."""
    server = serve({"web": {"command": "sleep 1000", **more}})
    assert server.do("start", "web").status == 200
    pid = server.info("web")["pid"]
    wait_for(lambda: server.new_statuses("web")[-1:] == ["running"])
    server.kill()
    forget_pid(server)
    server.start()
    assert server.until("web", "running")["pid"] == pid


def forget_pid(server: Server) -> None:
    import sqlite3

    with contextlib.closing(sqlite3.connect(server.data / "pilothouse.db")) as store, store:
        store.execute("UPDATE supervised SET pid = NULL, status = ?", (Status.STARTING.rank,))


@pytest.mark.needs(ROOT_USER)
@pytest.mark.parametrize(
    "change",
    [
        lambda pid, ticks, mac: f"{pid}:{ticks}:{mac[::-1]}",
        lambda pid, ticks, mac: f"{pid}:{ticks}:",
        lambda pid, ticks, mac: f"²:{ticks}:{mac}",
        lambda pid, ticks, mac: f"{'9' * 30}:{ticks}:{mac}",
        lambda pid, ticks, mac: ":",
        lambda pid, ticks, mac: "",
    ],
)
def test_proof_that_is_changed_proves_nothing(forge: Forge, change: Callable[[str, str, str], str]) -> None:
    proof = proof_of(KEY, boot_id().encode(), b"id:3:web", 1, 2).decode()
    genuine, forged = forge("id:3:web", **{tags.PROOF_VARIABLE: proof}), change(*proof.split(":"))
    other = forge("id:3:web", **{tags.PROOF_VARIABLE: forged})
    found = tags.tagged_process("id", genuine.pid, KEY)
    assert found is not None
    assert (found.generation, found.leads_session, found.uid) == (3, False, NOBODY)  # inherited: not the child itself
    assert tags.tagged_process("id", genuine.pid, KEY[::-1]) is None
    assert tags.tagged_process("id", other.pid, KEY) is None
