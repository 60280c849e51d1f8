"""Duration of each page on a server with the largest expected data, compared with Tornado alone.

    python benchmarks/pages.py [--processes 500] [--projects 200] [--runs 500] [--releases 1000] [--seconds 1.5]
                               [--only WORD] [--keep DIR] [--out FILE]

`median`, `p90`: one client at a time. `after an upload`: the median of the first request after a report was stored.
`bare Tornado`: a Tornado handler that sends as many bytes. `/healthz`: its slowest response, requested every 30 ms
while two clients read this page without a pause. Each run has ten tests; a third of the projects fail. Releases need an
API server (KUBEBUILDER_ASSETS; `--releases 0` does without). `--keep` leaves the data there, and uses it again.
"""

import argparse
import http.client
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]  # it is run as a program

from conftest import Server  # noqa: E402

from benchmarks import claims, report  # noqa: E402
from benchmarks.candidates import free_port  # noqa: E402
from benchmarks.claims import Claim  # noqa: E402
from benchmarks.httpload import Answers, Probe, Target, hammer  # noqa: E402
from benchmarks.large_server import REVISIONS, large_server  # noqa: E402

GOAL = 50.0
ROUNDS = 15
SETTLED = 8.0
WARM_UP = 0.3
PAGES = {
    "/": "/",
    "/processes": "/processes",
    "/processes/{name}": "/processes/c0007",
    "/history": "/history",
    "/releases": "/releases",
    "/releases, a namespace": "/releases?namespace=team-03",
    "/releases/{namespace}/{name}": "/releases/team-00/app-0000",
    "… history": "/releases/team-00/app-0000?show=history",
    "… values": "/releases/team-00/app-0000?show=values&all=true",
    "… manifest": "/releases/team-00/app-0000?show=manifest",
    "… manifest, two compared": f"/releases/team-00/app-0000?show=manifest&of={REVISIONS}&to=1",
    "… change": "/releases/team-00/app-0000?show=change",
    "/repositories": "/repositories",
    "/repositories/{name}": "/repositories/big",
    "/projects": "/projects",
    "/projects/{id}": "/projects/7",
    "/projects/{id}, one branch": "/projects/7?branch=feature-1",
    "/projects/{id}, 500 runs": "/projects/7?limit=500",
    "/projects/{id}/test": "/projects/7/test?className=shop.Test&name=case_3",
    "/projects/{id}/settings": "/projects/7/settings",
    "/runs/{id}": "/runs/{run}",
    "/compare": "/compare?base={before}&head={run}",
    "/search": "/search?q=app",
    "/login": "/login",
    "/profile": "/profile",
    "/users": "/users",
}
MAIN = ("/", "/processes", "/releases", "/projects", "/runs/{id}")
UPLOAD = (
    b'--x\r\nContent-Disposition: form-data; name="project"\r\n\r\nteam/project-007\r\n'
    b'--x\r\nContent-Disposition: form-data; name="branch"\r\n\r\nmain\r\n'
    b'--x\r\nContent-Disposition: form-data; name="junit"; filename="a.xml"\r\n\r\n'
    b'<testsuite name="s"><testcase classname="shop.Test" name="case_1" time="%f"/></testsuite>\r\n--x--\r\n'
)
BARE = """
import asyncio, sys
from tornado.web import Application, RequestHandler
class Bare(RequestHandler):
    def compute_etag(self): pass
    def get(self, size): self.write(b"x" * int(size))
async def main():
    Application([("/([0-9]+)", Bare)], log_function=lambda handler: None).listen(int(sys.argv[1]), "127.0.0.1")
    await asyncio.Event().wait()
asyncio.run(main())
"""


def target(port: int, path: str, cookie: str) -> Target:
    plain = Target.get(port, path)
    return Target(plain.address, plain.request.replace("\r\n\r\n", f"\r\nCookie: {cookie}\r\n\r\n"))


def after_uploads(server: Server, path: str, cookie: str) -> float:
    """Returns the median time of the first response after a report was stored, in milliseconds."""
    took = []
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    for number in range(ROUNDS):
        stored = server.post(
            "/api/v1/ingest", UPLOAD % (time.time() + number), Content_Type="multipart/form-data; boundary=x"
        )
        if stored.status != 201:
            raise SystemExit(f"the upload: {stored}")
        begin = time.perf_counter()
        connection.request("GET", path, headers={"Cookie": cookie})
        connection.getresponse().read()
        took.append((time.perf_counter() - begin) * 1000)
    return statistics.median(took)


def others(server: Server, page: Target, seconds: float) -> float:
    """Returns the slowest response of /healthz while two clients read a page, in milliseconds."""
    with Probe(Target.get(server.port, "/healthz"), 0.03) as probe:
        hammer(page, 2, seconds)
        return 1000 * max(probe.latencies())


def measure(
    server: Server, bare: int, session: str, options: argparse.Namespace
) -> Iterator[tuple[Answers, list[str]]]:
    """Yields the measurements and the table row of each page."""
    run, cookie = 6 * options.runs + options.runs, f"pilothouse_{server.port}={session}"
    for name, path in PAGES.items():
        if options.only not in name or (not options.releases and "releases" in path):
            continue
        path = path.format(run=run, before=run - 1)
        page = target(server.port, path, cookie)
        hammer(page, 1, WARM_UP)
        answers = hammer(page, 1, options.seconds)
        bare_answers = hammer(Target.get(bare, f"/{answers.size}"), 1, options.seconds / 3)
        first = after_uploads(server, path, cookie)
        figures = answers.median, answers.p90, answers.p99, first, bare_answers.median
        cells = [f"{figure:.1f}" for figure in figures]
        cells += [f"{answers.median / bare_answers.median:.1f}", f"{others(server, page, options.seconds):.1f}"]
        yield answers, [name, f"{answers.size / 1000:.0f} kB", *cells]


def scale(options: argparse.Namespace) -> str:
    """The amount of data on the server, as text."""
    amounts = f"{options.processes} processes, {options.releases} releases"
    return f"{amounts}, {options.projects} projects of {options.runs} runs"


def document(options: argparse.Namespace, rows: Sequence[tuple[Answers, list[str]]]) -> str:
    head = ["page", "size", "median, ms", "p90", "p99", "after an upload", "bare Tornado", "ratio", "/healthz, worst"]
    late = [cells[0] for answers, cells in rows if answers.median > GOAL]
    verdict = f"missed by {', '.join(late)}" if late else "met by all"
    return f"""# Pages

{scale(options)}, a repository of
1,500 charts, 200 accounts; requested as an ADMIN who is logged in. {report.machine()}.
`python benchmarks/pages.py`, which explains the columns. Target: a median below {GOAL:g} ms: {verdict}.

{report.table(head, [cells for _, cells in rows])}
"""


def claimed(options: argparse.Namespace, rows: Sequence[tuple[Answers, list[str]]]) -> list[Claim]:
    """Returns the claims about the main pages and the slowest page."""
    slowest = max(rows, key=lambda row: row[0].median)
    named = [(f"page {cells[0]}", answers) for answers, cells in rows if cells[0] in MAIN]
    named.append((f"the slowest of {len(rows)} pages, {slowest[1][0]}", slowest[0]))
    return [
        Claim("pages", f"{name} ({scale(options)})", "ms", [answers.median], target=GOAL) for name, answers in named
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the duration of each page.")
    parser.add_argument("--processes", type=int, default=500)
    parser.add_argument("--projects", type=int, default=200)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--releases", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--only", default="", help="the pages whose name has this")
    parser.add_argument("--keep", type=Path)
    claims.add_outputs(parser)
    options = parser.parse_args()
    port = free_port()
    bare = subprocess.Popen([sys.executable, "-c", BARE, str(port)])
    try:
        with tempfile.TemporaryDirectory(prefix="ph-bench-", ignore_cleanup_errors=True) as name:
            folder = options.keep or Path(name)
            with large_server(folder, options.processes, options.projects, options.runs, options.releases) as (
                server,
                session,
            ):
                time.sleep(SETTLED)  # the processes start, the API server comes to rest
                rows = list(measure(server, port, session, options))
    finally:
        bare.kill()
        bare.wait()
    text = document(options, rows)
    claims.publish(options, text, claimed(options, rows))


if __name__ == "__main__":
    main()
