"""`info`: the machine, and the server with its version, pid, uptime and files."""

from __future__ import annotations

import contextlib
import os
from argparse import Namespace
from pathlib import Path

from supervisor.cli.ctl.client import Client
from supervisor.cli.ctl.commands import print_json
from supervisor.cli.ctl.discovery import Address, data_dirs, data_place, lock_holder
from supervisor.cli.ctl.errors import OK, CtlError
from supervisor.cli.ctl.terminal import columns, duration, plain

_CONFIG = "pilothouse.yaml"
_START_FIELD = 19
"""Of `/proc/PID/stat`, counted behind the name of the program: the start in ticks since boot."""


def info(client: Client, arguments: Namespace) -> int:
    facts = {**client.get("/supervisor/info").json, "version": client.version()}
    if client.address is not None:
        facts |= local_facts(client.address, arguments)
    if arguments.json:
        print_json(facts)
    else:
        rows = [(f"{name}:", plain(str(fact))) for name, fact in facts.items()]
        print("\n".join(columns(rows)))
    return OK


def local_facts(address: Address, options: Namespace) -> dict[str, str | int]:
    """Pid, uptime and files of a server on this machine, as far as the caller may read them; else nothing."""
    folders = [Path(address.socket).parent] if address.socket else []
    with contextlib.suppress(CtlError):
        folders += data_dirs(options)
    for folder in folders:
        pid = lock_holder(folder) if address in data_place(folder).addresses else None
        if pid is not None:
            facts: dict[str, str | int] = {"pid": pid, "dataDirectory": str(folder.resolve())}
            with contextlib.suppress(OSError, ValueError, IndexError):
                facts["uptime"] = duration(_uptime(pid))
            with contextlib.suppress(OSError):
                facts["configuration"] = _configuration(Path(f"/proc/{pid}"))
            with contextlib.suppress(OSError):
                facts["log"] = str(Path(f"/proc/{pid}/fd/2").readlink())
            return facts
    return {}


def _uptime(pid: int) -> float:
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[_START_FIELD])
    return float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")


def _configuration(process: Path) -> str:
    """The file of `--config`, or `pilothouse.yaml` in the folder in which the server was started, if there is one."""
    words = process.joinpath("cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    folder = (process / "cwd").readlink()
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "--config":
            return str(folder / following)
        if word.startswith("--config="):
            return str(folder / word.removeprefix("--config="))
    return str(folder / _CONFIG) if (folder / _CONFIG).exists() else "none (defaults)"
