"""Everything that lives as long as the server: opened in order, closed in reverse."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import peewee
from attrs import evolve

from models.charts.repositories.stored import catalogue
from models.config import loader
from models.config.settings import BadConfig, Config, WorkerSettings
from models.errors import CannotUse, Invalid, Problem
from models.supervision import record
from models.supervision.events import StatusEvent
from models.supervision.record import Record
from models.supervision.tables import database, fact
from models.tracker.runs.run_events import RunUpdate
from models.tracker.tables import reports
from supervisor.accounts.logins import Accounts
from supervisor.charts.service import LONGEST_HELM_STOP_SECONDS, Charts, Choose
from supervisor.clock import Clock
from supervisor.maintenance import INTERVAL_SECONDS, Maintenance
from supervisor.outbound.service import Outbound
from supervisor.processes.fleet import Reload
from supervisor.processes.history import History, OwnHistory
from supervisor.processes.logs.log_search import MAX_QUEUED_SEARCHES, LogSearch
from supervisor.processes.process.context import unusable_files
from supervisor.processes.service import Supervision
from supervisor.processes.usage import MemoryLimits
from supervisor.pubsub import PubSub
from supervisor.scheduling import BackgroundTasks, seconds_until
from supervisor.systemd import Systemd
from supervisor.tracker.disk_space import DiskSpace
from supervisor.tracker.ingest import MAX_QUEUED_UPLOADS
from supervisor.tracker.service import Tracker
from supervisor.tracker.store import open_store, store_location
from supervisor.workers.pool import WorkerPool

if TYPE_CHECKING:
    from supervisor.accounts.oidc.sign_on import SignOn
    from supervisor.replication import Sharing

log = logging.getLogger("server")

Result = TypeVar("Result")

ANSWER_SECONDS = 5.0
"""How long a stop waits for responses after all jobs and processes have ended."""
QUERY_SECONDS = 1.0
"""How long a stop waits after that for the 503 of longer queries, which it ends."""
KILL_SECONDS = 5.0
"""For processes and uploads that are killed at the end of `server.shutdown-timeout`."""
FLUSH_SECONDS = 5.0
"""For what is stored at the end."""
_PRUNE_SECONDS = 600.0
_WORKERS = 4
_WORKERS_WITH_REMOTE_STORE = 12
"""Some of them wait for the database."""
_SWITCH_SECONDS = 0.0005
"""How long a worker thread keeps the interpreter; Python's default of 5 ms would delay every response."""


class CannotStart(Exception):
    """A fault that only the operator can fix, in one line."""


def _report_failure(task: str, error: BaseException) -> None:
    log.error("the task %s ended: %s", task, error, exc_info=error)


def lock_data_dir(path: Path) -> int:
    """Creates the data directory, locks it and writes the server's pid into the lock. Raises `CannotStart`."""
    handle = -1
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.pwrite(handle, b"%-10d\n" % os.getpid(), 0)  # of one length, so that a full disk has room for the next
    except BlockingIOError:
        pid = os.pread(handle, 10, 0).decode("ascii", "replace").strip()
        raise CannotStart(f"{path}: another pilothouse is running on this data directory (pid {pid})") from None
    except FileExistsError:
        raise CannotStart(f"{path}: the data directory cannot be made: there is a file of that name") from None
    except OSError as error:
        raise CannotStart(f"{path}: the data directory cannot be written: {error.strerror}") from None
    return handle


class Front(Protocol):
    """What clients see. `handlers/front.py` has it."""

    async def refuse(self) -> None:
        """Accepts no connection any more, and ends streams."""

    async def answer(self, seconds: float) -> None:
        """Waits until the requests in progress are answered, at most so long."""

    async def close(self) -> None:
        """Closes all connections."""


def longest_stop(config: Config) -> float:
    """The seconds that a stop takes at most, unless the disk stalls."""
    jobs = max(config.server.shutdown_timeout + KILL_SECONDS, LONGEST_HELM_STOP_SECONDS)
    return jobs + ANSWER_SECONDS + QUERY_SECONDS + FLUSH_SECONDS


class Services:
    """Everything that lives as long as the server. `open_services` makes it, whole, and closes it."""

    front: Front | None = None
    """What clients see, once the server listens."""

    def __init__(
        self,
        settings: Config,
        read_config: Callable[[], Config],
        port: int,
        clock: Clock,
        choose_cluster: Choose | None,
        instance: str,
        records: Mapping[str, Record],
    ) -> None:
        """The stores are open. Raises `peewee.PeeweeException`, `OSError`."""
        self.config = settings
        self.clock = clock
        self.port = port
        self.data_dir = Path(settings.server.data_dir)
        self.changes: PubSub[StatusEvent] = PubSub()
        self.answered: Counter[int] = Counter()
        """The number of requests answered, by status code."""
        self._read_config = read_config
        self._tasks = BackgroundTasks(_report_failure)
        self._reloading = asyncio.Lock()
        self.systemd = Systemd(os.environ, os.getpid())
        runs: PubSub[RunUpdate] = PubSub()
        self.sharing = self._join_nodes(instance, runs) if self.is_shared else None
        history: History = self.sharing.history if self.sharing else OwnHistory()
        publish = self.sharing.history.notice if self.sharing else self.changes.publish
        self.supervision = supervision = Supervision(settings, clock, instance, records, history, publish)
        context = supervision.context
        self.charts = Charts(
            settings, self.data_dir, context.children, instance, context.environment, choose_cluster, clock
        )
        self.accounts, self.sign_on = self._logins()
        upload_pool = WorkerPool(settings.server.workers, context.children, instance, os.environ, MAX_QUEUED_UPLOADS)
        self.log_search = _log_search(settings.server.workers, supervision, instance)
        self.disk = DiskSpace(self.data_dir, settings.server.storage.min_free)
        self.disk.measure()
        self.tracker = Tracker(settings, clock, runs, self.sharing, upload_pool, self.disk)
        self.outbound = self._notifications(instance, runs)
        self.charts.observe = self.outbound.release_change
        self.maintenance = _maintenance(supervision, self.data_dir / "tracker.db-wal", self.disk)

    def _logins(self) -> tuple[Accounts, SignOn | None]:
        """The accounts, and the logins by an identity provider, if one is configured. Raises `CannotUse`."""
        accounts = Accounts(self.config.tracker.security, self.clock)
        if self.config.tracker.security.oidc.issuer is None:
            return accounts, None
        try:
            from supervisor.accounts.oidc.sign_on import SignOn  # imports PyJWT, which is an extra
        except ImportError as error:
            raise CannotUse(
                f"tracker.security.oidc needs the extra `crypto` (pip install 'pilothouse[crypto]'): {error}"
            ) from None
        return accounts, SignOn(self.config, accounts, self.clock, self.charts.workers.parse_json)

    def _check_apps(self) -> None:
        """Raises `CannotUse` if a forge has a GitHub App, and what signs for it is not installed."""
        named = [name for name, forge in self.config.tracker.forges.items() if forge.app is not None]
        if not named:
            return
        try:
            import cryptography  # noqa: F401 (large, and of the extra)
            import jwt  # noqa: F401
        except ImportError as error:
            extra = "the extra `crypto` (pip install 'pilothouse[crypto]')"
            raise CannotUse(f"tracker.forges.{named[0]}.app needs {extra}: {error}") from None

    def _join_nodes(self, instance: str, runs: PubSub[RunUpdate]) -> Sharing:
        """Joins the nodes that share a database."""
        from supervisor.replication import Sharing  # imports the PostgreSQL driver, which is large

        return Sharing(self.config.server.database_url or "", instance, self.changes, runs)

    def _notifications(self, instance: str, runs: PubSub[RunUpdate]) -> Outbound:
        """What reports the changes of processes and runs. Raises `CannotUse`."""
        self._check_apps()
        secrets, parse_json = self.tracker.forges.secrets, self.charts.workers.parse_json
        made = Outbound(self.config, self.clock, instance, secrets, self._labels, parse_json, self.disk)
        self.changes.subscribe(made.notice)
        self.supervision.notices.published.subscribe(made.notice)
        runs.subscribe(made.notice)
        self.tracker.retention.on_changed = lambda: made.notice(None)
        return made

    def _labels(self) -> Mapping[str, Sequence[str]]:
        """The labels of each process."""
        return {name: spec.labels for name, spec in self.config.supervisor.processes.items()}

    @property
    def is_shared(self) -> bool:
        """Whether several nodes share the database."""
        return self.config.server.database_url is not None

    @property
    def is_closing(self) -> bool:
        """Whether the server is shutting down."""
        return self.supervision.context.closing

    async def _start(self, records: Mapping[str, Record]) -> None:
        """Adopts the processes that still run, and begins the background work."""
        self.accounts.use_reserve = partial(self.disk.run_with_reserve, reports)
        if self.sharing is not None:
            self._tasks.start(self.sharing.history.copy(), "history")
            self.sharing.listen(self.outbound.wakes)
        await self.outbound.start(self._tasks)
        await self.supervision.start(records, self._tasks)
        self._tasks.start(self.maintenance.watch(), "beat")
        maintenance, metrics = self.maintenance, self.supervision.metrics
        sampling = metrics.watch(INTERVAL_SECONDS, maintenance.round_end, maintenance.executor)
        self._tasks.start(sampling, "metrics")
        self._tasks.start(self._prune(), "prune")
        self.tracker.start(self._tasks)
        self._tasks.start(self.charts.start(), "charts")

    def start_marked(self) -> None:
        """Starts the processes with `auto-start` in the background."""
        if self.config.supervisor.auto_start:
            self._tasks.start(self.supervision.fleet.start_marked(), "auto-start")

    # The stop, in five steps; docs/operations.md states the time of each, `longest_stop` that of all.

    async def _stop(self) -> None:
        end = time.monotonic() + self.config.server.shutdown_timeout
        self.systemd.stopping(longest_stop(self.config))
        await self._refuse()
        await self._end_jobs_and_processes()
        await self._answer()
        await self._flush(end)
        await self._close()

    async def _refuse(self) -> None:
        """Requests are 503 from now on, and nothing begins by itself."""
        self.supervision.context.closing = True
        if self.front is not None:
            await self.front.refuse()
        self.supervision.scheduler.close()
        self._tasks.cancel()
        self.maintenance.close()

    async def _end_jobs_and_processes(self) -> None:
        """Ends uploads, searches, reads of charts, helm and the processes; none waits for another."""
        jobs = self.tracker.end_jobs(self.config.server.shutdown_timeout), self.charts.end_jobs()
        work = self.supervision.end_processes(), self.log_search.close(), *jobs
        for outcome in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(outcome, Exception):
                log.error("during the stop: %s", outcome, exc_info=outcome)
        if not self.supervision.leaves_processes:
            await self.supervision.context.orphans.end_remaining()

    async def _answer(self) -> None:
        """Responses in progress are sent; queries that take longer end."""
        if self.front is not None:
            await self.front.answer(ANSWER_SECONDS)
            reports.end_queries()
            catalogue.end_queries()
            await self.front.answer(QUERY_SECONDS)

    async def _flush(self, end: float) -> None:
        """Stores what is not stored yet, at most until the monotonic time `end` or a second for each store."""
        await self.supervision.flush(end)
        await self.outbound.close()
        await self.accounts.close()
        if self.sharing is not None:
            await self.sharing.close(seconds_until(end))

    async def _close(self) -> None:
        if self.front is not None:
            await self.front.close()
        self.tracker.close()
        self.charts.close()
        await self.supervision.close()
        self.systemd.close()

    async def reload(self, dry_run: bool = False) -> tuple[Reload, list[str]]:
        """Reads the configuration again and applies the section `supervisor`; with `dry_run` it applies nothing,
        and reads the environment files too.

        Returns what was done, and the changed properties that need a restart of the server. Raises `Invalid` with all
        faults; then nothing has changed.
        """
        async with self._reloading:  # of two reloads the newer file wins
            try:
                new = await asyncio.to_thread(self._read_config)
            except BadConfig as bad:
                raise Invalid(f"the configuration is not applied: {'; '.join(bad.faults)}") from None
            changed = loader.differences(self.config, new)
            if dry_run:
                faults = await asyncio.to_thread(unusable_files, new.supervisor.processes.values())
                done = evolve(self.supervision.preview(new.supervisor), failed=faults)
            else:
                self.config = evolve(self.config, supervisor=new.supervisor)  # the rest applies after a restart
                done = await self.supervision.reload(new.supervisor)
            settings = [path for path in changed if path.startswith("supervisor.") and "processes." not in path]
            return evolve(done, settings=settings), [path for path in changed if not path.startswith("supervisor.")]

    def on_sighup(self) -> None:
        """Reloads, and logs the outcome."""
        if not self.is_closing:
            self._tasks.start(self._reload_and_log(), "reload")

    async def _reload_and_log(self) -> None:
        self.systemd.reloading()
        try:
            done, need = await self.reload()
        except Problem as problem:
            log.error("reload: %s", problem.message)
            return
        finally:
            self.systemd.ready()
        log.info("reload: %s", done)
        if need:
            log.warning("reload: these need a restart of pilothouse: %s", ", ".join(need))

    async def _prune(self) -> None:
        """Keeps the history within its limits, a thousand rows at a time, so that no request waits for it."""
        while True:
            try:
                await self.supervision.prune()
                await self.accounts.prune()
            except (peewee.PeeweeException, Problem, OSError) as error:
                log.warning("the history could not be pruned: %s", error)
            await asyncio.sleep(_PRUNE_SECONDS)


@contextlib.asynccontextmanager
async def open_services(
    settings: Config,
    read_config: Callable[[], Config],
    port: int | None = None,
    clock: Clock | None = None,
    choose_cluster: Choose | None = None,
) -> AsyncIterator[Services]:
    """Locks the data directory, opens the stores, adopts the processes that still run; closes all of it at the end.

    `read_config` reads the configuration again for a reload, and raises `BadConfig`. `port` is the one that is listened
    on, where `server.port` leaves the choice to the system. A host application's `choose_cluster` returns the cluster a
    request is about. Raises `CannotStart`.
    """
    clock = clock or Clock()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(os.close, lock_data_dir(Path(settings.server.data_dir)))
        workers = _WORKERS if settings.server.database_url is None else _WORKERS_WITH_REMOTE_STORE
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(workers, "worker"))
        sys.setswitchinterval(_SWITCH_SECONDS)
        instance, records = _open_stores(settings, stack)
        try:
            services = Services(
                settings, read_config, port or settings.server.port, clock, choose_cluster, instance, records
            )
            services.accounts.make_admin(services.data_dir)
            services.tracker.ingest.sweep()
        except Invalid as problem:
            raise CannotStart(problem.message) from None
        except CannotUse as problem:
            raise CannotStart(str(problem)) from None
        except (peewee.PeeweeException, OSError) as error:
            reason = " ".join(str(error).split())
            raise CannotStart(f"{store_location(settings.server)}: the store cannot be opened: {reason}") from None
        stack.push_async_callback(services._stop)
        await services._start(records)
        yield services


def _open_stores(settings: Config, stack: contextlib.AsyncExitStack) -> tuple[str, dict[str, Record]]:
    """Opens the three stores. Returns the id of this installation and the record of each process.

    Raises `CannotStart`.
    """
    data_dir = Path(settings.server.data_dir)
    place = str(data_dir / "pilothouse.db")
    try:
        database.open(data_dir / "pilothouse.db")
        stack.callback(database.close)
        instance, records = fact("instance"), record.load()
        place = store_location(settings.server)
        open_store(data_dir / "tracker.db", settings.server.database_url)
        stack.callback(reports.close_all)
        place = str(data_dir / "charts.db")
        catalogue.open(data_dir / "charts.db")
        stack.callback(catalogue.close)
    except CannotUse as problem:
        raise CannotStart(str(problem)) from None
    except (peewee.PeeweeException, OSError) as error:
        raise CannotStart(f"{place}: the store cannot be opened: {' '.join(str(error).split())}") from None
    return instance, records


def _log_search(workers: WorkerSettings, supervision: Supervision, instance: str) -> LogSearch:
    one, children = evolve(workers, processes=1), supervision.context.children
    pool = WorkerPool(one, children, instance, os.environ, MAX_QUEUED_SEARCHES)
    return LogSearch(supervision.process_logs, pool)


def _maintenance(supervision: Supervision, reports_wal: Path, disk: DiskSpace) -> Maintenance:
    return Maintenance(
        supervision.context.orphans,
        supervision.event_writer,
        supervision.process_logs.growth,
        MemoryLimits(supervision.fleet),
        supervision.scheduler.check_clock,
        reports_wal,
        disk,
    )
