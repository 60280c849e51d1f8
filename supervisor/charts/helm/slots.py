"""Which helm there is, how many of it run at once and who waits for whom; with an environment from a short list."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from models.charts.helm_args import Version
from models.config.settings import Helm as Settings
from models.errors import Conflict, Unavailable
from supervisor.charts.helm.runner import NAME, Bounds, Output, Runner
from supervisor.charts.kube.config import Stamp, stamp
from supervisor.processes.child import TAG_VARIABLE, Children

log = logging.getLogger("charts")

_OURS = Path(__file__).resolve().parents[3] / ".tools" / "helm"
_OLDEST = Version(3, 14)
_PASSED_ON = (
    "PATH", "LANG", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy",
    "https_proxy", "no_proxy",
)  # fmt: skip
"""All that helm gets of our own environment; what leads to a cluster comes with the run (`Kube.environment`)."""
_STARTS_WITHIN = 20.0


class Helm:
    def __init__(self, settings: Settings, data_dir: Path, children: Children, mark: str, environ: Mapping[str, str]):
        """`mark` is the word by which children of ours are known: the instance of the store."""
        self.settings = settings
        self.runner = Runner(settings, children)
        self._environment = {name: environ[name] for name in _PASSED_ON if name in environ} | {
            TAG_VARIABLE: f"{mark}:0:{NAME}",
            "NO_COLOR": "1",
            "HELM_NO_PLUGINS": "1",
            **_homes(data_dir),
        }
        self._slots = asyncio.Semaphore(settings.max_concurrent or os.cpu_count() or 1)
        self._locks: dict[tuple[str, ...], asyncio.Lock] = {}
        self._waiting: Counter[tuple[str, ...]] = Counter()
        self._found: asyncio.Task[tuple[str, Version]] | None = None
        self._stamp: Stamp = ()

    # Which helm

    async def version(self) -> Version:
        """Of the helm that is used. Raises `Unavailable` where there is none, or none that is new enough."""
        return (await self._which())[1]

    @property
    def is_there(self) -> bool:
        """Whether one was found when it was last looked for."""
        found = self._found
        return found is not None and found.done() and not found.cancelled() and found.exception() is None

    @property
    def is_missing(self) -> bool:
        """Whether none was found when one was last looked for; before the first look, whether there is no such file."""
        if self._found is None:
            return shutil.which(self._binary or "") is None
        return self._found.done() and not self.is_there

    @property
    def _binary(self) -> str | None:
        return self.settings.binary or shutil.which("helm") or (str(_OURS) if _OURS.exists() else None)

    async def _which(self) -> tuple[str, Version]:
        if self._found is None or (self._found.done() and not self._is_current(self._found)):
            self._found = asyncio.create_task(self._detect(), name="helm version")
        return await asyncio.shield(self._found)

    def _is_current(self, found: asyncio.Task[tuple[str, Version]]) -> bool:
        """Whether it is the one that was found: an operator may put another in its place while we run."""
        return self.is_there and stamp([Path(found.result()[0])]) == self._stamp

    async def _detect(self) -> tuple[str, Version]:
        binary = self._binary
        if binary is None or not (found := shutil.which(binary)):
            where = f"{binary} is not there" if binary else "none is on PATH"
            raise Unavailable(f"there is no helm: {where} (svc.helm.binary)")
        path = str(Path(found).absolute())
        self._stamp = stamp([Path(path)])
        arguments = ["version", "--template={{.Version}}"]
        output = await self.runner.run(path, arguments, None, self._environment, Bounds(_STARTS_WITHIN, "20 s"), None)
        words = re.match(r"v?(\d+)\.(\d+)\.(\d+)", output.stdout.decode("utf-8", "replace"))
        if not output.ok or words is None:
            raise Unavailable("what svc.helm.binary names does not say its version as helm does")
        version = Version(*(int(word) for word in words.groups()))
        if (version.major, version.minor) < (_OLDEST.major, _OLDEST.minor) or version.major > 4:
            raise Unavailable(f"helm {version} is not one that is known here: 3.14 or later, or 4 (svc.helm.binary)")
        log.info("helm %s: %s", version, found)
        return path, version

    # Running it

    async def run(
        self,
        arguments: list[str],
        folder: Path,
        bounds: Bounds,
        values: bytes | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Output:
        """Runs it in `folder`, which is its temporary folder as well, and is empty.

        Raises `Unavailable` without helm or room for another, `bounds.over` where its time is over, `Unprocessable` for
        memory and output. What it says itself when it fails is for the caller to judge.
        """
        binary, _ = await self._which()
        async with self._slot():
            own = {**self._environment, "TMPDIR": str(folder), **(environment or {})}
            return await self.runner.run(binary, arguments, values, own, bounds, folder)

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self.settings.lock_timeout):
                await self._slots.acquire()
        except TimeoutError:
            raise Unavailable("as many helm run as may (svc.helm.max-concurrent), and none has ended in time") from None
        try:
            yield
        finally:
            self._slots.release()

    @contextlib.asynccontextmanager
    async def alone(self, *about: str) -> AsyncIterator[None]:
        """One change at a time for a release. Raises `Conflict` where another takes longer than we wait."""
        lock = self._locks.setdefault(about, asyncio.Lock())
        self._waiting[about] += 1
        waiting = asyncio.timeout(self.settings.lock_timeout)
        try:
            async with waiting, lock:
                waiting.reschedule(None)
                yield
        except TimeoutError:
            if not waiting.expired():
                raise
            raise Conflict(f"another operation on {about[-1]} is in progress") from None
        finally:
            self._waiting[about] -= 1
            if not self._waiting[about]:
                del self._waiting[about], self._locks[about]

    async def close(self) -> None:
        """Asks all that run to go, and waits: those that change a release have the time to say so."""
        if self._found is not None:
            self._found.cancel()
        await self.runner.close()


def _homes(data_dir: Path) -> dict[str, str]:
    """helm's own folders, under our data directory: it sees nobody else's repositories, plugins or credentials."""
    home = (data_dir / "helm").absolute()
    places = {
        "HOME": home,
        "HELM_CACHE_HOME": home / "cache",
        "HELM_CONFIG_HOME": home / "config",
        "HELM_DATA_HOME": home / "data",
        "HELM_PLUGINS": home / "plugins",
        "HELM_REPOSITORY_CONFIG": home / "config" / "repositories.yaml",
        "HELM_REPOSITORY_CACHE": home / "cache" / "repository",
        "HELM_REGISTRY_CONFIG": home / "config" / "registry.json",
        "HELM_CONTENT_CACHE": home / "cache" / "content",
    }
    for folder in (home.parent, home):
        folder.mkdir(mode=0o700, exist_ok=True)
    return {name: str(path) for name, path in places.items()}
