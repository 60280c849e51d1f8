"""`run.py demo`: sample data, and the refusal of a store with projects."""

from __future__ import annotations

import json
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import uploads
import users
from browser_pages import Browser
from cluster import Cluster
from conftest import IS_PROOF, Server, run_verb
from demo_pictures import (
    IMAGES,
    KEPT,
    LOOKS_FILE,
    MAX_DIFFERENCE,
    THEMES,
    add_release,
    difference,
    looks,
    make_sample,
    sample_server,
    take,
)
from http_checks import running_server

import run as program
from models.tracker.tables import reports
from supervisor.cli import demo as sample


def demo(folder: Path) -> subprocess.CompletedProcess[str]:
    return run_verb("--data-dir", str(folder / "data"), "demo", folder=folder, timeout=120)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("demo")
    done = demo(folder)
    assert done.returncode == 0, done
    assert done.stderr == ""
    return folder, done.stdout


def test_the_demo_waits_for_another_writer_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It used to fail with "database is locked", and left a store that a second attempt refused."""
    timeouts: list[int] = []
    monkeypatch.setattr(sample, "_PROJECTS", (sample.ProjectPlan("acme/tiny", runs=2, tests=5),))
    monkeypatch.setattr(sample, "_configure", lambda *_: timeouts.append(reports.pragma("busy_timeout")))
    assert program.main(["--data-dir", str(tmp_path), "demo"]) == 0
    assert timeouts == [30_000]


@pytest.fixture(scope="module")
def server(result: tuple[Path, str]) -> Iterator[Server]:
    with running_server(result[0]) as one:
        yield one


def test_the_demo_prints_the_urls_of_its_pages(result: tuple[Path, str]) -> None:
    assert "http://127.0.0.1:8080/projects" in result[1]


def test_the_demo_password_is_in_a_private_file_and_not_in_the_output(result: tuple[Path, str]) -> None:
    folder, response_text = result
    file = folder / "data" / "demo-password"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert str(file) in response_text
    assert file.read_text().strip() not in response_text


def test_the_demo_has_projects_of_each_verdict(server: Server) -> None:
    board = server.get("/projects").text
    assert [word for word in ("failing", "at risk", "healthy") if f">{word}</span>" not in board] == []
    assert "platform/ledger" not in board  # it is private


def test_the_demo_users_can_log_in_and_see_their_projects(server: Server) -> None:
    password = (server.data / "demo-password").read_text().strip()
    session = users.log_in(server, "rita", password)
    assert "platform/ledger" in server.ask("GET", "/projects", headers=users.cookie(server, session)).text


def test_the_demo_runs_have_the_fields_of_uploaded_runs(server: Server) -> None:
    shop = next(one for one in server.get("/api/v1/projects").json if one["name"] == "acme/shop")
    assert shop["runCount"] >= 40
    runs = server.get(f"/api/v1/projects/{shop['id']}/runs?limit=100").json
    assert {run["branch"] for run in runs} > {"main"}
    assert runs[0]["createdAt"] > runs[1]["createdAt"]
    failed = next(run for run in runs if run["status"] == "FAILED")
    result = server.get(f"/api/v1/runs/{failed['id']}").json
    assert result["failures"][0]["stackTrace"]
    assert result["coverage"]["files"]
    flaky = server.get(f"/api/v1/projects/{shop['id']}/flaky").json
    assert {"ACTIVE", "QUARANTINED"} == {test["status"] for test in flaky}
    duplicates = "SELECT count(*) FROM result GROUP BY run_id, test_id HAVING count(*) > 1"
    assert uploads.query_store(server, duplicates) == []


def test_the_demo_refuses_a_store_with_projects_unless_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = tuple(sample.ProjectPlan(plan.name, runs=2, tests=5) for plan in sample._PROJECTS)
    monkeypatch.setattr(sample, "_PROJECTS", plans)  # of this process, which forces; the verb stores all runs
    with running_server(tmp_path) as server:
        uploads.upload(server, ("project", "mine"), ("junit", uploads.junit(passed=1)))
        done = demo(tmp_path)
        assert done.returncode == 1
        assert re.fullmatch(r"run\.py demo: there are projects .*--force.*\n", done.stderr)
        assert [one["name"] for one in server.get("/api/v1/projects").json] == ["mine"]
        assert program.main(["--data-dir", str(tmp_path / "data"), "demo", "--force"]) == 0
        assert len(server.get("/api/v1/projects").json) > 5  # beside a server that runs, and it sees them


def test_screenshots_are_equal_on_two_servers_and_in_the_documents(
    tmp_path_factory: pytest.TempPathFactory, chromium: Browser, cluster: Cluster
) -> None:
    """One server suffices where the pictures in the documents were taken with the fonts of this machine."""
    data, release = make_sample(tmp_path_factory.mktemp("sample")), add_release(cluster)

    def pictures() -> dict[str, bytes]:
        with sample_server(tmp_path_factory.mktemp("pictures"), data, cluster) as server:
            return take(server, chromium, release)

    with chromium.page("http://127.0.0.1") as page:
        is_comparable = json.loads(LOOKS_FILE.read_text())["looks"] == looks(page)
        first, differences = pictures(), {}
        if is_comparable:
            kept = (f"{name}-{theme}" for name in KEPT for theme in THEMES)
            differences = {name: difference(page, first[name], (IMAGES / f"{name}.png").read_bytes()) for name in kept}
        if IS_PROOF or not is_comparable:
            differences |= {f"second {name}": difference(page, first[name], it) for name, it in pictures().items()}
        assert {name: share for name, share in differences.items() if share > MAX_DIFFERENCE} == {}
        assert difference(page, first["run-light"], first["project-light"]) > MAX_DIFFERENCE
