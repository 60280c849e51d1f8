"""Files of a multipart body: on a full disk, and their number."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from handlers.http.multipart import Parts
from models.errors import TooLarge

HEAD = b'--b\r\nContent-Disposition: form-data; name="chart"; filename="a.tgz"\r\n\r\n'
TAIL = b"\r\n--b--\r\n"


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Limits the size of files, like a disk with that much free space."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def chart(folder: Path) -> Parts:
    return Parts("multipart/form-data; boundary=b", lambda name: name == "chart", folder)


def test_a_write_error_at_close_is_reported(tmp_path: Path) -> None:
    """The content is so small that it is in a buffer until then."""
    parts = chart(tmp_path)
    with file_size_limit(100), pytest.raises(OSError, match="File too large"):
        parts.feed(HEAD + b"x" * 200 + TAIL)


def test_a_write_error_during_the_upload_is_reported(tmp_path: Path) -> None:
    parts = chart(tmp_path)
    with file_size_limit(100), pytest.raises(OSError, match="File too large"):
        parts.feed(HEAD + b"x" * 1_000_000)  # more than a buffer: 128 KiB from Python 3.14 on


def test_a_file_is_complete_if_the_disk_has_room(tmp_path: Path) -> None:
    parts = chart(tmp_path)
    with file_size_limit(200):
        parts.feed(HEAD + b"x" * 200 + TAIL)
        parts.end()
    found = parts.last("chart")
    assert found is not None
    assert found.file is not None
    assert found.file.read_bytes() == b"x" * 200


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_a_file_that_is_cut_on_purpose_has_all_bytes_up_to_its_limit(tmp_path: Path, piece: int) -> None:
    kind = "multipart/form-data; boundary=b"
    parts = Parts(kind, lambda name: name == "chart", tmp_path, most_of_file=50, cut={"chart": 100})
    body = HEAD + bytes(range(200)) + TAIL
    for start in range(0, len(body), piece):
        parts.feed(body[start : start + piece])
    parts.end()
    found = parts.last("chart")
    assert found is not None
    assert found.file is not None
    assert (found.size, found.file.read_bytes()) == (200, bytes(range(100)))


def test_an_abandoned_upload_reports_no_error(tmp_path: Path) -> None:
    """Its client has disconnected."""
    parts = chart(tmp_path)
    with file_size_limit(100):
        parts.feed(HEAD + b"x" * 200)
        parts.close()


MIXED = b"Content-Type: multipart/mixed; boundary=c\r\n\r\n"


@pytest.mark.parametrize(
    ("many", "all_parts"),
    [(HEAD * 10_000, 3), ((HEAD[:-2] + MIXED + b"--c--\r\n") * 10_000, 0)],
    ids=["files", "mixed"],
)
def test_parts_are_counted_as_they_arrive(tmp_path: Path, many: bytes, all_parts: int) -> None:
    """In one piece: no part beyond the limit becomes a file or an object."""
    parts = Parts("multipart/form-data; boundary=b", lambda name: name == "chart", tmp_path, most_parts=3)
    with pytest.raises(TooLarge, match="more than 3 parts"):
        parts.feed(many.replace(HEAD[:3], b"\r\n--b")[2:])
    assert len(parts.all) == len(list(tmp_path.iterdir())) == all_parts
