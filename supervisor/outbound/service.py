"""What the server sends by itself: notifications, from a durable outbox. Its modules are loaded on first use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

import peewee

from models.config.settings import Config
from models.errors import CannotUse, Problem, Unavailable
from models.json_format import ParseJson
from models.outbound.tables import FILE, OUTBOX_CHANNEL, RULES_CHANNEL
from models.supervision import events, notices
from models.tracker.project_secrets import ProjectSecrets
from supervisor.clock import Clock
from supervisor.scheduling import BackgroundTasks, retrieve_exception
from supervisor.tracker.disk_space import DiskSpace

if TYPE_CHECKING:
    from models.accounts.mail_settings import Kind
    from supervisor.outbound.core import Core
    from supervisor.tracker.forge_reports.report_follower import ReportFollower

log = logging.getLogger("outbox")

_RETRY_SECONDS = 5.0
_FIRST_OPENING_SECONDS = 5.0


class Outbound:
    def __init__(
        self,
        config: Config,
        clock: Clock,
        instance: str,
        secrets: ProjectSecrets,
        labels: Callable[[], Mapping[str, Sequence[str]]],
        parse_json: ParseJson,
        disk: DiskSpace,
    ) -> None:
        """`instance` is the id of this node. `secrets` keeps those of channels, `labels` has those of processes.

        `parse_json` parses the answers of forges. `disk` has the reserve, with which messages, channels and rules are
        deleted on a full disk.
        """
        self._config = config
        self._clock = clock
        self._instance = instance
        self._secrets = secrets
        self._labels = labels
        self._parse_json = parse_json
        self._disk = disk
        self._core: Core | None = None
        self._opening: asyncio.Task[Core] | None = None
        self._tasks: BackgroundTasks | None = None
        self._begun = {"event": events.last_id(), "notice": notices.last_id()} if self._is_used() else {}
        """The last event and notice of processes before this start: what follows is reported."""

    @property
    def opened(self) -> Core | None:
        """The parts, if they are in use."""
        return self._core

    def _is_used(self) -> bool:
        """Whether there may be something to send: a channel in the configuration, or a store of an earlier start."""
        server = self._config.server
        notify = self._config.notify
        is_configured = bool(notify.channels or notify.has_mail or self._config.tracker.forges)
        return is_configured or server.database_url is not None or (server.data_dir / FILE).exists()

    async def start(self, tasks: BackgroundTasks) -> None:
        """Begins to send, if there may be something to send; before the first event, which is not missed then."""
        self._tasks = tasks
        if not self._is_used():
            return
        await asyncio.wait([self._begin_opening()], timeout=_FIRST_OPENING_SECONDS)
        if self._core is None:
            tasks.start(self._open_soon(), "outbox")

    async def _open_soon(self) -> None:
        """Opens the store, for as long as it fails: nothing else waits for it."""
        while self._core is None:
            try:
                await self.core()
            except Unavailable as problem:
                log.warning("the outbox cannot be opened: %s", problem.message)
                await asyncio.sleep(_RETRY_SECONDS)

    async def core(self) -> Core:
        """The parts, opened on first use, in one task at a time. Raises `Unavailable`."""
        if self._core is not None:
            return self._core
        return await asyncio.shield(self._begin_opening())

    def _begin_opening(self) -> asyncio.Task[Core]:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(), name="outbox")
            self._opening.add_done_callback(retrieve_exception)
        return self._opening

    async def _open(self) -> Core:
        assert self._tasks is not None, "the service has started"
        made: Core | None = None
        try:
            made = core = await asyncio.to_thread(self._make)
            await core.run_deletion(core.load)
        except (peewee.PeeweeException, CannotUse, Problem, OSError) as error:
            if made is not None:
                await made.close()
            raise Unavailable(f"the outbox is not available: {error}") from None
        finally:
            self._opening = None
        self._core = core
        core.start(self._tasks)
        return core

    def _make(self) -> Core:
        from supervisor.outbound.core import Core  # with what it imports, on first use

        facts = self._config, self._clock, self._instance, self._secrets, self._labels, self._parse_json
        with self._disk.released() if self._disk.is_full else nullcontext():
            return Core(*facts, self._begun, self._disk)

    def notice(self, _: object) -> None:
        """Called for each change of a process or run."""
        self._wake_follower()

    @property
    def wakes(self) -> Mapping[str, Callable[[], None]]:
        """What is called after changes by any node, by the channel of their notifications."""
        return {OUTBOX_CHANNEL: self._wake_dispatcher, RULES_CHANNEL: self._wake_follower}

    def _wake_dispatcher(self) -> None:
        if self._core is not None:
            self._core.dispatcher.wake()

    def _wake_follower(self) -> None:
        if self._core is not None:
            self._core.notice()

    def run_finished(self) -> None:
        """A run was closed, which no event reports."""
        if self._core is not None and self._core.reports is not None:
            self._core.reports.look_again()

    async def project_changed(self, id: int) -> None:
        """Reports the newest commits of a project anew: its settings have changed, or what counts as a failure."""
        core = self._core
        if core is not None:
            core.follower.wake()  # the status of a test may have changed
        if core is None or core.reports is None:
            return
        reports = core.reports
        try:
            await core.run(lambda: reports.renew(id))
        except (peewee.PeeweeException, Problem) as error:
            log.warning("the commits of the project %d cannot be reported anew: %s", id, error)
        reports.look_again()

    @asynccontextmanager
    async def run_deletion(self, id: int) -> AsyncIterator[None]:
        """Lasts as long as the deletion of a run, by which the reports of commits may change.

        They are noted before it too: none is lost if the server ends in a deletion that is shorter than `debounce`.
        """
        commits = await self._note_commits(lambda reports: reports.beside_run(id))
        try:
            yield
        finally:
            if commits:
                await self._note_commits(lambda _: commits)

    async def _note_commits(
        self, find: Callable[[ReportFollower], Collection[tuple[int, str]]]
    ) -> Collection[tuple[int, str]]:
        """Reports commits anew, after `debounce`; returns them."""
        core = self._core
        if core is None or core.reports is None:
            return ()
        reports = core.reports

        def note() -> Collection[tuple[int, str]]:
            found = find(reports)
            reports.note(found)
            return found

        try:
            noted = await core.run(note)
        except (peewee.PeeweeException, Problem) as error:
            log.warning("commits cannot be reported anew: %s", error)
            return ()
        reports.wake()
        return noted

    async def forget_mails(self, account: int, kinds: Collection[Kind]) -> None:
        """Forgets what is to be mailed to an account of these kinds. Raises `Unavailable`, `TimedOut`."""
        if self._core is not None:
            from models.outbound import account_mails  # loaded with the core

            await self._core.run(lambda: account_mails.forget(account, kinds))

    async def report_refusal(self, project_id: int) -> str | None:
        """Why the forge of a project takes no reports any more; None where it does."""
        core = self._core
        if core is None or core.reports is None:
            return None
        from models.tracker.forge_reports import waits  # loaded with `reports`

        try:
            return await core.run(lambda: waits.any_refusal(project_id))
        except (peewee.PeeweeException, Problem) as error:
            log.warning("the state of the reports of project %d cannot be read: %s", project_id, error)
            return None

    @asynccontextmanager
    async def release_change(self, namespace: str, name: str, command: str) -> AsyncIterator[None]:
        """Lasts as long as a change of a release; its outcome is reported. What cannot be stored delays no change."""
        if self._core is None:
            yield
            return
        async with self._core.releases.change(namespace, name, command):
            yield

    async def close(self) -> None:
        if self._core is not None:
            await self._core.close()
