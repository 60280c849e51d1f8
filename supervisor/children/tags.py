"""Tags: variables in the environment of each child and of what it starts, by which they are found again.

A tag is a hint, which anybody can copy. It counts with a proof only: a keyed hash over boot, tag, pid and start, which
is made when the child is started. What inherits a proof has a genuine tag; the child itself also has that pid and start
and leads the session of that pid. A process that has copied both is found by its session: no process can join one.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable

from attrs import frozen

from supervisor.children import proc
from supervisor.children.launcher_process import PROOF_VARIABLE as _PROOF_NAME
from supervisor.children.launcher_process import TAG_VARIABLE as _TAG_NAME
from supervisor.children.launcher_process import proof
from supervisor.children.proc import ProcessIdentity, boot_id, is_running, stat

log = logging.getLogger("orphans")

TAG_VARIABLE = os.fsdecode(_TAG_NAME)
"""The variable that tags a child and all that it starts: server id, generation and name, separated by colons."""

PROOF_VARIABLE = os.fsdecode(_PROOF_NAME)
"""The variable that proves the tag: pid, start in ticks and keyed hash, separated by colons."""

FINGERPRINT_VARIABLE = "PILOTHOUSE_SPEC"
"""The variable that holds `ProcessSpec.launch_fingerprint`."""

_MAX_GENERATION_DIGITS = 15


@frozen
class TaggedProcess:
    """A process that the child of that name and generation started, directly or not, or that child itself."""

    name: str
    generation: int
    identity: ProcessIdentity
    leads_session: bool
    """Whether it is the child itself: it leads the session that was made for it, and is what its proof names."""
    fingerprint: str
    """`ProcessSpec.launch_fingerprint`; empty where it is missing."""
    uid: int = 0
    """Its real user."""


def plain_proof(key: bytes, boot: str, tag: str) -> str:
    """The proof for a hook, probe or worker, whose pid is not known before it is executed: none is adopted."""
    return os.fsdecode(proof(key, os.fsencode(boot), os.fsencode(tag), 0, 0))


def tagged_process(
    server_id: str, pid: int, key: bytes = b"", on_forged: Callable[[int, int, str], None] | None = None
) -> TaggedProcess | None:
    """The tag of a process; `None` if it has none of this server, is a zombie, or may not be read.

    A tag that does not count is ignored; `on_forged` is called with pid, user and the name in the tag. Without a key
    the tags of the server's own user count.
    """
    try:
        variables = proc.environment(pid).split(b"\0")
        tag = _value(variables, f"{TAG_VARIABLE}={server_id}:")
        facts = None if tag is None else stat(pid)
        if tag is None or facts is None or not is_running(pid, facts[0]):
            return None
        uid = proc.real_user(pid)
    except (OSError, ValueError):
        return None
    generation, _, name = tag.partition(":")
    number = _number(generation)
    given = _value(variables, f"{PROOF_VARIABLE}=") or ""
    is_genuine = _is_proof(given, key, f"{server_id}:{tag}") if key else uid == os.geteuid()
    is_child = not key or given.startswith(f"{pid}:{facts[3]}:")
    if is_genuine and key and facts[2] != pid and facts[1] != os.getpid():
        is_genuine = not _is_foreign(facts[2], server_id, given, key)
    if not is_genuine or number is None:
        if on_forged is not None:
            on_forged(pid, uid, name)
        return None
    fingerprint = _value(variables, f"{FINGERPRINT_VARIABLE}=") or ""
    identity = ProcessIdentity(pid, facts[3], boot_id())
    return TaggedProcess(name, number, identity, facts[2] == pid and is_child, fingerprint, uid)


def _is_foreign(session: int, server_id: str, given: str, key: bytes) -> bool:
    """Whether a session was made neither by the child with that proof nor by a process with a genuine tag."""
    facts = stat(session)
    if facts is None or not is_running(session, facts[0]):
        return session == 0  # of another pid namespace; else who made it has ended
    if given.startswith(f"{session}:{facts[3]}:"):
        return False
    try:
        variables = proc.environment(session).split(b"\0")
    except OSError:
        return True
    tag = _value(variables, f"{TAG_VARIABLE}={server_id}:")
    return tag is None or not _is_proof(_value(variables, f"{PROOF_VARIABLE}=") or "", key, f"{server_id}:{tag}")


def _number(text: str) -> int | None:
    is_number = text.isascii() and text.isdigit() and len(text) <= _MAX_GENERATION_DIGITS
    return int(text) if is_number else None


def _is_proof(given: str, key: bytes, tag: str) -> bool:
    pid, _, rest = given.partition(":")
    ticks, _, _ = rest.partition(":")
    numbers = _number(pid), _number(ticks)
    if numbers[0] is None or numbers[1] is None:
        return False
    made = proof(key, os.fsencode(boot_id()), os.fsencode(tag), numbers[0], numbers[1])
    return hashlib.sha256(made).digest() == hashlib.sha256(os.fsencode(given)).digest()


def _value(variables: list[bytes], prefix: str) -> str | None:
    """The rest of the first variable with this prefix."""
    start = prefix.encode()
    variable = next((variable for variable in variables if variable.startswith(start)), None)
    return None if variable is None else variable[len(start) :].decode("utf-8", "surrogateescape")


def tagged_processes(
    server_id: str,
    pids: Iterable[int] | None = None,
    key: bytes = b"",
    on_forged: Callable[[int, int, str], None] | None = None,
) -> list[TaggedProcess]:
    """Those of `pids`, or of all processes, that have a tag of this server; oldest first."""
    if pids is None:
        pids = all_pids()
    tagged = [process for pid in pids if (process := tagged_process(server_id, pid, key, on_forged))]
    return sorted(tagged, key=lambda process: (process.identity.start_ticks, process.identity.pid))


def all_pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208 (a hundred times cheaper)
