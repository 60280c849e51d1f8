"""Unusual multipart bodies: a preamble, parts without a name, several files in one part."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Answer, Server, wait_for
from http_checks import running_server
from uploads import BOUNDARY, FORM, body, incoming_files, junit, part, post, send

from handlers.tracker.ingest import Arrival
from models.config.settings import AttachmentSettings, ReportLimits

PROJECT = part("project", "odd")
JUNIT = part("junit", junit(passed=1), "a.xml")
INNER = "inner-boundary"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("multipart"), tracker={"limits": {"file": 4096}}) as server:
        yield server


@pytest.fixture(autouse=True)
def no_incoming_files_remain(server: Server) -> Iterator[None]:
    yield
    wait_for(lambda: not incoming_files(server), about="the incoming files to be removed")
    assert "Traceback" not in server.log.read_text()


def mixed(*files: str, end: str = f"--{INNER}--\r\n", kind: str = "multipart/mixed") -> bytes:
    """One `junit` part with several files, as curl sends it for `-F "junit=@a.xml,b.xml"`."""
    inner = "".join(
        f'--{INNER}\r\nContent-Disposition: attachment; filename="f{n}.xml"\r\n\r\n{file}\r\n'
        for n, file in enumerate(files)
    )
    return part("junit", inner + end, None, f"Content-Type: {kind}; boundary={INNER}")


def stored_tests(answer: Answer) -> int:
    assert answer.status == 201, answer
    return int(answer.json["tests"])


@pytest.mark.parametrize("preamble", [b"\r\n", b"for old mail readers\r\n", b"x" * 40_000 + b"\r\n", b"--not it\r\n"])
def test_preamble_before_the_first_boundary_is_ignored(server: Server, preamble: bytes) -> None:
    assert stored_tests(send(server, preamble + body([PROJECT, JUNIT]))) == 1


def test_epilogue_after_the_last_boundary_is_ignored(server: Server) -> None:
    assert stored_tests(send(server, body([PROJECT, JUNIT]) + b"an epilogue\r\n")) == 1


def test_preamble_over_its_limit_is_400(server: Server) -> None:
    answer = send(server, b"x" * 100_000 + b"\r\n" + body([PROJECT, JUNIT]))
    assert (answer.status, "boundary" in answer.json["detail"]) == (400, True)


@pytest.mark.parametrize("head", ['Content-Disposition: form-data; name=""', "Content-Type: text/plain", "X-Odd: 1"])
def test_part_without_a_name_is_ignored(server: Server, head: str) -> None:
    nameless = f"--{BOUNDARY}\r\n{head}\r\n\r\n{'x' * 2_000_000}\r\n".encode()
    assert stored_tests(send(server, body([PROJECT, nameless, JUNIT]))) == 1


def test_each_of_several_files_in_one_part_is_a_report(server: Server) -> None:
    files = [junit(passed=2, prefix=f"p{n}") for n in range(3)]
    assert stored_tests(send(server, body([PROJECT, mixed(*files), JUNIT]))) == 7


def test_invalid_file_of_a_mixed_part_is_named_and_nothing_is_stored(server: Server) -> None:
    answer = send(server, body([part("project", "none of it"), mixed(junit(passed=1), "<testsuite>")]))
    assert answer.status == 400
    assert answer.json["detail"].startswith("junit f1.xml: line 1, ")
    assert "none of it" not in [one["name"] for one in server.get("/api/v1/projects").json]


def test_mixed_part_without_its_end_is_refused(server: Server) -> None:
    assert send(server, body([PROJECT, mixed(junit(passed=1), end="")])).status == 400


def test_mixed_part_without_a_boundary_is_refused(server: Server) -> None:
    cut = mixed(junit(passed=1)).replace(f"; boundary={INNER}".encode(), b"")
    assert send(server, body([PROJECT, cut])).status == 400


def test_file_limit_applies_to_each_file_of_a_mixed_part(server: Server) -> None:
    answer = send(server, body([PROJECT, mixed(junit(passed=1), "x" * 5000)]))
    assert (answer.status, answer.json["detail"]) == (413, "junit f1.xml: the file is larger than 4096 bytes")


def test_too_large_file_is_named_in_the_response(server: Server) -> None:
    answer = post(server, ("project", "odd"), ("junit", "x" * 5000))
    assert (answer.status, answer.json["detail"]) == (413, "junit junit1.xml: the file is larger than 4096 bytes")


@pytest.mark.needs("curl")
def test_curl_sends_several_files_in_one_part(server: Server, tmp_path: Path) -> None:
    for name in ("a.xml", "b.xml"):
        (tmp_path / name).write_text(junit(passed=1, prefix=name))
    url = f"http://127.0.0.1:{server.port}/tracker/api/v1/ingest"
    command = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-F", "project=odd", "-F", "junit=@a.xml,b.xml"]
    done = subprocess.run([*command, url], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "201"


def test_the_bytes_of_unknown_parts_are_not_written(tmp_path: Path) -> None:
    folder = tmp_path / "upload"
    arrival = Arrival(FORM, folder, ReportLimits(), AttachmentSettings())
    arrival.take(JUNIT + part("note", "x" * 5000, "b") + part("more", "y"), is_end=False)
    assert len(list(folder.iterdir())) == 1
    arrival.discard()
