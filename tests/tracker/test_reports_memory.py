"""Large reports are read in constant memory."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import ROOT

MEASURE = """
import resource, sys
from models.tracker.reports.detect import read_coverage, read_tests
from models.tracker.reports.base import Limits

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

read = read_tests if sys.argv[1] == "tests" else read_coverage
with open(sys.argv[2], "rb") as small, open(sys.argv[3], "rb") as large:
    rows = []
    read(small, Limits(), rows.append)
    before, count = peak(), 0
    def sink(row):
        global count
        count += 1
    read(large, Limits(), sink)
    print(peak() - before, count)
"""
GROWTH_MB = 30


def cases(number: int) -> Iterator[str]:
    for at in range(number):
        failure = f"<failure message='no'><![CDATA[{'at x.Y(Z.java:5)' * 40}]]></failure>" if at % 50 == 0 else ""
        name = f'classname="com.example.module.SomeTest" name="does_something_{at}" time="0.0{at}"'
        yield f"<testcase {name}>{failure}</testcase>\n"


def pytest_like(number: int) -> Iterator[str]:
    """All the tests in one suite."""
    yield '<testsuites><testsuite name="pytest">'
    yield from cases(number)
    yield "</testsuite></testsuites>"


def surefire_like(number: int) -> Iterator[str]:
    """A suite for every 20 tests."""
    yield "<testsuites>"
    for _ in range(number // 20):
        yield '<testsuite name="com.example.module.SomeTest" tests="20">'
        yield from cases(20)
        yield "</testsuite>"
    yield "</testsuites>"


def one_output(number: int) -> Iterator[str]:
    """One test with a very large output."""
    yield '<testsuite name="s"><testcase name="a"><system-out>'
    for _ in range(number // 5):
        yield "some line of output with an é and &lt;brackets&gt; in it\n" * 10
    yield "</system-out></testcase></testsuite>"


def jacoco(number: int) -> Iterator[str]:
    yield '<report name="r"><group name="all">'
    for at in range(number // 100):
        yield f'<package name="p{at}"><sourcefile name="A.java">'
        yield "".join(f'<line nr="{line}" mi="0" ci="{line % 2}" mb="0" cb="0"/>' for line in range(400))
        yield '<counter type="LINE" missed="5" covered="5"/></sourcefile></package>'
    yield "</group></report>"


def cobertura(number: int) -> Iterator[str]:
    yield "<coverage><packages><package><classes>"
    for at in range(number // 100):
        yield f'<class filename="p{at}.py"><lines>'
        yield "".join(f'<line number="{line}" hits="{line % 2}"/>' for line in range(400))
        yield "</lines></class>"
    yield "</classes></package></packages></coverage>"


def ctrf(number: int) -> Iterator[str]:
    yield '{"results": {"tests": [{"name": "first", "status": "passed"}'
    for at in range(number):
        test = {
            "name": f"does_something_{at}",
            "status": "passed",
            "duration": at,
            "suite": ["a", "b"],
            "extra": {"x": [1]},
        }
        yield ",\n" + json.dumps(test)
    yield "]}}"


def go(number: int) -> Iterator[str]:
    for at in range(number // 3):
        for action in ("run", "output", "pass"):
            event = {"Action": action, "Package": f"p{at % 50}", "Test": f"Test{at}", "Output": "x" * 200}
            yield json.dumps(event) + "\n"


def jest(number: int) -> Iterator[str]:
    yield '{"numTotalTests": 1, "success": true, "testResults": [{"name": "/first", "assertionResults": []}'
    for at in range(number // 100):
        tests = [
            {"ancestorTitles": ["a"], "status": "passed", "title": f"does_something_{at}_{n}", "failureMessages": []}
            for n in range(100)
        ]
        yield ",\n" + json.dumps({"assertionResults": tests, "name": f"/src/a{at}.test.js", "status": "passed"})
    yield "]}"


def dotnet_coverage(number: int) -> Iterator[str]:
    yield "<results><modules>"
    for at in range(number // 100):
        yield "<module><functions>"
        yield "".join(
            f'<range source_id="0" start_line="{line}" end_line="{line}" start_column="9" covered="no"/>'
            for line in range(1, 400)
        )
        yield f'</functions><source_files><source_file id="0" path="A{at}.cs"/></source_files></module>'
    yield "</modules></results>"


LARGE: dict[str, tuple[str, Callable[[int], Iterator[str]], int]] = {
    "one suite": ("tests", pytest_like, 100_000),
    "many suites": ("tests", surefire_like, 100_000),
    "one output": ("tests", one_output, 300_000),
    "CTRF": ("tests", ctrf, 90_000),
    "go test": ("tests", go, 100_000),
    "Jest": ("tests", jest, 100_000),
    "dotnet-coverage": ("coverage", dotnet_coverage, 50_000),
    "JaCoCo in a group": ("coverage", jacoco, 100_000),
    "Cobertura": ("coverage", cobertura, 100_000),
}


@pytest.mark.parametrize("what", LARGE)
def test_memory_does_not_grow_with_a_report(what: str, tmp_path: Path) -> None:
    kind, make, number = LARGE[what]
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_text("".join(make(100)))
    with gzip.open(large, "wt", compresslevel=1) as file:
        size = sum(file.write(piece) for piece in make(number))
    assert size > 10_000_000
    command = [sys.executable, "-c", MEASURE, kind, str(small), str(large)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    growth, count = int(result[0]), int(result[1])
    assert count > 0
    assert growth < GROWTH_MB, f"{growth} MB for {size} bytes"
