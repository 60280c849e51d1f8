"""Responses about runs are cached, and change as soon as something of the run changes."""

from __future__ import annotations

import gzip
import itertools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import http_checks
import pytest
import records
from conftest import Server
from records import FAILED, PASSED
from tracker_rows import Failure
from uploads import jacoco, junit, upload

from models.accounts.accounts import User
from models.tracker.runs.kept_answers import Answer, KeptAnswers
from models.tracker.tables import Project, Run, reports


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with http_checks.running_server(tmp_path_factory.mktemp("cached")) as server, records.store_of(server):
        yield server


@pytest.fixture(scope="module")
def owner(server: Server) -> User:
    return records.create_user("owner")


_names = itertools.count()


class Scene:
    """A project with a baseline and a run of the commit `c`, which has one new failure."""

    def __init__(self, server: Server, owner: User) -> None:
        self.server = server
        self.name = f"kept {next(_names)}"
        self.base = self.post(("commit", "b"), ("junit", junit(2)))["runId"]
        self.run = self.post(("commit", "c"), ("runKey", "k"), ("junit", junit(1, 1)))["runId"]
        self.project = Project.get(Project.name == self.name)
        records.add_member(self.project, owner, "OWNER")
        self.owner = records.bearer(owner)
        self.paths = (
            f"/api/v1/runs/{self.run}",
            f"/api/v1/runs/{self.run}/quality-gate",
            f"/api/v1/gate?project={quote(self.name)}&commit=c",
            f"/runs/{self.run}",
            f"/projects/{self.project.id}",
            f"/compare?base={self.base}&head={self.run}",
            f"/api/v1/compare?base={self.base}&head={self.run}",
            f"/api/v1/projects/{self.project.id}/owners",
            f"/api/v1/projects/{self.project.id}/perf",
            f"/badge/{self.project.id}/pass.svg",
        )

    def post(self, *parts: tuple[str, str]) -> Any:
        return upload(self.server, ("project", self.name), ("branch", "main"), *parts)

    def send(self, method: str, path: str, body: Any = None) -> None:
        data = None if body is None else json.dumps(body).encode()
        answer = self.server.ask(method, path, data, headers=self.owner)
        assert answer.status in (200, 202, 204), answer

    def responses(self) -> list[tuple[int, str]]:
        replies = [self.server.get(path) for path in self.paths]
        return [(reply.status, reply.text if reply.status == 200 else "") for reply in replies]


def add_report(scene: Scene) -> None:
    scene.post(("commit", "c"), ("runKey", "k"), ("junit", junit(3, 2, prefix="late")))


def add_coverage(scene: Scene) -> None:
    scene.post(("commit", "c"), ("runKey", "k"), ("junit", junit(1)), ("jacoco", jacoco({"A.java": {1: True}})))


def set_triage_status(scene: Scene) -> None:
    body = {"className": "A", "name": "c1", "status": "QUARANTINED"}
    scene.send("POST", f"/api/v1/projects/{scene.project.id}/flaky/status", body)


def change_settings(scene: Scene) -> None:
    scene.send("PATCH", f"/api/v1/projects/{scene.project.id}/settings", {"failOnNewFailures": False})


def delete_baseline(scene: Scene) -> None:
    """Adds another run of the base branch, then deletes the baseline."""
    scene.post(("commit", "z"), ("junit", junit(2)))
    scene.send("DELETE", f"/api/v1/runs/{scene.base}")


def delete_run(scene: Scene) -> None:
    scene.send("DELETE", f"/api/v1/runs/{scene.run}")


def make_private(scene: Scene) -> None:
    Project.update(visibility="PRIVATE").where(Project.id == scene.project.id).execute()


def add_points(scene: Scene) -> None:
    scene.post(("commit", "c"), ("perf", "timeStamp,elapsed,label,success\n1,2,GET,true\n"))


GATE = (1, 2)
PROJECT, COMPARED, OWNERS, PERF, BADGE = 4, (5, 6), 7, 8, 9


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        (add_report, (0, 1, 2, 3, PROJECT, *COMPARED, OWNERS, BADGE)),
        (add_coverage, (0, 3, PROJECT)),
        (set_triage_status, (0, *GATE, 3, PROJECT)),
        (change_settings, (0, *GATE, 3, PROJECT)),
        (delete_baseline, (0, 3, PROJECT, *COMPARED)),
        (delete_run, (0, 1, 2, 3, PROJECT, *COMPARED, OWNERS, BADGE)),
        (make_private, (0, 1, 2, 3, PROJECT, *COMPARED, OWNERS, PERF, BADGE)),
        (add_points, (2, PROJECT, PERF)),
    ],
)
def test_change_of_a_run_invalidates_its_cached_responses(
    server: Server, owner: User, change: Callable[[Scene], None], changed: tuple[int, ...]
) -> None:
    scene = Scene(server, owner)
    before = scene.responses()
    assert [status for status, _ in before] == [200] * len(scene.paths)
    assert scene.responses() == before
    change(scene)
    after = scene.responses()
    assert [place for place in changed if after[place] == before[place]] == []
    assert scene.responses() == after


def test_response_is_cached_and_has_an_etag(server: Server, owner: User) -> None:
    scene = Scene(server, owner)
    first = scene.responses()
    Failure.update(message="nothing of the project").execute()
    assert scene.responses() == first
    records.create_run(records.create_project("another of kept"), {"a b": PASSED})
    assert scene.responses() == first
    for path in scene.paths:
        tag = server.get(path).headers["ETag"]
        assert server.get(path, If_None_Match=tag).status == 304
    Run.update(build_name="another").where(Run.id == scene.run).execute()
    assert scene.responses()[0] != first[0]


def test_page_is_cached_per_caller_with_the_xsrf_token_of_each_request(server: Server, owner: User) -> None:
    scene = Scene(server, owner)
    session = records.cookie(owner, server)
    path = f"/runs/{scene.run}"
    pages = [server.get(path, **session) for _ in range(2)]
    first, second = ({*re.findall('name="_xsrf" value="([^"]+)"', page.text)} for page in pages)
    assert (len(first), len(second), first & second) == (1, 1, set())
    assert "Delete run" in pages[1].text
    assert "Delete run" not in server.get(path).text
    assert server.get(path).text == server.get(path).text


def test_table_of_growing_tests_is_cached_until_a_run_changes(server: Server) -> None:
    project = records.create_project("kept durations")
    ids = [records.create_run(project, {"A slow": PASSED}, created_at=records.NOW + number).id for number in range(4)]
    path, title = f"/projects/{project.id}", "Slowest growing tests"
    first = server.get(path).text
    for number, id in enumerate(ids):
        reports.execute_sql("UPDATE result SET duration_ms = ? WHERE run_id = ?", (1000 * (number + 1), id))
    assert server.get(path).text == first, "a result changes with its run only"
    Run.update(build_name="another").where(Run.id == ids[0]).execute()
    assert (title in first, title in server.get(path).text) == (False, True)


def test_the_page_of_a_project_has_the_commands_for_the_host_of_the_request(server: Server, owner: User) -> None:
    scene = Scene(server, owner)
    hosts = (f"127.0.0.1:{server.port}", f"localhost:{server.port}")
    pages = [server.get(f"/projects/{scene.project.id}", Host=host) for host in hosts]
    assert [f"http://{host}/api/v1/ingest" in page.text for host, page in zip(hosts, pages, strict=True)] == [True] * 2


def test_client_that_accepts_gzip_receives_the_same_content(server: Server) -> None:
    project = records.create_project("kept and gzipped")
    run = records.create_run(project, {f"class{number} test": FAILED for number in range(30)})
    path = f"/api/v1/runs/{run.id}"
    plain = server.get(path)
    for _ in range(2):
        zipped = server.get(path, Accept_Encoding="gzip")
        assert zipped.headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(zipped.body) == plain.body


def test_cache_is_bounded_by_bytes_and_evicts_the_least_used_responses() -> None:
    kept = KeptAnswers(max_bytes=100_000)
    for number in range(100):
        kept.keep(number, (1,), Answer(b"x" * 9_000, "tag"))
        assert kept.get(0, (1,)) is not None
        assert kept.size <= 100_000
    assert [number for number in range(100) if kept.get(number, (1,))] == [0, *range(92, 100)]
    kept.keep("large", (1,), Answer(b"x" * 30_000, "tag"))
    assert kept.get("large", (1,)) is None
    answer = kept.get(99, (1,))
    assert answer is not None
    kept.compress(99, answer, b"small")
    assert kept.get(99, (1,)) is answer
    assert kept.get(99, (2,)) is None
    assert kept.get(99, (1,)) is None
