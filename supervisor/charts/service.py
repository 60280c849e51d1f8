"""The chart service: the objects that all requests share (`Charts`), and the context of one request (`Work`).

Each request gets a private folder, removed when it ends, and the cluster that it is about.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from threading import Lock
from typing import Any

from attrs import evolve, frozen

from models.charts import helm_errors
from models.charts.repositories import registries
from models.config.settings import Config
from models.errors import Denied, Failed, Invalid, Problem, Unauthenticated
from supervisor.charts.fetcher import Fetcher
from supervisor.charts.helm import recovery
from supervisor.charts.helm.recovery import Recovery
from supervisor.charts.helm.releases import ByHelm
from supervisor.charts.helm.runner import CHANGE_GRACE_SECONDS, Bounds
from supervisor.charts.helm.slots import Helm
from supervisor.charts.hub import Hub
from supervisor.charts.kube.config import ConfiguredCluster, Kube
from supervisor.charts.oci import Registries
from supervisor.charts.registry_logins import RegistryLogins
from supervisor.charts.release_reads import Clusters, Reads, ReleasesOverview
from supervisor.charts.repositories import Repositories
from supervisor.charts.sources import Dependencies, Sources
from supervisor.charts.upgrades import Upgrades
from supervisor.charts.workers import Workers
from supervisor.children.child import Children
from supervisor.clock import Clock
from supervisor.workers.pool import WorkerPool

log = logging.getLogger("charts")

_PREFIX = "pilothouse-"
_LOCK = ".lock"


class RequestFolders:
    """This server's folder of request folders, below `svc.rest.temp-dir`.

    Its lock shows later servers whether it is in use.
    """

    def __init__(self, base: Path | None) -> None:
        self._base = base or Path(tempfile.gettempdir())
        self._own: Path | None = None
        self._lock = -1
        self._opening = Lock()
        self._left: set[Path] = set()

    def open(self) -> None:
        """Creates this server's folder if it is missing, and removes those of dead servers. Raises `OSError`."""
        with self._opening:
            if self._own is None or not self._own.exists():  # /tmp may be cleaned while the server runs
                self._release_lock()
                self._make()

    def _make(self) -> None:
        self._base.mkdir(parents=True, exist_ok=True)
        self._sweep()
        self._own = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self._base))
        unlocked = self._own / f"{_LOCK}.new"  # another server removes a folder whose lock file is not locked
        self._lock = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unlocked.rename(self._own / _LOCK)

    def new(self) -> Path:
        """Creates a private folder. Raises `OSError`."""
        self.open()
        return Path(tempfile.mkdtemp(dir=self._own))

    def place(self, name: str) -> Path:
        """Where a private folder of that name can be made. Raises `OSError`."""
        self.open()
        assert self._own is not None
        return self._own / name

    def remove(self, folder: Path) -> None:
        """Removes a folder; one that cannot be removed now is tried again with the next."""
        self._left.add(folder)
        for path in list(self._left):
            shutil.rmtree(path, ignore_errors=True)
            if not path.exists():
                self._left.discard(path)

    def close(self) -> None:
        if self._own is not None:
            self.remove(self._own)
        self._release_lock()

    def _release_lock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        self._own, self._lock = None, -1

    def _sweep(self) -> None:
        for folder in self._base.glob(f"{_PREFIX}*"):
            try:
                handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError:
                continue  # not a folder of this program
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.remove(folder)
                log.info("removed %s, left by an earlier server", folder)
            except BlockingIOError:
                pass
            finally:
                os.close(handle)


LONGEST_HELM_STOP_SECONDS = 2 * CHANGE_GRACE_SECONDS + recovery.CLOSE_SECONDS
"""A change that ends by SIGTERM without a record gets the time twice: before that signal, and before SIGKILL."""
_READ_TIMEOUT_SECONDS = 50.0
_DETECTION_DELAY_SECONDS = 3.0
"""Supervised processes start first."""
_DETECTION_WAIT_SECONDS = 2.0
_DETECTION_INTERVAL_SECONDS = 10.0


@frozen
class Target:
    """The cluster of a request; `None` means the configured one."""

    kubeconfig: Path | None = None
    context: str | None = None


Observe = Callable[[str, str, str], AbstractAsyncContextManager[None]]
"""Takes the namespace and name of a release and helm's command; the context lasts as long as the change."""

Choose = Callable[[Any], Target]
"""A host application's function from a request (`HTTPServerRequest`; `None` for a tool call) to its cluster."""


class Charts:
    """The objects that all requests share."""

    def __init__(
        self,
        config: Config,
        data_dir: Path,
        children: Children,
        instance: str,
        environ: Mapping[str, str],
        choose: Choose | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`data_dir` is the server's; `instance` tags the processes that this server starts."""
        self.svc = svc = config.svc
        self.data_dir = data_dir / "charts"
        self.choose = choose
        self.observe: Observe = lambda namespace, name, command: contextlib.nullcontext()
        """Reports the changes of releases to others."""
        self.clock = clock or Clock()
        self.folders = RequestFolders(svc.rest.temp_dir)
        pool = WorkerPool(config.server.workers, children, instance, environ, svc.work.queue, "svc.work.queue")
        self.workers = Workers(svc.work, pool, self.folders)
        self._tasks: list[asyncio.Task[None]] = []
        self._detected_at = float("-inf")
        self.helm = Helm(svc.helm, self.data_dir, children, instance, environ)
        configured = Path(svc.kube.kubeconfig) if svc.kube.kubeconfig else None
        self.fetcher = Fetcher(svc.fetch, svc.security)
        self.repositories = Repositories(self.fetcher, self.clock, self.workers)
        self.registries = Registries(self.fetcher, RegistryLogins(environ, registries.login), self.workers)
        self.sources = Sources(self.fetcher, self.repositories, self.registries, self.workers)
        self.dependencies = Dependencies(self.repositories, self.registries, self.workers)
        self.hub = Hub(self.fetcher, svc.hub.url, self.clock, self.workers)
        self.clusters = Clusters(
            Kube(configured, svc.kube.context, environ), self._by_helm, self.clock, self.workers, svc.kube.namespaces
        )
        self.recovery = Recovery(self.data_dir / "changing", self.clusters, instance, self.clock)
        self.overview = ReleasesOverview(self.clock)
        self.upgrades = Upgrades(self.repositories, self.registries, self.clock, svc.upgrades.interval)

    async def start(self) -> None:
        """Opens the temporary folder and recovers changes that a killed server left."""
        try:
            await asyncio.to_thread(self.folders.open)
        except OSError as error:
            log.error("svc.rest.temp-dir: %s: %s", self.svc.rest.temp_dir, error.strerror)
        self.recovery.read()
        loop = asyncio.get_running_loop()
        for name, work in {
            "settle changes": self.recovery.settle(self.helm.exclusive),
            "look for helm": self._detect_helm(),
        }.items():
            self._tasks.append(loop.create_task(work, name=name))

    async def _detect_helm(self) -> None:
        """Detects helm after the start unless a request has done so."""
        await self.clock.sleep(_DETECTION_DELAY_SECONDS)
        try:
            await self.helm.version()
        except Problem as problem:
            log.warning("%s", problem.message)

    async def settle(self) -> None:
        """Waits briefly until helm has been detected; without helm, detects again at intervals."""
        if self.helm.is_there or self.clock.since_boot() < self._detected_at + _DETECTION_INTERVAL_SECONDS:
            return
        self._detected_at = self.clock.since_boot()
        with contextlib.suppress(TimeoutError, Problem):
            async with asyncio.timeout(_DETECTION_WAIT_SECONDS):
                await self.helm.version()

    async def end_jobs(self) -> None:
        """Ends reads at once; helm processes that change a release get time to record it."""
        for task in self._tasks:
            task.cancel()
        await self.workers.end_calls()
        await self.helm.close()
        await self.recovery.close()  # it reads stored releases
        await self.workers.close()

    def close(self) -> None:
        self.upgrades.close()
        self.clusters.close()
        self.folders.close()

    def has_cluster(self, target: Target) -> bool:
        return self.clusters.has(target.kubeconfig, target.context)

    async def _by_helm(self, place: ConfiguredCluster) -> ByHelm:
        """A reader of releases that runs helm. Raises `Unavailable`."""

        async def run(arguments: list[str]) -> str:
            folder = await asyncio.to_thread(self.folders.new)
            try:
                bounds = Bounds(_READ_TIMEOUT_SECONDS, "for a read")
                command, *rest = arguments
                output = await self.helm.run(
                    [command, *place.arguments, *rest],
                    folder,
                    bounds,
                    environment=place.environment,
                )
            finally:
                await asyncio.shield(asyncio.to_thread(self.folders.remove, folder))
            if not output.ok:
                raise helm_errors.problem_from_output(output.stderr)
            return output.stdout.decode("utf-8", "replace")

        return ByHelm(run, (await self.helm.version()).major, self.workers)

    def groups(self) -> dict[str, bool]:
        """Which groups are enabled. `helm`: whether helm was found."""
        own = {"charts": True, "repositories": True, "hub": True, "dependencies": True}
        return {"helm": self.helm.is_there, "releases": self.has_cluster(Target()), **own}

    def work(self, request: Any = None) -> Work:
        """The context of one request. It has to be closed where an operation runs in it: its folder is removed then."""
        return Work(self, self.choose(request) if self.choose else Target())


def _deny_change() -> None:
    raise Denied("changes are not permitted here")


class Work:
    """The context of one operation. Its folder is created on first use and removed at the end."""

    def __init__(self, charts: Charts, target: Target) -> None:
        self.charts = charts
        self.target = target
        self.begun = False
        """Whether a change has begun that must finish even if the client leaves."""
        self.caller: str | None = None
        """The caller to whom helm's slots are counted; `None` is privileged."""
        self.has_key = False
        """Whether the caller presented the chart key, or started this process (stdio)."""
        self.check_change: Callable[[], None] = _deny_change
        """Checks the permission to change charts where only the body shows that it is needed. Raises as `admit`."""
        self.has_left = False
        """Whether the client left before a change had begun."""
        self._folder: Path | None = None
        self._task: asyncio.Task[Any] | None = None

    @property
    def folder(self) -> Path:
        """A private folder of this request. Raises `Failed`."""
        if self._folder is None:
            try:
                self._folder = self.charts.folders.new()
            except OSError as error:
                raise Failed(f"the request's files cannot be stored: {error.strerror} (svc.rest.temp-dir)") from None
        return self._folder

    @property
    def place(self) -> ConfiguredCluster:
        """The cluster of this request. Raises `NotFound`."""
        return self.charts.clusters.place(self.target.kubeconfig, self.target.context)

    @property
    def reads(self) -> Reads:
        """Reads of its releases. Raises `NotFound`."""
        return self.charts.clusters.reads(self.target.kubeconfig, self.target.context)

    def use_context(self, context: object) -> None:
        """Selects the context that a request names. Raises `Invalid` if `svc.kube.contexts` does not have it."""
        if not isinstance(context, str):
            return
        if context not in self.charts.svc.kube.contexts:
            raise Invalid(f"context: {context[:200]} is not one of svc.kube.contexts")
        self.target = evolve(self.target, context=context)

    def check_key(self, what: str) -> None:
        """Raises `Unauthenticated` without the chart key; `what` names the input that needs it."""
        if not self.has_key:
            raise Unauthenticated(f"{what} needs the key of the charts ({self.charts.svc.security.api_key_header})")

    async def start(self, operation: Coroutine[Any, Any, Any], name: str) -> Any:
        """Runs the operation in a task that `leave` can cancel, and keeps no reference to its result."""
        if self.has_left:
            operation.close()
            raise asyncio.CancelledError
        self._task = asyncio.create_task(operation, name=name)
        try:
            return await self._task
        finally:
            self._task = None

    def leave(self) -> None:
        """The client has left: cancels the operation unless a change has begun."""
        if not self.begun:
            self.has_left = True
            if self._task is not None:
                self._task.cancel()

    def begin(self) -> None:
        """Marks the point from which the change must finish."""
        self.begun = True

    def subfolder(self, name: str) -> Path:
        """Creates an empty folder in the private one."""
        made = self.folder / name
        made.mkdir()
        return made

    async def aclose(self) -> None:
        """Removes the folder in a worker, which continues if this call is cancelled."""
        if self.begun and (place := self.charts.clusters.kube.place(self.target.kubeconfig, self.target.context)):
            self.charts.overview.forget(place)
        folder, self._folder = self._folder, None
        if folder is not None:
            await asyncio.shield(asyncio.to_thread(self.charts.folders.remove, folder))

    def drop(self) -> None:
        """Removes the folder immediately; before an operation starts it holds little."""
        if self._folder is not None:
            self.charts.folders.remove(self._folder)
            self._folder = None
