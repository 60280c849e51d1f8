"""The compared supervisors: how each is installed, configured, started, queried and stopped. Nothing here measures.

Each runs N equal children that start automatically, are restarted without a delay if the supervisor allows it, and
write no logs.
"""

import http.client
import importlib.metadata
import json
import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks import procfs
from benchmarks.httpload import Answers, Target, hammer
from benchmarks.report import PILOTHOUSE

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pilothouse-bench"
TAG_VARIABLE = "PILOTHOUSE_BENCH_SCENE"


@dataclass(frozen=True)
class Setup:
    """What a supervisor is to run: its directory, the number of children, and their command."""

    directory: Path
    children: int
    command: tuple[str, ...]

    @property
    def tag(self) -> str:
        return f"{TAG_VARIABLE}={self.directory}"

    @property
    def names(self) -> list[str]:
        return [f"c{number:04}" for number in range(self.children)]

    def environment(self, **more: str) -> dict[str, str]:
        """The current environment, and the tag by which all processes of this launch are found."""
        return {**os.environ, TAG_VARIABLE: str(self.directory), **more}


class Candidate(ABC):
    """One supervisor. `missing` returns why it is not available; `rest` is the uptime in seconds that a child needs
    for an immediate restart; `notes` are printed with its figures."""

    name: ClassVar[str]
    rest: ClassVar[float] = 0.0
    notes: ClassVar[Sequence[str]] = ()

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.process: subprocess.Popen[bytes] | None = None

    @classmethod
    @abstractmethod
    def missing(cls) -> str: ...

    @classmethod  # noqa: B027 - Pilothouse needs none
    def install(cls) -> None:
        """Only ever called for --install."""

    @classmethod
    @abstractmethod
    def version(cls) -> str: ...

    @classmethod
    def most_runs(cls, children: int) -> int:
        """The maximum number of runs: a supervisor that needs half a minute for one stop would take too long."""
        return 1000

    @abstractmethod
    def launch(self) -> None: ...

    def connect(self) -> None:  # noqa: B027 - not every supervisor needs to wait
        """Called when all children run; waits until the supervisor responds."""

    @abstractmethod
    def start_all(self) -> None: ...

    @abstractmethod
    def stop_all(self) -> None: ...

    def verify(self, pids: set[int]) -> None:  # noqa: B027 - checked for Pilothouse only
        """Raises if the supervisor reports other pids than `pids`."""

    def target_all(self) -> Target | None:
        return None

    def target_one(self) -> Target | None:
        return None

    def status_load(self, clients: int, seconds: float) -> Answers | None:
        target = self.target_all()
        return hammer(target, clients, seconds) if target else None

    def root(self) -> int:
        assert self.process
        return self.process.pid

    def spawn(self, *command: str | Path, **environment: str) -> None:
        with (self.setup.directory / "supervisor.logging").open("ab") as log:
            self.process = subprocess.Popen(
                [str(argument) for argument in command],
                cwd=self.setup.directory,
                env=self.setup.environment(**environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def check(self) -> None:
        """Raises if the supervisor has ended with an error."""
        if self.process and self.process.poll():
            raise RuntimeError(f"it ended with {self.process.returncode}")

    def close(self) -> None:
        """Ends the supervisor and its remaining processes, found by the tag of this setup."""
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for _ in range(50):
            remaining = procfs.tagged_processes(self.setup.tag)
            for pid in remaining:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if not remaining:
                return
            time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def until(done: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.005)


class Pilothouse(Candidate):
    name = PILOTHOUSE

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.port = free_port()
        self.settings: dict[str, object] = {}

    @classmethod
    def missing(cls) -> str:
        return "" if (ROOT / "run.py").exists() else "no run.py"

    @classmethod
    def version(cls) -> str:
        return f"this tree, Tornado {importlib.metadata.version('tornado')}"

    def launch(self) -> None:
        process = {"command": list(self.setup.command), "auto-start": True, "restart": "always", "restart-delay": 0}
        processes = {name: {**process, "restart-limit": 0} for name in self.setup.names}
        config = self.setup.directory / "config.yaml"
        config.write_text(json.dumps({"supervisor": {"processes": processes, **self.settings}}))  # JSON is YAML
        data = self.setup.directory / "data"
        self.spawn(sys.executable, ROOT / "run.py", "--config", config, "--port", str(self.port), "--data-dir", data)

    def connect(self) -> None:
        until(self._ready, 30, "/readyz")

    def _ready(self) -> bool:
        self.check()
        try:
            return self.call("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def call(self, verb: str, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(verb, path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _group(self, verb: str) -> None:
        status, body = self.call("POST", f"/api/v1/processes/group/{verb}")
        if status != 200:
            raise RuntimeError(f"group {verb}: {status} {body[:200]!r}")

    def start_all(self) -> None:
        self._group("start")

    def stop_all(self) -> None:
        self._group("stop")

    def verify(self, pids: set[int]) -> None:
        def reported() -> set[int]:
            rows = json.loads(self.call("GET", "/api/v1/processes")[1])
            return {row["pid"] for row in rows if row["status"] == "running"}

        until(lambda: reported() == pids, 5, "GET /processes agrees with the children")

    def target_all(self) -> Target:
        return Target.get(self.port, "/api/v1/processes")

    def target_one(self) -> Target:
        return Target.get(self.port, f"/api/v1/processes/info/{self.setup.names[0]}")
