"""Badges: contents and permissions."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator

import http_checks
import pytest
import records
from conftest import Answer, Server
from records import FAILED, NOW, PASSED, SECOND, SKIPPED

from handlers.tracker.pages.badges import GREEN, GREY, RED, YELLOW
from models.tracker.tables import Project

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with http_checks.running_server(tmp_path_factory.mktemp("badges")) as one, records.store_of(one):
        yield one


@pytest.fixture
def project(server: Server, request: pytest.FixtureRequest) -> Project:
    return records.create_project(request.node.name)


def badge(server: Server, project: Project, metric: str, query: str = "") -> Answer:
    answer = server.get(f"/badge/{project.id}/{metric}.svg{query}")
    assert answer.status == 200, answer
    return answer


def read_badge(server: Server, project: Project, metric: str, query: str = "") -> tuple[str, str]:
    """Returns the text of a badge and the colour of its right side."""
    root = ET.fromstring(badge(server, project, metric, query).body)  # noqa: S314 (our own)
    title, colours = root.find(f"{SVG}title"), [rect.get("fill") for rect in root.iter(f"{SVG}rect")]
    assert root.get("role") == "img"
    assert title is not None
    assert title.text == root.get("aria-label")
    assert ": ".join(text.text or "" for text in root.iter(f"{SVG}text")) == title.text
    return title.text or "", colours[-1] or ""


@pytest.mark.parametrize("metric", ["coverage", "pass", "flaky"])
@pytest.mark.parametrize("prefix", ["", "/tracker"])
def test_badge_is_an_svg_image_that_is_not_cached(server: Server, project: Project, prefix: str, metric: str) -> None:
    answer = server.get(f"{prefix}/badge/{project.id}/{metric}.svg")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "image/svg+xml"
    assert answer.headers["Cache-Control"] == "no-cache"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize("metric", ["coverage", "pass", "flaky"])
def test_without_data_the_badge_is_grey(server: Server, project: Project, metric: str) -> None:
    words, colour = read_badge(server, project, metric)
    assert words.endswith(": n/a")
    assert colour == GREY


@pytest.mark.parametrize(
    ("covered", "words", "colour"),
    [
        ((100, 0), "100%", GREEN),
        ((9999, 1), "99%", GREEN),
        ((767, 233), "76%", YELLOW),
        ((80, 20), "80%", GREEN),
        ((7999, 2001), "79%", YELLOW),
        ((60, 40), "60%", YELLOW),
        ((59, 41), "59%", RED),
        ((0, 9), "0%", RED),
    ],
)
def test_coverage_badge(server: Server, covered: tuple[int, int], words: str, colour: str) -> None:
    project = records.create_project(f"coverage {covered}")
    records.create_run(project, coverage=covered)
    assert read_badge(server, project, "coverage") == (f"coverage: {words}", colour)


@pytest.mark.parametrize(
    ("passed", "failed", "words", "colour"),
    [(3, 0, "100%", GREEN), (199, 1, "99%", YELLOW), (9, 1, "90%", YELLOW), (8, 2, "80%", RED), (0, 1, "0%", RED)],
)
def test_pass_rate_badge(server: Server, passed: int, failed: int, words: str, colour: str) -> None:
    project = records.create_project(f"pass {passed} {failed}")
    tests = {f"c.A p{number}": PASSED for number in range(passed)}
    records.create_run(project, {**tests, **{f"c.A f{number}": FAILED for number in range(failed)}, "c.A s": SKIPPED})
    assert read_badge(server, project, "pass") == (f"tests: {words}", colour)


def test_a_run_of_skipped_tests_has_no_pass_rate(server: Server, project: Project) -> None:
    records.create_run(project, {"c.A s": SKIPPED})
    assert read_badge(server, project, "pass") == ("tests: n/a", GREY)


def test_a_base_branch_that_stays_broken_is_named_on_the_badge(server: Server, project: Project) -> None:
    first = records.create_run(project, {"c.A a": FAILED, "c.A b": PASSED}, commit_sha="1")
    assert read_badge(server, project, "pass") == ("tests: 50%", RED)
    records.create_run(project, {"c.A a": FAILED, "c.A b": PASSED}, commit_sha="2")
    words = f"tests: 50%, failing since {first.id} (2 commits)"
    assert read_badge(server, project, "pass") == (words, RED)
    assert read_badge(server, project, "pass", "?branch=other") == ("tests: n/a", GREY)


@pytest.mark.parametrize(("number", "colour"), [(0, GREEN), (1, YELLOW), (3, YELLOW), (4, RED)])
def test_flaky_tests_are_counted(server: Server, number: int, colour: str) -> None:
    project = records.create_project(f"flaky {number}")
    for status in (PASSED, FAILED):
        records.create_run(project, {f"c.A {one}": status for one in range(number)}, commit_sha="abc")
    assert read_badge(server, project, "flaky") == (f"flaky tests: {number}", colour)


def test_badge_is_of_the_base_branch_or_else_of_any_branch(server: Server, project: Project) -> None:
    records.create_run(project, coverage=(1, 3), branch="x")
    assert read_badge(server, project, "coverage")[0] == "coverage: 25%"
    records.create_run(project, coverage=(3, 1), created_at=NOW)
    assert read_badge(server, project, "coverage")[0] == "coverage: 75%"
    Project.update(base_branch="x").where(Project.id == project.id).execute()
    assert read_badge(server, project, "coverage")[0] == "coverage: 25%"


def test_a_branch_and_a_flag_may_be_requested(server: Server, project: Project) -> None:
    records.create_run(project, coverage=(1, 3), branch="x", flag="unit")
    records.create_run(project, coverage=(3, 1))
    assert read_badge(server, project, "coverage", "?branch=x")[0] == "coverage: 25%"
    assert read_badge(server, project, "coverage", "?flag=unit")[0] == "coverage: 25%"
    assert read_badge(server, project, "coverage", "?branch=main&flag=")[0] == "coverage: 75%"
    for query in ("?branch=y", "?branch=x&flag=default", "?flag=e2e"):
        for metric in ("coverage", "pass", "flaky"):
            assert read_badge(server, project, metric, query)[0].endswith(": n/a")


def test_newer_run_without_coverage_does_not_hide_the_last_coverage(server: Server, project: Project) -> None:
    records.create_run(project, coverage=(1, 1))
    records.create_run(project, {"c.A a": PASSED}, flag="e2e")
    assert read_badge(server, project, "coverage")[0] == "coverage: 50%"


@pytest.mark.parametrize("path", ["/badge/{}/speed.svg", "/badge/{}/coverage", "/badge/{}/coverage.png", "/badge/{}"])
def test_unknown_badge_is_404(server: Server, project: Project, path: str) -> None:
    assert server.get(path.format(project.id)).status == 404


def test_badge_supports_head_and_refuses_post(server: Server, project: Project) -> None:
    answer = server.ask("HEAD", f"/badge/{project.id}/pass.svg")
    assert (answer.status, answer.body) == (200, b"")
    assert server.post(f"/badge/{project.id}/pass.svg").status == 405


def test_closed_mode_leaves_badges_of_public_projects_open(tmp_path_factory: pytest.TempPathFactory) -> None:
    closed = {"security": {"open-mode": False}}
    with (
        http_checks.running_server(tmp_path_factory.mktemp("closed"), tracker=closed) as server,
        records.store_of(server),
    ):
        public, secret = records.create_project("public"), records.create_project("secret", "PRIVATE")
        for project in (public, secret):
            records.create_run(project, coverage=(1, 1), created_at=NOW + SECOND)
        path = "/badge/{}/coverage.svg"
        assert server.get(path.format(public.id)).status == 200
        assert server.get(f"/tracker{path.format(public.id)}").status == 200
        hidden, missing = server.get(path.format(secret.id)), server.get(path.format(999))
        assert hidden.status == missing.status == 404
        reader = records.create_user("reader")
        records.add_member(secret, reader, "READ")
        assert server.ask("GET", path.format(secret.id), headers=records.bearer(reader)).status == 200
        assert server.ask("GET", path.format(secret.id), headers=records.cookie(reader, server)).status == 200
        assert server.get(path.format(public.id), Authorization="Bearer plt_wrong").status == 401
        assert server.get(f"/api/v1/projects/{public.id}").status == 401
        assert server.get(f"/projects/{public.id}").status == 302
