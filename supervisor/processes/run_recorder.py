"""Records the runs of jobs: each begins with a start and ends with the status that ends the instance."""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve

from models.paging import Page, Paging
from models.supervision import runs
from models.supervision.process import ENDED, ProcessSpec, Status
from models.supervision.record import Record
from models.supervision.runs import Cause, JobRun, Outcome
from supervisor.clock import Clock
from supervisor.processes.event_writer import EventWriter
from supervisor.processes.history import off_loop
from supervisor.processes.notices import Notices

_FAILURES = frozenset({"failure", "timeout"})
_OF_A_SCHEDULE = frozenset({"schedule", "restart"})


class RunRecorder:
    """Runs are stored with the event of the same status change, in one transaction."""

    def __init__(self, clock: Clock, event_writer: EventWriter, notices: Notices) -> None:
        """Reads the last run of each job. Raises `peewee.PeeweeException`."""
        self._clock = clock
        self._event_writer = event_writer
        self._notices = notices
        self._last_id = runs.last_id()
        self._latest = runs.latest()
        self._verdicts: dict[str, Outcome] = {}
        self.on_begun: Callable[[str, Cause], None] = lambda process, cause: None
        """Called with each run that begins, before it is stored."""

    def last(self, name: str) -> JobRun | None:
        """The last run of a job, which may still go on."""
        return self._latest.get(name)

    async def page(self, name: str, paging: Paging) -> Page[JobRun]:
        """One page of the runs of a job, with those until now. Raises `TimedOut`."""
        await self._event_writer.stored_soon()
        return await off_loop(lambda: runs.page(name, paging))

    def begin(self, record: Record, cause: Cause) -> None:
        """A new instance of a job is `starting`."""
        self.on_begun(record.name, cause)
        self._last_id += 1
        self._verdicts.pop(record.name, None)
        self._keep(JobRun(self._last_id, record.name, record.generation, cause.trigger, cause.scheduled_for))

    def judge(self, name: str, outcome: Outcome) -> None:
        """The run of the present instance is being ended, and this is why."""
        self._verdicts[name] = outcome

    def follow(self, record: Record, old: Status, spec: ProcessSpec) -> None:
        """Called after each status change, `old` to `record.status`."""
        run = self._latest.get(record.name)
        if run is None or run.outcome is not None or run.generation != record.generation:
            return
        if record.status not in ENDED:
            if run.start is None and record.start is not None:
                self._keep(evolve(run, start=record.start))
            return
        outcome = self._verdicts.pop(record.name, None) or runs.outcome_of(record.status, old)
        end = self._clock.now() if record.end is None else record.end
        run = evolve(run, start=record.start, end=end, exit_code=record.exit_code, outcome=outcome)
        self._keep(run)
        if outcome in _FAILURES and spec.schedule is not None and run.trigger in _OF_A_SCHEDULE:
            code = "" if run.exit_code is None else f" (exit code {run.exit_code})"
            message = f"{record.name}: the scheduled run is {record.status.value}{code}"
            self._notices.post("schedule.failed", record.name, message, outcome=outcome, exitCode=run.exit_code)

    def _keep(self, run: JobRun) -> None:
        self._latest[run.process] = run
        self._event_writer.note_run(run)
