"""Files of a multipart body where the disk takes no more of them."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from handlers.http.multipart import Parts

HEAD = b'--b\r\nContent-Disposition: form-data; name="chart"; filename="a.tgz"\r\n\r\n'
TAIL = b"\r\n--b--\r\n"


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """As a disk with so much room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def chart(folder: Path) -> Parts:
    return Parts("multipart/form-data; boundary=b", lambda name: name == "chart", folder)


def test_a_file_that_is_cut_when_it_is_closed_does_not_go_unseen(tmp_path: Path) -> None:
    """So small that it waits in a buffer until then."""
    parts = chart(tmp_path)
    with files_of_at_most(100), pytest.raises(OSError, match="File too large"):
        parts.feed(HEAD + b"x" * 200 + TAIL)


def test_a_file_that_is_cut_while_it_comes_does_not_go_unseen(tmp_path: Path) -> None:
    parts = chart(tmp_path)
    with files_of_at_most(100), pytest.raises(OSError, match="File too large"):
        parts.feed(HEAD + b"x" * 1_000_000)  # more than a buffer: 128 KiB from Python 3.14 on


def test_with_room_it_is_whole(tmp_path: Path) -> None:
    parts = chart(tmp_path)
    with files_of_at_most(200):
        parts.feed(HEAD + b"x" * 200 + TAIL)
        parts.end()
    found = parts.last("chart")
    assert found is not None
    assert found.file is not None
    assert found.file.read_bytes() == b"x" * 200


def test_what_is_given_up_is_given_up_quietly(tmp_path: Path) -> None:
    """Its client has left: nobody asks for it any more."""
    parts = chart(tmp_path)
    with files_of_at_most(100):
        parts.feed(HEAD + b"x" * 200)
        parts.close()
