"""Responses about a finished run, compared with Tornado alone.

    python benchmarks/finished_runs.py [--cases 100000] [--failures 500] [--seconds 3] [--runs 3] [--out FILE]

One client reads the run, its page, its verdict and /healthz of a server with one large run. `bare Tornado` is a handler
that sends as many bytes. The ratio to /healthz is independent of the machine: a page may cost eight requests of
/healthz. `during uploads`: another project stores a small report ten times a second.
"""

import argparse
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # it is run as a program

from benchmarks import claims, report
from benchmarks.candidates import free_port, until
from benchmarks.claims import Claim
from benchmarks.httpload import Target, hammer
from benchmarks.pages import BARE
from benchmarks.streams import Pilothouse, running

HEALTH = "/healthz"
PATHS = {
    "GET /runs/{id}": ("/api/v1/runs/1", 1 / 8),
    "page of the run": ("/runs/1", 1 / 8),
    "GET /gate": ("/api/v1/gate?project=large&commit=abc", 1 / 3),
}
"""The path of each request, and the minimum ratio of its rate to that of /healthz."""
UPLOADS_PER_SECOND = 10


class Server(Pilothouse):
    settings = {"tracker": {"limits": {"file": "90M", "request": "100M"}}}


def junit(cases: int, failures: int) -> Iterator[str]:
    """A hundred tests a suite; failures are spread evenly and have a stack."""
    stack = "\n".join(f"  at com.example.shop.Cart.line{line}(Cart.java:{line})" for line in range(20))
    failure = f'><failure message="expected 1 but was 2" type="AssertionError">{stack}</failure></testcase>'
    step = max(1, cases // max(1, failures))
    yield "<testsuites>"
    for case in range(cases):
        if case % 100 == 0:
            yield f'{"</testsuite>" if case else ""}<testsuite name="com.example.shop.Suite{case // 100}">'
        end = failure if case % step == 0 and case // step < failures else "/>"
        yield f'<testcase classname="com.example.shop.Suite{case // 100}Test" name="case {case}" time="0.01"{end}'
    yield "</testsuite></testsuites>"


def upload_body(project: str, content: bytes) -> bytes:
    """The body of an upload of a JUnit report; its boundary is `b`."""
    texts = {"project": project, "branch": "main", "commit": "abc"}
    parts = [f'--b\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{text}\r\n' for key, text in texts.items()]
    parts.append('--b\r\nContent-Disposition: form-data; name="junit"; filename="a.xml"\r\n\r\n')
    return "".join(parts).encode() + content + b"\r\n--b--\r\n"


def upload(server: Server, project: str, content: bytes) -> None:
    body = upload_body(project, content)
    server.post("/api/v1/ingest", body, {"Content-Type": "multipart/form-data; boundary=b"})


@contextmanager
def uploads(server: Server) -> Iterator[None]:
    """Stores reports of another project in the background."""
    stop = threading.Event()

    def store() -> None:
        number = 0
        while not stop.wait(1 / UPLOADS_PER_SECOND):
            number += 1
            upload(server, "other", b'<testsuite name="s"><testcase name="%d"/></testsuite>' % number)

    thread = threading.Thread(target=store)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def rates(paths: Sequence[str], port: int, seconds: float, runs: int) -> list[list[float]]:
    """Returns the requests per second of each path, measured `runs` times."""
    measured: list[list[float]] = [[] for _ in paths]
    for _ in range(runs):
        for values, path in zip(measured, paths, strict=True):
            values.append(hammer(Target.get(port, path), 1, seconds).rate)
    return measured


def measure(server: Server, bare: int, seconds: float, runs: int) -> tuple[list[list[str]], list[Claim]]:
    """The rows of the table, and the claims."""
    rows, claimed = [], []
    (health,) = rates([HEALTH], server.port, seconds, runs)
    for name, (path, part) in PATHS.items():
        size = hammer(Target.get(server.port, path), 1, seconds / 3).size
        pair = [rates([at], port, seconds, runs)[0] for at, port in ((path, server.port), (f"/{size}", bare))]
        with uploads(server):
            (busy,) = rates([path], server.port, seconds, 1)
        middle: Callable[[Sequence[float]], float] = statistics.median
        cells = [middle(pair[0]), middle(pair[1]), middle(health), busy[0]]
        ratio = middle(pair[0]) / middle(health)
        rows.append([name, f"{size / 1000:.0f} kB", *(f"{cell:,.0f}" for cell in cells), f"{ratio:.2f} (≥ {part:.2f})"])
        claimed.append(
            Claim("runs", f"{name} of a finished run", "requests/s", pair[0], "/healthz", health, part, True)
        )
        claimed.append(Claim("runs", f"{name} of a finished run", "requests/s", pair[0], "bare Tornado", pair[1]))
    return rows, claimed


def document(options: argparse.Namespace, rows: Sequence[Sequence[str]]) -> str:
    head = ["requests/s", "size", "Pilothouse", "bare Tornado", "/healthz", "during uploads", "ratio to /healthz"]
    return f"""# A finished run

{options.cases:,} tests, {options.failures} failures; one client. {report.machine()}.
`python benchmarks/finished_runs.py`, which explains the columns.

{report.table(head, rows)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures requests about a finished run.")
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--failures", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--runs", type=int, default=3)
    claims.add_outputs(parser)
    options = parser.parse_args()
    port = free_port()
    bare = subprocess.Popen([sys.executable, "-c", BARE, str(port)])
    try:
        with running(Server) as server:
            upload(server, "large", "".join(junit(options.cases, options.failures)).encode())
            until(lambda: not server.is_starting(), 60, "the end of its start")
            rows, claimed = measure(server, port, options.seconds, options.runs)
    finally:
        bare.kill()
        bare.wait()
    text = document(options, rows)
    claims.publish(options, text, claimed)


if __name__ == "__main__":
    main()
