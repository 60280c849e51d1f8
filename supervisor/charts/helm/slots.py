"""Finds the helm binary, limits concurrent helm processes, locks releases, and builds helm's environment."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path

from models.charts.helm_args import HelmVersion
from models.config.settings import HelmSettings
from models.errors import Conflict, Throttled, Unavailable
from supervisor.charts.helm.runner import PROCESS_NAME, Bounds, Output, Runner
from supervisor.charts.kube.config import Stamp, stamp
from supervisor.children.child import Children
from supervisor.children.tags import TAG_VARIABLE

log = logging.getLogger("charts")

_CHECKOUT_BINARY = Path(__file__).resolve().parents[3] / ".tools" / "helm"
_OLDEST_VERSION = HelmVersion(3, 14)
_INHERITED_VARIABLES = (
    "PATH", "LANG", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy",
    "https_proxy", "no_proxy",
)  # fmt: skip
"""All that helm inherits from the server's environment; `Kube.environment` adds the cluster's variables."""
_VERSION_TIMEOUT_SECONDS = 20.0
_RETRY_SECONDS = 5
_NO_CALLER = "\x00nobody"


caller: ContextVar[str | None] = ContextVar("caller", default=None)
"""Who runs helm: an account or an address; `None` for changes, for the holder of the key and for the server itself.
"""


_LEAST_DEFAULT_SLOTS = 3
_OPEN_CALLER_NICENESS = 10


class Slots:
    """Hands out slots for helm processes fairly.

    Privileged calls may use all slots and come first. An open caller may use a part of the rest and wait in a bounded
    queue; slots rotate among the callers.
    """

    def __init__(self, settings: HelmSettings) -> None:
        self._settings = settings
        self._slots = max(2, settings.max_concurrent or max(_LEAST_DEFAULT_SLOTS, os.cpu_count() or 1))
        self._open_slots = max(1, self._slots - settings.reserved)
        self._per_caller = settings.per_caller or max(1, self._open_slots // 2)
        self._calls: Counter[str | None] = Counter()
        self._running: Counter[str | None] = Counter()
        self._waiting: OrderedDict[str | None, deque[asyncio.Future[None]]] = OrderedDict()
        """Waiting calls by caller, in the order in which the callers get slots."""

    @contextlib.contextmanager
    def one_call(self) -> Iterator[None]:
        """Counts a call of an open caller from its beginning, so that its archive does not crowd out those of others.

        Raises `Throttled` if as many of its calls are under way as may run and wait.
        """
        who = caller.get()
        if who is not None and self._calls[who] >= self._per_caller + self._settings.queue_per_caller:
            raise self._throttled()
        self._calls[who] += 1
        try:
            yield
        finally:
            self._calls[who] -= 1
            if not self._calls[who]:
                del self._calls[who]

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Waits for a slot. Raises `Throttled` or `Unavailable` if too many wait or none becomes free in time."""
        who = caller.get()
        await self._acquire(who)
        try:
            yield
        finally:
            self._release(who)

    async def _acquire(self, who: str | None) -> None:
        if not self._may_wait_ahead(who) and self._is_free(who):
            self._running[who] += 1
            return
        self._check_queue(who)
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(who, deque()).append(granted)
        try:
            async with asyncio.timeout(self._settings.lock_timeout):
                await granted
        except BaseException as error:
            if granted.done() and not granted.cancelled():
                self._release(who)
            else:
                self._remove(who, granted)
            if isinstance(error, TimeoutError):
                raise Unavailable("all helm slots are in use (svc.helm.max-concurrent)") from None
            raise

    def _may_wait_ahead(self, who: str | None) -> bool:
        """Whether earlier calls of the same caller, or of callers that authenticated, wait for the free slot."""
        return who in self._waiting or None in self._waiting

    def _check_queue(self, who: str | None) -> None:
        if who is None:
            return
        if len(self._waiting.get(who, ())) >= self._settings.queue_per_caller:
            raise self._throttled()
        if sum(len(calls) for name, calls in self._waiting.items() if name is not None) >= self._settings.queue:
            raise Unavailable("too many calls wait for helm (svc.helm.queue)")

    def _throttled(self) -> Throttled:
        limit = f"{self._settings.queue_per_caller} (svc.helm.queue-per-caller)"
        return Throttled(f"more than {limit} calls of this caller wait for helm", _RETRY_SECONDS)

    def _is_free(self, who: str | None) -> bool:
        running = self._running.total()
        if who is None:
            return running < self._slots
        open_running = running - self._running[None]
        return running < self._slots and open_running < self._open_slots and self._running[who] < self._per_caller

    def _release(self, who: str | None) -> None:
        self._running[who] -= 1
        if not self._running[who]:
            del self._running[who]
        while (following := self._next()) is not _NO_CALLER:
            granted = self._waiting[following].popleft()
            if not granted.cancelled():  # else its call has been cancelled and has not run since
                self._running[following] += 1
                granted.set_result(None)
            if not self._waiting[following]:
                del self._waiting[following]
            elif not granted.cancelled():
                self._waiting.move_to_end(following)

    def _next(self) -> str | None:
        """Returns the caller that gets the next slot; `_NO_CALLER` if no slot is free for a waiting caller."""
        if None in self._waiting:
            return None if self._is_free(None) else _NO_CALLER
        return next((who for who in self._waiting if self._is_free(who)), _NO_CALLER)

    def _remove(self, who: str | None, granted: asyncio.Future[None]) -> None:
        """Leaves the queue, unless `_release` has removed the cancelled call already."""
        calls = self._waiting.get(who, deque())
        if granted in calls:
            calls.remove(granted)
            if not calls:
                del self._waiting[who]


class Helm:
    def __init__(
        self, settings: HelmSettings, data_dir: Path, children: Children, tag: str, environ: Mapping[str, str]
    ):
        """`tag` marks this server's processes: the instance of the store."""
        self.settings = settings
        self.runner = Runner(settings, children)
        self._environment = {name: environ[name] for name in _INHERITED_VARIABLES if name in environ} | {
            TAG_VARIABLE: f"{tag}:0:{PROCESS_NAME}",
            "NO_COLOR": "1",
            "HELM_NO_PLUGINS": "1",
            **_helm_folders(data_dir),
        }
        self._slots = Slots(settings)
        self._locks: dict[tuple[str, ...], asyncio.Lock] = {}
        self._waiting: Counter[tuple[str, ...]] = Counter()
        self._detection: asyncio.Task[tuple[str, HelmVersion]] | None = None
        self._binary_stamp: Stamp = ()

    @contextlib.contextmanager
    def called_by(self, who: str | None, is_counted: bool = False) -> Iterator[None]:
        """Counts the helm processes started within for a caller; `None` is privileged.

        With `is_counted` the call itself counts from now on. Raises `Throttled`.
        """
        token = caller.set(who)
        try:
            with self._slots.one_call() if is_counted else contextlib.nullcontext():
                yield
        finally:
            caller.reset(token)

    # The binary

    async def version(self) -> HelmVersion:
        """The version of helm. Raises `Unavailable` if helm is missing or too old."""
        return (await self._find())[1]

    @property
    def is_there(self) -> bool:
        """Whether the last detection found helm."""
        detection = self._detection
        return (
            detection is not None and detection.done() and not detection.cancelled() and detection.exception() is None
        )

    @property
    def is_missing(self) -> bool:
        """Whether the last detection found no helm; before the first one, whether the file is missing."""
        if self._detection is None:
            return shutil.which(self._binary or "") is None
        return self._detection.done() and not self.is_there

    @property
    def _binary(self) -> str | None:
        return (
            self.settings.binary
            or shutil.which("helm")
            or (str(_CHECKOUT_BINARY) if _CHECKOUT_BINARY.exists() else None)
        )

    async def _find(self) -> tuple[str, HelmVersion]:
        if self._detection is None or (self._detection.done() and not self._is_current(self._detection)):
            self._detection = asyncio.create_task(self._detect(), name="helm version")
        return await asyncio.shield(self._detection)

    def _is_current(self, detection: asyncio.Task[tuple[str, HelmVersion]]) -> bool:
        """Whether the detected binary is unchanged; an operator may replace it while the server runs."""
        return self.is_there and stamp([Path(detection.result()[0])]) == self._binary_stamp

    async def _detect(self) -> tuple[str, HelmVersion]:
        binary = self._binary
        if binary is None or not (executable := shutil.which(binary)):
            reason = f"{binary} does not exist" if binary else "none is on PATH"
            raise Unavailable(f"there is no helm: {reason} (svc.helm.binary)")
        path = str(Path(executable).absolute())
        self._binary_stamp = stamp([Path(path)])
        arguments = ["version", "--template={{.Version}}"]
        output = await self.runner.run(
            path, arguments, None, self._environment, Bounds(_VERSION_TIMEOUT_SECONDS, "20 s"), None
        )
        match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", output.stdout.decode("utf-8", "replace"))
        if not output.ok or match is None:
            raise Unavailable("svc.helm.binary does not report a version as helm does")
        version = HelmVersion(*(int(number or 0) for number in match.groups()))  # `go install` leaves out the patch
        if (version.major, version.minor) < (_OLDEST_VERSION.major, _OLDEST_VERSION.minor) or version.major > 4:
            raise Unavailable(f"helm {version} is not supported: 3.14 or later, or 4 is needed (svc.helm.binary)")
        log.info("helm %s: %s", version, executable)
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
        """Runs helm in `folder`, an empty folder that is also its temporary folder.

        Raises `Unavailable` without helm or a free slot, `bounds.timeout_problem`, and `Unprocessable` for memory or
        output. The caller judges helm's own failures.
        """
        binary, _ = await self._find()
        async with self._slots.slot():
            variables = {**self._environment, "TMPDIR": str(folder), **(environment or {})}
            nice = None if caller.get() is None else max(_OPEN_CALLER_NICENESS, os.getpriority(os.PRIO_PROCESS, 0))
            return await self.runner.run(binary, arguments, values, variables, bounds, folder, nice)

    @contextlib.asynccontextmanager
    async def exclusive(self, *release_key: str) -> AsyncIterator[None]:
        """Locks a release for one change. Raises `Conflict` if another change takes longer than the lock timeout."""
        lock = self._locks.setdefault(release_key, asyncio.Lock())
        self._waiting[release_key] += 1
        waiting = asyncio.timeout(self.settings.lock_timeout)
        try:
            async with waiting, lock:
                waiting.reschedule(None)
                yield
        except TimeoutError:
            if not waiting.expired():
                raise
            raise Conflict(f"another operation on {release_key[-1]} is in progress") from None
        finally:
            self._waiting[release_key] -= 1
            if not self._waiting[release_key]:
                del self._waiting[release_key], self._locks[release_key]

    async def close(self) -> None:
        """Ends all helm processes; those that change a release get time to record it."""
        if self._detection is not None:
            self._detection.cancel()
        await self.runner.close()


def _helm_folders(data_dir: Path) -> dict[str, str]:
    """helm's own folders in the data directory, isolated from the user's repositories, plugins and credentials."""
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
