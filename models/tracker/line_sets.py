"""Line numbers of a source file as the store keeps them: packed, and quick to unite.

A file's lines lie close together as a rule: a bit for each up to the last. Where they do not, as 64-bit numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence

_BITS, _NUMBERS = b"b", b"n"
_NEAR = 2**20
"""What lies beyond is never kept as a bit."""
_SPARSE, _SHORT = 32, 512


def pack(numbers: Collection[int]) -> bytes:
    """Of numbers from 0 to 2^63, each once."""
    last = max(numbers, default=0)
    if last > min(_NEAR, _SPARSE * len(numbers) + _SHORT):
        return _NUMBERS + struct.pack(f"<{len(numbers)}Q", *sorted(numbers))
    return _BITS + _bitmap(numbers)


def unpack(packed: bytes) -> list[int]:
    """The numbers, in order."""
    if packed[:1] == _NUMBERS:
        return list(struct.unpack(f"<{len(packed) // 8}Q", packed[1:]))
    return [8 * place + bit for place, byte in enumerate(packed[1:]) if byte for bit in range(8) if byte >> bit & 1]


def count_union(files: Iterable[Sequence[bytes]]) -> tuple[int, int]:
    """Of pairs of covered and missed lines of one file: how many are covered somewhere, and how many nowhere."""
    near, far = [0, 0], (set[int](), set[int]())
    for pair in files:
        for which, packed in enumerate(pair):
            if packed[:1] == _BITS:
                near[which] |= int.from_bytes(packed[1:], "little")
            else:
                numbers = unpack(packed)
                near[which] |= int.from_bytes(_bitmap([one for one in numbers if one <= _NEAR]), "little")
                far[which].update(one for one in numbers if one > _NEAR)
    covered, missed = near[0], near[1] & ~near[0]
    return covered.bit_count() + len(far[0]), missed.bit_count() + len(far[1] - far[0])


def _bitmap(numbers: Collection[int]) -> bytes:
    bits = bytearray(max(numbers, default=0) // 8 + 1)
    for number in numbers:
        bits[number >> 3] |= 1 << (number & 7)
    return bytes(bits)
