"""Sets of line numbers as the store keeps them: packed bytes that can be united quickly.

The lines of a file are usually close together: one bit for each number up to the last. Where they are not, each is a
64-bit number. A number above `MAX_LINE_NUMBER` is the key of a unit that is smaller than a line, or has several lines.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence

_BITS, _NUMBERS = b"b", b"n"
MAX_LINE_NUMBER = 2**20
"""Higher numbers are never stored as bits."""

MAX_UNIT_LINES = 2**9
"""Lines of a unit; further ones are left out."""
_COLUMN_BIT, _LINE_BIT, _EXTENT_BIT = 16, 32, 53
_BITS_PER_NUMBER, _FREE_BITS = 32, 512


def pack(numbers: Collection[int]) -> bytes:
    """Packs distinct numbers from 0 to 2^63."""
    last = max(numbers, default=0)
    if last > min(MAX_LINE_NUMBER, _BITS_PER_NUMBER * len(numbers) + _FREE_BITS):
        return _NUMBERS + struct.pack(f"<{len(numbers)}Q", *sorted(numbers))
    return _BITS + _bitmap(numbers)


def unpack(packed: bytes) -> list[int]:
    """Returns the numbers, in order."""
    if packed[:1] == _NUMBERS:
        return list(struct.unpack(f"<{len(packed) // 8}Q", packed[1:]))
    return [8 * place + bit for place, byte in enumerate(packed[1:]) if byte for bit in range(8) if byte >> bit & 1]


def unit_key(line: int, column: int, last: int | None = None) -> int:
    """The key of a unit: its place, and its last line. Below 2^62; the low 16 bits are free."""
    extent = min(max(0, (last or line) - line), MAX_UNIT_LINES - 1)
    return extent << _EXTENT_BIT | line << _LINE_BIT | min(column, 0xFFFF) << _COLUMN_BIT


def source_lines(packed: bytes | None) -> set[int]:
    """The lines that are in a set, or that a unit in it has."""
    numbers = unpack(bytes(packed)) if packed else ()
    lines = {number for number in numbers if number <= MAX_LINE_NUMBER}
    units = {number >> _LINE_BIT for number in numbers if number > MAX_LINE_NUMBER}
    bits = _EXTENT_BIT - _LINE_BIT
    reached = 0
    for first, extent in sorted((unit & (1 << bits) - 1, unit >> bits) for unit in units):
        end = first + extent + 1
        lines.update(range(max(first, reached), end))  # each line once, however many units have it
        reached = max(reached, end)
    return lines


def count_union(files: Iterable[Sequence[bytes]]) -> tuple[int, int]:
    """Takes pairs of covered and missed lines of one file; returns how many lines any pair covers, and how many none.

    A line that is covered in one pair and missed in another counts as covered.
    """
    near, far = [0, 0], (set[int](), set[int]())
    for pair in files:
        for index, packed in enumerate(pair):
            if packed[:1] == _BITS:
                near[index] |= int.from_bytes(packed[1:], "little")
            else:
                numbers = unpack(packed)
                lines = [number for number in numbers if number <= MAX_LINE_NUMBER]
                near[index] |= int.from_bytes(_bitmap(lines), "little")
                far[index].update(number for number in numbers if number > MAX_LINE_NUMBER)
    covered, missed = near[0], near[1] & ~near[0]
    return covered.bit_count() + len(far[0]), missed.bit_count() + len(far[1] - far[0])


def _bitmap(numbers: Collection[int]) -> bytes:
    bits = bytearray(max(numbers, default=0) // 8 + 1)
    for number in numbers:
        bits[number >> 3] |= 1 << (number & 7)
    return bytes(bits)
