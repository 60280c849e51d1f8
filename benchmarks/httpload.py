"""An HTTP load generator that is not the bottleneck: raw sockets, one epoll loop, in a process of its own.

As a module: `hammer` (keep-alive clients, each sending its next request after the response) and `Probe` (one
client that sends at fixed times; a late response delays the following ones, and all of them count, as they would for
users).
As a program: the separate process of both; it reads one JSON line and writes one.
"""

import json
import select
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass

PATIENCE = 60.0  # seconds without any answer after which a server counts as dead


@dataclass(frozen=True)
class Target:
    """The address (host and port, or the path of a Unix socket) and the bytes of a request."""

    address: tuple[str, int] | str
    request: str

    @classmethod
    def get(cls, port: int, path: str) -> "Target":
        return cls(("127.0.0.1", port), f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n")


@dataclass(frozen=True)
class Answers:
    """Latencies in milliseconds, the rate in requests per second, and the size of one response body in bytes."""

    count: int
    rate: float
    best: float
    median: float
    p90: float
    p99: float
    worst: float
    size: int


def summary(latencies: Iterable[float], seconds: float, size: int) -> Answers:
    ordered = sorted(latency * 1000 for latency in latencies)
    if not ordered:
        raise RuntimeError("not one answer")
    p90, p99 = (ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.9, 0.99))
    median = statistics.median(ordered)
    return Answers(len(ordered), len(ordered) / seconds, ordered[0], median, p90, p99, ordered[-1], size)


def hammer(target: Target, clients: int, seconds: float) -> Answers:
    """Sends requests on `clients` connections for `seconds`, and returns the measurements."""
    order = {"target": asdict(target), "clients": clients, "seconds": seconds}
    done = subprocess.run(
        [sys.executable, __file__], input=json.dumps(order), capture_output=True, text=True, timeout=seconds + PATIENCE
    )
    if done.returncode:
        raise RuntimeError(f"load generator: {done.stderr.strip().splitlines()[-1:]}")
    return Answers(**json.loads(done.stdout))


class Probe:
    """Sends a request every `interval` seconds, from the `with` until `latencies()`."""

    def __init__(self, target: Target, interval: float = 0.004) -> None:
        self._order = json.dumps({"target": asdict(target), "interval": interval})

    def __enter__(self) -> "Probe":
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(self._order + "\n")
        self._process.stdin.flush()
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError("the probe got no first answer")
        return self

    def latencies(self) -> list[float]:
        """The duration of all requests, in seconds."""
        out, _ = self._process.communicate(timeout=PATIENCE)  # closes its stdin, which ends it
        if self._process.returncode:
            raise RuntimeError("the probe failed")
        return [float(latency) for latency in json.loads(out)]

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


class Client:
    """One keep-alive connection with at most one request in progress."""

    def __init__(self, target: Target) -> None:
        unix = isinstance(target.address, str)
        self.socket = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(target.address)
        if not unix:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = target.request.encode()
        self.sent_at = 0.0
        self.size = 0
        self._head = b""
        self._missing = -1

    def ask(self) -> None:
        self._head, self._missing = b"", -1
        self.sent_at = time.perf_counter()
        self.socket.sendall(self._request)

    def read(self) -> bool:
        """Reads the received bytes; returns whether the response is complete."""
        chunk = self.socket.recv(1 << 18)
        if not chunk:
            raise RuntimeError("the server closed the connection")
        if self._missing < 0:
            self._head += chunk
            head, end, body = self._head.partition(b"\r\n\r\n")
            if not end:
                return False
            self.size = self._length(head)
            self._missing = self.size - len(body)
        else:
            self._missing -= len(chunk)
        return self._missing == 0

    @staticmethod
    def _length(head: bytes) -> int:
        first, *fields = head.split(b"\r\n")
        if b" 200 " not in first:
            raise RuntimeError(f"answer {first.decode(errors='replace')}")
        for field in fields:
            name, _, value = field.partition(b":")
            if name.lower() == b"content-length":
                return int(value)
        raise RuntimeError("an answer without Content-Length")


def _hammer(target: Target, clients: int, seconds: float) -> Answers:
    poll = select.epoll()
    crowd = {client.socket.fileno(): client for client in (Client(target) for _ in range(clients))}
    latencies: list[float] = []
    for number, client in crowd.items():
        poll.register(number, select.EPOLLIN)
        client.ask()
    begin = now = time.perf_counter()
    busy = len(crowd)
    while busy:
        ready = poll.poll(PATIENCE)
        if not ready:
            raise RuntimeError("no answer")
        for number, _ in ready:
            client = crowd[number]
            if not client.read():
                continue
            now = time.perf_counter()
            latencies.append(now - client.sent_at)
            if now - begin < seconds:
                client.ask()
            else:
                busy -= 1
    return summary(latencies, now - begin, client.size)


def _pace(target: Target, interval: float) -> list[float]:
    client = Client(target)
    _whole_answer(client)
    print("ready", flush=True)
    latencies: list[float] = []
    due = time.perf_counter()
    while True:
        due += interval
        ended, _, _ = select.select([sys.stdin], [], [], max(0.0, due - time.perf_counter()))
        if ended:
            break
        _whole_answer(client)
        latencies.append(time.perf_counter() - due)
    while due < (now := time.perf_counter()):  # what it still owed to ask has waited so long at least
        latencies.append(now - due)
        due += interval
    return latencies


def _whole_answer(client: Client) -> None:
    client.ask()
    while not client.read():
        pass


def main() -> None:
    order = json.loads(sys.stdin.readline())
    address = order["target"]["address"]
    target = Target(address if isinstance(address, str) else (address[0], address[1]), order["target"]["request"])
    if "interval" in order:
        print(json.dumps(_pace(target, order["interval"])))
    else:
        print(json.dumps(asdict(_hammer(target, order["clients"], order["seconds"]))))


if __name__ == "__main__":
    main()
