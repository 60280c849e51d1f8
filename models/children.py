"""Child processes as values: their resource limits, and how they end."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import NewType

from attrs import frozen

Limits = NewType("Limits", Mapping[str, tuple[str, str]])
"""Resource limit -> (soft, hard), as `prlimit` spells them: a number or `unlimited`."""

SIGNAL_OFFSET = 128


@frozen
class Exit:
    """How an OS process ended: its exit code, or the number of the signal that killed it."""

    code: int = 0
    signal: int | None = None

    @property
    def exit_code(self) -> int:
        """As in shells and responses: 128 + n for death by signal n."""
        return self.code if self.signal is None else SIGNAL_OFFSET + self.signal

    @property
    def listed_as(self) -> str:
        """As `success-exit-codes` and `no-restart-exit-codes` list it: `42`, `HUP`."""
        return str(self.code) if self.signal is None else signal_name(self.signal)

    def __str__(self) -> str:
        return f"exit code {self.code}" if self.signal is None else f"signal {self.signal}"


def signal_name(number: int) -> str:
    """`HUP` for 1; the number for a signal without a name."""
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:
        return str(number)
