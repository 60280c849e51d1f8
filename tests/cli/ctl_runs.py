"""`run.py ctl` as a subprocess, on pipes and on a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from typing import Any

from conftest import ROOT, TIMEOUT_SECONDS, Server, python_command

SLEEP = {"command": "sleep 1000"}
LINES = {
    "command": python_command(
        "print('one\\ntwo\\n\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07', flush=True)\nimport time; time.sleep(1000)"
    )
}
PROCESSES: dict[str, Any] = {
    "web": {**SLEEP, "groups": ["front"], "labels": ["env=test"], "description": "pages"},
    "db": {**SLEEP, "stdout-logfile": "db.log"},
    "--help": SLEEP,
    "a*": SLEEP,
    "abc": SLEEP,
    "absent": {"command": "no-such-program-anywhere"},
    "lines": {**LINES, "stdout-logfile": "lines.log", "stderr-logfile": "errors.log"},
}  # fmt: skip


class Ctl:
    """`ctl` with the options for one server."""

    def __init__(self, server: Server, *options: str) -> None:
        self.server = server
        self.options = options

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(ROOT / "run.py"), "ctl", *self.options, *arguments]

    def __call__(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), cwd=self.server.folder, env={**os.environ, **environ},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_SECONDS,
        )  # fmt: skip

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments), cwd=self.server.folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def done(self, *arguments: str) -> str:
        """The output of a command that must succeed."""
        result = self(*arguments)
        assert result.returncode == 0, result
        return result.stdout


def reading(ctl: Ctl, *arguments: str) -> tuple[int, str]:
    result = ctl(*arguments)
    return result.returncode, result.stdout + result.stderr


def by_socket(server: Server) -> Ctl:
    return Ctl(server, "--socket", str(server.data / "control.sock"))


@contextlib.contextmanager
def terminal(ctl: Ctl, *arguments: str, **environ: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = subprocess.Popen(
        ctl.command(*arguments), stdin=slave, stdout=slave, stderr=slave, cwd=ctl.server.folder,
        env={**os.environ, "TERM": "xterm", **environ}, start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    try:
        yield process, master
    finally:
        process.kill()
        process.wait()
        os.close(master)


def read_until(master: int, pattern: bytes) -> bytes:
    """Reads from the terminal until the pattern matches."""
    end, seen = time.monotonic() + TIMEOUT_SECONDS, b""
    while not re.search(pattern, seen):
        assert time.monotonic() < end, seen
        if select.select([master], [], [], 0.1)[0]:
            try:
                seen += os.read(master, 65536)
            except OSError:
                break  # the other end has closed
    assert re.search(pattern, seen), seen
    return seen
