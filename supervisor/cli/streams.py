"""Standard streams that are closed, whose reader has gone, or whose encoding lacks characters of a text."""

from __future__ import annotations

import io
import os
import sys


def prepare_streams() -> None:
    """Replaces closed streams, and escapes the characters that the encoding of standard output lacks."""
    for name, mode in (("stdin", "r"), ("stdout", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123 (until the process ends)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def discard_output() -> None:
    """After a write has failed: what is still buffered would fail again when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
