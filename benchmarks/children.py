"""The supervised children without their supervisor: they report their start, and the kernel reports their end."""

import contextlib
import fcntl
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("child.c")
SHELL_CHILD = '#!/bin/sh\necho $$ >"$1"\n[ "$2" = once ] || exec sleep infinity\n'


@dataclass(frozen=True)
class StartReport:
    """Sent by a child at its start: its pid and the second (as `time.monotonic`) in which it began to execute."""

    pid: int
    at: float


def build(directory: Path) -> tuple[Path, str]:
    """Builds the child: C, if possible static; without a compiler a shell script. Returns its path and kind."""
    program = directory / "child"
    for compiler in filter(None, map(shutil.which, ("cc", "gcc", "clang"))):
        for static in (["-static"], []):
            command = [compiler, "-O2", *static, "-o", str(program), str(SOURCE)]
            if subprocess.run(command, capture_output=True).returncode == 0:
                return program, "C, static" if static else "C"
    program.write_text(SHELL_CHILD)
    program.chmod(0o755)
    return program, "shell and sleep (no compiler: start times are those of our reading)"


class StartReports:
    """The FIFO to which children report their start. It is open for writing too, so no child waits for a reader."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, 1 << 20)
        self._rest = b""

    def collect(self, count: int, seconds: float, check: Callable[[], None] | None = None) -> list[StartReport]:
        """Returns the next `count` reports; TimeoutError has their number.

        `check` is called every half second; it raises if waiting is useless.
        """
        reports: list[StartReport] = []
        end = time.monotonic() + seconds
        while len(reports) < count:
            remaining = end - time.monotonic()
            if remaining <= 0:
                raise TimeoutError(f"{len(reports)} of {count} children ran within {seconds:g} s")
            if select.select([self._fd], [], [], min(remaining, 0.5))[0]:
                reports += self._read()
            elif check:
                check()
        return reports

    def pending(self) -> list[StartReport]:
        """Reports that were not collected: of children that were started too often."""
        return self._read() if select.select([self._fd], [], [], 0)[0] else []

    def _read(self) -> list[StartReport]:
        now = time.monotonic()
        *lines, self._rest = (self._rest + os.read(self._fd, 1 << 16)).split(b"\n")
        return [self._report(line.split(), now) for line in lines]

    @staticmethod
    def _report(fields: list[bytes], now: float) -> StartReport:
        return StartReport(int(fields[0]), int(fields[1]) / 1e9 if len(fields) > 1 else now)

    def close(self) -> None:
        os.close(self._fd)


class EndWatch:
    """Watches `pids`; `wait` returns the second in which the last of them had ended."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._poll = select.poll()
        self._open: set[int] = set()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                fd = os.pidfd_open(pid)
                self._open.add(fd)
                self._poll.register(fd, select.POLLIN)

    def wait(self, seconds: float) -> float:
        end = time.monotonic() + seconds
        try:
            while self._open:
                remaining = end - time.monotonic()
                if remaining <= 0:
                    raise TimeoutError(f"{len(self._open)} children still run after {seconds:g} s")
                for fd, _ in self._poll.poll(remaining * 1000):
                    self._forget(fd)
            return time.monotonic()
        finally:
            for fd in list(self._open):
                self._forget(fd)

    def _forget(self, fd: int) -> None:
        self._poll.unregister(fd)
        self._open.discard(fd)
        os.close(fd)
