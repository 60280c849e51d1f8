"""The service that supervises processes: its parts, opened in order and closed in reverse."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Mapping

from models.config import loader
from models.config.settings import Config, SupervisorSettings
from models.supervision.events import StatusEvent
from models.supervision.process import TROUBLE
from models.supervision.record import Record
from models.supervision.tables import fact
from supervisor.children.child import Children
from supervisor.children.orphans import Cgroups, Orphans, become_subreaper
from supervisor.clock import Clock
from supervisor.processes.adoption import adopt
from supervisor.processes.event_writer import EventWriter
from supervisor.processes.fleet import Fleet, Reload
from supervisor.processes.history import History
from supervisor.processes.logs.process_logs import ProcessLogs
from supervisor.processes.metrics import MetricsHistory
from supervisor.processes.notices import Notices
from supervisor.processes.process.context import SupervisionContext
from supervisor.processes.process.health import Prober
from supervisor.processes.run_recorder import RunRecorder
from supervisor.processes.scheduler import Scheduler
from supervisor.processes.usage import Meter
from supervisor.scheduling import BackgroundTasks, seconds_until
from supervisor.systemd import VARIABLES

log = logging.getLogger("server")

_MAX_WAITING_EVENTS = 50_000
_SECRETS = frozenset({"PILOTHOUSE_TOKEN", "PGPASSWORD", "CREDENTIALS_DIRECTORY"})
_PAUSE_SECONDS = 0.01
"""Between two parts of a long deletion, so that no request waits for it."""


class Supervision:
    """The processes, their schedules, logs, metrics and history."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        instance: str,
        records: Mapping[str, Record],
        history: History,
        publish: Callable[[StatusEvent], None],
    ) -> None:
        """`instance` is the id of this installation, `records` is what is stored of each process.

        `publish` is called with each status change that is stored. Raises `peewee.PeeweeException`, `OSError`.
        """
        self.settings = settings = config.supervisor
        self.history = history
        self._clock = clock
        self._shutdown_seconds = config.server.shutdown_timeout
        self.event_writer = EventWriter(publish, min(settings.events.retain_rows, _MAX_WAITING_EVENTS))
        self.event_writer.retained_runs = settings.runs.retain
        self.notices = Notices(clock)
        self.context = _context(clock, self.event_writer, self.notices, instance)
        self.fleet = Fleet(settings.processes, self.context, records)
        self.scheduler = Scheduler(self.fleet, self.context)
        self.process_logs = ProcessLogs(self.fleet, config.server, clock, self.notices, self.event_writer)
        self.logs = self.process_logs.files
        self.context.on_logs_opened = self.process_logs.on_opened
        self.context.log_sizes = self.process_logs.sizes
        self.context.on_start = self.process_logs.on_start
        self.context.on_exit = self.process_logs.on_exit
        self.process_logs.take_over(settings.processes)
        self.meter = Meter(clock)
        self.metrics = MetricsHistory(self.fleet, self.meter, clock, lambda: self.settings.metrics)

    @property
    def leaves_processes(self) -> bool:
        """Whether the processes go on running when the server stops."""
        return self.settings.on_exit == "leave"

    @property
    def has_trouble(self) -> bool:
        """Whether a process has failed or is unhealthy."""
        return any(process.status in TROUBLE for process in self.fleet)

    def summary(self) -> str:
        """Returns a summary for `systemctl status`."""
        live = sum(process.live for process in self.fleet)
        return f"{'stopping; ' if self.context.closing else ''}{live} of {len(self.fleet)} processes are live"

    async def start(self, records: Mapping[str, Record], tasks: BackgroundTasks) -> None:
        """Adopts the processes that still run, and begins the background work."""
        become_subreaper()
        await self.process_logs.refresh_forwarding(self.settings.processes)
        if len(self.fleet):
            self.context.children.launcher.start()  # now, so that no start waits for it
        self._leftovers = await adopt(self.fleet, self.context, records)
        self.context.leftovers = self._leftovers.begin(tasks)
        self.process_logs.keep_for_now(process.name for process in self._leftovers.processes)
        self.scheduler.configure()
        self.process_logs.start()
        tasks.start(self.process_logs.growth.watch(), "log growth")

    def preview(self, settings: SupervisorSettings) -> Reload:
        """Returns what `reload` would do."""
        return self.fleet.preview(settings.processes, settings.auto_start)

    async def reload(self, settings: SupervisorSettings) -> Reload:
        """Applies other settings. Returns what was done."""
        captured = {name for name, spec in settings.processes.items() if spec.captured_files}
        before = {process.name for process in self.fleet if process.spec.captured_files}
        self.process_logs.keep_for_now(before - captured)
        self.settings = settings
        self.event_writer.retained_runs = settings.runs.retain
        self.process_logs.take_over(settings.processes)
        await self.process_logs.refresh_forwarding(settings.processes)
        return await self.fleet.reload(settings.processes, settings.auto_start)

    async def prune(self) -> None:
        """Keeps the history, notices and logs within their limits. Raises `peewee.PeeweeException`, `OSError`."""
        events = self.settings.events
        before = self._clock.expired_before(events.retain_days)
        while await self.history.prune(before, events.retain_rows):
            await asyncio.sleep(_PAUSE_SECONDS)
        while await self.notices.prune(self.settings.notices.retain_rows):
            await asyncio.sleep(_PAUSE_SECONDS)
        await self.process_logs.remove_old()

    async def flush(self, end: float) -> None:
        """Writes what is not stored yet, until the monotonic time `end`."""
        if self.event_writer.failing:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.logs.rotate(), seconds_until(end))  # on a full disk this makes room
        await self.process_logs.settle(seconds_until(end))
        if not await self.event_writer.stored_within(seconds_until(end)):
            log.error("the store cannot be written: %d changes are lost", self.event_writer.waiting)
        await self.metrics.close(seconds_until(end))

    async def end_processes(self) -> None:
        """Stops or leaves the processes."""
        try:
            async with asyncio.timeout(self._shutdown_seconds):
                await self.fleet.close(self.leaves_processes)
                if not self.leaves_processes:
                    await self._leftovers.end()
        except TimeoutError:
            if self.leaves_processes:
                log.error("not all calls ended within %g s; the processes are left running", self._shutdown_seconds)
                return
            log.error("not all processes stopped within %g s: they are killed", self._shutdown_seconds)
            await self.fleet.kill()
        except Exception:
            log.exception("while stopping the processes")

    async def close(self) -> None:
        """Writes the notices and closes what serves the children of all services."""
        await self.process_logs.close()
        self.notices.write()
        self.context.prober.close()
        self.context.children.close()
        self.context.cgroups.close()


def _context(clock: Clock, event_writer: EventWriter, notices: Notices, instance: str) -> SupervisionContext:
    key = bytes.fromhex(fact("child-key", secrets.token_hex(32)))
    children, cgroups = Children(key), Cgroups.open(instance)
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


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of children: the server's, without its secrets and variables of systemd.

    A variable that begins as those that set properties may be a misspelt one, with a secret.
    """
    dropped = VARIABLES | _SECRETS
    return {
        name: text for name, text in environ.items() if name not in dropped and not name.startswith(loader.PREFIXES)
    }
