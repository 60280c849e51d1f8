"""A server with as much data as expected at most, for `benchmarks/pages.py`: runs, users, releases, a repository."""

import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / part) for part in ("", "charts", "accounts", "tracker"))]

import users  # noqa: E402
from chart_servers import FULL, KEY, index_entry, index_file, web_server  # noqa: E402
from cluster import Cluster, programs  # noqa: E402
from conftest import Server  # noqa: E402
from release_secrets import made_release, release_secret  # noqa: E402

from models.accounts import accounts  # noqa: E402
from models.tracker.tables import reports  # noqa: E402

USERS, CHARTS, REVISIONS = 200, 1500, 10
NAMESPACES = 20
TESTS, FILES = 10, 5
DAY = 86_400_000_000
_RUN = """INSERT INTO run (id, project_id, branch, flag, commit_sha, created_at, updated_at, status, tests, passed,
    failed, errors, skipped, flaky, duration_ms, line_covered, line_missed, uploads)
    VALUES (?, ?, ?, 'default', ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, ?, ?, ?, 1)"""
_REPORT = """INSERT INTO report (id, run_id, kind, hash, name, format, created_at, tests, passed, failed, errors,
    skipped, flaky, duration_ms) VALUES (?, ?, 'junit', ?, 'a.xml', 'junit', ?, ?, ?, ?, 0, 0, 0, ?)"""
_SUITE = """INSERT INTO suite (id, report_id, run_id, name, tests, failed, errors, skipped, duration_ms)
    VALUES (?, ?, ?, 'suite', ?, ?, 0, 0, ?)"""
_RESULT = """INSERT INTO result (id, report_id, run_id, test_id, suite_id, status, flaky, reruns, duration_ms)
    VALUES (?, ?, ?, ?, ?, ?, 0, 0, ?)"""
_FAILURE = (
    "INSERT INTO failure (result_id, type, message, stack) VALUES (?, 'AssertionError', 'it is broken', 'at line 1')"
)
_COVERAGE = """INSERT INTO coverage (report_id, run_id, path, line_covered, line_missed, branch_covered, branch_missed)
    VALUES (?, ?, ?, 80, 20, 0, 0)"""


def fill(path: Path, projects: int, runs: int) -> None:
    """Writes `projects` projects with `runs` runs each directly into the store."""
    reports.open(path)
    now = time.time_ns() // 1000
    for number in range(1, projects + 1):
        with reports.atomic():
            reports.execute_sql(
                "INSERT INTO project (id, name, visibility, created_at) VALUES (?, ?, 'PUBLIC', ?)",
                (number, f"team/project-{number:03}", now),
            )
            cases = [((number - 1) * TESTS + case, number, "shop.Test", f"case_{case}") for case in range(1, TESTS + 1)]
            reports.write_many("INSERT INTO test (id, project_id, class_name, name) VALUES (?, ?, ?, ?)", cases)
            for statement, rows in _rows(number, runs, now).items():
                reports.write_many(statement, rows)
    reports.execute_sql("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    reports.close()


def _rows(project: int, runs: int, now: int) -> dict[str, list[Sequence[Any]]]:
    chance = random.Random(project)
    rows: dict[str, list[Sequence[Any]]] = {one: [] for one in (_RUN, _REPORT, _SUITE, _RESULT, _FAILURE, _COVERAGE)}
    for place in range(runs):
        id, at = (project - 1) * runs + place + 1, now - (runs - place) * DAY // 10
        failing = {case for case in range(1, TESTS + 1) if chance.random() < 0.02}
        if project % 3 == 0 and place >= runs - 5:
            failing.add(1)
        branch = f"feature-{place // 5 % 20}" if place % 5 == 4 else "main"
        commit = f"{project:06x}{place // 2:034x}"
        counts = TESTS, TESTS - len(failing), len(failing)
        status = "FAILED" if failing else "PASSED"
        rows[_RUN].append((id, project, branch, commit, at, at, status, *counts, 900, 8200 + place % 40, 1800))
        rows[_REPORT].append((id, id, f"{id:064x}", at, *counts, 900))
        rows[_SUITE].append((id, id, id, TESTS, len(failing), 900))
        rows[_COVERAGE] += [(id, id, f"src/file_{file}.py") for file in range(FILES)]
        for case in range(1, TESTS + 1):
            result = (id - 1) * TESTS + case
            rows[_RESULT].append((result, id, id, (project - 1) * TESTS + case, id, int(case in failing), 10 * case))
            if case in failing:
                rows[_FAILURE].append((result,))
    return rows


MANIFEST = """---
# Source: made/templates/part-{part}.yaml
apiVersion: v1
kind: ConfigMap
metadata:
  name: part-{part}
  labels: {{app: made, revision: "{number}"}}
data:
  text: |
    {text}
"""


def manifest_release(name: str, namespace: str, number: int, newest: int) -> dict[str, Any]:
    """A revision with a manifest of forty objects, of which four change each time."""
    text = "\n".join(
        MANIFEST.format(part=part, number=number if part % 10 == 0 else 0, text="x" * 60) for part in range(40)
    )
    return made_release(name, namespace, number, "deployed" if number == newest else "superseded", manifest=text)


def fill_cluster(cluster: Cluster, releases: int) -> None:
    """Creates releases in namespaces; every fiftieth failed, and the first has a history."""
    spaces = [cluster.namespace(f"team-{number:02}") for number in range(NAMESPACES)]
    made = [(f"app-{number:04}", spaces[number % NAMESPACES], number) for number in range(releases)]
    releases_to_create = [
        manifest_release("app-0000", spaces[0], number, REVISIONS) for number in range(1, REVISIONS + 1)
    ]
    releases_to_create += [
        made_release(name, space, 1, "failed" if number % 50 == 3 else "deployed", manifest="# none\n")
        for name, space, number in made[1:]
    ]
    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(lambda release: cluster.create(release["namespace"], release_secret(release)), releases_to_create)
        )


def repository_index() -> bytes:
    """The index of a large repository: charts with three versions each."""
    about: dict[str, Any] = {
        "description": "does what charts of its kind do, and is described in a sentence",
        "appVersion": "1.2.3",
    }
    return index_file(*(index_entry(f"chart-{n:04}", f"1.{v}.0", **about) for n in range(CHARTS) for v in range(3)))


@contextmanager
def large_server(
    folder: Path, processes: int, projects: int, runs: int, releases: int, flood: Sequence[str] = ()
) -> Iterator[tuple[Server, str]]:
    """A running server with this data, and the session of an ADMIN; without `releases` there is no cluster.

    `flood` is the command of a further process, which has a log and is not started.
    """
    store = folder / "data" / "tracker.db"
    if not store.exists():
        store.parent.mkdir(mode=0o700, parents=True)
        fill(store, projects, runs)
        with users.open_accounts(store.parent):
            for number in range(USERS):
                accounts.create_user(f"person-{number:03}", "none", "USER", users.now())
    session = users.create_session(store.parent, "admin", "ADMIN")
    command = {"command": ["sleep", "1000"], "auto-start": True}
    with ExitStack() as stack:
        repository = stack.enter_context(web_server())
        repository.pages["/index.yaml"] = repository_index()
        svc: dict[str, Any] = {"security": {**FULL, "allowed-hosts": [repository.host_port]}}
        if releases:
            (folder / "cluster").mkdir(exist_ok=True)
            cluster = Cluster(folder / "cluster", programs())
            stack.callback(cluster.close)
            fill_cluster(cluster.start(), releases)
            svc["kube"] = {"kubeconfig": str(cluster.kubeconfig)}
        fleet: dict[str, Any] = {f"c{number:04}": command for number in range(processes)}
        if flood:
            fleet["flood"] = {"command": list(flood), "stdout-logfile": str(folder / "flood.log")}
        server = Server(folder, {"supervisor": {"processes": fleet}, "svc": svc}, {}, [])
        stack.callback(server.close)
        server.start()
        form = {"verb": "add", "name": "big", "url": repository.url, "key": KEY, "forceUpdate": "true"}
        if users.post_form(server, "/repositories", **form).status != 303:
            raise SystemExit("the repository cannot be added")
        yield server, session
