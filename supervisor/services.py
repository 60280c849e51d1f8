"""The wiring: everything that lives as long as the house, built once, started in order, stopped in reverse."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import peewee
from attrs import evolve

from models.charts.tables import catalogue
from models.config import loader
from models.config.settings import BadConfig, Config
from models.errors import CannotUse, Invalid, Problem, Unavailable
from models.supervision import record
from models.supervision.events import Entry
from models.supervision.tables import database, fact
from models.tracker import run_events
from models.tracker.run_events import RunUpdate
from models.tracker.tables import reports
from supervisor.accounts.logins import Accounts
from supervisor.charts.service import Charts, Choose
from supervisor.clock import Clock
from supervisor.maintenance import Maintenance
from supervisor.processes.adoption import adopt
from supervisor.processes.cgroups import Cgroups
from supervisor.processes.child import Children
from supervisor.processes.context import SupervisionContext
from supervisor.processes.event_writer import EventWriter
from supervisor.processes.fleet import Fleet, Reload
from supervisor.processes.health import Prober
from supervisor.processes.history import QUERY_TAKES, History, OwnHistory
from supervisor.processes.log_files import Logs
from supervisor.processes.orphans import Orphans, become_subreaper
from supervisor.processes.usage import Meter
from supervisor.pubsub import PubSub
from supervisor.systemd import VARIABLES, Systemd
from supervisor.tracker.ingest import Ingest
from supervisor.tracker.retention import Retention
from supervisor.tracker.store import open_store, store_location

if TYPE_CHECKING:
    from supervisor.replication import Sharing

log = logging.getLogger("server")

Result = TypeVar("Result")

_LAST_MOMENT = 1.0
_PRUNE_EVERY = 600.0
_DAY = 86_400 * 1_000_000
_WAITING = 50_000
_WORKERS = 4
_MORE_WORKERS = 12
"""Where a store is on another machine: some of them wait for it then."""
_WORKERS_HOLD = 0.0005
"""Seconds that a worker may keep the interpreter from the loop; Python's own 5 ms would be felt in every answer."""


class CannotStart(Exception):
    """Something that only the operator can mend, in one line."""


def lock_data_dir(path: Path) -> int:
    """Makes the data directory, takes it for us alone and leaves our pid in the lock. Raises `CannotStart`."""
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
    def __init__(self, settings: Config, read_config: Callable[[], Config], clock: Clock | None = None) -> None:
        """`read_config` reads the configuration anew, for a reload; it raises `BadConfig`."""
        self.config = settings
        self.clock = clock or Clock()
        self.choose_cluster: Choose | None = None
        """A host application's, set before the start: which cluster a request is about."""
        self.changes: PubSub[Entry] = PubSub()
        self.runs: PubSub[RunUpdate] = PubSub()
        self.history: History = OwnHistory()
        self.sharing: Sharing | None = None
        """Where several nodes share a database."""
        self.answered: Counter[int] = Counter()
        """How many requests were answered, by status code."""
        self.accounts = Accounts(settings.tracker.security, self.clock)
        self.retention = Retention(settings.tracker, self.clock, self.run_in_tracker)
        self.runs.subscribe(self.retention.notice)
        self.port = settings.server.port
        """Where we listen, which the configuration may leave to the system."""
        self._read_config = read_config
        self._tasks: set[asyncio.Task[None]] = set()
        self._reloading = asyncio.Lock()
        self.systemd = Systemd(os.environ, os.getpid())

    @property
    def data_dir(self) -> Path:
        return Path(self.config.server.data_dir)

    async def start(self) -> None:
        """Takes the data directory, opens the store, finds again what still runs. Raises `CannotStart`."""
        self._lock = lock_data_dir(self.data_dir)
        workers = _MORE_WORKERS if self.is_shared else _WORKERS
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(workers, "worker"))
        sys.setswitchinterval(_WORKERS_HOLD)
        try:
            database.open(self.data_dir / "pilothouse.db")
            instance = fact("instance")
        except (peewee.PeeweeException, OSError) as error:
            raise CannotStart(f"{self.data_dir / 'pilothouse.db'}: the store cannot be opened: {error}") from None
        self._open_tracker()
        self._open_catalogue()
        publish = self._share(instance) if self.is_shared else self.changes.publish
        self.event_writer = EventWriter(publish, min(self.config.supervisor.events.retain_rows, _WAITING))
        self.context = self._make_engine(instance)
        records = record.load()
        self.fleet = Fleet(self.config.supervisor.processes, self.context, records)
        self.logs = Logs(self.fleet.log_files)
        self.meter = Meter()
        self.charts = Charts(
            self.config,
            self.data_dir,
            self.context.children,
            instance,
            self.context.environment,
            self.choose_cluster,
        )
        become_subreaper()
        leftovers = await adopt(self.fleet, self.context, records)
        self._keep("leftovers", leftovers.end())
        self.maintenance = Maintenance(
            self.context.orphans, self.event_writer, self.logs, self.data_dir / "tracker.db-wal"
        )
        self._keep("beat", self.maintenance.watch())
        self._keep("prune", self._prune())
        self._keep("retention", self.retention.watch())
        self._keep("charts", self.charts.start())

    def _open_tracker(self) -> None:
        """Raises `CannotStart`."""
        try:
            open_store(self.data_dir / "tracker.db", self.config.server.database_url)
            self.accounts.make_admin(self.data_dir)
            publish = _nobody if self.is_shared else self.runs.publish  # then it comes as those of other nodes do
            self.ingest = Ingest(self.data_dir / "incoming", self.config, self.clock, publish)
            self.ingest.sweep()
        except Invalid as problem:
            raise CannotStart(problem.message) from None
        except CannotUse as problem:
            raise CannotStart(str(problem)) from None
        except (peewee.PeeweeException, OSError) as error:
            raise CannotStart(
                f"{store_location(self.config.server)}: the store cannot be opened: {' '.join(str(error).split())}"
            ) from None

    def _share(self, instance: str) -> Callable[[Entry], None]:
        """Joins the other nodes; returns whom the journal tells of changes. Raises `CannotStart`."""
        from supervisor.replication import Sharing  # its driver is large

        try:
            self.sharing = Sharing(self.config.server.database_url or "", instance, self.changes, self.runs)
        except peewee.PeeweeException as error:
            words = " ".join(str(error).split())
            raise CannotStart(f"server.database-url: the shared history cannot be opened: {words}") from None
        self.history = self.sharing.history
        self._keep("history", self.sharing.history.copy())
        self.sharing.listen()
        return self.sharing.history.notice

    def _open_catalogue(self) -> None:
        """Raises `CannotStart`."""
        try:
            catalogue.open(self.data_dir / "charts.db")
        except (peewee.PeeweeException, OSError) as error:
            raise CannotStart(f"{self.data_dir / 'charts.db'}: the store cannot be opened: {error}") from None

    def _make_engine(self, instance: str) -> SupervisionContext:
        children, cgroups = Children(), Cgroups.open(instance)
        return SupervisionContext(
            clock=self.clock,
            event_writer=self.event_writer,
            children=children,
            cgroups=cgroups,
            orphans=Orphans(children, cgroups, instance),
            prober=Prober(children),
            instance=instance,
            environment=inherited(os.environ),
        )

    def standing(self) -> str:
        """How things stand, in a few words: for `systemctl status`."""
        live = sum(process.live for process in self.fleet)
        return f"{'stopping; ' if self.context.closing else ''}{live} of {len(self.fleet)} processes are live"

    def start_marked(self) -> None:
        """Starts the processes marked `auto-start`, while requests are already answered."""
        if self.config.supervisor.auto_start:
            self._keep("auto-start", self.fleet.start_marked())

    async def stop(self) -> None:
        """Stops or leaves the processes, writes what is to be written, and lets go of everything."""
        self.context.closing = True
        leave = self.config.supervisor.on_exit == "leave"
        for task in list(self._tasks):
            task.cancel()
        end = time.monotonic() + self.config.server.shutdown_timeout
        try:
            async with asyncio.timeout(self.config.server.shutdown_timeout):
                await self.fleet.close(leave)
        except TimeoutError:
            log.error("not all processes stopped within %g s: they are killed", self.config.server.shutdown_timeout)
            await self.fleet.kill()
        except Exception:
            log.exception("while stopping the processes")
        if not await self.event_writer.settled(max(_LAST_MOMENT, end - time.monotonic())):
            log.error("the store cannot be written: %d changes are lost", self.event_writer.waiting)
        await self.ingest.close(max(_LAST_MOMENT, end - time.monotonic()))
        await self.accounts.close()
        await self.charts.close()
        if self.sharing is not None:
            await self.sharing.close(max(_LAST_MOMENT, end - time.monotonic()))
        self.context.prober.close()
        self.context.children.close()
        self.context.cgroups.close()
        database.close()
        reports.close_all()
        catalogue.close()
        os.close(self._lock)
        self.systemd.close()

    async def reload(self) -> tuple[Reload, list[str]]:
        """Reads the configuration anew and does what it says.

        Returns what was done, and the changed properties that need a restart. Raises `Invalid` with all faults; then
        nothing has changed.
        """
        async with self._reloading:  # what was read last must be what is taken over last
            try:
                new = await asyncio.to_thread(self._read_config)
            except BadConfig as bad:
                raise Invalid(f"the configuration is not taken over: {'; '.join(bad.faults)}") from None
            changed = loader.differences(self.config, new)
            self.config = _live(self.config, new)
            done = await self.fleet.reload(new.supervisor.processes, new.supervisor.auto_start)
            settings = [path for path in changed if path.startswith("supervisor.") and "processes." not in path]
            return evolve(done, settings=settings), [path for path in changed if not path.startswith("supervisor.")]

    def hang_up(self) -> None:
        """SIGHUP: as `reload`, and the log tells."""
        if not self.context.closing:
            self._keep("reload", self._reload_told())

    async def _reload_told(self) -> None:
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
        """Runs what reads or writes the tracker's store in the worker. Raises `Unavailable`, `TimedOut`."""
        try:
            return await asyncio.to_thread(reports.run_with_timeout, work, QUERY_TAKES)
        except peewee.OperationalError as error:
            raise Unavailable(f"the store of the tracker does not answer: {error}") from None

    async def read_fast(self, query: Callable[[], Result]) -> Result:
        """Reads a few rows of the tracker's store: on the loop where it is a file.

        Raises `peewee.PeeweeException`, `Unavailable`, `TimedOut`.
        """
        return query() if reports.is_local else await self.run_in_tracker(query)

    @property
    def last_run(self) -> int:
        """The last run event that may have been told to streams."""
        return self.sharing.last_run if self.sharing else run_events.bounds()[1]

    @property
    def is_shared(self) -> bool:
        """Whether several nodes may be behind one address."""
        return self.config.server.database_url is not None

    def _keep(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._is_over)

    def _is_over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("the task %s ended: %s", task.get_name(), error, exc_info=error)

    async def _prune(self) -> None:
        """Keeps the history within its bounds, a thousand rows at a time, so that nobody waits for it."""
        while True:
            keep = self.config.supervisor.events
            before = self.clock.settled() - keep.retain_days * _DAY
            try:
                while await self.history.prune(before, keep.retain_rows):
                    await asyncio.sleep(0.01)
                await self.accounts.prune()
            except (peewee.PeeweeException, Problem) as error:
                log.warning("the history could not be pruned: %s", error)
            await asyncio.sleep(_PRUNE_EVERY)


def _nobody(_: RunUpdate) -> None:
    """Is told nothing."""


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """What children get of our environment: all but what sets properties of ours, and what systemd means for us."""
    return {name: value for name, value in environ.items() if name not in loader.VARIABLES | VARIABLES}


def _live(old: Config, new: Config) -> Config:
    """The configuration that counts from now on: `supervisor` is taken over, the rest waits for a restart."""
    return evolve(old, supervisor=new.supervisor)
