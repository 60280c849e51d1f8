"""docs/operations.md documents exactly the lines that the server logs."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Set
from typing import NamedTuple

from conftest import ROOT

FILES = [
    ROOT / "run.py",
    *(file for layer in ("models", "supervisor", "handlers") for file in (ROOT / layer).rglob("*.py")),
]
ANY = "any"
LEVELS = {
    "info": "INFO",
    "warning": "WARNING",
    "error": "ERROR",
    "exception": "ERROR",
    "critical": "CRITICAL",
    "log": ANY,
}
PLACEHOLDER = re.compile(r"%[-.\d]*[sdgf]")
ROW = re.compile(r"^\| `([a-z]+: .+?)` \| (\w+) \|", re.MULTILINE)


class Line(NamedTuple):
    """The logger and message of a log call, with placeholders."""

    text: str
    level: str


def log_calls(source: str) -> Iterator[Line]:
    """The calls of the logger above the debug level in the source of a module."""
    parts: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if ast.unparse(node.func) == "logging.getLogger":
                parts += re.findall(r"log = logging.getLogger\('([a-z]+)'\)", f"log = {ast.unparse(node)}")
            elif node.func.attr in LEVELS and ast.unparse(node.func.value).startswith("log"):
                text = ast.literal_eval(node.args[node.func.attr == "log"])  # fails for a message that is not a literal
                yield Line(f"{parts[0]}: {text}", LEVELS[node.func.attr])


@functools.cache  # not at the import, which each process of the tests does
def calls() -> Set[Line]:
    """The calls of all modules."""
    return {line for file in FILES for line in log_calls(file.read_text())}


ROWS = {Line(*row) for row in ROW.findall((ROOT / "docs" / "operations.md").read_text())}


def matching_call(row: str) -> str | None:
    """The message of the call that a row documents: the match with the longest literal text."""
    matches = sorted(
        text for text, _ in calls() if re.fullmatch(".+".join(map(re.escape, PLACEHOLDER.split(text))), row)
    )
    return max(matches, key=lambda text: len(PLACEHOLDER.sub("", text)), default=None)


def test_every_log_line_is_documented_with_its_level() -> None:
    documented = {(matching_call(row.text), level) for row in ROWS for level in (row.level, ANY)}
    assert sorted(calls() - documented) == []


def test_every_documented_line_exists() -> None:
    assert [row for row in ROWS if not {(matching_call(row.text), level) for level in (row.level, ANY)} & calls()] == []


def test_the_search_finds_log_calls() -> None:
    source = """log = logging.getLogger("disk")
log.warning("%s is full: %d left", path, left)
log.debug("nothing")
log.log(level, "%s", words)
logging.getLogger("disk").critical("it is gone")
"""
    assert set(log_calls(source)) == {
        ("disk: %s is full: %d left", "WARNING"), ("disk: %s", ANY), ("disk: it is gone", "CRITICAL"),
    }  # fmt: skip
    assert len(calls()) > 50
    assert matching_call("logs: it was eaten") is None
