"""Sets of line numbers as the store keeps them: packed bytes that can be united quickly.

The lines of a file are usually close together: one bit for each number up to the last. Where they are not, each is a
64-bit number.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence

_BITS, _NUMBERS = b"b", b"n"
_MAX_BIT = 2**20
"""Higher numbers are never stored as bits."""
_BITS_PER_NUMBER, _FREE_BITS = 32, 512


def pack(numbers: Collection[int]) -> bytes:
    """Packs distinct numbers from 0 to 2^63."""
    last = max(numbers, default=0)
    if last > min(_MAX_BIT, _BITS_PER_NUMBER * len(numbers) + _FREE_BITS):
        return _NUMBERS + struct.pack(f"<{len(numbers)}Q", *sorted(numbers))
    return _BITS + _bitmap(numbers)


def unpack(packed: bytes) -> list[int]:
    """Returns the numbers, in order."""
    if packed[:1] == _NUMBERS:
        return list(struct.unpack(f"<{len(packed) // 8}Q", packed[1:]))
    return [8 * place + bit for place, byte in enumerate(packed[1:]) if byte for bit in range(8) if byte >> bit & 1]


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
                near[index] |= int.from_bytes(_bitmap([number for number in numbers if number <= _MAX_BIT]), "little")
                far[index].update(number for number in numbers if number > _MAX_BIT)
    covered, missed = near[0], near[1] & ~near[0]
    return covered.bit_count() + len(far[0]), missed.bit_count() + len(far[1] - far[0])


def _bitmap(numbers: Collection[int]) -> bytes:
    bits = bytearray(max(numbers, default=0) // 8 + 1)
    for number in numbers:
        bits[number >> 3] |= 1 << (number & 7)
    return bytes(bits)
