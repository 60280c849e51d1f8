"""The documents are true: their commands run, their links lead somewhere, and the calls that they name are answered.

A block of commands after `<!-- run -->` is run, in the order of the document, in a folder where `make run` would have
been: with a running server, whose port takes the place of 8080. `<!-- run: helm -->` needs that program. A block
without a language right after it is what it must print, where … stands for anything and white space does not count.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, cast

import pytest
import yaml
from conftest import ROOT, Server
from places import free_port
from tornado.routing import PathMatches

from handlers import app
from handlers.base import methods
from handlers.streams import Streams
from models.config import Config
from supervisor.services import Services

DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [str(file.relative_to(ROOT)) for file in DOCUMENTS]
BLOCK = re.compile(r"<!-- run(?:: ([a-z0-9]+))? -->\n```sh\n(.*?)```\n(?:```\n(.*?)```\n)?", re.DOTALL)
TAKES = 120
RULES = app.rules(cast("Services", SimpleNamespace(config=Config())), Streams(Config().server))


class Block(NamedTuple):
    needs: str
    commands: str
    printed: str | None


def text(name: str) -> str:
    return (ROOT / name).read_text()


def blocks(name: str) -> list[Block]:
    return [Block(needs or "", commands, printed or None) for needs, commands, printed in BLOCK.findall(text(name))]


RUN = [name for name in NAMES if blocks(name)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """The example configuration, served from a folder that looks like a checkout."""
    for name in ("run.py", "examples", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    shell(tmp_path / ".venv" / "bin" / "python", f'exec {sys.executable} "$@"')
    shell(tmp_path / "bin" / "curl", f'exec {shutil.which("curl")} -sS --fail-with-body "$@"')
    example = (ROOT / "examples" / "pilothouse.yaml").read_text().replace("9000", str(free_port()))
    server = Server(tmp_path, yaml.safe_load(example), {}, [])
    try:
        yield server.start()
    finally:
        server.close()


def shell(file: Path, line: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{line}\n")
    file.chmod(0o755)


def is_there(program: str) -> bool:
    if not program or shutil.which(program) or (ROOT / ".tools" / program).exists():
        return True
    if os.environ.get("CI") == "true":
        pytest.fail(f"there is no {program}")
    return False


@pytest.mark.parametrize("name", RUN)
def test_the_commands_of_a_document_do_what_it_says(name: str, server: Server) -> None:
    if shutil.which("curl") is None:
        assert os.environ.get("CI") != "true", "there is no curl"
        pytest.skip("there is no curl")
    path = f"{server.folder / 'bin'}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "PILOTHOUSE_URL": f"http://127.0.0.1:{server.port}"}
    for needs, commands, printed in blocks(name):
        if not is_there(needs):
            continue
        script = re.sub(r"(localhost|127\.0\.0\.1):8080", rf"\1:{server.port}", commands)
        done = subprocess.run(
            ["/bin/sh", "-eu", "-c", script], cwd=server.folder, env=environ, capture_output=True, timeout=TAKES
        )
        assert done.returncode == 0, f"{script}\n{done.stdout.decode()}\n{done.stderr.decode()}"
        if printed is not None:
            assert matches(printed, done.stdout.decode()), (
                f"{script}\nshould print\n{printed}\nand printed\n{done.stdout!r}"
            )


def matches(expected: str, found: str) -> bool:
    wanted = ".*".join(re.escape(re.sub(r"\s", "", piece)) for piece in expected.split("…"))
    return re.fullmatch(wanted, re.sub(r"\s", "", found)) is not None


def test_something_is_run() -> None:
    assert "README.md" in RUN
    assert len(blocks("README.md")) >= 5


@pytest.mark.parametrize(("expected", "found", "fits"), [("{a…}\n", '{a"b"}', True), ("{a}", "{b}", False)])
def test_what_is_printed_is_looked_at(expected: str, found: str, fits: bool) -> None:
    assert matches(expected, found) is fits


# Links


def anchors(file: Path) -> set[str]:
    """Of its headings, as the places where documents are shown make them."""
    prose = re.sub(r"^```.*?^```", "", file.read_text(), flags=re.DOTALL | re.MULTILINE)
    heads = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    prose = re.sub(r"^```.*?^```", "", text(name), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


# Calls


def is_served(method: str, path: str) -> bool:
    """Whether somebody answers this; a path of a document may leave out the base path, and has variables in braces."""
    concrete = re.sub(r"\{\w*[iI]d\}", "1", re.sub(r"\{status\}", "running", path))
    concrete = re.sub(r"\{\w+\}", "x", concrete)
    for rule in RULES:
        matcher = cast("PathMatches", rule.matcher)
        for whole in (concrete, f"/api/v1{concrete}"):
            if matcher.regex.match(whole) and method in methods(rule.target):
                return True
    return False


def calls(text: str) -> Iterator[tuple[str, str]]:
    """Each method and path; `…/values` after a path is another below it, or beside it."""
    for line in text.splitlines():
        method, path = "", ""
        for word, asked, rest in re.findall(r"`(?:(GET|POST|PUT|DELETE) (/[^\s`?]*)|…(/[^\s`?]*)[^`]*)", line):
            if word:
                method, path = word, asked
                yield method, path
            elif method:
                below, beside = path + rest, path.rpartition("/")[0] + rest
                yield method, below if is_served(method, below) else beside


CALLS = [(name, *call) for name in NAMES for call in sorted(set(calls(text(name))))]


@pytest.mark.parametrize(("name", "method", "path"), CALLS)
def test_the_calls_that_a_document_names_are_answered(name: str, method: str, path: str) -> None:
    assert is_served(method, path)


def test_a_call_that_nobody_answers_is_noticed() -> None:
    assert not is_served("GET", "/api/v1/nothing")
    assert not is_served("DELETE", "/api/v1/processes")
    assert len(CALLS) > 60


def test_the_commands_call_what_is_answered() -> None:
    """Also those that are not run: their paths are there."""
    found = re.findall(r"localhost:8080(/[^\s'\"?]*)", "".join(text(name) for name in NAMES))
    assert found
    assert [path for path in found if not any(is_served(method, path) for method in ("GET", "POST"))] == []
