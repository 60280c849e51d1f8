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
from typing import Any, TypeVar

import peewee
from attrs import evolve

from models import events, reading, supervised
from models.charts.schema import catalogue
from models.config import BadConfig, Config
from models.errors import Invalid, Problem, Unavailable
from models.events import Entry
from models.schema import database, fact
from models.tracker.runevents import RunUpdate
from models.tracker.schema import reports
from supervisor.adoption import adopt
from supervisor.cgroup import Cgroups
from supervisor.charts.service import Charts, Choose
from supervisor.child import Children
from supervisor.clock import Clock
from supervisor.engine import Engine
from supervisor.feed import Feed
from supervisor.fleet import Fleet, Reload
from supervisor.health import Prober
from supervisor.journal import Journal
from supervisor.logs import Logs
from supervisor.strays import Strays, become_subreaper
from supervisor.tracker.accounts import Accounts
from supervisor.tracker.ingest import Ingest
from supervisor.tracker.retention import Retention
from supervisor.tracker.store import open_store
from supervisor.usage import Meter

log = logging.getLogger("house")

Result = TypeVar("Result")

_BEAT = 2.0
_STALLED = 1.0
_BURY_EVERY = 5
_CHECKPOINT_EVERY = 30
_LARGE_WAL = 16 * 1024 * 1024
_PRUNE_EVERY = 600.0
_DAY = 86_400 * 1_000_000
_QUERY_TAKES = 20.0
_WAITING = 50_000
_WORKERS = 4
_WORKERS_HOLD = 0.0005
"""Seconds that a worker may keep the interpreter from the loop; Python's own 5 ms would be felt in every answer."""


class CannotStart(Exception):
    """Something that only the operator can mend, in one line."""


def lock_data_dir(path: Path) -> int:
    """Makes the data directory and takes it for us alone. Raises `CannotStart`."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CannotStart(f"{path}: another pilothouse is running on this data directory") from None
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
        self.changes: Feed[Entry] = Feed()
        self.runs: Feed[RunUpdate] = Feed()
        self.answered: Counter[int] = Counter()
        """How many requests were answered, by status code."""
        self.accounts = Accounts(settings.tracker.security, self.clock)
        self.retention = Retention(settings.tracker, self.clock, self.tracked)
        self.runs.subscribe(self.retention.notice)
        self.port = settings.server.port
        """Where we listen, which the configuration may leave to the system."""
        self.lag = 0.0
        self._worst = [0.0] * 5
        self._wal_written = 0
        self._read_config = read_config
        self._tasks: set[asyncio.Task[None]] = set()
        self._reloading = asyncio.Lock()

    @property
    def data_dir(self) -> Path:
        return Path(self.config.server.data_dir)

    async def start(self) -> None:
        """Takes the data directory, opens the store, finds again what still runs. Raises `CannotStart`."""
        self._lock = lock_data_dir(self.data_dir)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_WORKERS, "worker"))
        sys.setswitchinterval(_WORKERS_HOLD)
        try:
            database.open(self.data_dir / "pilothouse.db")
            instance = fact("instance")
        except (peewee.PeeweeException, OSError) as error:
            raise CannotStart(f"{self.data_dir / 'pilothouse.db'}: the store cannot be opened: {error}") from None
        self._open_tracker()
        self._open_catalogue()
        self.journal = Journal(self.changes.publish, min(self.config.supervisor.events.retain_rows, _WAITING))
        self.engine = self._make_engine(instance)
        records = supervised.load()
        self.fleet = Fleet(self.config.supervisor.processes, self.engine, records)
        self.logs = Logs(self.fleet.log_files)
        self.meter = Meter()
        self.charts = Charts(
            self.config,
            self.data_dir,
            self.engine.children,
            instance,
            self.engine.environment,
            self.choose_cluster,
        )
        become_subreaper()
        leftovers = await adopt(self.fleet, self.engine, records)
        self._keep("leftovers", leftovers.end())
        for name, work in {"beat": self._beat(), "logs": self.logs.watch(), "prune": self._prune()}.items():
            self._keep(name, work)
        self._keep("retention", self.retention.watch())
        self._keep("charts", self.charts.start())

    def _open_tracker(self) -> None:
        """Raises `CannotStart`."""
        try:
            open_store(self.data_dir / "tracker.db")
            self.accounts.make_admin(self.data_dir)
            self.ingest = Ingest(self.data_dir / "incoming", self.config, self.clock, self.runs.publish)
            self.ingest.sweep()
        except Invalid as problem:
            raise CannotStart(problem.message) from None
        except (peewee.PeeweeException, OSError) as error:
            raise CannotStart(f"{self.data_dir / 'tracker.db'}: the store cannot be opened: {error}") from None

    def _open_catalogue(self) -> None:
        """Raises `CannotStart`."""
        try:
            catalogue.open(self.data_dir / "charts.db")
        except (peewee.PeeweeException, OSError) as error:
            raise CannotStart(f"{self.data_dir / 'charts.db'}: the store cannot be opened: {error}") from None

    def _make_engine(self, instance: str) -> Engine:
        children, cgroups = Children(), Cgroups.open(instance)
        return Engine(
            clock=self.clock,
            journal=self.journal,
            children=children,
            cgroups=cgroups,
            strays=Strays(children, cgroups, instance),
            prober=Prober(children),
            instance=instance,
            environment=inherited(os.environ),
        )

    def start_marked(self) -> None:
        """Starts the processes marked `auto-start`, while requests are already answered."""
        if self.config.supervisor.auto_start:
            self._keep("auto-start", self.fleet.start_marked())

    async def stop(self) -> None:
        """Stops or leaves the processes, writes what is to be written, and lets go of everything."""
        self.engine.closing = True
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
        if not await self.journal.settled(max(_STALLED, end - time.monotonic())):
            log.error("the store cannot be written: %d changes are lost", self.journal.waiting)
        await self.ingest.close(max(_STALLED, end - time.monotonic()))
        await self.accounts.close()
        await self.charts.close()
        self.engine.prober.close()
        self.engine.children.close()
        self.engine.cgroups.close()
        database.close()
        reports.close()
        catalogue.close()
        os.close(self._lock)

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
            changed = reading.differences(self.config, new)
            self.config = _live(self.config, new)
            done = await self.fleet.reload(new.supervisor.processes, new.supervisor.auto_start)
            settings = [path for path in changed if path.startswith("supervisor.") and "processes." not in path]
            return evolve(done, settings=settings), [path for path in changed if not path.startswith("supervisor.")]

    def hang_up(self) -> None:
        """SIGHUP: as `reload`, and the log tells."""
        if not self.engine.closing:
            self._keep("reload", self._reload_told())

    async def _reload_told(self) -> None:
        try:
            done, need = await self.reload()
        except Problem as problem:
            log.error("reload: %s", problem.message)
            return
        log.info("reload: %s", done)
        if need:
            log.warning("reload: these need a restart of pilothouse: %s", ", ".join(need))

    async def off_loop(self, query: Callable[[], Result]) -> Result:
        """Runs a long query in the worker. Raises `TimedOut`."""
        return await asyncio.to_thread(database.patiently, query, _QUERY_TAKES)

    async def tracked(self, work: Callable[[], Result]) -> Result:
        """Runs what reads or writes the tracker's store in the worker. Raises `Unavailable`, `TimedOut`."""
        try:
            return await asyncio.to_thread(reports.patiently, work, _QUERY_TAKES)
        except peewee.OperationalError as error:
            raise Unavailable(f"the store of the tracker does not answer: {error}") from None

    @property
    def is_stalled(self) -> bool:
        """Whether the loop was held up for more than a second within the last ten."""
        return max(self._worst) > _STALLED

    def _keep(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._is_over)

    def _is_over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("the task %s ended: %s", task.get_name(), error, exc_info=error)

    async def _beat(self) -> None:
        """Every two seconds: how late the loop is, zombies buried, the write-ahead log moved into the file at times."""
        beats, due = 0, time.monotonic() + _BEAT
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self.lag = time.monotonic() - due
            due = time.monotonic() + _BEAT
            beats += 1
            self._worst[beats % len(self._worst)] = self.lag
            try:
                await self._tidy(beats)
            except Exception as error:
                log.warning("the house could not be tidied: %s", error)

    async def _tidy(self, beats: int) -> None:
        if beats % _BURY_EVERY == 0:
            self.engine.strays.bury()
        if beats % _CHECKPOINT_EVERY == 0 or self.journal.commits >= 1000:
            self.journal.commits = 0
            await asyncio.to_thread(database.checkpoint)
        if beats % _CHECKPOINT_EVERY == 0 or self._wal_has_grown():
            await asyncio.to_thread(reports.checkpoint)

    def _wal_has_grown(self) -> bool:
        """Whether it is large and was written to: a report of a hundred thousand cases makes a large one at once."""
        try:
            wal = (self.data_dir / "tracker.db-wal").stat()
        except FileNotFoundError:
            return False
        written, self._wal_written = self._wal_written, wal.st_mtime_ns
        return wal.st_size > _LARGE_WAL and wal.st_mtime_ns != written

    async def _prune(self) -> None:
        """Keeps the history within its bounds, a thousand rows at a time, so that nobody waits for it."""
        while True:
            keep = self.config.supervisor.events
            before = self.clock.now() - keep.retain_days * _DAY
            try:
                while await self.off_loop(lambda: events.prune(before, keep.retain_rows)):  # noqa: B023 (awaited here)
                    await asyncio.sleep(0.01)
                await self.accounts.prune()
            except (peewee.PeeweeException, Problem) as error:
                log.warning("the history could not be pruned: %s", error)
            await asyncio.sleep(_PRUNE_EVERY)


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """What children get of our environment: all but the variables that set properties of ours."""
    return {name: value for name, value in environ.items() if name not in reading.VARIABLES}


def _live(old: Config, new: Config) -> Config:
    """The configuration that counts from now on: `supervisor` is taken over, the rest waits for a restart."""
    return evolve(old, supervisor=new.supervisor)
