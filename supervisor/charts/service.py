"""The chart service: what lasts as long as the house, and the work of one request.

`Charts` holds what all requests share; `Work` is what an operation gets: its own folder, removed when it is over, and
the cluster that the request is about.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from attrs import frozen

from models.charts import helm_errors
from models.config.settings import Config
from models.errors import Failed, Problem
from supervisor.charts.dependencies import Dependencies
from supervisor.charts.helm.recovery import Pending
from supervisor.charts.helm.releases import ByHelm
from supervisor.charts.helm.runner import Bounds
from supervisor.charts.helm.slots import Helm
from supervisor.charts.http.client import Fetcher
from supervisor.charts.hub import Hub
from supervisor.charts.kube.config import Kube, Place
from supervisor.charts.oci import Registries
from supervisor.charts.registry_logins import RegistryLogins
from supervisor.charts.release_reads import Clusters, Reads
from supervisor.charts.release_summary import Overview
from supervisor.charts.repositories import Repositories
from supervisor.charts.sources import Sources
from supervisor.charts.workspace import Folders
from supervisor.clock import Clock
from supervisor.processes.child import Children

log = logging.getLogger("charts")

_READ_TAKES = 50.0
_LOOKS_AFTER = 3.0
"""Seconds: the start of the processes has the processors to itself until then."""
_SETTLES_WITHIN = 2.0
_LOOKED_LASTS = 10.0


@frozen
class Target:
    """The cluster that a request is about; `None` means what the configuration says."""

    kubeconfig: Path | None = None
    context: str | None = None


Choose = Callable[[Any], Target]
"""What a host application may pass: from a request (`HTTPServerRequest`, `None` for a tool's call) to its cluster."""


class Charts:
    """What all requests share."""

    def __init__(
        self,
        config: Config,
        data_dir: Path,
        children: Children,
        instance: str,
        environ: Mapping[str, str],
        choose: Choose | None = None,
    ) -> None:
        """`data_dir` is the house's; `instance` the word by which children of ours are known."""
        self.svc = svc = config.svc
        self.data_dir = data_dir / "charts"
        self.choose = choose
        self.folders = Folders(svc.rest.temp_dir)
        self._tasks: list[asyncio.Task[None]] = []
        self._looked = float("-inf")
        self.helm = Helm(svc.helm, self.data_dir, children, instance, environ)
        configured = Path(svc.kube.kubeconfig) if svc.kube.kubeconfig else None
        self.fetcher = Fetcher(svc.fetch, svc.security)
        self.clock = Clock()
        self.repositories = Repositories(self.fetcher, self.clock)
        self.registries = Registries(self.fetcher, RegistryLogins(environ))
        self.sources = Sources(self.fetcher, self.repositories, self.registries)
        self.dependencies = Dependencies(self.repositories, self.registries)
        self.hub = Hub(self.fetcher, svc.hub.url)
        self.clusters = Clusters(Kube(configured, svc.kube.context, environ), self._by_helm)
        self.pending = Pending(self.data_dir / "changing", self.clusters, instance)
        self.overview = Overview()

    async def start(self) -> None:
        """Sweeps the temporary folder, and takes up what a server before us was doing when it was killed."""
        try:
            await asyncio.to_thread(self.folders.open)
        except OSError as error:
            log.error("svc.rest.temp-dir: %s: %s", self.svc.rest.temp_dir, error.strerror)
        self.pending.read()
        loop = asyncio.get_running_loop()
        for name, work in {
            "settle changes": self.pending.settle(self.helm.alone),
            "look for helm": self._look(),
        }.items():
            self._tasks.append(loop.create_task(work, name=name))

    async def _look(self) -> None:
        """Asks helm for its version when the start is over, unless somebody has had to know it before."""
        await asyncio.sleep(_LOOKS_AFTER)
        try:
            await self.helm.version()
        except Problem as problem:
            log.warning("%s", problem.message)

    async def settle(self) -> None:
        """Waits a moment until it is known whether there is a helm; where there was none, looks again at times."""
        if self.helm.is_there or time.monotonic() < self._looked + _LOOKED_LASTS:
            return
        self._looked = time.monotonic()
        with contextlib.suppress(TimeoutError, Problem):
            async with asyncio.timeout(_SETTLES_WITHIN):
                await self.helm.version()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self.helm.close()
        await self.pending.close()
        self.clusters.close()
        self.folders.close()

    def has_cluster(self, target: Target) -> bool:
        return self.clusters.has(target.kubeconfig, target.context)

    async def _by_helm(self, place: Place) -> ByHelm:
        """helm, as one who reads releases of a cluster. Raises `Unavailable`."""

        async def ask(arguments: list[str]) -> str:
            folder = await asyncio.to_thread(self.folders.new)
            try:
                bounds = Bounds(_READ_TAKES, "for a reading")
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
                raise helm_errors.problem(output.stderr)
            return output.stdout.decode("utf-8", "replace")

        return ByHelm(ask, (await self.helm.version()).major)

    def groups(self) -> dict[str, bool]:
        """Which groups are on: what they need is there. `helm`: whether what needs it can be done."""
        own = {"charts": True, "repositories": True, "hub": True, "dependencies": True}
        return {"helm": self.helm.is_there, "releases": self.has_cluster(Target()), **own}

    def work(self, request: Any = None) -> Work:
        """The work of one request: `async with charts.work(request) as work:`."""
        return Work(self, self.choose(request) if self.choose else Target())


class Work:
    """What one operation is done with. Its folder is made when it is asked for, and removed at the end."""

    def __init__(self, charts: Charts, target: Target) -> None:
        self.charts = charts
        self.target = target
        self.begun = False
        """Whether a change has begun that must be let finish, though the client has left."""
        self._folder: Path | None = None

    @property
    def folder(self) -> Path:
        """A private folder of this request. Raises `Failed`."""
        if self._folder is None:
            try:
                self._folder = self.charts.folders.new()
            except OSError as error:
                raise Failed(
                    f"there is no room for what the request brings: {error.strerror} (svc.rest.temp-dir)"
                ) from None
        return self._folder

    @property
    def place(self) -> Place:
        """The cluster that this is about. Raises `NotFound`."""
        return self.charts.clusters.place(self.target.kubeconfig, self.target.context)

    @property
    def reads(self) -> Reads:
        """What may be asked of its releases. Raises `NotFound`."""
        return self.charts.clusters.reads(self.target.kubeconfig, self.target.context)

    def begin(self) -> None:
        """A change begins now."""
        self.begun = True

    def subfolder(self, name: str) -> Path:
        """A fresh, empty folder in the private one."""
        made = self.folder / name
        made.mkdir()
        return made

    async def __aenter__(self) -> Work:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Removes the folder. It may be large, so a worker does it, which goes on where this is cancelled."""
        if self.begun and (place := self.charts.clusters.kube.place(self.target.kubeconfig, self.target.context)):
            self.charts.overview.forget(place)
        folder, self._folder = self._folder, None
        if folder is not None:
            await asyncio.shield(asyncio.to_thread(self.charts.folders.remove, folder))

    def drop(self) -> None:
        """Removes the folder at once: before anything was done there is little in it."""
        if self._folder is not None:
            self.charts.folders.remove(self._folder)
            self._folder = None
