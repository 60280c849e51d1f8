"""Lengths of time in microseconds: the unit of every stored time, which counts from 1970 in UTC."""

from __future__ import annotations

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
