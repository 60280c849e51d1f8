"""A client generated from the OpenAPI document works with a running server."""

from __future__ import annotations

import importlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uploads
from cluster import Cluster
from openapi_server import CHART, KEY, RELEASE, REPOSITORY, PreparedServer, prepared_server

PACKAGE = "pilothouse_client"
SETTINGS = """
post_hooks: []
content_type_overrides:
  application/gzip: application/octet-stream
  image/svg+xml: text/plain
"""

Load = Callable[[str], Any]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Iterator[PreparedServer]:
    with prepared_server(tmp_path_factory.mktemp("whole"), cluster.kubeconfig) as one:
        yield one


@pytest.fixture(scope="module")
def load(whole: PreparedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    """Generates the client; `load("api.tracker.gate_verdict")` imports one of its modules."""
    folder = tmp_path_factory.mktemp("client")
    (folder / "settings.yaml").write_text(SETTINGS)
    (folder / "document.json").write_text(json.dumps(whole.document()))
    program = Path(sys.executable).parent / "openapi-python-client"
    done = subprocess.run(
        [program, "generate", "--path=document.json", f"--output-path={PACKAGE}", "--meta=none",
         "--config=settings.yaml", "--fail-on-warning"],
        cwd=folder, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    sys.path.insert(0, str(folder))
    try:
        yield lambda name: importlib.import_module(f"{PACKAGE}.{name}")
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
            del sys.modules[name]


@pytest.fixture
def client(whole: PreparedServer, load: Load) -> Iterator[Any]:
    with load("client").Client(base_url=f"http://127.0.0.1:{whole.server.port}") as one:
        yield one


def test_a_generated_client_lists_processes(client: Any, load: Load) -> None:
    found = load("api.supervision.process_list").sync(client=client)
    assert [one.name for one in found] == ["web", "idle"]
    assert found[0].status == "running"
    assert found[0].start_time.tzinfo is not None
    assert found[1].pid is None


def test_a_generated_client_starts_a_process(client: Any, load: Load) -> None:
    assert "idle" in load("api.supervision.process_start").sync("idle", client=client).message


def test_a_generated_client_reads_the_gate(whole: PreparedServer, client: Any, load: Load) -> None:
    verdict = load("api.tracker.gate_verdict").sync(client=client, project="shop", branch="main")
    assert (verdict.run_id, verdict.status, verdict.passed) == (whole.runs[1], "FAILED", False)
    assert [(rule.name, rule.passed) for rule in verdict.rules] == [("coverage-drop", False), ("new-failures", False)]
    missing = load("api.tracker.gate_verdict").sync(client=client, project="nothing", branch="main")
    assert (missing.status, missing.title) == (404, "Not Found")


def test_a_generated_client_uploads_reports(client: Any, load: Load) -> None:
    file = load("types").File
    reports = [file(io.BytesIO(uploads.junit(2, prefix=name).encode()), f"{name}.xml") for name in "ab"]
    body = load("models.ingest_body").IngestBody(project="posted", junit=reports, branch="main", pr_number=7)
    stored = load("api.tracker.ingest").sync(client=client, body=body)
    assert (stored.project, stored.tests, stored.status, stored.gate_status) == ("posted", 4, "PASSED", "PASSED")
    runs = load("api.tracker.run_list").sync(stored.project_id, client=client)
    assert [(run.id, run.pr_number) for run in runs] == [(stored.run_id, 7)]


def test_a_generated_client_lists_releases(client: Any, load: Load) -> None:
    found = load("api.charts.helm_list").sync(client=client)
    assert [(one.name, one.chart, one.status) for one in found] == [(RELEASE, f"{CHART}-0.1.0", "deployed")]


def test_a_generated_client_reads_text_and_files(client: Any, load: Load) -> None:
    shown = load("api.charts.helm_show_values").sync(client=client, chart_ref=f"{REPOSITORY}/{CHART}", version="0.1.0")
    assert shown == "colour: red\n"
    made = load("api.charts.helm_create").sync(client=client, body=load("models").HelmCreateBody(name="fresh"))
    assert made.payload.read(2) == b"\x1f\x8b"


def test_a_generated_client_with_the_key_changes_releases(whole: PreparedServer, client: Any, load: Load) -> None:
    body = load("models").HelmUpgradeBody(chart_ref=f"{REPOSITORY}/{CHART}", version="0.1.0", dry_run=True)
    refused = load("api.charts.helm_upgrade").sync(RELEASE, client=client, body=body)
    assert refused.status == 401
    with load("client").Client(f"http://127.0.0.1:{whole.server.port}", headers={"X-API-Key": KEY}) as known:
        assert load("api.charts.helm_upgrade").sync(RELEASE, client=known, body=body).name == RELEASE


def test_a_generated_client_with_a_token_reads_its_account(whole: PreparedServer, load: Load) -> None:
    known = load("client").AuthenticatedClient(f"http://127.0.0.1:{whole.server.port}", token=whole.admin)
    with known as client:
        account = load("api.tracker.account_info").sync(client=client)
    assert (account.username, account.role, account.email) == ("boss", "ADMIN", None)
