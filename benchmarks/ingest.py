"""Uploads: Pilothouse compared with a bare parser and with a simple implementation, in the same runs.

    python benchmarks/ingest.py [--cases 100000] [--files 5000] [--runs 3] [--out FILE]

Pilothouse is measured from the request over loopback to the response: the report is parsed, stored and judged. The bare
parser uses expat and inserts one row for each case or file into a new SQLite file in one transaction, without
normalization or verdict. The simple implementation uses junitparser (ElementTree for coverage) and `create` of a peewee
model in one transaction. The latter two run as separate processes on local files.
"""

import argparse
import http.client
import importlib.util
import json
import os
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.parsers import expat

import peewee

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # it is run as a program

from benchmarks import claims, procfs, report
from benchmarks.candidates import until
from benchmarks.claims import Claim
from benchmarks.report import PILOTHOUSE, Figures, Metric
from benchmarks.streams import Pilothouse, running

BARE_PARSER, SIMPLE = "bare parser", "junitparser and peewee"
KINDS = ("junit", "jacoco")
NAMES = {"junit": "JUnit", "jacoco": "JaCoCo"}
LIMITS = {"tracker": {"limits": {"file": "90M", "request": "100M"}}}

METRICS = (
    Metric("seconds", "seconds", 2),
    Metric("processor", "processor time, s", 2),
    Metric("growth", "additional memory during the upload, MiB (RSS)", 1),
    Metric("kept", "additional memory afterwards, MiB (RSS)", 1),
    Metric("lag", "delay of the event loop during the upload, ms (p99)", 2),
    Metric("stall", "delay of the event loop during the upload, ms (worst)", 1),
)


def junit(cases: int) -> Iterator[str]:
    """Yields a report in which every fiftieth case failed, with a long stack."""
    yield '<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n'
    for suite in range(cases // 100):
        yield f'<testsuite name="com.example.shop.module{suite % 40}.Suite{suite}" tests="100">\n'
        for case in range(100):
            head = (
                f'<testcase classname="com.example.shop.module{suite % 40}.checkout.Suite{suite}Test" '
                f'time="0.{case:03}" name="orders are placed with the right discount, the right tax and the right '
                f'postage for a customer of the shop, number {case} of {suite}"'
            )
            trace = "\n".join(f"  at com.example.shop.Cart.line{line}(Cart.java:{line})" for line in range(30))
            failure = f'<failure message="expected 1 but was 2" type="AssertionError">{trace}</failure>'
            yield f"{head}/>\n" if case % 50 else f"{head}>{failure}</testcase>\n"
        yield "</testsuite>\n"
    yield "</testsuites>\n"


def jacoco(files: int) -> Iterator[str]:
    """Yields a report with ninety-five lines and many other counters for each file."""
    dice = random.Random(1)
    yield '<?xml version="1.0"?><!DOCTYPE report PUBLIC "-//JACOCO//DTD Report 1.1//EN" "report.dtd">'
    yield '<report name="shop">'
    total = 0
    for package in range(files // 50):
        yield f'<package name="com/example/shop/module{package}/checkout">'
        for file in range(50):
            hits = [dice.random() < 0.8 for _ in range(95)]
            lines = "".join(
                f'<line nr="{nr}" mi="{0 if hit else 3}" ci="{3 if hit else 0}" mb="0" cb="{nr % 3}"/>'
                for nr, hit in enumerate(hits, 10)
            )
            covered = sum(hits)
            total += covered
            counter = f'<counter type="LINE" missed="{95 - covered}" covered="{covered}"/>'
            more = '<counter type="METHOD" missed="1" covered="4"/><counter type="CLASS" missed="0" covered="1"/>' * 34
            yield f'<sourcefile name="Class{file}OfPackage{package}.java">{lines}{counter}{more}</sourcefile>\n'
        yield "</package>"
    yield f'<counter type="LINE" missed="{files // 50 * 50 * 95 - total}" covered="{total}"/></report>\n'


# The bare parser and the simple implementation


def bare_parser(kind: str, source: Path, store: Path) -> int:
    rows: list[tuple[str, ...]] = []
    wanted, names = ("testcase", ("classname", "name", "time")) if kind == "junit" else ("sourcefile", ("name",))

    def begins(tag: str, attributes: dict[str, str]) -> None:
        if tag == wanted:
            rows.append(tuple(attributes[name] for name in names))

    parser = expat.ParserCreate()
    parser.StartElementHandler = begins
    with source.open("rb") as file:
        parser.ParseFile(file)
    database = sqlite3.connect(store, isolation_level=None)
    database.execute("PRAGMA journal_mode = wal")
    database.execute(f"CREATE TABLE entry (id INTEGER PRIMARY KEY, {', '.join(names)})")
    database.execute("BEGIN")
    database.executemany(f"INSERT INTO entry ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})", rows)  # noqa: S608 (our own names)
    database.execute("COMMIT")
    return len(rows)


def simple_implementation(kind: str, source: Path, store: Path) -> int:
    tables = peewee.SqliteDatabase(str(store), pragmas={"journal_mode": "wal"})

    class Case(peewee.Model):
        class_name = peewee.TextField()
        name = peewee.TextField()
        seconds = peewee.FloatField()
        failed = peewee.BooleanField()
        message = peewee.TextField(null=True)

        class Meta:
            database = tables

    class Covered(peewee.Model):
        path = peewee.TextField()
        covered = peewee.IntegerField()
        missed = peewee.IntegerField()
        lines = peewee.TextField()

        class Meta:
            database = tables

    tables.create_tables([Case, Covered])
    with tables.atomic():
        return _store_cases(source, Case) if kind == "junit" else _store_files(source, Covered)


def _store_cases(source: Path, table: type[peewee.Model]) -> int:
    import junitparser

    count = 0
    for suite in junitparser.JUnitXml.fromfile(str(source)):
        for case in suite:
            failed = [one for one in case.result if isinstance(one, junitparser.Failure)]
            table.create(
                class_name=case.classname, name=case.name, seconds=case.time, failed=bool(failed),
                message=failed[0].text if failed else None,
            )  # fmt: skip
            count += 1
    return count


def _store_files(source: Path, table: type[peewee.Model]) -> int:
    count = 0
    for package in ElementTree.parse(source).getroot().iter("package"):  # noqa: S314 (our own file)
        for file in package.iter("sourcefile"):
            lines = {line.get("nr"): line.get("ci") != "0" for line in file.iter("line")}
            covered = sum(lines.values())
            table.create(
                path=f"{package.get('name')}/{file.get('name')}", covered=covered, missed=len(lines) - covered,
                lines=json.dumps(lines),
            )  # fmt: skip
            count += 1
    return count


def work(name: str, kind: str, source: Path) -> None:
    """Runs as a separate program and prints its duration and memory growth."""
    with tempfile.TemporaryDirectory(prefix="ph-bench-") as place:
        before, worked = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        begin = time.monotonic()
        count = {BARE_PARSER: bare_parser, SIMPLE: simple_implementation}[name](kind, source, Path(place) / "store.db")
        seconds, processor = time.monotonic() - begin, time.process_time() - worked
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({"seconds": seconds, "processor": processor, "growth": grown / 1024, "count": count}))


# Pilothouse


class Server(Pilothouse):
    """Its limits accept reports of this size."""

    settings = {**Pilothouse.settings, **LIMITS}


class Watch:
    """Records the maximum memory of a process, read every 20 ms."""

    def __init__(self, look: Callable[[], float]) -> None:
        self._look = look
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.most = look()

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            self.most = max(self.most, self._look())

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def measure_pilothouse(kind: str, source: Path, count: int, record: Callable[[str, float], None]) -> None:
    with running(Server) as hub:
        hub.publish(0)  # the first upload imports modules
        until(lambda: not hub.is_starting(), 60, "the end of the server's start")
        hub.lag()
        before, worked = hub.memory(), procfs.processor_seconds(hub.pids())
        with Watch(hub.memory) as watch:
            begin = time.monotonic()
            run = post(hub.port, kind, source)
            record("seconds", time.monotonic() - begin)
            record("processor", procfs.processor_seconds(hub.pids()) - worked)
        if late := hub.lag():
            record("lag", late.p99)
            record("stall", late.worst)
        record("growth", (watch.most - before) / 1024)
        record("kept", (hub.memory() - before) / 1024)
    if kind == "junit" and run["tests"] != count:
        raise RuntimeError(f"{run['tests']} tests were counted, not {count}")


def post(port: int, kind: str, source: Path) -> dict[str, float]:
    """Posts a report; a coverage report together with one test, because a run needs a test."""
    small = b'<testsuite><testcase name="a"/></testsuite>'
    part = '--b\r\nContent-Disposition: form-data; name="{}"; filename="r.xml"\r\n\r\n'
    head = b'--b\r\nContent-Disposition: form-data; name="project"\r\n\r\nbench\r\n'
    if kind != "junit":
        head += part.format("junit").encode() + small + b"\r\n"
    head, tail = head + part.format(kind).encode(), b"\r\n--b--\r\n"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.putrequest("POST", "/api/v1/ingest")
    connection.putheader("Content-Type", "multipart/form-data; boundary=b")
    connection.putheader("Content-Length", str(len(head) + source.stat().st_size + len(tail)))
    connection.endheaders(head)
    with source.open("rb") as file:
        while piece := file.read(1 << 18):
            connection.send(piece)
    connection.send(tail)
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 201:
        raise RuntimeError(f"{answer.status} {content[:500]!r}")
    run: dict[str, float] = json.loads(content)
    return run


def measure(kind: str, source: Path, count: int, names: Sequence[str], put: Callable[[str, str, float], None]) -> None:
    """Measures the candidates one after another; calls `put` with candidate, metric and value."""
    for name in names:
        if name == PILOTHOUSE:
            measure_pilothouse(kind, source, count, lambda metric, value: put(PILOTHOUSE, metric, value))
            continue
        done = subprocess.run(
            [sys.executable, __file__, "--work", name, kind, str(source)], capture_output=True, text=True, check=True
        )
        result = json.loads(done.stdout)
        if result["count"] != count:
            raise RuntimeError(f"{name}: {result['count']} of {count}")
        for metric in ("seconds", "processor", "growth"):
            put(name, metric, result[metric])


def _put(figures: Figures, run: int, kind: int, who: str, metric: str, value: float) -> None:
    figures.put(run, metric, kind, who, value)


def document(figures: Figures, names: Sequence[str], sizes: dict[str, tuple[int, float]], runs: int) -> str:
    rows = []
    for number, kind in enumerate(KINDS):
        count, megabytes = sizes[kind]
        for metric in METRICS:
            cells = [figures.cell(metric, number, name) for name in names]
            rows.append(
                [f"{kind}, {count} {'cases' if kind == 'junit' else 'files'}, {megabytes:.0f} MB", metric.title, *cells]
            )
    parts = [
        "# Uploads",
        f"{report.machine()}. {runs} run(s); cells: median (min..max) **x ratio to Pilothouse in the same run**. "
        "Bare parser: expat and one `executemany` into a new file. junitparser (for coverage, ElementTree) with "
        "peewee's `create` in one transaction.",
        report.table(["", "", *names], rows),
    ]
    if SIMPLE not in names:
        parts.append(f"- {SIMPLE}: not measured: junitparser is not installed")
    return "\n\n".join(parts) + "\n"


def claimed(figures: Figures, sizes: dict[str, tuple[int, float]]) -> list[Claim]:
    found: list[Claim] = []
    for number, kind in enumerate(KINDS):
        area, what = "reports", f"{NAMES[kind]} report of {sizes[kind][1]:.0f} MB"

        def of(metric: str, text: str, unit: str, **more: Any) -> list[Claim]:
            return claims.measured(figures, metric, number, area, f"{what}: {text}", unit, **more)  # noqa: B023 (at once)

        found += [
            *of("seconds", "upload → stored and judged", "s", reference=BARE_PARSER, target=3.0),
            *of("seconds", "upload → stored and judged", "s", reference=SIMPLE, target=1.0),
            *of("growth", "additional memory during the upload", "MiB", target=30.0),
            *of("lag", "delay of the event loop during the upload, p99", "ms", target=20.0),
        ]
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000, help="of the test report, in hundreds")
    parser.add_argument("--files", type=int, default=5_000, help="of the coverage report, in fifties")
    parser.add_argument("--runs", type=int, default=3)
    claims.add_outputs(parser)
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if options.work:
        work(options.work[0], options.work[1], Path(options.work[2]))
        return 0
    names = [PILOTHOUSE, BARE_PARSER, *([SIMPLE] if importlib.util.find_spec("junitparser") else [])]
    figures, sizes = Figures(), {}
    counts = {"junit": options.cases // 100 * 100, "jacoco": options.files // 50 * 50}
    with tempfile.TemporaryDirectory(prefix="ph-bench-") as place:
        sources = {kind: Path(place) / f"{kind}.xml" for kind in KINDS}
        for kind, make in {"junit": junit, "jacoco": jacoco}.items():
            with sources[kind].open("w") as file:
                file.writelines(make(counts[kind]))
            sizes[kind] = counts[kind], os.path.getsize(sources[kind]) / 1e6
        for run in range(options.runs):
            order = names if run % 2 else names[::-1]
            for number, kind in enumerate(KINDS):
                put = partial(_put, figures, run, number)
                measure(kind, sources[kind], counts[kind], order, put)
                print(f"run {run + 1}: {kind}", file=sys.stderr, flush=True)
    text = document(figures, names, sizes, options.runs)
    claims.publish(options, text, claimed(figures, sizes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
