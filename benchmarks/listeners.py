"""Many open event streams in a separate process with one epoll loop: the times at which they receive the next event.

As a module: `Listeners`. As a program: the separate process; it reads and writes JSON lines.
"""

import json
import select
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

PATIENCE = 60.0
AT_ONCE = 200
HEAD_ENDS = b"\r\n\r\n"


@dataclass(frozen=True)
class Received:
    """The times (monotonic clock, seconds) at which the first and the last stream received one more event."""

    first: float
    last: float


class Listeners:
    """`count` streams of one path; on entry all are open and idle."""

    def __init__(self, port: int, path: str, count: int) -> None:
        self._order = json.dumps({"port": port, "path": path, "count": count})

    def __enter__(self) -> "Listeners":
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._tell(self._order)
        self.opening = float(self._answer()["seconds"])
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def expect(self) -> None:
        """Starts to wait for the next event."""
        self._tell("expect")
        self._answer()

    def received(self) -> Received:
        """Waits until all streams have received the event."""
        return Received(**self._answer())

    def _tell(self, line: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the listeners ended")
        answer: dict[str, float] = json.loads(line)
        return answer


class Streams:
    """All sockets in the separate process, with the number of events that each has received."""

    def __init__(self, port: int, path: str, count: int) -> None:
        self._request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: text/event-stream\r\n\r\n".encode()
        self._port = port
        self._epoll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        for start in range(0, count, AT_ONCE):
            self._open(min(AT_ONCE, count - start))
        self._drain()

    def _open(self, count: int) -> None:
        """Opens some streams, and waits for the heads of their responses."""
        heads = {}
        for _ in range(count):
            one = socket.create_connection(("127.0.0.1", self._port), PATIENCE)
            one.sendall(self._request)
            heads[one.fileno()] = b""
            self._sockets[one.fileno()] = one
        for fd in heads:
            one = self._sockets[fd]
            while HEAD_ENDS not in heads[fd]:
                if not (some := one.recv(4096)):
                    raise RuntimeError("a stream was refused")
                heads[fd] += some
            if b" 200 " not in heads[fd].partition(b"\r\n")[0]:
                raise RuntimeError(f"a stream was refused: {heads[fd][:40]!r}")
            one.setblocking(False)
            self._epoll.register(fd, select.EPOLLIN)

    def _drain(self, quiet: float = 0.3) -> None:
        """Reads the initial data until nothing has arrived for a while."""
        while ready := self._epoll.poll(quiet):
            for fd, _ in ready:
                self._sockets[fd].recv(65536)

    def wait(self) -> Received:
        """Reads the next event of every socket, which must arrive in one piece."""
        missing = set(self._sockets)
        first, last, clock = 0.0, 0.0, time.monotonic
        sockets, end = self._sockets, clock() + PATIENCE
        while missing:
            for fd, _ in self._epoll.poll(1.0, 512):
                data = sockets[fd].recv(65536)
                if not data:
                    raise RuntimeError("a stream ended")
                if b"data:" in data:
                    last = clock()
                    first = first or last
                    missing.discard(fd)
            if clock() > end:
                raise RuntimeError(f"{len(missing)} streams received nothing")
        return Received(first, last)


def _reply(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def main() -> None:
    begin = time.monotonic()
    crowd = Streams(**json.loads(sys.stdin.readline()))
    _reply(seconds=time.monotonic() - begin)
    for _ in sys.stdin:
        _reply(ready=1)
        received = crowd.wait()
        _reply(first=received.first, last=received.last)


if __name__ == "__main__":
    main()
