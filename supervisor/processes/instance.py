"""One life of a process: its child from the spawn to the burial, with the spec that it was started by."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from models.config.redaction import shown_words
from models.errors import Failed
from models.supervision.process import Exit, ProcessSpec
from supervisor.processes.child import Child, Launch
from supervisor.processes.context import SupervisionContext
from supervisor.processes.log_files import tail

_LAST_WORDS = 4096
_KILLED_GOES_WITHIN = 10.0
_MOMENT = 0.1


class Life:
    def __init__(
        self, context: SupervisionContext, spec: ProcessSpec, launch: Launch, child: Child, since: float
    ) -> None:
        """`since` is when it began, in seconds since boot."""
        self.spec = spec
        self.child = child
        self.killed = False
        self._engine = context
        self._launch = launch if spec.health_check is not None else None  # each is kilobytes of environment
        self._since = since
        self._tasks: list[asyncio.Task[None]] = []

    def uptime(self) -> int:
        """Microseconds that it has lasted."""
        return int((self._engine.clock.since_boot() - self._since) * 1_000_000)

    # Its beginning

    async def survived(self) -> None:
        """Returns when it has lasted `start-seconds`."""
        await self._engine.clock.sleep(max(0.0, self.spec.start_seconds - self.uptime() / 1_000_000))

    def probe(self, told: Callable[[bool], None]) -> None:
        """Asks from now on how it is; `told` hears when that changes."""
        if self._launch is not None:
            watch = self._engine.prober.watch(self.spec, self._launch, told)
            self._tasks.append(asyncio.get_running_loop().create_task(watch, name=f"probe {self.spec.name}"))

    # Its end

    async def end(self) -> None:
        """Asks it to stop, makes it stop after `stop-timeout`, and clears away what it left behind.

        Raises `Failed` where it cannot be killed.
        """
        loop, child = asyncio.get_running_loop(), self.child
        end = loop.time() + self.spec.stop_timeout
        child.send(self.spec.stop_signal)
        child.send(signal.SIGCONT)
        await asyncio.wait({child.exited}, timeout=self.spec.stop_timeout)
        if not child.exited.done():
            self.kill()
            await asyncio.wait({child.exited}, timeout=_KILLED_GOES_WITHIN)
        if not child.exited.done():
            raise Failed(f"{self.spec.name} (pid {child.pid}) was killed and is still there", "STOP_FAILED")
        await self.clear(max(end - loop.time(), 0))

    def kill(self) -> None:
        """Ends it, and all that it has started, without asking."""
        self.killed = True
        self._engine.cgroups.kill(self.spec.name)
        self.child.send(signal.SIGKILL)

    def over(self) -> None:
        """Its child has ended: nobody asks any more how it is."""
        for task in self._tasks:
            task.cancel()

    async def clear(self, patience: float) -> None:
        """Ends what it left behind: asked first, made to after `patience` seconds."""
        await self._engine.orphans.clear(self.child, self.spec.name, self.spec.stop_signal, patience)

    async def sweep(self, generation: int) -> None:
        """Looks a moment later for what it had started before it was in its control group."""
        await self._engine.clock.sleep(_MOMENT)
        await self._engine.orphans.sweep(self.spec.name, generation, self.spec.stop_timeout)

    def left_nothing(self) -> bool:
        """Whether its control group says so, which is known at once."""
        return self.child.is_grouped and not self._engine.orphans.are_likely(self.child, self.spec.name)

    # What is said of it

    def did_start(self, exit: Exit) -> bool:
        """Whether a life that ended while it was starting had started all the same: quicker than we could look."""
        return not self.spec.start_seconds and not self._was_not_executed(exit)

    def _was_not_executed(self, exit: Exit) -> bool:
        """Whether it was still one of the chain that ended, and not well."""
        return self.child.is_chained and exit.exit_code != 0

    def last_words(self, exit: Exit) -> str:
        """Why it failed to start: how it ended, and the end of its standard error where that is a file of its own."""
        words = f"it ended with {exit} before it had run for {self.spec.start_seconds:g} s"
        if self._was_not_executed(exit):
            words = f"{' '.join(shown_words(self.spec.argv))!r} could not be executed ({exit})"
        file = Path(self.spec.stderr_file or "")
        try:
            text = tail(file, 100, _LAST_WORDS)[0] if file.is_file() else b""  # /dev/stderr, say, cannot be read again
        except OSError:
            text = b""
        return f"{words}\n{text[-_LAST_WORDS:].decode('utf-8', 'replace')}".rstrip()
