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
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import peewee
from attrs import evolve

from models.charts.repositories import catalogue
from models.config import loader
from models.config.settings import BadConfig, Config
from models.errors import CannotUse, Invalid, Problem, Unavailable
from models.supervision import record
from models.supervision.events import Entry
from models.supervision.record import Record
from models.supervision.tables import database, fact
from models.tracker import run_events
from models.tracker.run_events import RunUpdate
from models.tracker.tables import reports
from supervisor.accounts.logins import Accounts
from supervisor.charts.service import Charts, Choose
from supervisor.children.child import Children
from supervisor.children.orphans import Cgroups, Orphans, become_subreaper
from supervisor.clock import Clock
from supervisor.maintenance import INTERVAL_SECONDS, Maintenance
from supervisor.processes.adoption import adopt
from supervisor.processes.context import SupervisionContext
from supervisor.processes.event_writer import EventWriter
from supervisor.processes.fleet import Fleet, Reload
from supervisor.processes.health import Prober
from supervisor.processes.history import QUERY_TAKES, History, OwnHistory
from supervisor.processes.memory_limit import MemoryLimits
from supervisor.processes.metrics import MetricsHistory
from supervisor.processes.notices import Notices
from supervisor.processes.process_logs import ProcessLogs
from supervisor.processes.run_recorder import RunRecorder
from supervisor.processes.scheduler import Scheduler
from supervisor.processes.usage import Meter
from supervisor.pubsub import PubSub
from supervisor.scheduling import BackgroundTasks
from supervisor.systemd import VARIABLES, Systemd
from supervisor.tracker.attachments import Attachments
from supervisor.tracker.forge_sources import ForgeSources
from supervisor.tracker.ingest import Ingest
from supervisor.tracker.retention import Retention
from supervisor.tracker.store import open_store, store_location

if TYPE_CHECKING:
    from supervisor.replication import Sharing

log = logging.getLogger("server")

Result = TypeVar("Result")

_MIN_CLOSING_SECONDS = 1.0
_PRUNE_SECONDS = 600.0
_DAY_MICROSECONDS = 86_400 * 1_000_000
_MAX_WAITING_EVENTS = 50_000
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
    """Creates the data directory, locks it and writes our pid into the lock. Raises `CannotStart`."""
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


class Services:
    """Everything that lives as long as the server. `open_services` makes it, whole, and closes it."""

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
        self.changes: PubSub[Entry] = PubSub()
        self.runs: PubSub[RunUpdate] = PubSub()
        self.answered: Counter[int] = Counter()
        """The number of requests answered, by status code."""
        self._read_config = read_config
        self._tasks = BackgroundTasks(_report_failure)
        self._reloading = asyncio.Lock()
        self.systemd = Systemd(os.environ, os.getpid())
        self.sharing = self._join_nodes(instance) if self.is_shared else None
        self.history: History = self.sharing.history if self.sharing else OwnHistory()
        self.accounts = Accounts(settings.tracker.security, clock)
        self._open_tracker()
        self._open_supervision(instance, records)
        self.charts = Charts(
            settings,
            self.data_dir,
            self.context.children,
            instance,
            self.context.environment,
            choose_cluster,
            clock,
        )

    def _open_tracker(self) -> None:
        settings, clock = self.config, self.clock
        attached = settings.tracker.attachments
        own_folder = None if self.is_shared else self.data_dir / "attachments"
        self.attachments = Attachments(attached.dir or own_folder, attached, clock, self.run_in_tracker)
        self.retention = Retention(settings.tracker, clock, self.run_in_tracker, self.attachments)
        self.runs.subscribe(self.retention.notice)
        self.forges = ForgeSources(settings)
        publish_run = _discard if self.sharing else self.runs.publish  # shared runs come back from the database
        self.ingest = Ingest(self.data_dir / "incoming", settings, clock, publish_run, self.attachments)

    def _open_supervision(self, instance: str, records: Mapping[str, Record]) -> None:
        settings = self.config
        publish = self.sharing.history.notice if self.sharing else self.changes.publish
        self.event_writer = EventWriter(publish, min(settings.supervisor.events.retain_rows, _MAX_WAITING_EVENTS))
        self.notices = Notices(self.clock)
        self.context = _supervision_context(self.clock, self.event_writer, self.notices, instance)
        self.event_writer.retained_runs = settings.supervisor.runs.retain
        self.fleet = Fleet(settings.supervisor.processes, self.context, records)
        self.scheduler = Scheduler(self.fleet, self.context)
        self.process_logs = ProcessLogs(self.fleet, settings.server, self.clock, self.notices, self.event_writer)
        self.logs = self.process_logs.files
        self.context.on_logs_opened = self.process_logs.on_opened
        self.context.on_log_marks = self.process_logs.on_marks
        self.process_logs.take_over(settings.supervisor.processes)
        self.meter = Meter(self.clock)
        self.metrics = MetricsHistory(self.fleet, self.meter, self.clock, lambda: self.config.supervisor.metrics)
        self.maintenance = Maintenance(
            self.context.orphans,
            self.event_writer,
            self.process_logs.growth,
            MemoryLimits(lambda: self.fleet),
            self.scheduler.check_clock,
            self.data_dir / "tracker.db-wal",
        )

    def _join_nodes(self, instance: str) -> Sharing:
        """Joins the nodes that share a database."""
        from supervisor.replication import Sharing  # imports the PostgreSQL driver, which is large

        return Sharing(self.config.server.database_url or "", instance, self.changes, self.runs)

    async def _start(self, records: Mapping[str, Record]) -> None:
        """Adopts the processes that still run, and begins the background work."""
        if self.sharing is not None:
            self._tasks.start(self.sharing.history.copy(), "history")
            self.sharing.listen()
        become_subreaper()
        self._leftovers = await adopt(self.fleet, self.context, records)
        self.context.leftovers = self._tasks.start(self._leftovers.end(), "leftovers")
        self.scheduler.configure()
        self._tasks.start(self.maintenance.watch(), "beat")
        self._tasks.start(self.metrics.watch(INTERVAL_SECONDS, self.maintenance.round_end), "metrics")
        self.process_logs.start()
        self._tasks.start(self.process_logs.growth.watch(), "log growth")
        self._tasks.start(self._prune(), "prune")
        self._tasks.start(self.retention.watch(), "retention")
        self._tasks.start(self.attachments.watch(), "attachments")
        self._tasks.start(self.retention.settle(), "completion of runs")
        self._tasks.start(self.charts.start(), "charts")

    @property
    def _leaves_processes(self) -> bool:
        return self.config.supervisor.on_exit == "leave"

    def summary(self) -> str:
        """Returns a summary for `systemctl status`."""
        live = sum(process.live for process in self.fleet)
        return f"{'stopping; ' if self.context.closing else ''}{live} of {len(self.fleet)} processes are live"

    def start_marked(self) -> None:
        """Starts the processes with `auto-start` in the background."""
        if self.config.supervisor.auto_start:
            self._tasks.start(self.fleet.start_marked(), "auto-start")

    async def _stop(self) -> None:
        """Stops or leaves the processes, then writes what is not stored yet."""
        self.context.closing = True
        self.scheduler.close()
        self._tasks.cancel()
        end = time.monotonic() + self.config.server.shutdown_timeout
        await self._stop_processes()
        if self.event_writer.failing:
            await self.logs.rotate()  # on a full disk this makes room
        if not await self.event_writer.stored_within(_seconds_until(end)):
            log.error("the store cannot be written: %d changes are lost", self.event_writer.waiting)
        await self.ingest.close(_seconds_until(end))
        await self.accounts.close()
        await self.charts.close()
        self.forges.close()
        if not self._leaves_processes:
            await self.context.orphans.end_remaining()
        if self.sharing is not None:
            await self.sharing.close(_seconds_until(end))
        await self.process_logs.close()
        self.notices.write()
        self.context.prober.close()
        self.context.children.close()
        self.context.cgroups.close()
        self.systemd.close()

    async def _stop_processes(self) -> None:
        try:
            async with asyncio.timeout(self.config.server.shutdown_timeout):
                await self.fleet.close(self._leaves_processes)
                if not self._leaves_processes:
                    await self._leftovers.end()
        except TimeoutError:
            log.error("not all processes stopped within %g s: they are killed", self.config.server.shutdown_timeout)
            await self.fleet.kill()
        except Exception:
            log.exception("while stopping the processes")

    async def reload(self, dry_run: bool = False) -> tuple[Reload, list[str]]:
        """Reads the configuration again and applies the section `supervisor`; with `dry_run` it applies nothing.

        Returns what was done, and the changed properties that need a restart of the server. Raises `Invalid` with all
        faults; then nothing has changed.
        """
        async with self._reloading:  # of two reloads the newer file wins
            try:
                new = await asyncio.to_thread(self._read_config)
            except BadConfig as bad:
                raise Invalid(f"the configuration is not taken over: {'; '.join(bad.faults)}") from None
            changed = loader.differences(self.config, new)
            if dry_run:
                done = self.fleet.preview(new.supervisor.processes, new.supervisor.auto_start)
            else:
                self.config = _live(self.config, new)
                self.event_writer.retained_runs = new.supervisor.runs.retain
                self.process_logs.take_over(new.supervisor.processes)
                done = await self.fleet.reload(new.supervisor.processes, new.supervisor.auto_start)
            settings = [path for path in changed if path.startswith("supervisor.") and "processes." not in path]
            return evolve(done, settings=settings), [path for path in changed if not path.startswith("supervisor.")]

    def on_sighup(self) -> None:
        """Reloads, and logs the outcome."""
        if not self.context.closing:
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

    async def run_in_tracker(self, work: Callable[[], Result]) -> Result:
        """Runs work on the tracker's store in a worker. Raises `Unavailable`, `TimedOut`."""
        try:
            return await asyncio.to_thread(reports.run_with_timeout, work, QUERY_TAKES)
        except peewee.OperationalError as error:
            raise Unavailable(f"the store of the tracker does not answer: {error}") from None

    async def read_fast(self, query: Callable[[], Result]) -> Result:
        """Reads a few rows of the tracker's store: on the loop where the store is a local file.

        Raises `peewee.PeeweeException`, `Unavailable`, `TimedOut`.
        """
        return query() if reports.is_local else await self.run_in_tracker(query)

    @property
    def last_run(self) -> int:
        """The id of the last run event that streams may have received."""
        return self.sharing.last_run if self.sharing else run_events.bounds()[1]

    @property
    def is_shared(self) -> bool:
        """Whether several nodes share the database."""
        return self.config.server.database_url is not None

    async def _prune(self) -> None:
        """Keeps the history within its limits, a thousand rows at a time, so that no request waits for it."""
        while True:
            keep = self.config.supervisor.events
            before = self.clock.settled() - keep.retain_days * _DAY_MICROSECONDS
            try:
                while await self.history.prune(before, keep.retain_rows):
                    await asyncio.sleep(0.01)
                while await self.notices.prune(self.config.supervisor.notices.retain_rows):
                    await asyncio.sleep(0.01)
                await self.accounts.prune()
                await self.process_logs.remove_old()
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
            services.ingest.sweep()
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


def _supervision_context(
    clock: Clock, event_writer: EventWriter, notices: Notices, instance: str
) -> SupervisionContext:
    children, cgroups = Children(), Cgroups.open(instance)
    return SupervisionContext(
        clock=clock,
        event_writer=event_writer,
        children=children,
        cgroups=cgroups,
        orphans=Orphans(children, cgroups, instance),
        prober=Prober(children, clock),
        server_id=instance,
        notices=notices,
        runs=RunRecorder(clock, event_writer, notices),
        environment=inherited(os.environ),
    )


def _seconds_until(end: float) -> float:
    return max(_MIN_CLOSING_SECONDS, end - time.monotonic())


def _discard(_: RunUpdate) -> None:
    pass


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of children: ours without variables that set our properties, and systemd's."""
    return {name: value for name, value in environ.items() if name not in loader.VARIABLES | VARIABLES}


def _live(old: Config, new: Config) -> Config:
    """Returns the configuration after a reload: `supervisor` applies at once, the rest after a restart."""
    return evolve(old, supervisor=new.supervisor)
